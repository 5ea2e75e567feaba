// What a loop kernel has compiled in beside its programs: task kinds and the variants of their main loops. A plan needs
// features; a kernel that is made for several plans has those of all of them.
#pragma once
#include <cstdint>
#include <set>

#include "base/types.h"
#include "device/abi/abi.h"

namespace ark::codegen {

struct KernelFeatures {
  std::set<abi::TaskKind> kinds;
  uint32_t matmul_variants = 0, attention_variants = 0;  // tensor-core main loops
  uint64_t simple_attention = 0;                         // forms of kAttentionSimple (device/abi/variants.h)
  uint32_t mask_types = 0;  // bit: a floating-point type, or bool for all others, of a mask whose range is looked for
  uint32_t scatter_types = 0;  // bit: a floating-point type of kScatterSum
  std::set<DType> decode_types;
  std::set<int> decode_dims, decode_rows;  // decode attention: head sizes, padded query rows per kv head
  std::set<bool> decode_caches;            // whether its keys are a cache of which most is read ahead of the wait
  bool decode_queries = false, decode_causal = false, decode_added_masks = false;  // some have several, are, add theirs
  bool decode_pairs = false;                                                       // some have two tiles done at once
  bool dependent_pages = false;  // some pages are loaded after the waits
  bool maps = false;
  bool loop = false;        // a launch may have several iterations
  int ranks = 1;            // of plans with exchanges, of the largest group
  int groups = 1;           // that these are of
  bool background = false;  // some are sent in the background
  int slot_capacity = 0;

  /// Adds what the other has.
  void merge(const KernelFeatures& other);
  /// Whether a kernel with these features runs a plan that needs `needed`.
  bool covers(const KernelFeatures& needed) const;
  bool operator==(const KernelFeatures&) const = default;
};

}  // namespace ark::codegen
