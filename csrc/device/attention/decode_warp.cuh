// What one warp of kAttentionDecode does with up to 16 (head size 64) or 8 (larger) keys, all of it on the tensor cores
// and in registers: no probability goes through memory.
//
// Queries are the rows of mma.m16n8k16. Raw rows of a page lie one below the other, a head size apart, so that eight
// rows read at the same place would meet in the same banks (of 64 columns and their multiples all of them); both
// products read rows at different places. Columns are taken 64 at a time, eight pieces of 16 bytes; the last of them
// may be fewer, and pieces that there are not count as zeros in the scores.
//
// Heads of over 128 columns: queries and sums of all of them would be more registers than a lane has. Two warps look at
// the same keys. Both work out all scores, and each adds up the values of its half of the columns, its slice.
//
// Scores (columns = keys): a lane reads the 16-byte pieces t and t + 4 (t = lane % 4) of its key, odd keys in the other
// order. Up to four queries: the other rows of the product hold the queries again, rows 8 to 15 with the pieces
// swapped, for the odd keys; with more queries the pieces of odd keys are swapped in registers.
//
// Values (k = keys, columns = 8 dimensions, one "piece"): the rows of a fragment come from different pieces, keys 2 t
// and 2 t + 1 from piece (t + c) % 8 of fragment c (of fewer than eight, modulo their number). So a product of fragment
// c adds up four pieces that must be kept apart. Up to four queries: row 4 t + i of the probabilities holds query i
// with the keys of lane t alone, and row 4 t + i of the result is piece (t + c) % 8 of query i. With more queries there
// are four products, one per t.
#pragma once
#include "device/attention/decode_keys.cuh"

namespace ark::device {

template <MmaType kType>
ARK_DEVICE u32 pack_halves(float low, float high) {
  return kType == MmaType::kBF16 ? floats_to_bf16x2(low, high) : floats_to_f16x2(low, high);
}

/// kRows: query rows, padded to 4 or 16.
template <MmaType kType, int kDim, int kRows>
struct DecodeWarp {
  static constexpr bool kFew = kRows == 4;
  static constexpr int kSlices = kDim > 128 ? 2 : 1;         // of columns, a warp each
  static constexpr int kKeyWarps = 4 / kSlices;              // of a group, with keys of their own
  static constexpr int kPerPage = positions_per_page(kDim);  // positions per page
  static constexpr int kPerWarp = kPerPage / kKeyWarps;      // positions of one warp: 16 or 8
  static constexpr int kBlocks = kPerWarp / 8;               // mma column blocks
  static constexpr int kPieces = kDim / 8;                   // of 16 bytes per row
  static constexpr int kOwnPieces = kPieces / kSlices;       // of a slice
  static constexpr int kSteps = (kDim + 63) / 64;            // of the scores, 64 columns each
  static constexpr int kHalves = kFew ? 1 : 2;               // rows of queries that a lane holds
  static constexpr int kWords = 2 * kHalves;                 // of queries per step of 16 dimensions
  static_assert(kDim % 16 == 0 && kPerPage * kDim * 4 <= kPageBytes);

  u32 q[kSteps * 4][kWords];
  float m[kHalves], l[kHalves];  // base 2; l: of this lane's keys
  float acc[kOwnPieces][4];      // of fragment c (few queries) or piece

  using Scores = float[kHalves][kBlocks][2];  // of this lane's row (h) and keys 8 b + 2 t + e

  static ARK_DEVICE int lane() { return thread_index() & 31; }
  /// Of a warp of consumers: which keys of a page it looks at, and its slice.
  static ARK_DEVICE int key_warp(int warp) { return (warp & 3) >> (kSlices - 1); }
  static ARK_DEVICE int slice(int warp) { return warp & (kSlices - 1); }
  /// How many pieces there are from piece `first` of a slice on, of eight.
  static ARK_DEVICE constexpr int pieces_from(int first) { return kOwnPieces - first < 8 ? kOwnPieces - first : 8; }
  template <int kCount>
  static ARK_DEVICE int wrapped(int piece) {
    if constexpr (kCount == 8) return piece & 7;
    return static_cast<int>(static_cast<u32>(piece) % static_cast<u32>(kCount));
  }
  static ARK_DEVICE bool has_piece(int piece) { return kPieces % 8 == 0 || piece < kPieces; }
  /// This lane's query row h.
  static ARK_DEVICE int row(int h) { return kFew ? lane() >> 2 & 3 : (lane() >> 2) + 8 * h; }
  /// This lane's key, of its warp's.
  static ARK_DEVICE int key(int b, int e) { return b * 8 + (lane() & 3) * 2 + e; }

  ARK_DEVICE void start() {
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      m[h] = -op::infinity();
      l[h] = 0;
    }
#pragma unroll
    for (int c = 0; c < kOwnPieces; ++c)
#pragma unroll
      for (int e = 0; e < 4; ++e) acc[c][e] = 0;
  }

  /// from[h]: piece t of the lane's query row, or null.
  template <class S>
  ARK_DEVICE void load_queries(const S* const (&from)[kHalves]) {
#pragma unroll
    for (int h = 0; h < kHalves; ++h)
#pragma unroll
      for (int piece = 0; piece < kSteps * 2; ++piece) {
        Raw<16> raw{};
        if (from[h] != nullptr && has_piece(piece * 4 + (lane() & 3))) raw = load_global<16>(from[h] + piece * 32);
#pragma unroll
        for (int i = 0; i < 4; ++i) q[piece / 2 * 4 + i][piece % 2 * kHalves + h] = raw.w[i];
      }
  }

  /// s = q * keys; `keys`: the warp's first row. Rows of no key give scores of no meaning.
  ARK_DEVICE void scores(const unsigned char* keys, Scores& s) const {
    const int t = lane() & 3, odd = lane() >> 2 & 1;
    const unsigned char* at = keys + (lane() >> 2) * kDim * 2 + (t + 4 * odd) * 16;
    const int other = odd ? -64 : 64;
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      float c[4] = {0, 0, 0, 0};
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        const unsigned char* piece = at + b * 8 * kDim * 2 + step * 128;
        Raw<16> first{}, second{};
        if (has_piece(step * 8 + t + 4 * odd)) first = *reinterpret_cast<const Raw<16>*>(piece);
        if (has_piece(step * 8 + t + 4 - 4 * odd)) second = *reinterpret_cast<const Raw<16>*>(piece + other);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const u32(&x)[kWords] = q[step * 4 + i];
          if constexpr (kFew) {
            const u32 a[4] = {x[0], x[1], x[1], x[0]};
            mma_16x8x16<kType>(c, a, first.w[i], second.w[i]);
          } else {
            mma_16x8x16<kType>(c, x, odd ? second.w[i] : first.w[i], odd ? first.w[i] : second.w[i]);
          }
        }
      }
      if constexpr (kFew) {
        s[0][b][0] = c[0];
        s[0][b][1] = c[3];
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e) s[e >> 1][b][e & 1] = c[e];
      }
    }
  }

  /// s (base 2, -infinity: not seen) becomes probabilities against the new maximum; what was added up is rescaled.
  ARK_DEVICE void softmax(Scores& s) {
    float rescale[kHalves];
    bool changed = false;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      float top = m[h];
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) top = fmaxf(top, fmaxf(s[h][b][0], s[h][b][1]));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
      top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
      const float reference = top == -op::infinity() ? 0.0f : top;
      rescale[h] = exp2_approx(m[h] - reference);
      changed = changed || (top != m[h] && m[h] != -op::infinity());
      m[h] = top;
      float sum = 0;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b)
#pragma unroll
        for (int e = 0; e < 2; ++e) {
          s[h][b][e] = exp2_approx(s[h][b][e] - reference);
          sum += s[h][b][e];
        }
      l[h] = l[h] * rescale[h] + sum;
    }
    if (__any_sync(~0u, changed)) {
#pragma unroll
      for (int c = 0; c < kOwnPieces; ++c)
#pragma unroll
        for (int e = 0; e < 4; ++e) acc[c][e] *= rescale[kFew ? 0 : e >> 1];
    }
  }

  /// acc += p * values, those of the warp's slice; rows from `count` on hold whatever, also no numbers.
  ARK_DEVICE void add_values(const unsigned char* values, int count, const Scores& p) {
    const int t = lane() & 3, matrix = lane() >> 3, row_of_matrix = lane() & 7;
    u32 keep[kBlocks], a[4] = {};
#pragma unroll
    for (int b = 0; b < kBlocks; ++b) {
      keep[b] = (key(b, 0) < count ? 0xffffu : 0) | (key(b, 1) < count ? 0xffff0000u : 0);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const u32 pair = pack_halves<kType>(p[h % kHalves][b][0], p[h % kHalves][b][1]);
        a[b * 2 + h] = !kFew || t == 2 * h + (lane() >> 4) ? pair : 0;
      }
    }
    constexpr int kAtOnce = 4 / kBlocks;  // fragments per load
    const int block = kBlocks == 2 ? matrix & 1 : 0, ahead = kBlocks == 2 ? matrix >> 1 : matrix;
    u32 from = shared_address(values) + (block * 8 + row_of_matrix) * kDim * 2;
    if constexpr (kSlices > 1) from += slice(thread_index() >> 5) * kOwnPieces * 16;
    const int piece = (row_of_matrix >> 1) + ahead;
    unrolled<(kOwnPieces + kAtOnce - 1) / kAtOnce>([&](auto load) __attribute__((always_inline)) {
      constexpr int kFirst = load.value * kAtOnce, kEight = kFirst / 8 * 8, kCount = pieces_from(kEight);
      constexpr int kHere = kAtOnce < kOwnPieces - kFirst ? kAtOnce : kOwnPieces - kFirst;
      u32 v[4];
      ldmatrix_x4_transposed(v, from + kEight * 16 + wrapped<kCount>(piece + kFirst - kEight) * 16);
#pragma unroll
      for (int i = 0; i < 4; ++i) v[i] &= keep[i % kBlocks];
      unrolled<kHere>([&](auto i) __attribute__((always_inline)) {
        constexpr int c = kFirst + i.value;
        const u32 low = v[i.value * kBlocks], high = kBlocks == 2 ? v[i.value * kBlocks + kBlocks - 1] : 0;
        if constexpr (kFew) {
          mma_16x8x16<kType>(acc[c], a, low, high);
        } else {
          unrolled<4>([&](auto k) __attribute__((always_inline)) {
            u32 own[4];
#pragma unroll
            for (int w = 0; w < 4; ++w) own[w] = t == k.value ? a[w] : 0;
            mma_16x8x16<kType>(acc[kEight + (c - kEight + k.value) % kCount], own, low, high);
          });
        }
      });
    });
  }

  // ---- the warps' results meet in shared memory, 64 dimensions of eight lines at a time
  static constexpr int kRounds = kHalves * ((kOwnPieces + 7) / 8);
  static constexpr int kLine = 72;  // floats: 64 and a gap, so that the lines of a warp lie in different banks
  /// Lines of one query row: few queries have two, of different keys.
  static constexpr int kLines = kFew ? 2 : 1;
  static constexpr int kLineRows = 8 / kLines;

  /// This lane's elements of round kRound, to `lines` [8][kLine] of the warp.
  template <int kRound>
  ARK_DEVICE void store(float* lines) const {
    constexpr int h = kFew ? 0 : kRound % 2, kFirst = (kFew ? kRound : kRound / 2) * 8, kCount = pieces_from(kFirst);
    const int t = lane() & 3, upper = kFew ? lane() >> 4 : 0;
    float* to = lines + (lane() >> 2) * kLine + t * 2 + upper * 8;  // of the first piece
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      float2 v;
      if constexpr (kFew) {  // rows 8 to 15 are two pieces on
        const int before = kFirst + (i + 2 * kCount - 2) % kCount;
        v.x = acc[kFirst + i][0] + acc[before][2];
        v.y = acc[kFirst + i][1] + acc[before][3];
      } else {
        v = float2{acc[kFirst + i][2 * h], acc[kFirst + i][2 * h + 1]};
      }
      const int piece = i + 1 < kCount || upper == 0 ? i : i - kCount;  // piece i + upper, around
      *reinterpret_cast<float2*>(to + piece * 8) = v;
    }
  }
  /// Query row and dimension in its slice of element e < kLineRows * 64 of a round.
  static ARK_DEVICE int row_of(int round, u32 e) { return (kFew ? 0 : round % 2 * 8) + e / 64; }
  static ARK_DEVICE int dim_of(int round, u32 e) { return (kFew ? round : round / 2) * 64 + e % 64; }
};

}  // namespace ark::device
