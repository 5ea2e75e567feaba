// Boxes of strided runs: do two of them share a byte?
//
// Both are written in one mixed radix whose digits are the strides of either. Where every box keeps each digit within
// its radix, a byte has exactly one notation, and boxes meet exactly when all of their digit ranges meet. A run that is
// longer than a stride is first cut at multiples of it: head, whole rows, tail.
#include "planner/verify/box.h"

#include <algorithm>
#include <vector>

namespace ark::planner {
namespace {

/// Radices, descending; each divides the one before it.
struct Strides {
  int64_t of[2 * Box::kMaxBoxDims];
  int count = 0;
  const int64_t* begin() const { return of; }
  const int64_t* end() const { return of + count; }
};

/// The strides of both boxes; false when they are no radices.
bool collect(const Box& a, const Box& b, Strides& strides) {
  int i = 0, j = 0;
  while (i < a.num_dims || j < b.num_dims) {
    int64_t x = i < a.num_dims ? a.dims[i].stride : 0, y = j < b.num_dims ? b.dims[j].stride : 0, s = std::max(x, y);
    i += x == s, j += y == s;
    if (strides.count > 0 && (strides.of[strides.count - 1] == s || strides.of[strides.count - 1] % s != 0))
      return false;
    strides.of[strides.count++] = s;
  }
  return true;
}

/// Whether the box keeps every digit within its radix.
bool is_refined(const Box& box, const Strides& strides) {
  int64_t extent = box.width;
  int d = box.num_dims;
  for (int i = strides.count - 1; i >= 0; --i) {  // from the innermost radix on
    int64_t s = strides.of[i];
    for (; d > 0 && box.dims[d - 1].stride < s; --d) extent += (box.dims[d - 1].count - 1) * box.dims[d - 1].stride;
    if (box.begin % s + extent > s) return false;
  }
  return true;
}

/// Cuts a box until it keeps its digits within the radices; false when that is not possible.
bool refine(const Box& box, const Strides& strides, std::vector<Box>& out) {
  for (int64_t s : strides) {
    int inner = 0;
    while (inner < box.num_dims && box.dims[inner].stride >= s) ++inner;
    int64_t extent = box.width;
    for (int d = inner; d < box.num_dims; ++d) extent += (box.dims[d].count - 1) * box.dims[d].stride;
    int64_t rest = box.begin % s;
    if (rest + extent <= s) continue;
    bool own_rows = inner > 0 && box.dims[inner - 1].stride == s;
    if (inner < box.num_dims || (own_rows && box.width > s) || box.num_dims == Box::kMaxBoxDims) return false;
    int64_t head = rest == 0 ? 0 : s - rest, rows = (box.width - head) / s, tail = box.width - head - rows * s;
    Box part = box;
    bool ok = true;
    if (head > 0) part.width = head, ok = refine(part, strides, out);
    if (ok && tail > 0) {
      part.begin = box.begin + head + rows * s, part.width = tail;
      ok = refine(part, strides, out);
    }
    if (ok && rows > 0) {
      part.begin = box.begin + head, part.width = s;
      if (rows > 1) part.dims[part.num_dims++] = {rows, s};
      ok = refine(part, strides, out);
    }
    return ok;
  }
  out.push_back(box);
  return true;
}

/// For refined boxes.
bool digits_meet(const Box& a, const Box& b, const Strides& strides) {
  int64_t rest_a = a.begin, rest_b = b.begin;
  int dim_a = 0, dim_b = 0;
  for (int64_t s : strides) {
    int64_t from_a = rest_a / s, from_b = rest_b / s, count_a = 1, count_b = 1;
    if (dim_a < a.num_dims && a.dims[dim_a].stride == s) count_a = a.dims[dim_a++].count;
    if (dim_b < b.num_dims && b.dims[dim_b].stride == s) count_b = b.dims[dim_b++].count;
    if (from_a + count_a <= from_b || from_b + count_b <= from_a) return false;
    rest_a %= s;
    rest_b %= s;
  }
  return rest_a < rest_b + b.width && rest_b < rest_a + a.width;
}

}  // namespace

int64_t Box::end() const {
  int64_t last = begin + width;
  for (int d = 0; d < num_dims; ++d) last += (dims[d].count - 1) * dims[d].stride;
  return last;
}

Overlap overlap(const Box& a, const Box& b) {
  if (a.width == 0 || b.width == 0 || a.end() <= b.begin || b.end() <= a.begin) return Overlap::kNo;
  if (a.num_dims == 0 && b.num_dims == 0) return Overlap::kYes;
  Strides strides;
  if (!collect(a, b, strides)) return Overlap::kUnknown;
  if (a.begin < 0 || b.begin < 0) return Overlap::kUnknown;
  if (is_refined(a, strides) && is_refined(b, strides))
    return digits_meet(a, b, strides) ? Overlap::kYes : Overlap::kNo;
  std::vector<Box> parts_a, parts_b;
  if (!refine(a, strides, parts_a) || !refine(b, strides, parts_b)) return Overlap::kUnknown;
  for (const Box& x : parts_a)
    for (const Box& y : parts_b)
      if (digits_meet(x, y, strides)) return Overlap::kYes;
  return Overlap::kNo;
}

}  // namespace ark::planner
