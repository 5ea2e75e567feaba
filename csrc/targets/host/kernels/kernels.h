// The inner loops of the host target, compiled once per instruction set (baseline.cpp, avx2.cpp, avx512.cpp) and picked
// at start.
//
// A register is a block of values of one compute type: f32, f64, i64 or bool (one byte). A kernel maps blocks to a
// block.
#pragma once
#include <cstdint>
#include <span>

#include "base/types.h"
#include "ir/program.h"

namespace ark::targets::host {

enum class RegType : uint8_t { kF32, kF64, kI64, kBool };
inline constexpr int kNumRegTypes = 4;

constexpr RegType reg_type(DType t) {
  switch (compute_type(t)) {
    case DType::kF64:
      return RegType::kF64;
    case DType::kF32:
      return RegType::kF32;
    case DType::kBool:
      return RegType::kBool;
    default:
      return RegType::kI64;
  }
}
constexpr int reg_bytes(RegType t) { return t == RegType::kBool ? 1 : t == RegType::kF32 ? 4 : 8; }

using UnaryFn = void (*)(void* out, const void* a, int64_t n);
using BinaryFn = void (*)(void* out, const void* a, const void* b, int64_t n);
using TernaryFn = void (*)(void* out, const void* a, const void* b, const void* c, int64_t n);

/// out[i] = in[i * stride] (elements), converted; `stride` 0 broadcasts.
using LoadFn = void (*)(void* reg, const void* memory, int64_t stride, int64_t n);
/// memory[i * stride] = reg[i], rounded to nearest even (floats) or truncated modulo 2^bits (integers).
using StoreFn = void (*)(void* memory, const void* reg, int64_t stride, int64_t n);
/// reg[i] = memory[offset[i]]; lanes with predicate[i] == 0 yield 0 and touch nothing. predicate may be null.
using GatherFn = void (*)(void* reg, const void* memory, const int64_t* offset, const uint8_t* predicate, int64_t n);
using ScatterFn = void (*)(void* memory, const void* reg, const int64_t* offset, const uint8_t* predicate, int64_t n);

/// Accumulators of a reduction: `value` holds doubles for floats and int64_t otherwise, `index` the argument (arg_max,
/// arg_min).
struct Accumulators {
  void* value = nullptr;
  int64_t* index = nullptr;
};
/// Row: accumulator r takes in a[r * columns + c] for every c; Column: accumulator c takes in every r, in order.
/// `first_index` is the index (in the reduced range) of r = 0, c = 0.
using ReduceFn = void (*)(const Accumulators& acc, const void* a, int64_t rows, int64_t columns, int64_t first_index);

/// panel[p * width + i] = memory[i * line_stride + p * depth_stride] for i < lines, 0 for lines <= i < width; p <
/// depth.
struct PanelSource {
  const void* memory = nullptr;
  int64_t line_stride = 0, depth_stride = 0, lines = 0, depth = 0;
};
using PackFn = void (*)(void* panel, int64_t width, const PanelSource& source);

/// c[i][j] += sum_k a[k][i] * b[k][j] over packed panels (a: [k][mr], b: [k][nr]), c of row length ldc; all mr x nr are
/// written.
template <class T>
using MicroKernel = void (*)(int64_t k, const T* a, const T* b, T* c, int64_t ldc);

template <class T>
struct MatrixKernels {
  int mr = 0, nr = 0;
  MicroKernel<T> micro = nullptr;
  /// Sum of a[i] * b[i] in a fixed order that depends on n alone.
  T (*dot)(const T* a, const T* b, int64_t n) = nullptr;
  /// y[i] += x * a[i].
  void (*axpy)(T* y, T x, const T* a, int64_t n) = nullptr;
};

/// Null entries: the operation does not exist for that type (a program that wants it is refused when it is bound).
struct Kernels {
  const char* isa = "";
  UnaryFn (*unary)(Opcode op, RegType type) = nullptr;    // argument and result of `type`; kIsNan, kIsInf: result bool
  BinaryFn (*binary)(Opcode op, RegType type) = nullptr;  // comparisons: result bool
  TernaryFn (*ternary)(Opcode op, RegType type) = nullptr;  // kWhere (a bool), kFma, kRand (type i64, result f32)
  UnaryFn (*convert)(RegType from, RegType to) = nullptr;   // value-preserving or as ATen's casts
  UnaryFn (*round_to)(DType storage) = nullptr;  // reg_type(storage) -> the same, rounded (wrapped) to storage
  LoadFn load[kNumDTypes] = {};
  StoreFn store[kNumDTypes] = {};
  GatherFn gather[kNumDTypes] = {};
  ScatterFn scatter[kNumDTypes] = {};
  PackFn pack[kNumDTypes] = {};
  ReduceFn (*reduce_rows)(ReduceOp op, RegType type) = nullptr;
  ReduceFn (*reduce_columns)(ReduceOp op, RegType type) = nullptr;
  void (*fill[kNumRegTypes])(void* out, const void* value, int64_t n) = {};
  /// Sum of a[i] * b[i] with b contiguous in a storage type that is computed in float; null for other types.
  float (*dot_storage[kNumDTypes])(const float* a, const void* b, int64_t n) = {};
  MatrixKernels<float> f32;
  MatrixKernels<double> f64;
  MatrixKernels<int64_t> i64;
  /// max(a[i]) over n values, NaN-propagating, -inf when empty; out[i] = exp(a[i] - shift), returns the sum in a fixed
  /// order.
  float (*row_max)(const float* a, int64_t n) = nullptr;
  float (*exp_sum)(float* a, float shift, int64_t n) = nullptr;
};

/// The best set for this machine.
const Kernels& best_kernels();
/// Every set that this machine can run, the plainest first.
std::span<const Kernels> available_kernels();

}  // namespace ark::targets::host
