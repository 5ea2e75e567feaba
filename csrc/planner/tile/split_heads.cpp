#include "planner/tile/split_heads.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "planner/cost.h"
#include "planner/extents.h"
#include "planner/tile/align_operands.h"
#include "planner/tile/tile_sizes.h"

namespace ark::planner {
namespace {

using X = abi::AttentionGradOperand;

/// Of dk and of dv; the op that adds them reads all.
constexpr int kMostParts = 8;

/// Of dk and dv together, which have 2 bytes each.
int64_t elements(const abi::AttentionParams& p) {
  return int64_t{p.batch} * p.kv_heads * p.keys * (int64_t{p.head_dim} + p.value_dim);
}

/// The op with the grid that it would have without parts.
FusedOp gridded(const FusedOp& op) {
  FusedOp whole = op;
  abi::AttentionParams& p = whole.op.record.params.attention;
  p.tile_q = p.tile_k = kAttentionTile;
  const Grid grid = grid_of(whole.op.record);
  for (int i = 0; i < 3; ++i) whole.op.record.grid[i] = static_cast<int>(grid.tiles[i]);
  return whole;
}

/// As many parts as let all tiles end first; 1: none.
int parts_of(const FusedGraph& graph, const FusedOp& op, const Machine& machine) {
  const abi::AttentionParams& p = op.op.record.params.attention;
  const bool half = p.dtype == static_cast<int>(DType::kBF16) || p.dtype == static_cast<int>(DType::kF16);
  const int group = p.heads / std::max(1, p.kv_heads);
  if (!half || group == 1 || p.head_dim != p.value_dim || elements(p) == 0 || p.queries == 0) return 1;
  const FusedOp whole = gridded(op);
  const double tile = tile_seconds(graph, whole, machine);
  const std::vector<double> weights = tile_weights(whole.op);
  const double longest = tile * (weights.empty() ? 1.0 : *std::ranges::max_element(weights));
  const double all = tile * static_cast<double>(num_tiles(whole.op.record)) / machine.num_workers;
  const auto seconds = [&](int parts) {
    if (parts == 1) return std::max(all, longest);
    const double bytes = static_cast<double>(2 * elements(p) * (2 * parts + 1));
    return std::max(all, longest / parts) + machine.costs.split_heads + bytes / machine.read_bytes_per_second;
  };
  int best = 1;
  for (int parts = 2; parts <= std::min(group, kMostParts); ++parts)
    if (group % parts == 0 && seconds(parts) < seconds(best)) best = parts;
  return best;
}

class HeadSplitter {
 public:
  HeadSplitter(FusedGraph& graph, FusedOp& op, int parts)
      : graph_(graph), op_(op), params_(op.op.record.params.attention), parts_(parts) {}

  /// Changes the op; the sum of its parts.
  FusedOp split() {
    FusedOp sum;
    sum.op.name = op_.op.name;
    sum.op.module = op_.op.module;
    sum.op.node = op_.op.node;
    sum.op.record.kind = abi::TaskKind::kPointwise;
    std::fill(std::begin(sum.op.record.size), std::end(sum.op.record.size), 1);
    const int sizes[] = {params_.batch, params_.kv_heads, params_.keys, params_.head_dim};
    std::ranges::copy(sizes, sum.op.record.size);
    Program program;
    program.num_dims = static_cast<int>(std::size(sizes));
    for (const int number : {int{X::kGradK}, int{X::kGradV}}) add_up(number, sum, program);
    program.num_operands = static_cast<int>(sum.op.operands.size());
    abi::ProgramParams& params = sum.op.record.params.program;
    params = {};
    params.num_dims = program.num_dims;
    params.program = number_of(graph_.programs, std::move(program));
    sum.op.programs = {params.program};
    sum.op.bytes = 2 * elements(params_) * (parts_ + 1);
    op_.op.name += ".parts";
    op_.op.bytes += 2 * elements(params_) * (parts_ - 1);
    op_.op.record.params.attention.head_parts = parts_;
    return sum;
  }

 private:
  /// dk or dv of part 0 of kv head 0.
  abi::Operand parts_operand(const abi::Operand& whole) {
    const int64_t rows = params_.keys, columns = params_.head_dim, heads = int64_t{params_.kv_heads} * parts_;
    Storage storage;
    storage.dtype = static_cast<DType>(whole.dtype);
    storage.sizes = {params_.batch, heads, rows, columns};
    storage.strides = {heads * rows * columns, rows * columns, columns, 1};
    storage.num_elements = params_.batch * storage.strides[0];
    storage.name = op_.op.name + ".parts";
    abi::Operand x = whole;
    x.slot = static_cast<uint32_t>(graph_.storages.size());
    x.offset = 0;
    std::ranges::copy(storage.strides, x.stride);
    x.vector = attention_vector(x);
    graph_.storages.push_back(std::move(storage));
    return x;
  }

  void add_up(int number, FusedOp& sum, Program& program) {
    abi::Operand& whole = op_.op.operands[static_cast<size_t>(number)];
    const abi::Operand parts = parts_operand(whole);
    const auto dtype = static_cast<DType>(whole.dtype);
    const auto add = [&](const Instr& instr) {
      program.instrs.push_back(instr);
      return static_cast<int16_t>(program.instrs.size() - 1);
    };
    const auto operand = [&](const abi::Operand& x, Access access) {
      sum.op.operands.push_back(x);
      sum.access.push_back(access);
      return static_cast<int16_t>(sum.op.operands.size() - 1);
    };
    int16_t total = -1;
    for (int part = 0; part < parts_; ++part) {
      abi::Operand one = parts;
      one.offset = part * parts.stride[1];
      one.stride[1] = parts_ * parts.stride[1];
      const int16_t value = add({.op = Opcode::kLoad, .dtype = dtype, .operand = operand(one, Access::kRead)});
      total = total < 0 ? value : add({.op = Opcode::kAdd, .a = total, .b = value});
    }
    abi::Operand out = whole;
    out.vector = attention_vector(out);
    add({.op = Opcode::kStore, .dtype = dtype, .a = total, .operand = operand(out, Access::kWrite)});
    whole = parts;
  }

  FusedGraph& graph_;
  FusedOp& op_;
  const abi::AttentionParams params_;
  const int parts_;
};

}  // namespace

void split_heads(FusedGraph& graph, const Options& options) {
  std::vector<FusedOp> ops;
  std::vector<int> place(graph.ops.size());
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    FusedOp op = std::move(graph.ops[i]);
    for (int& before : op.after) before = place[static_cast<size_t>(before)];
    const int parts = op.op.record.kind == abi::TaskKind::kAttentionBackward ? parts_of(graph, op, options.machine) : 1;
    if (parts > 1) {
      FusedOp sum = HeadSplitter(graph, op, parts).split();
      sum.after = std::exchange(op.after, {});
      ops.push_back(std::move(op));
      ops.push_back(std::move(sum));
    } else {
      ops.push_back(std::move(op));
    }
    place[i] = static_cast<int>(ops.size()) - 1;
  }
  graph.ops = std::move(ops);
}

}  // namespace ark::planner
