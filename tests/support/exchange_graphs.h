// Graphs with exchanges between ranks, and what collectives are made of.
#pragma once
#include "support/graph_builder.h"

namespace ark::test {

/// A graph of one rank of `world`; values are contiguous.
struct ExchangeBuilder : GraphBuilder {
  int world;
  std::string group = "tensor";
  explicit ExchangeBuilder(int ranks) : world(ranks) {}

  const std::vector<Size>& sizes_of(ValueId id) const { return graph.values[static_cast<size_t>(id)].sizes; }
  std::vector<int64_t> numbers(ValueId id) const {
    std::vector<int64_t> sizes;
    for (const Size& s : sizes_of(id)) sizes.push_back(s.value);
    return sizes;
  }
  DType type(ValueId id) const { return graph.values[static_cast<size_t>(id)].dtype; }

  /// What each rank has sent to this one. `sent`: one value, or one for each rank.
  std::vector<ValueId> exchange(std::vector<ValueId> sent) {
    std::vector<ValueId> boxes;
    for (int r = 0; r < world; ++r) boxes.push_back(value(type(sent[0]), numbers(sent[0])));
    node(OpKind::kExchange, std::move(sent), boxes).attrs.group = group;
    return boxes;
  }
  /// Rows of x for each rank, and how many come from each: the parts that are not empty.
  std::vector<ValueId> uneven(ValueId x, const std::vector<int64_t>& sent, const std::vector<int64_t>& received) {
    std::vector<ValueId> inputs = {pointwise(Opcode::kCast, {full(1)}, DType::kF32, {1})}, outputs, parts;
    ir::Attrs attrs;
    attrs.group = group, attrs.splits = "uneven";
    std::vector<int64_t> sizes = numbers(x);
    int64_t row = 1, begin = 0;
    for (size_t d = 1; d < sizes.size(); ++d) row *= sizes[d];
    for (int r = 0; r < world; ++r) outputs.push_back(value(DType::kF32, {1}));
    for (int r = 0; r < world; ++r) {
      sizes[0] = sent[static_cast<size_t>(r)];
      if (sizes[0] > 0) {
        ValueId view = value(type(x), sizes, x), part = value(type(x), sizes);
        graph.values[static_cast<size_t>(view)].offset = number(begin * row);
        node(OpKind::kView, {x}, {view});
        node(OpKind::kPost, {view}, {part});
        inputs.push_back(part), attrs.ints.push_back(r);
        begin += sizes[0];
      }
      sizes[0] = received[static_cast<size_t>(r)];
      if (sizes[0] == 0) continue;
      parts.push_back(value(type(x), sizes));
      outputs.push_back(parts.back()), attrs.map.push_back(r);
    }
    node(OpKind::kExchange, inputs, outputs).attrs = attrs;
    return parts;
  }
  /// The second one may be smaller.
  ValueId binary(Opcode op, ValueId a, ValueId b) { return pointwise(op, {a, b}, type(a), numbers(a)); }
  ValueId transposed(ValueId x) {
    const std::vector<int64_t> sizes = numbers(x);
    ValueId view = value(type(x), {sizes[1], sizes[0]}, x);
    graph.values[static_cast<size_t>(view)].strides = {number(1), number(sizes[1])};
    node(OpKind::kView, {x}, {view});
    return view;
  }
  ValueId unary(Opcode op, ValueId a) { return pointwise(op, {a}, type(a), numbers(a)); }
  /// Added in the order of ranks: equal bits on all of them.
  ValueId sum(const std::vector<ValueId>& values) {
    ValueId total = values[0];
    for (size_t i = 1; i < values.size(); ++i) total = binary(Opcode::kAdd, total, values[i]);
    return total;
  }
  ValueId joined(const std::vector<ValueId>& values) {
    std::vector<int64_t> sizes = numbers(values[0]);
    sizes[0] *= static_cast<int64_t>(values.size());
    ValueId out = value(type(values[0]), sizes);
    node(OpKind::kCat, values, {out});
    return out;
  }
  /// Equal parts of the rows, one for each rank.
  std::vector<ValueId> parts(ValueId x) {
    std::vector<int64_t> sizes = numbers(x);
    sizes[0] /= world;
    std::vector<ValueId> views;
    for (int r = 0; r < world; ++r) {
      ValueId view = value(type(x), sizes, x);
      int64_t offset = r;
      for (int64_t n : sizes) offset *= n;
      graph.values[static_cast<size_t>(view)].offset = number(offset);
      node(OpKind::kView, {x}, {view});
      views.push_back(view);
    }
    return views;
  }
  ValueId all_reduce(ValueId x) { return sum(exchange({x})); }
  ValueId all_gather(ValueId x) { return joined(exchange({x})); }
  ValueId reduce_scatter(ValueId x) { return sum(exchange(parts(x))); }
  ValueId all_to_all(ValueId x) { return joined(exchange(parts(x))); }

  ValueId matmul(ValueId a, ValueId w) {
    ValueId y = value(type(a), {numbers(a)[0], numbers(w)[1]});
    node(OpKind::kMatmul, {a, w}, {y});
    return y;
  }
  /// Weights as torch keeps them, [n][k].
  ValueId linear(ValueId a, ValueId w) { return matmul(a, transposed(w)); }
  ValueId row_sum(ValueId x, int64_t dim, bool keepdim) {
    std::vector<int64_t> sizes = numbers(x);
    keepdim ? void(sizes[static_cast<size_t>(dim)] = 1) : void(sizes.erase(sizes.begin() + dim));
    ValueId out = value(type(x), sizes);
    Node& reduce = node(OpKind::kReduce, {x}, {out});
    reduce.attrs.dims = {dim}, reduce.attrs.keepdim = keepdim;
    return out;
  }
  ValueId full(double number) {
    ValueId out = value(DType::kF32, {});
    node(OpKind::kFull, {}, {out}).attrs.imm = number;
    return out;
  }
  /// x / sqrt(sum of squares of the row + 1).
  ValueId norm(ValueId x) {
    const ValueId squares = row_sum(binary(Opcode::kMul, x, x), 1, true);
    const ValueId more = binary(Opcode::kAdd, squares, full(1));
    return binary(Opcode::kMul, x, unary(Opcode::kRsqrt, more));
  }
  Graph finish(std::vector<ValueId> outputs, const char* name) {
    graph.outputs = std::move(outputs);
    graph.name = name;
    verify(graph);
    return graph;
  }
};

}  // namespace ark::test
