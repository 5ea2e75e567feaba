// What the tensor-core attention kinds share: pages that stay for a whole tile, visibility, fragments.
//
// Pages of 16 KB hold two blocks of 64 lines of 128 bytes (boxes of the tensor maps, 128-byte swizzle), in one of two
// ways:
//   tall: 128 rows x 64 columns of the head (one or two pages for 128 rows);
//   wide: 64 rows x 128 columns, one block per 64 columns; heads of up to 64 columns: the same as tall.
// Heads of other sizes than 64 and 128 are computed as the next larger of them: the tensor maps fill with zeros, and
// only columns that exist are written.
#pragma once
#include "device/abi/variants.h"
#include "device/loop/loop.cuh"
#include "device/loop/page_walk.cuh"
#include "device/loop/tensor_map.cuh"
#include "device/program/support.cuh"

namespace ark::device {

inline constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.6931471805599453f;
inline constexpr u32 kBlockBytes = kPageBytes / 2;  // 64 lines

/// Pages of 64 columns of a head: 1 or 2.
ARK_DEVICE int head_pages(const abi::AttentionParams& p) { return p.head_dim > 64 ? 2 : 1; }

ARK_DEVICE float negative_infinity() { return __int_as_float(0xff800000); }

/// 1 / x, rounded as the division is, for 2^-126 <= |x| < 2^126; outside of it without its special cases.
ARK_DEVICE float ordinary_inverse(float x) {
  const float y = reciprocal_approx(x);
  return fmaf(y, -fmaf(x, y, -1.0f), y);
}

/// A tile's page sequence: `held` pages that stay in their slots until the tile's end, then `stream` pages. The ring is
/// in order, so whenever the sequence comes to a held slot again it contains an empty page: the loader copies nothing,
/// the data stays.
struct TilePages {
  int first_slot, held;
  u32 total;

  ARK_DEVICE TilePages(int slot, int held_pages, int stream_pages) : first_slot(slot), held(held_pages) {
    const u32 rounds =
        stream_pages > 0 ? static_cast<u32>(stream_pages - 1) / static_cast<u32>(kPages - held_pages) : 0;
    total = held_pages + stream_pages + held_pages * rounds;
  }
  ARK_DEVICE bool is_held(int slot) const {
    const int d = slot - first_slot;
    return (d < 0 ? d + kPages : d) < held;
  }
};

/// The consumers' walk over a tile's pages.
struct PageCursor {
  Consumer& consumer;
  TilePages pages;
  u32 begin, next;

  ARK_DEVICE PageCursor(Consumer& c, int held, int stream)
      : consumer(c), pages(c.page % kPages, held, stream), begin(c.page), next(c.page) {
    pass_held();
  }
  ARK_DEVICE u32 end() const { return begin + pages.total; }
  ARK_DEVICE u32 address(u32 page) const {
    return shared_address(consumer.worker.shared.ring) + page % kPages * kPageBytes;
  }
  ARK_DEVICE u32 held_address(int i) const { return address(begin + i); }

  /// Number of the next streamed page, whose data has landed.
  ARK_DEVICE u32 take() {
    if ((next - begin) % kPages == 0) pass_held();
    consumer.wait_page(next);
    return next++;
  }
  /// After the tile's last read: frees the held pages, where the walk passed them last.
  ARK_DEVICE void finish() {
    const u32 last = begin + (pages.total - 1) / kPages * kPages;
    for (int i = 0; i < pages.held; ++i) consumer.release_page(last + i);
    consumer.advance(pages.total);
  }

 private:
  /// A held slot's page is given back at once when the tile will come to it again: that page is empty.
  ARK_DEVICE void pass_held() {
    for (int i = 0; i < pages.held; ++i, ++next) {
      consumer.wait_page(next);
      if (next + kPages < end()) consumer.release_page(next);
    }
  }
};

/// The dependent loader's walk over a tile's pages: fill(i, shared, barrier), called by one lane, issues the copies of
/// held page i, then of streamed page i - held; it returns false when nothing is to be copied.
template <class Fill>
ARK_DEVICE void load_tile_pages(Loader& loader, const TilePages& pages, Fill fill) {
  const Elected one = elect_lane();
  if (one.chosen) {
    PageWalk walk(loader);
    int real = 0;
    for (u32 i = 0; i < pages.total; ++i) {
      const bool empty = i >= static_cast<u32>(pages.held) && pages.is_held(walk.slot);
      const u32 shared = walk.acquire();
      if (!loader.ok) break;
      if (empty || !fill(real, shared, walk.barrier())) mbarrier_arrive(walk.barrier());
      if (!empty) ++real;
      walk.advance();
      walk.publish();
    }
    walk.finish();
  }
  PageWalk::rejoin(loader, one.lane);
}

/// 128 rows from `row` of 64 columns from `column` of a head.
ARK_DEVICE void load_tall_page(u32 shared, const void* map, u32 barrier, int column, int row, int head, int batch) {
  mbarrier_arrive_expect(barrier, kPageBytes);
  tensor_load(shared, map, barrier, column, row, head, batch);
  tensor_load(shared + kBlockBytes, map, barrier, column, row + 64, head, batch);
}
/// 64 rows of 128 columns.
ARK_DEVICE void load_wide_page(u32 shared, const void* map, u32 barrier, int row, int head, int batch) {
  mbarrier_arrive_expect(barrier, kPageBytes);
  tensor_load(shared, map, barrier, 0, row, head, batch);
  tensor_load(shared + kBlockBytes, map, barrier, 64, row, head, batch);
}

/// The two consumer warpgroups give products to the tensor cores in turn: while one computes weights, the other's
/// products run. Both take equally many turns; group 0 begins.
struct Turns {
  int group;

  ARK_DEVICE explicit Turns(int own_group) : group(own_group) {
    if (group == 1) pass();
  }
  ARK_DEVICE void wait() const { named_barrier_sync(kTurnBarrier + group, kConsumerThreads); }
  ARK_DEVICE void pass() const { named_barrier_arrive(kTurnBarrier + 1 - group, kConsumerThreads); }
  /// After the last turn.
  ARK_DEVICE void finish() const {
    if (group == 0) pass();
  }
};

/// Descriptor of a k-major operand (rows of 64 k) and of an mn-major one (lines of 64 rows; blocks of 64 rows one after
/// the other).
ARK_DEVICE u64 k_major_descriptor(u32 shared) { return matrix_descriptor(shared, 16, 1024); }
ARK_DEVICE u64 mn_major_descriptor(u32 shared) { return matrix_descriptor(shared, kBlockBytes, 1024); }
inline constexpr u32 kKMajorStep = 32 >> 4, kMnMajorStep = 16 * 128 >> 4;  // 16 k further

/// Accumulators of a 64 x 16 * n block as the A fragments of n wgmmas of k 16.
template <bool kHalf, int kCount>
ARK_DEVICE void to_fragments(const float (&s)[kCount], u32 (&fragment)[kCount / 8][4]) {
#pragma unroll
  for (int i = 0; i < kCount / 8; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) fragment[i][j] = pack_two<kHalf>(s[i * 8 + j * 2], s[i * 8 + j * 2 + 1]);
}

/// The way back.
template <bool kHalf, int kCount>
ARK_DEVICE void from_fragments(const u32 (&fragment)[kCount / 8][4], float (&s)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount / 2; ++i) {
    const u32 two = fragment[i / 4][i % 4];
    if constexpr (kHalf) {
      s[i * 2] = widen(f16{static_cast<unsigned short>(two)});
      s[i * 2 + 1] = widen(f16{static_cast<unsigned short>(two >> 16)});
    } else {
      s[i * 2] = __uint_as_float(two << 16);
      s[i * 2 + 1] = __uint_as_float(two & 0xffff0000u);
    }
  }
}

/// Of a block of queries (kMaskRange): keys [begin, end) are all that any of them sees; the mask changes no score of
/// keys [neutral_begin, neutral_end).
struct KeyRange {
  int begin, end, neutral_begin, neutral_end;
  /// Whether the mask has to be read for keys [key, key + count).
  ARK_DEVICE bool masked(const abi::AttentionParams& p, int key, int count) const {
    return p.mask_kind != abi::MaskKind::kNone && (key < neutral_begin || min(key + count, p.keys) > neutral_end);
  }
};
/// The same in blocks of 128 keys, two registers: a kernel that also multiplies matrices has no more.
struct BlockRange {
  struct Blocks {
    u32 begin_end;  // 16 bits each
    ARK_DEVICE Blocks(int begin, int end) : begin_end(static_cast<u32>(begin) | static_cast<u32>(end) << 16) {}
    ARK_DEVICE bool contains(int block) const {
      return block >= static_cast<int>(begin_end & 0xffff) && block < static_cast<int>(begin_end >> 16);
    }
  };
  Blocks seen, neutral;
  ARK_DEVICE BlockRange(const abi::AttentionParams& p, const KeyRange& keys)
      : seen(keys.begin >> 7, keys.end + 127 >> 7),
        neutral(keys.neutral_begin + 127 >> 7, (keys.neutral_end == p.keys ? p.keys + 127 : keys.neutral_end) >> 7) {}
};
/// One past the last key that queries up to `last_row` see by sizes and causality alone.
ARK_DEVICE int causal_end(const abi::AttentionParams& p, int last_row) {
  return p.causal ? max(0, min(p.keys, last_row + p.causal_offset + 1)) : p.keys;
}
/// Of kMaskRange's table (operand `number`), or everything.
ARK_DEVICE KeyRange mask_range(const Task& task, int number, int batch, int head, int query_block) {
  if (!task.has(number)) return {0, task.record->params.attention.keys, 0, 0};
  const abi::Operand& o = task.operand(number);
  // the four values lie side by side, at a multiple of their bytes
  const Raw<16> raw = load_global<16>(task.address<i32>(number) + element_offset(o, {batch, head, query_block}));
  return {static_cast<int>(raw.w[0]), static_cast<int>(raw.w[1]), static_cast<int>(raw.w[2]),
          static_cast<int>(raw.w[3])};
}

/// Whether scores are brought to base-2 units as soon as they are computed (else the softmax does it on the fly).
ARK_DEVICE bool scores_scaled(const abi::AttentionParams& p, bool masked) { return masked || !(p.scale > 0.0f); }

/// Masks a warp's 16 rows of a block of scores in wgmma's accumulator layout: this thread's element i lies in row
/// row + 8 * (i >> 1 & 1) and column column + 8 * (i >> 2) + (i & 1). kQueryRows: rows are queries and columns keys,
/// else the other way round. What is not visible becomes -inf, the rest is in base-2 units if scores_scaled.
template <bool kQueryRows, int kCount>
struct ScoreMask {
  static constexpr int kMaskColumns = 32,
                       kPitch = (kMaskColumns + 2) * 4;  // of the staged part of the mask; bytes per row
  static constexpr u32 kStaging = 4096;                  // its place in scratch
  static_assert(kStaging + kConsumerWarps * 16 * kPitch <= kScratchBytes);

  const Task& task;
  const abi::AttentionParams& p;
  int row, column;
  bool masked;   // by a mask too
  int bound[2];  // query rows: columns below it are visible by sizes and causality; key rows: columns from it on

  ARK_DEVICE ScoreMask(const Task& t, int first_row, int first_column, bool has_mask)
      : task(t), p(t.record->params.attention), row(first_row), column(first_column), masked(has_mask) {
    bound[0] = bound_of(row);
    bound[1] = bound_of(row + 8);
  }
  ARK_DEVICE int bound_of(int r) const {
    if constexpr (kQueryRows) return r < p.queries ? causal_end(p, r) : 0;
    return r >= p.keys ? 0x7fffffff : p.causal ? r - p.causal_offset : 0;
  }
  ARK_DEVICE bool inside(int c, int row_bound) const {
    if constexpr (kQueryRows) return c < row_bound;
    return c >= row_bound && c < p.queries;
  }

  /// `mask`: number of the mask's operand.
  ARK_DEVICE void apply(float (&s)[kCount], int mask, int batch, int head, const Consumer& consumer) const {
    const float factor = scores_scaled(p, masked) ? p.scale * kLog2E : 1.0f;
    if (!masked) {
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        s[i] = inside(column + 8 * (i >> 2) + (i & 1), bound[i >> 1 & 1]) ? s[i] * factor : negative_infinity();
      return;
    }
    const u32 staging = shared_address(consumer.scratch()) + kStaging + consumer.warp() * 16 * kPitch;
    if constexpr (kQueryRows) {
      const abi::Operand& o = task.operand(mask);
      const unsigned char* origin =
          reinterpret_cast<const unsigned char*>(o.offset) + batch * o.stride[0] + head * o.stride[1];
      if (element_bytes(o.dtype) == 1 && o.stride[3] == 1 && (o.stride[2] & 3) == 0 && (p.keys & 3) == 0 &&
          (reinterpret_cast<unsigned long long>(origin) & 3) == 0)
        return apply_bytes(s, origin, static_cast<int>(o.stride[2]), staging, factor, consumer.lane());
    }
    const u32 mine = staging + (consumer.lane() >> 2) * kPitch + (consumer.lane() & 3) * 8;
#pragma unroll
    for (int part = 0; part < kCount / 16; ++part) {
      stage(staging, task.operand(mask), batch, head, part * kMaskColumns, consumer.lane());
      __syncwarp();
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        float m[2];
        shared_load_two(m, mine + (j & 1) * 8 * kPitch + (j >> 1) * 32);
        float* two = &s[part * 16 + (j >> 1) * 4 + (j & 1) * 2];
#pragma unroll
        for (int e = 0; e < 2; ++e)  // scores of hidden keys may be anything
          two[e] = m[e] == negative_infinity() ? m[e] : fmaf(two[e], factor, m[e]);
      }
      __syncwarp();
    }
  }

 private:
  /// A mask of bytes that lie side by side: the warp's 16 rows go through shared memory as they are, four bytes a lane,
  /// up to eight loads in flight.
  ARK_DEVICE void apply_bytes(float (&s)[kCount], const unsigned char* origin, int stride, u32 staging, float factor,
                              int lane) const {
    constexpr int kLanes = kCount / 2, kRows = 32 / kLanes, kLoads = 16 / kRows;  // a row's lanes; rows at once
    constexpr int kFlight = kLoads < 8 ? kLoads : 8;
    static_assert(kCount * 2 <= kPitch);
    const int row0 = row - (lane >> 2), column0 = column - (lane & 3) * 2;
    const int key = column0 + lane % kLanes * 4, first = lane / kLanes;
#pragma unroll 1
    for (int i0 = 0; i0 < kLoads; i0 += kFlight) {
      u32 four[kFlight];
#pragma unroll
      for (int i = 0; i < kFlight; ++i) {  // rows that do not exist are read as the last one: nothing is made of them
        const int r = min(row0 + first + (i0 + i) * kRows, p.queries - 1);
        const auto* at = reinterpret_cast<const u32*>(origin + static_cast<i64>(r) * stride + key);
        four[i] = key < p.keys ? load_element(at) : 0;
      }
#pragma unroll
      for (int i = 0; i < kFlight; ++i)
        shared_store_word(staging + (first + (i0 + i) * kRows) * kPitch + lane % kLanes * 4, four[i]);
    }
    __syncwarp();
    const u32 mine = staging + (lane >> 2) * kPitch + (lane & 3) * 2;
#pragma unroll
    for (int j = 0; j < kCount / 2; ++j) {  // pairs of columns, as they lie in s
      const u32 two = shared_load_half(mine + (j & 1) * 8 * kPitch + (j >> 1) * 8);
      const int c = column + (j >> 1) * 8, h = j & 1;
      s[j * 2] = (two & 0xff) != 0 && inside(c, bound[h]) ? s[j * 2] * factor : negative_infinity();
      s[j * 2 + 1] = two >> 8 != 0 && inside(c + 1, bound[h]) ? s[j * 2 + 1] * factor : negative_infinity();
    }
    __syncwarp();
  }

  /// The warp brings 16 rows by 32 columns of the mask into shared memory, in base-2 units, -inf where nothing is
  /// visible: four loads in flight, along the keys (written out per accumulator this was 50 KB of code).
  ARK_DEVICE void stage(u32 staging, const abi::Operand& o, int batch, int head, int column0, int lane) const {
    const int row0 = row - (lane >> 2), first = column - (lane & 3) * 2 + column0;
    const i64 origin = batch * o.stride[0] + head * o.stride[1];
    constexpr int kFlight = 4;
#pragma unroll 1
    for (int i0 = 0; i0 < 16; i0 += kFlight) {
      u32 raw[kFlight];
#pragma unroll
      for (int i = 0; i < kFlight; ++i) {
        const int r = kQueryRows ? i0 + i : lane & 15, c = kQueryRows ? lane : (i0 + i) * 2 + (lane >> 4);
        const i64 query = min(kQueryRows ? row0 + r : first + c, p.queries - 1),
                  key = min(kQueryRows ? first + c : row0 + r, p.keys - 1);
        raw[i] = load_raw(o, origin + query * o.stride[2] + key * o.stride[3]);
      }
#pragma unroll
      for (int i = 0; i < kFlight; ++i) {
        const int r = kQueryRows ? i0 + i : lane & 15, c = kQueryRows ? lane : (i0 + i) * 2 + (lane >> 4);
        const bool there = inside(first + c, bound_of(row0 + r));
        shared_store_float(staging + r * kPitch + c * 4, there ? mask_value(o.dtype, raw[i]) : negative_infinity());
      }
    }
  }
  static ARK_DEVICE u32 load_raw(const abi::Operand& o, i64 offset) {
    const unsigned char* base = reinterpret_cast<const unsigned char*>(o.offset);
    const int bytes = element_bytes(o.dtype);
    if (bytes == 1) return load_element(base + offset);
    if (bytes == 2) return load_element(reinterpret_cast<const unsigned short*>(base) + offset);
    return load_element(reinterpret_cast<const u32*>(base) + offset);
  }
  static ARK_DEVICE float mask_value(int dtype, u32 raw) {
    if (element_bytes(dtype) == 1) return raw != 0 ? 0.0f : negative_infinity();
    const auto half = static_cast<unsigned short>(raw);
    const float x = dtype == kTypeF32 ? __uint_as_float(raw) : dtype == kTypeF16 ? widen(f16{half}) : widen(bf16{half});
    // The lowest finite value, a usual way to mask, stays finite.
    return x == negative_infinity() ? x : fmaxf(x * kLog2E, -3.0e38f);
  }
};

/// Whether a block of scores (queries from query0 on, `keys` keys from key0 on) holds keys that are invisible by sizes
/// or causality. Queries that do not exist need no mask: they are not written, and in the backward kinds their weights
/// are 0.
ARK_DEVICE bool block_has_edge(const abi::AttentionParams& p, int query0, int key0, int keys) {
  return key0 + keys > p.keys || (p.causal && key0 + keys - 1 > query0 + p.causal_offset);
}

/// Rows `row` and row + 8, where they are below `rows`, of a (b, h, rows, d) tensor of the 16-bit type: this thread's
/// columns of a block of accumulators, of which the first `columns` (a multiple of 8) exist, times the row's factor.
template <bool kHalf, int kCount>
ARK_DEVICE void write_rows(const Task& task, int number, int batch, int head, int row, int rows, int column,
                           const float (&value)[kCount], const float (&factor)[2], int columns = kCount * 2) {
  const abi::Operand& o = task.operand(number);
  unsigned short* at = task.address<unsigned short>(number) + element_offset(o, {batch, head, row});
  const i64 further = static_cast<i64>(static_cast<i32>(o.stride[2])) * 8;
  auto two = [&](int h, int j) __attribute__((always_inline)) {
    return pack_two<kHalf>(value[j * 4 + h * 2] * factor[h], value[j * 4 + h * 2 + 1] * factor[h]);
  };
  const bool pairs = o.vector >= 2;
  // The usual way is short: nothing is asked or worked out per column.
  if (__builtin_expect(pairs && columns == kCount * 2, 1)) {
    at += column;
#pragma unroll
    for (int h = 0; h < 2; ++h, at += further) {
      if (row + h * 8 >= rows) return;
#pragma unroll
      for (int j = 0; j < kCount / 4; ++j) store_element(reinterpret_cast<u32*>(at + j * 8), two(h, j));
    }
    return;
  }
  const i64 stride = pairs ? 1 : static_cast<i32>(o.stride[3]);
  at += column * stride;
#pragma unroll
  for (int h = 0; h < 2; ++h, at += further) {
    if (row + h * 8 >= rows) return;
    unsigned short* to = at;
#pragma unroll
    for (int j = 0; j < kCount / 4; ++j, to += 8 * stride) {
      if (j * 8 >= columns) continue;
      const u32 both = two(h, j);
      if (pairs) {
        store_element(reinterpret_cast<u32*>(to), both);
      } else {
        store_element(to, static_cast<unsigned short>(both));
        store_element(to + stride, static_cast<unsigned short>(both >> 16));
      }
    }
  }
}

/// Which heads a kernel's tensor-core attention knows (device/abi/variants.h). Generated code may narrow it with
/// Programs::kAttentionVariants.
template <class Programs>
consteval u32 attention_variants() {
  if constexpr (requires { Programs::kAttentionVariants; })
    return Programs::kAttentionVariants;
  else
    return (1u << abi::kAttentionVariantEnd) - 1;
}
/// Calls f.template operator()<64 or 128, half>() for the record's variant.
template <class Programs, int kVariant = 0, class F>
ARK_DEVICE void with_attention_variant(const abi::AttentionParams& p, F&& f) {
  if constexpr (kVariant < abi::kAttentionVariantEnd) {
    if constexpr ((attention_variants<Programs>() >> kVariant & 1) != 0)
      if (abi::attention_variant(p) == kVariant) {
        f.template operator()<abi::attention_columns(kVariant), abi::is_half_attention(kVariant)>();
        return;
      }
    with_attention_variant<Programs, kVariant + 1>(p, f);
  }
}

}  // namespace ark::device
