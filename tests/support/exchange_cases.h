// Graphs with exchanges, and the same in plain loops for all ranks.
#pragma once
#include <algorithm>
#include <cmath>
#include <functional>

#include "base/check.h"
#include "support/exchange_graphs.h"
#include "support/rank_threads.h"

namespace ark::test::exchange_cases {

/// Outputs of all ranks from the inputs of all ranks.
using Reference = std::function<std::vector<Tensors>(const std::vector<Tensors>&)>;

struct Case {
  Graph graph;
  Reference reference;
  double tolerance = 0;  // 0: equal bits
  std::vector<int> same = {};
  bool replicated = false;  // all ranks have the same outputs
};

// ---- plain loops ----

inline Floats add(const Floats& a, const Floats& b) {
  Floats out(a.size());
  for (size_t i = 0; i < a.size(); ++i) out[i] = a[i] + b[i];
  return out;
}
inline Floats relu(Floats x) {
  for (float& value : x) value = std::max(value, 0.0f);
  return x;
}
/// In plain loops, of one thread: without ThreadSanitizer, which would spend 30 of the test's 60 CPU seconds here.
__attribute__((no_sanitize("thread"))) inline Floats matmul(const Floats& a, const Floats& w, size_t m, size_t k,
                                                            size_t n, bool transposed = false) {
  check(a.size() >= m * k && w.size() >= k * n, "matmul: ", a.size(), " and ", w.size(), " elements of ", m, " x ", k,
        " and ", k, " x ", n);
  Floats out(m * n);
  const float *from_a = a.data(), *from_w = w.data();
  float* to = out.data();
  for (size_t i = 0; i < m; ++i)
    for (size_t j = 0; j < n; ++j) {
      double sum = 0;
      for (size_t l = 0; l < k; ++l)
        sum += double{from_a[i * k + l]} * double{from_w[transposed ? j * k + l : l * n + j]};
      to[i * n + j] = static_cast<float>(sum);
    }
  return out;
}
inline Floats norm(Floats x, size_t rows) {
  const size_t n = x.size() / rows;
  for (size_t i = 0; i < rows; ++i) {
    double sum = 1;
    for (size_t j = 0; j < n; ++j) sum += double{x[i * n + j]} * double{x[i * n + j]};
    for (size_t j = 0; j < n; ++j) x[i * n + j] = static_cast<float>(x[i * n + j] / std::sqrt(sum));
  }
  return x;
}
inline Floats total(const std::vector<Floats>& of_ranks) {
  Floats sum = of_ranks[0];
  for (size_t r = 1; r < of_ranks.size(); ++r) sum = add(sum, of_ranks[r]);
  return sum;
}
inline Floats part(const Floats& x, size_t world, size_t rank) {
  const size_t n = x.size() / world;
  return {x.begin() + static_cast<std::ptrdiff_t>(rank * n), x.begin() + static_cast<std::ptrdiff_t>((rank + 1) * n)};
}
inline void append(Floats& x, const Floats& more) { x.insert(x.end(), more.begin(), more.end()); }

/// Each rank's own value, then all-reduced.
template <class Own>
std::vector<Floats> each(const std::vector<Tensors>& inputs, const Own& own) {
  std::vector<Floats> out;
  for (const Tensors& of_rank : inputs) out.push_back(own(of_rank));
  return out;
}
inline std::vector<Tensors> everywhere(size_t world, const Floats& value) {
  return std::vector<Tensors>(world, Tensors{value});
}

// ---- collectives alone ----

inline Case all_reduce(int world) {
  ExchangeBuilder b(world);
  ValueId x = b.input(DType::kF32, {6, 40});
  return {b.finish({b.all_reduce(x)}, "all_reduce"),
          [](const std::vector<Tensors>& in) {
            return everywhere(in.size(), total(each(in, [](const Tensors& t) { return t[0]; })));
          },
          0,
          {},
          true};
}

inline Case all_gather(int world) {
  ExchangeBuilder b(world);
  ValueId x = b.input(DType::kF32, {5, 24});
  return {b.finish({b.all_gather(x)}, "all_gather"),
          [](const std::vector<Tensors>& in) {
            Floats out;
            for (const Tensors& t : in) append(out, t[0]);
            return everywhere(in.size(), out);
          },
          0,
          {},
          true};
}

inline Case reduce_scatter(int world) {
  ExchangeBuilder b(world);
  ValueId x = b.input(DType::kF32, {4 * world, 24});
  return {b.finish({b.reduce_scatter(x)}, "reduce_scatter"), [](const std::vector<Tensors>& in) {
            std::vector<Tensors> out;
            for (size_t r = 0; r < in.size(); ++r)
              out.push_back({total(each(in, [&](const Tensors& t) { return part(t[0], in.size(), r); }))});
            return out;
          }};
}

inline Case all_to_all(int world) {
  ExchangeBuilder b(world);
  ValueId x = b.input(DType::kF32, {3 * world, 24});
  return {b.finish({b.all_to_all(x)}, "all_to_all"), [](const std::vector<Tensors>& in) {
            std::vector<Tensors> out(in.size(), Tensors(1));
            for (size_t r = 0; r < in.size(); ++r)
              for (const Tensors& t : in) append(out[r][0], part(t[0], in.size(), r));
            return out;
          }};
}

// ---- along other ops ----

/// Part of the columns of the first weight, of the rows of the second: the pushes go along the product.
inline Case product(int world) {
  ExchangeBuilder b(world);
  ValueId x = b.input(DType::kF32, {96, 48}), w = b.input(DType::kF32, {48, 160});
  return {b.finish({b.all_reduce(b.unary(Opcode::kRelu, b.matmul(x, w)))}, "product"),
          [](const std::vector<Tensors>& in) {
            auto own = [](const Tensors& t) { return relu(matmul(t[0], t[1], 96, 48, 160)); };
            return everywhere(in.size(), total(each(in, own)));
          },
          0,
          {},
          true};
}

/// The parts of a long product meet in an op of its own, which sends.
inline Case long_product(int world) {
  ExchangeBuilder b(world);
  ValueId x = b.input(DType::kF32, {32, 2048}), w = b.input(DType::kF32, {2048, 64});
  return {b.finish({b.all_reduce(b.matmul(x, w))}, "long product"),
          [](const std::vector<Tensors>& in) {
            auto own = [](const Tensors& t) { return matmul(t[0], t[1], 32, 2048, 64); };
            return everywhere(in.size(), total(each(in, own)));
          },
          0,
          {},
          true};
}

/// A few rows, as in decoding: both products are of the kind that streams weights, the second reads boxes.
inline Case few_rows(int world) {
  ExchangeBuilder b(world);
  ValueId x = b.input(DType::kF32, {1, 64});
  ValueId w1 = b.input(DType::kF32, {48, 64}), w2 = b.input(DType::kF32, {64, 48});
  ValueId y = b.all_reduce(b.linear(x, w1));
  return {b.finish({b.all_reduce(b.linear(b.unary(Opcode::kRelu, y), w2))}, "few rows"),
          [](const std::vector<Tensors>& in) {
            const Floats y =
                relu(total(each(in, [](const Tensors& t) { return matmul(t[0], t[1], 1, 64, 48, true); })));
            return everywhere(in.size(),
                              total(each(in, [&](const Tensors& t) { return matmul(y, t[2], 1, 48, 64, true); })));
          },
          0,
          {},
          true};
}

inline Case residual_norm(int world) {
  ExchangeBuilder b(world);
  ValueId x = b.input(DType::kF32, {24, 96}), r = b.input(DType::kF32, {24, 96});
  ValueId h = b.binary(Opcode::kAdd, b.all_reduce(x), r);
  return {b.finish({h, b.norm(h)}, "residual + norm"),
          [](const std::vector<Tensors>& in) {
            const Floats h = add(total(each(in, [](const Tensors& t) { return t[0]; })), in[0][1]);
            return std::vector<Tensors>(in.size(), Tensors{h, norm(h, 24)});
          },
          1e-5,
          {1},
          true};
}

/// Gradients of a bias: the sums over rows are cut in two, and the second part sends. The own value is used as well.
inline Case column_sums(int world) {
  ExchangeBuilder b(world);
  ValueId x = b.input(DType::kF32, {512, 64});
  ValueId own = b.row_sum(x, 0, false);
  return {b.finish({b.all_reduce(own), b.binary(Opcode::kSub, own, b.all_reduce(own))}, "column sums"),
          [](const std::vector<Tensors>& in) {
            auto sums = each(in, [](const Tensors& t) {
              Floats out(64);
              for (size_t i = 0; i < t[0].size(); ++i) out[i % 64] += t[0][i];
              return out;
            });
            const Floats all = total(sums);
            std::vector<Tensors> out;
            for (Floats& own : sums) {
              for (size_t i = 0; i < own.size(); ++i) own[i] -= all[i];
              out.push_back({all, own});
            }
            return out;
          }};
}

/// One op reads the boxes of an exchange and writes those of the next; gather and scatter in between.
inline Case in_a_row(int world) {
  ExchangeBuilder b(world);
  ValueId x = b.input(DType::kF32, {2 * world, 32});
  ValueId y = b.unary(Opcode::kRelu, b.all_reduce(x));
  y = b.unary(Opcode::kNeg, b.all_reduce(y));
  ValueId part_of_rank = b.reduce_scatter(y);
  ValueId back = b.all_gather(part_of_rank);
  return {b.finish({b.all_to_all(back), b.binary(Opcode::kAdd, y, x)}, "in a row"), [](const std::vector<Tensors>& in) {
            const auto world = static_cast<float>(in.size());
            Floats y = relu(total(each(in, [](const Tensors& t) { return t[0]; })));
            for (float& value : y) value *= -world;
            Floats back = y;
            for (float& value : back) value *= world;
            std::vector<Tensors> out;
            for (size_t r = 0; r < in.size(); ++r) {
              Floats swapped;
              for (size_t from = 0; from < in.size(); ++from) append(swapped, part(back, in.size(), r));
              out.push_back({swapped, add(y, in[r][0])});
            }
            return out;
          }};
}

/// Boxes themselves are returned, whole and as a view; nobody reads the second exchange.
inline Case returned_boxes(int world) {
  ExchangeBuilder b(world);
  ValueId x = b.input(DType::kF32, {4, 16});
  const std::vector<ValueId> boxes = b.exchange({x});
  b.exchange({b.unary(Opcode::kNeg, x)});
  ValueId row = b.value(DType::kF32, {16}, boxes[0]);
  b.graph.values[row].offset = number(32);
  b.node(OpKind::kView, {boxes[0]}, {row});
  return {b.finish({boxes[1], row}, "returned boxes"),
          [](const std::vector<Tensors>& in) {
            // fresh tensors are whole
            return std::vector<Tensors>(in.size(), Tensors{in[1][0], in[0][0]});
          },
          0,
          {},
          true};
}

inline Case unread(int world) {
  ExchangeBuilder b(world);
  ValueId x = b.input(DType::kF32, {4, 16});
  b.exchange({x});
  return {b.finish({b.unary(Opcode::kNeg, x)}, "unread"), [](const std::vector<Tensors>& in) {
            std::vector<Tensors> out;
            for (const Tensors& t : in) {
              out.push_back({t[0]});
              for (float& value : out.back()[0]) value = -value;
            }
            return out;
          }};
}

/// Products one after the other, each scattered as soon as it is there: they share memory, so that a later product
/// waits for the op that has sent an earlier one.
inline Case shared_memory(int world) {
  constexpr size_t kRows = 384, kWidth = 128, kInner = 16, kProducts = 12;
  ExchangeBuilder b(world);
  std::vector<ValueId> outputs;
  for (size_t i = 0; i < kProducts; ++i) {
    ValueId x = b.input(DType::kF32, {kRows, kInner}), w = b.input(DType::kF32, {kInner, kWidth});
    outputs.push_back(b.reduce_scatter(b.matmul(x, w)));
  }
  return {b.finish(outputs, "shared memory"), [](const std::vector<Tensors>& in) {
            std::vector<Tensors> out(in.size());
            for (size_t i = 0; i < kProducts; ++i) {
              const Floats sum = total(
                  each(in, [&](const Tensors& t) { return matmul(t[2 * i], t[2 * i + 1], kRows, kInner, kWidth); }));
              for (size_t r = 0; r < in.size(); ++r) out[r].push_back(part(sum, in.size(), r));
            }
            return out;
          }};
}

/// Tensor parallel: columns, relu, rows, all-reduce, residual, norm.
inline Case layers(int world) {
  constexpr size_t kRows = 16, kWidth = 64, kOwn = 32, kLayers = 16;
  ExchangeBuilder b(world);
  ValueId x = b.input(DType::kF32, {kRows, kWidth});
  std::vector<int> same = {0};
  for (size_t l = 0; l < kLayers; ++l) {
    ValueId w1 = b.input(DType::kF32, {kWidth, kOwn}), w2 = b.input(DType::kF32, {kOwn, kWidth});
    b.graph.immutable[b.graph.inputs.size() - 1] = b.graph.immutable[b.graph.inputs.size() - 2] = true;
    ValueId y = b.all_reduce(b.matmul(b.unary(Opcode::kRelu, b.matmul(x, w1)), w2));
    x = b.norm(b.binary(Opcode::kAdd, y, x));
  }
  return {b.finish({x}, "layers"),
          [](const std::vector<Tensors>& in) {
            Floats x = in[0][0];
            for (size_t l = 0; l < kLayers; ++l) {
              auto own = [&](const Tensors& t) {
                return matmul(relu(matmul(x, t[1 + 2 * l], kRows, kWidth, kOwn)), t[2 + 2 * l], kRows, kOwn, kWidth);
              };
              x = norm(add(total(each(in, own)), x), kRows);
            }
            return everywhere(in.size(), x);
          },
          1e-4, same, true};
}

inline const std::vector<Case (*)(int)> kCases = {
    all_reduce,  all_gather,    reduce_scatter, all_to_all, product,  long_product, few_rows,
    column_sums, residual_norm, returned_boxes, unread,     in_a_row, layers};

}  // namespace ark::test::exchange_cases
