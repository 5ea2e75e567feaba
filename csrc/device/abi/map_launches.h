// Launches in which tensor maps change, by their numbers, which wrap (device/loop/tensor_map.cuh).
//
// A map has the number of the launch that patched it last, an SM that of the newest such launch when it last acquired
// maps, and the run that of the newest. A failed launch costs all of them: the host zeroes the run state, maps are
// patched by launch 1 again, and an SM that has seen 0 acquires whatever has been patched. Compiled by the host
// compiler and by NVRTC: no standard headers here.
#pragma once
#include "device/abi/abi.h"

namespace ark::abi {

/// Whether an SM that acquired maps when `seen` was the newest launch that patched any must acquire one that `patched`
/// patched, now that `newest` is. Distances from the newest launch, so that numbers may wrap: of a map that was patched
/// 2^32 launches ago it may say yes in vain, and never no of one that is newer than `seen`, if that is not as old.
ARK_HOST_DEVICE inline constexpr bool is_new_map(u32 patched, u32 seen, u32 newest) {
  return newest - patched < newest - seen;
}

/// What RunState::maps_ready counts up to in launch `number`; both wrap alike.
ARK_HOST_DEVICE inline constexpr u32 maps_target(u32 number, i32 workers) { return number * static_cast<u32>(workers); }

}  // namespace ark::abi
