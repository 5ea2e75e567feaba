#include "runtime/shared_kernel.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "base/check.h"
#include "plan/kinds.h"

namespace ark::runtime {
namespace {

using Symbols = std::vector<int64_t>;

constexpr int64_t kFewRows = abi::kMostFewRows;
constexpr int64_t kMostElements =
    1 << 16;  // product of the values that differ: planning takes as long as there are tiles

/// Where other sizes need more code than this, sizes are part of it (divisors of indices): it would serve only them.
constexpr size_t kMostCode = 2, kMoreCode = 16;

int64_t product_of(std::span<const int64_t> symbols) {
  int64_t product = 1;
  for (const int64_t value : std::set<int64_t>(symbols.begin(), symbols.end())) product *= value;
  return product;
}

/// A kind whose code takes registers from the other kinds' main loops (the others are called, device/loop/outline.cuh),
/// and of few-row products the rows that its code has room for.
using HeavyKind = std::pair<abi::TaskKind, int>;
std::set<HeavyKind> heavy_kinds(const plan::Plan& plan) {
  std::set<HeavyKind> kinds;
  for (const plan::Op& op : plan.ops) {
    if (plan::is_called(plan::kind_of(op.record))) continue;
    const bool few = op.record.kind == abi::TaskKind::kMatmulRows;
    kinds.insert({op.record.kind, few ? plan::rows_of_form(op.record.params.rows.m) : 0});
  }
  return kinds;
}

/// Products of few rows, and none that other sizes may make one of tiles. Beside weights k x n the gradients of weights
/// stand, whose k are the rows: of a number that TMA reads they are tiles, so there it is all products or none.
bool has_only_few_rows(const plan::Plan& plan) {
  bool few = false, columns = false, others = false;
  for (const plan::Op& op : plan.ops) {
    const bool tile = op.record.kind == abi::TaskKind::kMatmulTile,
               fp32 = op.record.kind == abi::TaskKind::kMatmulFloat;
    if ((tile || fp32) && op.record.params.matmul.m > (tile ? kFewRows : abi::kMostFewFloatRows)) return false;
    others |= tile || fp32 || op.record.kind == abi::TaskKind::kMatmulSimple;
    if (op.record.kind == abi::TaskKind::kMatmulRows) (op.record.params.rows.columns != 0 ? columns : few) = true;
  }
  return few || (columns && !others);
}

/// Nothing where the sizes are none that the graph can have.
std::optional<plan::Plan> plan_of(const ir::Graph& graph, const Symbols& symbols, const planner::Options& options) {
  try {
    return planner::make_plan(ir::bind(graph, symbols), options);
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

/// The first plan, and those of the others whose every program is another's too.
std::vector<const plan::Plan*> typical(const std::vector<const plan::Plan*>& plans) {
  auto has = [](const plan::Plan* plan, const Program& program) {
    return std::ranges::find(plan->programs, program) != plan->programs.end();
  };
  auto shared = [&](const plan::Plan* plan) {
    return std::ranges::all_of(plan->programs, [&](const Program& program) {
      return std::ranges::any_of(plans, [&](const plan::Plan* other) { return other != plan && has(other, program); });
    });
  };
  std::vector<const plan::Plan*> result = {plans.front()};
  std::copy_if(plans.begin() + 1, plans.end(), std::back_inserter(result), shared);
  return result;
}

}  // namespace

std::vector<Symbols> probe_sizes(std::span<const int64_t> symbols, bool few_rows) {
  std::set<Symbols> found;
  auto add = [&](auto&& change) {
    Symbols other;
    for (const int64_t v : symbols)
      other.push_back(std::max(few_rows && v > kFewRows ? kFewRows + 1 : 2, static_cast<int64_t>(change(v))));
    if (!std::ranges::equal(other, symbols)) found.insert(std::move(other));
  };
  for (const int64_t value : std::set<int64_t>(symbols.begin(), symbols.end())) {
    for (int shift = 1; shift <= 4; ++shift) add([&](int64_t v) { return v == value ? v >> shift : v; });
    for (int shift = 1; shift <= 7 && (product_of(symbols) << shift) <= kMostElements; ++shift)
      add([&](int64_t v) { return v == value ? v << shift : v; });
  }
  for (int shift = 1; shift <= 3; ++shift) add([&](int64_t v) { return v >> shift | 1; });
  return {found.begin(), found.end()};
}

SharedKernel::SharedKernel(const ir::Graph& graph, const planner::Options& options) : graph_(graph), options_(options) {
  options_.sizes_vary = true;
}

plan::Plan SharedKernel::plan(ir::Graph bound, bool verify_races, planner::Stages* stages) {
  planner::Options options = options_;
  options.verify_races = verify_races;
  if (kernel_ || !options.few_rows) return planner::make_plan(std::move(bound), options, stages);
  plan::Plan plan = planner::make_plan(bound, options, stages);
  options_.few_rows = options.few_rows = has_only_few_rows(plan);
  return options.few_rows ? plan : planner::make_plan(std::move(bound), options, stages);
}

codegen::Kernel SharedKernel::make(const plan::Plan& plan, std::span<const int64_t> symbols) const {
  const std::set<HeavyKind> kinds = heavy_kinds(plan);
  planner::Options options = options_;
  options.verify_races = false;
  std::vector<plan::Plan> others;
  for (const Symbols& sizes : probe_sizes(symbols, options.few_rows)) {
    std::optional<plan::Plan> other = plan_of(graph_, sizes, options);
    // other kinds are another kernel: their code would cost these their registers
    if (other && std::ranges::includes(kinds, heavy_kinds(*other))) others.push_back(std::move(*other));
  }
  std::vector<const plan::Plan*> plans = {&plan};
  for (const plan::Plan& other : others) plans.push_back(&other);
  codegen::Kernel kernel = codegen::make_kernel(plans);
  if (kernel.code.size() <= kMostCode * plan.programs.size() + kMoreCode) return kernel;
  const uint32_t variants = kernel.features.matmul_variants;
  kernel = codegen::make_kernel(typical(plans));
  kernel.features.matmul_variants = variants;
  return kernel;
}

KernelUse SharedKernel::use(const plan::Plan& plan, std::span<const int64_t> symbols) {
  std::optional<plan::KernelNumbers> numbers;
  if (kernel_) numbers = codegen::find_numbers(*kernel_, plan);
  if (!numbers) {
    codegen::Kernel kernel = kernel_ ? codegen::extended(*kernel_, plan) : make(plan, symbols);
    kernel_ = std::make_shared<const codegen::Kernel>(std::move(kernel));
    numbers = codegen::find_numbers(*kernel_, plan);
    check(numbers.has_value(), "plan '", plan.name, "' does not find its code in its kernel");
  }
  return {kernel_, std::move(*numbers)};
}

}  // namespace ark::runtime
