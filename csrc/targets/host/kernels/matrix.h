// Products: micro-kernel over packed panels, dot products, softmax of a row. Included once per instruction set (see
// impl.h).

/// A machine vector of T, or what holds as many lanes of another type.
template <class T, int kCount>
struct VectorOf {
  typedef T Type __attribute__((vector_size(kCount * sizeof(T)), aligned(alignof(T)), may_alias));
};
template <class T>
inline constexpr int kLanesOf = ARK_HOST_LANES * 4 / static_cast<int>(sizeof(T));

/// Terms that are added up before they are added to the sums of those before: rounding errors of sums grow with the
/// number of additions in a row.
inline constexpr int64_t kRun = 64;

/// Two vectors wide, kRows high: kRows * 2 accumulators, two of B and one of A in registers.
template <class T, int kRows>
void micro_kernel(int64_t k, const T* a, const T* b, T* c, int64_t ldc) {
  constexpr int kLanes = kLanesOf<T>;
  using Vector = typename VectorOf<T, kLanes>::Type;
  for (int64_t first = 0; first < k; first += kRun) {
    Vector acc[kRows][2] = {};
    for (int64_t p = first; p < k && p < first + kRun; ++p, a += kRows, b += 2 * kLanes) {
      const Vector b0 = *reinterpret_cast<const Vector*>(b), b1 = *reinterpret_cast<const Vector*>(b + kLanes);
#pragma GCC unroll 16
      for (int i = 0; i < kRows; ++i) {
        acc[i][0] += a[i] * b0;
        acc[i][1] += a[i] * b1;
      }
    }
    for (int i = 0; i < kRows; ++i)
      for (int j = 0; j < 2; ++j) *reinterpret_cast<Vector*>(c + i * ldc + j * kLanes) += acc[i][j];
  }
}

/// How the lanes of a vector of T are read from contiguous memory of type B.
template <class T>
struct ReadPlain {
  using Memory = T;
  using Vector = typename VectorOf<T, kLanesOf<T>>::Type;
  static Vector read(const T* p) { return *reinterpret_cast<const Vector*>(p); }
  static T read_one(T x) { return x; }
};
struct ReadHalfWords {
  using Memory = uint16_t;
  using Vector = VectorOf<float, kLanesOf<float>>::Type;
  using Words = VectorOf<uint16_t, kLanesOf<float>>::Type;
  using Bits = VectorOf<uint32_t, kLanesOf<float>>::Type;
  static Bits widen(const uint16_t* p) { return __builtin_convertvector(*reinterpret_cast<const Words*>(p), Bits); }
};
struct ReadBfloat : ReadHalfWords {
  static Vector read(const uint16_t* p) { return bits_as<Vector>(widen(p) << 16); }
  static float read_one(uint16_t x) { return bfloat_to_float(x); }
};
struct ReadHalf : ReadHalfWords {
  using Integers = VectorOf<int, kLanesOf<float>>::Type;
  static Vector read(const uint16_t* p) {
    const Bits h = widen(p), magnitude = h & 0x7fffu;
    Bits bits = (magnitude << 13) + 0x38000000u;
    bits = magnitude >= 0x7c00u ? bits + 0x38000000u : bits;
    const Vector subnormal = __builtin_convertvector(bits_as<Integers>(magnitude), Vector) * 0x1p-24f;
    bits = magnitude < 0x400u ? bits_as<Bits>(subnormal) : bits;
    return bits_as<Vector>(bits | ((h & 0x8000u) << 16));
  }
  static float read_one(uint16_t x) { return half_to_float(x); }
};

/// Four vectors of partial sums, added pairwise, then lane by lane.
template <class T, class Read>
T dot_vectors(const T* a, const typename Read::Memory* b, int64_t n) {
  constexpr int kLanes = kLanesOf<T>;
  using Vector = typename VectorOf<T, kLanes>::Type;
  const auto product = [&](int64_t at) { return *reinterpret_cast<const Vector*>(a + at) * Read::read(b + at); };
  Vector s0{}, s1{}, s2{}, s3{};
  int64_t i = 0;
  for (; i + 4 * kLanes <= n; i += 4 * kLanes) {
    s0 += product(i);
    s1 += product(i + kLanes);
    s2 += product(i + 2 * kLanes);
    s3 += product(i + 3 * kLanes);
  }
  for (; i + kLanes <= n; i += kLanes) s0 += product(i);
  const Vector sum = (s0 + s1) + (s2 + s3);
  T lanes[kLanes];
  __builtin_memcpy(lanes, &sum, sizeof(sum));
  for (int j = 0; i < n; ++i, ++j) lanes[j] += a[i] * Read::read_one(b[i]);
  for (int width = kLanes / 2; width > 0; width /= 2)
    for (int j = 0; j < width; ++j) lanes[j] += lanes[j + width];
  return lanes[0];
}
template <class T>
T dot(const T* a, const T* b, int64_t n) {
  return dot_vectors<T, ReadPlain<T>>(a, b, n);
}
template <class Read>
float dot_from(const float* a, const void* b, int64_t n) {
  return dot_vectors<float, Read>(a, static_cast<const typename Read::Memory*>(b), n);
}
template <>
int64_t dot(const int64_t* a, const int64_t* b, int64_t n) {
  uint64_t total = 0;
  for (int64_t i = 0; i < n; ++i) total += static_cast<uint64_t>(a[i]) * static_cast<uint64_t>(b[i]);
  return static_cast<int64_t>(total);
}

template <class T>
void axpy(T* __restrict y, T x, const T* a, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = OpAdd::apply(y[i], OpMul::apply(x, a[i]));
}

float row_max(const float* a, int64_t n) {
  double best = -infinity<double>();
  Accumulators acc{&best, nullptr};
  extreme_rows<FoldMax, float>(acc, a, 1, n, 0);
  return static_cast<float>(best);
}
float exp_sum(float* a, float shift, int64_t n) {
  for (int64_t i = 0; i < n; ++i) a[i] = math_exp(a[i] - shift);
  return static_cast<float>(sum_block(a, n));
}
