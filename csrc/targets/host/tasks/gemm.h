// Matrix products for the tasks: any strides and storage type in, sums in T (float, double, int64_t) out.
#pragma once
#include <cstdint>

#include "targets/host/kernels/kernels.h"
#include "targets/host/program/scratch.h"

namespace ark::targets::host {

/// A matrix in memory: element (i, j) at data + (i * row_stride + j * column_stride) elements.
struct MatrixView {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t row_stride = 0, column_stride = 0;
};

template <class T>
const MatrixKernels<T>& matrix_kernels(const Kernels& kernels);
template <>
inline const MatrixKernels<float>& matrix_kernels(const Kernels& kernels) {
  return kernels.f32;
}
template <>
inline const MatrixKernels<double>& matrix_kernels(const Kernels& kernels) {
  return kernels.f64;
}
template <>
inline const MatrixKernels<int64_t>& matrix_kernels(const Kernels& kernels) {
  return kernels.i64;
}

/// Row length of the result of gemm, and the rows that it may write (sizes are rounded up to whole micro-kernels).
template <class T>
int64_t gemm_row_length(const Kernels& kernels, int64_t n) {
  const int64_t nr = matrix_kernels<T>(kernels).nr;
  return (n + nr - 1) / nr * nr;
}
template <class T>
int64_t gemm_rows(const Kernels& kernels, int64_t m) {
  const int64_t mr = matrix_kernels<T>(kernels).mr;
  return (m + mr - 1) / mr * mr;
}

/// c[i][j] = sum_p a[i][p] * b[p][j]: runs of p are added up, then these sums, in the order of p for every element, so
/// that results do not depend on how a product is cut into tiles. c has gemm_rows(m) rows of gemm_row_length(n). The
/// storage types must be computed in T. Uses the scratch buffers kPanelA and kPanelB.
template <class T>
void gemm(const Kernels& kernels, Scratch& scratch, const MatrixView& a, const MatrixView& b, int64_t m, int64_t n,
          int64_t k, T* c);

/// The same for few rows, without packing: the layout of c and the independence of tiles hold here too, the bits
/// differ. Uses the scratch buffer kConvert.
template <class T>
void gemm_few_rows(const Kernels& kernels, Scratch& scratch, const MatrixView& a, const MatrixView& b, int64_t m,
                   int64_t n, int64_t k, T* c);

}  // namespace ark::targets::host
