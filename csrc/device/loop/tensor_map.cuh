// Tensor maps of a run: encoded once by the host with any address, given the addresses of a launch by its workers.
//
// An SM keeps maps that it has fetched, and must be told of a changed one (fence.proxy.tensormap acquire). The next
// fetch of a map behind such a fence throws away the SM's instructions too, all but the closest 16 to 24 KB
// (docs/notes/tasks.md, "Instructions"). So maps are patched only when their addresses change, and acquired once a
// launch, by one warp of a worker, only if any has changed since this SM last did so. That counts on what a fence is on
// this hardware: it is the SM that forgets the map, whoever runs on it, and a launch stays on its SMs.
#pragma once
#include "device/abi/map_launches.h"
#include "device/loop/pipeline.cuh"
#include "device/ptx/ptx.cuh"

namespace ark::device {

/// The number of this launch of the run, from 1 on; wraps.
ARK_DEVICE u32 launch_number(const Worker& worker) {
  return (kLoop ? load_relaxed(&worker.launch.state->launches) : worker.epoch) + 1;
}

ARK_DEVICE unsigned char* tensor_map(const Worker& worker, int map) {
  return worker.launch.maps + static_cast<u64>(map) * abi::kTensorMapBytes;
}
ARK_DEVICE abi::PatchedMap* patched_maps(const Worker& worker) {
  return reinterpret_cast<abi::PatchedMap*>(tensor_map(worker, worker.launch.num_maps));
}

/// Warp 2 of every worker, at the start of a launch: writes the addresses of its share of the maps (map m belongs to
/// worker m % num_workers) where they are others than before, and publishes them (RunState::maps_ready).
ARK_DEVICE void patch_tensor_maps(const Worker& worker, const u64* slots, int lane) {
  const abi::LaunchHeader& launch = worker.launch;
  const u32 number = launch_number(worker);
  bool patched = false;
  const i64 odd = kRanks > 1 ? load_relaxed(&launch.state->epoch) & 1 : 0;
  for (int i = lane; i < launch.num_patches; i += 32) {
    const abi::TensorMapPatch& patch = launch.patches[i];
    if (static_cast<i32>(patch.map) % launch.num_workers != static_cast<i32>(blockIdx.x)) continue;
    const u32 slot = patch.slot & (kGroups > 1 ? abi::kSlotNumber : kRanks > 1 ? ~abi::kBoxSlot : ~0u);
    u64 address = slots[slot] + static_cast<u64>(patch.offset_bytes);
    if (kRanks > 1 && (patch.slot & abi::kBoxSlot) != 0)
      address += static_cast<u64>(odd * box_bytes(worker, patch.slot));
    abi::PatchedMap& last = patched_maps(worker)[patch.map];
    if (last.address == address) continue;
    tensormap_replace_address(tensor_map(worker, static_cast<int>(patch.map)), reinterpret_cast<const void*>(address));
    last = {address, number, 0};
    patched = true;
  }
  if (patched) {
    fence_tensormap_release();
    store_relaxed(&launch.state->maps_launch, number);
  }
  __syncwarp();
  if (lane == 0) red_release_add(&launch.state->maps_ready, 1);
}

/// Warp 3 of every worker, at the start of a launch: waits until all maps are those of this launch, acquires the ones
/// that are new to this SM and lets the loaders begin (Shared::maps_ready). A plan without maps may share a kernel with
/// others; behind a launch that failed nobody reads any.
ARK_DEVICE void acquire_tensor_maps(const Worker& worker, int lane) {
  const abi::LaunchHeader& launch = worker.launch;
  if (launch.num_maps == 0 || __any_sync(~0u, worker.waiter.failed())) return;
  const u32 target = abi::maps_target(launch_number(worker), launch.num_workers);
  const bool ok = worker.waiter.wait_counter(&launch.state->maps_ready, target, WaitName{-1, -1, abi::kWaitMaps});
  if (!__all_sync(~0u, ok)) return;
  abi::PatchedMap* const maps = patched_maps(worker);
  u32* const acquired = reinterpret_cast<u32*>(maps + launch.num_maps);  // by SM: maps_launch as it was then
  const u32 sm = sm_index(), seen = sm < abi::kMostSms ? acquired[sm] : 0,
            newest = load_relaxed(&launch.state->maps_launch);
  if (newest != seen) {
    for (int i = lane; i < launch.num_maps; i += 32)
      if (abi::is_new_map(load_relaxed(&maps[i].launch), seen, newest)) fence_tensormap_acquire(tensor_map(worker, i));
    __syncwarp();
    if (lane == 0 && sm < abi::kMostSms) acquired[sm] = newest;
  }
  if (lane == 0) mbarrier_arrive(&worker.shared.maps_ready);
}

/// By a loader, before it waits for an item's tiles: the first copies through maps[0 .. count) and `behind` maps that
/// follow maps[1] need not fetch them. Once per op.
ARK_DEVICE void prefetch_tensor_maps(Loader& loader, const i32* maps, int count, int behind = 0) {
  if (loader.maps_op == loader.op) return;
  loader.maps_op = loader.op;
  if (elect_lane().chosen)
    for (int i = 0; i < count + behind; ++i)
      prefetch_tensormap(tensor_map(loader.worker, i < count ? maps[i] : maps[1] + i - count + 1));
  __syncwarp();
}

}  // namespace ark::device
