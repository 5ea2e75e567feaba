#include "planner/verify/structure_key.h"

#include <algorithm>
#include <unordered_map>
#include <vector>

namespace ark::planner {
namespace {

using plan::Plan;

/// A running hash of numbers (the finaliser of MurmurHash3 on every step).
class Hash {
 public:
  template <class... Numbers>
  void add(Numbers... numbers) {
    (mix(static_cast<uint64_t>(numbers)), ...);
  }
  uint64_t value() const { return state_; }

 private:
  void mix(uint64_t number) {
    uint64_t x = state_ ^ (number + 0x9e3779b97f4a7c15 + (state_ << 6) + (state_ >> 2));
    x = (x ^ (x >> 33)) * 0xff51afd7ed558ccd;
    x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53;
    state_ = x ^ (x >> 33);
  }
  uint64_t state_ = 0;
};

int sign(int64_t x) { return (x > 0) - (x < 0); }

/// Which coordinates move the rows, and how the rows fall on counters.
template <class Map>
void add_map(Hash& hash, const Map& map, const abi::OpRecord& record) {
  for (int i = 0; i < 3; ++i) hash.add(record.grid[i] == 1 ? 0 : sign(map.coef[i]));
  const bool one_block = map.extent <= map.div, even = map.limit % map.div == 0;
  hash.add(sign(map.base), map.div == 1, one_block, even, map.limit <= map.div, map.extent % map.div == 0);
}

/// First counter -> op and number of the arrival.
using Groups = std::unordered_map<uint32_t, uint64_t>;

void add_wait(Hash& hash, const abi::Wait& wait, const abi::OpRecord& record, const Groups& groups) {
  add_map(hash, wait, record);
  const auto group = groups.find(wait.counter);
  hash.add(wait.rank_stride != 0);
  hash.add(wait.role, group == groups.end() ? ~uint64_t{0} : group->second, wait.target == wait.last_target);
}

void add_op(Hash& hash, const plan::Op& op, const Groups& groups) {
  const abi::OpRecord& r = op.record;
  hash.add(static_cast<int>(r.kind), r.num_waits, r.num_arrivals, op.operands.size());
  if (r.kind == abi::TaskKind::kAttentionDecode) hash.add(r.params.attention.tiles_at_once);
  for (int program : op.programs) hash.add(program);
  if (r.kind == abi::TaskKind::kMatmulTile) hash.add(r.params.matmul.gated);
  for (const abi::Operand& x : op.operands) {
    hash.add(x.slot, x.dtype, x.index_operand, x.offset != 0);
    for (int64_t stride : x.stride) hash.add(sign(stride));
  }
  for (int i = 0; i < 3; ++i) hash.add(std::min(r.grid[i], 2));
  for (int a = 0; a < r.num_arrivals; ++a) {
    add_map(hash, r.arrive[a], r);
    hash.add(r.arrive_rank_stride[a] != 0);
  }
  for (int w = 0; w < r.num_waits; ++w) add_wait(hash, r.wait[w], r, groups);
  const plan::Flags& f = op.flags;
  hash.add(op.form, op.early, f.operands, f.dropped_waits, f.dropped_arrivals, f.added_waits.size());
  for (const abi::Wait& wait : f.added_waits) add_wait(hash, wait, r, groups);
}

/// Pairs of buffers that share bytes of the arena, or of the boxes.
void add_sharing(Hash& hash, const Plan& plan) {
  struct Part {
    int64_t begin, end;
    size_t slot;
  };
  std::vector<Part> parts;
  for (size_t slot = 0; slot < plan.buffers.size(); ++slot) {
    const plan::Buffer& b = plan.buffers[slot];
    hash.add(static_cast<int>(b.kind), b.index, b.immutable, b.first_op, b.last_op, b.size_bytes == 0, b.twin,
             b.first_word >= 0, b.group);
    int64_t begin = b.arena_offset + (plan::is_read_box(b.kind) ? plan.arena_bytes : 0);
    for (int32_t g = 0; g < b.group; ++g) begin += box_bytes_of(plan, g);
    if ((b.kind == plan::BufferKind::kArena || plan::is_read_box(b.kind)) && b.size_bytes > 0)
      parts.push_back({begin, begin + b.size_bytes, slot});
  }
  std::sort(parts.begin(), parts.end(),
            [](const Part& a, const Part& b) { return a.begin != b.begin ? a.begin < b.begin : a.slot < b.slot; });
  uint64_t sum = 0;  // of the pairs' hashes: their order here depends on offsets
  for (size_t i = 0; i < parts.size(); ++i)
    for (size_t k = i + 1; k < parts.size() && parts[k].begin < parts[i].end; ++k) {
      Hash pair;
      pair.add(std::min(parts[i].slot, parts[k].slot), std::max(parts[i].slot, parts[k].slot));
      sum += pair.value();
    }
  hash.add(sum);
}

}  // namespace

uint64_t structure_key(const Plan& plan) {
  Hash hash;
  for (const plan::RankGroup& group : plan.more_groups) hash.add(group.world);
  hash.add(plan.world, plan.num_workers, plan.ops.size(), plan.programs.size(), plan.buffers.size(), plan.maps.size());
  for (const Program& program : plan.programs)
    for (const Instr& i : program.instrs)
      hash.add(static_cast<int>(i.op), static_cast<int>(i.dtype), i.operand, i.a, i.b, i.c, i.d, i.aux, i.uniform);
  Groups groups;
  for (size_t op = 0; op < plan.ops.size(); ++op)
    for (int a = 0; a < plan.ops[op].record.num_arrivals; ++a)
      groups[plan.ops[op].record.arrive[a].counter] = op * abi::kMaxArrivals + static_cast<size_t>(a);
  for (const plan::Op& op : plan.ops) add_op(hash, op, groups);
  add_sharing(hash, plan);
  return hash.value();
}

}  // namespace ark::planner
