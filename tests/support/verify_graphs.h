// Graphs for the tests of the verifier, small enough for an enumeration of their plans.
#pragma once
#include "support/graph_builder.h"

namespace ark::test {

/// Two layers: norm, qkv, attention, projection and residual, feed forward; then a column sum and a cast.
inline Graph layers(int64_t batch, int64_t seq, int64_t width, int num_layers, DType dtype) {
  using enum DType;
  GraphBuilder b;
  int64_t rows = batch * seq, head = 64, heads = width / head;
  ValueId x = b.input(dtype, {rows, width});
  auto matmul = [&](ValueId a, int64_t k, int64_t n) {
    ValueId w = b.input(dtype, {k, n}), out = b.value(dtype, {rows, n});
    b.graph.immutable.back() = true;
    b.node(OpKind::kMatmul, {a, w}, {out});
    return out;
  };
  auto norm = [&](ValueId a) {
    ValueId sum = b.value(kF32, {rows, 1}), wide = b.pointwise(Opcode::kCast, {a}, kF32, {rows, width});
    Node& node = b.node(OpKind::kReduce, {wide}, {sum});
    node.attrs.dims = {1}, node.attrs.keepdim = true;
    return b.pointwise(Opcode::kCast, {b.pointwise(Opcode::kSub, {wide, sum}, kF32, {rows, width})}, dtype,
                       {rows, width});
  };
  auto part = [&](ValueId qkv, int64_t index) {
    ValueId view = b.value(dtype, {batch, heads, seq, head}, qkv);
    Value& v = b.graph.values[view];
    v.strides = {number(seq * 3 * width), number(head), number(3 * width), number(1)};
    v.offset = number(index * width);
    b.node(OpKind::kView, {qkv}, {view});
    return view;
  };
  for (int l = 0; l < num_layers; ++l) {
    ValueId qkv = matmul(norm(x), width, 3 * width);
    ValueId out = b.value(dtype, {batch, heads, seq, head}), lse = b.value(kF32, {batch, heads, seq});
    b.graph.values[out].strides = {number(seq * width), number(head), number(width), number(1)};
    b.node(OpKind::kAttention, {part(qkv, 0), part(qkv, 1), part(qkv, 2)}, {out, lse}).attrs.scale = 0.125;
    ValueId flat = b.value(dtype, {rows, width}, out);
    b.node(OpKind::kView, {out}, {flat});
    ValueId r = b.pointwise(Opcode::kAdd, {matmul(flat, width, width), x}, dtype, {rows, width});
    ValueId h = b.pointwise(Opcode::kRelu, {matmul(norm(r), width, 2 * width)}, dtype, {rows, 2 * width});
    x = b.pointwise(Opcode::kAdd, {matmul(h, 2 * width, width), r}, dtype, {rows, width});
  }
  ValueId total = b.value(dtype, {width});
  b.node(OpKind::kReduce, {x}, {total}).attrs.dims = {0};
  b.graph.outputs = {x, total};
  b.graph.name = "layers";
  verify(b.graph);
  return b.graph;
}

/// One product of few rows and a weight [k][n].
inline Graph product_of_columns(int64_t m, int64_t k, int64_t n) {
  using enum DType;
  GraphBuilder b;
  const ValueId x = b.input(kBF16, {m, k}), w = b.input(kBF16, {k, n}), y = b.value(kBF16, {m, n});
  b.graph.immutable.back() = true;
  b.node(OpKind::kMatmul, {x, w}, {y});
  b.graph.outputs = {y};
  return b.graph;
}

/// silu(x w) * (x v), weights [k][n].
inline Graph gated_columns(int64_t m, int64_t k, int64_t n) {
  using enum DType;
  GraphBuilder b;
  const ValueId x = b.input(kBF16, {m, k});
  ValueId y[2];
  for (ValueId& product : y) {
    const ValueId w = b.input(kBF16, {k, n});
    b.graph.immutable.back() = true;
    product = b.value(kBF16, {m, n});
    b.node(OpKind::kMatmul, {x, w}, {product});
  }
  const ValueId sigmoid = b.pointwise(Opcode::kSigmoid, {y[0]}, kBF16, {m, n});
  const ValueId gate = b.pointwise(Opcode::kMul, {y[0], sigmoid}, kBF16, {m, n});
  b.graph.outputs = {b.pointwise(Opcode::kMul, {gate, y[1]}, kBF16, {m, n})};
  b.graph.name = "gated";
  verify(b.graph);
  return b.graph;
}

/// A chain of few-row products, as in decoding, with an update of a cache in place.
inline Graph decode_chain(int64_t width, int num_layers) {
  using enum DType;
  GraphBuilder b;
  ValueId x = b.input(kBF16, {1, width}), position = b.input(kI64, {1, 1});
  for (int l = 0; l < num_layers; ++l) {
    ValueId cache = b.input(kBF16, {16, width}), w = b.input(kBF16, {width, width});
    b.graph.immutable.back() = true;
    ValueId y = b.value(kBF16, {1, width}), stored = b.value(kBF16, {16, width}),
            copied = b.value(kBF16, {16, width}, cache);
    b.node(OpKind::kMatmul, {x, w}, {y});
    b.node(OpKind::kIndexStore, {cache, y, position}, {stored}).attrs.map = {~0, 1};
    b.node(OpKind::kCopyTo, {cache, stored}, {copied});
    ValueId sum = b.value(kBF16, {1, width});
    Node& reduce = b.node(OpKind::kReduce, {stored}, {sum});
    reduce.attrs.dims = {0}, reduce.attrs.keepdim = true;
    x = b.pointwise(Opcode::kMul, {sum, y}, kBF16, {1, width});
  }
  b.graph.outputs = {x};
  b.graph.name = "decode";
  verify(b.graph);
  return b.graph;
}

/// Attention with a mask and two query heads per kv head, forward and backward, and gradients of its weights.
inline Graph attention_step(int64_t seq) {
  using enum DType;
  GraphBuilder b;
  int64_t heads = 4, kv_heads = 2, head = 64, width = heads * head, kv_width = kv_heads * head;
  ValueId x = b.input(kBF16, {seq, width}), dout = b.input(kBF16, {1, heads, seq, head});
  ValueId keep = b.input(kBool, {1, 1, seq, seq});
  auto project = [&](int64_t n) {
    ValueId w = b.input(kBF16, {width, n}), y = b.value(kBF16, {seq, n});
    b.graph.immutable.back() = true;
    b.node(OpKind::kMatmul, {x, w}, {y});
    ValueId view = b.value(kBF16, {1, n / head, seq, head}, y);
    b.graph.values[view].strides = {number(seq * n), number(head), number(n), number(1)};
    b.node(OpKind::kView, {y}, {view});
    return view;
  };
  ValueId q = project(width), k = project(kv_width), v = project(kv_width);
  ValueId out = b.value(kBF16, {1, heads, seq, head}), lse = b.value(kF32, {1, heads, seq});
  b.node(OpKind::kAttention, {q, k, v, keep}, {out, lse}).attrs.has_mask = true;
  ValueId dq = b.value(kBF16, {1, heads, seq, head}), dk = b.value(kBF16, {1, kv_heads, seq, head});
  ValueId dv = b.value(kBF16, {1, kv_heads, seq, head});
  for (ValueId g : {out, dq}) b.graph.values[g].strides = {number(seq * width), number(head), number(width), number(1)};
  for (ValueId g : {dk, dv})
    b.graph.values[g].strides = {number(seq * kv_width), number(head), number(kv_width), number(1)};
  b.node(OpKind::kAttentionBackward, {dout, q, k, v, out, lse, keep}, {dq, dk, dv}).attrs.has_mask = true;
  ValueId xt = b.value(kBF16, {width, seq}, x);
  b.graph.values[xt].strides = {number(1), number(width)};
  b.node(OpKind::kView, {x}, {xt});
  b.graph.outputs = {out};
  for (auto [g, n] : {std::pair(dq, width), {dk, kv_width}, {dv, kv_width}}) {
    ValueId flat = b.value(kBF16, {seq, n}, g), dw = b.value(kBF16, {width, n}), bias = b.value(kBF16, {n});
    b.node(OpKind::kView, {g}, {flat});
    b.node(OpKind::kMatmul, {xt, flat}, {dw});
    b.node(OpKind::kReduce, {flat}, {bias}).attrs.dims = {0};
    b.graph.outputs.insert(b.graph.outputs.end(), {dw, bias});
  }
  verify(b.graph);
  return b.graph;
}

/// Decoding with a cache: a few queries against many keys in parts, a gated feed forward, all of few rows.
inline Graph decode_step(int64_t keys, int num_layers) {
  using enum DType;
  GraphBuilder b;
  int64_t heads = 4, kv_heads = 2, head = 64, width = heads * head, kv_width = kv_heads * head;
  ValueId x = b.input(kBF16, {1, width}), position = b.input(kI64, {1});
  ValueId keep = b.input(kBool, {1, 1, 1, keys});
  auto matmul = [&](ValueId a, int64_t k, int64_t n) {  // weights [n][k], as torch keeps them
    ValueId w = b.input(kBF16, {n, k}), wt = b.value(kBF16, {k, n}, w), y = b.value(kBF16, {1, n});
    b.graph.immutable.back() = true;
    b.graph.values[wt].strides = {number(1), number(k)};
    b.node(OpKind::kView, {w}, {wt});
    b.node(OpKind::kMatmul, {a, wt}, {y});
    return y;
  };
  auto split = [&](ValueId y, int64_t n) {
    ValueId view = b.value(kBF16, {1, n, 1, head}, y);
    b.node(OpKind::kView, {y}, {view});
    return view;
  };
  auto append = [&](ValueId y) {
    ValueId cache = b.input(kBF16, {1, kv_heads, keys, head}), stored = b.value(kBF16, {1, kv_heads, keys, head});
    ValueId copied = b.value(kBF16, {1, kv_heads, keys, head}, cache), index = b.value(kI64, {1, 1, 1, 1}, position);
    b.node(OpKind::kView, {position}, {index});
    b.node(OpKind::kIndexStore, {cache, split(y, kv_heads), index}, {stored}).attrs.map = {0, 1, ~0, 3};
    b.node(OpKind::kCopyTo, {cache, stored}, {copied});
    return stored;
  };
  for (int l = 0; l < num_layers; ++l) {
    ValueId q = matmul(x, width, width), k = append(matmul(x, width, kv_width)), v = append(matmul(x, width, kv_width));
    ValueId out = b.value(kBF16, {1, heads, 1, head}), lse = b.value(kF32, {1, heads, 1});
    b.node(OpKind::kAttention, {split(q, heads), k, v, keep}, {out, lse}).attrs.has_mask = true;
    ValueId flat = b.value(kBF16, {1, width}, out);
    b.node(OpKind::kView, {out}, {flat});
    ValueId r = b.pointwise(Opcode::kAdd, {matmul(flat, width, width), x}, kBF16, {1, width});
    ValueId gate = b.pointwise(Opcode::kSigmoid, {matmul(r, width, width)}, kBF16, {1, width});
    ValueId h = b.pointwise(Opcode::kMul, {gate, matmul(r, width, width)}, kBF16, {1, width});
    x = b.pointwise(Opcode::kAdd, {matmul(h, width, width), r}, kBF16, {1, width});
  }
  b.graph.outputs = {x};
  verify(b.graph);
  return b.graph;
}

}  // namespace ark::test
