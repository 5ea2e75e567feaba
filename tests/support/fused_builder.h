// Fused graphs made by hand, for the tests of the planner's passes; and a check of finished plans that shares nothing
// with the passes but the records' meaning.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/check.h"
#include "planner/footprint.h"
#include "planner/fuse/fused.h"
#include "planner/planner.h"

namespace ark::test {

inline int failures = 0;

inline void expect(bool ok, const std::string& what) {
  if (ok) return;
  ++failures;
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
}
template <class A, class B>
void expect_equal(const A& got, const B& wanted, const std::string& what) {
  expect(got == wanted, cat(what, ": got ", got, ", expected ", wanted));
}
inline int finish(const char* name) {
  std::printf("%s: %s, %d failures\n", name, failures ? "FAILED" : "ok", failures);
  return failures ? 1 : 0;
}

using planner::Access;
using planner::FusedGraph;
using planner::FusedOp;
using planner::StorageId;

/// A dense operand in the op's dimensions.
struct Ref {
  StorageId storage = -1;
  std::vector<int64_t> strides;
  int64_t offset = 0;
};

class Builder {
 public:
  FusedGraph graph;

  StorageId storage(const std::string& name, std::vector<int64_t> sizes, DType dtype = DType::kBF16) {
    planner::Storage s;
    s.dtype = dtype;
    s.sizes = sizes;
    s.strides = dense(sizes);
    s.num_elements = 1;
    for (int64_t n : sizes) s.num_elements *= n;
    s.name = name;
    graph.storages.push_back(s);
    return static_cast<StorageId>(graph.storages.size()) - 1;
  }
  StorageId input(const std::string& name, std::vector<int64_t> sizes, bool immutable = true,
                  DType dtype = DType::kBF16) {
    const StorageId s = storage(name, std::move(sizes), dtype);
    graph.storages[s].input = num_inputs_++;
    graph.storages[s].immutable = immutable;
    return s;
  }
  void output(StorageId s) {
    const planner::Storage& storage = graph.storages[s];
    plan::Output out;
    out.fresh = static_cast<int>(graph.fresh.size());
    graph.fresh.push_back({storage.dtype, storage.sizes, storage.strides});
    graph.fresh_storage.push_back(s);
    graph.storages[s].returned = true;
    graph.outputs.push_back(out);
  }
  Ref dense_ref(StorageId s) const { return {s, graph.storages[s].strides}; }

  static std::vector<int64_t> dense(const std::vector<int64_t>& sizes) {
    std::vector<int64_t> strides(sizes.size(), 1);
    for (int d = static_cast<int>(sizes.size()) - 2; d >= 0; --d) strides[d] = strides[d + 1] * sizes[d + 1];
    return strides;
  }

  void operand(FusedOp& op, const Ref& ref, Access access) {
    abi::Operand x{};
    x.slot = ref.storage < 0 ? abi::kNoSlot : static_cast<uint32_t>(ref.storage);
    x.dtype = static_cast<short>(ref.storage < 0 ? DType::kF32 : graph.storages[ref.storage].dtype);
    x.vector = 1;
    x.index_operand = -1;
    x.offset = ref.offset;
    for (size_t d = 0; d < ref.strides.size(); ++d) x.stride[d] = ref.strides[d];
    op.op.operands.push_back(x);
    op.access.push_back(access);
    if (ref.storage >= 0)
      op.op.bytes += graph.storages[ref.storage].num_elements * size_bytes(static_cast<DType>(x.dtype));
  }

  /// Copies of `reads` added up into `write`: a pointwise, row or column op over `sizes`.
  FusedOp& program_op(abi::TaskKind kind, const std::string& name, std::vector<int64_t> sizes, int reduce_dims,
                      const std::vector<Ref>& reads, const std::vector<Ref>& writes) {
    Program program;
    program.kind = kind == abi::TaskKind::kRow      ? ProgramKind::kRow
                   : kind == abi::TaskKind::kColumn ? ProgramKind::kColumn
                                                    : ProgramKind::kPointwise;
    program.num_dims = static_cast<int>(sizes.size());
    program.reduce_dims = reduce_dims;
    program.num_operands = static_cast<int>(reads.size() + writes.size());
    int value = -1;
    auto add = [&](Instr instr) {
      program.instrs.push_back(instr);
      return static_cast<int16_t>(program.instrs.size() - 1);
    };
    for (size_t r = 0; r < reads.size(); ++r) {
      const int16_t loaded = add({.op = Opcode::kLoad, .operand = static_cast<int16_t>(r)});
      value = value < 0 ? loaded : add({.op = Opcode::kAdd, .a = static_cast<int16_t>(value), .b = loaded});
    }
    if (reduce_dims > 0) value = add({.op = Opcode::kReduce, .a = static_cast<int16_t>(value)});
    for (size_t w = 0; w < writes.size(); ++w) {
      add({.op = Opcode::kStore, .a = static_cast<int16_t>(value), .operand = static_cast<int16_t>(reads.size() + w)});
    }
    FusedOp op;
    op.op.name = name;
    op.op.record.kind = kind;
    fill_size(op, sizes);
    abi::ProgramParams& params = op.op.record.params.program;
    params.program = add_program(program);
    params.num_dims = program.num_dims;
    params.reduce_dims = reduce_dims;
    op.op.programs = {params.program};
    for (const Ref& ref : reads) operand(op, ref, Access::kRead);
    for (const Ref& ref : writes) operand(op, ref, Access::kWrite);
    graph.ops.push_back(op);
    return graph.ops.back();
  }

  /// c[b, m, n] = a[b, m, k] b[b, k, n] (+ residual with c's strides), with c's strides in `c`.
  FusedOp& matmul(const std::string& name, int64_t batch, int64_t m, int64_t n, int64_t k, const Ref& a, const Ref& b,
                  const Ref& c, const std::vector<Ref>& residuals = {}) {
    FusedOp op;
    op.op.name = name;
    op.op.record.kind = abi::TaskKind::kMatmulTile;
    fill_size(op, {batch, m, n});
    abi::MatmulTileParams& p = op.op.record.params.matmul;
    p.batch = static_cast<int>(batch), p.m = static_cast<int>(m), p.n = static_cast<int>(n), p.k = static_cast<int>(k);
    p.dtype = static_cast<int>(DType::kBF16);
    p.first_operand = 2;
    p.program = add_program(epilogue(static_cast<int>(residuals.size())));
    op.op.programs = {p.program};
    operand(op, a, Access::kRead);
    operand(op, b, Access::kRead);
    for (const Ref& r : residuals) operand(op, r, Access::kRead);
    operand(op, c, Access::kWrite);
    op.op.flops = 2 * batch * m * n * k;
    graph.ops.push_back(op);
    return graph.ops.back();
  }

  struct Columns {
    StorageId weight, out;
    int64_t units;
  };
  /// out_s[0, column] = sum_k x[k] weight_s[column, k] for every segment s.
  FusedOp& matmul_rows(const std::string& name, int64_t k, int lanes, int pair, StorageId x,
                       const std::vector<Columns>& segments) {
    FusedOp op;
    op.op.name = name;
    op.op.record.kind = abi::TaskKind::kMatmulRows;
    abi::MatmulRowsParams& p = op.op.record.params.rows;
    p.m = 1, p.k = static_cast<int>(k), p.lanes = lanes, p.pair_distance = pair;
    p.dtype = static_cast<int>(DType::kBF16);
    p.num_segments = static_cast<int>(segments.size());
    Program prologue;
    prologue.kind = ProgramKind::kPrologue;
    prologue.num_dims = 2, prologue.reduce_dims = 1, prologue.num_operands = 1;
    prologue.instrs = {{.op = Opcode::kLoad, .operand = 0}, {.op = Opcode::kYield, .a = 0}};
    p.prologue = add_program(prologue);
    op.op.programs = {p.prologue};
    operand(op, {x, {k, 1}}, Access::kRead);
    fill_size(op, {1, 1, 1});
    for (size_t s = 0; s < segments.size(); ++s) {
      abi::Segment& segment = p.segment[s];
      segment.first_unit = p.num_units;
      segment.num_units = static_cast<int>(segments[s].units);
      segment.weight = static_cast<int>(op.op.operands.size());
      operand(op, {segments[s].weight, {k, 1}}, Access::kRead);
      segment.first_operand = static_cast<int>(op.op.operands.size());
      operand(op, {segments[s].out, {segments[s].units * lanes, segments[s].units * lanes, 1}}, Access::kWrite);
      segment.program = add_program(epilogue(0));
      op.op.programs.push_back(segment.program);
      p.num_units += segment.num_units;
    }
    graph.ops.push_back(op);
    return graph.ops.back();
  }

  int add_program(const Program& program) {
    for (size_t i = 0; i < graph.programs.size(); ++i) {
      if (graph.programs[i] == program) return static_cast<int>(i);
    }
    graph.programs.push_back(program);
    return static_cast<int>(graph.programs.size()) - 1;
  }

 private:
  static void fill_size(FusedOp& op, const std::vector<int64_t>& sizes) {
    for (int d = 0; d < abi::kMaxDims; ++d) op.op.record.size[d] = d < static_cast<int>(sizes.size()) ? sizes[d] : 1;
  }
  static Program epilogue(int residuals) {
    Program program;
    program.kind = ProgramKind::kEpilogue;
    program.num_dims = 3;
    program.num_operands = residuals + 1;
    program.instrs.push_back({.op = Opcode::kRoot});
    for (int r = 0; r < residuals; ++r) {
      program.instrs.push_back({.op = Opcode::kLoad, .operand = static_cast<int16_t>(r)});
      const int16_t last = static_cast<int16_t>(program.instrs.size());
      program.instrs.push_back(
          {.op = Opcode::kAdd, .a = static_cast<int16_t>(last - 1), .b = static_cast<int16_t>(r == 0 ? 0 : last - 2)});
    }
    program.instrs.push_back({.op = Opcode::kStore,
                              .dtype = DType::kBF16,
                              .a = static_cast<int16_t>(program.instrs.size() - 1),
                              .operand = static_cast<int16_t>(residuals)});
    return program;
  }
  int num_inputs_ = 0;
};

}  // namespace ark::test
