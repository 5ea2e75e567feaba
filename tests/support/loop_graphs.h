// Graphs whose plans run several times in a launch.
#pragma once
#include "support/graph_builder.h"
#include "support/verify_graphs.h"

namespace ark::test {

struct LoopBuilder : GraphBuilder {
  int32_t position(ValueId input) const {
    for (size_t i = 0; i < graph.inputs.size(); ++i)
      if (graph.inputs[i] == input) return static_cast<int32_t>(i);
    throw InternalError(cat('%', input, " is no input"));
  }
  std::vector<int64_t> sizes(ValueId id) const {
    std::vector<int64_t> result;
    for (const Size& size : graph.values[id].sizes) result.push_back(size.value);
    return result;
  }
  ValueId integer(int64_t number) {
    ValueId out = value(DType::kI64, {1});
    node(OpKind::kFull, {}, {out}).attrs.imm_int = number;
    return out;
  }
  /// `input`: or a view of one.
  void store(ValueId input, ValueId next) {
    const ValueId base = graph.values[input].base;
    const ValueId written = value(graph.values[input].dtype, sizes(input), base < 0 ? input : base);
    graph.values[written].offset = graph.values[input].offset;
    node(OpKind::kCopyTo, {input, next}, {written});
  }
  void carry(ValueId input, ValueId next) {
    store(input, next);
    graph.loop.carried.push_back(position(input));
  }
  /// `more`: is there another iteration, a bool [1].
  void go(ValueId flag, ValueId more) {
    ValueId next = value(DType::kBool, {1}, flag);
    graph.values[next].offset = number(1);
    node(OpKind::kView, {flag}, {next});
    store(next, more);
    graph.loop.go = position(flag);
  }
};

/// x, y = tanh(x @ w + y), x, a count, and, with `flag`, a stop flag: while count + 1 < limit. Returns the sums of
/// rows.
inline Graph recurrence(int64_t rows, int64_t columns, bool flag) {
  using enum DType;
  LoopBuilder b;
  ValueId x = b.input(kF32, {rows, columns}), y = b.input(kF32, {rows, columns}), w = b.input(kF32, {columns, columns});
  b.graph.immutable.back() = true;
  ValueId count = b.input(kI64, {1}), product = b.value(kF32, {rows, columns}), sum = b.value(kF32, {rows});
  b.node(OpKind::kMatmul, {x, w}, {product});
  ValueId next = b.pointwise(Opcode::kTanh, {b.pointwise(Opcode::kAdd, {product, y}, kF32, {rows, columns})}, kF32,
                             {rows, columns});
  b.node(OpKind::kReduce, {next}, {sum}).attrs.dims = {1};
  ValueId counted = b.pointwise(Opcode::kAdd, {count, b.integer(1)}, kI64, {1});
  if (flag) {
    ValueId limit = b.input(kI64, {1}), go = b.input(kBool, {2});
    b.go(go, b.pointwise(Opcode::kLt, {counted, limit}, kBool, {1}));
  }
  b.carry(x, next);
  b.carry(y, x);
  b.carry(count, counted);
  b.graph.outputs = {sum};
  b.graph.name = "recurrence";
  verify(b.graph);
  return b.graph;
}

/// x = tanh((x * x) @ w): one few-row product, whose activation a thread of the host keeps within an iteration.
inline Graph few_rows_loop(int64_t width) {
  using enum DType;
  LoopBuilder b;
  ValueId x = b.input(kBF16, {1, width}), w = b.input(kBF16, {width, width});
  b.graph.immutable.back() = true;
  ValueId turned = b.value(kBF16, {width, width}, w), y = b.value(kBF16, {1, width});
  b.graph.values[turned].strides = {number(1), number(width)};
  b.node(OpKind::kView, {w}, {turned});
  b.node(OpKind::kMatmul, {b.pointwise(Opcode::kMul, {x, x}, kBF16, {1, width}), turned}, {y});
  b.carry(x, b.pointwise(Opcode::kTanh, {y}, kBF16, {1, width}));
  b.graph.name = "few rows";
  verify(b.graph);
  return b.graph;
}

/// A decode step of few-row products and attention, whose result is its next input; caches are written in place.
inline Graph decode_loop(int64_t keys, int num_layers) {
  LoopBuilder b;
  b.graph = decode_step(keys, num_layers);
  ValueId x = b.graph.inputs[0], position = b.graph.inputs[1];
  b.carry(x, b.pointwise(Opcode::kTanh, {b.graph.outputs[0]}, DType::kBF16, b.sizes(x)));
  b.carry(position, b.pointwise(Opcode::kAdd, {position, b.integer(1)}, DType::kI64, {1}));
  b.graph.name = "decode loop";
  verify(b.graph);
  return b.graph;
}

}  // namespace ark::test
