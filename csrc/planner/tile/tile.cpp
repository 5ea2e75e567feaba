#include "planner/tile/tile.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "base/unsupported.h"
#include "device/abi/variants.h"
#include "plan/kinds.h"
#include "plan/transposed_operands.h"
#include "planner/background.h"
#include "planner/cost.h"
#include "planner/extents.h"
#include "planner/float_tiles.h"
#include "planner/tile/align_operands.h"
#include "planner/tile/beside.h"
#include "planner/tile/column_strips.h"
#include "planner/tile/column_width.h"
#include "planner/tile/columns.h"
#include "planner/tile/flat_tiles.h"
#include "planner/tile/join_gated.h"
#include "planner/tile/send_by_batch.h"
#include "planner/tile/small_tiles.h"
#include "planner/tile/split_by_boxes.h"
#include "planner/tile/split_heads.h"
#include "planner/tile/split_long_k.h"
#include "planner/tile/split_reductions.h"
#include "planner/tile/spread_rows.h"
#include "planner/tile/tile_row_select.h"
#include "planner/tile/tile_scatter_sum.h"
#include "planner/tile/tile_sizes.h"

namespace ark::planner {
namespace {

using abi::TaskKind;

/// Of an op: more have results of terabytes, and take seconds and gigabytes to plan (2^29 tiles: 5.5 s).
constexpr int64_t kMostTiles = int64_t{1} << 26;
/// Of a program; of bytes so many are more than a GPU has. Eager, which has all values in memory, says at once that it
/// cannot; that a fused op needs no memory is no help where it takes for ever (two CPU threads: six minutes for so many
/// exponentials).
constexpr int64_t kMostElements = int64_t{1} << 38;

void check_elements(const FusedOp& op) {
  if (plan::kind_of(op.op.record).family != plan::Family::kProgram) return;
  int64_t elements = 1;
  for (const int64_t size : op.op.record.size)
    if (__builtin_mul_overflow(elements, size, &elements)) elements = INT64_MAX;
  check_node(elements <= kMostElements, op.op.node, "op '", op.op.name, "': ", elements, " elements, at most ",
             kMostElements);
}

void set_grid(FusedOp& op, int64_t c0, int64_t c1, int64_t c2) {
  const int64_t grid[3] = {c0, c1, c2};
  check_node(c0 * c1 * c2 <= kMostTiles, op.op.node, "op '", op.op.name, "': ", c0 * c1 * c2, " tiles, at most ",
             kMostTiles);
  for (int i = 0; i < 3; ++i) op.op.record.grid[i] = static_cast<int>(grid[i]);
}

/// The grid that the table of kinds gives (plan/kinds.h).
void set_grid(FusedOp& op) {
  const Grid grid = grid_of(op.op.record);
  set_grid(op, grid.tiles[0], grid.tiles[1], grid.tiles[2]);
}

// ---- pointwise, row, column ----

/// Factors `tiles` of `tile` flattened elements along the joint dimensions: (outer dims, next dim, rest).
void set_flat_grid(FusedOp& op, const std::vector<Joint>& joint, int64_t tile) {
  int64_t total = 1;
  for (const Joint& j : joint) total *= j.size;
  if (total == 0) return set_grid(op, 0, 1, 1);
  const int64_t tiles = ceil_div(total, tile);
  int64_t inner = 1;
  // innermost: tiles within the innermost boundary that is a multiple of the tile, then the next boundary
  std::vector<int64_t> factors;
  int64_t covered = tile;
  for (int j = static_cast<int>(joint.size()) - 1; j > 0; --j) {
    inner *= joint[j].size;
    if (inner % covered != 0 || inner / covered == 1) continue;
    factors.push_back(inner / covered);
    covered = inner;
    if (factors.size() == 2) break;
  }
  if (factors.empty()) return set_grid(op, tiles, 1, 1);
  if (factors.size() == 1) return set_grid(op, tiles / factors[0], factors[0], 1);
  set_grid(op, tiles / (factors[0] * factors[1]), factors[1], factors[0]);
}

// Of a pointwise tile. A tile of 8192 elements is one round of loads and takes 2.6 us, 2 of them the tile's own cost.
constexpr int64_t kMinElements = kLeastFlatElements, kMaxElements = kMostFlatElements;
constexpr int64_t kRowElements = 32768;  // of a tile of rows
// Rows that fewer threads than a warp share (codegen/row_form): the worker reads and writes some 8192 elements in the
// 1.5 us of a tile's own cost.
constexpr int64_t kShortRow = 640, kMostShortRows = 256, kShortRowElements = 65536, kTileCostElements = 8192;
constexpr int64_t kLongestVector = 8;
// Elements above which a whole CTA, not a warp, handles a row; of few rows, which leave most workers idle, from 4096
// on.
constexpr int64_t kLongRow = 4096, kFewRows = 16, kLongFewRow = 4095;
constexpr int kConsumerWarps = 8;

/// What tiles of a one-dimensional domain should be a multiple of: whole rows of what it writes, a power of two of
/// them, so that its tiles line up with the row blocks of others; without rows of a fitting length, 1024 elements.
/// Whole vectors in any case.
int64_t flat_multiple(const FusedOp& op, const std::vector<Storage>& storages, int64_t target) {
  for (size_t x = 0; x < op.access.size(); ++x) {
    const uint32_t slot = op.op.operands[x].slot;
    if (op.access[x] != Access::kWrite || slot == abi::kNoSlot || storages[slot].sizes.empty()) continue;
    int64_t row = storages[slot].sizes.back();
    if (row < 64 || row > target) break;
    while (row * 3 <= target * 2) row *= 2;
    if (row % kLongestVector != 0) break;
    return row;
  }
  return 1024;
}

/// What stands beside an op (beside.h), and what of it leaves tiles free to be large.
struct Beside {
  double all, free;
};
/// What a tile of a program has for itself.
struct Room {
  int64_t workers;
  double beside;  // what stands beside the op (beside.h)
};

/// Rows of a tile of transposed operands, `most` of them if these are more than a line's: what costs the worker that
/// has most of them least. They are read by whole sectors, from a line's on by whole lines; `anywhere`: they begin
/// between these. Blocks of rows (device/program/transposed_blocks.cuh) in any case; if the tile could straddle an
/// outer dimension, a power of two or a divisor.
int64_t transposed_rows(const abi::OpRecord& record, int64_t total, int bytes, bool anywhere, int64_t most,
                        const Room& room) {
  constexpr int64_t kSectorBytes = 32, kBlockRows = 8;
  const int last = record.params.program.num_dims - 1;
  const int64_t whole = abi::transposed_rows(bytes);  // 128 bytes of a column
  const int64_t rows = total / record.size[last], tile_cost = kTileCostElements / record.size[last];
  int64_t best = 1, best_cost = INT64_MAX;
  for (int64_t count = kBlockRows; count <= std::max(whole, most); count += count < whole ? kBlockRows : whole) {
    if ((count & (count - 1)) != 0 && last > 1 && record.size[last - 1] % count != 0) continue;
    const int64_t off = anywhere ? kSectorBytes / 2 : 0;
    const int64_t read = ceil_div(count * bytes + off, kSectorBytes) * kSectorBytes / bytes;
    const int64_t cost = turns_of(ceil_div(rows, count), room.beside, room.workers) * (read + count + tile_cost);
    if (cost <= best_cost) best = count, best_cost = cost;
  }
  return best;
}

struct Transposed {
  int bytes = 0;          // of an element of all transposed operands; 0: there are none
  bool anywhere = false;  // some column begins between multiples of 16 bytes
};
Transposed transposed_of(const FusedOp& op, const Program& program) {
  const abi::ProgramParams& p = op.op.record.params.program;
  const uint32_t operands = plan::transposed_operands(op.op, program);
  Transposed result;
  for (int i = 0; i < program.num_operands; ++i) {
    if (i >= 32 || (operands >> i & 1) == 0) continue;
    const abi::Operand& x = op.op.operands[static_cast<size_t>(p.first_operand + i)];
    const int64_t size = plan::loaded_bytes(program, i), column = x.stride[p.num_dims - 1];
    result.bytes += static_cast<int>(size);
    result.anywhere = result.anywhere || column * size % 16 != 0 || x.offset * size % 16 != 0;
  }
  return result;
}

void tile_pointwise(FusedOp& op, const FusedGraph& graph, const Options& options, const Beside& beside) {
  const std::vector<Storage>& storages = graph.storages;
  abi::ProgramParams& params = op.op.record.params.program;
  const std::vector<Joint> joint = joint_dims(op, 0, params.num_dims);
  int64_t total = 1;
  for (const Joint& j : joint) total *= j.size;
  // As many tiles for every worker as keep a tile within kMaxElements, and no more.
  const int64_t workers = workers_for(graph, op, options.machine.num_workers),
                rounds = std::max<int64_t>(1, ceil_div(total, workers * kMaxElements));
  // Ranks compare tiles of what they send (verify/rank_interface), and whether it is a mere copy may depend on the
  // rank.
  const bool sends = params.num_dims == 1 && is_exchange(graph, op) &&
                     link_seconds(graph, op, options.machine) > options.machine.background_send_seconds;
  const int64_t target = sends ? background_tile(sent_element_bytes(graph, op))
                               : std::max(kMinElements, ceil_div(total, rounds * workers));
  params.tile = aligned_tile(joint, target, flat_multiple(op, storages, target));
  if (!sends) params.tile = cheapest_tile(joint, params.tile, workers);
  if (const Transposed x = transposed_of(op, graph.programs[static_cast<size_t>(params.program)]); x.bytes > 0) {
    const int64_t row = op.op.record.size[params.num_dims - 1];
    const int64_t most = (beside.free > 1 && !is_exchange(graph, op) ? kMostFreeElements : kMaxElements) / row;
    if (params.tile < total)
      params.tile =
          std::min(total, row * transposed_rows(op.op.record, total, x.bytes, x.anywhere, most, {workers, beside.all}));
  } else if (!is_exchange(graph, op)) {
    params.tile = free_tile(joint, params.tile, beside.free, options.machine.num_workers);
  }
  params.split = params.num_rows = params.row_size = 1;
  set_flat_grid(op, joint, params.tile);
}

/// Of rows that a worker, half of one or a warp has: as many as cost least with what stands beside the op, a tile's own
/// cost among it.
int64_t shared_rows(const abi::ProgramParams& params, const Room& room) {
  int64_t best = 1, best_cost = INT64_MAX;
  for (const int64_t rows : {1, 2, kConsumerWarps}) {
    const int64_t turns = turns_of(ceil_div(params.num_rows, rows), room.beside, room.workers);
    const int64_t cost = turns * (rows * params.row_size + kTileCostElements);
    if (cost < best_cost) best = rows, best_cost = cost;
  }
  return best;
}

/// A power of two of rows: the fewest turns of the worker that has most of them, with what a tile costs by itself.
int64_t rows_per_tile(const FusedOp& op, int64_t workers, double beside) {
  const abi::ProgramParams& params = op.op.record.params.program;
  if (op.spread_rows && params.num_rows <= workers) return shared_rows(params, {workers, beside});
  const bool is_long = params.row_size > (params.num_rows <= std::min(kFewRows, workers) ? kLongFewRow : kLongRow);
  const int64_t row = std::max<int64_t>(1, params.row_size);  // rows of nothing have results too
  const bool is_short = row <= kShortRow;
  const int64_t fitting =
      is_short ? std::min(kMostShortRows, kShortRowElements / row) : std::min<int64_t>(64, kRowElements / row);
  const int64_t least = is_long ? 1 : kConsumerWarps, most = is_long ? 2 : std::max(least, fitting);
  const int64_t tile_cost = is_long ? 0 : is_short ? kTileCostElements / row : 4;  // in rows
  int64_t best = least, best_cost = INT64_MAX;
  for (int64_t rows = least; rows <= most; rows *= 2) {
    const int64_t cost = ceil_div(ceil_div(params.num_rows, rows), workers) * (rows + tile_cost);
    if (cost <= best_cost) best = rows, best_cost = cost;
  }
  return best;
}

void tile_row(FusedOp& op, const Options& options, double beside) {
  abi::ProgramParams& params = op.op.record.params.program;
  const int outer = params.num_dims - params.reduce_dims;
  params.num_rows = params.row_size = 1;
  for (int d = 0; d < outer; ++d) params.num_rows *= op.op.record.size[d];
  for (int d = outer; d < params.num_dims; ++d) params.row_size *= op.op.record.size[d];
  const int64_t target = rows_per_tile(op, options.machine.num_workers, beside);
  const std::vector<Joint> joint = joint_dims(op, 0, outer);
  params.tile = aligned_tile(joint, target, 1);
  params.split = 1;
  set_flat_grid(op, joint, params.tile);
}

void tile_column(FusedOp& op, const Options& options, double beside) {
  abi::ProgramParams& params = op.op.record.params.program;
  params.num_rows = params.row_size = 1;
  for (int d = 0; d < params.reduce_dims; ++d) params.row_size *= op.op.record.size[d];
  for (int d = params.reduce_dims; d < params.num_dims; ++d) params.num_rows *= op.op.record.size[d];
  params.split = params.row_size;
  const std::vector<Joint> joint = joint_dims(op, params.reduce_dims, params.num_dims);
  params.tile = aligned_tile(joint, column_width(op, options.machine.num_workers, beside), kLongestVector);
  set_flat_grid(op, joint, params.tile);
}

// ---- matmul ----

struct Box {
  int32_t rows, k;
};
/// Pages of an operand: as of large tiles, of small ones, of the weights of small ones of two weights.
enum class Pages : uint8_t { kLarge, kSmall, kSmallOfTwo };

/// Of an operand whose k is contiguous, or of one whose rows are.
Box map_box(TaskKind kind, bool k_major, Pages pages, int page_rows) {
  if (pages == Pages::kSmallOfTwo) return {abi::kSmallTile, abi::kSmallTileBlock};
  if (pages == Pages::kSmall) return {page_rows, k_major ? abi::kSmallTileBlock : abi::kSmallTileK};
  if (kind == TaskKind::kMatmulFloat) return {kFloatBlock, kFloatTileK};
  return {k_major ? kMatmulTileM : 64, kMatmulTileK};
}

/// k in blocks: a dimension of its own, so many of them in a box.
void add_k_blocks(plan::TensorMap& map, int64_t k, int32_t blocks) {
  const int64_t element = size_bytes(map.dtype);
  map.sizes[0] = abi::kSmallTileBlock;
  map.sizes.insert(map.sizes.begin() + 2, k / abi::kSmallTileBlock);
  map.strides_bytes.insert(map.strides_bytes.begin() + 1, abi::kSmallTileBlock * element);
  map.box.insert(map.box.begin() + 2, blocks);
}

int add_matmul_map(Draft& draft, TaskKind kind, Pages pages, const abi::Operand& x, int rows_dim, int k_dim,
                   int64_t batch, int64_t rows, int64_t k, int page_rows = abi::kSmallTile) {
  const bool k_major = x.stride[k_dim] == 1;
  const int64_t element = size_bytes(static_cast<DType>(x.dtype));
  const int64_t outer_stride = (k_major ? x.stride[rows_dim] : x.stride[k_dim]) * element;
  const int64_t extent = (k_major ? rows : k) * outer_stride;
  plan::TensorMap map;
  map.slot = x.slot;
  map.offset_bytes = x.offset * element;
  map.dtype = static_cast<DType>(x.dtype);
  map.sizes = k_major ? std::vector<int64_t>{k, rows, batch} : std::vector<int64_t>{rows, k, batch};
  map.strides_bytes = {outer_stride, batch == 1 ? extent : x.stride[0] * element};
  const Box box = map_box(kind, k_major, pages, page_rows);
  map.box = k_major ? std::vector<int32_t>{box.k, box.rows, 1} : std::vector<int32_t>{box.rows, box.k, 1};
  if (pages != Pages::kLarge && k_major)
    add_k_blocks(map, k, pages == Pages::kSmall ? abi::kSmallTileK / abi::kSmallTileBlock : 1);
  draft.maps.push_back(std::move(map));
  return static_cast<int>(draft.maps.size()) - 1;
}

void set_large_tile(abi::OpRecord& record, const Options& options, int columns) {
  abi::MatmulTileParams& p = record.params.matmul;
  const bool is_float = record.kind == TaskKind::kMatmulFloat;
  const FloatTile tile = is_float ? float_tile(p, options.machine) : FloatTile{kMatmulTileM, columns};
  p.tile_m = tile.rows;
  p.tile_n = tile.columns;
  p.tile_k = is_float ? kFloatTileK : kMatmulTileK;
}

void tile_matmul(Draft& draft, FusedOp& op, const Options& options, int columns) {
  abi::OpRecord& record = op.op.record;
  abi::MatmulTileParams& p = record.params.matmul;
  const abi::Operand &a = op.op.operands[abi::MatmulOperand::kA], &b = op.op.operands[abi::MatmulOperand::kB];
  p.map_a = p.map_b = -1;
  if (!are_tma_addressable(draft.graph, op)) record.kind = TaskKind::kMatmulSimple;
  if (record.kind == TaskKind::kMatmulSimple) {
    p.tile_m = p.tile_n = kSimpleTile;
    p.tile_k = 16;
  } else {
    const bool small = has_small_tiles(op);
    if (!small) set_large_tile(record, options, columns);
    p.a_k_major = a.stride[2] == 1;
    p.b_k_major = b.stride[1] == 1;
    const int64_t batch = share_b(draft.graph, op) ? 1 : p.batch, rows = int64_t{p.m} * p.batch / batch;
    const Pages pages = small ? Pages::kSmall : Pages::kLarge, weights = p.gated != 0 ? Pages::kSmallOfTwo : pages;
    p.map_a = add_matmul_map(draft, record.kind, pages, a, 1, 2, batch, rows, p.k, abi::small_page_rows(p));
    p.map_b = add_matmul_map(draft, record.kind, weights, b, 2, 1, batch, p.n, p.k);
    const auto operand = [&](int number) { return op.op.operands[static_cast<size_t>(number)]; };
    if (p.gated)  // right behind map_b
      add_matmul_map(draft, record.kind, weights, operand(abi::MatmulOperand::kB2), 2, 1, batch, p.n, p.k);
    if (p.own_rows)
      p.map_own = add_matmul_map(draft, record.kind, pages, operand(abi::MatmulOperand::kOwn), 1, 2, 1, p.m, p.k,
                                 abi::small_page_rows(p));
  }
  set_grid(op);
}

// ---- attention ----

/// Sizes of a mapped operand, in the order of its role's axes: batch, head, sequence, columns.
std::array<int64_t, 4> mapped_sizes(const abi::OpRecord& record, const plan::Role& role) {
  std::array<int64_t, 4> sizes{};
  for (size_t d = 0; d < sizes.size(); ++d) sizes[d] = extent_of(record, role.axes[d]).size;
  return sizes;
}

int add_attention_map(Draft& draft, const abi::Operand& x, const std::array<int64_t, 4>& dims) {
  const auto [batch, heads, seq, d] = dims;
  const int64_t element = size_bytes(static_cast<DType>(x.dtype));
  plan::TensorMap map;
  map.slot = x.slot;
  map.offset_bytes = x.offset * element;
  map.dtype = static_cast<DType>(x.dtype);
  map.sizes = {d, seq, heads, batch};
  // a dimension of size 1 may come with any stride; TMA wants multiples of 16 bytes
  const int64_t sizes[3] = {seq, heads, batch};
  const int from[3] = {2, 1, 0};
  for (int i = 0; i < 3; ++i) {
    map.strides_bytes.push_back(sizes[i] == 1 ? ceil_div(d * element, 16) * 16 : x.stride[from[i]] * element);
  }
  map.box = {64, 64, 1, 1};
  draft.maps.push_back(std::move(map));
  return static_cast<int>(draft.maps.size()) - 1;
}

bool attention_addressable(const abi::Operand& x, const std::array<int64_t, 4>& sizes) {
  const int64_t element = size_bytes(static_cast<DType>(x.dtype));
  if (x.stride[3] != 1 || (x.offset * element) % 16 != 0) return false;
  for (size_t d = 0; d < 3; ++d) {
    if (sizes[d] > 1 && (x.stride[d] <= 0 || (x.stride[d] * element) % 16 != 0)) return false;
  }
  return true;
}

/// Queries of a tile of kAttentionSimple, by which its form is chosen (abi.h).
int simple_queries(const abi::AttentionParams& p, const std::vector<abi::Operand>& x) {
  using X = abi::AttentionOperand;
  constexpr int kMostDim = 256;
  const auto dtype = static_cast<DType>(p.dtype);
  if (dtype == DType::kF64) return abi::kTiledQueriesF64;
  bool fits = size_bytes(dtype) == 2 && p.head_dim % 8 == 0 && p.value_dim % 8 == 0 && p.head_dim <= kMostDim &&
              p.value_dim <= kMostDim;
  for (size_t i : {X::kQ, X::kK, X::kV}) fits = fits && x[i].dtype == p.dtype && x[i].vector == 8;
  fits = fits && (p.mask_kind == abi::MaskKind::kNone || size_bytes(static_cast<DType>(x[X::kMask].dtype)) <= 4);
  return fits ? abi::kMmaQueries : abi::kTiledQueries;
}

void tile_attention(Draft& draft, FusedOp& op) {
  abi::OpRecord& record = op.op.record;
  abi::AttentionParams& p = record.params.attention;
  const std::vector<abi::Operand>& x = op.op.operands;
  std::fill(std::begin(p.map), std::end(p.map), -1);
  // Tensors of dimensions b, h, s, d (masks, statistics and ranges are read element by element). Of attention simple, a
  // row may end within a vector.
  const bool whole = p.head_dim % 8 == 0 && p.value_dim % 8 == 0;
  if (record.kind != TaskKind::kAttentionDecode && (whole || record.kind == TaskKind::kAttentionSimple)) {
    for (abi::Operand& o : op.op.operands) {
      if (o.dtype == p.dtype) o.vector = attention_vector(o);
    }
  }
  if (record.kind == TaskKind::kAttentionDecode) {
    p.parts = std::max(1, p.parts);
    p.tile_q = p.queries;
    return set_grid(op);
  }
  const bool forward = record.kind == TaskKind::kAttentionForward;
  bool fits = true;
  for (const plan::Role& role : plan::kind_of(record).roles)
    if (role.mapped)
      fits = fits && attention_addressable(x[static_cast<size_t>(role.number)], mapped_sizes(record, role));
  if (!fits && forward) record.kind = TaskKind::kAttentionSimple;
  check_node(fits || forward, op.op.node, "attention backward '", op.op.name,
             "': q, k, v or dout have strides or offsets that are not multiples of 16 bytes");
  const bool simple = record.kind == TaskKind::kAttentionSimple;
  p.tile_q = simple ? simple_queries(p, x) : kAttentionTile;
  p.tile_k = simple ? kSimpleTile : kAttentionTile;
  for (const plan::Role& role : plan::kind_of(record).roles) {
    const auto number = static_cast<size_t>(role.number);
    if (role.mapped) p.map[number] = add_attention_map(draft, x[number], mapped_sizes(record, role));
  }
  set_grid(op);
}

void tile_program(FusedOp& op, const FusedGraph& graph, const Options& options, const Beside& beside) {
  const TaskKind kind = op.op.record.kind;
  if (kind == TaskKind::kRow) return tile_row(op, options, beside.all);
  if (kind == TaskKind::kColumn) return tile_column(op, options, beside.all);
  tile_pointwise(op, graph, options, beside);
}

/// Families that choose their tiles here; of the others planner/fuse has said all that the grid follows from.
void tile_op(Draft& draft, FusedOp& op, const Options& options, int columns, const Beside& beside) {
  const plan::Family family = plan::kind_of(op.op.record).family;
  if (family == plan::Family::kProgram) return tile_program(op, draft.graph, options, beside);
  if (family == plan::Family::kMatmul) return tile_matmul(draft, op, options, columns);
  if (family == plan::Family::kAttention) return tile_attention(draft, op);
  if (family == plan::Family::kScatterSum) tile_scatter_sum(op, options, beside.all);
  if (family == plan::Family::kRowSelect) tile_row_select(op);
  if (family == plan::Family::kRowDraw) tile_row_draw(op);
  if (family == plan::Family::kRows) set_column_strips(draft, op, options);
  set_grid(op);
}

}  // namespace

void tile(Draft& draft, const Options& options) {
  for (const FusedOp& op : draft.graph.ops) check_elements(op);
  split_reductions(draft, options);
  align_operands(draft, options);
  split_by_boxes(draft.graph, options);
  send_by_batch(draft.graph, options);
  choose_small_tiles(draft, options);
  join_gated(draft, options);
  split_long_k(draft, options);
  split_heads(draft.graph, options);
  spread_rows(draft.graph);
  const std::vector<int> columns = tile_columns(draft.graph, options);
  std::vector<double> beside = beside_ops(draft.graph, options);
  const std::vector<double> alike = alike_beside(draft.graph, options), free = free_beside(draft.graph, options);
  for (size_t i = 0; i < beside.size(); ++i)
    if (const FusedOp& op = draft.graph.ops[i];
        op.op.record.kind == TaskKind::kColumn || op.op.record.kind == TaskKind::kScatterSum)
      beside[i] = std::max(alike[i], op.beside);
  for (size_t i = 0; i < draft.graph.ops.size(); ++i)
    tile_op(draft, draft.graph.ops[i], options, columns[i], {beside[i], free[i]});
}

}  // namespace ark::planner
