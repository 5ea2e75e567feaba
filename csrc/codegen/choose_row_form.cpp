#include "codegen/choose_row_form.h"

#include <algorithm>

#include "base/check.h"
#include "codegen/program_analysis.h"
#include "device/abi/row_vectors.h"

namespace ark::codegen {
namespace {

constexpr int kWarp = 32, kWarpgroup = 128, kConsumers = 256;  // device/loop/pipeline.cuh
constexpr int kKeptRegisters = 144;     // of the 224 that a consumer has and its caller leaves 180 of
constexpr int kMostChunks = 16;         // of a row that a warp or more threads share
constexpr int kLaneChunks = 5;          // of a row that fewer share, or that is off alignment
constexpr int kShiftedRegisters = 120;  // of rows with something moved into place; in a loop 128 spilled 8 bytes
constexpr int kAddressRegisters = 4;    // of an operand of these, or beside what rows have in common
constexpr int kLongElement = 60;        // instructions of functions, whose latency the code of one vector hides
constexpr int kLaneVectors = 4;         // that a thread should have in flight, of several rows if need be

const abi::ProgramParams& params_of(const plan::Op& op) { return op.record.params.program; }
const abi::Operand& operand_of(const plan::Op& op, int i) {
  const size_t number = static_cast<size_t>(params_of(op).first_operand + i);
  check(number < op.operands.size(), "op '", op.name, "': operand ", number, " of ", op.operands.size());
  return op.operands[number];
}

/// Operands that only plain accesses use, by how: stride 0 along the row in all ops, or vectors.
struct Accesses {
  uint32_t loads = 0, stores = 0;  // plain ones of elements (not of a row's results)
  uint32_t gathers = 0;            // that only loads by indices use
  uint32_t irregular = 0;          // by indices or predicates
};
Accesses accesses_of(const Program& program) {
  Accesses a;
  uint32_t irregular = 0, gathers = 0, others = 0;
  for (const Instr& in : program.instrs) {
    if (in.op != Opcode::kLoad && in.op != Opcode::kStore && in.op != Opcode::kLoadParts) continue;
    if (in.operand >= 32) continue;
    const uint32_t bit = 1u << in.operand;
    const bool load = in.op == Opcode::kLoad;
    (load && (in.a >= 0 || in.b >= 0) ? gathers : others) |= bit;
    if (in.op == Opcode::kLoadParts || in.b >= 0 || in.c >= 0 || (load ? in.a >= 0 : in.d >= 0))
      irregular |= bit;
    else if (load)
      a.loads |= bit;
    else if (!in.uniform)
      a.stores |= bit;
  }
  a.gathers = gathers & ~others;
  a.irregular = irregular;
  a.loads &= ~irregular;
  a.stores &= ~irregular;
  return a;
}

bool same_along_row(const plan::Op& op, int operand) {
  const abi::ProgramParams& p = params_of(op);
  const abi::Operand& o = operand_of(op, operand);
  for (int d = p.num_dims - p.reduce_dims; d < p.num_dims; ++d)
    if (o.stride[d] != 0) return false;
  return true;
}

/// Vectors of `vector` elements begin at the row's first element, in every row.
bool aligned(const plan::Op& op, uint32_t operands, int vector) {
  const abi::ProgramParams& p = params_of(op);
  if (op.record.size[p.num_dims - 1] % vector != 0) return false;
  for (int i = 0; i < 32; ++i) {
    if ((operands >> i & 1) == 0) continue;
    const abi::Operand& o = operand_of(op, i);
    const int together = std::min(vector, 16 / size_bytes(static_cast<DType>(o.dtype)));
    if (o.stride[p.num_dims - 1] != 1 || o.vector < together) return false;
  }
  return true;
}

/// All operands are contiguous along the row and off alignment by the same number of elements (slots are aligned).
bool off_alike(const plan::Op& op, uint32_t operands, int vector) {
  const abi::ProgramParams& p = params_of(op);
  if (p.reduce_dims != 1) return false;
  const abi::Operand* first = nullptr;
  for (int i = 0; i < 32; ++i) {
    if ((operands >> i & 1) == 0) continue;
    const abi::Operand& o = operand_of(op, i);
    if (o.stride[p.num_dims - 1] != 1) return false;
    if (first == nullptr) first = &o;
    if ((o.offset - first->offset) % vector != 0) return false;
    for (int d = 0; d + 1 < p.num_dims; ++d)
      if (op.record.size[d] > 1 && (o.stride[d] - first->stride[d]) % vector != 0) return false;
  }
  return first != nullptr;
}

bool contiguous_rows(const plan::Op& op, int operand) {
  return params_of(op).reduce_dims == 1 && operand_of(op, operand).stride[params_of(op).num_dims - 1] == 1;
}

bool differs_by_row(const plan::Op& op, int operand) {
  for (int d = 0; d < params_of(op).num_dims - params_of(op).reduce_dims; ++d)
    if (operand_of(op, operand).stride[d] != 0) return true;
  return false;
}

/// Operands of plain accesses that are not the same for all rows of some op.
uint32_t differing_operands(const Program& program, const std::vector<const plan::Op*>& ops) {
  const uint32_t loads = accesses_of(program).loads;
  uint32_t differ = 0;
  for (const plan::Op* op : ops)
    for (int i = 0; i < 32; ++i)
      if ((loads >> i & 1) != 0 && differs_by_row(*op, i)) differ |= 1u << i;
  return differ;
}

int narrowest_operand(const plan::Op& op, uint32_t operands) {
  int best = -1;
  for (int i = 0; i < 32; ++i) {
    if ((operands >> i & 1) == 0) continue;
    const auto size = [&](int k) { return size_bytes(static_cast<DType>(operand_of(op, k).dtype)); };
    if (best < 0 || size(i) < size(best)) best = i;
  }
  return best;
}

int64_t tile_rows(const plan::Op& op) { return std::min<int64_t>(params_of(op).tile, params_of(op).num_rows); }

/// Rows that a worker has of the op, about: where all have some, those of several tiles.
int64_t worker_rows(const plan::Op& op) {
  constexpr int64_t kWorkers = 128;
  return std::max(tile_rows(op), int64_t{params_of(op).num_rows} / kWorkers);
}

/// Rows that a worker has in one turn.
int64_t turn_rows(const RowForm& form) { return int64_t{kConsumers / form.threads} * form.rows; }

/// Threads that share a row of an op whose rows are streamed: a tile of few rows keeps all consumers busy.
int threads_of(const plan::Op& op) {
  const int64_t rows = tile_rows(op);
  return rows >= kConsumers / kWarp ? kWarp : rows >= kConsumers / kWarpgroup ? kWarpgroup : kConsumers;
}

/// Threads of a warp that share a row of so many vectors: as few as hold it, but neighbours that read 128 bytes of it
/// together; those that leave the fewest threads without a vector.
int lanes_of(int64_t vectors) {
  int best = kWarp;
  int64_t fewest = INT64_MAX;
  for (const int lanes : {8, 16, kWarp, 4}) {
    const int64_t chunks = (vectors + lanes - 1) / lanes;
    if ((lanes < kWarp && chunks > kLaneChunks) || chunks * lanes >= fewest) continue;
    best = lanes, fewest = chunks * lanes;
  }
  return best;
}

/// Where a worker has so few rows that threads would have none: more of them share a row.
int lanes_of_few(int64_t vectors, int64_t worker_rows) {
  int lanes = lanes_of(vectors);
  while (lanes < kWarp && vectors > lanes && 2 * lanes * worker_rows <= kConsumers) lanes *= 2;
  return lanes;
}

/// Rows that `threads` threads keep at once, `registers` for each: where a worker has more of them than such threads.
int rows_at_once(int64_t chunks, int64_t registers, int threads, int64_t worker_rows) {
  const int64_t groups = kConsumers / threads;
  int rows = 1;
  while (2 * rows * chunks <= kLaneVectors && 2 * rows * registers <= kKeptRegisters && rows * groups < worker_rows)
    rows *= 2;
  return rows;
}

/// Whether what is beyond a row's last vector or element can be left out: it is neither stored nor reduced. What is
/// read once a row by indices, and checked there, has no part in that.
bool can_leave_out(const Program& program, const RowForm& form) {
  const uint32_t irregular = accesses_of(program).irregular;
  const auto checks = [](const Instr& in) { return in.op == Opcode::kCheckIndex; };
  if ((irregular & ~form.same_gathers) != 0) return false;
  return irregular != 0 || std::ranges::none_of(program.instrs, checks);
}

/// Of these operands, those that are off alignment by as many elements as the first one that is stored to, or read row
/// by row, in every op; 0: not all that are stored to are, or some operand is not contiguous along the row.
uint32_t alike_operands(const std::vector<const plan::Op*>& ops, uint32_t operands, uint32_t stores, uint32_t differing,
                        int vector) {
  const uint32_t first = stores != 0 ? stores : operands & differing;
  if (first == 0) return 0;
  const uint32_t one = first & (~first + 1);
  uint32_t alike = 0;
  for (int i = 0; i < 32; ++i) {
    const uint32_t both = one | 1u << i;
    if ((operands >> i & 1) == 0) continue;
    for (const plan::Op* op : ops)
      if (!contiguous_rows(*op, i)) return 0;
    if (std::all_of(ops.begin(), ops.end(), [&](const plan::Op* op) { return off_alike(*op, both, vector); }))
      alike |= 1u << i;
  }
  return (stores & ~alike) == 0 ? alike : 0;
}

struct Lengths {
  int64_t longest = 0, shortest = INT64_MAX;
  int64_t worker_rows = 0;  // at most
};

/// Elements of a row that has a whole vector wherever it begins.
int64_t least_length(int vector) { return 2 * int64_t{vector} - 1; }

/// Of a row of that form, whose vectors beyond the last are that one once more.
int64_t least_size(const RowForm& form) { return form.multiples ? form.vector : least_length(form.vector); }

/// `some_alike`: of operands that are off alignment, loads may be unlike the others; then rows must be kept.
void choose_vectors(const Program& program, const std::vector<const plan::Op*>& ops, const Lengths& lengths,
                    bool some_alike, RowForm& form) {
  const Accesses accesses = accesses_of(program);
  form.same_operands = accesses.loads & ~accesses.stores;
  for (const plan::Op* op : ops)
    for (int i = 0; i < 32; ++i)
      if ((form.same_operands >> i & 1) != 0 && !same_along_row(*op, i)) form.same_operands &= ~(1u << i);
  form.same_gathers = accesses.gathers;
  for (const plan::Op* op : ops)
    for (int i = 0; i < 32; ++i)
      if ((form.same_gathers >> i & 1) != 0 && !same_along_row(*op, i)) form.same_gathers &= ~(1u << i);
  const uint32_t moved = (accesses.loads | accesses.stores) & ~form.same_operands;
  form.vector = ProgramAnalysis(program, &form).row_vector_length();
  if (program.num_operands > 32) {  // masks do not name them all
    form.vector = 1;
    return;
  }
  const auto all = [&](auto&& holds) {
    return std::all_of(ops.begin(), ops.end(), [&](const plan::Op* op) { return holds(*op, moved, form.vector); });
  };
  while (form.vector > 1 && !all(aligned) && lengths.shortest < least_length(form.vector)) form.vector /= 2;
  if (form.vector == 1) return;
  form.multiples = all(aligned);
  const uint32_t gathers = ProgramAnalysis(program, &form).gathers();
  const auto fits = [&](const plan::Op* op) { return aligned(*op, moved | gathers, form.vector); };
  if (form.multiples) {
    form.vector_operands = std::all_of(ops.begin(), ops.end(), fits) ? moved | gathers : moved;
  } else if (all(off_alike)) {
    form.vector_operands = moved;
    form.head_operand = narrowest_operand(*ops.front(), moved);
    form.edges = true;
  } else if (const uint32_t alike =
                 alike_operands(ops, moved, accesses.stores, differing_operands(program, ops), form.vector);
             some_alike && form.vector > 1 && alike != 0) {
    form.vector_operands = alike;
    form.shifted_operands = moved & ~alike;
    form.head_operand = narrowest_operand(*ops.front(), alike);
    form.edges = true;
  } else {
    do form.vector /= 2;
    while (form.vector > 1 && !all(aligned));
    form.multiples = form.vector > 1;
    if (form.multiples) form.vector_operands = moved;
  }
}

/// Rows that have no more elements than threads: one each is less code, and there is as much in flight.
void use_elements(RowForm& form) {
  form.vector = 1;
  form.vector_operands = form.shifted_operands = 0;
  form.head_operand = -1;
  form.edges = form.multiples = false;
}

/// Vectors that a row of so many elements may have; of one that begins anywhere, whole ones.
int64_t most_vectors(const RowForm& form, int64_t length) {
  return (length + (form.edges ? 0 : form.vector - 1)) / form.vector;
}

/// Chunks that every thread has of a row of so many elements, wherever it begins.
int sure_chunks(const RowForm& form, int64_t length) {
  const int64_t lost = form.multiples ? 0 : form.vector - 1;
  return static_cast<int>((length - lost) / form.vector / form.threads);
}

/// Registers of an element at an end of a row that begins anywhere.
int64_t edge_registers(const Program& program, RowForm form) {
  form.vector = 1;
  return ProgramAnalysis(program, &form).row_kept_registers(false);
}

/// Registers of all rows at once, where those of the next ones come in beside them.
int64_t ahead_registers(const Program& program, const RowForm& form) {
  RowForm edge = form;
  edge.vector = 1;
  const int64_t vectors = form.chunks * ProgramAnalysis(program, &form).row_ahead_registers();
  return form.rows * (vectors + form.edge_elements * ProgramAnalysis(program, &edge).row_ahead_registers());
}

/// Registers that rows and what comes in ahead of the next ones may have, addresses beside them.
int64_t ahead_room(const Program& program, const RowForm& form) {
  const bool shifted = form.shifted_operands != 0;
  return (shifted ? kShiftedRegisters : kKeptRegisters) - kAddressRegisters * program.num_operands;
}

/// Operands that all rows have in common and that a thread keeps from row to row, in all passes, where there is room:
/// what is read again is waited for together with what comes in ahead (a norm of fp32 with dropout and residual, nine
/// operands, spilled 500 bytes).
uint32_t common_operands(const Program& program, const RowForm& form) {
  const Accesses accesses = accesses_of(program);
  const uint32_t loads = accesses.loads & form.vector_operands & ~(accesses.stores | form.same_operands);
  RowForm with = form;
  with.standing_operands = (form.multiples ? loads : form.shifted_operands) & ~form.ahead_operands;
  if ((form.multiples && form.rows > 1) || ahead_registers(program, with) > ahead_room(program, form)) return 0;
  return with.standing_operands;
}

/// Rows in registers, shared by so many threads, if they fit. False: with more threads there would be registers for the
/// next rows too.
bool share_rows(const Program& program, const std::vector<const plan::Op*>& ops, const Lengths& lengths, int threads,
                RowForm& form) {
  const int64_t vectors = most_vectors(form, lengths.longest);
  const int64_t step = int64_t{threads} * form.vector, chunks = (vectors + threads - 1) / threads;
  const bool full = !form.edges && lengths.longest == lengths.shortest && lengths.longest % step == 0;
  const ProgramAnalysis analysis(program, &form);
  const int edge_elements = form.edges ? (abi::most_edges(form.vector) + threads - 1) / threads : 0;
  const int64_t registers = chunks * analysis.row_kept_registers(full) + edge_elements * edge_registers(program, form);
  if (analysis.reads_irregularly() || chunks > kMostChunks || registers > kKeptRegisters) return true;
  form.threads = threads;
  form.full = full;
  form.edge_elements = edge_elements;
  // Aligned rows whose last vectors some threads do not have are as rows with edges, but without these: of several
  // turns, as other lengths need other code then.
  const bool same_length = lengths.longest == lengths.shortest, turns = lengths.worker_rows > kConsumers / threads;
  if (!full && form.multiples && same_length && turns && threads >= kWarp && can_leave_out(program, form))
    form.edges = true;
  if (form.edges && same_length) form.sure = sure_chunks(form, lengths.shortest);
  form.chunks = static_cast<int>(chunks);
  form.rows = threads < kWarp ? rows_at_once(chunks, registers, threads, lengths.worker_rows) : 1;
  form.ahead_operands = differing_operands(program, ops);
  const bool shifted = form.shifted_operands != 0;
  const int64_t most = shifted ? ahead_room(program, form) : kKeptRegisters;
  const auto fits = [&] { return ahead_registers(program, form) <= most; };
  while (shifted && form.rows > 1 && !fits()) form.rows /= 2;
  const bool all_fit = fits();
  if ((!full && !form.edges) || !all_fit) form.ahead_operands = 0;
  if (form.ahead_operands != 0) form.standing_operands = common_operands(program, form);
  const int code = analysis.element_code();
  form.in_turn = code >= kLongElement && chunks > 1 && form.rows * chunks * form.vector * code > kMostRowCode;
  return all_fit;
}

/// Rows in registers, if they fit.
void keep_rows(const Program& program, const std::vector<const plan::Op*>& ops, const Lengths& lengths, RowForm& form) {
  const int64_t vectors = most_vectors(form, lengths.longest);
  // Off alignment only what a warp keeps well: streamed code serves any length, and graphs have rows of several.
  const bool leaves_out = form.threads == kWarp && vectors <= kWarp * kLaneChunks && can_leave_out(program, form);
  if (lengths.longest == 0 || (form.edges && (!leaves_out || lengths.shortest < least_length(form.vector)))) return;
  int threads = form.threads == kWarp ? lanes_of_few(vectors, lengths.worker_rows) : form.threads;
  while (!share_rows(program, ops, lengths, threads, form) && form.shifted_operands != 0 && threads < kWarp)
    threads *= 2;
}

}  // namespace

RowForm row_form(const Program& program, const std::vector<const plan::Op*>& ops) {
  Lengths lengths;
  int threads = kWarp;
  for (const plan::Op* op : ops) {
    lengths.longest = std::max(lengths.longest, int64_t{params_of(*op).row_size});
    lengths.shortest = std::min(lengths.shortest, int64_t{params_of(*op).row_size});
    lengths.worker_rows = std::max(lengths.worker_rows, worker_rows(*op));
    threads = std::max(threads, threads_of(*op));
  }
  RowForm form;
  for (const bool some_alike : {true, false}) {
    form = {};
    choose_vectors(program, ops, lengths, some_alike, form);
    form.threads = threads;
    if (threads == kConsumers && lengths.longest <= kConsumers) use_elements(form);
    keep_rows(program, ops, lengths, form);
    if (form.chunks > 0 || !form.edges) break;
  }
  // Of whole workers alone: in kernels of few rows; more rows have another one anyway (planner/tile/spread_rows.h).
  form.one_turn = form.threads == kConsumers && form.chunks > 0 && lengths.worker_rows <= turn_rows(form);
  return form;
}

bool row_form_serves(const RowForm& form, const plan::Op& op) {
  for (int i = 0; i < 32; ++i)
    if ((((form.same_operands | form.same_gathers) >> i & 1) != 0 && !same_along_row(op, i)) ||
        ((form.shifted_operands >> i & 1) != 0 && !contiguous_rows(op, i)) ||
        ((form.standing_operands >> i & 1) != 0 && differs_by_row(op, i)))
      return false;
  const bool fits = form.edges && !form.multiples ? off_alike(op, form.vector_operands, form.vector)
                                                  : aligned(op, form.vector_operands, form.vector);
  if (!fits || threads_of(op) > std::max(form.threads, kWarp)) return false;
  if (form.one_turn && worker_rows(op) > turn_rows(form)) return false;
  const int64_t kept = int64_t{form.threads} * form.chunks, size = params_of(op).row_size;
  if (form.chunks > 0 && form.edges && size < least_size(form)) return false;
  if (form.chunks > 0 && form.edges && sure_chunks(form, size) < form.sure) return false;
  return form.chunks == 0 || (form.full ? size == kept * form.vector : most_vectors(form, size) <= kept);
}

}  // namespace ark::codegen
