// Fused graphs of whole layers, for several tests.
#pragma once
#include "support/fused_builder.h"

namespace ark::test {

using abi::TaskKind;

struct EncoderSizes {
  int64_t batch = 4, seq = 384, width = 512, heads = 8, hidden = 1024, layers = 1;
};

/// Encoder layers as in BERT: norm, qkv, attention, projection + residual, norm, feed forward + residual.
inline Builder encoder(const EncoderSizes& z) {
  Builder b;
  const int64_t rows = z.batch * z.seq, w = z.width;
  auto x = b.input("x", {rows, w}, false), g = b.input("g", {w});
  for (int64_t l = 0; l < z.layers; ++l) {
    const std::string at = z.layers == 1 ? "" : cat(".", l);
    auto wqkv = b.input("wqkv" + at, {3 * w, w}), wo = b.input("wo" + at, {w, w});
    auto w1 = b.input("w1" + at, {z.hidden, w}), w2 = b.input("w2" + at, {w, z.hidden});
    auto n1 = b.storage("n1" + at, {rows, w}), qkv = b.storage("qkv" + at, {rows, 3 * w}),
         a = b.storage("a" + at, {rows, w});
    auto r1 = b.storage("r1" + at, {rows, w}), n2 = b.storage("n2" + at, {rows, w}),
         h = b.storage("h" + at, {rows, z.hidden});
    auto y = b.storage("y" + at, {rows, w});
    b.program_op(TaskKind::kRow, "norm1" + at, {rows, w}, 1, {b.dense_ref(x), {g, {0, 1}}}, {b.dense_ref(n1)});
    b.matmul("qkv" + at, 1, rows, 3 * w, w, {n1, {0, w, 1}}, {wqkv, {0, 1, w}}, {qkv, {0, 3 * w, 1}});
    FusedOp attention;
    attention.op.name = "attention" + at;
    attention.op.record.kind = TaskKind::kAttentionForward;
    abi::AttentionParams& p = attention.op.record.params.attention;
    p.dtype = static_cast<int>(DType::kBF16);
    p.batch = static_cast<int>(z.batch), p.heads = p.kv_heads = static_cast<int>(z.heads);
    p.queries = p.keys = static_cast<int>(z.seq);
    p.head_dim = p.value_dim = static_cast<int>(w / z.heads);
    attention.op.flops = 4 * z.batch * z.heads * z.seq * z.seq * (w / z.heads);
    for (int part = 0; part < 3; ++part) {
      b.operand(attention, {qkv, {z.seq * 3 * w, w / z.heads, 3 * w, 1}, part * w}, Access::kRead);
    }
    b.operand(attention, {a, {z.seq * w, w / z.heads, w, 1}}, Access::kWrite);
    for (int none = 0; none < 3; ++none) b.operand(attention, {}, Access::kRead);
    b.graph.ops.push_back(attention);
    b.matmul("proj" + at, 1, rows, w, w, {a, {0, w, 1}}, {wo, {0, 1, w}}, {r1, {0, w, 1}}, {{x, {0, w, 1}}});
    b.program_op(TaskKind::kRow, "norm2" + at, {rows, w}, 1, {b.dense_ref(r1), {g, {0, 1}}}, {b.dense_ref(n2)});
    b.matmul("ffn1" + at, 1, rows, z.hidden, w, {n2, {0, w, 1}}, {w1, {0, 1, w}}, {h, {0, z.hidden, 1}});
    b.matmul("ffn2" + at, 1, rows, w, z.hidden, {h, {0, z.hidden, 1}}, {w2, {0, 1, z.hidden}}, {y, {0, w, 1}},
             {{r1, {0, w, 1}}});
    x = y;
  }
  b.output(x);
  return b;
}

struct DecoderSizes {
  int64_t width = 2048, heads = 32, kv_heads = 8, head_dim = 64, hidden = 8192, layers = 16, vocabulary = 128256;
};

/// A decode step as in Llama, batch 1: qkv as three segments of pairs, attention, projection, gate and up, down; then
/// the head.
inline Builder decoder(const DecoderSizes& z) {
  Builder b;
  const int64_t w = z.width, q_width = z.heads * z.head_dim, kv = z.kv_heads * z.head_dim;
  auto x = b.input("x", {w}, false);
  for (int64_t l = 0; l < z.layers; ++l) {
    const std::string at = cat(".", l);
    auto wq = b.input("wq" + at, {q_width, w}), wk = b.input("wk" + at, {kv, w}), wv = b.input("wv" + at, {kv, w});
    auto wo = b.input("wo" + at, {w, q_width}), wg = b.input("wg" + at, {2 * z.hidden, w}),
         wd = b.input("wd" + at, {w, 2 * z.hidden});
    auto q = b.storage("q" + at, {q_width}), k = b.storage("k" + at, {kv}), v = b.storage("v" + at, {kv});
    auto o = b.storage("o" + at, {q_width}), r = b.storage("r" + at, {w}), h = b.storage("h" + at, {2 * z.hidden});
    auto y = b.storage("y" + at, {w});
    const int pair = static_cast<int>(z.head_dim / 2);
    b.matmul_rows("qkv" + at, w, 2, pair, x, {{wq, q, q_width / 2}, {wk, k, kv / 2}, {wv, v, kv / 2}});
    FusedOp attention;
    attention.op.name = "attention" + at;
    attention.op.record.kind = TaskKind::kAttentionDecode;
    abi::AttentionParams& p = attention.op.record.params.attention;
    p.batch = 1, p.heads = static_cast<int>(z.heads), p.kv_heads = static_cast<int>(z.kv_heads), p.queries = p.keys = 1;
    p.head_dim = p.value_dim = static_cast<int>(z.head_dim), p.parts = 1, p.fresh_operand = -1;
    const int64_t d = z.head_dim;
    b.operand(attention, {q, {q_width, d, d, 1}}, Access::kRead);
    b.operand(attention, {k, {kv, d, d, 1}}, Access::kRead);
    b.operand(attention, {v, {kv, d, d, 1}}, Access::kRead);
    b.operand(attention, {o, {q_width, d, d, 1}}, Access::kWrite);
    for (int none = 0; none < 3; ++none) b.operand(attention, {}, Access::kRead);
    b.graph.ops.push_back(attention);
    b.matmul_rows("out" + at, q_width, 1, 0, o, {{wo, r, w}});
    b.matmul_rows("gate_up" + at, w, 2, 1, r, {{wg, h, z.hidden}});
    b.matmul_rows("down" + at, 2 * z.hidden, 1, 0, h, {{wd, y, w}});
    x = y;
  }
  auto head = b.input("head", {z.vocabulary, w}), logits = b.storage("logits", {z.vocabulary});
  b.output(logits);
  b.matmul_rows("head", w, 1, 0, x, {{head, logits, z.vocabulary}});
  return b;
}

}  // namespace ark::test
