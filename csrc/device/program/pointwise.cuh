// kPointwise: a program over `tile` consecutive elements of the flattened domain. No pages; consumers read and write
// directly.
#pragma once
#include "device/program/support.cuh"

namespace ark::device {

template <class Programs>
struct Pointwise {
  static ARK_DEVICE void load_immutable(Loader&, const Task&) {}
  static ARK_DEVICE void load_dependent(Loader&, const Task&) {}

  static ARK_DEVICE void consume(Consumer& consumer, const Task& task) {
    consumer.wait_for_item(task);
    Programs::pointwise(task.record->params.program.program, [&](auto program) __attribute__((always_inline)) {
      using P = decltype(program);
      constexpr int V = P::kVector;
      constexpr bool kShort = P::kUnroll > 2;  // worth a copy that asks no operand
      const abi::ProgramParams& p = task.record->params.program;
      if (task.record->size[P::kDims - 1] % V != 0 || p.tile % V != 0)
        run_vectors<P, 1>(consumer, task, 0);
      else if (kShort && all_vectors<V>(task, p.first_operand, P::kNumOperands))
        run_vectors<P, V>(consumer, task, kShort ? ~0u : 0);
      else
        run_vectors<P, V>(consumer, task, 0);
    });
  }

 private:
  /// P::kUnroll vectors of V elements in flight per thread. `known`: see ProgramContext, a constant.
  template <class P, int V>
  static ARK_DEVICE void run_vectors(Consumer& consumer, const Task& task, u32 known) {
    const abi::OpRecord& r = *task.record;
    i64 total = 1;
#pragma unroll
    for (int d = 0; d < P::kDims; ++d) total *= r.size[d];
    const i64 tile = r.params.program.tile;
    const i64 begin = task.first * tile;
    const i64 end = min(total, (task.first + static_cast<i64>(task.count)) * tile);
    const ProgramContext c(task, r.params.program.first_operand, consumer.worker, known);
    constexpr int kUnroll = V == 1 ? 1 : P::kUnroll;
    constexpr i64 kStep = kConsumerThreads * V;
#pragma unroll 1
    for (i64 e = begin + consumer.thread() * V; e < end; e += kUnroll * kStep) {
      i32 x[kUnroll][P::kDims] = {};
      typename P::template Inputs<V> in[kUnroll];
      unrolled<kUnroll>([&](auto k) __attribute__((always_inline)) {
        if (e + k.value * kStep < end) {
          unflatten<0, P::kDims>(r, e + k.value * kStep, x[k.value]);
          P::template load<V>(c, x[k.value], in[k.value]);
        }
      });
      unrolled<kUnroll>([&](auto k) __attribute__((always_inline)) {
        if (e + k.value * kStep < end) P::template run_loaded<V>(c, x[k.value], in[k.value], NoRoots{});
      });
    }
  }
};

}  // namespace ark::device
