// Random graphs through the planner: the verifier passes every plan (make_plan throws otherwise), and the enumeration
// of all elements and all waits agrees that nothing races. Arguments: first seed, number of seeds.
#include <cstdlib>
#include <random>

#include "planner/planner.h"
#include "planner/verify/verify_plan.h"
#include "support/check.h"
#include "support/graph_builder.h"
#include "support/plan_brute.h"

using namespace ark;
using namespace ark::test;

namespace {

/// The dimension of size 0 of all matrices.
enum class Nothing { kNone, kRows, kColumns };

class RandomGraph {
 public:
  explicit RandomGraph(uint32_t seed, Nothing nothing = Nothing::kNone) : random_(seed), nothing_(nothing) {
    rows_ = 32 * draw(1, 6), columns_ = 16 * draw(2, 12);
    if (draw(0, 2) == 0) rows_ += draw(1, 31), columns_ += draw(1, 15);
    if (nothing == Nothing::kRows) rows_ = 0;
    if (nothing == Nothing::kColumns) columns_ = 0;
    dtype_ = draw(0, 1) ? DType::kBF16 : DType::kF32;
    for (int i = 0; i < 2; ++i) matrices_.push_back(b_.input(dtype_, {rows_, columns_}));
    index_ = b_.input(DType::kI64, {rows_, 1});
    int steps = static_cast<int>(draw(4, 14));
    for (int i = 0; i < steps; ++i) step();
    for (ValueId m : matrices_)
      if (b_.graph.values[m].base < 0 && (m == matrices_.back() || draw(0, 3) == 0) && !is_input(m))
        b_.graph.outputs.push_back(m);
    if (b_.graph.outputs.empty()) b_.graph.outputs.push_back(binary(matrices_[0], matrices_[1]));
    b_.graph.name = cat("random ", seed);
    verify(b_.graph);
  }
  const Graph& graph() const { return b_.graph; }

 private:
  int64_t draw(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % static_cast<uint64_t>(high - low + 1));
  }
  bool is_input(ValueId id) const {
    return std::find(b_.graph.inputs.begin(), b_.graph.inputs.end(), id) != b_.graph.inputs.end();
  }
  ValueId pick() { return matrices_[static_cast<size_t>(draw(0, static_cast<int64_t>(matrices_.size()) - 1))]; }
  ValueId binary(ValueId x, ValueId y) {
    return b_.pointwise(draw(0, 1) ? Opcode::kAdd : Opcode::kMul, {x, y}, dtype_, {rows_, columns_});
  }
  /// A view of an owner with its own sizes and strides.
  ValueId view(ValueId of, std::vector<int64_t> sizes, std::vector<int64_t> strides, int64_t offset = 0) {
    const Value source = b_.graph.values[of];
    ValueId v = b_.value(source.dtype, std::move(sizes), source.base < 0 ? of : source.base);
    for (size_t d = 0; d < strides.size(); ++d) b_.graph.values[v].strides[d] = number(strides[d]);
    b_.graph.values[v].offset = number(source.offset.value + offset);
    b_.node(OpKind::kView, {of}, {v});
    return v;
  }
  bool plain(ValueId x) const { return b_.graph.values[x].base < 0; }

  void step() {
    ValueId x = pick();
    switch (draw(0, 9)) {
      case 0:
      case 1:
        return matrices_.push_back(binary(x, pick()));
      case 2:
        return matrices_.push_back(b_.pointwise(Opcode::kExp, {x}, dtype_, {rows_, columns_}));
      case 3:
      case 4:
        return reduce(x, draw(0, 1));
      case 5:
        return product(x);
      case 6:
        return gather(x);
      case 7:
        return shift(x);
      case 8:
        return update(x);
      default:
        return gram(x);
    }
  }

  /// Over rows or columns, and back by broadcasting.
  void reduce(ValueId x, int64_t dim) {
    ValueId sum = b_.value(dtype_, {dim == 0 ? 1 : rows_, dim == 0 ? columns_ : 1});
    Node& node = b_.node(OpKind::kReduce, {x}, {sum});
    node.attrs.dims = {dim}, node.attrs.keepdim = true;
    node.attrs.reduce = draw(0, 1) || nothing_ != Nothing::kNone ? ReduceOp::kSum : ReduceOp::kMax;
    matrices_.push_back(binary(draw(0, 1) ? x : pick(), sum));
    if (draw(0, 3) == 0) b_.graph.outputs.push_back(sum);
  }
  /// Against weights, a square of columns.
  void product(ValueId x) {
    ValueId w = b_.input(dtype_, {columns_, columns_}), y = b_.value(dtype_, {rows_, columns_});
    b_.graph.immutable.back() = draw(0, 1) == 1;
    if (draw(0, 1)) w = view(w, {columns_, columns_}, {1, columns_});
    b_.node(OpKind::kMatmul, {x, w}, {y});
    matrices_.push_back(draw(0, 1) ? y : binary(y, pick()));
  }
  /// x^T x, then x times that: a product that needs all rows.
  void gram(ValueId x) {
    if (!plain(x)) return;
    ValueId g = b_.value(dtype_, {columns_, columns_}), y = b_.value(dtype_, {rows_, columns_});
    b_.node(OpKind::kMatmul, {view(x, {columns_, rows_}, {1, columns_}), x}, {g});
    b_.node(OpKind::kMatmul, {pick(), g}, {y});
    matrices_.push_back(y);
  }
  void gather(ValueId x) {
    ValueId y = b_.value(dtype_, {rows_, columns_});
    b_.node(OpKind::kIndexLoad, {x, index_}, {y}).attrs.map = {~0, 1};
    matrices_.push_back(y);
  }
  /// Two parts of rows exchanged, or columns joined and cut.
  void shift(ValueId x) {
    if (!plain(x)) return;
    int64_t dim = draw(0, 1), cut = (dim ? columns_ : rows_) / 2;
    auto part = [&](int64_t from, int64_t n) {
      return view(x, {dim ? rows_ : n, dim ? n : columns_}, {columns_, 1}, from * (dim ? 1 : columns_));
    };
    ValueId low = part(0, cut), high = part(cut, (dim ? columns_ : rows_) - cut),
            y = b_.value(dtype_, {rows_, columns_});
    b_.node(OpKind::kCat, {high, low}, {y}).attrs.dim = dim;
    matrices_.push_back(y);
  }
  /// Some rows of an input are overwritten in place.
  void update(ValueId x) {
    ValueId state = b_.input(dtype_, {rows_, columns_}), stored = b_.value(dtype_, {rows_, columns_});
    ValueId copied = b_.value(dtype_, {rows_, columns_}, state);
    if (draw(0, 1)) matrices_.push_back(binary(state, pick()));  // reads the old content
    if (draw(0, 1)) {
      b_.node(OpKind::kIndexStore, {state, x, index_}, {stored}).attrs.map = {~0, 1};
    } else {
      stored = binary(state, x);
    }
    b_.node(OpKind::kCopyTo, {state, stored}, {copied});
    matrices_.push_back(stored);
  }

  std::mt19937 random_;
  Nothing nothing_;
  GraphBuilder b_;
  int64_t rows_ = 0, columns_ = 0;
  DType dtype_ = DType::kF32;
  std::vector<ValueId> matrices_;
  ValueId index_ = -1;
};

void test_seed(uint32_t seed, Nothing nothing, int& planned, int& unsupported) {
  RandomGraph random(seed, nothing);
  for (bool tensor_cores : {false, true}) {
    planner::Options options;
    options.machine.num_workers = seed % 3 == 0 ? 3 : 24;
    options.tensor_cores = tensor_cores;
    options.schedule = seed % 5 == 0 ? planner::Schedule::kSequential : planner::Schedule::kGreedy;
    try {
      plan::Plan plan = planner::make_plan(random.graph(), options);
      verify_plan(plan, planner::VerifyLevel::kFull);
      BrutePlan brute(plan);
      if (!brute.all_ordered(brute.conflicts()))
        test::fail(cat("seed ", seed, ": a race that the verifier missed"), __FILE__, __LINE__);
      ++planned;
    } catch (const UnsupportedError& error) {
      ++unsupported;
    } catch (const InternalError& error) {
      test::fail(cat("seed ", seed, ": ", error.what(), "\n", to_string(random.graph())), __FILE__, __LINE__);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  auto first = static_cast<uint32_t>(argc > 1 ? std::atoi(argv[1]) : 1);
  auto count = static_cast<uint32_t>(argc > 2 ? std::atoi(argv[2]) : 16);
  int planned = 0, unsupported = 0;
  for (uint32_t seed = first; seed < first + count; ++seed) test_seed(seed, Nothing::kNone, planned, unsupported);
  for (uint32_t seed = first; seed < first + count; ++seed) {
    test_seed(seed, Nothing::kRows, planned, unsupported);
    test_seed(seed, Nothing::kColumns, planned, unsupported);
  }
  std::printf("%d plans, %d graphs unsupported\n", planned, unsupported);
  EXPECT(planned > unsupported);
  return test::result("random plans");
}
