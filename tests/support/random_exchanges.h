// Random graphs with exchanges between 2 to 4 ranks.
#pragma once
#include <random>

#include "support/exchange_graphs.h"

namespace ark::test {

/// Square matrices of small integers; every step ends with a clamp, so that sums stay exact.
class RandomExchanges {
 public:
  explicit RandomExchanges(uint32_t seed) : random_(seed), b_(static_cast<int>(draw(2, 4))) {
    n_ = b_.world * draw(1, 4) * (draw(0, 2) == 0 ? 1 : 4);
    for (int i = 0; i < 3; ++i) values_.push_back(b_.input(DType::kF32, {n_, n_}));
    high_ = b_.full(3), low_ = b_.full(-3);
    const auto steps = draw(3, 10);
    for (int64_t i = 0; i < steps; ++i) step();
    std::vector<ValueId> outputs = {values_.back()};
    for (size_t v = 3; v + 1 < values_.size(); ++v)
      if (draw(0, 3) == 0) outputs.push_back(values_[v]);
    for (ValueId box : boxes_)
      if (draw(0, 4) == 0) outputs.push_back(box);
    graph_ = b_.finish(outputs, "random");
    graph_.name = cat("random ", seed);
  }
  const Graph& graph() const { return graph_; }
  int64_t draw(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
  }

 private:
  ValueId pick() { return values_[static_cast<size_t>(draw(0, static_cast<int64_t>(values_.size()) - 1))]; }
  void keep(ValueId x) { values_.push_back(b_.binary(Opcode::kMinimum, b_.binary(Opcode::kMaximum, x, low_), high_)); }
  std::vector<ValueId> exchanged(std::vector<ValueId> sent) {
    const std::vector<ValueId> boxes = b_.exchange(std::move(sent));
    boxes_.insert(boxes_.end(), boxes.begin(), boxes.end());
    return boxes;
  }

  void step() {
    constexpr Opcode kBinary[] = {Opcode::kAdd, Opcode::kSub, Opcode::kMul};
    ValueId x = pick();
    switch (draw(0, 11)) {
      case 0:
        return keep(b_.binary(kBinary[draw(0, 2)], x, pick()));
      case 1:
        return keep(b_.unary(draw(0, 1) ? Opcode::kRelu : Opcode::kNeg, x));
      case 2:
        return keep(b_.binary(kBinary[draw(0, 2)], pick(), b_.row_sum(x, draw(0, 1), true)));
      case 3:
      case 4:
        return keep(b_.matmul(x, pick()));
      case 5:
        return keep(b_.matmul(b_.transposed(x), pick()));
      case 6:
      case 7:
        return keep(b_.sum(exchanged({draw(0, 2) == 0 ? b_.transposed(x) : x})));
      case 8: {  // one box, read by something else than a sum
        const std::vector<ValueId> boxes = exchanged({x});
        return keep(b_.matmul(boxes[static_cast<size_t>(draw(0, b_.world - 1))], pick()));
      }
      case 9: {  // scatter, then gather: parts that are sums, sent on
        ValueId part = b_.sum(exchanged(b_.parts(x)));
        return keep(b_.joined(exchanged({part})));
      }
      case 10: {  // another value for each rank
        std::vector<ValueId> sent = {x};
        while (static_cast<int>(sent.size()) < b_.world) sent.push_back(pick());
        return keep(b_.sum(exchanged(sent)));
      }
      default:
        return keep(b_.joined(exchanged(b_.parts(x))));
    }
  }
  std::mt19937 random_;
  ExchangeBuilder b_;
  int64_t n_ = 0;
  ValueId high_ = -1, low_ = -1;
  std::vector<ValueId> values_, boxes_;
  Graph graph_;
};

}  // namespace ark::test
