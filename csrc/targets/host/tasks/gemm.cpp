#include "targets/host/tasks/gemm.h"

#include <algorithm>

namespace ark::targets::host {
namespace {

constexpr int64_t kDepth = 384;  // of a panel: 64 rows of A take 96 KB, a part of the second-level cache
constexpr int64_t kPanelColumns = 512;
constexpr int64_t kRowsOfB = 8;  // of gemm_few_rows: added up before they are added to the sum of those before

const void* element(const MatrixView& x, int64_t i, int64_t j) {
  return static_cast<const std::byte*>(x.data) + (i * x.row_stride + j * x.column_stride) * size_bytes(x.dtype);
}

/// Packs `lines` lines (rows of A, columns of B) of `depth` values into panels [panel][depth][width], zero beyond the
/// end.
template <class T>
void pack(const Kernels& kernels, DType dtype, const PanelSource& source, int64_t width, T* panels) {
  const auto* base = static_cast<const std::byte*>(source.memory);
  for (int64_t first = 0; first < source.lines; first += width, panels += source.depth * width) {
    PanelSource panel = source;
    panel.memory = base + first * source.line_stride * size_bytes(dtype);
    panel.lines = std::min(width, source.lines - first);
    kernels.pack[static_cast<int>(dtype)](panels, width, panel);
  }
}

}  // namespace

template <class T>
void gemm(const Kernels& kernels, Scratch& scratch, const MatrixView& a, const MatrixView& b, int64_t m, int64_t n,
          int64_t k, T* c) {
  const MatrixKernels<T>& micro = matrix_kernels<T>(kernels);
  const int64_t ldc = gemm_row_length<T>(kernels, n), rows = gemm_rows<T>(kernels, m);
  T* panel_a = scratch.get<T>(Scratch::kPanelA, rows * kDepth);
  T* panel_b = scratch.get<T>(Scratch::kPanelB, (kPanelColumns + micro.nr) * kDepth);
  const int64_t columns_at_once = kPanelColumns / micro.nr * micro.nr;
  std::fill_n(c, rows * ldc, T(0));
  for (int64_t p = 0; p < k; p += kDepth) {
    const int64_t depth = std::min(kDepth, k - p);
    pack(kernels, a.dtype, {element(a, 0, p), a.row_stride, a.column_stride, m, depth}, micro.mr, panel_a);
    for (int64_t j = 0; j < n; j += columns_at_once) {
      const int64_t columns = std::min(columns_at_once, n - j);
      pack(kernels, b.dtype, {element(b, p, j), b.column_stride, b.row_stride, columns, depth}, micro.nr, panel_b);
      for (int64_t jj = 0; jj < columns; jj += micro.nr)
        for (int64_t i = 0; i < rows; i += micro.mr)
          micro.micro(depth, panel_a + i * depth, panel_b + jj * depth, c + i * ldc + j + jj, ldc);
    }
  }
}

template <class T>
void gemm_few_rows(const Kernels& kernels, Scratch& scratch, const MatrixView& a, const MatrixView& b, int64_t m,
                   int64_t n, int64_t k, T* c) {
  const MatrixKernels<T>& matrix = matrix_kernels<T>(kernels);
  const LoadFn load_a = kernels.load[static_cast<int>(a.dtype)], load_b = kernels.load[static_cast<int>(b.dtype)];
  const int64_t ldc = gemm_row_length<T>(kernels, n);
  T* left = scratch.get<T>(Scratch::kConvert, m * k + std::max(n, k) + m * n);
  T* right = left + m * k;
  T* partial = right + std::max(n, k);
  for (int64_t i = 0; i < m; ++i) load_a(left + i * k, element(a, i, 0), a.column_stride, k);
  const bool same_type = reg_bytes(reg_type(b.dtype)) == size_bytes(b.dtype);
  const auto line = [&](const void* data, int64_t stride, int64_t count) {  // as T, in place where it can be
    if (same_type && stride == 1) return static_cast<const T*>(data);
    load_b(right, data, stride, count);
    return static_cast<const T*>(right);
  };
  if (b.column_stride == 1) {  // rows of b: add them up
    for (int64_t i = 0; i < m; ++i) std::fill_n(c + i * ldc, n, T(0));
    for (int64_t first = 0; first < k; first += kRowsOfB) {
      std::fill_n(partial, m * n, T(0));
      for (int64_t p = first; p < std::min(k, first + kRowsOfB); ++p) {
        const T* row = line(element(b, p, 0), 1, n);
        for (int64_t i = 0; i < m; ++i) matrix.axpy(partial + i * n, left[i * k + p], row, n);
      }
      for (int64_t i = 0; i < m; ++i) matrix.axpy(c + i * ldc, T(1), partial + i * n, n);
    }
    return;
  }
  for (int64_t j = 0; j < n; ++j) {
    const T* column = line(element(b, 0, j), b.row_stride, k);
    for (int64_t i = 0; i < m; ++i) c[i * ldc + j] = matrix.dot(left + i * k, column, k);
  }
}

template void gemm(const Kernels&, Scratch&, const MatrixView&, const MatrixView&, int64_t, int64_t, int64_t, float*);
template void gemm(const Kernels&, Scratch&, const MatrixView&, const MatrixView&, int64_t, int64_t, int64_t, double*);
template void gemm(const Kernels&, Scratch&, const MatrixView&, const MatrixView&, int64_t, int64_t, int64_t, int64_t*);

template void gemm_few_rows(const Kernels&, Scratch&, const MatrixView&, const MatrixView&, int64_t, int64_t, int64_t,
                            float*);
template void gemm_few_rows(const Kernels&, Scratch&, const MatrixView&, const MatrixView&, int64_t, int64_t, int64_t,
                            double*);
template void gemm_few_rows(const Kernels&, Scratch&, const MatrixView&, const MatrixView&, int64_t, int64_t, int64_t,
                            int64_t*);
}  // namespace ark::targets::host
