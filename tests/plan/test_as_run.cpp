// The plan as the GPU runs it: what `pack` lays out, and what the text of a dump says.
#include <bit>
#include <cstring>

#include "codegen/kernel.h"
#include "plan/as_run.h"
#include "plan/params.h"
#include "planner/planner.h"
#include "support/check.h"
#include "support/exchange_cases.h"
#include "support/model_graph.h"

using namespace ark;
using namespace ark::test;

namespace {

plan::Plan decode_plan() {
  auto [m, x] = decode_step();
  m.graph.outputs = {x};
  return planner::make_plan(m.graph, {});
}

plan::Plan exchange_plan() { return planner::make_plan(exchange_cases::all_reduce(2).graph, {}); }

/// A few-row product of another shape than those of the decode step, and a pointwise op.
plan::Plan other_plan() {
  Model m;
  const ValueId x = m.input(kBF16, {1, 320}), w = m.input(kBF16, {192, 320}), y = m.input(kF32, {50});
  m.graph.outputs = {m.matmul(x, m.transposed(w), kBF16), m.unary(Opcode::kTanh, y)};
  return planner::make_plan(m.graph, {});
}

int count(const std::string& text, const std::string& part) {
  int n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

/// Records at multiples of 64 bytes, each with its operands behind it, and zeros.
void expect_laid_out(const plan::Plan& plan, const plan::KernelNumbers& numbers) {
  const plan::Packed packed = plan::pack(plan, numbers);
  std::vector<std::byte> expected;
  std::vector<size_t> position;
  const auto add = [&](const void* from, size_t size) {
    const auto* bytes = static_cast<const std::byte*>(from);
    expected.insert(expected.end(), bytes, bytes + size);
  };
  for (size_t i = 0; i < plan.ops.size(); ++i) {
    const plan::RunOp run = plan::run_op(plan, i, numbers);
    position.push_back(expected.size());
    add(&run.record, sizeof run.record);
    add(run.operands.data(), run.operands.size() * sizeof(abi::Operand));
    EXPECT_EQ(run.record.record_bytes, static_cast<int>(expected.size() - position.back()));
    expected.resize((expected.size() + 63) / 64 * 64);
  }
  EXPECT(packed.records == expected);
  for (const abi::WorkItem& item : packed.items)
    if (item.op >= 0) EXPECT_EQ(static_cast<size_t>(item.record) * 64, position.at(static_cast<size_t>(item.op)));
}

/// All that a kernel is asked for, the other plan's first: the plan's programs and forms have other numbers there.
plan::KernelNumbers shared_numbers(const plan::Plan& plan, const plan::Plan& first) {
  const plan::Plan* const plans[] = {&first, &plan};
  return codegen::find_numbers(codegen::make_kernel(plans), plan).value();
}

void test_layout() {
  const plan::Plan decode = decode_plan();
  expect_laid_out(decode, {});
  expect_laid_out(decode, shared_numbers(decode, other_plan()));
  expect_laid_out(exchange_plan(), {});
}

/// In the text stands what is left to wait for, and where the flagged words are; no flags.
void test_flags() {
  const plan::Plan plan = decode_plan(), run = plan::as_run(plan);
  int waits = 0, arrivals = 0, words = 0;
  for (const plan::Op& op : plan.ops) {
    waits +=
        op.record.num_waits - std::popcount(op.flags.dropped_waits) + static_cast<int>(op.flags.added_waits.size());
    arrivals += op.record.num_arrivals - std::popcount(op.flags.dropped_arrivals);
    words += std::popcount(op.flags.operands);
  }
  const std::string planned = plan::to_string(plan), text = plan::to_string(run);
  EXPECT(words > 5 && count(planned, "flag words") == 0);
  EXPECT_EQ(count(text, ": flag words "), words);
  EXPECT_EQ(count(text, "\n  wait "), waits);
  EXPECT_EQ(count(text, "\n  arrive "), arrivals);
  EXPECT(count(planned, "\n  arrive ") > arrivals);
  for (const char* line : {"flagged operands", "drops waits", "drops arrivals", "adds wait"})
    EXPECT(count(planned, line) > 0 && count(text, line) == 0);
  for (size_t i = 0; i < plan.ops.size(); ++i)
    for (size_t k = 0; k < plan.ops[i].operands.size(); ++k) {
      if ((plan.ops[i].flags.operands >> k & 1) == 0) continue;
      const abi::Operand& o = plan.ops[i].operands[k];
      const int64_t word =
          int64_t{plan.num_counters} * abi::kCounterStride + plan.buffers[o.slot].first_word + o.offset;
      EXPECT(count(text, cat("  operand ", k, ": flag words bf16 + ", word, " strides ")) > 0);
    }
}

/// Operands and tensor maps that are boxes say so.
void test_boxes() {
  plan::Plan plan = exchange_plan();
  uint32_t box = 0;
  while (plan.buffers.at(box).kind != plan::BufferKind::kBox) ++box;
  plan.maps.push_back({.slot = box, .sizes = {8}, .box = {8}});
  const std::string planned = plan::to_string(plan), text = plan::to_string(plan::as_run(plan));
  EXPECT_EQ(count(planned, "box slot"), 0);
  EXPECT_EQ(count(text, ": box slot "), 5);  // two are written, two are read, and the map
  EXPECT(count(text, cat("  operand ")) == count(planned, "  operand ") && count(text, ": slot ") > 0);
  EXPECT_EQ(count(text, cat("map 0: box slot ", box, " + 0 ")), 1);
  plan.maps.back().slot = 1000;
  EXPECT_THROW(InternalError, plan::as_run(plan), "a tensor map of slot 1000 of ");
}

/// Each op names the program and the form that the shared kernel runs, under the numbers that it has there.
void test_shared_kernel() {
  const plan::Plan plan = decode_plan();
  const plan::KernelNumbers numbers = shared_numbers(plan, other_plan());
  const plan::Plan run = plan::as_run(plan, numbers);
  int moved = 0, forms = 0;
  for (size_t i = 0; i < plan.ops.size(); ++i) {
    std::vector<int> before, after;
    plan::for_each_program(plan.ops[i].record, [&](int p, int, ProgramKind) { before.push_back(p); });
    plan::for_each_program(run.ops[i].record, [&](int p, int, ProgramKind) { after.push_back(p); });
    for (size_t k = 0; k < before.size(); ++k) {
      EXPECT(before[k] < 0 || plan.programs.at(size_t(before[k])) == run.programs.at(size_t(after[k])));
      moved += before[k] != after[k];
    }
    EXPECT_EQ(run.ops[i].form, numbers.form[i]);
    forms += plan.ops[i].form != run.ops[i].form;
  }
  EXPECT(moved > 5 && forms > 5);
  const std::string text = plan::to_string(run);
  for (size_t i = 0; i < run.programs.size(); ++i)
    EXPECT_EQ(count(text, cat("\nprogram ", i, ": ")), std::ranges::count(numbers.program, static_cast<int>(i)));
  for (size_t i = 0; i < plan.ops.size(); ++i)
    if (numbers.form[i] >= 0) EXPECT(count(text, cat("\n  form ", numbers.form[i], "\n")) > 0);
}

/// Without a kernel that is shared, flags and boxes the plan runs as it is, and says that its vectors are whole.
void test_nothing_to_do() {
  test::GraphBuilder b;
  const ir::ValueId x = b.input(DType::kF32, {100});
  b.graph.outputs = {b.pointwise(Opcode::kAdd, {x, x}, DType::kF32, {100})};
  const plan::Plan plan = planner::make_plan(b.graph, {});
  const std::string said = ", whole vectors of 4";
  std::string run = plan::to_string(plan::as_run(plan));
  const size_t at = run.find(said);
  EXPECT(at != std::string::npos);
  if (at != std::string::npos) run.erase(at, said.size());
  const std::string early = "  before the waits: operands [0]\n";  // which no field of the record says
  std::string planned = plan::to_string(plan);
  const size_t bits = planned.find(early);
  EXPECT(bits != std::string::npos);
  if (bits != std::string::npos) planned.erase(bits, early.size());
  EXPECT_EQ(run, planned);
}

/// What cannot run is refused, before anything of it is read.
void test_refusals() {
  plan::Plan plan = decode_plan();
  size_t flagged = 0;
  while (plan.ops.at(flagged).flags.operands == 0) ++flagged;
  plan::Plan slot = plan;
  slot.ops[flagged].operands[size_t(std::countr_zero(plan.ops[flagged].flags.operands))].slot = 100000;
  EXPECT_THROW(InternalError, plan::run_op(slot, flagged), "slot 100000 of ");
  for (plan::Buffer& buffer : plan.buffers) buffer.first_word = -1;
  EXPECT_THROW(InternalError, plan::run_op(plan, flagged), "is flagged, but has no flagged words");
}

}  // namespace

int main() {
  test_layout();
  test_flags();
  test_boxes();
  test_shared_kernel();
  test_nothing_to_do();
  test_refusals();
  return test::result("as_run");
}
