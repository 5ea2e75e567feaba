#include "planner/tile/split_long_k.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/check.h"
#include "planner/tile/join_sums.h"
#include "planner/tile/tile_sizes.h"

namespace ark::planner {
namespace {

using abi::TaskKind;

/// Parts for which the sum's record has room: it reads each for the epilogue's accumulators, its own and those of the
/// pair. 0: an epilogue of other products.
int most_parts(const FusedOp& op, const Program& program) {
  std::set<int> signs;
  for (const Instr& instr : program.instrs) {
    if (instr.op != Opcode::kRoot) continue;
    if (instr.aux != 0) return 0;
    signs.insert(instr.delta_sign);
  }
  constexpr int kMaxOperands = (abi::kMaxRecordBytes - sizeof(abi::OpRecord)) / sizeof(abi::Operand);
  const int room = kMaxOperands - static_cast<int>(op.op.operands.size()) + 2;
  return room / std::max(1, static_cast<int>(signs.size()));
}

/// Tiles of all products of the same activation, this one's among them: they run at once, as the projections to
/// queries, keys and values do, and share the workers. In parts, more of them than workers would take turns.
int64_t tiles_at_once(const FusedGraph& graph, const FusedOp& product, const KSteps& steps) {
  const abi::Operand& a = product.op.operands[abi::MatmulOperand::kA];
  int64_t tiles = 0;
  for (const FusedOp& op : graph.ops) {
    if (op.op.record.kind != product.op.record.kind) continue;
    const abi::Operand& other = op.op.operands[abi::MatmulOperand::kA];
    const abi::MatmulTileParams& p = op.op.record.params.matmul;
    const bool same = other.slot == a.slot && other.offset == a.offset && p.batch == 1 &&
                      p.m == product.op.record.params.matmul.m && p.k == product.op.record.params.matmul.k;
    if (same) tiles += steps.tiles(p.m, p.n);
  }
  return tiles;
}

class KSplitter {
 public:
  KSplitter(FusedGraph& graph, const FusedOp& op, int parts)
      : graph_(graph), whole_(op), params_(op.op.record.params.matmul), parts_(parts) {}

  std::pair<FusedOp, FusedOp> split() {
    Storage storage;
    storage.dtype = DType::kF32;
    storage.sizes = {parts_, params_.m, params_.n};
    storage.strides = {int64_t{params_.m} * params_.n, params_.n, 1};
    storage.num_elements = parts_ * storage.strides[0];
    storage.name = whole_.op.name + ".parts";
    parts_storage_ = static_cast<StorageId>(graph_.storages.size());
    graph_.storages.push_back(storage);
    return {products(), sum()};
  }

 private:
  abi::Operand part_operand(int64_t offset) const {
    abi::Operand x{};
    x.slot = static_cast<uint32_t>(parts_storage_);
    x.dtype = static_cast<short>(DType::kF32);
    x.vector = 4;
    x.index_operand = -1;
    x.offset = offset;
    x.stride[1] = params_.n;
    x.stride[2] = 1;
    return x;
  }

  FusedOp products() {
    FusedOp op;
    op.op.name = whole_.op.name + ".parts";
    op.op.module = whole_.op.module;
    op.op.node = whole_.op.node;
    op.op.flops = whole_.op.flops;
    op.op.bytes = whole_.op.bytes;
    op.after = whole_.after;
    op.op.record = whole_.op.record;
    op.op.record.size[0] = parts_;
    abi::MatmulTileParams& p = op.op.record.params.matmul;
    p.batch = parts_;
    p.k = params_.k / parts_;
    p.pair_distance = 0;
    p.first_operand = 2;
    abi::Operand a = whole_.op.operands[abi::MatmulOperand::kA], b = whole_.op.operands[abi::MatmulOperand::kB],
                 c = part_operand(0);
    a.stride[0] = p.k * a.stride[2];
    b.stride[0] = p.k * b.stride[1];
    c.stride[0] = int64_t{params_.m} * params_.n;
    op.op.operands = {a, b, c};
    op.access = {whole_.access[0], whole_.access[1], Access::kWrite};
    Program program;
    program.kind = ProgramKind::kEpilogue;
    program.num_dims = 3;
    program.num_operands = 1;
    program.instrs = {{.op = Opcode::kRoot}, {.op = Opcode::kStore, .a = 0, .operand = 0}};
    p.program = number_of(graph_.programs, std::move(program));
    op.op.programs = {p.program};
    return op;
  }

  /// A pointwise op over (1, m, n): the epilogue with sums of parts in the place of accumulators.
  FusedOp sum() {
    FusedOp op;
    op.op.name = whole_.op.name;
    op.op.module = whole_.op.module;
    op.op.node = whole_.op.node;
    op.after = whole_.after;
    op.op.record.kind = TaskKind::kPointwise;
    std::fill(std::begin(op.op.record.size), std::end(op.op.record.size), 1);
    op.op.record.size[1] = params_.m;
    op.op.record.size[2] = params_.n;
    op.op.bytes = 2 * int64_t{parts_} * params_.m * params_.n * 4;
    const Program& epilogue = graph_.programs[params_.program];
    for (size_t x = params_.first_operand; x < whole_.op.operands.size(); ++x) {
      op.op.operands.push_back(whole_.op.operands[x]);
      op.access.push_back(whole_.access[x]);
      signed char& index = op.op.operands.back().index_operand;
      if (index >= 0) index = static_cast<signed char>(index - params_.first_operand);
    }
    Program program;
    program.kind = ProgramKind::kPointwise;
    program.num_dims = 3;
    std::vector<int16_t> place;
    std::map<int, int16_t> totals;  // by delta_sign
    for (Instr instr : epilogue.instrs) {
      for (int16_t* r : {&instr.a, &instr.b, &instr.c, &instr.d}) {
        if (*r >= 0) *r = place[*r];
      }
      if (instr.op != Opcode::kRoot) {
        place.push_back(append(program, instr));
        continue;
      }
      const auto [total, is_new] = totals.try_emplace(instr.delta_sign, int16_t{-1});
      if (is_new) total->second = add_parts(instr.delta_sign, op, program);
      place.push_back(total->second);
    }
    program.num_operands = static_cast<int>(op.op.operands.size());
    abi::ProgramParams& params = op.op.record.params.program;
    params = {};
    params.num_dims = 3;
    params.program = number_of(graph_.programs, std::move(program));
    op.op.programs = {params.program};
    return op;
  }

  static int16_t append(Program& program, const Instr& instr) {
    program.instrs.push_back(instr);
    return static_cast<int16_t>(program.instrs.size() - 1);
  }

  /// The accumulator at (m, n + sign * pair distance); 0 where that column does not exist.
  int16_t add_parts(int sign, FusedOp& op, Program& program) const {
    int16_t exists = -1;
    if (sign != 0) {
      auto integer = [&](Opcode opcode, int16_t a, int16_t b, int64_t value, DType type = DType::kI64) {
        return append(program, {.op = opcode, .dtype = type, .a = a, .b = b, .imm_int = value});
      };
      const int16_t n = append(program, {.op = Opcode::kIndex, .dtype = DType::kI64, .aux = 2});
      const int16_t bound =
          integer(Opcode::kConst, -1, -1, sign > 0 ? params_.n - params_.pair_distance : params_.pair_distance);
      exists = integer(sign > 0 ? Opcode::kLt : Opcode::kGe, n, bound, 0, DType::kBool);
    }
    int16_t total = -1;
    for (int part = 0; part < parts_; ++part) {
      Instr load{.op = Opcode::kLoad, .dtype = DType::kF32, .c = exists};
      load.operand = static_cast<int16_t>(op.op.operands.size());
      op.op.operands.push_back(
          part_operand(part * int64_t{params_.m} * params_.n + sign * int64_t{params_.pair_distance}));
      if (sign != 0 && params_.pair_distance % 4 != 0) op.op.operands.back().vector = 1;
      op.access.push_back(Access::kRead);
      const int16_t loaded = append(program, load);
      total = total < 0 ? loaded : append(program, {.op = Opcode::kAdd, .a = total, .b = loaded});
    }
    return total;
  }

  FusedGraph& graph_;
  const FusedOp& whole_;
  const abi::MatmulTileParams params_;
  const int parts_;
  StorageId parts_storage_ = -1;
};

}  // namespace

KParts k_parts(const FusedGraph& graph, size_t product, const Options& options, bool small) {
  const FusedOp& op = graph.ops[product];
  const abi::MatmulTileParams& p = op.op.record.params.matmul;
  const std::optional<KSteps> steps = k_steps(op.op.record.kind, small, options.machine.costs);
  if (!steps || p.gated != 0 || p.batch != 1 || p.n % 4 != 0) return {};
  const int workers = options.machine.num_workers;
  if (steps->tiles(p.m, p.n) * steps->share > workers) return {};
  const int most = most_parts(op, graph.programs[static_cast<size_t>(p.program)]);
  const int parts = steps->fitting(p.k, tiles_at_once(graph, op, *steps), most, workers);
  const bool joins = small && parts > 1 && joining_row(graph, product, parts) >= 0;
  return steps->split(p.k, parts, joins ? options.machine.costs.split_joined : steps->combine);
}

void split_long_k(Draft& draft, const Options& options) {
  FusedGraph& graph = draft.graph;
  std::map<size_t, FusedOp> joined;  // sums, by the row op that adds them
  std::vector<FusedOp> ops;
  ops.reserve(graph.ops.size());
  std::vector<int> place(graph.ops.size());
  std::vector<int> parts(graph.ops.size(), 1), rows(graph.ops.size(), -1);
  std::vector<char> keeps(graph.ops.size(), 0);    // by the row op: it stores the sum
  for (size_t i = 0; i < graph.ops.size(); ++i) {  // while the graph is whole
    if (graph.ops[i].op.record.kind != TaskKind::kMatmulTile && graph.ops[i].op.record.kind != TaskKind::kMatmulFloat)
      continue;
    parts[i] = k_parts(graph, i, options, has_small_tiles(graph.ops[i])).count;
    if (parts[i] > 1) rows[i] = joining_row(graph, i, parts[i]);
    if (rows[i] >= 0) keeps[static_cast<size_t>(rows[i])] = is_kept(graph, i, static_cast<size_t>(rows[i]));
  }
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    FusedOp& op = graph.ops[i];
    for (int& before : op.after) before = place[before];
    if (parts[i] > 1) {
      auto [products, sum] = KSplitter(graph, op, parts[i]).split();
      ops.push_back(std::move(products));
      if (rows[i] >= 0)
        joined.emplace(static_cast<size_t>(rows[i]), std::move(sum));
      else
        ops.push_back(std::move(sum));
    } else {
      if (const auto sum = joined.find(i); sum != joined.end())
        join_sum(sum->second, keeps[i] != 0, graph.programs, op);
      ops.push_back(std::move(op));
    }
    place[i] = static_cast<int>(ops.size()) - 1;
  }
  graph.ops = std::move(ops);
}

}  // namespace ark::planner
