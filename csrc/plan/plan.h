// The planner's result: plain data, everything that a target needs and nothing that it has to decide.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/types.h"
#include "device/abi/abi.h"
#include "ir/graph.h"
#include "ir/program.h"

namespace ark::plan {

/// Where a slot's address comes from at launch. Slot i of the launch belongs to Plan::buffers[i].
enum class BufferKind : uint8_t {
  kInput,     // tensor argument `index`
  kOutput,    // fresh tensor number `index` of Plan::fresh
  kArena,     // the arena of the run, at `arena_offset`
  kConstant,  // bytes `data`, uploaded once
  kBox,       // what rank `index` has sent to this rank in one exchange: at `arena_offset` of this rank's boxes
  kBoxOut,    // the box at rank `index` for what this rank sends there; `twin` is the slot of the kBox of that index
  kBoxes,     // all boxes of an exchange as one tensor, read only; `twin` is the slot of the kBox of rank 0
  kPart,      // what rank `index` has stored here before it sent, in an uneven exchange: sizes and places differ over
              // ranks, so that a launch is told the place. `arena_offset` is the exchange's number, `twin` the slot of
              // the kBox of that index, whose coming says that the part is there
  kPartOut,   // at rank `index`: its kPart of what this rank stores; the same
};
/// What other ranks write and this one reads.
inline bool is_read_box(BufferKind kind) { return kind == BufferKind::kBox || kind == BufferKind::kBoxes; }
inline bool is_any_box(BufferKind kind) { return is_read_box(kind) || kind == BufferKind::kBoxOut; }
inline bool is_part(BufferKind kind) { return kind == BufferKind::kPart || kind == BufferKind::kPartOut; }
/// In the segment of a rank, once for even and once for odd launches.
inline bool is_among_ranks(BufferKind kind) { return is_any_box(kind) || is_part(kind); }

struct Buffer {
  BufferKind kind = BufferKind::kArena;
  int32_t index = -1;
  int64_t arena_offset = 0;
  int64_t size_bytes = 0;
  bool immutable = false;               // no op of this plan writes it
  int32_t first_op = -1, last_op = -1;  // lifetime in plan order (arena)
  std::string data;                     // kConstant
  std::string name;
  int32_t twin = -1;        // kBoxOut, kBoxes, kPart, kPartOut
  int64_t first_word = -1;  // kArena: of its element 0 in the flagged words (flag_words.h), or -1
  int32_t group = 0;        // of a box: whose (Plan::more_groups)
};

/// The boxes of an exchange lie side by side, by the rank that sends: so many bytes from one to the next.
inline int64_t box_stride(int64_t size_bytes) {
  constexpr int64_t kAlignment = 256;
  return (size_bytes + kAlignment - 1) / kAlignment * kAlignment;
}

/// A fresh torch tensor to allocate per call.
struct FreshTensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> sizes, strides;
};

/// What the callable returns at one position: fresh tensor `fresh` or input `input` (exactly one >= 0), seen through a
/// view.
struct Output {
  int32_t fresh = -1, input = -1;
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
  bool whole = true;  // the tensor itself, no view needed
};

/// Tiled tensor map over a slot, rank <= 5, innermost dimension first, as cuTensorMapEncodeTiled takes it. 128-byte
/// swizzle, none where the lines of the box are longer than 128 bytes.
struct TensorMap {
  uint32_t slot = 0;
  int64_t offset_bytes = 0;
  DType dtype = DType::kBF16;
  std::vector<int64_t> sizes, strides_bytes;  // strides_bytes of dimensions 1..
  std::vector<int32_t> box;
};

inline int64_t num_tiles(const abi::OpRecord& record) {
  return int64_t{record.grid[abi::GridAxis::kOuter]} * record.grid[abi::GridAxis::kMiddle] *
         record.grid[abi::GridAxis::kInner];
}

/// What the loop kernel does otherwise than the record says, because vectors travel in flagged words (flag_words.h).
/// The host target runs the record; plan/as_run.h applies the flags for the GPU.
struct Flags {
  uint32_t operands = 0;               // bit i: operand i comes in flagged words (first 32)
  uint32_t dropped_waits = 0;          // bit i: it does not wait as wait i of the record says
  uint32_t dropped_arrivals = 0;       // bit i: it does not arrive as arrival i of the record says
  std::vector<abi::Wait> added_waits;  // behind those that are left
  bool any() const { return (operands | dropped_waits | dropped_arrivals) != 0 || !added_waits.empty(); }
};

struct Op {
  abi::OpRecord record{};
  std::vector<abi::Operand> operands;
  std::vector<int32_t> programs;  // every program that the record names
  std::string name;               // nodes of the graph that it computes, for dumps, profiles and comments
  std::string module;
  std::string node;              // to blame where the op is refused (base/unsupported.h); not saved
  int64_t bytes = 0, flops = 0;  // the least that it has to move and compute
  uint32_t early = 0;            // bit i: operand i may be read before the op's waits (early_reads.h; first 32)
  int32_t form = -1;             // of a few-row product: number of its form in the plan (few_rows_form.h)
  Flags flags;
};

/// A plan that may run several times in one launch. Between two iterations is a border, which orders them as the end of
/// a launch does: no tile of an iteration begins before all tiles of the one before have ended.
struct Loop {
  std::vector<int32_t> carried;  // slots of inputs that every iteration stores as a whole, for the next one
  int32_t go_slot = -1;          // input of two bools, or -1: does iteration 0 run; does the next one
  int32_t arrivals = 0;          // at the border, in an iteration: the workers with a list. 0: the plan is no loop
};

/// Ranks that a plan exchanges with. A group has boxes, counters and a segment of its own: boxes lie from 0 on, and
/// counters of its exchanges are those from `first_counter` on, before those of the next group.
struct RankGroup {
  std::string name;
  int32_t world = 1;
  int64_t box_bytes = 0;  // as in Plan
  int32_t first_counter = 0;
};

struct Plan {
  std::string name;
  int32_t num_workers = 132;
  std::vector<Buffer> buffers;
  std::vector<FreshTensor> fresh;
  std::vector<Output> outputs;
  std::vector<Program> programs;  // deduplicated
  std::vector<Op> ops;            // in a topological order: no op waits for a later one
  std::vector<std::vector<abi::WorkItem>>
      lists;  // per worker, without the end marker; WorkItem::op set, ::record filled by pack
  std::vector<TensorMap> maps;
  int32_t num_counters = 0;
  int64_t num_flag_words = 0;  // of a run, behind its counters; a multiple of abi::kCounterStride. 0: none
  int64_t arena_bytes = 0;
  int64_t bytes = 0, flops = 0;  // of the whole plan
  double predicted_ms = 0, floor_ms = 0;
  /// Exchanges: `world` ranks of the group run the same plan, which does not say which of them runs it. An op that
  /// writes out-boxes writes with tile t, into each of them, the bytes that tile t of the rank there writes here: so it
  /// is read as the writer of this rank's boxes, from all ranks.
  std::string group;
  int32_t world = 1;   // 1: no exchanges
  std::string splits;  // a letter for each exchange, in the graph's order: ir::Attrs::splits' first, else '-'. With a
                       // letter ranks meet before each launch (bindings/distributed/plan_ranks)
  int64_t box_bytes = 0;  // of all boxes of a rank, without parts; it has them twice, for even and for odd launches
  std::vector<RankGroup> more_groups;  // groups 1, 2, .. of the plan; those above are of group 0. An op sends in one
  Loop loop;
};

inline int32_t num_groups(const Plan& plan) {
  return plan.world == 1 ? 0 : 1 + static_cast<int32_t>(plan.more_groups.size());
}
inline RankGroup group_at(const Plan& plan, int32_t group) {
  return group == 0 ? RankGroup{plan.group, plan.world, plan.box_bytes} : plan.more_groups.at(group - size_t{1});
}
inline int32_t world_of(const Plan& plan, int32_t group) {
  return group == 0 ? plan.world : plan.more_groups.at(group - size_t{1}).world;
}
inline int64_t box_bytes_of(const Plan& plan, int32_t group) {
  return group == 0 ? plan.box_bytes : plan.more_groups.at(group - size_t{1}).box_bytes;
}
inline int32_t first_counter_of(const Plan& plan, int32_t group) {
  return group == 0 ? 0 : plan.more_groups.at(group - size_t{1}).first_counter;
}
/// The numbers of the groups in the order in which a launch meets their ranks and takes its turn among their launches:
/// of the names, which all ranks know.
std::vector<int32_t> groups_by_name(const Plan& plan);
/// Of a counter of exchanges.
inline int32_t group_of_counter(const Plan& plan, int64_t counter) {
  auto group = static_cast<int32_t>(plan.more_groups.size());
  while (group > 0 && counter < first_counter_of(plan, group)) --group;
  return group;
}

/// The record blob and the work lists as the kernel reads them (lists end with kEnd; worker w's begins at
/// list_begin[w]). Of exchanges: what is sent in the background has lists of its own, at list_begin[num_workers + w].
struct Packed {
  std::vector<std::byte> records;
  std::vector<abi::WorkItem> items;
  std::vector<int32_t> list_begin;
};
/// Lines (of abi::kCounterStride words) that the counters of a run take, and its flagged words behind them.
inline int64_t counter_lines(const Plan& plan) { return plan.num_counters + plan.num_flag_words / abi::kCounterStride; }
/// The code of a kernel that was not made for this plan alone (codegen/kernel.h): what its records have to say.
struct KernelNumbers {
  std::vector<int32_t> program;  // per program of the plan; empty: its own number
  std::vector<int32_t> form;     // per op: form of few-row product, or -1; empty: Op::form
};
/// The ops as the GPU runs them (plan/as_run.h), laid out. Throws InternalError when a record breaks a limit of abi.h
/// or an item names tiles that are not there.
Packed pack(const Plan& plan, const KernelNumbers& numbers = {});

/// The enumerator without `k`, in snake case: "matmul_tile".
const char* name(abi::TaskKind kind);

std::string to_string(const Plan& plan);
/// A saved plan: JSON with the names of these structs' fields; from_json throws UserError on malformed text.
std::string to_json(const Plan& plan);
Plan from_json(const std::string& text);

}  // namespace ark::plan
