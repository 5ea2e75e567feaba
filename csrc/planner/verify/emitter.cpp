#include "planner/verify/emitter.h"

namespace ark::planner {
namespace {

/// Brings a box into normal form.
void normalise(Box& box) {
  Box::Dim* end = box.dims + box.num_dims;
  for (Box::Dim* d = box.dims; d != end; ++d) {
    if (d->stride >= 0) continue;
    box.begin += (d->count - 1) * d->stride;
    d->stride = -d->stride;
  }
  end = std::remove_if(box.dims, end, [](const Box::Dim& d) { return d.count == 1 || d.stride == 0; });
  std::sort(box.dims, end, [](const Box::Dim& a, const Box::Dim& b) { return a.stride > b.stride; });
  int n = 0;
  for (const Box::Dim* d = box.dims; d != end; ++d) {
    box.dims[n++] = *d;
    if (n > 1 && box.dims[n - 2].stride == box.dims[n - 1].stride * box.dims[n - 1].count) {
      box.dims[n - 2] = {box.dims[n - 2].count * box.dims[n - 1].count, box.dims[n - 1].stride};
      --n;
    }
  }
  // Runs that touch or overlap are one run.
  for (; n > 0 && box.dims[n - 1].stride <= box.width; --n)
    box.width += (box.dims[n - 1].count - 1) * box.dims[n - 1].stride;
  box.num_dims = n;
}

}  // namespace

void BoxEmitter::box(std::span<const Range> ranges) {
  int64_t bytes = size_bytes(static_cast<DType>(x_.dtype));
  Box box;
  box.begin = x_.offset * bytes;
  box.width = bytes;
  for (const Range& r : ranges) {
    if (r.count <= 0) return;
    box.begin += r.first * r.stride * bytes;
    if (r.count > 1) box.dims[box.num_dims++] = {r.count, r.stride * bytes};
  }
  normalise(box);
  boxes_.push_back(box);
}

void BoxEmitter::flat_range(std::span<const Range> flat, int64_t begin, int64_t end, const Ranges& rest) {
  if (begin >= end) return;
  if (flat.empty()) return box(rest);
  int64_t inner = 1;
  for (size_t d = 1; d < flat.size(); ++d) inner *= flat[d].count;
  auto emit = [&](int64_t first, int64_t count, int64_t from, int64_t to) {
    Ranges fixed = rest;
    fixed.push_back({first, count, flat.front().stride});
    flat_range(flat.subspan(1), from, to, fixed);
  };
  int64_t first = begin / inner, last = end / inner, head = begin % inner, tail = end % inner;
  if (first == last) return emit(first, 1, head, tail);
  if (head > 0) emit(first++, 1, head, inner);
  if (first < last) emit(first, last - first, 0, inner);
  if (tail > 0) emit(last, 1, 0, tail);
}

Ranges merged(std::span<const Range> dims) {
  Ranges out;
  for (const Range& d : dims) {
    if (d.count == 1) continue;
    if (out.count > 0 && out.at[out.count - 1].stride == d.stride * d.count) {
      Range& last = out.at[out.count - 1];
      last = {0, last.count * d.count, d.stride};
    } else {
      out.push_back(d);
    }
  }
  return out;
}

int64_t total(std::span<const Range> part) {
  int64_t n = 1;
  for (const Range& d : part) n *= d.count;
  return n;
}

}  // namespace ark::planner
