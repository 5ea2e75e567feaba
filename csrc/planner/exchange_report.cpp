#include "planner/exchange_report.h"

#include <algorithm>
#include <map>
#include <set>

#include "plan/params.h"
#include "planner/verify/checks.h"
#include "planner/verify/counter_blocks.h"

namespace ark::planner {
namespace {

using plan::Buffer;
using plan::BufferKind;
using plan::Plan;

/// Per op: the ops that it waits for, directly or through others.
std::vector<std::vector<bool>> waited_for(const Plan& plan) {
  std::vector<std::set<int32_t>> arrived(static_cast<size_t>(plan.num_counters));  // ops, per counter
  std::vector<std::vector<bool>> before;
  for (size_t op = 0; op < plan.ops.size(); ++op) {
    const abi::OpRecord& r = plan.ops[op].record;
    std::vector<bool>& its = before.emplace_back(plan.ops.size(), false);
    for (int w = 0; w < r.num_waits; ++w)
      for (int32_t k = 0; k < num_counters(r.wait[w]); ++k)
        for (int32_t source : arrived[r.wait[w].counter + static_cast<uint32_t>(k)]) {
          if (its[static_cast<size_t>(source)]) continue;
          its[static_cast<size_t>(source)] = true;
          for (size_t i = 0; i < its.size(); ++i)
            if (before[static_cast<size_t>(source)][i]) its[i] = true;
        }
    for (int a = 0; a < r.num_arrivals; ++a)
      for (int32_t k = 0; k < num_counters(r.arrive[a]); ++k)
        arrived[r.arrive[a].counter + static_cast<uint32_t>(k)].insert(static_cast<int32_t>(op));
  }
  return before;
}

/// Whether the op's programs store several values in these of its operands.
bool stores_differ(const Plan& plan, const plan::Op& op, const std::set<int>& operands) {
  std::set<int16_t> values;
  bool parts = false;  // of one value, some to each
  plan::for_each_program(op.record, [&](int number, int first, ProgramKind) {
    if (number < 0) return;
    for (const Instr& i : plan.programs[static_cast<size_t>(number)].instrs)
      if (i.op == Opcode::kStore && operands.contains(first + i.operand)) values.insert(i.a), parts |= i.d >= 0;
  });
  return parts || values.size() > 1;
}

std::map<ExchangeKey, ExchangeReport> exchanges_of(const Plan& plan) {
  std::map<ExchangeKey, ExchangeReport> found;
  for (const Buffer& b : plan.buffers)
    if (b.kind == BufferKind::kBox) {
      ExchangeReport& exchange = found[exchange_of(b)];
      exchange.op = b.first_op, exchange.bytes = b.size_bytes;
      exchange.background = plan.ops[static_cast<size_t>(b.first_op)].record.background != 0;
      exchange.ranks = world_of(plan, b.group), exchange.group = group_at(plan, b.group).name;
      exchange.box_bytes = 2 * world_of(plan, b.group) * plan::box_stride(b.size_bytes);
    }
  return found;
}

void add_uses(const Plan& plan, int32_t op, std::map<ExchangeKey, ExchangeReport>& found) {
  std::map<ExchangeKey, std::set<int>> sent;
  const std::vector<abi::Operand>& operands = plan.ops[static_cast<size_t>(op)].operands;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (operands[i].slot == abi::kNoSlot) continue;
    const Buffer& b = plan.buffers[operands[i].slot];
    if (b.kind == BufferKind::kBoxOut) sent[exchange_of(b)].insert(static_cast<int>(i));
    if (!is_read_box(b.kind)) continue;
    ExchangeReport& exchange = found[exchange_of(b)];
    if (exchange.readers.empty() || exchange.readers.back() != op) exchange.readers.push_back(op);
    const bool all = b.kind == BufferKind::kBoxes;
    for (int32_t rank = all ? 0 : b.index; rank < (all ? world_of(plan, b.group) : b.index + 1); ++rank)
      if (std::find(exchange.from.begin(), exchange.from.end(), rank) == exchange.from.end())
        exchange.from.push_back(rank);
  }
  for (const auto& [key, of_exchange] : sent)
    found[key].parts = stores_differ(plan, plan.ops[static_cast<size_t>(op)], of_exchange);
}

}  // namespace

std::vector<ExchangeReport> report_exchanges(const Plan& plan) {
  std::map<ExchangeKey, ExchangeReport> found = exchanges_of(plan);
  std::vector<ExchangeReport> reports;
  if (found.empty()) return reports;
  const auto num_ops = static_cast<int32_t>(plan.ops.size());
  for (int32_t op = 0; op < num_ops; ++op) add_uses(plan, op, found);
  const std::vector<std::vector<bool>> before = waited_for(plan);
  for (auto& [key, exchange] : found) {
    std::sort(exchange.from.begin(), exchange.from.end());
    const int32_t end = exchange.readers.empty() ? num_ops : exchange.readers.front();
    for (int32_t op = exchange.op + 1; op < end; ++op)
      if (!before[static_cast<size_t>(op)][static_cast<size_t>(exchange.op)]) exchange.meanwhile.push_back(op);
    reports.push_back(std::move(exchange));
  }
  std::stable_sort(reports.begin(), reports.end(),
                   [](const ExchangeReport& a, const ExchangeReport& b) { return a.op < b.op; });
  return reports;
}

}  // namespace ark::planner
