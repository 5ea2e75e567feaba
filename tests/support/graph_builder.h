// ir graphs made by hand, contiguous values.
#pragma once
#include <string>
#include <vector>

#include "base/check.h"
#include "ir/graph.h"

namespace ark::test {

using namespace ark::ir;

inline Size number(int64_t value) { return {value, -1}; }
inline Size expr(int32_t id) { return {0, id}; }

struct GraphBuilder {
  Graph graph;

  ValueId value(DType dtype, std::vector<int64_t> sizes, ValueId base = -1) {
    Value v;
    v.dtype = dtype;
    v.base = base;
    int64_t stride = 1;
    v.strides.resize(sizes.size());
    for (size_t d = sizes.size(); d-- > 0;) {
      v.strides[d] = number(stride);
      stride *= sizes[d];
    }
    for (int64_t n : sizes) v.sizes.push_back(number(n));
    graph.values.push_back(v);
    return static_cast<ValueId>(graph.values.size()) - 1;
  }
  ValueId input(DType dtype, std::vector<int64_t> sizes) {
    ValueId id = value(dtype, std::move(sizes));
    graph.inputs.push_back(id);
    graph.immutable.push_back(false);
    return id;
  }
  Node& node(OpKind op, std::vector<ValueId> inputs, std::vector<ValueId> outputs) {
    Node n;
    n.op = op;
    n.inputs = std::move(inputs);
    n.outputs = std::move(outputs);
    n.name = cat(name(op), '_', graph.nodes.size());
    graph.nodes.push_back(n);
    return graph.nodes.back();
  }
  ValueId pointwise(Opcode op, std::vector<ValueId> inputs, DType dtype, std::vector<int64_t> sizes) {
    ValueId out = value(dtype, std::move(sizes));
    node(OpKind::kPointwise, std::move(inputs), {out}).attrs.opcode = op;
    return out;
  }
};

}  // namespace ark::test
