#include "runtime/compiled_graph.h"

#include <algorithm>
#include <chrono>
#include <functional>
#include <utility>

#include "base/check.h"
#include "base/env.h"
#include "planner/verify/structure_key.h"
#include "planner/verify/verify_plan.h"
#include "runtime/dump.h"

namespace ark::runtime {
namespace {

using Clock = std::chrono::steady_clock;
double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

ir::ValueId owner_of(const ir::Graph& graph, ir::ValueId value) {
  while (graph.values[value].base >= 0) value = graph.values[value].base;
  return value;
}

std::vector<bool> find_written_inputs(const ir::Graph& graph) {
  std::vector<bool> written(graph.inputs.size());
  for (const ir::Node& node : graph.nodes) {
    if (node.op != ir::OpKind::kCopyTo) continue;
    ir::ValueId owner = owner_of(graph, node.inputs[0]);
    for (size_t i = 0; i < graph.inputs.size(); ++i)
      if (owner_of(graph, graph.inputs[i]) == owner) written[i] = true;
  }
  return written;
}

/// By all that the plan says but its name.
std::string rank_key(plan::Plan plan) {
  plan.name.clear();
  return cat(std::hash<std::string>()(plan::to_json(plan)));
}

}  // namespace

Verification verification_from_environment() {
  constexpr std::string_view kChoices[] = {"once", "full", "structure"};
  return static_cast<Verification>(env::choice("ARK_VERIFY", kChoices, static_cast<int>(Verification::kOnce)));
}

CompiledGraph::CompiledGraph(ir::Graph graph, TargetKind target, Options options, double parse_seconds)
    : graph_(std::move(graph)), target_(target), options_(std::move(options)) {
  auto begin = Clock::now();
  try {
    ir::verify(graph_);
  } catch (const std::exception& error) {
    dump_refused(options_.dump_folder, graph_, error.what());
    throw;
  }
  written_inputs_ = find_written_inputs(graph_);
  options_.planner.sizes_vary = !graph_.symbols.empty();
  if (target_ == TargetKind::kCuda && options_.planner.sizes_vary && options_.saved_plan.empty())
    shared_ = std::make_unique<SharedKernel>(graph_, options_.planner);
  seconds_.parse = parse_seconds + seconds_since(begin);
}

std::shared_ptr<Instance> CompiledGraph::find(std::span<const int64_t> symbols) {
  std::lock_guard lock(mutex_);
  auto same = [&](const std::vector<int64_t>& other) { return std::ranges::equal(other, symbols); };
  if (last_ && same(last_->symbols)) return last_;
  auto found = instances_.find(std::vector<int64_t>(symbols.begin(), symbols.end()));
  if (found == instances_.end()) return nullptr;
  last_ = found->second;
  last_->last_use = ++uses_;
  return last_;
}

std::shared_ptr<Instance> CompiledGraph::specialise(std::span<const int64_t> symbols) {
  if (auto instance = find(symbols)) return instance;
  std::lock_guard lock(build_mutex_);
  if (auto instance = find(symbols)) return instance;  // another thread was first
  Dump dump(options_.dump_folder, graph_, symbols);
  try {
    return build(symbols, dump);
  } catch (const std::exception& error) {
    dump.failed(error.what());
    throw;
  }
}

std::unique_ptr<targets::Executable> CompiledGraph::make(plan::Plan plan, const KernelUse& kernel, bool trace,
                                                         Dump* dump) const {
  if (target_ == TargetKind::kHost) return targets::make_host(std::move(plan), options_.host);
  targets::CudaOptions cuda = options_.cuda;
  cuda.trace = cuda.trace || trace;
  cuda.kernel = kernel.kernel;
  cuda.numbers = kernel.numbers;
  if (dump) {
    dump->run(plan, kernel.numbers);
    cuda.on_source = [dump](const std::string& text) { dump->source(text); };
  }
  return targets::make_cuda(std::move(plan), cuda);
}

plan::Plan CompiledGraph::make_plan(ir::Graph bound, Dump& dump) {
  if (!options_.saved_plan.empty()) {
    plan::Plan plan = plan::from_json(options_.saved_plan);
    dump.planned(plan);
    return plan;
  }
  planner::Options options = options_.planner;
  options.verify_races = options_.verification == Verification::kFull;
  return shared_ ? shared_->plan(std::move(bound), options.verify_races, &dump)
                 : planner::make_plan(std::move(bound), options, &dump);
}

CompiledGraph::Proof CompiledGraph::start_proof(const plan::Plan& plan) const {
  if (options_.verification != Verification::kOnce || !options_.saved_plan.empty()) return {};
  const uint64_t key = planner::structure_key(plan);
  if (proved_.contains(key)) return {};
  auto prove = [plan] { planner::verify_plan(plan, planner::VerifyLevel::kRaces); };
  return {key, std::async(std::launch::async | std::launch::deferred, std::move(prove))};
}

std::shared_ptr<Instance> CompiledGraph::build(std::span<const int64_t> symbols, Dump& dump) {
  auto instance = std::make_shared<Instance>();
  instance->symbols.assign(symbols.begin(), symbols.end());
  auto begin = Clock::now();
  ir::Graph bound = ir::bind(graph_, symbols);
  dump.bound(bound);
  for (ir::ValueId input : bound.inputs) instance->inputs.push_back(bound.values[static_cast<size_t>(input)]);
  Seconds seconds;
  seconds.bind = seconds_since(begin);
  begin = Clock::now();
  plan::Plan plan = make_plan(std::move(bound), dump);
  Proof proof = start_proof(plan);
  seconds.plan = seconds_since(begin);
  begin = Clock::now();
  if (shared_) instance->kernel = shared_->use(plan, symbols);
  seconds.source = seconds_since(begin);
  instance->executable = make(std::move(plan), instance->kernel, /*trace=*/false, &dump);
  begin = Clock::now();
  if (proof.found.valid()) {
    proof.found.get();
    proved_.insert(proof.key);
  }
  seconds.plan += seconds_since(begin);
  if (instance->plan().world > 1) instance->rank_key = rank_key(instance->plan());
  instance->states = std::make_unique<RunStates>(target_ == TargetKind::kCuda);
  instance->traced_states = std::make_unique<RunStates>(target_ == TargetKind::kCuda);
  keep(instance, seconds);
  return instance;
}

void CompiledGraph::keep(std::shared_ptr<Instance> instance, const Seconds& seconds) {
  std::vector<std::shared_ptr<Instance>> evicted;  // destroyed after the lock is released
  std::lock_guard lock(mutex_);
  const targets::BuildInfo& info = instance->executable->build_info();
  seconds_.bind += seconds.bind;
  seconds_.plan += seconds.plan;
  seconds_.source += seconds.source + info.source_seconds;
  seconds_.compile += info.compile_seconds;
  seconds_.load += info.load_seconds;
  counts_.compiles += info.compiles;
  counts_.disk_hits += info.disk_hits;
  counts_.memory_hits += info.memory_hits;
  instance->last_use = ++uses_;
  instances_[instance->symbols] = instance;
  while (instances_.size() > options_.max_executables) {
    auto oldest = instances_.begin();
    for (auto it = instances_.begin(); it != instances_.end(); ++it)
      if (it->second->last_use < oldest->second->last_use) oldest = it;
    evicted.push_back(std::move(oldest->second));
    instances_.erase(oldest);
    ++counts_.evictions;
  }
  counts_.executables = static_cast<int>(instances_.size());
  last_ = std::move(instance);
}

targets::Executable& CompiledGraph::traced(Instance& instance) const {
  std::lock_guard lock(instance.traced_mutex);
  if (!instance.traced) instance.traced = make(instance.plan(), instance.kernel, /*trace=*/true, nullptr);
  return *instance.traced;
}

Seconds CompiledGraph::seconds() const {
  std::lock_guard lock(mutex_);
  return seconds_;
}
Counts CompiledGraph::counts() const {
  std::lock_guard lock(mutex_);
  return counts_;
}
std::shared_ptr<Instance> CompiledGraph::last() const {
  std::lock_guard lock(mutex_);
  return last_;
}

}  // namespace ark::runtime
