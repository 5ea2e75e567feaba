// The weight that a norm multiplies the rows of a few-row product by, one row for all of them: it comes into shared memory
// before what the product waits for, from memory that nobody has read since the launch before. Each lane of a row's four
// takes the vectors that all eight rows need.
#pragma once
#include "device/matmul/few_rows_fragments.cuh"

namespace ark::device {

template <class Form>
struct RowsWeight {
  using F = RowsFragments<Form>;
  using P = typename Form::Prologue;

  static consteval bool is_shared() {
    if constexpr (P::kOfSquares) return P::kWeight >= 0 && (Form::kSharedRows >> (P::kWeight & 31) & 1) != 0;
    return false;
  }
  static constexpr int kRoom = F::kWindows * F::kVectors * kConsumerWarps * 64;
  /// Whether it is kept there: `others` are the bytes of shared memory that the product needs besides.
  static consteval bool fits(int others) { return is_shared() && others + kRoom <= kScratchBytes; }

  static ARK_DEVICE void load(const Consumer& consumer, const Task& task, unsigned char* shared) {
    if constexpr (is_shared()) {
      const int g = consumer.lane() >> 2, q = consumer.lane() & 3;
      const ProgramContext c = F::context(consumer, task);
#pragma unroll
      for (int window = 0; window < F::kWindows; ++window)
#pragma unroll
        for (int first = 0; first < F::kVectors; first += 8) {
          const int number = first + g, k = F::place(window, number, consumer.warp(), q);
          if (number >= F::kVectors || k >= F::kK) continue;
          i32 x[P::kDims] = {};
          x[P::kDims - 1] = k;
          typename F::Inputs in;
          P::template load_weight<8>(c, x, in);
          place(shared, window, number, consumer)[q] = P::weight(in);
        }
      __syncwarp();
    }
  }
  static ARK_DEVICE Vec<bf16, 8> at(const Consumer& consumer, const unsigned char* shared, int window, int number) {
    return place(const_cast<unsigned char*>(shared), window, number, consumer)[consumer.lane() & 3];
  }

 private:
  static ARK_DEVICE Vec<bf16, 8>* place(unsigned char* shared, int window, int number, const Consumer& consumer) {
    const int vector = (consumer.warp() * F::kWindows + window) * F::kVectors + number;
    return reinterpret_cast<Vec<bf16, 8>*>(shared) + vector * 4;
  }
};

}  // namespace ark::device
