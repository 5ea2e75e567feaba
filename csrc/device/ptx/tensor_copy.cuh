// Tensor maps and tensor copies (TMA).
#pragma once
#include "device/ptx/base.cuh"

namespace ark::device {

/// Writes the address of an (opaque, 128 byte) tensor map in global memory.
ARK_DEVICE void tensormap_replace_address(void* map, const void* address) {
  asm volatile("tensormap.replace.tile.global_address.global.b1024.b64 [%0], %1;" ::"l"(map), "l"(address) : "memory");
}
/// After a tensor map was written through the generic proxy, before the release that publishes it.
ARK_DEVICE void fence_tensormap_release() { asm volatile("fence.proxy.tensormap::generic.release.gpu;" ::: "memory"); }
/// After the acquire that saw it published, before its first use by this SM.
ARK_DEVICE void fence_tensormap_acquire(const void* map) {
  asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
}
/// The first copy through the map need not fetch it.
ARK_DEVICE void prefetch_tensormap(const void* map) { asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory"); }

/// Box of a tensor at coordinates (innermost first) -> shared memory, 128-byte aligned; what lies outside the tensor
/// arrives as zeros. `policy`: how long the L2 keeps it.
ARK_DEVICE void tensor_load(u32 shared, const void* map, u32 barrier, int c0, int c1, int c2) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], "
      "[%2];" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2)
      : "memory");
}
ARK_DEVICE void tensor_load(u32 shared, const void* map, u32 barrier, int c0, int c1, int c2, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5}], [%2], %6;" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "l"(policy)
      : "memory");
}
ARK_DEVICE void tensor_load(u32 shared, const void* map, u32 barrier, int c0, int c1, int c2, int c3) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], "
      "[%2];" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3)
      : "memory");
}
ARK_DEVICE void tensor_load(u32 shared, const void* map, u32 barrier, int c0, int c1, int c2, int c3, u64 policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%3, %4, %5, %6}], [%2], %7;" ::"r"(shared),
      "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3), "l"(policy)
      : "memory");
}

}  // namespace ark::device
