// Chooses what counters count and what waits for them, for one draft: synchronize.cpp, and waits in
// synchronize_waits.cpp.
#pragma once
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "planner/depend.h"
#include "planner/draft.h"
#include "planner/options.h"
#include "planner/order/counters.h"
#include "planner/order/sync.h"

namespace ark::planner {

/// A dependence with the footprints of its ends.
struct Need {
  Dependence dep;
  Footprint own{}, reads{};  // what `before` touches through its operand, what the waiting op touches through its own
  abi::WaitRole role = abi::WaitRole::kAll;
  bool anywhere = false;  // no footprints: the whole of `before`

  int64_t touched() const { return own.last - own.first + 1; }  // elements, by `before`
  /// Of what `before` touches, what a tile reads.
  double share() const { return static_cast<double>(reads.extent) / static_cast<double>(touched()); }
  bool reads_most() const { return reads.extent >= touched() - touched() / 8; }
};

struct Groups {
  std::optional<CounterGroup> fine, whole;
};

/// A wait that an op needs, and the group that it reads.
struct Candidate {
  int before = -1;
  bool fine = false;
  abi::Wait wait{};
  Blocks blocks{};  // per tile of the waiting op; null: every tile waits for everything
  bool full = false, some = false, together = false;  // as in WaitSource

  WaitSource source() const { return {before, full, some, together}; }
};

class Synchronizer {
 public:
  Synchronizer(Draft& draft, const Options& options)
      : draft_(draft), ops_(draft.graph.ops), options_(options), finished_(static_cast<int>(ops_.size())) {}

  Sync run() {
    collect_needs();
    for (int i = 0; i < num_ops(); ++i) choose_fine_group(i);
    kept_.resize(ops_.size());
    for (int i = 0; i < num_ops(); ++i) choose_waits(i);
    return write();
  }
  /// An op that needs too many waits even so; run() has then left the draft as it was.
  int overfull() const { return overfull_; }
  std::vector<int> gathered() const { return gathered_; }

 private:
  int num_ops() const { return static_cast<int>(ops_.size()); }
  const abi::OpRecord& record(int op) const { return ops_[op].op.record; }
  bool small(int op) const { return num_tiles(record(op)) <= kMaxTilesForFine; }

  void collect_needs();
  void note_deciding_readers();
  Need need_of(const Dependence& dep) const;
  void choose_fine_group(int op);
  Axis axis_of(int op, const Footprint& own) const;
  double score_of(int op, const CounterGroup& group);
  Candidate candidate(int op, const Need& need);
  Candidate candidate_of_all(int op, const Need& need);
  Candidate source_candidate(int op, const Need& need);
  Candidate full_candidate(int op, int before);
  void add_candidate(std::vector<Candidate>& candidates, Candidate candidate) const;
  void choose_waits(int op);
  bool implied(int op, const Candidate& wanted, const std::vector<Candidate>& kept);
  std::vector<Interval> cover_through(int op, const std::vector<Candidate>& kept, int target, int depth);
  const std::vector<Interval>& cover(int op, int target, int depth);
  Sync write();

  Draft& draft_;
  std::vector<FusedOp>& ops_;
  const Options& options_;
  std::vector<std::vector<Need>> needs_, readers_;  // by waiting op; by op that is waited for
  std::vector<std::vector<Need>> deciding_;         // of the readers, those that the counters are chosen for
  std::vector<Groups> groups_;
  CounterMemo memo_;
  std::vector<std::vector<Candidate>> kept_;
  std::vector<int32_t> exchanges_;  // per op: the group whose ranks count what it has sent, or -1
  Finished finished_;
  std::map<std::pair<int, int>, std::vector<Interval>>
      cover_;  // (op, group's owner) -> blocks finished before each tile
  int overfull_ = -1;
  std::vector<int> gathered_;
};

}  // namespace ark::planner
