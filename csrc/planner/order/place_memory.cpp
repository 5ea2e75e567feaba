#include "planner/order/place_memory.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <utility>

#include "base/check.h"
#include "planner/cost.h"
#include "planner/order/place_boxes.h"
#include "planner/order/storage_uses.h"

namespace ark::planner {
namespace {

/// A storage with a place in the arena.
struct Tenant {
  StorageId storage = -1;
  int64_t begin = 0, end = 0;
};

class Arena {
 public:
  Arena(Draft& draft, const Options& options, const Timeline& timeline, Sync& sync)
      : draft_(draft),
        options_(options),
        timeline_(timeline),
        sync_(sync),
        uses_(uses_of(draft.graph)),
        finished_(static_cast<int>(draft.graph.ops.size())) {
    for (size_t i = 0; i < draft.graph.ops.size(); ++i) finished_.derive(static_cast<int>(i), sync.sources[i]);
  }

  /// Byte offset of a storage. Call in the order of first use.
  int64_t place(StorageId storage, int64_t size_bytes);
  /// Before the storages that op uses first: takes in the waits added for earlier ones.
  void enter(int op) { finished_.derive(op, sync_.sources[op]); }
  int64_t size() const { return size_; }
  const StorageUse& use(StorageId storage) const { return uses_[storage]; }

 private:
  /// How a tenant stands to a new storage: gone for certain, gone once waits are added that cost nothing, or in the
  /// way.
  enum class Standing : uint8_t { kDead, kCheap, kAlive };

  Standing standing(StorageId old, StorageId now) const;
  bool is_open(int op, int writer) const { return op >= writer || !finished_.before[writer].has(op); }
  bool all_finished(StorageId old, int writer) const;
  std::vector<int> open_uses(StorageId old, int writer) const;
  std::optional<std::vector<int>> waits_for(StorageId now, int64_t begin, int64_t end,
                                            std::vector<std::optional<std::vector<int>>>& open, size_t most) const;
  bool have_room(int writer, const std::vector<int>& waits) const;
  int64_t lowest_gap(int64_t size, const std::vector<Standing>& standings) const;
  bool free_of(int64_t begin, int64_t end, const std::vector<Standing>& standings) const;
  int64_t place_with_waits(StorageId storage, int64_t size, const std::vector<Standing>& standings);
  void move_in(const Tenant& added);

  Draft& draft_;
  const Options& options_;
  const Timeline& timeline_;
  Sync& sync_;
  std::vector<StorageUse> uses_;
  Finished finished_;
  std::vector<Tenant> tenants_;  // by begin; each byte's latest
  int64_t size_ = 0;
};

bool Arena::all_finished(StorageId old, int writer) const {
  const std::vector<int>& ops = uses_[old].ops;  // the latest is the most likely to be open
  return std::none_of(ops.rbegin(), ops.rend(), [&](int op) { return is_open(op, writer); });
}

std::vector<int> Arena::open_uses(StorageId old, int writer) const {
  std::vector<int> open;
  for (int op : uses_[old].ops) {
    if (is_open(op, writer)) open.push_back(op);
  }
  return open;
}

Arena::Standing Arena::standing(StorageId old, StorageId now) const {
  const std::vector<int>& writers = uses_[now].writers;
  const bool dead = std::all_of(writers.begin(), writers.end(), [&](int w) { return all_finished(old, w); });
  if (dead) return Standing::kDead;
  // By the schedule's clock the waits find their counters long reached: twenty hops, for what the clock does not know.
  const double margin = 20 * options_.machine.costs.hop;
  if (writers.size() != 1) return Standing::kAlive;
  for (int op : uses_[old].ops) {
    if (!is_open(op, writers.front())) continue;
    if (op >= writers.front() || timeline_.finish[op] + margin > timeline_.start[writers.front()]) {
      return Standing::kAlive;
    }
  }
  return Standing::kCheap;
}

int64_t Arena::lowest_gap(int64_t size, const std::vector<Standing>& standings) const {
  int64_t at = 0;
  for (size_t i = 0; i < tenants_.size(); ++i) {
    const Tenant& tenant = tenants_[i];
    if (tenant.end <= at || standings[i] == Standing::kDead) continue;
    if (tenant.begin >= at + size) break;
    at = tenant.end;
  }
  return at;
}

bool Arena::free_of(int64_t begin, int64_t end, const std::vector<Standing>& standings) const {
  const auto first =
      std::partition_point(tenants_.begin(), tenants_.end(), [&](const Tenant& t) { return t.end <= begin; });
  for (auto i = static_cast<size_t>(first - tenants_.begin()); i < tenants_.size() && tenants_[i].begin < end; ++i) {
    if (tenants_[i].end > begin && standings[i] == Standing::kAlive) return false;
  }
  return true;
}

/// Ops that the writer of `now` must wait for so that all tenants of [begin, end) are dead. `open`: the open uses of
/// each tenant, filled when asked for. Fewer than `most`, or none at all is returned.
std::optional<std::vector<int>> Arena::waits_for(StorageId now, int64_t begin, int64_t end,
                                                 std::vector<std::optional<std::vector<int>>>& open,
                                                 size_t most) const {
  const int writer = uses_[now].writers.front();
  std::vector<int> all;
  const auto first =
      std::partition_point(tenants_.begin(), tenants_.end(), [&](const Tenant& t) { return t.end <= begin; });
  for (auto tenant = first; tenant != tenants_.end() && tenant->begin < end; ++tenant) {
    std::optional<std::vector<int>>& more = open[static_cast<size_t>(tenant - tenants_.begin())];
    if (!more) more = open_uses(tenant->storage, writer);
    all.insert(all.end(), more->begin(), more->end());
  }
  std::sort(all.begin(), all.end(), std::greater<>());
  all.erase(std::unique(all.begin(), all.end()), all.end());
  std::vector<int> needed;  // latest first: a later op often finishes after an earlier one by itself
  for (int op : all) {
    const bool follows = std::any_of(needed.begin(), needed.end(), [&](int n) { return finished_.after[n].has(op); });
    if (follows) continue;
    needed.push_back(op);
    if (needed.size() >= most) return std::nullopt;
  }
  return needed;
}

bool Arena::have_room(int writer, const std::vector<int>& waits) const {
  const auto record = [&](int op) -> const abi::OpRecord& { return draft_.graph.ops[op].op.record; };
  if (record(writer).num_waits + static_cast<int>(waits.size()) > abi::kMaxWaits) return false;
  return std::all_of(waits.begin(), waits.end(), [&](int op) {
    if (sync_.whole_counter[op] >= 0) return true;
    const bool sends = has_several_groups(draft_.graph) && is_exchange(draft_.graph, draft_.graph.ops[op]);
    return !sends && record(op).num_arrivals < abi::kMaxArrivals;  // counters of a group lie together
  });
}

/// The place inside the arena that needs the fewest additional waits (then the lowest), with these waits added; -1:
/// none.
int64_t Arena::place_with_waits(StorageId storage, int64_t size, const std::vector<Standing>& standings) {
  const int writer = uses_[storage].writers.front();
  int64_t best = -1;
  std::vector<int> best_waits;
  int64_t last = -1;
  std::vector<std::optional<std::vector<int>>> open(tenants_.size());
  const size_t most = static_cast<size_t>(abi::kMaxWaits - draft_.graph.ops[writer].op.record.num_waits) + 1;
  for (const Tenant& tenant : tenants_) {
    const int64_t at = tenant.begin;
    if (at == last || at + size > size_ || !free_of(at, at + size, standings)) continue;
    last = at;
    std::optional<std::vector<int>> waits =
        waits_for(storage, at, at + size, open, best >= 0 ? best_waits.size() : most);
    if (!waits || !have_room(writer, *waits)) continue;
    best = at;
    best_waits = std::move(*waits);
    if (best_waits.size() == 1) break;
  }
  for (int op : best_waits)
    check(add_full_wait(draft_, sync_, writer, op), "place_memory: no room for a wait on op ", op);
  if (!best_waits.empty()) finished_.derive(writer, sync_.sources[writer]);
  return best;
}

int64_t Arena::place(StorageId storage, int64_t size_bytes) {
  const int64_t size = (std::max<int64_t>(size_bytes, 1) + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
  int64_t at = size_;
  if (options_.reuse_memory) {
    std::vector<Standing> standings;
    for (const Tenant& tenant : tenants_) standings.push_back(standing(tenant.storage, storage));
    at = lowest_gap(size, standings);
    constexpr int64_t kWorthWaiting = 64 * 1024;
    if (at + size > size_ && size >= kWorthWaiting && uses_[storage].writers.size() == 1) {
      const int64_t inside = place_with_waits(storage, size, standings);
      if (inside >= 0) at = inside;
    }
  }
  move_in({storage, at, at + size});
  size_ = std::max(size_, at + size);
  return at;
}

/// Takes the bytes away from whoever had them: who comes after the new tenant comes after all that its writers waited
/// for, so the old ones need not be asked again.
void Arena::move_in(const Tenant& added) {
  std::vector<Tenant> left;
  left.reserve(tenants_.size() + 2);
  bool placed = false;
  auto keep = [&](StorageId storage, int64_t begin, int64_t end) {
    if (begin < end) left.push_back({storage, begin, end});
  };
  for (const Tenant& t : tenants_) {
    keep(t.storage, t.begin, std::min(t.end, added.begin));
    if (!placed && t.end > added.begin) {
      left.push_back(added);
      placed = true;
    }
    keep(t.storage, std::max(t.begin, added.end), t.end);
  }
  if (!placed) left.push_back(added);
  tenants_ = std::move(left);
}

/// Of joined boxes the operand goes to one: out-boxes are every second slot.
int32_t slot_of_rank(const FusedGraph& graph, const Storage& storage, abi::Operand& operand) {
  if (!storage.joined_boxes()) return 0;
  const int64_t box = storage.num_elements / world_of(graph, storage.group);
  const auto rank = static_cast<int32_t>(operand.offset / box);
  operand.offset %= box;
  return 2 * rank;
}

/// `out_slot_of`: of what is written, where that is another slot.
void rename_slots(Draft& draft, const std::vector<int32_t>& slot_of, const std::vector<int32_t>& out_slot_of = {}) {
  for (FusedOp& op : draft.graph.ops) {
    for (size_t x = 0; x < op.access.size(); ++x) {
      abi::Operand& operand = op.op.operands[x];
      if (op.access[x] == Access::kParameters || operand.slot == abi::kNoSlot) continue;
      const uint32_t slot = operand.slot;
      const bool out = op.access[x] == Access::kWrite && !out_slot_of.empty() && out_slot_of[slot] >= 0;
      operand.slot = static_cast<uint32_t>((out ? out_slot_of : slot_of)[slot]);
      if (out) operand.slot += static_cast<uint32_t>(slot_of_rank(draft.graph, draft.graph.storages[slot], operand));
    }
  }
  for (plan::TensorMap& map : draft.maps) map.slot = static_cast<uint32_t>(slot_of[map.slot]);
}

/// A launch carries a limited number of addresses: the whole arena becomes one buffer, places in it become offsets.
void join_arena(Draft& draft, plan::Plan& plan) {
  std::vector<plan::Buffer> kept;
  std::vector<int64_t> moved(plan.buffers.size(), 0);  // bytes
  std::vector<int32_t> slot_of(plan.buffers.size(), -1);
  plan::Buffer arena{.size_bytes = plan.arena_bytes, .name = "arena"};
  arena.first_op = 0;
  arena.last_op = static_cast<int32_t>(draft.graph.ops.size()) - 1;
  for (size_t b = 0; b < plan.buffers.size(); ++b) {
    if (plan.buffers[b].kind == plan::BufferKind::kArena) {
      moved[b] = plan.buffers[b].arena_offset;
      continue;
    }
    slot_of[b] = static_cast<int32_t>(kept.size());
    kept.push_back(std::move(plan.buffers[b]));
  }
  for (size_t b = 0; b < plan.buffers.size(); ++b) {
    if (slot_of[b] < 0) slot_of[b] = static_cast<int32_t>(kept.size());
  }
  kept.push_back(std::move(arena));
  for (plan::Buffer& buffer : kept)
    if (buffer.twin >= 0) buffer.twin = slot_of[static_cast<size_t>(buffer.twin)];
  for (FusedOp& op : draft.graph.ops) {
    for (size_t x = 0; x < op.access.size(); ++x) {
      abi::Operand& operand = op.op.operands[x];
      if (op.access[x] == Access::kParameters || operand.slot == abi::kNoSlot) continue;
      operand.offset += moved[operand.slot] / size_bytes(static_cast<DType>(operand.dtype));
    }
  }
  for (plan::TensorMap& map : draft.maps) map.offset_bytes += moved[map.slot];
  rename_slots(draft, slot_of);
  plan.buffers = std::move(kept);
}

/// The box of what rank `source` sends in slot `slot`, and the out-box that is its twin, in a new one, which is
/// returned.
int32_t add_box(plan::Plan& plan, int32_t slot, int64_t begin, int32_t source) {
  plan::Buffer& box = plan.buffers[static_cast<size_t>(slot)];
  box.kind = plan::BufferKind::kBox;
  box.index = source;
  box.arena_offset = begin + plan::box_stride(box.size_bytes) * source;
  plan::Buffer out = box;
  out.kind = plan::BufferKind::kBoxOut;
  out.twin = slot;
  plan.buffers.push_back(std::move(out));
  return static_cast<int32_t>(plan.buffers.size()) - 1;
}

/// Joined boxes: one slot for all of them, which are read; out-boxes are the slots `first` + 2 * rank.
int32_t add_joined(plan::Plan& plan, int32_t slot, int64_t begin, int32_t world) {
  plan::Buffer box = plan.buffers[static_cast<size_t>(slot)];
  box.size_bytes /= world;
  const auto first = static_cast<int32_t>(plan.buffers.size());
  for (int32_t rank = 0; rank < world; ++rank) {
    plan.buffers.push_back(box);
    add_box(plan, static_cast<int32_t>(plan.buffers.size()) - 1, begin, rank);
  }
  plan::Buffer& joined = plan.buffers[static_cast<size_t>(slot)];
  joined.kind = plan::BufferKind::kBoxes;
  joined.index = 0, joined.twin = first;
  joined.arena_offset = begin;
  return first + 1;
}

/// Boxes of an exchange lie side by side. A box is read in one slot and written, at the rank that it stands for,
/// through another. Slots of what is written, per storage; of joined boxes, of what is written to rank 0.
std::vector<int32_t> add_boxes(const FusedGraph& graph, const BoxPlaces& places, const std::vector<int32_t>& slot_of,
                               plan::Plan& plan) {
  std::vector<int32_t> out_slot_of(graph.storages.size(), -1);
  plan.world = graph.world;
  plan.splits = graph.splits;
  plan.more_groups = graph.more_groups;
  for (size_t s = 0; s < graph.storages.size(); ++s) {
    if (places.begin[s] < 0) continue;
    const Storage& storage = graph.storages[s];
    plan.buffers[static_cast<size_t>(slot_of[s])].group = storage.group;
    out_slot_of[s] = storage.joined_boxes()
                         ? add_joined(plan, slot_of[s], places.begin[s], world_of(graph, storage.group))
                         : add_box(plan, slot_of[s], places.begin[s], storage.source);
  }
  plan.box_bytes = places.size[0];
  for (size_t g = 0; g < plan.more_groups.size(); ++g) plan.more_groups[g].box_bytes = places.size[g + 1];
  return out_slot_of;
}

/// The parts of uneven exchanges: those that nobody writes here come from other ranks.
void add_parts(const FusedGraph& graph, const std::vector<int32_t>& slot_of, const Arena& arena, plan::Plan& plan) {
  std::map<std::pair<int32_t, int32_t>, int32_t> boxes;  // slots, by exchange and rank
  for (size_t s = 0; s < graph.storages.size(); ++s)
    if (graph.storages[s].exchange >= 0) boxes[{graph.storages[s].exchange, graph.storages[s].source}] = slot_of[s];
  for (size_t s = 0; s < graph.storages.size(); ++s) {
    const Storage& storage = graph.storages[s];
    if (storage.part < 0 || slot_of[s] < 0) continue;
    plan::Buffer& part = plan.buffers[static_cast<size_t>(slot_of[s])];
    const bool out = !arena.use(static_cast<StorageId>(s)).writers.empty();
    part.kind = out ? plan::BufferKind::kPartOut : plan::BufferKind::kPart;
    part.index = storage.source, part.arena_offset = storage.part;
    part.twin = boxes.at({storage.part, storage.source});
  }
}

}  // namespace

void place_memory(Draft& draft, const Options& options, const Timeline& timeline, Sync& sync, plan::Plan& plan) {
  const FusedGraph& graph = draft.graph;
  const int num_storages = static_cast<int>(graph.storages.size());
  const BoxPlaces boxes = place_boxes(draft, options, sync);
  Arena arena(draft, options, timeline, sync);
  std::vector<int32_t> fresh_of(num_storages, -1), slot_of(num_storages, -1);
  for (size_t f = 0; f < graph.fresh_storage.size(); ++f) fresh_of[graph.fresh_storage[f]] = static_cast<int32_t>(f);
  std::vector<std::vector<StorageId>> begins(graph.ops.size());  // intermediates by the op that uses them first
  for (StorageId s = 0; s < num_storages; ++s) {
    const Storage& storage = graph.storages[s];
    const std::vector<int>& ops = arena.use(s).ops;
    plan::Buffer buffer;
    buffer.name = storage.name;
    buffer.size_bytes = storage.num_elements * size_bytes(storage.dtype);
    buffer.immutable = storage.immutable;
    if (!ops.empty()) {
      buffer.first_op = ops.front();
      buffer.last_op = ops.back();
    }
    if (storage.input >= 0) {
      buffer.kind = plan::BufferKind::kInput;
      buffer.index = storage.input;
    } else if (fresh_of[s] >= 0) {
      buffer.kind = plan::BufferKind::kOutput;
      buffer.index = fresh_of[s];
    } else if (ops.empty()) {
      continue;  // nobody touches it
    } else {
      check(buffer.size_bytes == 0 || storage.part >= 0 || !arena.use(s).writers.empty(), "storage '", storage.name,
            "' is read but never written");
      if (storage.exchange < 0 && storage.part < 0) begins[ops.front()].push_back(s);
    }
    slot_of[s] = static_cast<int32_t>(plan.buffers.size());
    plan.buffers.push_back(std::move(buffer));
  }
  for (size_t i = 0; i < begins.size(); ++i) {
    arena.enter(static_cast<int>(i));
    for (StorageId s : begins[i]) {
      plan::Buffer& buffer = plan.buffers[slot_of[s]];
      buffer.arena_offset = arena.place(s, buffer.size_bytes);
    }
  }
  plan.arena_bytes = arena.size();
  const std::vector<int32_t> out_slot_of = add_boxes(graph, boxes, slot_of, plan);
  add_parts(graph, slot_of, arena, plan);
  rename_slots(draft, slot_of, out_slot_of);
  if (static_cast<int64_t>(plan.buffers.size()) > options.max_slots) join_arena(draft, plan);
  check<UnsupportedError>(static_cast<int64_t>(plan.buffers.size()) <= options.max_slots, "the graph has ",
                          plan.buffers.size(), " inputs and outputs, a launch carries ", options.max_slots,
                          " addresses");
}

}  // namespace ark::planner
