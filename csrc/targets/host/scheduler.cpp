#include "targets/host/scheduler.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "base/check.h"
#include "device/abi/wait.h"
#include "targets/host/border.h"
#include "targets/host/patience.h"
#include "targets/host/peers.h"
#include "targets/host/random.h"

namespace ark::targets::host {
namespace {

using abi::u32;

constexpr int kIdleScans = 200;  // about 50 us: longer than most waits between tiles
constexpr std::chrono::microseconds kIdleSleep{50};
constexpr int kIdleLook = 100;            // sleeps between two looks at whether other ranks are still there
constexpr uint64_t kLookUp = 20'000'000;  // ns between two questions of a loop to who has launched it
constexpr int kClaimAttempts = 1000;      // others hold a worker for a moment when nothing runs

uint64_t now_ns() { return static_cast<uint64_t>(std::chrono::steady_clock::now().time_since_epoch().count()); }

/// A counter that is not ready.
struct Blocked {
  int64_t tile = -1;
  u32 counter = 0, expected = 0;
  int source = 0, rank_stride = 0;  // of a wait for other ranks: whose counter it is
  bool alone = false;               // it waits for that rank, for no others
};

struct alignas(64) Worker {  // a cache line of its own: threads look at workers that others run
  std::atomic<bool> claimed{false};
  std::atomic<int64_t> iteration{0};  // that it is in, or waits for; stored by who has claimed it
  // The rest belongs to the thread that has claimed the worker.
  size_t item = 0;
  int64_t done = 0;          // tiles of the item
  int64_t first_record = 0;  // trace record of its first item
  bool blocked = false;
  Blocked why;
  uint64_t begin_ns = 0, start_ns = 0;
};

class Launch {
 public:
  Launch(const plan::Plan& plan, std::span<const std::unique_ptr<Task>> tasks, const Kernels& kernels,
         const LaunchOptions& options, LaunchMemory& memory)
      : plan_(plan),
        tasks_(tasks),
        kernels_(kernels),
        options_(options),
        memory_(memory),
        peers_(plan, options.ranks),
        workers_(plan.lists.size()),
        active_(with_list(plan)),
        border_(plan.loop, static_cast<int>(active_.size()), options.iterations, stop_flag(plan, options)) {
    epoch_ = options.state->epoch;
    int64_t records = 0;
    for (size_t w = 0; w < workers_.size(); ++w) {
      workers_[w].first_record = records;
      records += static_cast<int64_t>(plan.lists[w].size());
      workers_[w].begin_ns = options.trace ? now_ns() : 0;
    }
    progress_ns_ = looked_up_ns_ = now_ns();
  }

  void run() {
    const int threads = std::clamp<int>(options_.num_threads, 1, std::max<int>(1, static_cast<int>(active_.size())));
    shared_ = threads > 1;
    check_peers();
    if (static_cast<int>(memory_.scratch.size()) < threads) memory_.scratch.resize(threads);
    std::vector<std::jthread> helpers;
    try {
      for (int t = 1; t < threads; ++t) helpers.emplace_back([this, t] { run_thread(t); });
    } catch (const std::system_error&) {
      // no more threads: those that there are do all of it
    }
    run_thread(0);
    helpers.clear();
    note_iterations(error_ ? border_.open() : border_.done());
    if (error_) {
      if (!peers_.any()) reset();
      std::rethrow_exception(error_);
    }
    check_peers();
    options_.state->epoch = epoch_ + static_cast<u32>(border_.done());
    if (interruption_ && options_.state->index_error == 0) std::rethrow_exception(interruption_);
  }

 private:
  static std::vector<int> with_list(const plan::Plan& plan) {
    std::vector<int> workers;
    for (size_t w = 0; w < plan.lists.size(); ++w)
      if (!plan.lists[w].empty()) workers.push_back(static_cast<int>(w));
    return workers;
  }
  /// Asked between iterations; a single one runs in any case.
  static const uint8_t* stop_flag(const plan::Plan& plan, const LaunchOptions& options) {
    if (!options.iterations || plan.loop.go_slot < 0) return nullptr;
    return static_cast<const uint8_t*>(options.slots[static_cast<size_t>(plan.loop.go_slot)]);
  }
  void note_iterations(int64_t done) {
    if (options_.iterations) options_.iterations->done = done;
    memory_.launch += static_cast<uint64_t>(done);
  }

  int rank() const { return peers_.any() ? peers_.rank() : 0; }

  /// With `rank_stride` of an exchange.
  std::atomic_ref<u32> counter(u32 index, int rank_stride) const {
    return rank_stride != 0 ? peers_.counter(index) : counter_of(options_.state, index);
  }
  int ranks_of(u32 counter) const { return world_of(plan_, group_of_counter(plan_, counter)); }

  /// Counters only grow and may wrap: the difference is what counts.
  static bool reached(u32 seen, u32 expected) { return static_cast<int32_t>(seen - expected) >= 0; }

  struct Rows {
    int64_t first, last;  // counters, relative to the map's first; first > last: none
  };
  template <class Map>
  static Rows counters_of(const Map& map, const TileCoordinates& tile) {
    int64_t row = map.base;
    for (int i = 0; i < 3; ++i) row += tile.c[i] * map.coef[i];
    const int64_t begin = std::max<int64_t>(row, 0), end = std::min<int64_t>(row + map.extent, map.limit);
    if (begin >= end) return {0, -1};
    return {begin / map.div, (end - 1) / map.div};
  }

  bool ready(const abi::OpRecord& record, int64_t tile, int64_t iteration, Blocked& why) const {
    const u32 epoch = epoch_ + static_cast<u32>(iteration);
    const TileCoordinates coordinates = tile_coordinates(record, tile);
    for (int w = 0; w < record.num_waits; ++w) {
      const abi::Wait& wait = record.wait[w];
      const Rows rows = counters_of(wait, coordinates);
      const int64_t last_counter = (wait.limit - 1) / wait.div;
      for (int64_t r = rows.first; r <= rows.last; ++r) {
        const u32 target = r == last_counter ? wait.last_target : wait.target;
        const u32 expected = (epoch + 1) * target;
        const bool by_batch = wait.role == static_cast<int>(abi::WaitRole::kSource);
        const int sources = wait.rank_stride == 0 ? 1 : ranks_of(wait.counter);
        for (int source = 0; source < sources; ++source) {
          if (by_batch && (source != coordinates.c[0] || source == rank())) continue;
          const u32 index = wait.counter + static_cast<u32>(r) + static_cast<u32>(source * wait.rank_stride);
          if (reached(counter(index, wait.rank_stride).load(std::memory_order_acquire), expected)) continue;
          why = {tile, index, expected, source, wait.rank_stride, by_batch};
          return false;
        }
      }
    }
    return true;
  }

  void arrive(const abi::OpRecord& record, int64_t tile) const {
    const TileCoordinates coordinates = tile_coordinates(record, tile);
    for (int a = 0; a < record.num_arrivals; ++a) {
      const Rows rows = counters_of(record.arrive[a], coordinates);
      const int rank_stride = record.arrive_rank_stride[a];
      for (int64_t r = rows.first; r <= rows.last; ++r) {
        const u32 index = record.arrive[a].counter + static_cast<u32>(r);
        rank_stride != 0 ? peers_.arrive(index, rank_stride)
                         : void(counter(index, 0).fetch_add(1, std::memory_order_release));
      }
    }
  }

  /// Tiles of the worker's item to attempt at once: the rest of it, or now and then only a few.
  static int64_t burst(Random& random, int64_t left) {
    const uint32_t bits = random.next();
    return (bits & 3) ? left : std::min<int64_t>(left, 1 + (bits >> 2) % 3);
  }

  /// Runs some tiles of a claimed worker. False when its next tile is not ready.
  bool advance(Worker& worker, int index, Random& random, TileEnvironment& env) {
    const Blocked& why = worker.why;
    if (worker.blocked && !reached(counter(why.counter, why.rank_stride).load(std::memory_order_acquire), why.expected))
      return false;
    const abi::WorkItem& item = plan_.lists[index][worker.item];
    const abi::OpRecord& record = plan_.ops[item.op].record;
    const int64_t iteration = worker.iteration.load(std::memory_order_relaxed);
    const int64_t first = abi::turned_tile(record, item.first, rank()) + worker.done,
                  limit = burst(random, item.count - worker.done);
    int64_t count = 0;
    worker.blocked = false;
    while (count < limit && !worker.blocked) {
      worker.blocked = !ready(record, first + count, iteration, worker.why);
      count += !worker.blocked;
    }
    if (count == 0) return false;
    if (options_.trace && worker.done == 0) worker.start_ns = now_ns();
    running_.fetch_add(1, std::memory_order_relaxed);
    env.launch = memory_.launch + static_cast<uint64_t>(iteration);
    if (!tasks_[item.op]->run(env, first, count)) note_index_error(item.op, *env.index_error);
    for (int64_t tile = first; tile < first + count; ++tile) arrive(record, tile);
    worker.done += count;
    if (worker.done == item.count) finish_item(worker, index, item);
    progress_ns_.store(now_ns(), std::memory_order_relaxed);
    running_.fetch_sub(1, std::memory_order_relaxed);
    return true;
  }

  void finish_item(Worker& worker, int index, const abi::WorkItem& item) {
    if (options_.trace) {
      const uint64_t end = now_ns();
      options_.trace[worker.first_record + static_cast<int64_t>(worker.item)] = {
          item.op, item.first, item.count, index, worker.begin_ns, worker.start_ns, worker.start_ns, end};
      worker.begin_ns = end;
    }
    worker.done = 0;
    worker.blocked = false;
    if (++worker.item < plan_.lists[index].size()) return;
    worker.item = 0;
    worker.iteration.store(worker.iteration.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    border_.arrive();
  }

  /// The first one stays; read when all threads have left. No iteration follows.
  void note_index_error(int op, const IndexError& error) {
    border_.stop();
    u32 none = 0;
    std::atomic_ref<u32> noted(options_.state->index_error);
    if (!noted.compare_exchange_strong(none, static_cast<u32>(op) + 1, std::memory_order_relaxed)) return;
    options_.state->index_value = error.value;
    options_.state->index_limit = error.limit;
  }

  bool waits_at_border(const Worker& worker) const {
    return worker.iteration.load(std::memory_order_acquire) > border_.open();
  }

  /// Tries the workers from a random one on; false when none could run.
  bool step(Random& random, TileEnvironment& env) {
    const size_t n = active_.size(), start = random.next() % n;
    for (size_t i = 0; i < n; ++i) {
      const int index = active_[(start + i) % n];
      Worker& worker = workers_[index];
      if (waits_at_border(worker)) continue;
      if (shared_ &&
          (worker.claimed.load(std::memory_order_relaxed) || worker.claimed.exchange(true, std::memory_order_acquire)))
        continue;
      const bool ran = !waits_at_border(worker) && advance(worker, index, random, env);
      if (shared_) worker.claimed.store(false, std::memory_order_release);
      if (ran) return true;
    }
    return false;
  }

  void run_thread(int thread) {
    IndexError index_error;
    TileEnvironment env;
    env.index_error = &index_error;
    env.rank = rank();
    env.kernels = &kernels_;
    env.slots = options_.slots.data();
    env.scratch = &memory_.scratch[thread];
    Random random(options_.seed * 1024 + static_cast<uint64_t>(thread));
    try {
      int idle = 0;  // scans in a row that found nothing to run
      Patience patience;
      while (!border_.ended() && !failed_.load(std::memory_order_acquire)) {
        if (thread == 0) look_up();
        if (step(random, env)) {
          idle = 0;
          continue;
        }
        check_peers();
        check_deadline(patience);
        if (++idle < kIdleScans) {
          std::this_thread::yield();
        } else {
          if (peers_.any() && (idle - kIdleScans) % kIdleLook == 0) check_absent();
          std::this_thread::sleep_for(kIdleSleep);
        }
      }
    } catch (const std::exception& error) {
      fail(error.what());
    } catch (...) {
      fail("an exception of unknown type");
    }
  }

  /// By the thread that has launched: does it want an end?
  void look_up() {
    if (!options_.iterations || !options_.iterations->look_up || interruption_) return;
    const uint64_t now = now_ns();
    if (now - looked_up_ns_ < kLookUp) return;
    looked_up_ns_ = now;
    try {
      options_.iterations->look_up();
    } catch (...) {
      interruption_ = std::current_exception();
      border_.stop();
    }
  }

  /// Within a handler.
  void fail(const std::string& why) {
    const std::lock_guard lock(error_mutex_);
    if (!error_) error_ = std::current_exception();
    failed_.store(true, std::memory_order_release);
    peers_.give_up(why);
  }

  /// Looked at when nothing could run, at the start and at the end: who comes late finds all that it waits for.
  void check_peers() const {
    const GroupRank who = peers_.gave_up();
    if (who.rank < 0) return;
    const std::string why = who.rank == peers_.rank(who.group) ? std::string() : peers_.absence(who);
    throw DeviceError(cat(describe_launch(), ": rank ", who.rank, of_group(who.group),
                          " has given up, in this launch or an earlier one", why.empty() ? "" : ": it ", why));
  }

  /// Nothing could run: will it never, because a rank that has to send is not there any more? Ranks are looked at
  /// before what they have sent.
  void check_absent() {
    std::vector<std::vector<std::string>> absences;
    bool any = false;
    for (int32_t group = 0; group < peers_.num_groups(); ++group) {
      std::vector<std::string>& of_group = absences.emplace_back();
      for (int rank = 0; rank < world_of(plan_, group); ++rank) {
        of_group.push_back(peers_.absence({group, rank}));
        any = any || !of_group.back().empty();
      }
    }
    if (!any) return;
    for (int32_t group = 0; group < peers_.num_groups(); ++group) {
      const std::string& own = absences[static_cast<size_t>(group)][static_cast<size_t>(peers_.rank(group))];
      check<DeviceError>(own.empty(), describe_launch(), ": this rank ", own);
    }
    const Stuck stuck = find_stuck();
    if (stuck.worker < 0 || stuck.why.rank_stride == 0) return;
    const int32_t group = group_of_counter(plan_, stuck.why.counter);
    for (const int rank : missing_ranks(stuck.why)) {
      const std::string& why = absences[static_cast<size_t>(group)][static_cast<size_t>(rank)];
      check<DeviceError>(why.empty(), describe_launch(), ": rank ", rank, of_group(group), " ", why,
                         ". It has not sent what op ", stuck.item.op, " '", plan_.ops[stuck.item.op].name, "', tile ",
                         stuck.why.tile, ", waits for");
    }
  }

  /// Nothing could run: is that for good?
  void check_deadline(Patience& patience) {
    const bool busy = border_.ended() || running_.load(std::memory_order_relaxed) > 0;
    if (busy) return patience.renew();
    const uint64_t progress = progress_ns_.load(std::memory_order_relaxed);
    if (!patience.ends(now_ns(), progress, options_.deadline_ns)) return;
    const Stuck stuck = find_stuck();
    if (!peers_.any() || awaits(stuck.why) != Awaited::kOwn) throw DeviceError(describe_failure(stuck, 1));
    if (patience.ends(now_ns(), progress, abi::kOwnPatience * options_.deadline_ns))
      throw DeviceError(describe_failure(stuck, abi::kOwnPatience));
  }

  /// What has not come. A wait for peers is told before those that it holds up, which are for own tiles.
  enum class Awaited { kPeers, kBoth, kOwn };
  Awaited awaits(const Blocked& why) const {
    if (why.rank_stride == 0) return Awaited::kOwn;
    const std::vector<int> missing = missing_ranks(why);
    const bool own = std::ranges::find(missing, own_rank(why)) != missing.end();
    if (missing.size() == own) return Awaited::kOwn;  // or nothing: all has come by now
    return own ? Awaited::kBoth : Awaited::kPeers;
  }
  /// In the group whose counter it waits for.
  int own_rank(const Blocked& why) const { return peers_.rank(group_of_counter(plan_, why.counter)); }

  bool claim(Worker& worker) {
    for (int i = 0; i < kClaimAttempts; ++i) {
      if (!worker.claimed.exchange(true, std::memory_order_acquire)) return true;
      std::this_thread::yield();
    }
    return false;
  }

  /// Where there are several.
  std::string of_group(int32_t group) const {
    return plan_.more_groups.empty() ? "" : cat(" of group '", group_at(plan_, group).name, "'");
  }

  std::string describe_launch() const {
    const std::string iteration = options_.iterations ? cat(", iteration ", border_.open()) : "";
    if (!peers_.any()) return cat("host launch of '", plan_.name, "'", iteration);
    return cat("host launch ", epoch_, " of '", plan_.name, "' on rank ", peers_.rank(), of_group(0));
  }

  struct Stuck {
    int worker = -1;
    abi::WorkItem item{};
    Blocked why;
  };
  /// Of the workers that are stuck, one that waits for peers where there is one, and of these the one at the earliest
  /// op: the others most likely wait for what it should have done.
  Stuck find_stuck() {
    Stuck stuck;
    Awaited of_stuck = Awaited::kOwn;
    for (const int index : active_) {
      Worker& worker = workers_[index];
      if (shared_ && !claim(worker)) continue;
      if (worker.blocked) {
        const abi::WorkItem& candidate = plan_.lists[index][worker.item];
        const Awaited of_this = awaits(worker.why);
        if (stuck.worker < 0 || std::pair(of_this, candidate.op) < std::pair(of_stuck, stuck.item.op))
          stuck = {index, candidate, worker.why}, of_stuck = of_this;
      }
      if (shared_) worker.claimed.store(false, std::memory_order_release);
    }
    return stuck;
  }

  /// `patience`: deadlines that have passed.
  std::string describe_failure(const Stuck& stuck, int patience) const {
    const uint64_t waited_ns = patience * options_.deadline_ns;
    if (stuck.worker < 0)
      return cat(describe_launch(), ": no progress for ", waited_ns, " ns; ", border_.arrived(), " of ",
                 border_.arrivals(), " workers have ended their lists");
    if (stuck.why.rank_stride != 0) return describe_missing(stuck.item, stuck.why, waited_ns);
    return cat(describe_launch(), ": worker ", stuck.worker, " waited ", waited_ns, " ns in op ", stuck.item.op, " '",
               plan_.ops[stuck.item.op].name, "', tile ", stuck.why.tile, ", for counter ", stuck.why.counter,
               ": expected ", stuck.why.expected, ", seen ",
               counter(stuck.why.counter, 0).load(std::memory_order_acquire));
  }

  /// Which ranks have not sent what the tile waits for.
  std::vector<int> missing_ranks(const Blocked& why) const {
    if (why.alone) return {why.source};
    std::vector<int> missing;
    for (int rank = 0; rank < ranks_of(why.counter); ++rank) {
      const u32 index = why.counter + static_cast<u32>((rank - why.source) * why.rank_stride);
      if (!reached(counter(index, why.rank_stride).load(std::memory_order_acquire), why.expected))
        missing.push_back(rank);
    }
    return missing;
  }

  /// The own rank only where no other is missing: most likely it cannot send before they do.
  std::string describe_missing(const abi::WorkItem& item, const Blocked& why, uint64_t waited_ns) const {
    std::vector<int> ranks = missing_ranks(why);
    if (ranks.size() > 1) std::erase(ranks, own_rank(why));
    if (ranks.empty()) ranks.push_back(why.source);
    std::string missing;
    for (const int rank : ranks) missing += cat(missing.empty() ? "" : ", ", rank);
    const bool several = ranks.size() > 1;
    return cat(describe_launch(), ": rank", several ? "s " : " ", missing,
               of_group(group_of_counter(plan_, why.counter)), several ? " have" : " has", " not sent in ", waited_ns,
               " ns what op ", item.op, " '", plan_.ops[item.op].name, "', tile ", why.tile, ", waits for (counter ",
               why.counter, ": expected ", why.expected, ", seen ",
               counter(why.counter, why.rank_stride).load(std::memory_order_acquire), ")");
  }

  void reset() const {
    const size_t counters = static_cast<size_t>(plan_.num_counters) * abi::kCounterStride * sizeof(u32);
    std::memset(static_cast<void*>(options_.state), 0, sizeof(abi::RunState) + counters);
  }

  const plan::Plan& plan_;
  std::span<const std::unique_ptr<Task>> tasks_;
  const Kernels& kernels_;
  const LaunchOptions& options_;
  LaunchMemory& memory_;
  const Peers peers_;
  std::vector<Worker> workers_;
  const std::vector<int> active_;
  Border border_;
  u32 epoch_ = 0;
  bool shared_ = false;
  uint64_t looked_up_ns_ = 0;
  std::exception_ptr interruption_;  // of the thread that has launched
  std::atomic<int> running_{0};
  std::atomic<uint64_t> progress_ns_{0};
  std::atomic<bool> failed_{false};
  std::mutex error_mutex_;
  std::exception_ptr error_;
};

}  // namespace

void run_plan(const plan::Plan& plan, std::span<const std::unique_ptr<Task>> tasks, const Kernels& kernels,
              const LaunchOptions& options, LaunchMemory& memory) {
  ++memory.launch;
  Launch(plan, tasks, kernels, options, memory).run();
}

}  // namespace ark::targets::host
