// A symbolic graph and its executables, one per set of symbol values.
#pragma once
#include <cstdint>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "planner/planner.h"
#include "runtime/run_states.h"
#include "runtime/shared_kernel.h"
#include "targets/target.h"

namespace ark::runtime {

class Dump;

enum class TargetKind : uint8_t { kCuda, kHost };

/// Which plans are verified in full (planner/verify/verify_plan.h); all are verified in their structure.
enum class Verification : uint8_t {
  kOnce,  // the first of each structure (planner/verify/structure_key.h): other sizes of it are planned in milliseconds
  kFull,  // every one
  kStructure,  // none
};
/// ARK_VERIFY: once (the default), full or structure.
Verification verification_from_environment();

/// ARK_DUMP.
std::string dump_folder_from_environment();

struct Options {
  planner::Options planner;
  Verification verification = verification_from_environment();
  targets::CudaOptions cuda;
  targets::HostOptions host;
  size_t max_executables = 64;  // the least recently used goes first
  std::string saved_plan;       // JSON of a plan to run as it is, unverified, instead of planning: tests damage plans
  std::string dump_folder = dump_folder_from_environment();  // empty: nothing is written (runtime/dump.h)
};

/// Seconds, summed over the executables of a graph.
struct Seconds {
  double parse = 0, bind = 0, plan = 0, source = 0, compile = 0, load = 0;
};

/// The graph with every size a number, ready to run.
struct Instance {
  std::vector<int64_t> symbols;
  std::vector<ir::Value> inputs;  // with their sizes, as each call has to bring them
  KernelUse kernel;               // cuda, where sizes are symbolic
  std::unique_ptr<targets::Executable> executable;
  std::unique_ptr<targets::Executable> traced;  // made on first use
  std::unique_ptr<RunStates> states, traced_states;
  std::mutex traced_mutex;
  uint64_t last_use = 0;
  std::string rank_key;  // plans with exchanges: equal for an instance that is made anew, whatever it is called
  const plan::Plan& plan() const { return executable->plan(); }
};

struct Counts {
  int executables = 0, compiles = 0, disk_hits = 0, memory_hits = 0, evictions = 0;
};

/// Thread-safe.
class CompiledGraph {
 public:
  /// Verifies the graph. `parse_seconds` is only reported.
  CompiledGraph(ir::Graph graph, TargetKind target, Options options, double parse_seconds = 0);

  const ir::Graph& graph() const { return graph_; }
  TargetKind target() const { return target_; }
  /// Per input of the graph: whether a run may write it (a CopyTo into it or into a view of it).
  const std::vector<bool>& written_inputs() const { return written_inputs_; }

  /// The instance if it exists; cheap.
  std::shared_ptr<Instance> find(std::span<const int64_t> symbols);
  /// The instance; binds, plans and compiles when it is new. Other threads may use existing ones meanwhile.
  std::shared_ptr<Instance> specialise(std::span<const int64_t> symbols);
  /// The variant that writes time stamps.
  targets::Executable& traced(Instance& instance) const;

  Seconds seconds() const;
  Counts counts() const;
  /// The instance used last, or null.
  std::shared_ptr<Instance> last() const;

 private:
  plan::Plan make_plan(ir::Graph bound, Dump& dump);
  /// That a plan's tiles do not race, found out on another thread while the executable is made; throws what it finds.
  struct Proof {
    uint64_t key = 0;
    std::future<void> found;  // not valid: nothing is to be proved
  };
  Proof start_proof(const plan::Plan& plan) const;
  std::shared_ptr<Instance> build(std::span<const int64_t> symbols, Dump& dump);
  std::unique_ptr<targets::Executable> make(plan::Plan plan, const KernelUse& kernel, bool trace, Dump* dump) const;
  void keep(std::shared_ptr<Instance> instance, const Seconds& seconds);

  ir::Graph graph_;
  TargetKind target_;
  Options options_;
  std::vector<bool> written_inputs_;

  std::mutex build_mutex_;                // held while one instance is made
  std::unique_ptr<SharedKernel> shared_;  // of all sizes; cuda, where they are symbolic; under build_mutex_
  std::set<uint64_t> proved_;             // structures of plans that were verified in full; under build_mutex_
  mutable std::mutex mutex_;              // of everything below; held briefly
  std::map<std::vector<int64_t>, std::shared_ptr<Instance>> instances_;
  std::shared_ptr<Instance> last_;
  Seconds seconds_;
  Counts counts_;
  uint64_t uses_ = 0;
};

}  // namespace ark::runtime
