// Products that store the rows of each rank in its box (planner/tile/send_by_batch.h): as they are planned, and with
// programs of every number of ranks. Products that read what ranks have gathered.
#include <algorithm>

#include "base/check.h"
#include "planner/planner.h"
#include "plans.h"
#include "support/exchange_graphs.h"

namespace ark::cuda_compile {
namespace {

/// relu(product + operand 0), stored by batch b in operand boxes[b]; -1: nowhere. `also`: an operand that all store.
int by_batch(plan::Plan& p, const std::vector<int>& boxes, int also = -1) {
  ProgramBuilder b(ProgramKind::kEpilogue, 3, 0, std::max(also, *std::ranges::max_element(boxes)) + 1);
  const int root = b.root(), added = b.load(0, DType::kBF16);
  const int sum = b.op(Opcode::kAdd, root, added), value = b.op(Opcode::kRelu, sum);
  if (also >= 0) b.store(also, DType::kBF16, sum);
  const int batch = b.index(0);
  for (size_t r = 0; r < boxes.size(); ++r) {
    if (boxes[r] < 0) continue;
    const int number = b.constant(static_cast<double>(r), DType::kI64);
    b.store(boxes[r], DType::kBF16, value, false, -1, b.op(Opcode::kEq, batch, number, -1, DType::kBool));
  }
  return add_program(p, b);
}

void add_product(plan::Plan& p, int program, int columns) {
  plan::Op op;
  op.name = "product";
  op.record.kind = abi::TaskKind::kMatmulTile;
  abi::MatmulTileParams& m = op.record.params.matmul;
  m.dtype = static_cast<int>(DType::kBF16);
  m.tile_m = 128, m.tile_n = 256, m.tile_k = 64, m.n = columns;
  m.a_k_major = m.b_k_major = 1;
  m.program = program;
  op.operands.resize(static_cast<size_t>(p.programs[static_cast<size_t>(program)].num_operands));
  for (abi::Operand& o : op.operands) {
    o.dtype = static_cast<short>(DType::kBF16);
    o.stride[1] = columns, o.stride[2] = 1;
    o.vector = columns % 8 == 0 ? 8 : columns % 2 == 0 ? 2 : 1;
  }
  p.ops.push_back(op);
}

/// Programs 0 to 6 of 2 to 8 ranks; 7: rank 0's box stands apart; 8: nothing is stored for rank 1.
NamedPlan batch_stores_plan() {
  plan::Plan p;
  p.maps.resize(1);
  std::vector<int> boxes = {1};
  while (boxes.size() < 8) {
    boxes.push_back(boxes.back() + 1);
    add_product(p, by_batch(p, boxes), 1024);
  }
  add_product(p, by_batch(p, {1, 3, 4}, 2), 1024);
  add_product(p, by_batch(p, {1, -1, 2, 3}), 1024);
  for (const int columns : {1026, 1027}) add_product(p, 2, columns);  // by two elements, by one
  return {"batch_stores", p};
}

/// Reduce-scatters of x @ w and of relu(x @ w + bias).
NamedPlan scattered_plan(const char* name, int world, DType type) {
  test::ExchangeBuilder b(world);
  const int64_t rows = 8192, columns = 8192, k = 1024;
  const auto product = [&] { return b.linear(b.input(type, {rows, k}), b.input(type, {columns, k})); };
  const ir::ValueId plain = b.reduce_scatter(product()),
                    sum = b.binary(Opcode::kAdd, product(), b.input(type, {rows, columns}));
  return {name, planner::make_plan(b.finish({plain, b.reduce_scatter(b.unary(Opcode::kRelu, sum))}, name), {})};
}

/// Products of what ranks gather: own rows, sends in the background.
NamedPlan gathered_plan(const char* name, int world, DType type) {
  test::ExchangeBuilder b(world);
  const ir::ValueId x = b.input(type, {8192 / world, 8192}), w = b.input(type, {2048, 8192});
  NamedPlan named{name, planner::make_plan(b.finish({b.unary(Opcode::kRelu, b.linear(b.all_gather(x), w))}, name), {})};
  const auto has = [&](auto&& is) { return std::ranges::any_of(named.plan.ops, is); };
  check(has([](const plan::Op& op) { return abi::has_own_rows(op.record); }) &&
            has([](const plan::Op& op) { return op.record.background == abi::kToOthers; }),
        name, ": no own rows");
  return named;
}

}  // namespace

std::vector<NamedPlan> scattered_plans() {
  return {batch_stores_plan(),
          scattered_plan("scattered_two", 2, DType::kBF16),
          scattered_plan("scattered_four", 4, DType::kBF16),
          scattered_plan("scattered_eight", 8, DType::kF16),
          scattered_plan("scattered_float", 4, DType::kF32),
          gathered_plan("gathered_two", 2, DType::kF16),
          gathered_plan("gathered_four", 4, DType::kBF16)};
}

}  // namespace ark::cuda_compile
