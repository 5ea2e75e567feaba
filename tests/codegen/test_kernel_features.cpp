// KernelFeatures: every feature counts in merge and in covers, each by itself.
#include <functional>
#include <vector>

#include "codegen/kernel_features.h"
#include "support/check.h"

using namespace ark;
using codegen::KernelFeatures;

namespace {

/// Features of one plan, a little of each.
KernelFeatures some() {
  KernelFeatures f;
  f.kinds = {abi::TaskKind::kPointwise};
  f.matmul_variants = 1;
  f.attention_variants = 2;
  f.simple_attention = 4;
  f.mask_types = 8;
  f.decode_types = {DType::kBF16};
  f.decode_dims = {64};
  f.decode_rows = {4};
  f.decode_caches = {false};
  f.ranks = 2;
  f.slot_capacity = 32;
  return f;
}

using Change = std::function<void(KernelFeatures&)>;

/// Each asks for more in one feature alone.
const std::vector<Change>& changes() {
  static const std::vector<Change> all = {
      [](KernelFeatures& f) { f.kinds.insert(abi::TaskKind::kRow); },
      [](KernelFeatures& f) { f.matmul_variants |= 16; },
      [](KernelFeatures& f) { f.attention_variants |= 16; },
      [](KernelFeatures& f) { f.simple_attention |= uint64_t{1} << 34; },  // above 32 bits
      [](KernelFeatures& f) { f.mask_types |= 16; },
      [](KernelFeatures& f) { f.decode_types.insert(DType::kF16); },
      [](KernelFeatures& f) { f.decode_dims.insert(128); },
      [](KernelFeatures& f) { f.decode_rows.insert(16); },
      [](KernelFeatures& f) { f.decode_caches.insert(true); },
      [](KernelFeatures& f) { f.decode_queries = true; },
      [](KernelFeatures& f) { f.decode_causal = true; },
      [](KernelFeatures& f) { f.decode_added_masks = true; },
      [](KernelFeatures& f) { f.decode_pairs = true; },
      [](KernelFeatures& f) { f.dependent_pages = true; },
      [](KernelFeatures& f) { f.scatter_types |= 16; },
      [](KernelFeatures& f) { f.loop = true; },
      [](KernelFeatures& f) { f.background = true; },
      [](KernelFeatures& f) { f.maps = true; },
      [](KernelFeatures& f) { f.ranks = 4; },
      [](KernelFeatures& f) { f.groups = 2; },
      [](KernelFeatures& f) { f.slot_capacity = 64; },
  };
  return all;
}

void test_covers_each_feature() {
  EXPECT(some().covers(some()));
  EXPECT(some().covers(KernelFeatures{}));
  for (const Change& change : changes()) {
    KernelFeatures more = some();
    change(more);
    EXPECT(!some().covers(more));
    EXPECT(more.covers(some()));
  }
}

void test_merge_takes_each_feature() {
  for (const Change& change : changes()) {
    KernelFeatures more = some(), only, merged = some();
    change(more);
    change(only);
    merged.merge(only);
    EXPECT(merged == more);
  }
}

void test_merge_keeps_what_is_there() {
  KernelFeatures all = some();
  for (const Change& change : changes()) change(all);
  KernelFeatures merged = all;
  merged.merge(some());
  EXPECT(merged == all);
  merged.merge(KernelFeatures{});
  EXPECT(merged == all);
}

}  // namespace

int main() {
  test_covers_each_feature();
  test_merge_takes_each_feature();
  test_merge_keeps_what_is_there();
  return test::result("kernel_features");
}
