#include "planner/verify/rank_interface.h"

#include <algorithm>
#include <map>

#include "base/check.h"
#include "planner/verify/box_reuse.h"
#include "planner/verify/checks.h"
#include "planner/verify/counter_blocks.h"
#include "planner/verify/regions.h"

namespace ark::planner {
namespace {

using plan::Buffer;
using plan::BufferKind;
using plan::Plan;

/// FNV-1a over numbers.
class Digest {
 public:
  void add(int64_t number) {
    for (int byte = 0; byte < 8; ++byte) {
      value_ ^= static_cast<uint64_t>(number) >> (8 * byte) & 0xff;
      value_ *= 0x100000001b3u;
    }
  }
  std::string text() const {
    std::ostringstream out;
    out << std::hex << value_;
    return out.str();
  }

 private:
  uint64_t value_ = 0xcbf29ce484222325u;
};

const Buffer& buffer_of(const Plan& plan, const abi::Operand& operand) { return plan.buffers[operand.slot]; }

/// Of each exchange of the group for which the op sends, the first operand that is one of its out-boxes. All of these
/// get the same parts (exchanges.cpp).
std::vector<int> first_out_boxes(const Plan& plan, const plan::Op& op, int32_t group) {
  std::vector<int> operands;
  std::vector<ExchangeKey> seen;
  for (size_t i = 0; i < op.operands.size(); ++i) {
    if (op.operands[i].slot >= plan.buffers.size() || buffer_of(plan, op.operands[i]).kind != BufferKind::kBoxOut)
      continue;
    const ExchangeKey exchange = exchange_of(buffer_of(plan, op.operands[i]));
    if (buffer_of(plan, op.operands[i]).group != group) continue;
    if (std::find(seen.begin(), seen.end(), exchange) != seen.end()) continue;
    seen.push_back(exchange);
    operands.push_back(static_cast<int>(i));
  }
  return operands;
}

/// The part of a box that each tile writes, and what it arrives on at other ranks.
std::string digest_of_tiles(const Plan& plan, const plan::Op& op, int operand) {
  const int32_t before = first_counter_of(plan, buffer_of(plan, op.operands[operand]).group);
  const OperandUse use = read_uses(op, plan.programs)[static_cast<size_t>(operand)];
  Digest digest;
  std::vector<Box> boxes;
  for (int64_t tile = 0; tile < tiles_of(op.record); ++tile) {
    boxes.clear();
    tile_region(op, plan.programs, operand, use, tile, buffer_of(plan, op.operands[operand]).size_bytes, boxes);
    for (const Box& box : boxes) {
      for (const int64_t number : {box.begin, box.width, int64_t{box.num_dims}}) digest.add(number);
      for (int d = 0; d < box.num_dims; ++d) digest.add(box.dims[d].count), digest.add(box.dims[d].stride);
    }
    for (int a = 0; a < op.record.num_arrivals; ++a) {
      if (op.record.arrive_rank_stride[a] == 0) continue;
      const CounterRange counters = counters_of(op.record.arrive[a], op.record, tile);
      digest.add(counters.first - before), digest.add(counters.last - before),
          digest.add(op.record.arrive_rank_stride[a]);
    }
  }
  return digest.text();
}

std::string describe_arrivals(const abi::OpRecord& record, int32_t before) {
  std::string text;
  for (int a = 0; a < record.num_arrivals; ++a)
    if (const int stride = record.arrive_rank_stride[a]; stride != 0)
      text += cat(", ", stride, " counters for each rank from ",
                  static_cast<int32_t>(record.arrive[a].counter) - before, " on");
  return text;
}

/// Whose boxes the op's exchanges have taken, and what shows that all ranks were done with them: ops that send, in
/// their order. A rank relies on what others do before that one.
std::string describe_reuse(const Plan& plan, const std::vector<BoxReuse>& reuses, const plan::Op& op, int32_t group) {
  auto number = [&](int32_t of_op) {
    return std::count_if(plan.ops.begin(), plan.ops.begin() + of_op,
                         [&](const plan::Op& other) { return !first_out_boxes(plan, other, group).empty(); });
  };
  Digest digest;
  int64_t last = -1, witness = -1;
  for (const BoxReuse& reuse : reuses) {
    if (reuse.later != op.record.op) continue;
    last = number(reuse.earlier), witness = number(reuse.witness);
    digest.add(last), digest.add(witness);
  }
  if (last < 0) return "";
  return cat(", in boxes of exchange ", last, " after exchange ", witness, " (all ", digest.text(), ")");
}

RankTerm term_of(const Plan& plan, const std::vector<BoxReuse>& reuses, const plan::Op& op, int operand) {
  const abi::OpRecord& record = op.record;
  const abi::Operand& out = op.operands[static_cast<size_t>(operand)];
  const Buffer& own = plan.buffers[static_cast<size_t>(buffer_of(plan, out).twin)];
  const int64_t begin = own.arena_offset - own.index * plan::box_stride(own.size_bytes);
  const std::string value =
      cat(name(static_cast<DType>(out.dtype)), ", ", own.size_bytes, " bytes for each rank from ", begin, " on, ",
          tiles_of(record), " tiles", describe_arrivals(record, first_counter_of(plan, own.group)),
          describe_reuse(plan, reuses, op, own.group), ", parts ", digest_of_tiles(plan, op, operand));
  return {cat("op '", op.name, "'"), value};
}

}  // namespace

std::vector<RankTerm> rank_interface(const Plan& plan, int32_t group) {
  std::vector<RankTerm> terms;
  const std::vector<BoxReuse> reuses = box_reuses(plan);
  for (const plan::Op& op : plan.ops)
    for (const int operand : first_out_boxes(plan, op, group)) terms.push_back(term_of(plan, reuses, op, operand));
  terms.push_back({"the whole", cat(world_of(plan, group), " ranks, boxes of ", box_bytes_of(plan, group), " bytes")});
  return terms;
}

std::vector<RankParts> rank_parts(const Plan& plan) {
  std::map<int64_t, RankParts> found;
  for (const Buffer& b : plan.buffers) {
    if (!is_part(b.kind)) continue;
    const plan::Op& sender = plan.ops[static_cast<size_t>(sender_of_part(plan, b))];
    const auto world = static_cast<size_t>(plan.world);
    RankParts& parts = found
                           .try_emplace(b.arena_offset, b.arena_offset, sender.name, DType::kU8,
                                        std::vector<int64_t>(world), std::vector<int64_t>(world))
                           .first->second;
    (b.kind == BufferKind::kPart ? parts.in : parts.out)[static_cast<size_t>(b.index)] = b.size_bytes;
  }
  for (const plan::Op& op : plan.ops)
    for (const abi::Operand& x : op.operands)
      if (x.slot < plan.buffers.size() && is_part(buffer_of(plan, x).kind))
        found.at(buffer_of(plan, x).arena_offset).dtype = static_cast<DType>(x.dtype);
  std::vector<RankParts> all;
  for (auto& [number, parts] : found) all.push_back(std::move(parts));
  return all;
}

}  // namespace ark::planner
