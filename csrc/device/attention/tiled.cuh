// Attention forward of any type, size and stride on the CUDA cores, in fp32 or fp64. A tile is 64 queries of one head
// (fp64: 32). Each consumer group walks every other block of 64 keys with a softmax of its own; in the end group 1's
// sums are added to group 0's. A thread has 8 (4) queries and every 16th key, then 16 bytes of every chunk of columns.
//
// Keys and values come in chunks of 64 rows by 16 pieces of 16 bytes, the next chunk while this one is worked on.
// Everything lies in the ring: queries | two chunks a group | weights, by warp. Lines are an odd number of pieces long.
// Queries stay for the whole tile where their chunks have room; else they come along with the keys.
#pragma once
#include "device/attention/common.cuh"
#include "device/attention/staged_rows.cuh"

namespace ark::device {

/// kChunks: of columns of the output at once; more columns are computed in several walks over the keys.
template <class T, int kChunks>
struct AttentionTiled {
  static constexpr int kWide = 16 / sizeof(T), kColumns = 16 * kWide;  // elements of a piece, of a chunk's line
  static constexpr int kRows = sizeof(T) == 8 ? 4 : 8;                 // queries of a thread
  static constexpr int kQueries = 8 * kRows, kKeys = 64, kPitch = 17 * 16, kWeightPitch = kKeys * sizeof(T) + 16;
  static constexpr int kChunkBytes = kKeys * kPitch, kQueryBytes = kQueries * kPitch;
  static constexpr int kSlotsAt = 4 * kChunkBytes, kWeightsAt = 2 * kSlotsAt;
  static constexpr int kUnrolled = kChunks == 1 ? 2 : 1;  // steps of the products' loops: two at once spill
  using X = abi::AttentionOperand;
  static_assert(kQueries == (sizeof(T) == 8 ? abi::kTiledQueriesF64 : abi::kTiledQueries) &&
                kWeightsAt + kQueries * 2 * kWeightPitch <= kPages * kPageBytes);

  Consumer& consumer;
  const Task& task;
  const abi::AttentionParams& p;
  int batch, head, first_row;
  KeyRange range;
  u32 ring;
  int next_block, next_chunk, slot;  // what is loaded next, of keys, then of values; where the last one went
  int first_column, key_chunks, value_chunks;
  T out[kRows][kChunks * kWide];

  ARK_DEVICE AttentionTiled(Consumer& c, const Task& t, int tile)
      : consumer(c), task(t), p(t.record->params.attention), range{} {
    const abi::OpRecord& r = *t.record;
    const abi::Coordinates at = abi::coordinates_of(r, tile);
    batch = at.outer, head = at.middle, first_row = at.inner * kQueries;
    range = mask_range(t, X::kRange, batch, head, first_row / abi::kRangeBlock);
    ring = shared_address(consumer.worker.shared.ring);
    key_chunks = (p.head_dim + kColumns - 1) / kColumns;
  }

  ARK_DEVICE void run() {
#pragma unroll 1
    for (first_column = 0; first_column < p.value_dim; first_column += kChunks * kColumns) {
      value_chunks = min(kChunks, (p.value_dim - first_column + kColumns - 1) / kColumns);
      walk();
      finish();
    }
  }

 private:
  // Read anew where they are needed: what follows from them does not stay in registers.
  ARK_DEVICE int group_thread() const { return consumer.thread() & 127; }
  /// This thread's queries are row() + 2 * i of the tile, its keys column_group() + 16 * j of a block.
  ARK_DEVICE int row() const { return (consumer.warp() & 3) * 2 * kRows + (consumer.lane() >> 4); }
  ARK_DEVICE int column_group() const { return consumer.lane() & 15; }
  ARK_DEVICE int last_block() const {  // one past it
    const int last_row = min(first_row + kQueries, p.queries) - 1;
    return (min(causal_end(p, last_row), range.end) + kKeys - 1) / kKeys;
  }
  ARK_DEVICE u32 slot_address(int s) const { return ring + kSlotsAt + (consumer.group() * 2 + s) * kChunkBytes; }
  /// Of this thread's first row.
  ARK_DEVICE u32 weight_address() const {
    return ring + kWeightsAt + (consumer.warp() * 2 * kRows + (consumer.lane() >> 4)) * kWeightPitch;
  }
  /// Pieces of a line of which `columns` exist; even, as the loops take two at once.
  static ARK_DEVICE int pieces_of(int columns) { return min(16, (columns + 2 * kWide - 1) / (2 * kWide) * 2); }
  ARK_DEVICE u32 query_slot(int s) const { return ring + (consumer.group() * 2 + s) * kChunkBytes; }
  ARK_DEVICE bool queries_stay() const { return key_chunks * kQueryBytes <= kSlotsAt; }
  ARK_DEVICE u32 query_address(int chunk) const {
    return queries_stay() ? ring + chunk * kQueryBytes : query_slot(slot);
  }
  /// Chunk `chunk` of the queries, by `threads`.
  ARK_DEVICE void load_queries(int chunk, u32 to, int thread, int threads) const {
    const int column = chunk * kColumns;
    stage_rows<T, kQueries>(&task.operand(X::kQ), batch, head, p.queries, p.head_dim,
                            {first_row, column, kQueries, pieces_of(p.head_dim - column), to, kPitch}, thread, threads);
  }
  /// The next chunk of this group into the slot that is free.
  ARK_DEVICE void load_next() {
    if (next_block < last_block()) {
      const bool of_values = next_chunk >= key_chunks;
      const int column = of_values ? first_column + (next_chunk - key_chunks) * kColumns : next_chunk * kColumns,
                columns = of_values ? p.value_dim : p.head_dim;
      stage_rows<T, kKeys>(&task.operand(of_values ? int{X::kV} : int{X::kK}), batch, head / (p.heads / p.kv_heads),
                           p.keys, columns,
                           {next_block * kKeys, column, kKeys, of_values ? 16 : pieces_of(columns - column),
                            slot_address(slot ^ 1), kPitch},
                           group_thread(), 128);
      if (!of_values && !queries_stay()) load_queries(next_chunk, query_slot(slot ^ 1), group_thread(), 128);
      if (++next_chunk == key_chunks + value_chunks) {
        next_chunk = 0;
        next_block += 2;
      }
    }
    copy_async_commit();
  }
  /// The address of the chunk that was loaded last, once it is there; begins to load the next.
  ARK_DEVICE u32 take() {
    copy_async_wait<0>();
    consumer.sync_group();  // everybody's copies have landed, and the chunk before has been read
    slot ^= 1;
    const u32 address = slot_address(slot);
    load_next();
    return address;
  }

  static ARK_DEVICE T lowest() { return static_cast<T>(negative_infinity()); }

  static ARK_DEVICE void load_piece(T* x, u32 shared) {
    const uint4 raw = shared_load4(shared);
    __builtin_memcpy(x, &raw, 16);
  }
  static ARK_DEVICE void store_piece(u32 shared, const T* x) {
    uint4 raw;
    __builtin_memcpy(&raw, x, 16);
    shared_store4(shared, raw);
  }

  /// Of this thread's queries: the highest score so far, and the sum of the weights of this thread's keys. In scratch,
  /// but while they change.
  struct Sums {
    static constexpr int kPieces = kRows / kWide, kStep = kConsumerThreads * 16;
    static_assert(2 * kPieces * kStep <= kScratchBytes);
    T max[kRows], sum[kRows];
    ARK_DEVICE void load(u32 from) {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        load_piece(max + i * kWide, from + i * kStep);
        load_piece(sum + i * kWide, from + (kPieces + i) * kStep);
      }
    }
    ARK_DEVICE void store(u32 to) const {
#pragma unroll
      for (int i = 0; i < kPieces; ++i) {
        store_piece(to + i * kStep, max + i * kWide);
        store_piece(to + (kPieces + i) * kStep, sum + i * kWide);
      }
    }
  };
  ARK_DEVICE u32 sums_address() const { return shared_address(consumer.scratch()) + consumer.thread() * 16; }

  ARK_DEVICE void walk() {
    Sums sums;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      sums.max[i] = lowest();
      sums.sum[i] = T(0);
#pragma unroll
      for (int e = 0; e < kChunks * kWide; ++e) out[i][e] = T(0);
    }
    const int first = range.begin / kKeys + consumer.group();
    next_block = first;
    next_chunk = 0;
    slot = 1;
    consumer.sync();  // what was here before has been read
    sums.store(sums_address());
    if (queries_stay())
#pragma unroll 1
      for (int chunk = 0; chunk < key_chunks; ++chunk)
        load_queries(chunk, query_address(chunk), consumer.thread(), kConsumerThreads);
    load_next();
    copy_async_wait<0>();
    consumer.sync();
#pragma unroll 1
    for (int block = first; block < last_block(); block += 2) {
      T s[kRows][4];
      multiply_keys(s);
      weigh(s, block * kKeys);
      add_values();
    }
  }

  /// s = Q K^T of a block.
  ARK_DEVICE void multiply_keys(T (&s)[kRows][4]) {
#pragma unroll
    for (int i = 0; i < kRows * 4; ++i) s[i / 4][i % 4] = T(0);
#pragma unroll 1
    for (int chunk = 0; chunk < key_chunks; ++chunk) {
      u32 keys = take() + column_group() * kPitch, queries = query_address(chunk) + row() * kPitch;
      const u32 end = keys + pieces_of(p.head_dim - chunk * kColumns) * 16;
#pragma unroll kUnrolled
      for (; keys != end; keys += 16, queries += 16) {
        T k[4][kWide];
#pragma unroll
        for (int j = 0; j < 4; ++j) load_piece(k[j], keys + j * 16 * kPitch);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          T q[kWide];
          load_piece(q, queries + i * 2 * kPitch);
#pragma unroll
          for (int e = 0; e < kWide; ++e)
#pragma unroll
            for (int j = 0; j < 4; ++j) s[i][j] += q[e] * k[j][e];
        }
      }
    }
  }

  /// Scores become weights against the new maximum and go to shared memory, a thread's keys side by side: they are read
  /// by their own warp only.
  ARK_DEVICE void weigh(T (&s)[kRows][4], int key) {
    const T scale = static_cast<T>(p.scale);
    const bool masked = range.masked(p, key, kKeys),
               edge = key + kKeys > range.end || block_has_edge(p, first_row, key, kKeys);
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) s[i][j] *= scale;
    const int own_key = key + column_group();
    if (masked) apply_mask(s, own_key);
    const int query = first_row + row();
    Sums sums;
    sums.load(sums_address());
    const u32 to = weight_address() + column_group() * 4 * static_cast<int>(sizeof(T));
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      if (edge) {
        const int end = min(causal_end(p, query + 2 * i), range.end) - own_key;
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (j * 16 >= end) s[i][j] = lowest();
      }
      T highest = ::fmax(::fmax(s[i][0], s[i][1]), ::fmax(s[i][2], s[i][3]));  // passes over NaN
#pragma unroll
      for (int m = 8; m > 0; m >>= 1) highest = ::fmax(highest, __shfl_xor_sync(~0u, highest, m));
      highest = ::fmax(highest, sums.max[i]);
      const T base = highest == lowest() ? T(0) : highest, correction = ::exp(sums.max[i] - base);
      sums.max[i] = highest;
      sums.sum[i] *= correction;
#pragma unroll
      for (int j = 0; j < 4; ++j) sums.sum[i] += s[i][j] = ::exp(s[i][j] - base);
#pragma unroll
      for (int e = 0; e < kChunks * kWide; ++e) out[i][e] *= correction;
#pragma unroll
      for (int j = 0; j < 4; j += kWide)
        store_piece(to + i * 2 * kWeightPitch + j * static_cast<int>(sizeof(T)), &s[i][j]);
    }
    sums.store(sums_address());
    __syncwarp();
  }

  /// `key`: this thread's first.
  ARK_DEVICE void apply_mask(T (&s)[kRows][4], int key) const {
    switch (p.mask_kind == abi::MaskKind::kBool ? kTypeBool : static_cast<int>(task.operand(X::kMask).dtype)) {
      case kTypeBool:
        return apply_mask_of<boolean>(s, key);
      case kTypeF16:
        return apply_mask_of<f16>(s, key);
      case kTypeBF16:
        return apply_mask_of<bf16>(s, key);
      case kTypeF32:
        return apply_mask_of<float>(s, key);
      default:
        return apply_mask_of<double>(s, key);
    }
  }
  /// 16 loads are in flight at once.
  template <class S>
  ARK_DEVICE void apply_mask_of(T (&s)[kRows][4], int key) const {
    const abi::Operand& m = task.operand(X::kMask);
    const S* mask = reinterpret_cast<const S*>(m.offset) + batch * m.stride[0] + head * m.stride[1];
    const int query = first_row + row();
#pragma unroll
    for (int part = 0; part < kRows; part += 4) {
      S value[4][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const S* line = mask + min(query + 2 * (part + i), p.queries - 1) * m.stride[2];
#pragma unroll
        for (int j = 0; j < 4; ++j) value[i][j] = load_element(line + min(key + 16 * j, p.keys - 1) * m.stride[3]);
      }
#pragma unroll
      for (int i = 0; i < 16; ++i) {
        T& score = s[part + i / 4][i % 4];
        if constexpr (sizeof(S) == 1)
          score = widen(value[i / 4][i % 4]) ? score : lowest();
        else
          score += static_cast<T>(widen(value[i / 4][i % 4]));
      }
    }
  }

  /// out += P V. Weights lie in the order in which threads have them: keys c, c + 16, c + 32, c + 48 side by side.
  ARK_DEVICE void add_values() {
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      if (chunk >= value_chunks) break;
      u32 values = take() + column_group() * 16, weights = weight_address();
#pragma unroll kUnrolled
      for (int c = 0; c < 16; ++c, values += kPitch, weights += 4 * sizeof(T)) {
        T v[4][kWide];
#pragma unroll
        for (int j = 0; j < 4; ++j) load_piece(v[j], values + j * 16 * kPitch);
#pragma unroll
        for (int i = 0; i < kRows; ++i) {
          T w[4 / kWide][kWide];
#pragma unroll
          for (int j = 0; j < 4 / kWide; ++j) load_piece(w[j], weights + i * 2 * kWeightPitch + j * 16);
#pragma unroll
          for (int j = 0; j < 4; ++j)
#pragma unroll
            for (int e = 0; e < kWide; ++e) out[i][chunk * kWide + e] += w[j / kWide][j % kWide] * v[j][e];
        }
      }
    }
  }

  /// Group 1's maxima, sums and outputs go to group 0, the outputs through group 1's slots; group 0 writes.
  ARK_DEVICE void finish() {
    constexpr int kStep = 128 * 16;  // a piece of each thread
    static_assert(kRows * kChunks * kStep <= 2 * kChunkBytes);
    Sums sums;
    sums.load(sums_address());
#pragma unroll
    for (int i = 0; i < kRows; ++i)
#pragma unroll
      for (int m = 8; m > 0; m >>= 1) sums.sum[i] += __shfl_xor_sync(~0u, sums.sum[i], m);
    const u32 pieces = ring + kSlotsAt + 2 * kChunkBytes + group_thread() * 16;
    if (consumer.group() == 1) {
      sums.store(sums_address());
      consumer.sync_group();  // all of the group's chunks have been read
#pragma unroll
      for (int i = 0; i < kRows; ++i)
#pragma unroll
        for (int c = 0; c < kChunks; ++c) store_piece(pieces + (i * kChunks + c) * kStep, &out[i][c * kWide]);
    }
    consumer.sync();
    if (consumer.group() == 1) return;
    add_other(sums, pieces, kStep);
    write(sums);
  }
  ARK_DEVICE void add_other(Sums& sums, u32 pieces, int step) {
    Sums other;
    other.load(sums_address() + 128 * 16);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const T highest = ::fmax(sums.max[i], other.max[i]), base = highest == lowest() ? T(0) : highest;
      const T own_part = ::exp(sums.max[i] - base), other_part = ::exp(other.max[i] - base);
      sums.max[i] = highest;
      sums.sum[i] = sums.sum[i] * own_part + other.sum[i] * other_part;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        T more[kWide];
        load_piece(more, pieces + (i * kChunks + c) * step);
#pragma unroll
        for (int e = 0; e < kWide; ++e) out[i][c * kWide + e] = out[i][c * kWide + e] * own_part + more[e] * other_part;
      }
    }
  }

  /// The group's rows pass through its slots: each warp writes its own, neighbours by neighbours.
  ARK_DEVICE void write(const Sums& sums) const {
    constexpr int kLine = kChunks * 256 + 16;
    static_assert(kQueries * kLine <= 2 * kChunkBytes);
    const u32 lines = slot_address(0), mine = lines + row() * kLine + column_group() * 16;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const T sum = sums.sum[i], inverse = sum == T(0) ? T(0) : T(1) / sum;  // of no key: zeros; NaN stays
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        T piece[kWide];
#pragma unroll
        for (int e = 0; e < kWide; ++e) piece[e] = out[i][c * kWide + e] * inverse;
        store_piece(mine + i * 2 * kLine + c * 256, piece);
      }
    }
    __syncwarp();
    const int dtype = task.operand(X::kOut).dtype;
    if constexpr (sizeof(T) == 8)
      write_lines<double, kLine>(lines);
    else if (dtype == kTypeF32)
      write_lines<float, kLine>(lines);
    else if (dtype == kTypeF16)
      write_lines<f16, kLine>(lines);
    else
      write_lines<bf16, kLine>(lines);
    if (first_column == 0 && column_group() == 0 && task.has(X::kLogSumExp)) write_sums(sums);
  }
  template <class S, int kLine>
  ARK_DEVICE void write_lines(u32 lines) const {
    const abi::Operand& o = task.operand(X::kOut);
    S* to = reinterpret_cast<S*>(o.offset) + batch * o.stride[0] + head * o.stride[1];
    const int first = (consumer.warp() & 3) * 2 * kRows;
#pragma unroll 1
    for (int at = consumer.lane(); at < 2 * kRows * kChunks * 16; at += 32) {
      const int line = first + at / (kChunks * 16), column = first_column + at % (kChunks * 16) * kWide;
      if (first_row + line >= p.queries || column >= p.value_dim) continue;
      T value[kWide];
      load_piece(value, lines + line * kLine + at % (kChunks * 16) * 16);
      Vec<S, kWide> piece;
#pragma unroll
      for (int e = 0; e < kWide; ++e) piece.v[e] = narrow<S>(value[e]);
      S* element = to + (first_row + line) * o.stride[2] + column * o.stride[3];
      if (o.vector >= kWide && column + kWide <= p.value_dim) {
        store_vector(element, piece);
        continue;
      }
#pragma unroll
      for (int e = 0; e < kWide; ++e)
        if (column + e < p.value_dim) store_element(element + e * o.stride[3], piece.v[e]);
    }
  }
  ARK_DEVICE void write_sums(const Sums& sums) const {
    const abi::Operand& l = task.operand(X::kLogSumExp);
    const i64 origin = batch * l.stride[0] + head * l.stride[1];
    const int first = first_row + row();
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int query = first + 2 * i;
      if (query >= p.queries) break;
      const T value = sums.sum[i] == T(0) ? lowest() : sums.max[i] + ::log(sums.sum[i]);
      if (l.dtype == kTypeF64)
        store_element(reinterpret_cast<double*>(l.offset) + origin + query * l.stride[2], static_cast<double>(value));
      else
        store_element(reinterpret_cast<float*>(l.offset) + origin + query * l.stride[2], static_cast<float>(value));
    }
  }
};

}  // namespace ark::device
