#include "targets/host/program/access.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "base/check.h"

namespace ark::targets::host {
namespace {

const std::byte* at(const void* memory, const View& view, int64_t offset) {
  return static_cast<const std::byte*>(memory) + (view.offset + offset) * size_bytes(view.dtype);
}
std::byte* at(void* memory, const View& view, int64_t offset) {
  return static_cast<std::byte*>(memory) + (view.offset + offset) * size_bytes(view.dtype);
}

/// Splits a run into pieces along the innermost dimension: piece(position in the run, element offset, length).
template <class Piece>
void for_each_piece(const Domain& domain, const View& view, Run run, const Piece& piece) {
  const int last = domain.num_dims - 1;
  Dims coord{};
  int64_t rest = run.start, offset = 0;
  for (int d = last; d >= 0; --d) {
    coord[d] = rest % domain.size[d];
    rest /= domain.size[d];
    offset += coord[d] * view.stride[d];
  }
  for (int64_t done = 0; done < run.n;) {
    const int64_t length = std::min(run.n - done, domain.size[last] - coord[last]);
    piece(done, offset, length);
    done += length;
    coord[last] += length;
    offset += length * view.stride[last];
    for (int d = last; d > 0 && coord[d] == domain.size[d]; --d) {
      coord[d] = 0;
      offset += view.stride[d - 1] - domain.size[d] * view.stride[d];
      ++coord[d - 1];
    }
  }
}

void fill_offsets(const Domain& domain, const View& view, Run run, int64_t* offsets) {
  if (view.linear) {
    for (int64_t i = 0; i < run.n; ++i) offsets[i] = (run.start + i) * view.linear_stride;
    return;
  }
  const int64_t stride = view.stride[domain.num_dims - 1];
  for_each_piece(domain, view, run, [&](int64_t done, int64_t offset, int64_t length) {
    for (int64_t i = 0; i < length; ++i) offsets[done + i] = offset + i * stride;
  });
}

/// Adds an index register's contribution; lanes out of range leave `predicate`. Returns whether all were in range.
bool add_index(const int64_t* index, int64_t stride, int64_t extent, int64_t n, const AccessScratch& scratch) {
  bool in_range = true;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t wrapped = index[i] < 0 ? index[i] + extent : index[i];
    const bool valid = wrapped >= 0 && wrapped < extent;
    if (!valid && scratch.predicate[i]) {
      in_range = false;
      *scratch.error = {index[i], extent};
    }
    scratch.predicate[i] &= valid;
    scratch.offsets[i] += valid ? wrapped * stride : 0;
  }
  return in_range;
}

/// Whether the innermost pieces are too short for a kernel call each.
bool prefers_offsets(const Domain& domain, const View& view) {
  return !view.linear && domain.size[domain.num_dims - 1] < 12;
}

struct Irregular {
  const uint8_t* predicate = nullptr;  // null: every lane
  bool in_range = true;
};

Irregular resolve(const Domain& domain, const View& view, Run run, const Lanes& lanes, const AccessScratch& scratch) {
  fill_offsets(domain, view, run, scratch.offsets);
  if (!view.indexed) return {lanes.predicate, true};
  if (lanes.predicate)
    std::copy_n(lanes.predicate, run.n, scratch.predicate);
  else
    std::fill_n(scratch.predicate, run.n, uint8_t{1});
  Irregular result{scratch.predicate, true};
  if (lanes.index_a)
    result.in_range &= add_index(lanes.index_a, view.index_stride[0], view.index_extent[0], run.n, scratch);
  if (lanes.index_b)
    result.in_range &= add_index(lanes.index_b, view.index_stride[1], view.index_extent[1], run.n, scratch);
  return result;
}

bool all_alike(const uint8_t* flags, int64_t n) { return std::memcmp(flags, flags + 1, n - 1) == 0; }

void poison(const View& view, Run run, const Lanes& lanes, const uint8_t* valid, void* reg) {
  if (!is_float(view.dtype)) return;
  for (int64_t i = 0; i < run.n; ++i) {
    if (valid[i] || (lanes.predicate && !lanes.predicate[i])) continue;
    if (view.dtype == DType::kF64)
      static_cast<double*>(reg)[i] = std::numeric_limits<double>::quiet_NaN();
    else
      static_cast<float*>(reg)[i] = std::numeric_limits<float>::quiet_NaN();
  }
}

}  // namespace

Domain make_domain(std::span<const int64_t> size, std::span<const abi::Operand> operands,
                   std::span<const abi::Operand> record_operands, int first_stride) {
  Domain domain;
  domain.full_size.assign(size.begin(), size.end());
  for (const int64_t s : size) domain.total *= s;
  const auto mergeable = [&](int64_t inner_size, int outer, int inner) {
    return std::all_of(operands.begin(), operands.end(), [&](const abi::Operand& o) {
      return o.stride[first_stride + outer] == o.stride[first_stride + inner] * inner_size;
    });
  };
  std::vector<int> kept;  // original dimension (the innermost of each merged group), innermost first
  std::vector<int64_t> sizes;
  int group_outermost = -1;
  for (int d = static_cast<int>(size.size()) - 1; d >= 0; --d) {
    if (size[d] == 1) continue;
    if (!kept.empty() && mergeable(size[group_outermost], d, group_outermost)) {
      sizes.back() *= size[d];
    } else {
      kept.push_back(d);
      sizes.push_back(size[d]);
    }
    group_outermost = d;
  }
  domain.num_dims = std::max<int>(1, static_cast<int>(kept.size()));
  domain.size[0] = 1;
  for (size_t i = 0; i < kept.size(); ++i) domain.size[kept.size() - 1 - i] = sizes[i];
  for (const abi::Operand& operand : operands) {
    View view{.slot = operand.slot, .dtype = static_cast<DType>(operand.dtype), .offset = operand.offset};
    for (size_t i = 0; i < kept.size(); ++i) view.stride[kept.size() - 1 - i] = operand.stride[first_stride + kept[i]];
    view.linear_stride = view.stride[domain.num_dims - 1];
    view.linear = true;
    for (int d = domain.num_dims - 1; d > 0; --d) view.linear &= view.stride[d - 1] == view.stride[d] * domain.size[d];
    if (operand.index_operand >= 0) {
      check(operand.index_operand < static_cast<int>(record_operands.size()), "operand of slot ", operand.slot,
            ": index parameters in operand ", int(operand.index_operand), " of ", record_operands.size());
      const abi::Operand& parameters = record_operands[operand.index_operand];
      view.indexed = true;
      view.index_stride = {parameters.stride[0], parameters.stride[1]};
      view.index_extent = {parameters.stride[2], parameters.stride[3]};
    }
    domain.views.push_back(view);
  }
  return domain;
}

bool load_run(const Kernels& kernels, const Domain& domain, const View& view, const void* memory, Run run,
              const Lanes& lanes, const AccessScratch& scratch, void* reg) {
  if (run.n == 0) return true;
  if (lanes.predicate && all_alike(lanes.predicate, run.n)) {  // a piece of a concatenation, say
    if (lanes.predicate[0] == 0) return std::memset(reg, 0, run.n * reg_bytes(reg_type(view.dtype))), true;
    return load_run(kernels, domain, view, memory, run, {lanes.index_a, lanes.index_b}, scratch, reg);
  }
  const int type = static_cast<int>(view.dtype);
  const bool plain = !view.indexed && !lanes.predicate;
  if (plain && view.linear) {
    kernels.load[type](reg, at(memory, view, run.start * view.linear_stride), view.linear_stride, run.n);
    return true;
  }
  if (plain && !prefers_offsets(domain, view)) {
    const int bytes = reg_bytes(reg_type(view.dtype));
    const int64_t stride = view.stride[domain.num_dims - 1];
    for_each_piece(domain, view, run, [&](int64_t done, int64_t offset, int64_t length) {
      kernels.load[type](static_cast<std::byte*>(reg) + done * bytes, at(memory, view, offset), stride, length);
    });
    return true;
  }
  const Irregular lane = resolve(domain, view, run, lanes, scratch);
  kernels.gather[type](reg, at(memory, view, 0), scratch.offsets, lane.predicate, run.n);
  if (!lane.in_range) poison(view, run, lanes, lane.predicate, reg);
  return lane.in_range;
}

bool store_run(const Kernels& kernels, const Domain& domain, const View& view, void* memory, Run run,
               const Lanes& lanes, const AccessScratch& scratch, const void* reg) {
  if (run.n == 0) return true;
  const int type = static_cast<int>(view.dtype);
  const bool plain = !view.indexed && !lanes.predicate;
  if (plain && view.linear) {
    kernels.store[type](at(memory, view, run.start * view.linear_stride), reg, view.linear_stride, run.n);
    return true;
  }
  if (plain && !prefers_offsets(domain, view)) {
    const int bytes = reg_bytes(reg_type(view.dtype));
    const int64_t stride = view.stride[domain.num_dims - 1];
    for_each_piece(domain, view, run, [&](int64_t done, int64_t offset, int64_t length) {
      kernels.store[type](at(memory, view, offset), static_cast<const std::byte*>(reg) + done * bytes, stride, length);
    });
    return true;
  }
  const Irregular lane = resolve(domain, view, run, lanes, scratch);
  kernels.scatter[type](at(memory, view, 0), reg, scratch.offsets, lane.predicate, run.n);
  return lane.in_range;
}

void coordinates(const Domain& domain, int dim, Run run, int64_t* out) {
  if (run.n == 0) return;
  int64_t inner = 1;
  for (size_t d = dim + 1; d < domain.full_size.size(); ++d) inner *= domain.full_size[d];
  const int64_t size = domain.full_size[dim];
  int64_t coord = (run.start / inner) % size, repeat = run.start % inner;
  if (inner == 1 && coord + run.n <= size) return std::iota(out, out + run.n, coord);
  for (int64_t i = 0; i < run.n;) {
    const int64_t length = std::min(run.n - i, inner - repeat);
    std::fill_n(out + i, length, coord);
    i += length;
    repeat = 0;
    coord = coord + 1 == size ? 0 : coord + 1;
  }
}

}  // namespace ark::targets::host
