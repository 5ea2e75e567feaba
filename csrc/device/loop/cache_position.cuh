// The scalar that says how full a cache is, and what follows from it.
#pragma once
#include "device/ptx/ptx.cuh"

namespace ark::device {

/// The scalar below which no op before writes rows of a cache of `keys` rows (i64 or i32).
ARK_DEVICE int cache_position(const abi::Operand& o, int keys) {
  const void* at = reinterpret_cast<const void*>(o.offset);
  i64 value;
  if (o.dtype == kTypeI64) {
    const Raw<8> raw = load_global<8>(at);
    value = static_cast<i64>(static_cast<u64>(raw.w[1]) << 32 | raw.w[0]);
  } else {
    value = static_cast<i32>(load_global<4>(at).w[0]);
  }
  return static_cast<int>(max(0ll, min(value, static_cast<i64>(keys))));
}
/// How many of at most `parts` parts an attention whose cache is `position` rows full cuts its keys into.
ARK_DEVICE int cache_parts(int position, int queries, int positions_per_part, int parts) {
  const int each = max(1, positions_per_part);
  return min(max(1, (position + queries + each - 1) / each), max(1, parts));
}

}  // namespace ark::device
