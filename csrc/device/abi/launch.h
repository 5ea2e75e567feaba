// What one launch hands to the loop kernel. Shared by codegen (which fixes the slot capacity), the CUDA target (which
// fills it) and the device code. Like abi.h: plain structs, no standard headers.
//
// entry: extern "C" __global__ void ark_loop(const __grid_constant__ ark::abi::LaunchParams<capacity>)
// grid: num_workers CTAs of kThreads threads, cooperative launch, Source::smem_bytes of dynamic shared memory.
#pragma once
#include "device/abi/abi.h"
#include "device/abi/wait.h"

namespace ark::abi {

inline constexpr int kThreads = 384;
inline constexpr int kTensorMapBytes = 128;
inline constexpr int kMostSms = 512;
/// What LaunchHeader::maps has behind it for so many maps.
constexpr u64 maps_bytes(u64 maps) {
  return maps == 0 ? 0 : maps * (kTensorMapBytes + sizeof(PatchedMap)) + kMostSms * sizeof(u32);
}

/// Slots that a launch can carry; codegen picks the smallest that fits (all within 32 KB of kernel parameters).
inline constexpr int kSlotCapacities[3] = {64, 512, 3840};

/// An output. When a launch has failed, its last worker fills them all with 0xff (NaN in every float type), so that
/// nobody takes what is there for results.
struct PoisonRange {
  u32 slot;
  u32 pad;
  i64 size_bytes;
};

/// All pointers are device addresses. The CUDA target must give them these alignments: records 64, items 16, maps 64.
struct LaunchHeader {
  const unsigned char* records;  // op records and their operands (plan::Packed::records)
  const WorkItem* items;         // all lists, each ended by record == kEnd
  const i32* list_begin;         // [num_workers] index into items; of several ranks as many again (background.cuh)
  RunState* state;               // of this run: zeroed once, never again by the host unless a launch was aborted
  u32* counters;                 // right behind the state: (u32*)(state + 1); counter c is counters[c * kCounterStride]
  // Of this run (not of the plan: addresses differ), or null: num_maps tensor maps; behind them as many PatchedMap, and
  // a u32 for each of kMostSms SMs: RunState::maps_launch when it last acquired maps.
  unsigned char* maps;
  const TensorMapPatch* patches;  // num_patches; at the start of a launch workers apply those whose addresses changed
  ErrorRecord* error;             // pinned host memory, mapped; `set` zeroed by the host before the first launch
  TraceRecord* trace;             // one per entry of `items` (same index, end markers unused), or null
  u64 deadline_ns;                // longest time that one wait may take
  i32 num_workers;                // == gridDim.x
  i32 num_maps, num_patches;
  i32 rank;                   // own
  const PoisonRange* poison;  // num_poison
  i32 num_poison;
  i32 world;  // ranks of a plan with exchanges, else 1
  // Of those: run states of all ranks (counters behind them), as this GPU has them mapped; bytes from the boxes of even
  // launches to those of odd ones.
  RunState* peers[kMostPlanRanks];
  i64 box_bytes;
};

/// Of a plan of several groups: one of them. A group's exchanges have counters and boxes in memory of its own, which
/// its ranks have mapped. Of the run states there only the abort word is used, but for group 0's, which is the plan's.
struct GroupLaunch {
  RunState* state;  // own
  RunState* peers[kMostPlanRanks];
  i64 box_bytes;    // as in LaunchHeader
  i32 rank, world;  // own, and how many
};
static_assert(sizeof(GroupLaunch) == 88);

/// Of a run of a loop (plan::Loop), in a line of its own behind its counters and flagged words; zeroed with them. The
/// last worker of a launch leaves it zeroed.
struct LoopState {
  u32 arrived;  // workers that have ended their list in the iteration that runs
  u32 gate;     // 2 * borders that all have passed, + 1 where the launch ends at the last of them; may wrap. 0 where
                // one worker alone has a list (device/loop/border.cuh)
  u32 done;     // iterations that ran, said with the gate's last bit
  u32 pad[29];
};
static_assert(sizeof(LoopState) == kCounterStride * sizeof(u32));

/// The iterations of a launch; for kernels of loops alone.
struct LoopLaunch {
  LoopState* state;
  const unsigned char* go;  // two bools: does iteration 0 run, does the next one; null: every one does
  i64 most;                 // iterations
  i32 arrivals;             // at a border: workers with a list
  i32 pad;
};

/// The kernel's single parameter. slots[i] is the address of plan::Buffer i.
template <int kCapacity, int kGroups = 1>
struct LaunchParams {
  LaunchHeader header;
  u64 slots[kCapacity];
  LoopLaunch loop;
  GroupLaunch groups[kGroups];  // group 0 stands in the header as well
};
template <int kCapacity>
struct LaunchParams<kCapacity, 1> {
  LaunchHeader header;
  u64 slots[kCapacity];
  LoopLaunch loop;
};
static_assert(sizeof(LaunchHeader) == 184, "the slot table of every capacity starts at the same offset");
static_assert(sizeof(LaunchParams<64, 2>) == sizeof(LaunchParams<64>) + 2 * sizeof(GroupLaunch));
static_assert(sizeof(LaunchParams<kSlotCapacities[2], kMostPlanGroups>) <= 32764, "limit of kernel parameters");

}  // namespace ark::abi
