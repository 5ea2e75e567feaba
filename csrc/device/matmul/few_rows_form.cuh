// The form of a few-row product: parameters that are the same in every layer, as constants (plan/few_rows_form.h), and
// what follows from them.
//
// Codegen generates, per form:
//   struct RowsForm<n> {
//     static constexpr ark::abi::MatmulRowsParams params();
//     static constexpr u32 kVectorOperands;       // bit i: operand i moves 16 bytes at once
//     using Prologue = Program<..>;
//     static Program<..> epilogue(Number<s>);     // of segment s; declared only
//   };
#pragma once
#include "device/program/support.cuh"

namespace ark::device {

/// Constants of a form.
template <class Form>
struct Rows {
  static constexpr int kPageElements = kPageBytes / 2;
  static constexpr int kM = Form::params().m,  // one, or the most rows that there may be
      kK = Form::params().k, kLanes = Form::params().lanes;
  static constexpr int kSegments = Form::params().num_segments, kDtype = Form::params().dtype;
  static constexpr int kForm = Form::params().form, kPrologueOperand = Form::params().prologue_operand;
  static constexpr int kPairDistance = Form::params().pair_distance;
  static constexpr int kColumns = Form::params().columns;  // of a strip, where weights lie [k][n]; else 0
  static constexpr bool kGated = Form::params().gated != 0;

  static constexpr bool kStreams =
      kDtype == abi::kTypeF16 || kDtype == abi::kTypeBF16;  // 16-bit weights: through the ring
  static constexpr bool kPairs = kK * 2 <= kPageElements;   // two rows of a page share a fragment
  static constexpr int kMostUnits = abi::kMaxRowsPerPage / kLanes;
  static constexpr int kUnitsPerPage = !kPairs                                      ? 0
                                       : kPageElements / (kK * kLanes) < kMostUnits ? kPageElements / (kK * kLanes)
                                                                                    : kMostUnits;
  static constexpr int kRowsPerPage = kPairs ? kUnitsPerPage * kLanes : 1;              // weight rows
  static constexpr int kChunks = kK > kPageElements ? 2 : 1;                            // pages per row (not pairs)
  static constexpr int kChunkK = kChunks == 1 ? kK : ((kK + 1) / 2 + 127) / 128 * 128;  // k elements of the first
  static ARK_DEVICE constexpr int chunk_length(int chunk) { return chunk == 0 ? kChunkK : kK - kChunkK; }

  /// Rows of the activation.
  static ARK_DEVICE int rows(const Task& task) {
    if constexpr (kM == 1) return 1;
    return task.record->params.rows.m;
  }
  /// Pages of `units` units of one segment.
  static ARK_DEVICE int pages(int units) {
    if constexpr (!kStreams) return 0;
    if constexpr (kPairs) return (units + kUnitsPerPage - 1) / kUnitsPerPage;
    return units * kLanes * kChunks;
  }
  /// First slot of sums of a unit's row (one per row, or per page of a row), from the segment's first slot on.
  static ARK_DEVICE int slot_of(int unit, int lane) {
    if constexpr (!kPairs) return (unit * kLanes + lane) * kChunks;
    const int page = unit / max(kUnitsPerPage, 1);
    return page * kRowsPerPage + lane * kUnitsPerPage + unit - page * kUnitsPerPage;
  }
  static ARK_DEVICE int slots(int units) { return kPairs ? pages(units) * kRowsPerPage : units * kLanes * kChunks; }
};

/// Constants of segment kSegment.
template <class Form, int kSegment>
struct RowsSegment {
  static constexpr int kFirstUnit = Form::params().segment[kSegment].first_unit;
  static constexpr int kUnits = Form::params().segment[kSegment].num_units;
  static constexpr int kColumn = Form::params().segment[kSegment].column;
  static constexpr int kWeight = Form::params().segment[kSegment].weight;
  static constexpr int kWeight2 = Form::params().segment[kSegment].weight2;
  static constexpr int kFirstOperand = Form::params().segment[kSegment].first_operand;
  using Program = decltype(Form::epilogue(Number<kSegment>{}));
  using R = Rows<Form>;

  /// The item's units that lie in this segment, relative to it.
  struct Range {
    int first, count;
    ARK_DEVICE explicit Range(const Task& task) {
      const int begin = max(task.first, kFirstUnit), end = min(task.first + task.count, kFirstUnit + kUnits);
      first = begin - kFirstUnit;
      count = max(0, end - begin);
    }
  };
  /// Output column (and weight row) of a unit.
  static ARK_DEVICE int column(int unit, int lane) {
    if constexpr (R::kLanes == 1 || R::kGated)
      return kColumn + unit;
    else  // unit + (whole blocks before it) * distance + lane * distance
      return kColumn + unit + (unit / R::kPairDistance + lane) * R::kPairDistance;
  }
};

/// Whether an op's results, but for rows of a cache, go on in words that carry their own flag. Who waits for its
/// counters mostly comes later: they are the reporter's, whose fence holds up nobody.
template <class Form, int kSegment = 0>
consteval bool hands_on_words() {
  if constexpr (kSegment < Rows<Form>::kSegments) {
    using G = RowsSegment<Form, kSegment>;
    constexpr u32 kStores = G::Program::kStores << G::kFirstOperand;
    return kStores != 0 && (kStores & ~Form::kFlaggedOperands) == 0 && hands_on_words<Form, kSegment + 1>();
  }
  return true;
}

/// The accumulators of one unit's program: its own column and the pair's other, or the two weights' columns.
struct UnitRoots {
  float own, other;
  bool gated;
  template <int V>
  ARK_DEVICE void get(int root, int sign, float (&out)[V]) const {
    static_assert(V == 1, "few-row epilogues run element by element");
    out[0] = (gated ? root == 0 : sign == 0) ? own : other;
  }
};

/// f(RowsSegment<Form, s>{}, first page, first slot of sums) for every segment, in order; pages and slots from 0.
template <class Form, class F>
ARK_DEVICE void for_each_segment(const Task& task, F&& f) {
  int page = 0, slot = 0;
  unrolled<Rows<Form>::kSegments>([&](auto s) __attribute__((always_inline)) {
    using G = RowsSegment<Form, s.value>;
    const typename G::Range range(task);
    f(G{}, range, page, slot);
    page += Rows<Form>::pages(range.count);
    slot += Rows<Form>::slots(range.count);
  });
}

}  // namespace ark::device
