#include "planner/order/schedule.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "plan/kinds.h"
#include "planner/background.h"
#include "planner/cost.h"
#include "planner/order/counters.h"
#include "planner/order/overlap.h"
#include "planner/order/visiting_order.h"

namespace ark::planner {
namespace {

struct Worker {
  double free = 0;      // when its consumers have finished the list so far
  double loaded = 0;    // when its loader has streamed everything so far
  double bytes = 0;     // streamed by few-row matmuls, for balance
  int kept_until = -1;  // an op that sends: others leave the worker to it
};

/// Workers by when they are free; of those free at once, by number: a ring in that order. Most tiles of an op end after
/// those placed before them, so that a worker goes back at or near the end.
class FreeWorkers {
 public:
  explicit FreeWorkers(size_t workers) : ring_(std::bit_ceil(workers)), workers_(workers) {}
  /// Without those that are kept for ops from number `op` + 1 on.
  void sort(const std::vector<Worker>& workers, int op) {
    first_ = workers_ = 0;
    for (size_t w = 0; w < workers.size(); ++w)
      if (workers[w].kept_until <= op) ring_[workers_++] = {workers[w].free, static_cast<int>(w)};
    std::sort(ring_.begin(), ring_.begin() + static_cast<ptrdiff_t>(workers_));
  }
  size_t size() const { return workers_; }
  /// Only the first ones are left.
  void keep_first(size_t count) { workers_ = std::min(workers_, count); }
  /// The numbers of the last ones, which are not in the ring from now on.
  std::vector<int> take_last(size_t count) {
    std::vector<int> taken;
    for (; count > 0 && workers_ > 1; --count)
      taken.push_back(ring_[(first_ + --workers_) & (ring_.size() - 1)].worker);
    return taken;
  }
  double free() const { return ring_[first_].free; }
  int worker() const { return ring_[first_].worker; }
  /// The first worker is busy until then.
  void keep_busy(double free) {
    const Entry moved{free, worker()};
    const size_t mask = ring_.size() - 1, begin = first_ + 1;
    size_t at = first_ + workers_;
    for (; at > begin && moved < ring_[(at - 1) & mask]; --at) ring_[at & mask] = ring_[(at - 1) & mask];
    ring_[at & mask] = moved;
    first_ = begin & mask;
  }

 private:
  struct Entry {
    double free = 0;
    int worker = 0;
    bool operator<(const Entry& o) const { return free < o.free || (free == o.free && worker < o.worker); }
  };
  std::vector<Entry> ring_;
  size_t workers_, first_ = 0;
};

/// The blocks of counters that each tile of an op waits for, or arrives on.
class TileBlocks {
 public:
  TileBlocks() = default;
  TileBlocks(const RowMap& map, const abi::OpRecord& record, CounterMemo& memo) {
    constexpr int kFirst[3] = {0, 0, 0};
    if (std::ranges::all_of(map.coef, [](int coef) { return coef == 0; })) {
      all_ = blocks_of(map, kFirst);
    } else {
      per_tile_ = memo.blocks(map, record);
    }
  }
  bool alike() const { return per_tile_ == nullptr; }
  Interval of(int64_t tile) const { return alike() ? all_ : (*per_tile_)[static_cast<size_t>(tile)]; }

 private:
  Blocks per_tile_;
  Interval all_;  // where all tiles have the same
};

class Scheduler {
 public:
  Scheduler(Draft& draft, const Options& options)
      : draft_(draft),
        machine_(options.machine),
        workers_(machine_.num_workers),
        queue_(workers_.size()),
        reached_(draft.num_counters, 0.0),
        shares_(share_workers(draft, options)) {
    int64_t tiles = 0;  // at most as many items
    for (const FusedOp& fused : draft_.graph.ops) tiles += num_tiles(fused.op.record);
    draft_.lists.assign(machine_.num_workers, {});
    const int64_t items = std::min(tiles / machine_.num_workers + 64, kMostReserved);
    for (std::vector<abi::WorkItem>& list : draft_.lists) list.reserve(static_cast<size_t>(items));
  }

  Timeline run() {
    const size_t num_ops = draft_.graph.ops.size();
    timeline_.start.assign(num_ops, 0.0);
    timeline_.finish.assign(num_ops, 0.0);
    for (size_t i = 0; i < num_ops; ++i) {
      op_ = static_cast<int>(i);
      if (num_tiles(record()) == 0) continue;
      timeline_.start[i] = 1e30;
      look_up_maps();
      if (shares_[i].background) {
        place_in_background();
      } else {
        plan::kind_of(record()).items == plan::Items::kByBytes ? place_rows() : place_tiles();
      }
      timeline_.end = std::max(timeline_.end, timeline_.finish[i]);
    }
    return std::move(timeline_);
  }

 private:
  static constexpr int64_t kMostReserved = 1024;  // items of a worker's list

  const plan::Op& op() const { return draft_.graph.ops[op_].op; }
  const abi::OpRecord& record() const { return op().record; }

  void look_up_maps();
  double reached(int wait, int64_t tile);
  double ready(int64_t first, int64_t count);
  void arrive(int64_t first, int64_t count, double when);
  void list(int worker, int64_t first, int64_t count, double start, double finish);
  void put(int worker, int64_t first, int64_t count, double start, double finish);
  void find_workers();
  double sent(double start, double bytes);
  void place_tiles();
  void place_rows();
  void place_in_background();

  Draft& draft_;
  const Machine& machine_;
  std::vector<Worker> workers_;
  FreeWorkers queue_;
  bool queue_is_old_ = true;
  std::vector<double> reached_;  // per counter: when its last arrival so far was
  const std::vector<Share> shares_;
  double link_free_ = 0;  // when everything sent so far has arrived
  Timeline timeline_;
  int op_ = 0;
  // Of the op that is placed: the blocks of its tiles, and when the blocks from one on are reached (earlier ops reach
  // them).
  struct Known {
    int64_t end = -1;
    double when = 0;
  };
  CounterMemo memo_;
  TileBlocks waits_[abi::kMaxWaits], arrivals_[abi::kMaxArrivals];
  std::vector<Known> known_[abi::kMaxWaits];
};

void Scheduler::look_up_maps() {
  for (int w = 0; w < record().num_waits; ++w) {
    const abi::Wait& wait = record().wait[w];
    waits_[w] = TileBlocks(row_map(wait), record(), memo_);
    known_[w].assign(static_cast<size_t>(wait.limit <= 0 ? 1 : (wait.limit - 1) / wait.div + 2), Known{});
  }
  for (int a = 0; a < record().num_arrivals; ++a) arrivals_[a] = TileBlocks(record().arrive[a], record(), memo_);
}

double Scheduler::reached(int w, int64_t tile) {
  const bool own = tile < abi::tiles_of_outer(record());  // of a list's first batch
  if (own && record().wait[w].role == static_cast<int>(abi::WaitRole::kSource)) return 0;
  const Interval blocks = waits_[w].of(tile);
  if (blocks.empty()) return 0;
  Known& known = known_[w][static_cast<size_t>(blocks.begin)];
  if (known.end == blocks.end) return known.when;
  known = {blocks.end, 0};
  const double* of_counter = reached_.data() + record().wait[w].counter;
  for (int64_t b = blocks.begin; b < blocks.end; ++b) known.when = std::max(known.when, of_counter[b]);
  known.when += machine_.costs.hop;
  return known.when;
}

double Scheduler::ready(int64_t first, int64_t count) {
  double when = 0;
  for (int w = 0; w < record().num_waits; ++w) {
    const int64_t end = waits_[w].alike() ? first + 1 : first + count;
    for (int64_t tile = first; tile < end; ++tile) when = std::max(when, reached(w, tile));
  }
  return when;
}

void Scheduler::arrive(int64_t first, int64_t count, double when) {
  for (int a = 0; a < record().num_arrivals; ++a) {
    double* of_counter = reached_.data() + record().arrive[a].counter;
    const int64_t end = arrivals_[a].alike() ? first + 1 : first + count;
    for (int64_t tile = first; tile < end; ++tile) {
      const Interval blocks = arrivals_[a].of(tile);
      for (int64_t b = blocks.begin; b < blocks.end; ++b) of_counter[b] = std::max(of_counter[b], when);
    }
  }
}

void Scheduler::list(int worker, int64_t first, int64_t count, double start, double finish) {
  draft_.lists[worker].push_back({0, static_cast<int>(first), static_cast<int>(count), op_});
  arrive(first, count, finish);
  timeline_.start[op_] = std::min(timeline_.start[op_], start);
  timeline_.finish[op_] = std::max(timeline_.finish[op_], finish);
}

void Scheduler::put(int worker, int64_t first, int64_t count, double start, double finish) {
  list(worker, first, count, start, finish);
  workers_[worker].free = finish;
}

/// Tiles per item: one for the heavy kinds, whose results others wait for; small tiles share the cost of an item. What
/// is elementwise or rows and alone, in a graph where nobody waits for anything, is one item a worker: rows are loaded
/// ahead within an item.
int64_t tiles_per_item(const abi::OpRecord& record, int64_t workers, bool alone) {
  constexpr int kItemsPerWorker = 3;
  const int64_t tiles = num_tiles(record);
  const bool walks = record.kind == abi::TaskKind::kPointwise || record.kind == abi::TaskKind::kRow;
  if (walks && alone) return std::max<int64_t>(1, (tiles + workers - 1) / workers);
  if (record.kind == abi::TaskKind::kAttentionDecode) return std::max(1, record.params.attention.tiles_at_once);
  switch (plan::kind_of(record).items) {
    case plan::Items::kOne:
      return 1;
    case plan::Items::kPerWorker:
      return std::max<int64_t>(1, (tiles + workers - 1) / workers);
    case plan::Items::kSmallTiles:
      return std::max<int64_t>(1, tiles / (kItemsPerWorker * workers));
    case plan::Items::kByBytes:
      break;
  }
  throw InternalError("items by bytes are placed by place_rows");
}

/// The workers that may have tiles of the op. Those that it leaves to an op that sends are the last ones to be free:
/// that op has nothing to send before the first results.
void Scheduler::find_workers() {
  const Share& share = shares_[op_];
  if (std::exchange(queue_is_old_, false)) queue_.sort(workers_, op_);
  if (share.until >= 0) {
    const size_t kept = workers_.size() - queue_.size(), spare = static_cast<size_t>(share.spare);
    for (int w : queue_.take_last(spare - std::min(spare, kept))) workers_[w].kept_until = share.until;
  }
  queue_.keep_first(static_cast<size_t>(share.most));
  queue_is_old_ = queue_.size() < workers_.size();
}

/// When the link has carried what is stored from `start` on.
double Scheduler::sent(double start, double bytes) {
  return link_free_ = std::max(link_free_, start) + bytes / machine_.link_bytes_per_second;
}

void Scheduler::place_tiles() {
  find_workers();
  const std::vector<int64_t> order = visiting_order(
      op(), shares_[op_].m_order, sends_by_batch(draft_.graph, draft_.graph.ops[static_cast<size_t>(op_)]));
  const int64_t tiles = num_tiles(record());
  const double seconds = tile_seconds(draft_.graph, draft_.graph.ops[op_], machine_);
  const double bytes = sent_bytes(draft_.graph, draft_.graph.ops[op_]) / static_cast<double>(tiles);
  const std::vector<double> weights = tile_weights(op());
  const int64_t chunk = tiles_per_item(record(), machine_.num_workers, draft_.num_counters == 0 && bytes == 0);
  for (int64_t i = 0; i < tiles; i += chunk) {
    const int64_t first = order[i], count = std::min(chunk, tiles - i);
    const int worker = queue_.worker();
    const double start = std::max(queue_.free(), ready(first, count));
    const bool alike = weights.empty() || chunk > 1;
    const double weight = alike ? 1 : weights[static_cast<size_t>(first % record().grid[abi::GridAxis::kBlock])];
    const double own = start + machine_.costs.item + seconds * weight * static_cast<double>(count);
    const double finish = bytes == 0 ? own : std::max(own, sent(start, bytes * static_cast<double>(count)));
    put(worker, first, count, start, finish);
    queue_.keep_busy(finish);
  }
  for (Worker& worker : workers_) worker.loaded = std::max(worker.loaded, worker.free);
}

/// Tiles in line over all workers, whose consumers have no part in it: what takes time is the link.
void Scheduler::place_in_background() {
  FusedOp& sender = draft_.graph.ops[static_cast<size_t>(op_)];
  sender.op.record.background = own_box_is_read(draft_.graph, sender) ? abi::kToAll : abi::kToOthers;
  const int64_t tiles = num_tiles(record());
  const double bytes = sent_bytes(draft_.graph, draft_.graph.ops[op_]) / static_cast<double>(tiles);
  for (int64_t tile = 0; tile < tiles; ++tile) {
    const double start = ready(tile, 1);
    list(static_cast<int>(tile % machine_.num_workers), tile, 1, start, sent(start, bytes));
  }
}

/// Of weights [k][n]: sums of an item, of one row or from window to window of k, wait in whole strips of a segment.
int64_t column_item_end(const abi::MatmulRowsParams& params, int64_t unit) {
  if (params.m > 1 && abi::column_windows(params.m, params.k) == 1) return params.num_units;
  int64_t end = unit + abi::kMaxRowsPerItem / params.lanes;
  for (int s = 0; s < params.num_segments; ++s) {
    const int64_t border = params.segment[s].first_unit + params.segment[s].num_units;
    if (unit < border) end = std::min(end, border);
  }
  return end;
}

/// Where an item that starts at `unit` must end at the latest.
int64_t item_end(const abi::MatmulRowsParams& params, int64_t unit) {
  constexpr int kPageElements = 8192;
  if (params.columns != 0) return column_item_end(params, unit);
  const bool strips = params.m > 1 && size_bytes(static_cast<DType>(params.dtype)) == 2;
  if (strips) {  // sums wait only for further windows of k; every segment may end within a strip
    constexpr int kHeldRows = abi::kMaxRowsPerItem - abi::kMaxSegments * abi::kStripRows;
    return abi::strip_windows(params.m, params.k) == 1 ? params.num_units : unit + kHeldRows / params.lanes;
  }
  // With short rows every segment of an item takes whole pages of sums (8192 / k rows each), which must fit the same
  // memory as kMaxRowsPerItem rows.
  const int64_t most = unit + std::max(1, abi::kMaxRowsPerItem / std::max(1, params.lanes));
  if (kPageElements / params.k * params.num_segments * 2 <= abi::kMaxRowsPerItem) return most;
  for (int s = 0; s < params.num_segments; ++s) {
    const int64_t end = params.segment[s].first_unit + params.segment[s].num_units;
    if (unit < end) return std::min(most, end);
  }
  return most;
}

/// Where workers' shares of a few-row product may begin, and its end: units, of weights [k][n] whole strips.
std::vector<int64_t> share_borders(const abi::MatmulRowsParams& params) {
  std::vector<int64_t> borders;
  for (int s = 0; s < params.num_segments; ++s) {
    const abi::Segment& segment = params.segment[s];
    for (int unit = 0; unit < segment.num_units; unit += std::max(1, params.columns))
      borders.push_back(segment.first_unit + unit);
  }
  borders.push_back(params.num_units);
  return borders;
}

/// Weights stream ahead of the wait as far as the ring holds them; what is beyond it starts when the activation is
/// there.
void Scheduler::place_rows() {
  queue_is_old_ = true;
  const abi::MatmulRowsParams& params = record().params.rows;
  const int num_workers = machine_.num_workers;
  const int64_t units = num_tiles(record());
  const std::vector<int64_t> borders = share_borders(params);
  const auto pieces = static_cast<int64_t>(borders.size()) - 1;
  std::vector<int> by_load(num_workers);
  std::iota(by_load.begin(), by_load.end(), 0);
  std::stable_sort(by_load.begin(), by_load.end(), [&](int a, int b) { return workers_[a].bytes < workers_[b].bytes; });
  std::vector<int64_t> share(num_workers, pieces / num_workers);
  for (int64_t i = 0; i < pieces % num_workers; ++i) ++share[by_load[i]];

  const double bandwidth = machine_.read_bytes_per_second / num_workers;
  const double unit_bytes = static_cast<double>(op().bytes) / static_cast<double>(units);
  constexpr double kRingBytes = 12 * 16384;
  int64_t next = 0, piece = 0;
  for (int w = 0; w < num_workers; ++w) {
    Worker& worker = workers_[w];
    piece += share[w];
    for (const int64_t end = borders[static_cast<size_t>(piece)]; next < end;) {
      const int64_t count = std::min(end, item_end(params, next)) - next;
      const double bytes = unit_bytes * static_cast<double>(count), start = std::max(worker.free, ready(next, count));
      const double ahead = std::max(worker.loaded, worker.free - kRingBytes / bandwidth) + bytes / bandwidth;
      const double behind = start + std::max(0.0, bytes - kRingBytes) / bandwidth;
      worker.loaded = std::max(ahead, behind);
      worker.bytes += bytes;
      put(w, next, count, start, std::max(worker.loaded, start) + machine_.costs.item);
      next += count;
    }
  }
}

}  // namespace

Timeline schedule(Draft& draft, const Options& options) { return Scheduler(draft, options).run(); }

}  // namespace ark::planner
