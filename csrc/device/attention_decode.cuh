// kAttentionDecode: few queries against a cache. Tile = (batch, kv head, part of the keys); the query rows of a kv head
// (heads in its group times queries, at most 16) share every key and value that is read.
//
// Keys. With fresh_operand, cache rows below that scalar (the position) are immutable in this launch: they stream
// through the ring ahead of every wait, cut into parts of equal length; the rows from there on (appended in this
// launch) are read directly after the wait, by the last part that is used. Without it, all visible keys are read
// directly after the wait. Parts beyond those that are used (cache_parts) do nothing at all and are not read; without
// the scalar all are used, and one that gets no keys leaves m = -infinity, l = 0.
//
// A page holds the keys and values of 16384 / (4 * dim) positions and belongs to one consumer group; each of its 4
// warps takes a quarter of the positions. Scores by mma.m16n8k16 (rows = queries, columns = keys): a lane reads 16-byte
// pieces t and t + 4 (t = lane % 4) of its key, odd keys in the other order, so that the raw rows give no bank
// conflicts; queries are kept in registers in the same order of k. Values on the CUDA cores: a warp reads a value row
// at a time, a lane owns dim / 32 columns. Softmax is online per warp, in base 2; warps, then parts, are combined in a
// fixed order.
#pragma once
#include "device/program_support.cuh"

namespace ark::device {

enum DecodeOperand {
  kDecodeQ,
  kDecodeK,
  kDecodeV,
  kDecodeOut,
  kDecodeLse,
  kDecodeMask,
  kDecodeRange,
  kDecodePartsOut,
  kDecodePartsMl
};

/// The keys of one tile, derived from the record and the position alone where old keys are concerned.
struct DecodeKeys {
  int part;
  int position;  // keys below it may be read ahead of the wait
  int parts_used;
  int old_begin, old_end;

  ARK_DEVICE DecodeKeys(const Task& task, int number) : part(number) {
    const abi::AttentionParams& p = task.record->params.attention;
    position = 0;
    parts_used = p.parts;
    if (p.fresh_operand >= 0) {
      position = cache_position(task.operand(p.fresh_operand), p.keys);
      parts_used = cache_parts(position, p.queries, p.positions_per_part, p.parts);
    }
    const int length = parts_used > 1 ? (position + parts_used - 1) / parts_used : position;
    old_begin = min(position, part * length);
    old_end = part < parts_used ? min(position, old_begin + length) : old_begin;
  }
  ARK_DEVICE int count() const { return old_end - old_begin; }
};

template <class Programs>
struct AttentionDecode {
  static ARK_DEVICE void load_immutable(Loader& loader, const Task& task) {
    const abi::AttentionParams& p = task.record->params.attention;
    if (p.fresh_operand < 0) return;
#pragma unroll 1
    for (int t = task.first; t < task.first + task.count; ++t) load_tile(loader, task, p, t);
  }
  static ARK_DEVICE void load_dependent(Loader& loader, const Task& task) {
    const abi::AttentionParams& p = task.record->params.attention;
    if (p.fresh_operand < 0) return;
    const int per_page = positions_per_page(p);
    int pages = 0;
#pragma unroll 1
    for (int t = task.first; t < task.first + task.count; ++t)
      pages += (DecodeKeys(task, t % task.record->grid[2]).count() + per_page - 1) / per_page;
    loader.skip(pages);
  }

  static ARK_DEVICE void consume(Consumer& consumer, const Task& task) {
    const abi::AttentionParams& p = task.record->params.attention;
    // the position may be read before the wait
    const DecodeKeys keys(task, task.first - small_divide(task.first, task.record->grid[2]) * task.record->grid[2]);
    if (task.count == 1 && keys.part >= keys.parts_used) return;
    if constexpr (Programs::kDecodeBF16)
      if (p.dtype == 7) consume_type<MmaType::kBF16, bf16>(consumer, task, keys);
    if constexpr (Programs::kDecodeF16)
      if (p.dtype == 6) consume_type<MmaType::kF16, f16>(consumer, task, keys);
  }

 private:
  static constexpr float kLog2E = 1.4426950408889634f;

  static ARK_DEVICE int positions_per_page(const abi::AttentionParams& p) { return kPageBytes / (4 * p.head_dim); }

  static ARK_DEVICE void load_tile(Loader& loader, const Task& task, const abi::AttentionParams& p, int tile) {
    const int c2 = tile % task.record->grid[2], rest = tile / task.record->grid[2];
    const DecodeKeys keys(task, c2);
    const int per_page = positions_per_page(p), row_bytes = p.head_dim * 2;
    const u64 policy = policy_evict_first();
    const abi::Operand &k = task.operand(kDecodeK), &v = task.operand(kDecodeV);
    const i64 head_k = rest / task.record->grid[1] * k.stride[0] + rest % task.record->grid[1] * k.stride[1];
    const i64 head_v = rest / task.record->grid[1] * v.stride[0] + rest % task.record->grid[1] * v.stride[1];
    const bool dense = k.stride[2] == p.head_dim && v.stride[2] == p.head_dim;
#pragma unroll 1
    for (int first = keys.old_begin; first < keys.old_end; first += per_page) {
      const int rows = min(per_page, keys.old_end - first);
      const u32 page = loader.acquire();
      if (!loader.ok) return;
      loader.throttle();
      if (loader.lane() == 0) mbarrier_arrive_expect(loader.barrier(), 2 * rows * row_bytes);
      __syncwarp();
      const unsigned char* from_k = task.address<unsigned char>(kDecodeK) + (head_k + first * k.stride[2]) * 2;
      const unsigned char* from_v = task.address<unsigned char>(kDecodeV) + (head_v + first * v.stride[2]) * 2;
      if (dense) {
        if (loader.lane() == 0) {
          bulk_load(page, from_k, rows * row_bytes, loader.barrier(), policy);
          bulk_load(page + kPageBytes / 2, from_v, rows * row_bytes, loader.barrier(), policy);
        }
      } else {
#pragma unroll 1
        for (int r = loader.lane(); r < rows; r += 32) {
          bulk_load(page + r * row_bytes, from_k + r * k.stride[2] * 2, row_bytes, loader.barrier(), policy);
          bulk_load(page + kPageBytes / 2 + r * row_bytes, from_v + r * v.stride[2] * 2, row_bytes, loader.barrier(),
                    policy);
        }
      }
      __syncwarp();
      loader.advance();
    }
  }

  template <MmaType kType, class S>
  static ARK_DEVICE void consume_type(Consumer& consumer, const Task& task, DecodeKeys keys) {
    const abi::AttentionParams& p = task.record->params.attention;
    const int rows = small_divide(p.heads, p.kv_heads) * p.queries;
#pragma unroll 1
    for (int t = task.first; t < task.first + task.count; ++t) {
      const bool first = t == task.first;
      if (!first) keys = DecodeKeys(task, t % task.record->grid[2]);
      if constexpr (Programs::kDecode64) {
        if constexpr (Programs::kDecodeRows4)
          if (p.head_dim == 64 && rows <= 4) Tile<kType, S, 64, 4>(consumer, task, t).run(keys, first);
        if constexpr (Programs::kDecodeRows16)
          if (p.head_dim == 64 && rows > 4) Tile<kType, S, 64, 16>(consumer, task, t).run(keys, first);
      }
      if constexpr (Programs::kDecode128) {
        if constexpr (Programs::kDecodeRows4)
          if (p.head_dim == 128 && rows <= 4) Tile<kType, S, 128, 4>(consumer, task, t).run(keys, first);
        if constexpr (Programs::kDecodeRows16)
          if (p.head_dim == 128 && rows > 4) Tile<kType, S, 128, 16>(consumer, task, t).run(keys, first);
      }
    }
  }

  /// One tile. kRows: query rows, padded to 4 or 16 (the mma's 16 rows are computed in any case).
  template <MmaType kType, class S, int kDim, int kRows>
  struct Tile {
    static constexpr int kPerPage = kPageBytes / (4 * kDim);  // positions per page
    static constexpr int kPerWarp = kPerPage / 4;             // positions of one warp: 16 or 8
    static constexpr int kBlocks = kPerWarp / 8;              // mma column blocks
    static constexpr int kSteps = kDim / 16;
    static constexpr int kColumns = kDim / 32;         // value columns of a lane
    static constexpr int kHalves = kRows > 8 ? 2 : 1;  // of the mma's rows that are rows of queries
    static constexpr int kPieces = kDim / 8;           // of 16 bytes per row
    static constexpr int kFreshRows = 128 / kPieces;   // loaded by all threads at once

    Consumer& consumer;
    const Task& task;
    const abi::AttentionParams& p;
    int part, kv_head, batch, rows, group;
    int thread, lane, warp;
    u32 q[kSteps][4];                         // A fragments
    float m[kHalves], l[kHalves];             // of rows lane / 4 and lane / 4 + 8, base 2
    float acc[kRows][kColumns];               // this lane's value columns
    using Masks = u32[kBlocks][2 * kHalves];  // as they lie in memory: key 0 and 1 of row lane / 4, of row lane / 4 + 8

    // scratch: a page of direct keys and values | probabilities and rescaling per warp
    static constexpr int kProbabilityBytes = kPerWarp * kRows * 4 + kRows * 4;
    ARK_DEVICE unsigned char* staging() const { return consumer.scratch(); }
    ARK_DEVICE float* probabilities() const {
      return reinterpret_cast<float*>(consumer.scratch() + kPageBytes + warp * kProbabilityBytes);
    }
    static_assert(kPageBytes + 8 * kProbabilityBytes <= kScratchBytes);

    ARK_DEVICE Tile(Consumer& c, const Task& t, int tile)
        : consumer(c),
          task(t),
          p(t.record->params.attention),
          thread(c.thread()),
          lane(thread & 31),
          warp(thread >> 5) {
      const int rest = small_divide(tile, t.record->grid[2]);
      part = tile - rest * t.record->grid[2];
      batch = small_divide(rest, t.record->grid[1]);
      kv_head = rest - batch * t.record->grid[1];
      group = small_divide(p.heads, p.kv_heads);
      rows = group * p.queries;
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        m[h] = -op::infinity();
        l[h] = 0;
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r)
#pragma unroll
        for (int d = 0; d < kColumns; ++d) acc[r][d] = 0;
    }

    /// Where the mask's rows of this lane lie.
    struct MaskRows {
      const unsigned char* row[kHalves] = {};  // at this lane's first key of a block; null: no mask
      int bytes = 0, stride = 0, last = 0;

      ARK_DEVICE explicit MaskRows(const Tile& tile) {
        if (tile.p.mask_kind == 0 || !tile.task.has(kDecodeMask)) return;
        const abi::Operand& o = tile.task.operand(kDecodeMask);
        bytes = element_bytes(o.dtype);
        stride = static_cast<i32>(o.stride[3]) * bytes;
        last = tile.p.keys - 1;
#pragma unroll
        for (int h = 0; h < kHalves; ++h)
          row[h] = tile.task.template address<unsigned char>(kDecodeMask) +
                   tile.row_offset(o, min((tile.lane >> 2) + 8 * h, tile.rows - 1)) * bytes;
      }
      /// The mask of this lane's keys from `first` on, as it lies in memory: nothing waits for it here.
      ARK_DEVICE void load(Masks& mask, int first) const {
        if (bytes == 0) return;
        const int key = first + (thread_index() & 3) * 2;
        auto load = [&](auto size) __attribute__((always_inline)) {
#pragma unroll
          for (int h = 0; h < kHalves; ++h)
#pragma unroll
            for (int b = 0; b < kBlocks; ++b)
#pragma unroll
              for (int e = 0; e < 2; ++e)
                mask[b][2 * h + e] =
                    load_global<size.value>(row[h] + static_cast<i64>(min(key + b * 8 + e, last)) * stride).w[0];
        };
        if (bytes == 1)
          load(Number<1>{});
        else if (bytes == 2)
          load(Number<2>{});
        else
          load(Number<4>{});
      }
    };

    /// Addresses are made before the item's wait. Everything that comes from memory is asked for before anything is
    /// used: one latency, not four.
    ARK_DEVICE void run(const DecodeKeys& keys, bool waits) {
      const int pages = (keys.count() + kPerPage - 1) / kPerPage;
      int i = (consumer.group() - static_cast<int>(consumer.page)) & 1;
      const int mine = (warp & 3) * kPerWarp;
      const S* fresh_from = fresh_address(keys.position);
      const S* query_from[kHalves];
      query_addresses(query_from);
      const MaskRows mask_rows(*this);
      if (waits) consumer.wait_for_item(task);
      consumer.stamp(1);
      Raw<16> fresh_row{};
      if (p.fresh_operand >= 0) fresh_row = load_global<16>(fresh_from);
      load_queries(query_from);
      Masks mask = {}, fresh_mask = {};
      mask_rows.load(mask, keys.old_begin + i * kPerPage + mine);
      mask_rows.load(fresh_mask, keys.position);
      int begin, end;
      direct_keys(keys, begin, end);
      const bool few = p.fresh_operand >= 0 && end - begin <= kFreshRows;
      if (few) stage_fresh(fresh_row);
      consumer.stamp(2);
#pragma unroll 1
      for (; i < pages; i += 2) {
        const int first = keys.old_begin + i * kPerPage + mine, count = min(keys.old_end - first, kPerWarp);
        Masks next = {};
        if (i + 2 < pages) mask_rows.load(next, first + 2 * kPerPage);
        const unsigned char* page = consumer.wait_page(consumer.page + i);
        attend(page, mine, first, count, mask);
        consumer.release_page(consumer.page + i, 2);
#pragma unroll
        for (int b = 0; b < kBlocks; ++b)
#pragma unroll
          for (int e = 0; e < 2 * kHalves; ++e) mask[b][e] = next[b][e];
      }
      consumer.advance(pages);
      consumer.mark_loaded();
      consumer.stamp(3);
      if (few) {
        // one warp of the group that has had fewer pages takes the rows of this launch
        consumer.sync();
        if (warp == (consumer.page & 1) * 4) attend(staging(), 0, begin, end - begin, fresh_mask);
        consumer.sync();
      } else {
        attend_directly(begin, end, mask_rows);
      }
      consumer.stamp(4);
      finish();
      consumer.stamp(5);
    }

    /// Row r of the tile = (head of the group, query).
    ARK_DEVICE i64 row_offset(const abi::Operand& o, int r) const {
      const int in_group = p.queries == 1 ? r : small_divide(r, p.queries), query = r - in_group * p.queries;
      const int head = kv_head * group + in_group;
      return batch * o.stride[0] + head * o.stride[1] + query * o.stride[2];
    }

    /// This lane's pieces of rows lane / 4 and lane / 4 + 8; null where the tile has no such row.
    ARK_DEVICE void query_addresses(const S* (&from)[kHalves]) const {
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        const int r = (lane >> 2) + 8 * h;
        from[h] =
            r < rows ? task.address<S>(kDecodeQ) + row_offset(task.operand(kDecodeQ), r) + (lane & 3) * 8 : nullptr;
      }
    }
    ARK_DEVICE void load_queries(const S* const (&from)[kHalves]) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const bool used = h < kHalves && from[h % kHalves] != nullptr;
#pragma unroll
        for (int half = 0; half < kDim / 64; ++half)
#pragma unroll
          for (int piece = 0; piece < 2; ++piece) {
            Raw<16> raw{};
            if (used) raw = load_global<16>(from[h % kHalves] + half * 64 + piece * 32);
#pragma unroll
            for (int s = 0; s < 4; ++s) q[half * 4 + s][piece * 2 + h] = raw.w[s];
          }
      }
    }

    /// This thread's piece of the rows from `position` on: keys by the first 128 threads, values by the others.
    ARK_DEVICE const S* fresh_address(int position) const {
      const int number = thread < 128 ? kDecodeK : kDecodeV, piece = thread & 127;
      const int row = min(position + piece / kPieces, p.keys - 1);  // what lies beyond the visible keys is not used
      const abi::Operand& o = task.operand(number);
      return task.address<S>(number) + batch * o.stride[0] + kv_head * o.stride[1] + row * o.stride[2] +
             piece % kPieces * 8;
    }
    ARK_DEVICE void stage_fresh(const Raw<16>& raw) const {
      *reinterpret_cast<Raw<16>*>(staging() + (thread < 128 ? 0 : kPageBytes / 2) + (thread & 127) * 16) = raw;
    }

    /// Keys that are not in the ring: from the position on (last used part), or this part's share of everything
    /// visible.
    ARK_DEVICE void direct_keys(const DecodeKeys& keys, int& begin, int& end) const {
      int low = 0, high = p.keys;
      if (task.has(kDecodeRange)) {
        const abi::Operand& o = task.operand(kDecodeRange);
        const int* range = task.address<int>(kDecodeRange) + batch * o.stride[0];
        low = p.keys;
        high = 0;
        for (int h = 0; h < (o.stride[1] == 0 ? 1 : group); ++h) {
          const int* pair = range + (kv_head * group + h) * o.stride[1];
          const int a = load_element(pair), b = load_element(pair + (o.stride[3] == 0 ? 1 : o.stride[3]));
          if (a < b) {
            low = min(low, a);
            high = max(high, b);
          }
        }
        low = max(0, min(low, p.keys));
        high = max(0, min(high, p.keys));
      }
      if (p.causal) high = min(high, p.queries + p.causal_offset);
      if (p.fresh_operand >= 0) {
        begin = keys.position;
        end = part == keys.parts_used - 1 ? high : begin;
      } else {
        const int used =
            min(max(1, (high - low + p.positions_per_part - 1) / max(1, p.positions_per_part)), max(1, p.parts));
        const int length = (max(0, high - low) + used - 1) / used;
        begin = low + part * length;
        end = part < used ? min(high, begin + length) : begin;
      }
    }

    /// Pages of keys copied into the scratch memory by all consumers; the groups take them in turn quarters: all 8
    /// warps share one.
    ARK_DEVICE void attend_directly(int begin, int end, const MaskRows& mask_rows) {
#pragma unroll 1
      for (int first = begin; first < end; first += kPerPage) {
        const int count = min(kPerPage, end - first);
        const abi::Operand &k = task.operand(kDecodeK), &v = task.operand(kDecodeV);
        const S* from_k = task.address<S>(kDecodeK) + batch * k.stride[0] + kv_head * k.stride[1];
        const S* from_v = task.address<S>(kDecodeV) + batch * v.stride[0] + kv_head * v.stride[1];
        consumer.sync();
#pragma unroll 1
        for (int i = consumer.thread(); i < count * kPieces; i += kConsumerThreads) {
          const int row = i / kPieces, piece = i % kPieces;
          const auto a = load_global<16>(from_k + (first + row) * k.stride[2] + piece * 8);
          const auto b = load_global<16>(from_v + (first + row) * v.stride[2] + piece * 8);
          *reinterpret_cast<Raw<16>*>(staging() + i * 16) = a;
          *reinterpret_cast<Raw<16>*>(staging() + kPageBytes / 2 + i * 16) = b;
        }
        consumer.sync();
        // group 0 takes even pages, group 1 odd ones: one page at a time is enough for the few fresh rows
        if (consumer.group() == ((first - begin) / kPerPage & 1)) {
          const int mine = (warp & 3) * kPerWarp;
          Masks mask = {};
          mask_rows.load(mask, first + mine);
          attend(staging(), mine, first + mine, min(count - mine, kPerWarp), mask);
        }
      }
      consumer.sync();
    }

    /// `count` keys (at most kPerWarp; may be <= 0) from row `row` of a page on; the first is key number `first`.
    ARK_DEVICE void attend(const unsigned char* page, int row, int first, int count, const Masks& mask) {
      if (count <= 0) return;
      float s[kBlocks][4];
      scores(page, row, s);
      const float scale = p.scale * kLog2E;
      float* probability = probabilities();  // [key][kRows], then the rescaling [kRows]
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        const int r = (lane >> 2) + 8 * h;
        const int in_group = p.queries == 1 ? r : small_divide(r, p.queries);
        // how many of the keys this row sees
        int seen = p.causal ? min(count, r - in_group * p.queries + p.causal_offset + 1 - first) : count;
        if (r >= rows) seen = 0;
        float top = m[h], x[kBlocks][2];
#pragma unroll
        for (int b = 0; b < kBlocks; ++b)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            // rows of no query and keys beyond the end hold whatever: their scores are replaced, not added to
            const bool sees = b * 8 + (lane & 3) * 2 + e < seen;
            const float added = mask_value(mask[b][2 * h + e]);
            x[b][e] = sees && added != -op::infinity() ? s[b][2 * h + e] * scale + added : -op::infinity();
            top = fmaxf(top, x[b][e]);
          }
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        const float reference = top == -op::infinity() ? 0.0f : top;
        const float rescale = exp2_approx(m[h] - reference);
        m[h] = top;
        float sum = 0;
#pragma unroll
        for (int b = 0; b < kBlocks; ++b)
#pragma unroll
          for (int e = 0; e < 2; ++e) {
            const float value = exp2_approx(x[b][e] - reference);
            sum += value;
            if (r < kRows) probability[(b * 8 + (lane & 3) * 2 + e) * kRows + r] = value;
          }
        l[h] = l[h] * rescale + sum;  // of this lane's keys; summed over the four lanes of a row at the end
        if (r < kRows && (lane & 3) == 0) probability[kPerWarp * kRows + r] = rescale;
      }
      __syncwarp();
      add_values(page + kPageBytes / 2, row, count, probability);
      __syncwarp();
    }

    ARK_DEVICE void scores(const unsigned char* page, int row, float (&s)[kBlocks][4]) const {
      const int t = lane & 3, odd = lane >> 2 & 1;
#pragma unroll
      for (int b = 0; b < kBlocks; ++b) {
#pragma unroll
        for (int e = 0; e < 4; ++e) s[b][e] = 0;
        const unsigned char* key = page + (row + b * 8 + (lane >> 2)) * kDim * 2;
#pragma unroll
        for (int half = 0; half < kDim / 64; ++half) {
          const Raw<16> first = *reinterpret_cast<const Raw<16>*>(key + half * 128 + (t + 4 * odd) * 16);
          const Raw<16> second = *reinterpret_cast<const Raw<16>*>(key + half * 128 + (t + 4 * (odd ^ 1)) * 16);
#pragma unroll
          for (int i = 0; i < 4; ++i)
            mma_16x8x16<kType>(s[b], q[half * 4 + i], odd ? second.w[i] : first.w[i], odd ? first.w[i] : second.w[i]);
        }
      }
    }

    /// What a mask's element adds to a score, in base 2.
    ARK_DEVICE float mask_value(u32 raw) const {
      if (p.mask_kind == 0) return 0.0f;
      if (p.mask_kind == 1) return raw != 0 ? 0.0f : -op::infinity();
      const int dtype = task.operand(kDecodeMask).dtype;
      if (dtype == 7) return __uint_as_float(raw << 16) * kLog2E;
      if (dtype == 6) return f16_to_float(static_cast<unsigned short>(raw)) * kLog2E;
      return __uint_as_float(raw) * kLog2E;
    }

    ARK_DEVICE void add_values(const unsigned char* values, int row, int count, const float* probability) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float rescale = probability[kPerWarp * kRows + r];
#pragma unroll
        for (int d = 0; d < kColumns; ++d) acc[r][d] *= rescale;
      }
      const unsigned char* from = values + row * kDim * 2 + lane * kColumns * 2;
#pragma unroll 4
      for (int key = 0; key < count; ++key) {
        const Vec<S, kColumns> raw = *reinterpret_cast<const Vec<S, kColumns>*>(from + key * kDim * 2);
        float v[kColumns];
#pragma unroll
        for (int d = 0; d < kColumns; ++d) v[d] = widen(raw.v[d]);
#pragma unroll
        for (int r4 = 0; r4 < kRows; r4 += 4) {
          const float4 w = *reinterpret_cast<const float4*>(probability + key * kRows + r4);
#pragma unroll
          for (int d = 0; d < kColumns; ++d) {
            acc[r4][d] = ::fmaf(w.x, v[d], acc[r4][d]);
            acc[r4 + 1][d] = ::fmaf(w.y, v[d], acc[r4 + 1][d]);
            acc[r4 + 2][d] = ::fmaf(w.z, v[d], acc[r4 + 2][d]);
            acc[r4 + 3][d] = ::fmaf(w.w, v[d], acc[r4 + 3][d]);
          }
        }
      }
    }

    /// The warps' sums meet in shared memory, four rows at a time.
    ARK_DEVICE void finish() {
      float* sums = reinterpret_cast<float*>(staging());                   // [warp][4][kDim]
      float* ml = reinterpret_cast<float*>(staging() + 8 * 4 * kDim * 4);  // [warp][16][2]
#pragma unroll
      for (int h = 0; h < kHalves; ++h) {
        l[h] += __shfl_xor_sync(~0u, l[h], 1);
        l[h] += __shfl_xor_sync(~0u, l[h], 2);
        if ((lane & 3) == 0) {
          const int r = (lane >> 2) + 8 * h;
          ml[(warp * 16 + r) * 2] = m[h];
          ml[(warp * 16 + r) * 2 + 1] = l[h];
        }
      }
#pragma unroll
      for (int r4 = 0; r4 < kRows; r4 += 4) {
        if (r4 >= rows) break;
#pragma unroll
        for (int r = 0; r < 4; ++r)
#pragma unroll
          for (int d = 0; d < kColumns; ++d) sums[(warp * 4 + r) * kDim + lane * kColumns + d] = acc[r4 + r][d];
        consumer.sync();
#pragma unroll 1
        for (int i = consumer.thread(); i < 4 * kDim; i += kConsumerThreads)
          if (r4 + i / kDim < rows) combine(r4 + i / kDim, i / kDim, i % kDim, sums, ml);
        consumer.sync();
      }
    }
    ARK_DEVICE void combine(int r, int in_block, int d, const float* sums, const float* ml) const {
      float top = -op::infinity(), total = 0, value = 0;
#pragma unroll
      for (int w = 0; w < kConsumerWarps; ++w) top = fmaxf(top, ml[(w * 16 + r) * 2]);
      const float reference = top == -op::infinity() ? 0.0f : top;
#pragma unroll
      for (int w = 0; w < kConsumerWarps; ++w) {
        const float weight = exp2_approx(ml[(w * 16 + r) * 2] - reference);
        total = ::fmaf(ml[(w * 16 + r) * 2 + 1], weight, total);
        value = ::fmaf(sums[(w * 4 + in_block) * kDim + d], weight, value);
      }
      if (p.parts > 1) {
        const i64 at = (static_cast<i64>(batch * p.kv_heads + kv_head) * p.parts + part) * rows + r;
        store_element(task.address<float>(kDecodePartsOut) + at * kDim + d, value);
        if (d < 2) store_element(task.address<float>(kDecodePartsMl) + at * 2 + d, d == 0 ? top : total);
      } else {
        const abi::Operand& o = task.operand(kDecodeOut);
        S* to = task.address<S>(kDecodeOut) + row_offset(o, r) + d * o.stride[3];
        store_element(to, narrow<S>(total == 0.0f ? 0.0f : divide_approx(value, total)));
      }
    }
  };
};

}  // namespace ark::device
