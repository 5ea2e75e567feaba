// Graphs of transformers as ATen's decomposition writes them, for several tests.
#pragma once
#include <algorithm>

#include "planner/fuse/fused.h"
#include "support/graph_builder.h"

namespace ark::test {

using planner::FusedGraph;

inline constexpr DType kBF16 = DType::kBF16, kF32 = DType::kF32, kI64 = DType::kI64, kBool = DType::kBool;

/// A builder that knows the shapes and writes the nodes of a transformer.
struct Model : GraphBuilder {
  std::vector<int64_t> sizes(ValueId v) const {
    std::vector<int64_t> result;
    for (const Size& s : graph.values[static_cast<size_t>(v)].sizes) result.push_back(s.value);
    return result;
  }
  DType dtype(ValueId v) const { return graph.values[static_cast<size_t>(v)].dtype; }

  ValueId view(ValueId from, std::vector<int64_t> to, std::vector<int64_t> strides, int64_t offset = 0) {
    const ValueId base = graph.values[static_cast<size_t>(from)].base;
    const ValueId out = value(dtype(from), to, base < 0 ? from : base);
    Value& v = graph.values[static_cast<size_t>(out)];
    for (size_t d = 0; d < strides.size(); ++d) v.strides[d] = number(strides[d]);
    v.offset = number(offset);
    node(OpKind::kView, {from}, {out});
    return out;
  }
  ValueId reshape(ValueId from, std::vector<int64_t> to) {
    std::vector<int64_t> strides(to.size());
    int64_t step = 1;
    for (size_t d = to.size(); d-- > 0; step *= to[d]) strides[d] = step;
    return view(from, to, strides);
  }
  ValueId transposed(ValueId w) {
    const auto s = sizes(w);
    return view(w, {s[1], s[0]}, {1, s[1]});
  }
  ValueId unary(Opcode op, ValueId x) { return pointwise(op, {x}, dtype(x), sizes(x)); }
  ValueId binary(Opcode op, ValueId a, ValueId b) { return pointwise(op, {a, b}, dtype(a), sizes(a)); }
  ValueId cast(ValueId x, DType type) { return pointwise(Opcode::kCast, {x}, type, sizes(x)); }
  ValueId scalar(DType type, double number_) {
    const ValueId out = value(type, {});
    ir::Node& n = node(OpKind::kFull, {}, {out});
    n.attrs.imm = number_;
    n.attrs.imm_int = static_cast<int64_t>(number_);
    return out;
  }
  ValueId iota(int64_t n) {
    const ValueId out = value(kI64, {n});
    node(OpKind::kIota, {}, {out});
    return out;
  }
  ValueId reduce(ReduceOp op, ValueId x, std::vector<int64_t> dims, bool keepdim, DType type) {
    std::vector<int64_t> to;
    const auto from = sizes(x);
    for (int64_t d = 0; d < static_cast<int64_t>(from.size()); ++d) {
      const bool reduced = std::find(dims.begin(), dims.end(), d) != dims.end();
      if (!reduced) to.push_back(from[static_cast<size_t>(d)]);
      if (reduced && keepdim) to.push_back(1);
    }
    const ValueId out = value(type, to);
    ir::Node& n = node(OpKind::kReduce, {x}, {out});
    n.attrs.reduce = op, n.attrs.dims = dims, n.attrs.keepdim = keepdim;
    return out;
  }
  ValueId matmul(ValueId a, ValueId b, DType type) {
    std::vector<int64_t> to = sizes(a);
    to.back() = sizes(b).back();
    const ValueId out = value(type, to);
    node(OpKind::kMatmul, {a, b}, {out});
    return out;
  }
  ValueId cat_last(std::vector<ValueId> parts) {
    std::vector<int64_t> to = sizes(parts[0]);
    to.back() = 0;
    for (ValueId p : parts) to.back() += sizes(p).back();
    const ValueId out = value(dtype(parts[0]), to);
    node(OpKind::kCat, parts, {out}).attrs.dim = static_cast<int64_t>(to.size()) - 1;
    return out;
  }
  ValueId index_store(ValueId dst, ValueId src, ValueId index, std::vector<int32_t> map) {
    const ValueId out = value(dtype(dst), sizes(dst));
    node(OpKind::kIndexStore, {dst, src, index}, {out}).attrs.map = map;
    return out;
  }
  void copy_to(ValueId dst, ValueId src) {
    const ValueId out = value(dtype(dst), sizes(dst), dst);
    node(OpKind::kCopyTo, {dst, src}, {out});
  }
  FusedGraph fuse(std::vector<ValueId> outputs, bool tensor_cores = true) {
    graph.outputs = std::move(outputs);
    verify(graph);
    return planner::fuse(graph, {.tensor_cores = tensor_cores});
  }
};

inline ValueId rms_norm(Model& m, ValueId x, ValueId weight) {
  const auto s = m.sizes(x);
  const ValueId wide = m.cast(x, kF32);
  const ValueId mean = m.binary(
      Opcode::kMul,
      m.reduce(ReduceOp::kSum, m.binary(Opcode::kMul, wide, wide), {static_cast<int64_t>(s.size()) - 1}, true, kF32),
      m.scalar(kF32, 1.0 / static_cast<double>(s.back())));
  const ValueId factor = m.unary(Opcode::kRsqrt, m.binary(Opcode::kAdd, mean, m.scalar(kF32, 1e-6)));
  const ValueId narrow = m.cast(m.binary(Opcode::kMul, wide, factor), kBF16);
  return m.binary(Opcode::kMul, narrow, weight);
}

// ---- a decode step ----

struct Layer {
  ValueId norm1, wq, wk, wv, wo, norm2, gate, up, down, k_cache, v_cache;
};

inline constexpr int64_t kHidden = 256, kHeads = 8, kKvHeads = 2, kDim = 64, kKeys = 1024, kInner = 512;

inline ValueId rotate(Model& m, ValueId x, ValueId cosine, ValueId sine) {  // x [1, h, 1, 64]
  const auto s = m.sizes(x);
  const ValueId low = m.view(x, {1, s[1], 1, kDim / 2}, {s[1] * kDim, kDim, s[1] * kDim, 1});
  const ValueId high = m.view(x, {1, s[1], 1, kDim / 2}, {s[1] * kDim, kDim, s[1] * kDim, 1}, kDim / 2);
  const ValueId rotated = m.cat_last({m.unary(Opcode::kNeg, high), low});
  return m.binary(Opcode::kAdd, m.binary(Opcode::kMul, x, cosine), m.binary(Opcode::kMul, rotated, sine));
}

inline ValueId decode_layer(Model& m, const Layer& l, ValueId x, ValueId cosine, ValueId sine, ValueId index,
                            ValueId mask) {
  const ValueId h = rms_norm(m, x, l.norm1);
  auto heads = [&](ValueId w, int64_t n) {
    return m.view(m.matmul(h, m.transposed(w), kBF16), {1, n, 1, kDim}, {n * kDim, kDim, n * kDim, 1});
  };
  const ValueId q = rotate(m, heads(l.wq, kHeads), cosine, sine), k = rotate(m, heads(l.wk, kKvHeads), cosine, sine);
  const ValueId v = heads(l.wv, kKvHeads);
  const ValueId keys = m.index_store(l.k_cache, k, index, {0, 1, -1, 3}),
                values = m.index_store(l.v_cache, v, index, {0, 1, -1, 3});
  const ValueId out = m.value(kBF16, {1, kHeads, 1, kDim}), lse = m.value(kF32, {1, kHeads, 1});
  ir::Node& attention = m.node(OpKind::kAttention, {q, keys, values, mask}, {out, lse});
  attention.attrs.has_mask = true;
  attention.attrs.scale = 0.125;
  const ValueId o = m.matmul(m.reshape(out, {1, kHeads * kDim}), m.transposed(l.wo), kBF16);
  const ValueId r = m.binary(Opcode::kAdd, x, o);
  const ValueId h2 = rms_norm(m, r, l.norm2);
  const ValueId g = m.cast(m.matmul(h2, m.transposed(l.gate), kBF16), kF32);
  const ValueId silu = m.cast(m.binary(Opcode::kMul, g, m.unary(Opcode::kSigmoid, g)), kBF16);
  const ValueId act = m.binary(Opcode::kMul, silu, m.matmul(h2, m.transposed(l.up), kBF16));
  const ValueId y = m.binary(Opcode::kAdd, r, m.matmul(act, m.transposed(l.down), kBF16));
  m.copy_to(l.k_cache, keys);
  m.copy_to(l.v_cache, values);
  return y;
}

struct DecodeStep {
  Model m;
  ValueId x;
};

/// Three layers of a Llama-like decode step with caches, a mask and a position that it moves on.
inline DecodeStep decode_step() {
  Model m;
  const ValueId x0 = m.input(kBF16, {1, kHidden}), position = m.input(kI64, {}), cosine = m.input(kBF16, {kDim}),
                sine = m.input(kBF16, {kDim});
  std::vector<Layer> layers;
  for (int i = 0; i < 3; ++i) {
    auto weight = [&](int64_t n, int64_t k) { return m.input(kBF16, {n, k}); };
    layers.push_back({m.input(kBF16, {kHidden}), weight(kHeads * kDim, kHidden), weight(kKvHeads * kDim, kHidden),
                      weight(kKvHeads * kDim, kHidden), weight(kHidden, kHeads * kDim), m.input(kBF16, {kHidden}),
                      weight(kInner, kHidden), weight(kInner, kHidden), weight(kHidden, kInner),
                      m.input(kBF16, {1, kKvHeads, kKeys, kDim}), m.input(kBF16, {1, kKvHeads, kKeys, kDim})});
  }
  const ValueId at = m.pointwise(Opcode::kAdd, {m.iota(1), position}, kI64, {1});
  const ValueId index = m.view(at, {1, 1}, {1, 1});
  const ValueId seen = m.pointwise(Opcode::kLe, {m.iota(kKeys), position}, kBool, {kKeys});
  const ValueId mask = m.view(seen, {1, 1, 1, kKeys}, {kKeys, kKeys, kKeys, 1});
  ValueId x = x0;
  for (const Layer& l : layers) x = decode_layer(m, l, x, cosine, sine, index, mask);
  m.copy_to(position, m.pointwise(Opcode::kAdd, {position, m.scalar(kI64, 1)}, kI64, {}));
  return {std::move(m), x};
}

}  // namespace ark::test
