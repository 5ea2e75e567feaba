// Panels for the matmul micro-kernel, from any strides. Included once per instruction set (see impl.h).

/// Lines next to each other in memory: one copy per depth. kWidth 0: the width is not known at compile time.
template <DType D, int kWidth>
void pack_lines(typename Storage<D>::Register* __restrict out, int64_t width, const PanelSource& source) {
  const auto* x = static_cast<const typename Storage<D>::Memory*>(source.memory);
  for (int64_t p = 0; p < source.depth; ++p) {
    const int64_t n = kWidth ? kWidth : source.lines;
    for (int64_t i = 0; i < n; ++i)
      out[p * width + i] = Storage<D>::read(x[p * source.depth_stride + i * (kWidth ? 1 : source.line_stride)]);
  }
}

/// Four values of each of four rows, rows to columns.
inline void transpose_four(const float* const rows[4], int64_t at, float* out, int64_t width) {
  using Four = VectorOf<float, 4>::Type;
  Four r[4];
  for (int i = 0; i < 4; ++i) r[i] = *reinterpret_cast<const Four*>(rows[i] + at);
  const Four a = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5), b = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7);
  const Four c = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5), d = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
  const Four columns[4] = {__builtin_shufflevector(a, c, 0, 1, 4, 5), __builtin_shufflevector(a, c, 2, 3, 6, 7),
                           __builtin_shufflevector(b, d, 0, 1, 4, 5), __builtin_shufflevector(b, d, 2, 3, 6, 7)};
  for (int i = 0; i < 4; ++i) *reinterpret_cast<Four*>(out + i * width) = columns[i];
}

/// Depth contiguous in memory, computed in float: four lines at a time, converted a stretch at a time.
template <DType D>
void pack_transposed(float* __restrict out, int64_t width, const PanelSource& source) {
  constexpr int64_t kStretch = 128;
  float converted[4][kStretch];
  const auto* x = static_cast<const typename Storage<D>::Memory*>(source.memory);
  for (int64_t p = 0; p < source.depth; p += kStretch) {
    const int64_t depth = source.depth - p < kStretch ? source.depth - p : kStretch;
    for (int64_t line = 0; line < source.lines; line += 4) {
      const int64_t count = source.lines - line < 4 ? source.lines - line : 4;
      const float* rows[4] = {converted[0], converted[0], converted[0], converted[0]};
      for (int64_t i = 0; i < count; ++i) {
        const auto* row = x + (line + i) * source.line_stride + p;
        if constexpr (D == DType::kF32) {
          rows[i] = row;
        } else {
          for (int64_t q = 0; q < depth; ++q) converted[i][q] = Storage<D>::read(row[q]);
          rows[i] = converted[i];
        }
      }
      float* to = out + p * width + line;
      int64_t q = 0;
      if (count == 4)
        for (; q + 4 <= depth; q += 4) transpose_four(rows, q, to + q * width, width);
      for (; q < depth; ++q)
        for (int64_t i = 0; i < count; ++i) to[q * width + i] = rows[i][q];
    }
  }
}

template <DType D>
void pack_panel(void* panel, int64_t width, const PanelSource& source) {
  using Register = typename Storage<D>::Register;
  auto* out = static_cast<Register*>(panel);
  if (source.lines < width) {
    for (int64_t i = 0; i < source.depth * width; ++i) out[i] = Register(0);
  } else if (source.line_stride == 1 && width == 2 * kLanesOf<Register>) {
    return pack_lines<D, 2 * kLanesOf<Register>>(out, width, source);
  } else if (source.line_stride == 1 && width == ARK_HOST_MR) {
    return pack_lines<D, ARK_HOST_MR>(out, width, source);
  }
  if constexpr (sizeof(Register) == sizeof(float)) {
    if (source.depth_stride == 1) return pack_transposed<D>(out, width, source);
  }
  pack_lines<D, 0>(out, width, source);
}
