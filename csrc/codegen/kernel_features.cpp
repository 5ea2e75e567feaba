#include "codegen/kernel_features.h"

#include <algorithm>
#include <concepts>
#include <tuple>

namespace ark::codegen {
namespace {

/// Every feature once: `merge` and `covers` cannot know different lists.
template <class Features>
auto fields(Features& f) {
  return std::tie(f.kinds, f.matmul_variants, f.attention_variants, f.simple_attention, f.mask_types, f.scatter_types,
                  f.decode_types, f.decode_dims, f.decode_rows, f.decode_caches, f.decode_queries, f.decode_causal,
                  f.decode_added_masks, f.decode_pairs, f.dependent_pages, f.maps, f.loop, f.ranks, f.groups,
                  f.background, f.slot_capacity);
}

template <class T>
void add(std::set<T>& all, const std::set<T>& more) {
  all.insert(more.begin(), more.end());
}
template <std::unsigned_integral T>  // bits; a bool is one
void add(T& all, T more) {
  all = static_cast<T>(all | more);
}
void add(int& most, int more) { most = std::max(most, more); }

template <class T>
bool has(const std::set<T>& all, const std::set<T>& some) {
  return std::ranges::includes(all, some);
}
template <std::unsigned_integral T>
bool has(T all, T some) {
  return (some & ~static_cast<uint64_t>(all)) == 0;
}
bool has(int most, int some) { return some <= most; }

}  // namespace

void KernelFeatures::merge(const KernelFeatures& other) {
  std::apply([&](auto&... own) { std::apply([&](const auto&... more) { (add(own, more), ...); }, fields(other)); },
             fields(*this));
}

bool KernelFeatures::covers(const KernelFeatures& needed) const {
  const auto each = [&](const auto&... own) {
    return std::apply([&](const auto&... need) { return (has(own, need) && ...); }, fields(needed));
  };
  return std::apply(each, fields(*this));
}

}  // namespace ark::codegen
