// kMatmulSimple: products of any type, stride and size on the CUDA cores. A tile is 64 x 64; each of the 256 consumers
// keeps 4 x 4 sums (f32 for floats up to 32 bits, f64, or i64 for integers), added up in the order of k. No pages.
#pragma once
#include "device/loop/loop.cuh"
#include "device/loop/tensor_map.cuh"
#include "device/program/support.cuh"

namespace ark::device {

/// An element of any type as Sum: f32, f64 or i64.
template <class Sum>
ARK_DEVICE Sum load_as(const abi::Operand& o, i64 offset);
template <>
ARK_DEVICE float load_as<float>(const abi::Operand& o, i64 offset) {
  if (o.dtype == kTypeF32) return load_element(reinterpret_cast<const float*>(o.offset) + offset);
  const unsigned short bits = load_element(reinterpret_cast<const unsigned short*>(o.offset) + offset);
  return o.dtype == kTypeF16 ? widen(f16{bits}) : widen(bf16{bits});
}
template <>
ARK_DEVICE double load_as<double>(const abi::Operand& o, i64 offset) {
  return load_element(reinterpret_cast<const double*>(o.offset) + offset);
}
template <>
ARK_DEVICE i64 load_as<i64>(const abi::Operand& o, i64 offset) {
  switch (element_bytes(o.dtype)) {
    case 8:
      return load_element(reinterpret_cast<const i64*>(o.offset) + offset);
    case 4:
      return load_element(reinterpret_cast<const int*>(o.offset) + offset);
    case 2:
      return load_element(reinterpret_cast<const short*>(o.offset) + offset);
    default:
      return o.dtype == kTypeI8 ? load_element(reinterpret_cast<const signed char*>(o.offset) + offset)
                                : load_element(reinterpret_cast<const unsigned char*>(o.offset) + offset);
  }
}

template <class Programs>
struct MatmulSimple {
  static ARK_DEVICE void consume(Consumer& consumer, const Task& task) {
    consumer.wait_for_item(task);
    const i32 dtype = task.record->params.matmul.dtype;
    for (int i = 0; i < task.count; ++i) {
      if (dtype == kTypeF64)
        Tile<double>(consumer, task, task.first + i).run();
      else if (dtype >= kTypeF16)
        Tile<float>(consumer, task, task.first + i).run();
      else
        Tile<i64>(consumer, task, task.first + i).run();
    }
  }

 private:
  static constexpr int kSize = 64, kDepth = 16, kPitch = kSize + 4;  // of tiles, steps of k, and lines in scratch
  static constexpr int kStagedRows = 32;                             // rows of sums that scratch takes at once

  template <class Sum>
  struct Tile {
    static_assert(2 * kDepth * kPitch * sizeof(Sum) <= kScratchBytes &&
                  kStagedRows * kSize * sizeof(Sum) <= kScratchBytes);

    Consumer& consumer;
    const Task& task;
    const abi::MatmulTileParams& p;
    int batch, row0, column0;
    Sum sum[4][4];

    ARK_DEVICE Tile(Consumer& c, const Task& t, int tile) : consumer(c), task(t), p(t.record->params.matmul) {
      const abi::OpRecord& r = *t.record;
      const abi::Coordinates at = abi::coordinates_of(r, tile);
      batch = at.outer, row0 = at.middle * kSize, column0 = at.inner * kSize;
    }

    ARK_DEVICE void run() {
#pragma unroll
      for (int i = 0; i < 16; ++i) sum[i / 4][i % 4] = Sum(0);
      Sum *a = reinterpret_cast<Sum*>(consumer.scratch()), *b = a + kDepth * kPitch;
      const Side side_a(task.operand(abi::MatmulOperand::kA), 1, 2, batch, row0, p.m),
          side_b(task.operand(abi::MatmulOperand::kB), 2, 1, batch, column0, p.n);
      Sum next_a[4], next_b[4];
      side_a.load(consumer.thread(), 0, p.k, next_a);
      side_b.load(consumer.thread(), 0, p.k, next_b);
      for (int k = 0; k < p.k; k += kDepth) {
        consumer.sync();  // the step before has been read
        side_a.store(consumer.thread(), next_a, a);
        side_b.store(consumer.thread(), next_b, b);
        consumer.sync();
        if (k + kDepth < p.k) {
          side_a.load(consumer.thread(), k + kDepth, p.k, next_a);
          side_b.load(consumer.thread(), k + kDepth, p.k, next_b);
        }
        multiply(a, b);
      }
      Programs::epilogue_simple(p.program, [&](auto program) { finish<decltype(program)>(); });
    }

   private:
    /// One operand's block of 64 rows (of a) or columns (of b) by 16 k, 4 elements per thread, neighbours in memory by
    /// neighbours.
    struct Side {
      const abi::Operand& operand;
      i64 base, stride, stride_k;
      int first, limit;
      bool along_k;
      ARK_DEVICE Side(const abi::Operand& o, int dim, int dim_k, int batch, int first_row, int rows)
          : operand(o),
            base(batch * o.stride[0]),
            stride(o.stride[dim]),
            stride_k(o.stride[dim_k]),
            first(first_row),
            limit(rows),
            along_k(o.stride[dim_k] == 1) {}
      ARK_DEVICE int row(int thread, int e) const { return along_k ? thread / kDepth + e * 16 : thread % kSize; }
      ARK_DEVICE int k(int thread, int e) const { return along_k ? thread % kDepth : thread / kSize + e * 4; }
      ARK_DEVICE void load(int thread, int k0, int size_k, Sum (&value)[4]) const {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int r = first + row(thread, e), at_k = k0 + k(thread, e);
          value[e] = r < limit && at_k < size_k ? load_as<Sum>(operand, base + r * stride + at_k * stride_k) : Sum(0);
        }
      }
      ARK_DEVICE void store(int thread, const Sum (&value)[4], Sum* shared) const {
#pragma unroll
        for (int e = 0; e < 4; ++e) shared[k(thread, e) * kPitch + row(thread, e)] = value[e];
      }
    };

    ARK_DEVICE void multiply(const Sum* a, const Sum* b) {
      const int row = consumer.thread() / 16 * 4, column = consumer.thread() % 16 * 4;
#pragma unroll 4
      for (int k = 0; k < kDepth; ++k) {
        Sum x[4], y[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          x[i] = a[k * kPitch + row + i];
          y[i] = b[k * kPitch + column + i];
        }
#pragma unroll
        for (int i = 0; i < 16; ++i) sum[i / 4][i % 4] += x[i / 4] * y[i % 4];
      }
    }

    /// V neighbours of one row among the staged sums.
    struct Roots {
      const Sum* line;
      int column, pair_distance;
      template <int V, class T>
      ARK_DEVICE void get(int, int sign, T (&value)[V]) const {
#pragma unroll
        for (int i = 0; i < V; ++i) value[i] = static_cast<T>(line[(column + i + sign * pair_distance) & (kSize - 1)]);
      }
    };

    template <class Program>
    ARK_DEVICE void finish() {
      const ProgramContext context(task, p.first_operand, consumer.worker);
      Sum* staged = reinterpret_cast<Sum*>(consumer.scratch());
      const int row = consumer.thread() / 16 * 4, column = consumer.thread() % 16 * 4;
#pragma unroll 1
      for (int first = 0; first < kSize; first += kStagedRows) {
        consumer.sync();
        if (row / kStagedRows * kStagedRows == first) {
#pragma unroll
          for (int i = 0; i < 16; ++i) staged[(row - first + i / 4) * kSize + column + i % 4] = sum[i / 4][i % 4];
        }
        consumer.sync();
        if (Program::kVector > 1 && p.n % Program::kVector == 0)
          run_rows<Program, Program::kVector>(context, staged, first);
        else
          run_rows<Program, 1>(context, staged, first);
      }
      consumer.sync();
    }
    template <class Program, int V>
    ARK_DEVICE void run_rows(const ProgramContext& context, const Sum* staged, int first) const {
#pragma unroll 1
      for (int i = consumer.thread(); i < kStagedRows * kSize / V; i += kConsumerThreads) {
        const int row = i / (kSize / V), column = i % (kSize / V) * V;
        const i32 x[3] = {batch, row0 + first + row, column0 + column};
        if (x[1] < p.m && x[2] < p.n)
          Program::template run<V>(context, x, Roots{staged + row * kSize, column, p.pair_distance});
      }
    }
  };
};

}  // namespace ark::device
