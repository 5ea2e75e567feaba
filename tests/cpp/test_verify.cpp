// The verifier itself: boxes against enumeration; plans of the real planner pass; every wait, arrival, target, item and
// arena offset is damaged in turn, and every damage that a brute-force enumeration of the plan calls a race, or that no
// run could survive, must be caught.
#include <cstdlib>
#include <random>

#include "check.h"
#include "graph_builder.h"
#include "plan_brute.h"
#include "planner/planner.h"
#include "planner/regions.h"
#include "planner/verify_plan.h"

using namespace ark;
using namespace ark::test;
using planner::Box;
using planner::Overlap;

namespace {

// ---- boxes ----
Box random_box(std::mt19937& random) {
  auto draw = [&](int low, int high) {
    return static_cast<int64_t>(low + static_cast<int>(random() % static_cast<unsigned>(high - low + 1)));
  };
  static constexpr int64_t kStrides[] = {120, 24, 12, 4, 60, 30, 7};
  Box box;
  box.begin = draw(0, 200);
  box.width = draw(1, 10);
  if (draw(0, 5) == 0) box.width = draw(1, 150);
  int64_t inner = box.width;
  std::vector<int64_t> strides;
  for (int i = 0; i < 3; ++i) strides.push_back(kStrides[draw(0, random() % 4 ? 3 : 6)]);
  std::sort(strides.begin(), strides.end());
  for (int64_t s : strides) {
    if (s <= inner || draw(0, 2) == 0) continue;
    int64_t count = draw(2, 4);
    box.dims[box.num_dims++] = {count, s};
    inner += (count - 1) * s;
  }
  std::reverse(box.dims, box.dims + box.num_dims);
  return box;
}

std::set<int64_t> bytes_of(const Box& box, int dim = 0, int64_t begin = 0) {
  std::set<int64_t> out;
  if (dim == box.num_dims) {
    for (int64_t i = 0; i < box.width; ++i) out.insert(box.begin + begin + i);
    return out;
  }
  for (int64_t i = 0; i < box.dims[dim].count; ++i) out.merge(bytes_of(box, dim + 1, begin + i * box.dims[dim].stride));
  return out;
}

void test_boxes() {
  std::mt19937 random(7);
  int yes = 0, no = 0, unknown = 0;
  for (int i = 0; i < 20'000; ++i) {
    Box a = random_box(random), b = random_box(random);
    std::set<int64_t> x = bytes_of(a), y = bytes_of(b);
    bool meet = std::any_of(x.begin(), x.end(), [&](int64_t byte) { return y.contains(byte); });
    Overlap answer = overlap(a, b);
    EXPECT_EQ(a.end(), *x.rbegin() + 1);
    if (answer == Overlap::kUnknown) {
      ++unknown;
      continue;
    }
    ++(meet ? yes : no);
    EXPECT_EQ(answer == Overlap::kYes, meet);
  }
  std::printf("boxes: %d meet, %d do not, %d unknown\n", yes, no, unknown);
  EXPECT(yes > 2000 && no > 2000);
  // columns of a matrix: apart, though their hulls meet
  Box left{.begin = 0, .width = 64, .num_dims = 1, .dims = {{100, 128}}}, right = left;
  right.begin = 64;
  EXPECT(overlap(left, right) == Overlap::kNo);
  right.begin = 63;
  EXPECT(overlap(left, right) == Overlap::kYes);
  Box run{.begin = 64, .width = 128};  // from the middle of one row to the middle of the next
  EXPECT(overlap(left, run) == Overlap::kYes);
  run.width = 64;
  EXPECT(overlap(left, run) == Overlap::kNo);
}

// ---- plans ----
using enum DType;

/// Two layers: norm, qkv, attention, projection and residual, feed forward; then a column sum and a cast.
Graph layers(int64_t batch, int64_t seq, int64_t width, int num_layers, DType dtype) {
  GraphBuilder b;
  int64_t rows = batch * seq, head = 64, heads = width / head;
  ValueId x = b.input(dtype, {rows, width});
  auto matmul = [&](ValueId a, int64_t k, int64_t n) {
    ValueId w = b.input(dtype, {k, n}), out = b.value(dtype, {rows, n});
    b.graph.immutable.back() = true;
    b.node(OpKind::kMatmul, {a, w}, {out});
    return out;
  };
  auto norm = [&](ValueId a) {
    ValueId sum = b.value(kF32, {rows, 1}), wide = b.pointwise(Opcode::kCast, {a}, kF32, {rows, width});
    Node& node = b.node(OpKind::kReduce, {wide}, {sum});
    node.attrs.dims = {1}, node.attrs.keepdim = true;
    return b.pointwise(Opcode::kCast, {b.pointwise(Opcode::kSub, {wide, sum}, kF32, {rows, width})}, dtype,
                       {rows, width});
  };
  auto part = [&](ValueId qkv, int64_t index) {
    ValueId view = b.value(dtype, {batch, heads, seq, head}, qkv);
    Value& v = b.graph.values[view];
    v.strides = {number(seq * 3 * width), number(head), number(3 * width), number(1)};
    v.offset = number(index * width);
    b.node(OpKind::kView, {qkv}, {view});
    return view;
  };
  for (int l = 0; l < num_layers; ++l) {
    ValueId qkv = matmul(norm(x), width, 3 * width);
    ValueId out = b.value(dtype, {batch, heads, seq, head}), lse = b.value(kF32, {batch, heads, seq});
    b.graph.values[out].strides = {number(seq * width), number(head), number(width), number(1)};
    b.node(OpKind::kAttention, {part(qkv, 0), part(qkv, 1), part(qkv, 2)}, {out, lse}).attrs.scale = 0.125;
    ValueId flat = b.value(dtype, {rows, width}, out);
    b.node(OpKind::kView, {out}, {flat});
    ValueId r = b.pointwise(Opcode::kAdd, {matmul(flat, width, width), x}, dtype, {rows, width});
    ValueId h = b.pointwise(Opcode::kRelu, {matmul(norm(r), width, 2 * width)}, dtype, {rows, 2 * width});
    x = b.pointwise(Opcode::kAdd, {matmul(h, 2 * width, width), r}, dtype, {rows, width});
  }
  ValueId total = b.value(dtype, {width});
  b.node(OpKind::kReduce, {x}, {total}).attrs.dims = {0};
  b.graph.outputs = {x, total};
  b.graph.name = "layers";
  verify(b.graph);
  return b.graph;
}

/// A chain of few-row products, as in decoding, with an update of a cache in place.
Graph decode_chain(int64_t width, int num_layers) {
  GraphBuilder b;
  ValueId x = b.input(kBF16, {1, width}), position = b.input(kI64, {1, 1});
  for (int l = 0; l < num_layers; ++l) {
    ValueId cache = b.input(kBF16, {16, width}), w = b.input(kBF16, {width, width});
    b.graph.immutable.back() = true;
    ValueId y = b.value(kBF16, {1, width}), stored = b.value(kBF16, {16, width}),
            copied = b.value(kBF16, {16, width}, cache);
    b.node(OpKind::kMatmul, {x, w}, {y});
    b.node(OpKind::kIndexStore, {cache, y, position}, {stored}).attrs.map = {~0, 1};
    b.node(OpKind::kCopyTo, {cache, stored}, {copied});
    ValueId sum = b.value(kBF16, {1, width});
    Node& reduce = b.node(OpKind::kReduce, {stored}, {sum});
    reduce.attrs.dims = {0}, reduce.attrs.keepdim = true;
    x = b.pointwise(Opcode::kMul, {sum, y}, kBF16, {1, width});
  }
  b.graph.outputs = {x};
  b.graph.name = "decode";
  verify(b.graph);
  return b.graph;
}

/// Attention with a mask and two query heads per kv head, forward and backward, and gradients of its weights.
Graph attention_step(int64_t seq) {
  GraphBuilder b;
  int64_t heads = 4, kv_heads = 2, head = 64, width = heads * head, kv_width = kv_heads * head;
  ValueId x = b.input(kBF16, {seq, width}), dout = b.input(kBF16, {1, heads, seq, head});
  ValueId keep = b.input(kBool, {1, 1, seq, seq});
  auto project = [&](int64_t n) {
    ValueId w = b.input(kBF16, {width, n}), y = b.value(kBF16, {seq, n});
    b.graph.immutable.back() = true;
    b.node(OpKind::kMatmul, {x, w}, {y});
    ValueId view = b.value(kBF16, {1, n / head, seq, head}, y);
    b.graph.values[view].strides = {number(seq * n), number(head), number(n), number(1)};
    b.node(OpKind::kView, {y}, {view});
    return view;
  };
  ValueId q = project(width), k = project(kv_width), v = project(kv_width);
  ValueId out = b.value(kBF16, {1, heads, seq, head}), lse = b.value(kF32, {1, heads, seq});
  b.node(OpKind::kAttention, {q, k, v, keep}, {out, lse}).attrs.has_mask = true;
  ValueId dq = b.value(kBF16, {1, heads, seq, head}), dk = b.value(kBF16, {1, kv_heads, seq, head});
  ValueId dv = b.value(kBF16, {1, kv_heads, seq, head});
  for (ValueId g : {out, dq}) b.graph.values[g].strides = {number(seq * width), number(head), number(width), number(1)};
  for (ValueId g : {dk, dv})
    b.graph.values[g].strides = {number(seq * kv_width), number(head), number(kv_width), number(1)};
  b.node(OpKind::kAttentionBackward, {dout, q, k, v, out, lse, keep}, {dq, dk, dv}).attrs.has_mask = true;
  ValueId xt = b.value(kBF16, {width, seq}, x);
  b.graph.values[xt].strides = {number(1), number(width)};
  b.node(OpKind::kView, {x}, {xt});
  b.graph.outputs = {out};
  for (auto [g, n] : {std::pair(dq, width), {dk, kv_width}, {dv, kv_width}}) {
    ValueId flat = b.value(kBF16, {seq, n}, g), dw = b.value(kBF16, {width, n}), bias = b.value(kBF16, {n});
    b.node(OpKind::kView, {g}, {flat});
    b.node(OpKind::kMatmul, {xt, flat}, {dw});
    b.node(OpKind::kReduce, {flat}, {bias}).attrs.dims = {0};
    b.graph.outputs.insert(b.graph.outputs.end(), {dw, bias});
  }
  verify(b.graph);
  return b.graph;
}

/// Decoding with a cache: a few queries against many keys in parts, a gated feed forward, all of few rows.
Graph decode_step(int64_t keys, int num_layers) {
  GraphBuilder b;
  int64_t heads = 4, kv_heads = 2, head = 64, width = heads * head, kv_width = kv_heads * head;
  ValueId x = b.input(kBF16, {1, width}), position = b.input(kI64, {1});
  ValueId keep = b.input(kBool, {1, 1, 1, keys});
  auto matmul = [&](ValueId a, int64_t k, int64_t n) {  // weights [n][k], as torch keeps them
    ValueId w = b.input(kBF16, {n, k}), wt = b.value(kBF16, {k, n}, w), y = b.value(kBF16, {1, n});
    b.graph.immutable.back() = true;
    b.graph.values[wt].strides = {number(1), number(k)};
    b.node(OpKind::kView, {w}, {wt});
    b.node(OpKind::kMatmul, {a, wt}, {y});
    return y;
  };
  auto split = [&](ValueId y, int64_t n) {
    ValueId view = b.value(kBF16, {1, n, 1, head}, y);
    b.node(OpKind::kView, {y}, {view});
    return view;
  };
  auto append = [&](ValueId y) {
    ValueId cache = b.input(kBF16, {1, kv_heads, keys, head}), stored = b.value(kBF16, {1, kv_heads, keys, head});
    ValueId copied = b.value(kBF16, {1, kv_heads, keys, head}, cache), index = b.value(kI64, {1, 1, 1, 1}, position);
    b.node(OpKind::kView, {position}, {index});
    b.node(OpKind::kIndexStore, {cache, split(y, kv_heads), index}, {stored}).attrs.map = {0, 1, ~0, 3};
    b.node(OpKind::kCopyTo, {cache, stored}, {copied});
    return stored;
  };
  for (int l = 0; l < num_layers; ++l) {
    ValueId q = matmul(x, width, width), k = append(matmul(x, width, kv_width)), v = append(matmul(x, width, kv_width));
    ValueId out = b.value(kBF16, {1, heads, 1, head}), lse = b.value(kF32, {1, heads, 1});
    b.node(OpKind::kAttention, {split(q, heads), k, v, keep}, {out, lse}).attrs.has_mask = true;
    ValueId flat = b.value(kBF16, {1, width}, out);
    b.node(OpKind::kView, {out}, {flat});
    ValueId r = b.pointwise(Opcode::kAdd, {matmul(flat, width, width), x}, kBF16, {1, width});
    ValueId gate = b.pointwise(Opcode::kSigmoid, {matmul(r, width, width)}, kBF16, {1, width});
    ValueId h = b.pointwise(Opcode::kMul, {gate, matmul(r, width, width)}, kBF16, {1, width});
    x = b.pointwise(Opcode::kAdd, {matmul(h, width, width), r}, kBF16, {1, width});
  }
  b.graph.outputs = {x};
  verify(b.graph);
  return b.graph;
}

plan::Plan plan_of(const Graph& graph, bool tensor_cores, bool reuse_memory, int workers = 16) {
  planner::Options options;
  options.machine.num_workers = workers;
  options.tensor_cores = tensor_cores;
  options.reuse_memory = reuse_memory;
  return planner::make_plan(graph, options);
}

/// The verifier's complaint, or nothing.
std::string complaint(const plan::Plan& plan, planner::VerifyLevel level = planner::VerifyLevel::kFull) {
  try {
    verify_plan(plan, level);
    return "";
  } catch (const InternalError& error) {
    return error.what();
  }
}

bool all_pairs = false;

struct Score {
  int caught = 0, redundant = 0, too_strict = 0, missed = 0;
};
void print(const char* what, const std::string& name, const Score& s) {
  std::printf("%s: %s: %d caught, %d redundant (proved), %d refused though right, %d missed\n", name.c_str(), what,
              s.caught, s.redundant, s.too_strict, s.missed);
  EXPECT_EQ(s.missed, 0);
}
/// `race`: what the enumeration says.
void count(Score& score, bool race, const std::string& message, const std::string& damage) {
  bool refused = !message.empty();
  if (race && !refused) test::fail("not caught: " + damage, __FILE__, __LINE__);
  ++(race ? (refused ? score.caught : score.missed) : (refused ? score.too_strict : score.redundant));
}

/// Every wait taken away, and every wait made for the wrong rows.
void damage_waits(const plan::Plan& plan, const std::set<std::pair<int64_t, int64_t>>& conflicts) {
  Score removed, shifted;
  for (size_t op = 0; op < plan.ops.size(); ++op)
    for (int w = 0; w < plan.ops[op].record.num_waits; ++w) {
      plan::Plan damaged = plan;
      abi::OpRecord& r = damaged.ops[op].record;
      std::copy(r.wait + w + 1, r.wait + r.num_waits, r.wait + w);
      --r.num_waits;
      count(removed, !BrutePlan(damaged).all_ordered(conflicts), complaint(damaged),
            cat("op ", op, " without wait ", w));
      for (int change = 0; change < 3; ++change) {
        plan::Plan other = plan;
        abi::Wait& wait = other.ops[op].record.wait[w];
        if (change == 0) wait.base += wait.div;
        if (change == 1) wait.extent = std::max(1, wait.extent / 2);
        if (change == 2) wait.coef[0] = wait.coef[1] = wait.coef[2] = 0;
        count(shifted, !BrutePlan(other).all_ordered(conflicts), complaint(other),
              cat("op ", op, ", wait ", w, " changed ", change));
      }
    }
  print("waits removed", plan.name, removed);
  print("waits changed", plan.name, shifted);
  EXPECT(removed.caught > 3);
  EXPECT_EQ(removed.too_strict, 0);
}

/// Counts that do not come out: a wait that is never met, or met too early in the next launch.
void damage_counts(const plan::Plan& plan) {
  int caught = 0, unheard = 0;
  auto must_fail = [&](const plan::Plan& damaged, const std::string& damage) {
    bool refused = !complaint(damaged, planner::VerifyLevel::kStructure).empty();
    caught += refused;
    if (!refused) test::fail("not caught: " + damage, __FILE__, __LINE__);
  };
  std::set<int64_t> heard;  // counters that someone waits for
  for (const plan::Op& op : plan.ops)
    for (int w = 0; w < op.record.num_waits; ++w)
      for (int64_t row = 0; row < op.record.wait[w].limit; row += op.record.wait[w].div)
        heard.insert(op.record.wait[w].counter + row / op.record.wait[w].div);
  for (size_t op = 0; op < plan.ops.size(); ++op) {
    for (int a = 0; a < plan.ops[op].record.num_arrivals; ++a) {
      plan::Plan damaged = plan;
      abi::OpRecord& r = damaged.ops[op].record;
      if (!heard.contains(r.arrive[a].counter)) {
        ++unheard;
        continue;
      }
      std::copy(r.arrive + a + 1, r.arrive + r.num_arrivals, r.arrive + a);
      --r.num_arrivals;
      must_fail(damaged, cat("op ", op, " without arrival ", a));
    }
    for (int w = 0; w < plan.ops[op].record.num_waits; ++w)
      for (int by : {-1, 1}) {
        plan::Plan damaged = plan;
        damaged.ops[op].record.wait[w].target += static_cast<uint32_t>(by);
        damaged.ops[op].record.wait[w].last_target += static_cast<uint32_t>(by);
        must_fail(damaged, cat("op ", op, ", target ", w, by > 0 ? " + 1" : " - 1"));
      }
  }
  std::printf("%s: arrivals and targets: %d caught, %d arrivals that nobody waits for\n", plan.name.c_str(), caught,
              unheard);
}

/// Arena buffers put where another one lies: every fourth pair (a pair takes half a second), or all (`--all`).
void damage_memory(const plan::Plan& plan) {
  Score moved;
  const size_t every = all_pairs ? 1 : 4;
  for (size_t i = 0; i < plan.buffers.size(); ++i)
    for (size_t j = 0; j < plan.buffers.size(); ++j) {
      const plan::Buffer &a = plan.buffers[i], &b = plan.buffers[j];
      bool arena = a.kind == plan::BufferKind::kArena && b.kind == plan::BufferKind::kArena;
      if (!arena || a.arena_offset == b.arena_offset || (i * 7 + j) % every != 0) continue;
      plan::Plan damaged = plan;
      damaged.buffers[i].arena_offset = b.arena_offset;
      damaged.arena_bytes = std::max(plan.arena_bytes, b.arena_offset + a.size_bytes);
      BrutePlan brute(damaged);
      count(moved, !brute.all_ordered(brute.conflicts()), complaint(damaged),
            cat("slot ", i, " at the place of slot ", j));
    }
  print("buffers moved", plan.name, moved);
  EXPECT(moved.caught > 0 || plan.ops.size() < 10);
}

/// Every lifetime cut by an op on either side.
void damage_lifetimes(const plan::Plan& plan) {
  int caught = 0;
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    if (plan.buffers[i].kind != plan::BufferKind::kArena || plan.buffers[i].size_bytes == 0) continue;
    for (const bool end : {false, true}) {
      plan::Plan damaged = plan;
      if (end)
        --damaged.buffers[i].last_op;
      else
        ++damaged.buffers[i].first_op;
      const std::string message = complaint(damaged, planner::VerifyLevel::kStructure);
      caught += !message.empty();
      if (message.find("which lives from op") == std::string::npos)
        test::fail(cat("slot ", i, end ? ", end" : ", begin", " of its life: got \"", message, '"'), __FILE__,
                   __LINE__);
    }
  }
  std::printf("%s: lifetimes: %d caught\n", plan.name.c_str(), caught);
}

/// Lists that lose, repeat or misplace tiles.
void damage_lists(const plan::Plan& plan) {
  int caught = 0;
  auto must_fail = [&](const plan::Plan& damaged, const std::string& part) {
    std::string message = complaint(damaged, planner::VerifyLevel::kStructure);
    caught += !message.empty();
    if (message.find(part) == std::string::npos)
      test::fail(cat("expected \"", part, "\", got \"", message, '"'), __FILE__, __LINE__);
  };
  for (size_t w = 0; w < plan.lists.size(); ++w)
    for (size_t i = 0; i < plan.lists[w].size(); ++i) {
      plan::Plan lost = plan, twice = plan, beyond = plan;
      lost.lists[w].erase(lost.lists[w].begin() + static_cast<std::ptrdiff_t>(i));
      must_fail(lost, "is in no list");
      twice.lists[w].push_back(twice.lists[w][i]);
      must_fail(twice, "in the lists twice");
      beyond.lists[w][i].first += 1'000'000;
      must_fail(beyond, "which has");
    }
  plan::Plan reversed = plan;
  bool several = false;  // a worker with items of several ops
  for (auto& list : reversed.lists) {
    several |= !list.empty() && list.front().op != list.back().op;
    std::reverse(list.begin(), list.end());
  }
  if (several) must_fail(reversed, "deadlock");
  std::printf("%s: lists: %d caught\n", plan.name.c_str(), caught);
}

void damage_structure(const plan::Plan& plan) {
  auto must_fail = [&](const char* part, const std::function<void(plan::Plan&)>& change) {
    plan::Plan damaged = plan;
    change(damaged);
    std::string message = complaint(damaged);
    if (message.find(part) == std::string::npos)
      test::fail(cat("expected \"", part, "\", got \"", message, '"'), __FILE__, __LINE__);
  };
  size_t arena = 0, input = 0;
  for (size_t i = 0; i < plan.buffers.size(); ++i) {
    // one without tensor maps, about which the verifier has more to say
    const bool mapped = std::ranges::any_of(plan.maps, [&](const plan::TensorMap& m) { return m.slot == i; });
    if (plan.buffers[i].kind == plan::BufferKind::kArena && plan.buffers[i].size_bytes > 0 && !mapped) arena = i;
    if (plan.buffers[i].kind == plan::BufferKind::kInput && plan.buffers[i].immutable) input = i;
  }
  must_fail("of an arena of", [&](plan::Plan& p) { p.arena_bytes = p.buffers[arena].arena_offset; });
  must_fail("which lives from op", [&](plan::Plan& p) { p.buffers[arena].last_op = p.buffers[arena].first_op - 1; });
  must_fail("touches bytes", [&](plan::Plan& p) { p.buffers[arena].size_bytes /= 2; });
  must_fail("ends at byte", [&](plan::Plan& p) { p.buffers[input].size_bytes -= 2; });
  must_fail("ahead of its waits", [&](plan::Plan& p) { p.buffers[input].immutable = false; });
  must_fail("which is immutable", [&](plan::Plan& p) {
    for (plan::Buffer& b : p.buffers) b.immutable |= b.kind == plan::BufferKind::kOutput;
  });
  must_fail("which no op before it writes", [&](plan::Plan& p) {
    plan::Buffer copy = p.buffers[arena];
    copy.first_op = 0, copy.last_op = 1000;
    p.buffers.push_back(copy);
    for (plan::Op& op : p.ops) {
      std::vector<planner::OperandUse> uses = planner::operand_uses(op, p.programs);
      for (size_t i = 0; i < uses.size(); ++i)
        if (uses[i].read && op.operands[i].slot == arena)
          op.operands[i].slot = static_cast<uint32_t>(p.buffers.size()) - 1;
    }
  });
  auto op_of = [](plan::Plan& p, abi::TaskKind kind) -> plan::Op& {
    return *std::find_if(p.ops.begin(), p.ops.end(), [&](const plan::Op& op) { return op.record.kind == kind; });
  };
  using enum abi::TaskKind;
  must_fail("grid", [&](plan::Plan& p) { op_of(p, kMatmulTile).record.params.matmul.n += 128; });
  must_fail("elements, expected", [&](plan::Plan& p) { op_of(p, kRow).record.size[0] *= 2; });
  must_fail("the record", [&](plan::Plan& p) { op_of(p, kRow).record.params.program.num_dims = 1; });
  must_fail("is of kind", [&](plan::Plan& p) { op_of(p, kRow).record.kind = kPointwise; });
  must_fail("has operands", [&](plan::Plan& p) { op_of(p, kMatmulTile).record.params.matmul.first_operand += 7; });
  must_fail("map", [&](plan::Plan& p) { p.maps[0].offset_bytes += 16; });
  must_fail("map", [&](plan::Plan& p) { p.maps[0].sizes[1] += 1; });
  must_fail("map", [&](plan::Plan& p) { std::swap(p.maps[0].slot, p.maps.back().slot); });
  must_fail("kv heads", [&](plan::Plan& p) { op_of(p, kAttentionForward).record.params.attention.kv_heads = 0; });
  must_fail("uses a later instruction", [&](plan::Plan& p) {
    for (Program& program : p.programs)
      if (program.instrs.size() > 1) program.instrs[0].a = 1;
  });
  must_fail("unknown reduction", [&](plan::Plan& p) {
    for (Program& program : p.programs)
      for (Instr& instr : program.instrs)
        if (instr.op == Opcode::kReduce) instr.aux = 77;
  });
  must_fail("workers and", [&](plan::Plan& p) { p.lists.pop_back(); });
  must_fail("reaches counter", [&](plan::Plan& p) { p.num_counters = 1; });
  must_fail("in slot", [&](plan::Plan& p) { p.ops.back().operands[0].slot = 1000; });
  must_fail("fresh tensor", [&](plan::Plan& p) { p.outputs[0].fresh = 17; });
}

/// Two tiles of an op write the same bytes.
void test_within() {
  plan::Plan plan = plan_of(layers(1, 128, 64, 1, kF32), false, false);
  for (plan::Op& op : plan.ops) {
    std::vector<planner::OperandUse> uses = planner::operand_uses(op, plan.programs);
    if (planner::tiles_of(op.record) < 2 || op.record.kind != abi::TaskKind::kMatmulSimple) continue;
    for (size_t i = 0; i < uses.size(); ++i)
      if (uses[i].write) op.operands[i].stride[1] -= 1;  // rows overlap
    break;
  }
  std::string message = complaint(plan);
  if (message.find("writes what tile") == std::string::npos)
    test::fail("overlapping rows: got " + message, __FILE__, __LINE__);
}

void test_plan(const std::string& name, const Graph& graph, bool tensor_cores) {
  plan::Plan plan = plan_of(graph, tensor_cores, true);
  plan.name = name;
  EXPECT_EQ(complaint(plan), "");
  BrutePlan brute(plan);
  auto conflicts = brute.conflicts();
  EXPECT(brute.all_ordered(conflicts));
  auto report = verify_plan(plan, planner::VerifyLevel::kFull);
  std::set<std::string> kinds;
  for (const plan::Op& op : plan.ops) kinds.insert(plan::name(op.record.kind));
  for (const std::string& kind : kinds) std::printf("%s ", kind.c_str());
  std::printf("\n%s: %zu ops, %lld tiles, %zu conflicts\n", name.c_str(), plan.ops.size(),
              static_cast<long long>(report.tiles), conflicts.size());
  damage_waits(plan, conflicts);
  damage_counts(plan);
  damage_memory(plan);
  damage_lifetimes(plan);
  damage_lists(plan);
  plan::Plan back = plan::from_json(plan::to_json(plan));
  EXPECT_EQ(plan::to_string(back), plan::to_string(plan));
  EXPECT_EQ(complaint(back), "");
}

}  // namespace

int main(int argc, char** argv) {
  all_pairs = argc > 1 && std::string(argv[1]) == "--all";
  test_boxes();
  test_within();
  test_plan("tensor cores", layers(2, 256, 64, 2, kBF16), true);
  test_plan("simple", layers(1, 96, 64, 2, kF32), false);
  test_plan("chain", decode_chain(32, 3), true);
  test_plan("attention", attention_step(256), true);
  test_plan("decode", decode_step(512, 1), true);
  plan::Plan plan = plan_of(layers(2, 256, 64, 2, kBF16), true, true);
  damage_structure(plan);
  return test::result("verify");
}
