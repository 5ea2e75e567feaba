#include "planner/tile/join_gated.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/check.h"
#include "planner/fuse/emit.h"
#include "planner/tile/align_operands.h"
#include "planner/tile/join_sums.h"
#include "planner/tile/split_long_k.h"
#include "planner/tile/stored_value.h"
#include "planner/tile/tile_sizes.h"
#include "planner/tile_forms.h"

namespace ark::planner {
namespace {

using X = abi::MatmulOperand;

const abi::MatmulTileParams& product_of(const FusedOp& op) { return op.op.record.params.matmul; }
const Program& program_of(const FusedGraph& graph, const FusedOp& op) {
  return graph.programs[static_cast<size_t>(product_of(op).program)];
}
const abi::Operand& operand(const FusedOp& op, int number) { return op.op.operands[static_cast<size_t>(number)]; }

bool same_place(const abi::Operand& x, const abi::Operand& y, int64_t rows, int64_t columns) {
  return x.slot == y.slot && x.offset == y.offset && x.dtype == y.dtype && x.index_operand < 0 && y.index_operand < 0 &&
         (rows == 1 || x.stride[1] == y.stride[1]) && (columns == 1 || x.stride[2] == y.stride[2]);
}

/// Whether they multiply the same rows with weights that lie alike.
bool are_alike(const FusedOp& first, const FusedOp& second) {
  const abi::MatmulTileParams &p = product_of(first), &q = product_of(second);
  const bool same = p.batch == 1 && q.batch == 1 && p.m == q.m && p.n == q.n && p.k == q.k && p.dtype == q.dtype;
  return same && p.pair_distance == 0 && q.pair_distance == 0 && p.own_rows == 0 && q.own_rows == 0 && p.gated == 0 &&
         q.gated == 0 && same_place(operand(first, X::kA), operand(second, X::kA), p.m, p.k) &&
         operand(first, X::kB).dtype == operand(second, X::kB).dtype &&
         (operand(first, X::kB).stride[1] == 1) == (operand(second, X::kB).stride[1] == 1);
}

/// The operand by which the second product's epilogue reads what lies at `from`, element by element and in no other
/// way. -1: none.
int gate_operand(const FusedOp& second, const Program& program, const abi::Operand& from) {
  const abi::MatmulTileParams& p = product_of(second);
  int reading = -1;
  for (size_t x = 0; x < second.op.operands.size(); ++x) {
    const abi::Operand& o = second.op.operands[x];
    if (second.access[x] == Access::kParameters || o.slot != from.slot) continue;
    if (reading >= 0 || second.access[x] != Access::kRead || !same_place(o, from, p.m, p.n)) return -1;
    reading = static_cast<int>(x);
  }
  if (reading < p.first_operand) return -1;
  for (const abi::Operand& o : second.op.operands)
    if (o.index_operand == reading) return -1;
  for (const Instr& in : program.instrs) {
    if (in.op == Opcode::kLoadParts || (in.op == Opcode::kRoot && (in.aux != 0 || in.delta_sign != 0))) return -1;
    const bool it = touches_memory(in) && in.operand == reading - p.first_operand;
    if (it && !is_plain_load(in)) return -1;
  }
  return reading;
}

/// Whether op `first` can be done where op `second` is: nobody before that one needs its value, and nothing up to that
/// one writes what it reads.
bool can_wait(const FusedGraph& graph, size_t first, size_t second, uint32_t stored) {
  const FusedOp& op = graph.ops[first];
  for (size_t i = first + 1; i <= second; ++i) {
    const FusedOp& other = graph.ops[i];
    if (i < second && uses(other, stored)) return false;
    if (std::ranges::count(other.after, static_cast<int32_t>(first)) > 0) return false;
    for (size_t x = 0; x < other.access.size(); ++x) {
      if (other.access[x] == Access::kParameters || other.access[x] == Access::kRead) continue;
      if (uses(op, other.op.operands[x].slot)) return false;
    }
  }
  return true;
}

/// Whether one product of two weights is sooner done than two. Alone, they may be split along k; the second waits for
/// the first in any case.
bool is_sooner(const FusedGraph& graph, size_t first, size_t second, const Options& options) {
  const Costs& costs = options.machine.costs;
  const abi::MatmulTileParams& p = product_of(graph.ops[first]);
  const int64_t workers = options.machine.num_workers, tiles = tiles_of(p, kSmallTile);
  const auto waves = [&](int64_t count) { return static_cast<double>((count + workers - 1) / workers); };
  const KParts a = k_parts(graph, first, options, true), b = k_parts(graph, second, options, true);
  const auto seconds = [&](const KParts& parts) { return tile_seconds(costs, kSmallTile, p.k / parts.count, 0); };
  const double apart =
      waves(tiles * (a.count + b.count)) * (seconds(a) + seconds(b)) / 2 + std::max(a.seconds, b.seconds) + costs.hop;
  return waves(tiles) * gated_tile_seconds(costs, p.k, 0) < apart;
}

struct GatedPair {
  size_t first, second;
  int stored, read;  // operands
  bool keeps;        // the stored value
};

/// Op `second` with what op `first` computes.
class GatedJoiner {
 public:
  GatedJoiner(const FusedGraph& graph, const GatedPair& pair)
      : graph_(graph), pair_(pair), first_(graph.ops[pair.first]), second_(graph.ops[pair.second]) {}

  FusedOp run(std::vector<Program>& programs) {
    joined_ = second_;
    joined_.op.operands.clear();
    joined_.access.clear();
    add(first_, X::kA);
    add(first_, X::kB);
    add(second_, X::kB);
    const std::vector<int> of_first = add_epilogue(first_, pair_.keeps ? -1 : pair_.stored),
                           of_second = add_epilogue(second_, pair_.read);
    Program program = join(of_first, of_second);
    joined_.op.name = cat(first_.op.name, "+", second_.op.name);
    joined_.op.flops += first_.op.flops;
    joined_.op.bytes += first_.op.bytes - saved_bytes();
    joined_.after.insert(joined_.after.end(), first_.after.begin(), first_.after.end());
    abi::MatmulTileParams& p = joined_.op.record.params.matmul;
    p.gated = 1;
    p.first_operand = X::kB2 + 1;
    p.program = number_of(programs, std::move(program));
    joined_.op.programs = {p.program};
    return std::move(joined_);
  }

 private:
  void add(const FusedOp& from, int number) {
    joined_.op.operands.push_back(operand(from, number));
    joined_.access.push_back(from.access[static_cast<size_t>(number)]);
  }
  /// The new numbers, among all operands, of those of an epilogue.
  std::vector<int> add_epilogue(const FusedOp& from, int left_out) {
    std::vector<int> numbers(from.op.operands.size(), -1);
    const size_t begin = joined_.op.operands.size();
    for (int x = product_of(from).first_operand; x < static_cast<int>(numbers.size()); ++x) {
      if (x == left_out) continue;
      numbers[static_cast<size_t>(x)] = static_cast<int>(joined_.op.operands.size());
      add(from, x);
    }
    for (size_t x = begin; x < joined_.op.operands.size(); ++x) {
      signed char& index = joined_.op.operands[x].index_operand;
      if (index >= 0) index = static_cast<signed char>(numbers[static_cast<size_t>(index)]);
    }
    return numbers;
  }

  int64_t saved_bytes() const {
    const abi::MatmulTileParams& p = product_of(first_);
    const abi::Operand &a = operand(first_, X::kA), &value = operand(first_, pair_.stored);
    return int64_t{p.m} * p.k * size_bytes(static_cast<DType>(a.dtype)) +
           int64_t{p.m} * p.n * size_bytes(static_cast<DType>(value.dtype)) * (pair_.keeps ? 1 : 2);
  }

  Program join(const std::vector<int>& of_first, const std::vector<int>& of_second) {
    const Program &gate = program_of(graph_, first_), &up = program_of(graph_, second_);
    result_ = {};
    result_.kind = ProgramKind::kEpilogue;
    result_.num_dims = up.num_dims;
    result_.num_operands = static_cast<int>(joined_.op.operands.size()) - (X::kB2 + 1);
    std::vector<int16_t> place;
    int16_t value = -1;
    for (const Instr& in : gate.instrs) {
      if (in.op != Opcode::kStore) {
        place.push_back(copied(in, place, of_first, product_of(first_).first_operand));
        continue;
      }
      value = rounded(place[static_cast<size_t>(in.a)], in.dtype);
      if (pair_.keeps) copied(in, place, of_first, product_of(first_).first_operand);
      place.push_back(-1);
    }
    place.clear();
    for (Instr in : up.instrs) {
      if (in.op == Opcode::kRoot) in.aux = 1;
      const bool read = in.op == Opcode::kLoad && in.operand == pair_.read - product_of(second_).first_operand;
      place.push_back(read ? value : copied(in, place, of_second, product_of(second_).first_operand));
    }
    return std::move(result_);
  }
  int16_t append(const Instr& in) {
    result_.instrs.push_back(in);
    return static_cast<int16_t>(result_.instrs.size() - 1);
  }
  int16_t copied(Instr in, const std::vector<int16_t>& place, const std::vector<int>& numbers, int first) {
    for (int16_t* r : {&in.a, &in.b, &in.c, &in.d})
      if (*r >= 0) *r = place[static_cast<size_t>(*r)];
    if (in.operand >= 0)
      in.operand = static_cast<int16_t>(numbers[static_cast<size_t>(first + in.operand)] - X::kB2 - 1);
    return append(in);
  }
  /// What a load of the stored value gives.
  int16_t rounded(int16_t value, DType dtype) {
    const Instr& in = result_.instrs[static_cast<size_t>(value)];
    if (dtype == DType::kF32 || (in.op == Opcode::kCast && in.dtype == dtype)) return value;
    return append({.op = Opcode::kCast, .dtype = dtype, .a = value});
  }

  const FusedGraph& graph_;
  const GatedPair pair_;
  const FusedOp &first_, &second_;
  FusedOp joined_;
  Program result_;
};

/// The product that product `first` can be joined with: the first reader of what it stores.
std::optional<GatedPair> pair_of(const FusedGraph& graph, size_t first, const std::vector<bool>& changes,
                                 const Options& options) {
  const FusedOp& op = graph.ops[first];
  if (!has_small_tiles(op) || is_exchange(graph, op)) return std::nullopt;
  const int stored = stored_operand(op, program_of(graph, op));
  if (stored < 0) return std::nullopt;
  const abi::Operand& to = operand(op, stored);
  const Storage& storage = graph.storages[to.slot];
  if (storage.input >= 0 || storage.exchange >= 0) return std::nullopt;
  size_t second = first + 1;
  while (second < graph.ops.size() && !uses(graph.ops[second], to.slot)) ++second;
  if (second == graph.ops.size()) return std::nullopt;
  const FusedOp& next = graph.ops[second];
  if (!has_small_tiles(next) || is_exchange(graph, next) || !are_alike(op, next)) return std::nullopt;
  // Loaders have no code for weights that wait (device/matmul/tile.cuh).
  for (const FusedOp* product : {&op, &next}) {
    const uint32_t weight = operand(*product, X::kB).slot;
    if (graph.storages[weight].input < 0 || changes[weight]) return std::nullopt;
  }
  const int read = gate_operand(next, program_of(graph, next), to);
  const size_t operands = op.op.operands.size() + next.op.operands.size();
  if (read < 0 || operands > kMaxOperands || !can_wait(graph, first, second, to.slot) ||
      !is_sooner(graph, first, second, options))
    return std::nullopt;
  return GatedPair{first, second, stored, read, is_kept(graph, first, second)};
}

}  // namespace

void join_gated(Draft& draft, const Options& options) {
  FusedGraph& graph = draft.graph;
  std::vector<std::optional<GatedPair>> by_second(graph.ops.size());
  std::vector<bool> goes(graph.ops.size());
  const std::vector<bool> changes = changing_storages(graph);
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    const std::optional<GatedPair> pair = pair_of(graph, i, changes, options);
    if (!pair || by_second[i] || by_second[pair->second]) continue;
    by_second[pair->second] = pair;
    goes[i] = true;
  }
  std::vector<FusedOp> ops;
  std::vector<int32_t> place(graph.ops.size(), -1);
  std::vector<FusedOp> joined(graph.ops.size());
  for (size_t i = 0; i < graph.ops.size(); ++i)
    if (by_second[i]) joined[i] = GatedJoiner(graph, *by_second[i]).run(graph.programs);
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    if (goes[i]) continue;
    ops.push_back(std::move(by_second[i] ? joined[i] : graph.ops[i]));
    place[i] = static_cast<int32_t>(ops.size()) - 1;
    if (by_second[i]) place[by_second[i]->first] = place[i];
    for (int32_t& before : ops.back().after) before = place[static_cast<size_t>(before)];
  }
  graph.ops = std::move(ops);
}

}  // namespace ark::planner
