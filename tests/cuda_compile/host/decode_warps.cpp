// Decode attention's warps on the host (device/attention/decode_warp.cuh), each of 32 threads that do together what a
// warp does: queries of every head size against pages of keys, the last not full, as far as the sums in shared memory.
// What lies beside the rows of a page, and in rows of no key, is no number.
#include <bit>
#include <cstdio>
#include <limits>
#include <random>

#define ARK_HOST_THREADS 256
#define __device__
#define __forceinline__ inline
#include "device/abi/roles.h"
#include "device/program/support.cuh"
// of this folder, before what is written for the device

namespace {

using ark::device::u32;

/// What the lanes of a warp tell each other: up to six words.
struct Lanes {
  Meeting barrier{32};
  u32 said[32][6];
};
Lanes* lanes_of_warps;
u32 own_thread() { return 128 + static_cast<u32>(threads.own()); }

template <class F>
auto exchange(std::initializer_list<u32> mine, const F& f) {
  Lanes& lanes = lanes_of_warps[threads.own() / 32];
  std::copy(mine.begin(), mine.end(), lanes.said[own_thread() % 32]);
  lanes.barrier.arrive_and_wait();
  const auto result = f(lanes.said);
  lanes.barrier.arrive_and_wait();
  return result;
}
float __shfl_xor_sync(unsigned, float value, u32 mask) {
  return exchange({std::bit_cast<u32>(value)},
                  [&](const auto& said) { return std::bit_cast<float>(said[own_thread() % 32 ^ mask][0]); });
}
bool __any_sync(unsigned, bool vote) {
  return exchange({vote}, [](const auto& said) {
    return std::any_of(std::begin(said), std::end(said), [](const u32(&words)[6]) { return words[0] != 0; });
  });
}
struct float2 {
  float x, y;
};

}  // namespace

namespace ark::device {

constexpr int kPageBytes = 16384;
u32 thread_index() { return own_thread(); }
int small_divide(int a, int b) { return a / b; }
float exp2_approx(float x) { return std::exp2(x); }
namespace op {
float infinity() { return std::numeric_limits<float>::infinity(); }
}  // namespace op

template <int kBytes>
struct Raw {
  u32 w[kBytes / 4];
};
template <int kBytes>
Raw<kBytes> load_global(const void* p) {
  Raw<kBytes> raw{};
  if (memory.may_touch(p, kBytes, kBytes)) std::memcpy(&raw, p, kBytes);
  return raw;
}
u32 floats_to_bf16x2(float low, float high) {
  return narrow<bf16>(low).bits | static_cast<u32>(narrow<bf16>(high).bits) << 16;
}
u32 floats_to_f16x2(float, float);  // not asked for

alignas(16) unsigned char page[kPageBytes];
u32 shared_address(const void* p) { return static_cast<u32>(static_cast<const unsigned char*>(p) - page); }

/// Matrix m has its rows from the lanes 8 m to 8 m + 7; a lane gets two elements of a column.
void ldmatrix_x4_transposed(u32 (&words)[4], u32 address) {
  exchange({address}, [&](const auto& said) {
    const u32 lane = own_thread() % 32;
    for (u32 m = 0; m < 4; ++m) {
      unsigned short pair[2];
      for (u32 e = 0; e < 2; ++e) {
        const u32 row = said[m * 8 + lane % 4 * 2 + e][0];
        if (memory.may_touch(page + row, 16, 16)) std::memcpy(&pair[e], page + row + lane / 4 * 2, 2);
      }
      words[m] = pair[0] | static_cast<u32>(pair[1]) << 16;
    }
    return 0;
  });
}

enum class MmaType { kBF16, kF16 };
template <MmaType kType>
void mma_16x8x16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  exchange({a[0], a[1], a[2], a[3], b0, b1}, [&](const auto& said) {
    const u32 lane = own_thread() % 32;
    const auto half = [](u32 word, u32 which) { return widen(bf16{static_cast<unsigned short>(word >> 16 * which)}); };
    for (u32 e = 0; e < 4; ++e)
      for (u32 k = 0; k < 16; ++k) {  // a[h + 2 (k / 8)] of the lanes of the row, b[k / 8] of those of the column
        const u32(&row)[6] = said[lane / 4 * 4 + k % 8 / 2];
        const u32(&column)[6] = said[(lane % 4 * 2 + e % 2) * 4 + k % 8 / 2];
        c[e] += half(row[e / 2 + k / 8 * 2], k % 2) * half(column[4 + k / 8], k % 2);
      }
    return 0;
  });
}

}  // namespace ark::device

#include "device/attention/decode_warp.cuh"

using namespace ark::device;

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
std::mt19937 engine(3);
int failures = 0, cases = 0;

bf16 random_element() { return narrow<bf16>(std::normal_distribution<float>()(engine)); }

void fail(int dim, int rows, const char* what, double got, double expected) {
  if (++failures <= 20) std::printf("heads of %d, %d rows: %s: got %g, expected %g\n", dim, rows, what, got, expected);
}

/// `rows` query rows, `keys` keys: as many pages as that takes, of which this warp's (or pair's) part alone is used.
template <int kDim, int kRows>
struct Case {
  using Warp = DecodeWarp<MmaType::kBF16, kDim, kRows>;
  static constexpr int kMost = 5 * Warp::kPerWarp, kSlices = Warp::kSlices;
  int rows, keys;
  alignas(16) bf16 q[kRows][kDim], k[kMost][kDim], v[kMost][kDim];
  float lines[kSlices][Warp::kRounds][8 * Warp::kLine];
  float m[kSlices][16], l[kSlices][16];

  void run(int rows_now, int keys_now) {
    rows = rows_now, keys = keys_now;
    for (auto* matrix : {&q[0], &k[0], &v[0]})
      for (int i = 0; i < (matrix == &q[0] ? kRows : kMost); ++i)
        for (bf16& x : matrix[i]) x = random_element();
    memory.ranges = {{reinterpret_cast<u64>(q), reinterpret_cast<u64>(q + rows)},
                     {reinterpret_cast<u64>(page), reinterpret_cast<u64>(page) + kPageBytes}};
    memory.fine = true;
    Meeting barrier(32 * kSlices);
    Lanes lanes[kSlices];
    lanes_of_warps = lanes;
    threads.run(32 * kSlices, [&](int t) { walk(barrier, static_cast<u32>(t / 32)); });
    ++cases;
    if (!memory.fine) fail(kDim, rows, "reads beside the rows", 1, 0);
    compare();
  }

  void walk(Meeting& barrier, u32 slice) {
    Warp warp;
    const bf16* from[Warp::kHalves];
    for (int h = 0; h < Warp::kHalves; ++h)
      from[h] = Warp::row(h) < rows ? q[Warp::row(h)] + Warp::lane() % 4 * 8 : nullptr;
    warp.start();
    warp.load_queries(from);
    for (int first = 0; first < keys; first += Warp::kPerWarp) {
      const int count = std::min(keys - first, Warp::kPerWarp);
      if (own_thread() == 128) {
        std::memset(page, 255, kPageBytes);  // no numbers
        std::memcpy(page, k[first], static_cast<size_t>(count) * kDim * 2);
        std::memcpy(page + kPageBytes / 2, v[first], static_cast<size_t>(count) * kDim * 2);
      }
      barrier.arrive_and_wait();
      typename Warp::Scores s;
      warp.scores(page, s);
      for (int h = 0; h < Warp::kHalves; ++h)
        for (int b = 0; b < Warp::kBlocks; ++b)
          for (int e = 0; e < 2; ++e) s[h][b][e] = Warp::key(b, e) < count ? s[h][b][e] * scale() : -op::infinity();
      warp.softmax(s);
      warp.add_values(page + kPageBytes / 2, count, s);
      barrier.arrive_and_wait();
    }
    for (int h = 0; h < Warp::kHalves; ++h) {
      float sum = warp.l[h];
      sum += __shfl_xor_sync(~0u, sum, 1);
      sum += __shfl_xor_sync(~0u, sum, 2);
      if (Warp::lane() % 4 == 0) m[slice][Warp::row(h)] = warp.m[h], l[slice][Warp::row(h)] = sum;
    }
    unrolled<Warp::kRounds>([&](auto round) { warp.template store<round.value>(lines[slice][round.value]); });
  }
  static float scale() { return 1.4426950408889634f / std::sqrt(static_cast<float>(kDim)); }

  /// As decode.cuh puts them together.
  void compare() const {
    bool seen[kRows][kDim] = {};
    for (int slice = 0; slice < kSlices; ++slice)
      for (int round = 0; round < Warp::kRounds; ++round)
        for (int e = 0; e < Warp::kLineRows * 64; ++e) {
          const int r = Warp::row_of(round, e), own = Warp::dim_of(round, e), d = own + slice * Warp::kOwnPieces * 8;
          if (r >= rows || own >= Warp::kOwnPieces * 8) continue;
          const float* at = lines[slice][round] + e / 64 * Warp::kLine + e % 64;
          compare_element(r, d, (at[0] + (Warp::kLines == 2 ? at[4 * Warp::kLine] : 0)) / l[slice][r]);
          if (m[slice][r] != m[0][r] || l[slice][r] != l[0][r]) fail(kDim, rows, "a slice's sum", l[slice][r], l[0][r]);
          seen[r][d] = true;
        }
    for (int r = 0; r < rows; ++r)
      for (int d = 0; d < kDim; ++d)
        if (!seen[r][d]) fail(kDim, rows, "columns of the result", d, kDim);
  }
  /// Weights are rounded to bf16.
  void compare_element(int r, int d, double got) const {
    double weights[kMost], top = -kInfinity, sum = 0, wanted = 0, size = 0;
    for (int key = 0; key < keys; ++key) {
      double score = 0;
      for (int i = 0; i < kDim; ++i) score += double{widen(q[r][i])} * widen(k[key][i]);
      top = std::max(top, weights[key] = score / std::sqrt(double{kDim}));
    }
    for (int key = 0; key < keys; ++key) sum += weights[key] = std::exp(weights[key] - top);
    for (int key = 0; key < keys; ++key) {
      wanted += weights[key] / sum * widen(v[key][d]);
      size += weights[key] / sum * std::fabs(widen(v[key][d]));
    }
    if (!(std::fabs(got - wanted) <= size / 256 + 1e-5)) fail(kDim, rows, "a value", got, wanted);
  }
};

template <int kDim>
void check() {
  static Case<kDim, 4> few;
  static Case<kDim, 16> many;
  few.run(4, few.kMost - 3);
  few.run(1, 1);
  many.run(16, many.kMost - 5);
  many.run(7, many.kMost / 2);
}

}  // namespace

int main() {
  check<64>();
  check<80>();
  check<96>();
  check<112>();
  check<128>();
  check<144>();
  check<160>();
  check<192>();
  check<208>();
  check<256>();
  std::printf("decode_warps: %d cases, %d failures\n", cases, failures);
  return failures != 0;
}
