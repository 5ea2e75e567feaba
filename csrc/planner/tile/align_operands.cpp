#include "planner/tile/align_operands.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "planner/tile/tile_sizes.h"

namespace ark::planner {
namespace {

using abi::TaskKind;

constexpr int64_t kWorthCopying = 2'000'000'000;  // flops of a product; CUDA cores take 50 us for so many
constexpr int64_t kRowBytes = 128;                // rows start on cache lines

struct Shape {
  int64_t batch, rows, k;
};

/// Tiles have sums of f32.
bool ends_in_f32(const Program& program) {
  return std::none_of(program.instrs.begin(), program.instrs.end(),
                      [](const Instr& in) { return in.op == Opcode::kRoot && compute_type(in.dtype) != DType::kF32; });
}

bool is_candidate(const FusedOp& op, const std::vector<Program>& programs, const Options& options) {
  const abi::MatmulTileParams& p = op.op.record.params.matmul;
  if (!options.tensor_cores || op.op.record.kind != TaskKind::kMatmulSimple || op.op.flops < kWorthCopying)
    return false;
  const auto dtype = static_cast<DType>(p.dtype);
  const bool readable = dtype == DType::kBF16 || dtype == DType::kF16 || dtype == DType::kF32;
  using X = abi::MatmulOperand;
  const bool same = op.op.operands[X::kA].dtype == p.dtype && op.op.operands[X::kB].dtype == p.dtype;
  return readable && same && ends_in_f32(programs[static_cast<size_t>(p.program)]) && p.k >= kMatmulTileK &&
         (p.pair_distance == 0 || 64 % p.pair_distance == 0);
}

class Aligner {
 public:
  Aligner(FusedGraph& graph, std::vector<FusedOp>& ops) : graph_(graph), ops_(ops) {}

  /// The operand through a padded copy, made now unless it exists.
  abi::Operand copied(const abi::Operand& x, int rows_dim, int k_dim, const Shape& shape, const FusedOp& reader) {
    const int inner = x.stride[rows_dim] == 1 ? rows_dim : k_dim, outer = inner == k_dim ? rows_dim : k_dim;
    const int64_t inner_size = inner == k_dim ? shape.k : shape.rows;
    const int64_t outer_size = inner == k_dim ? shape.rows : shape.k;
    const std::array<int64_t, 8> key = {x.slot,     x.offset,   shape.batch,     shape.batch == 1 ? 0 : x.stride[0],
                                        outer_size, inner_size, x.stride[outer], x.stride[inner]};
    const int64_t unit = kRowBytes / size_bytes(static_cast<DType>(x.dtype));
    const int64_t row = (inner_size + unit - 1) / unit * unit;
    auto [copy, is_new] = copies_.try_emplace(key, StorageId{-1});
    if (is_new) copy->second = add_copy(x, outer, inner, {shape.batch, outer_size, inner_size}, row, reader);
    abi::Operand y = x;
    y.slot = static_cast<uint32_t>(copy->second);
    y.offset = 0;
    y.index_operand = -1;
    y.vector = 1;
    y.stride[0] = outer_size * row;
    y.stride[outer] = row;
    y.stride[inner] = 1;
    return y;
  }

 private:
  StorageId add_copy(const abi::Operand& x, int outer, int inner, const std::array<int64_t, 3>& sizes, int64_t row,
                     const FusedOp& reader) {
    const auto dtype = static_cast<DType>(x.dtype);
    Storage storage;
    storage.dtype = dtype;
    storage.sizes = {sizes[0], sizes[1], row};
    storage.strides = {sizes[1] * row, row, 1};
    storage.num_elements = sizes[0] * sizes[1] * row;
    storage.name = graph_.storages[x.slot].name + ".aligned";
    const auto id = static_cast<StorageId>(graph_.storages.size());
    graph_.storages.push_back(storage);

    Program program;
    program.num_dims = 3;
    program.num_operands = 2;
    program.instrs = {{.op = Opcode::kLoad, .dtype = dtype, .operand = 0},
                      {.op = Opcode::kStore, .dtype = dtype, .a = 0, .operand = 1}};
    const int number = number_of(graph_.programs, std::move(program));

    FusedOp op;
    op.op.name = "align " + graph_.storages[x.slot].name;
    op.op.module = reader.op.module;
    op.op.node = reader.op.node;
    op.op.record.kind = TaskKind::kPointwise;
    op.op.programs = {number};
    op.op.bytes = 2 * sizes[0] * sizes[1] * sizes[2] * size_bytes(dtype);
    std::fill(std::begin(op.op.record.size), std::end(op.op.record.size), 1);
    std::copy(sizes.begin(), sizes.end(), op.op.record.size);
    abi::ProgramParams& params = op.op.record.params.program;
    params = {};
    params.program = number;
    params.num_dims = 3;
    abi::Operand from = x, to = x;
    std::fill(std::begin(from.stride), std::end(from.stride), 0);
    std::fill(std::begin(to.stride), std::end(to.stride), 0);
    from.stride[0] = sizes[0] == 1 ? 0 : x.stride[0];
    from.stride[1] = x.stride[outer];
    from.stride[2] = x.stride[inner];
    from.vector = 1;
    to.slot = static_cast<uint32_t>(id);
    to.offset = 0;
    std::copy(storage.strides.begin(), storage.strides.end(), to.stride);
    to.vector = static_cast<signed char>(16 / size_bytes(dtype));
    op.op.operands = {from, to};
    op.access = {Access::kRead, Access::kWrite};
    ops_.push_back(std::move(op));
    return id;
  }

  FusedGraph& graph_;
  std::vector<FusedOp>& ops_;
  std::map<std::array<int64_t, 8>, StorageId> copies_;
};

}  // namespace

std::vector<bool> changing_storages(const FusedGraph& graph) {
  std::vector<int> versions(graph.storages.size(), 0);
  for (size_t s = 0; s < graph.storages.size(); ++s) versions[s] = graph.storages[s].input >= 0;
  for (const FusedOp& op : graph.ops) {
    for (size_t x = 0; x < op.access.size(); ++x) {
      const uint32_t slot = op.op.operands[x].slot;
      if (op.access[x] == Access::kParameters || slot == abi::kNoSlot) continue;
      versions[slot] += op.access[x] != Access::kRead;
    }
  }
  std::vector<bool> changes;
  for (int count : versions) changes.push_back(count > 1);
  return changes;
}

bool tma_addressable(const abi::Operand& x, int rows_dim, int k_dim, int64_t batch) {
  const int64_t element = size_bytes(static_cast<DType>(x.dtype));
  const int inner = x.stride[k_dim] == 1 ? k_dim : rows_dim;
  const int outer = inner == k_dim ? rows_dim : k_dim;
  if (x.stride[inner] != 1 || x.index_operand >= 0) return false;
  if ((x.stride[outer] * element) % 16 != 0 || x.stride[outer] <= 0 || (x.offset * element) % 16 != 0) return false;
  return batch == 1 || (x.stride[0] > 0 && (x.stride[0] * element) % 16 == 0);
}

bool share_b(const FusedGraph& graph, const FusedOp& op) {
  const abi::MatmulTileParams& p = op.op.record.params.matmul;
  const abi::Operand &a = op.op.operands[abi::MatmulOperand::kA], &b = op.op.operands[abi::MatmulOperand::kB];
  return graph.world > 1 && p.batch > 1 && b.stride[0] == 0 && a.stride[0] == p.m * a.stride[1];
}

bool are_tma_addressable(const FusedGraph& graph, const FusedOp& op) {
  const int64_t batch = share_b(graph, op) ? 1 : op.op.record.params.matmul.batch;
  const abi::Operand &a = op.op.operands[abi::MatmulOperand::kA], &b = op.op.operands[abi::MatmulOperand::kB];
  return tma_addressable(a, 1, 2, batch) && tma_addressable(b, 2, 1, batch);
}

void align_operands(Draft& draft, const Options& options) {
  FusedGraph& graph = draft.graph;
  std::vector<FusedOp> ops;
  std::vector<int> place(graph.ops.size());
  Aligner aligner(graph, ops);
  const std::vector<bool> changes = changing_storages(graph);
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    FusedOp& op = graph.ops[i];
    for (int& before : op.after) before = place[before];
    if (is_candidate(op, graph.programs, options)) {
      const abi::MatmulTileParams& p = op.op.record.params.matmul;
      abi::Operand &a = op.op.operands[abi::MatmulOperand::kA], &b = op.op.operands[abi::MatmulOperand::kB];
      const bool fits_a = tma_addressable(a, 1, 2, p.batch), fits_b = tma_addressable(b, 2, 1, p.batch);
      if ((fits_a || !changes[a.slot]) && (fits_b || !changes[b.slot]) && a.index_operand < 0 && b.index_operand < 0) {
        if (!fits_a) a = aligner.copied(a, 1, 2, {p.batch, p.m, p.k}, op);
        if (!fits_b) b = aligner.copied(b, 2, 1, {p.batch, p.n, p.k}, op);
        const bool f32 = p.dtype == static_cast<int>(DType::kF32);
        op.op.record.kind = f32 ? TaskKind::kMatmulFloat : TaskKind::kMatmulTile;
      }
    }
    place[i] = static_cast<int>(ops.size());
    ops.push_back(std::move(op));
  }
  graph.ops = std::move(ops);
}

signed char attention_vector(const abi::Operand& x) {
  if (x.slot == abi::kNoSlot || x.stride[3] != 1) return x.vector;
  const int64_t most = 16 / size_bytes(static_cast<DType>(x.dtype));
  for (int64_t v = most; v > 1; v /= 2)
    if (x.offset % v == 0 && x.stride[0] % v == 0 && x.stride[1] % v == 0 && x.stride[2] % v == 0)
      return static_cast<signed char>(v);
  return 1;
}

}  // namespace ark::planner
