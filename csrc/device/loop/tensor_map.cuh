// Tensor maps of a run: encoded once by the host with any address, given the addresses of this launch by the workers.
#pragma once
#include "device/loop/pipeline.cuh"
#include "device/ptx/ptx.cuh"

namespace ark::device {

/// Warp 2 of every worker, at the start of a launch: writes the addresses of its share of the maps (map m belongs to
/// worker m % num_workers). The caller's release (gpu scope, after the warp has converged) publishes them.
ARK_DEVICE void patch_tensor_maps(const Worker& worker, const u64* slots, int lane) {
  const abi::LaunchHeader& launch = worker.launch;
  bool patched = false;
  const i64 odd = kRanks > 1 ? load_relaxed(&launch.state->epoch) & 1 : 0;
  for (int i = lane; i < launch.num_patches; i += 32) {
    const abi::TensorMapPatch& patch = launch.patches[i];
    if (static_cast<i32>(patch.map) % launch.num_workers != static_cast<i32>(blockIdx.x)) continue;
    unsigned char* map = launch.maps + static_cast<u64>(patch.map) * abi::kTensorMapBytes;
    const u32 number = kGroups > 1 ? abi::kSlotNumber : kRanks > 1 ? ~abi::kBoxSlot : ~0u;
    i64 address = static_cast<i64>(slots[patch.slot & number]) + patch.offset_bytes;
    if (kRanks > 1 && (patch.slot & abi::kBoxSlot) != 0) address += odd * box_bytes(worker, patch.slot);
    tensormap_replace_address(map, reinterpret_cast<const void*>(address));
    patched = true;
  }
  if (patched) fence_tensormap_release();
  __syncwarp();
  if (lane == 0) red_release_add(&launch.state->maps_ready, 1);
}

ARK_DEVICE const void* tensor_map(const Worker& worker, int map) {
  return worker.launch.maps + static_cast<u64>(map) * abi::kTensorMapBytes;
}

/// By a loader that has waited for the maps, before the first copies of an item through maps[0 .. count) and `behind`
/// maps that follow maps[1]: proxy fences, once per op. Each makes the next copy fetch its map anew, so that is done
/// here, before the loader waits for tiles.
ARK_DEVICE void acquire_tensor_maps(Loader& loader, const i32* maps, int count, int behind = 0) {
  if (loader.maps_op == loader.op) return;
  loader.maps_op = loader.op;
  if (elect_lane().chosen)
    for (int i = 0; i < count + behind; ++i) {
      const void* map = tensor_map(loader.worker, i < count ? maps[i] : maps[1] + i - count + 1);
      fence_tensormap_acquire(map);
      prefetch_tensormap(map);
    }
  __syncwarp();
}

}  // namespace ark::device
