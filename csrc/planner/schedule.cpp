#include "planner/schedule.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "planner/cost.h"
#include "planner/counters.h"

namespace ark::planner {
namespace {

using abi::TaskKind;

struct Worker {
  double free = 0;    // when its consumers have finished the list so far
  double loaded = 0;  // when its loader has streamed everything so far
  double bytes = 0;   // streamed by few-row matmuls, for balance
};

class Scheduler {
 public:
  Scheduler(Draft& draft, const Options& options)
      : draft_(draft), machine_(options.machine), workers_(machine_.num_workers), reached_(draft.num_counters, 0.0) {
    draft_.lists.assign(machine_.num_workers, {});
  }

  Timeline run() {
    const size_t num_ops = draft_.graph.ops.size();
    timeline_.start.assign(num_ops, 0.0);
    timeline_.finish.assign(num_ops, 0.0);
    for (size_t i = 0; i < num_ops; ++i) {
      op_ = static_cast<int>(i);
      if (num_tiles(record()) == 0) continue;
      timeline_.start[i] = 1e30;
      forget_waits();
      record().kind == TaskKind::kMatmulRows ? place_rows() : place_tiles();
      timeline_.end = std::max(timeline_.end, timeline_.finish[i]);
    }
    return std::move(timeline_);
  }

 private:
  const plan::Op& op() const { return draft_.graph.ops[op_].op; }
  const abi::OpRecord& record() const { return op().record; }

  void forget_waits();
  double reached(int wait, int64_t tile);
  double ready(int64_t first, int64_t count);
  void arrive(int64_t first, int64_t count, double when);
  void put(int worker, int64_t first, int64_t count, double start, double finish);
  void place_tiles();
  void place_rows();

  Draft& draft_;
  const Machine& machine_;
  std::vector<Worker> workers_;
  std::vector<double> reached_;  // per counter: when its last arrival so far was
  Timeline timeline_;
  int op_ = 0;
  /// Of the op's waits, by their first block: when the blocks from there on are reached (earlier ops reach them).
  struct Known {
    int64_t end = -1;
    double when = 0;
  };
  std::vector<Known> known_[abi::kMaxWaits];
};

void coordinates(const abi::OpRecord& record, int64_t tile, int c[3]) {
  const auto number = static_cast<uint32_t>(tile), n2 = static_cast<uint32_t>(record.grid[2]), rest = number / n2,
             n1 = static_cast<uint32_t>(record.grid[1]);
  c[2] = static_cast<int>(number - rest * n2);
  c[0] = static_cast<int>(rest / n1);
  c[1] = static_cast<int>(rest - static_cast<uint32_t>(c[0]) * n1);
}

bool is_fixed(const int coef[3]) { return coef[0] == 0 && coef[1] == 0 && coef[2] == 0; }

void Scheduler::forget_waits() {
  for (int w = 0; w < record().num_waits; ++w) {
    const abi::Wait& wait = record().wait[w];
    known_[w].assign(static_cast<size_t>(wait.limit <= 0 ? 1 : (wait.limit - 1) / wait.div + 2), Known{});
  }
}

double Scheduler::reached(int w, int64_t tile) {
  const abi::Wait& wait = record().wait[w];
  int c[3];
  coordinates(record(), tile, c);
  const Interval blocks = blocks_of(wait, c);
  if (blocks.begin >= blocks.end) return 0;
  Known& known = known_[w][static_cast<size_t>(blocks.begin)];
  if (known.end == blocks.end) return known.when;
  known = {blocks.end, 0};
  for (int64_t b = blocks.begin; b < blocks.end; ++b) known.when = std::max(known.when, reached_[wait.counter + b]);
  known.when += kHopSeconds;
  return known.when;
}

double Scheduler::ready(int64_t first, int64_t count) {
  double when = 0;
  for (int w = 0; w < record().num_waits; ++w) {
    const int64_t end = is_fixed(record().wait[w].coef) ? first + 1 : first + count;
    for (int64_t tile = first; tile < end; ++tile) when = std::max(when, reached(w, tile));
  }
  return when;
}

void Scheduler::arrive(int64_t first, int64_t count, double when) {
  for (int a = 0; a < record().num_arrivals; ++a) {
    const abi::Arrive& map = record().arrive[a];
    const int64_t end = is_fixed(map.coef) ? first + 1 : first + count;
    for (int64_t tile = first; tile < end; ++tile) {
      int c[3];
      coordinates(record(), tile, c);
      const Interval blocks = blocks_of(map, c);
      for (int64_t b = blocks.begin; b < blocks.end; ++b) {
        reached_[map.counter + b] = std::max(reached_[map.counter + b], when);
      }
    }
  }
}

void Scheduler::put(int worker, int64_t first, int64_t count, double start, double finish) {
  draft_.lists[worker].push_back({0, static_cast<int>(first), static_cast<int>(count), op_});
  arrive(first, count, finish);
  workers_[worker].free = finish;
  timeline_.start[op_] = std::min(timeline_.start[op_], start);
  timeline_.finish[op_] = std::max(timeline_.finish[op_], finish);
}

/// All heads of a block of queries, then the next block: what reads rows of all heads can start with the first blocks.
/// The longest tiles first where they differ, so that the short ones fill up what is left of the workers' time.
std::vector<int64_t> by_query_blocks(const plan::Op& op) {
  const abi::OpRecord& record = op.record;
  const bool triangle = sees_triangle(op);
  const int64_t heads = record.grid[1], blocks = record.grid[2];
  std::vector<int64_t> order;
  for (int64_t batch = 0; batch < record.grid[0]; ++batch)
    for (int64_t i = 0; i < blocks; ++i)
      for (int64_t head = 0; head < heads; ++head)
        order.push_back((batch * heads + head) * blocks + (triangle ? blocks - 1 - i : i));
  return order;
}

/// Tiles of a wide matmul in groups of 16 m blocks: the 132 tiles that run together then read about 16 x 128 rows of A
/// and 8 x 256 columns of B instead of one block row of A and all of B, which may exceed the L2.
std::vector<int64_t> visiting_order(const plan::Op& op) {
  constexpr int kGroup = 16;
  const abi::OpRecord& record = op.record;
  if (record.kind == TaskKind::kAttentionForward || record.kind == TaskKind::kAttentionBackwardQuery)
    return by_query_blocks(op);
  std::vector<int64_t> order(num_tiles(record));
  std::iota(order.begin(), order.end(), int64_t{0});
  if (record.kind != TaskKind::kMatmulTile || record.grid[2] <= kGroup) return order;
  size_t at = 0;
  for (int b = 0; b < record.grid[0]; ++b) {
    for (int m = 0; m < record.grid[1]; m += kGroup) {
      const int end = std::min(m + kGroup, record.grid[1]);
      for (int n = 0; n < record.grid[2]; ++n) {
        for (int i = m; i < end; ++i) order[at++] = (int64_t{b} * record.grid[1] + i) * record.grid[2] + n;
      }
    }
  }
  return order;
}

/// Tiles per item: one for the heavy kinds, whose results others wait for; small tiles share the cost of an item.
int64_t tiles_per_item(const abi::OpRecord& record, int workers) {
  switch (record.kind) {
    case TaskKind::kMatmulTile:
    case TaskKind::kAttentionDecode:
    case TaskKind::kAttentionForward:
    case TaskKind::kAttentionBackward:
    case TaskKind::kAttentionBackwardQuery:
      return 1;
    case TaskKind::kAttentionBackwardRows:  // a chain of latencies: as few items as give every worker one
      return std::max<int64_t>(1, (num_tiles(record) + workers - 1) / workers);
    default:
      break;
  }
  constexpr int kItemsPerWorker = 3;
  return std::max<int64_t>(1, num_tiles(record) / (int64_t{kItemsPerWorker} * workers));
}

/// Workers by when they are free; of those free at once, by number.
class FreeWorkers {
 public:
  struct Entry {
    double free;
    int worker;
    bool operator<(const Entry& o) const { return free < o.free || (free == o.free && worker < o.worker); }
  };
  explicit FreeWorkers(const std::vector<Worker>& workers) {
    for (size_t w = 0; w < workers.size(); ++w) heap_.push_back({workers[w].free, static_cast<int>(w)});
    std::make_heap(heap_.begin(), heap_.end(), [](const Entry& a, const Entry& b) { return b < a; });
  }
  const Entry& first() const { return heap_.front(); }
  /// The first worker is busy until then.
  void keep_busy(double free) {
    Entry entry{free, heap_.front().worker};
    size_t at = 0;
    for (size_t child = 1; child < heap_.size(); child = 2 * at + 1) {
      if (child + 1 < heap_.size() && heap_[child + 1] < heap_[child]) ++child;
      if (!(heap_[child] < entry)) break;
      heap_[at] = heap_[child];
      at = child;
    }
    heap_[at] = entry;
  }

 private:
  std::vector<Entry> heap_;
};

void Scheduler::place_tiles() {
  FreeWorkers queue(workers_);
  const std::vector<int64_t> order = visiting_order(op());
  const int64_t chunk = tiles_per_item(record(), machine_.num_workers), tiles = num_tiles(record());
  const double seconds = tile_seconds(op(), draft_.graph.programs, machine_);
  for (int64_t i = 0; i < tiles; i += chunk) {
    const int64_t first = order[i], count = std::min(chunk, tiles - i);
    const auto [free, worker] = queue.first();
    const double start = std::max(free, ready(first, count));
    const double weight = chunk == 1 ? tile_weight(op(), first) : 1;
    const double finish = start + kItemSeconds + seconds * weight * static_cast<double>(count);
    put(worker, first, count, start, finish);
    queue.keep_busy(finish);
  }
  for (Worker& worker : workers_) worker.loaded = std::max(worker.loaded, worker.free);
}

/// Where an item that starts at `unit` must end at the latest: with short rows every segment of an item takes whole
/// pages of sums (8192 / k rows each), which must fit the same memory as kMaxRowsPerItem rows.
int64_t segment_end(const abi::MatmulRowsParams& params, int64_t unit) {
  constexpr int kPageElements = 8192;
  if (kPageElements / params.k * params.num_segments * 2 <= abi::kMaxRowsPerItem) return params.num_units;
  for (int s = 0; s < params.num_segments; ++s) {
    const int64_t end = params.segment[s].first_unit + params.segment[s].num_units;
    if (unit < end) return end;
  }
  return params.num_units;
}

/// Weights stream ahead of the wait as far as the ring holds them; what is beyond it starts when the activation is
/// there.
void Scheduler::place_rows() {
  const abi::MatmulRowsParams& params = record().params.rows;
  const int num_workers = machine_.num_workers;
  const int64_t units = num_tiles(record()), per_item = std::max(1, abi::kMaxRowsPerItem / std::max(1, params.lanes));
  std::vector<int> by_load(num_workers);
  std::iota(by_load.begin(), by_load.end(), 0);
  std::stable_sort(by_load.begin(), by_load.end(), [&](int a, int b) { return workers_[a].bytes < workers_[b].bytes; });
  std::vector<int64_t> share(num_workers, units / num_workers);
  for (int64_t i = 0; i < units % num_workers; ++i) ++share[by_load[i]];

  const double bandwidth = machine_.read_bytes_per_second / num_workers;
  const double unit_bytes = static_cast<double>(op().bytes) / static_cast<double>(units);
  constexpr double kRingBytes = 12 * 16384;
  int64_t next = 0;
  for (int w = 0; w < num_workers; ++w) {
    Worker& worker = workers_[w];
    for (const int64_t end = next + share[w]; next < end;) {
      const int64_t count = std::min({per_item, end - next, segment_end(params, next) - next});
      const double bytes = unit_bytes * static_cast<double>(count), start = std::max(worker.free, ready(next, count));
      const double ahead = std::max(worker.loaded, worker.free - kRingBytes / bandwidth) + bytes / bandwidth;
      const double behind = start + std::max(0.0, bytes - kRingBytes) / bandwidth;
      worker.loaded = std::max(ahead, behind);
      worker.bytes += bytes;
      put(w, next, count, start, std::max(worker.loaded, start) + kItemSeconds);
      next += count;
    }
  }
}

}  // namespace

Timeline schedule(Draft& draft, const Options& options) { return Scheduler(draft, options).run(); }

}  // namespace ark::planner
