// kAttentionDecode: few queries against a cache. Tile = (batch, kv head, part of the keys); the query rows of a kv head
// (heads in its group times queries, at most 16) share every key and value that is read.
//
// Keys. With fresh_operand, no op before this one writes cache rows below that scalar (the position): they stream
// through the ring ahead of every wait, cut into parts of equal length; the rows from there on (appended in this
// launch) are read directly after the wait, by the last part that is used. Without it, all keys stream through the ring
// after the wait; pages of keys outside the mask's range stay empty. Parts beyond those that are used (cache_parts) do
// nothing at all and are not read; without the scalar all are used, and one that sees no keys leaves m = -infinity,
// l = 0.
//
// Two tiles at once (AttentionParams::tiles_at_once): each warpgroup does one, with barriers in common, since both have
// as many pages; these alternate in the ring. A worker has several tiles where there are many rows, and one by one a
// tile of a short cache is a chain of latencies. All rows of this launch are staged by one warp of each then.
//
// Heads have 64 to 256 columns, a multiple of 16. A page holds the keys and values of 64, 32 (over 64 columns) or 16
// (over 128) positions and belongs to one consumer group; each of its 4 warps takes a quarter of the positions, or two
// of them share a half, with half the columns of the values each (decode_warp.cuh). Softmax is online per warp, in base
// 2; warps, then parts, are combined in a fixed order.
//
// The code runs once a layer and comes out of the L2 each time, beside the weights that stream: what counts is how many
// instructions it is, so there is one copy of the work on a page, for all places that keys come from.
#pragma once
#include "device/attention/decode_loader.cuh"
#include "device/attention/decode_mask.cuh"
#include "device/attention/decode_warp.cuh"

namespace ark::device {

/// One tile, or the tile of each warpgroup.
template <class Programs, MmaType kType, class S, int kDim, int kRows, bool kPaired>
struct DecodeTile {
  using Warp = DecodeWarp<kType, kDim, kRows>;
  using Mask = DecodeMask<Warp, Programs::kDecodeAddedMasks>;
  static constexpr int kPerPage = Warp::kPerPage, kPerWarp = Warp::kPerWarp, kPieces = Warp::kPieces;
  static constexpr int kHalves = Warp::kHalves, kSlices = Warp::kSlices;
  static constexpr int kTiles = kPaired ? 2 : 1, kThreads = kConsumerThreads / kTiles, kWarps = kConsumerWarps / kTiles;
  static constexpr float kLog2E = 1.4426950408889634f;

  // scratch: a page of direct keys and values or the warps' sums [warp][8][kLine] | maxima and sums [warp][16][2] |
  // the rows of this launch, if they are few, of each tile
  static constexpr int kSumBytes = kConsumerWarps * 8 * Warp::kLine * 4, kFreshAt = kSumBytes + 1024;
  static constexpr int kFreshBytes = 4 * kPerWarp * kDim;
  static_assert(!kPaired || kSlices == 1);  // rows of this launch are one warp's, by itself
  static_assert(kPageBytes <= kSumBytes && kFreshAt + kTiles * kFreshBytes <= kScratchBytes);

  Consumer& consumer;
  const Task& task;
  const DecodeParams<Programs> known;
  const abi::AttentionParams& p;
  DecodeKeys keys;
  int kv_head, batch, rows, group;
  bool there;  // else nothing is written
  Warp own;

  ARK_DEVICE DecodeTile(Consumer& c, const Task& t, int tile, bool is_there)
      : consumer(c), task(t), known(t), p(known.p), keys(t, part_of(t, tile)), there(is_there) {
    const int rest = tile_divide(tile, t.record->grid[abi::GridAxis::kPart]);
    batch = tile_divide(rest, t.record->grid[abi::GridAxis::kHead]);
    kv_head = rest - batch * t.record->grid[abi::GridAxis::kHead];
    group = tile_divide(p.heads, p.kv_heads);
    rows = group * known.queries();
  }

  /// Addresses are made before the item's wait; what comes from memory after it is asked for before any of it is used.
  ARK_DEVICE void run(bool waits) {
    const S* query_from[kHalves];
    i64 mask_offset[kHalves];
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const int r = Warp::row(h);
      query_from[h] =
          r < rows ? task.address<S>(DecodeOperand::kQ) + row_offset(DecodeOperand::kQ, r) + (consumer.lane() & 3) * 8
                   : nullptr;
      mask_offset[h] = row_offset(DecodeOperand::kMask, min(r, rows - 1));
    }
    const S* fresh_from = fresh_address(fresh_lane());
    const int pages = static_cast<int>(static_cast<u32>(keys.count() + kPerPage - 1) / kPerPage);
    const bool takes_fresh = consumer.warp() >> (kSlices - 1) == fresh_warp(pages);  // of slices a pair of warps
    own.start();
    if (waits)
      consumer.wait_for_item(task);
    else
      consumer.sync();  // the tile before has been read out of scratch
    consumer.stamp(1);
    own.load_queries(query_from);
    Raw<16> fresh{};
    if (takes_fresh && known.cached()) fresh = load_global<16>(fresh_from);
    const DecodeRange range(task, batch, kv_head, group);
    const DirectKeys direct(known, keys, range);
    consumer.stamp(2);
    walk(pages, range, direct, Mask(task, mask_offset), takes_fresh, fresh);
    consumer.advance(kTiles * pages);
    consumer.mark_loaded();
    consumer.stamp(4);
    finish();
    consumer.stamp(5);
  }

 private:
  static ARK_DEVICE int part_of(const Task& t, int tile) {
    return tile - tile_divide(tile, t.record->grid[abi::GridAxis::kPart]) * t.record->grid[abi::GridAxis::kPart];
  }
  /// Element 0 of a row of queries, outputs or the mask; row = (head of the group, query).
  ARK_DEVICE i64 row_offset(int operand, int r) const {
    const abi::Operand& o = task.operand(operand);
    const int in_group = known.head_of(r), query = r - in_group * known.queries();
    const i64 at = element_offset(o, {batch, kv_head * group + in_group});
    return Programs::kDecodeQueries ? multiply_add_wide(query, static_cast<i32>(o.stride[2]), at) : at;
  }
  ARK_DEVICE const S* cache_row(int operand, int row) const {
    const abi::Operand& o = task.operand(operand);
    return task.address<S>(operand) + element_offset(o, {batch, kv_head, row});
  }

  // ---------------------------------------------------------------- where keys come from

  /// What a warp looks at next: `count` keys (none if <= 0) from key number `first` on.
  struct Step {
    int first, count;
  };
  ARK_DEVICE Step ring_step(int page, const DecodeRange& range) const {
    const int begin = keys.old_begin + page * kPerPage, first = begin + Warp::key_warp(consumer.warp()) * kPerWarp;
    const bool loaded = known.cached() || range.sees(begin, kPerPage);
    return {first, loaded ? min(keys.old_end - first, kPerWarp) : 0};
  }

  /// The warp (of slices: the pair of warps) for the rows of this launch: one that has nothing of the last page, else
  /// one of the other group. Of two tiles at once one of each group.
  ARK_DEVICE int fresh_warp(int pages) const {
    constexpr int kLast = Warp::kKeyWarps - 1;
    if constexpr (kPaired) return consumer.group() * Warp::kKeyWarps + kLast;
    const int last = keys.count() - (pages - 1) * kPerPage, group = consumer.page + pages & 1;
    return (pages > 0 && last <= kLast * kPerWarp ? group ^ 1 : group) * Warp::kKeyWarps + kLast;
  }
  /// Of those who copy them.
  ARK_DEVICE int fresh_lane() const { return consumer.lane() + Warp::slice(consumer.warp()) * 32; }
  /// Which tile of those at once.
  ARK_DEVICE int tile_number() const { return kPaired ? consumer.group() : 0; }
  /// 16 bytes of the rows from the position on: piece i of row after row, keys before values; beyond the visible keys
  /// they are not used.
  ARK_DEVICE const S* fresh_address(u32 i) const {
    const int row = min(keys.position + static_cast<int>(i / (2 * kPieces)), p.keys - 1);
    return cache_row(i / kPieces % 2 == 0 ? DecodeOperand::kK : DecodeOperand::kV, row) + i % kPieces * 8;
  }
  /// `count` of them, from number `begin` (of two tiles at once alone) on.
  ARK_DEVICE void stage_fresh(unsigned char* to, int begin, int count, const Raw<16>& first) const {
    if constexpr (kPaired) __syncwarp();  // the ones before have been read
#pragma unroll 1
    for (u32 i = fresh_lane(); i < static_cast<u32>(count * 2 * kPieces); i += 32 * kSlices) {
      const Raw<16> raw =
          i < 32 * kSlices && begin == 0 ? first : load_global<16>(fresh_address(begin * 2 * kPieces + i));
      const u32 line = i / (2 * kPieces) + i / kPieces % 2 * kPerWarp;
      *reinterpret_cast<Raw<16>*>(to + line * kDim * 2 + i % kPieces * 16) = raw;
    }
    if constexpr (kSlices == 1)
      __syncwarp();
    else
      consumer.sync_pair();
  }

  /// A page of keys copied into the scratch memory by all consumers.
  ARK_DEVICE void stage_page(int first, int count) const {
    consumer.sync();
#pragma unroll 1
    for (int i = consumer.thread(); i < count * kPieces; i += kConsumerThreads) {
      const int row = first + i / kPieces, piece = i % kPieces * 8;
      const auto a = load_global<16>(cache_row(DecodeOperand::kK, row) + piece);
      const auto b = load_global<16>(cache_row(DecodeOperand::kV, row) + piece);
      *reinterpret_cast<Raw<16>*>(consumer.scratch() + i * 16) = a;
      *reinterpret_cast<Raw<16>*>(consumer.scratch() + kPageBytes / 2 + i * 16) = b;
    }
    consumer.sync();
  }

  /// The pages of this warp's group, then the rows of this launch, or pages of them that the groups take in turn. Of
  /// two tiles at once one warp takes these rows, however many they are.
  ARK_DEVICE void walk(int pages, const DecodeRange& range, const DirectKeys& direct, const Mask& masks,
                       bool takes_fresh, const Raw<16>& fresh) {
    const bool few = kPaired || direct.count() <= kPerWarp;
    const int quarter = Warp::key_warp(consumer.warp()) * kPerWarp;  // of slices a half
    int i = kPaired ? consumer.group() : (consumer.group() - static_cast<int>(consumer.page)) & 1, turn = 0;
#pragma unroll 1
    for (;;) {
      Step step;
      const unsigned char *from_k, *from_v;
      const bool ring = i < kTiles * pages;
      if (ring) {
        step = ring_step(static_cast<int>(static_cast<u32>(i) / kTiles), range);
        from_k = consumer.worker.shared.ring[(consumer.page + i) % kPages] + quarter * kDim * 2;
        from_v = from_k + kPageBytes / 2;
      } else if (few) {
        const int begin = kPaired ? turn++ * kPerWarp : 0;
        step = {direct.begin + begin, kPaired ? min(direct.count() - begin, kPerWarp) : direct.count()};
        if (!takes_fresh || step.count <= 0) break;
        unsigned char* to = consumer.scratch() + kFreshAt + tile_number() * kFreshBytes;
        from_k = to;
        from_v = from_k + kPerWarp * kDim * 2;
        stage_fresh(to, begin, step.count, fresh);
      } else {
        const int first = direct.begin + turn * kPerPage;
        if (first >= direct.end) break;
        stage_page(first, min(kPerPage, direct.end - first));
        step = {first + quarter, min(direct.end - first - quarter, kPerWarp)};
        from_k = consumer.scratch() + quarter * kDim * 2;
        from_v = from_k + kPageBytes / 2;
        if ((turn++ & 1) != consumer.group()) continue;
      }
      typename Mask::Values mask = {};
      const bool masked = step.count > 0 && !range.neutral(step.first, step.count);
      if (masked) masks.load(mask, step.first);
      if (ring) consumer.wait_page(consumer.page + i);
      if (step.count > 0) attend(from_k, from_v, step, masked, masks, mask);
      if (ring) {
        consumer.release_page(consumer.page + i, 2);
        i += 2;
      } else if (few && !kPaired) {
        break;
      }
    }
    if (!few) consumer.sync();
  }

  ARK_DEVICE void attend(const unsigned char* from_k, const unsigned char* from_v, const Step& step, bool masked,
                         const Mask& masks, const typename Mask::Values& mask) {
    typename Warp::Scores s;
    own.scores(from_k, s);
    const float scale = p.scale * kLog2E;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      int seen = step.count;
      if (known.causal()) {
        const int r = Warp::row(h), query = r - known.head_of(r) * known.queries();
        seen = min(seen, query + p.causal_offset + 1 - step.first);
      }
#pragma unroll
      for (int b = 0; b < Warp::kBlocks; ++b)
#pragma unroll
        for (int e = 0; e < 2; ++e)  // keys beyond the end hold whatever: their scores are replaced, not added to
          s[h][b][e] = Warp::key(b, e) < seen ? s[h][b][e] * scale : -op::infinity();
    }
    if (masked) masks.apply(s, mask);
    own.softmax(s);
    own.add_values(from_v, step.count, s);
  }

  // ---------------------------------------------------------------- the end

  ARK_DEVICE void finish() {
    const int first_warp = tile_number() * kWarps, warp = consumer.warp();
    float* sums = reinterpret_cast<float*>(consumer.scratch()) + first_warp * 8 * Warp::kLine;
    float *all_ml = reinterpret_cast<float*>(consumer.scratch() + kSumBytes), *ml = all_ml + first_warp * 32;
    float* lines = reinterpret_cast<float*>(consumer.scratch()) + warp * 8 * Warp::kLine;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      float l = own.l[h];
      l += __shfl_xor_sync(~0u, l, 1);
      l += __shfl_xor_sync(~0u, l, 2);
      if ((consumer.lane() & 3) == 0)
        *reinterpret_cast<float2*>(all_ml + (warp * 16 + Warp::row(h)) * 2) = float2{own.m[h], l};
    }
    unrolled<Warp::kRounds>([&](auto round) __attribute__((always_inline)) {
      if constexpr (round.value > 0) consumer.sync();
      own.template store<round.value>(lines);
      consumer.sync();
#pragma unroll 1
      for (u32 e = static_cast<u32>(consumer.thread()) % kThreads; e < Warp::kLineRows * 64 * kSlices; e += kThreads) {
        const u32 slice = kSlices == 1 ? 0 : e / (Warp::kLineRows * 64), own = e - slice * Warp::kLineRows * 64;
        const int r = Warp::row_of(round.value, own), d = Warp::dim_of(round.value, own);
        if (r < rows && (!kPaired || there) && (Warp::kOwnPieces % 8 == 0 || d < Warp::kOwnPieces * 8))
          combine(r, d + slice * Warp::kOwnPieces * 8, sums + (slice * 8 + own / 64) * Warp::kLine + own % 64,
                  ml + r * 2);
      }
    });
  }
  /// One element of the tile's result; its sums and maxima by warp, those of slice 0 of the latter.
  ARK_DEVICE void combine(int r, int d, const float* sums, const float* ml) const {
    constexpr int kKeyWarps = kWarps / kSlices;
    float2 pair[kKeyWarps];
    float top = -op::infinity(), total = 0, value = 0;
#pragma unroll
    for (int w = 0; w < kKeyWarps; ++w) {
      pair[w] = *reinterpret_cast<const float2*>(ml + w * kSlices * 32);
      top = fmaxf(top, pair[w].x);
    }
    const float reference = top == -op::infinity() ? 0.0f : top;
#pragma unroll
    for (int w = 0; w < kKeyWarps; ++w) {
      const float weight = exp2_approx(pair[w].x - reference);
      total = ::fmaf(pair[w].y, weight, total);
      float sum = sums[w * kSlices * 8 * Warp::kLine];
      if constexpr (Warp::kLines == 2) sum += sums[(w * kSlices * 8 + 4) * Warp::kLine];
      value = ::fmaf(sum, weight, value);
    }
    if (p.parts > 1) {
      const i64 at = (static_cast<i64>(batch * p.kv_heads + kv_head) * p.parts + keys.part) * rows + r;
      store_element(task.address<float>(DecodeOperand::kPartsOut) + at * kDim + d, value);
      if (d < 2) store_element(task.address<float>(DecodeOperand::kPartsMaxSum) + at * 2 + d, d == 0 ? top : total);
    } else {
      const i32 stride = static_cast<i32>(task.operand(DecodeOperand::kOut).stride[3]);
      const i64 at = multiply_add_wide(d, stride, row_offset(DecodeOperand::kOut, r));
      const float quotient = ordinary_divide(value, total);  // one key at least has weight 1, or none is seen
      store_element(task.address<S>(DecodeOperand::kOut) + at, narrow<S>(total == 0.0f ? 0.0f : quotient));
    }
  }
};

template <class Programs>
struct AttentionDecode {
  static ARK_DEVICE void load_immutable(Loader& loader, const Task& task) {
    if constexpr (Programs::kDecodeCache)
      if (!Programs::kDecodePlain || task.record->params.attention.fresh_operand >= 0)
        return DecodeLoader<Programs>::load_cache(loader, task);
    DecodeLoader<Programs>::skip(loader, task);
  }
  static ARK_DEVICE void load_dependent(Loader& loader, const Task& task) {
    if constexpr (Programs::kDecodePlain)
      if (task.record->params.attention.fresh_operand < 0)
        return DecodeLoader<Programs>::load_after_waits(loader, task);
    if constexpr (kDependentPages) DecodeLoader<Programs>::skip(loader, task);
  }

  static ARK_DEVICE void consume(Consumer& consumer, const Task& task) {
    const abi::AttentionParams& p = task.record->params.attention;
    if constexpr (Programs::kDecodeBF16)
      if (!Programs::kDecodeF16 || p.dtype == abi::kTypeBF16) consume_type<MmaType::kBF16, bf16>(consumer, task);
    if constexpr (Programs::kDecodeF16)
      if (!Programs::kDecodeBF16 || p.dtype == abi::kTypeF16) consume_type<MmaType::kF16, f16>(consumer, task);
  }

 private:
  template <MmaType kType, class S>
  static ARK_DEVICE void consume_type(Consumer& consumer, const Task& task) {
    const abi::AttentionParams& p = task.record->params.attention;
    // of what does not occur nobody asks
    const bool few =
        !Programs::kDecodeRows16 ||
        (Programs::kDecodeRows4 && tile_divide(p.heads, p.kv_heads) * DecodeParams<Programs>(task).queries() <= 4);
    consume_dim<kType, S, abi::kLeastDecodeDim>(consumer, task, few);
  }
  /// The record's head size is this one or a larger one of those that occur.
  template <MmaType kType, class S, int kDim>
  static ARK_DEVICE void consume_dim(Consumer& consumer, const Task& task, bool few) {
    static_assert(kDim <= abi::kMostDecodeDim);
    constexpr bool kLarger = Programs::kDecodeDims >= abi::decode_dim_bit(kDim + 16);
    bool larger = kLarger;
    if constexpr ((Programs::kDecodeDims & abi::decode_dim_bit(kDim)) != 0) {
      larger = kLarger && task.record->params.attention.head_dim != kDim;
      if constexpr (Programs::kDecodeRows4)
        if (!larger && few) run<kType, S, kDim, 4>(consumer, task);
      if constexpr (Programs::kDecodeRows16)
        if (!larger && !few) run<kType, S, kDim, 16>(consumer, task);
    }
    if constexpr (kLarger)
      if (larger) consume_dim<kType, S, kDim + 16>(consumer, task, few);
  }
  /// Parts that are not used come last: the item's first used tile waits.
  template <MmaType kType, class S, int kDim, int kRows>
  static ARK_DEVICE void run(Consumer& consumer, const Task& task) {
    const int end = task.first + task.count;
    bool waits = true;
    if constexpr (Programs::kDecodePairs && kDim <= abi::kMostPairedDim)
      if (DecodeParams<Programs>(task).paired()) {
#pragma unroll 1
        for (int t = task.first; t < end; t += 2) {
          const int own = t + consumer.group();
          DecodeTile<Programs, kType, S, kDim, kRows, true>(consumer, task, min(own, end - 1), own < end).run(waits);
          waits = false;
        }
        return;
      }
#pragma unroll 1
    for (int t = task.first; t < end; ++t) {
      DecodeTile<Programs, kType, S, kDim, kRows, false> tile(consumer, task, t, true);
      if (!tile.keys.used()) continue;
      tile.run(waits);
      waits = false;
    }
  }
};

}  // namespace ark::device
