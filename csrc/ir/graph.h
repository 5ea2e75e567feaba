// The typed tensor graph that the front end hands over: functional, in execution order, sizes possibly symbolic.
// Plain data. ir::bind gives the same graph with every size a number; every planner pass takes a bound graph.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/types.h"
#include "ir/program.h"

namespace ark::ir {

/// A size, stride or offset in elements: a number, or the index of an expression over launch symbols.
struct Size {
  int64_t value = 0;
  int32_t expr = -1;
  bool symbolic() const { return expr >= 0; }
};

/// Integer expression over symbols, postfix tree in a pool: op in {sym, const, add, mul, floordiv, mod, min, max, neg}.
struct SizeExpr {
  std::string op;
  int64_t value = 0;  // const: the number; sym: index into Graph::symbols
  std::vector<int32_t> args;
};

using ValueId = int32_t;

/// A tensor. A view has `base` >= 0: the value that owns the storage; its sizes, strides and offset address that
/// storage. An owner has base -1 and offset 0 and the strides in which it is to be stored.
struct Value {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<Size> sizes, strides;
  Size offset;
  ValueId base = -1;
};

enum class OpKind : uint8_t {
  kView,       // inputs[0] -> a Value with base (also alias, permute, slice, expand, select, unsqueeze, ...)
  kPointwise,  // scalar op `opcode` over inputs broadcast to the output's shape (right-aligned)
  kFull,       // every element is attrs.imm / imm_int
  kIota,       // 1-D: start (imm_int) + i * step (step)
  kReduce,     // attrs.reduce over attrs.dims of inputs[0]; keepdim
  kMatmul,     // inputs a [B..., M, K], b [B..., K, N] (both rank 2, or both rank 3); output dtype of the value
  kAttention,  // inputs q [B, H, S, D], k [B, G, T, D], v [B, G, T, Dv], mask? [B|1, H|1, S|1, T] (bool or additive
               // float); outputs: out [B, H, S, Dv], logsumexp f32 [B, H, S] (natural log).
               // attrs: scale, causal. G divides H.
  kAttentionBackward,  // inputs dout, q, k, v, out, logsumexp, mask?; outputs dq, dk, dv
  kIndexLoad,          // inputs src, idx...; attrs.map per src dim: >= 0: that output dimension; < 0: index input ~map
                       // (broadcast to the output)
  kIndexStore,         // inputs dst, src, idx...; out = dst with dst[...] = src; attrs.map per dst dim: >= 0: that src
                       // dimension; < 0: index input ~map
  kScatterSum,  // inputs src [T, C], index [T]: out [R, C] with out[r] the sum of the src[t] with index[t] == r (in
  // f32, of f64 in f64; a target's order is its own). An index out of [0, R), or attrs.imm_int, adds nothing
  kRowSelect,  // inputs distance f32 [R, N], bound [R]: out i64 [R], in whole steps: min(x * 2^22, 2^28 - 16) cut to an
               // integer (NaN: the most; below 0: 0). Bound i64: the largest number below 2^28 that fewer than `bound`
               // elements are below. Bound f32: the largest one such that the elements that are not below it have more
               // than `bound` of the row's sum of exp(-distance), within 2^-15 of it. None: 0. The planner makes
               // another form: inputs values [R, N], bound, maxima of parts of the rows [R, P]; a second output is
               // the distances, the largest maximum of the row less its values; with a fourth input, a share, f32 [R],
               // a third output is what a select by mass finds among the elements that are no farther than the first
  kRowDraw,   // inputs values f32 [R, N], noise f32 [R, N], share f32 [R]: token i64 [R], best f32 [R]. Of the elements
              // whose distance to the row's largest is at most what a kRowSelect of the share finds, the one whose
              // value + noise is largest, and that sum. What is 64 away or farther has no mass and is not
              // drawn; a share below 0 or NaN is 0. Where the largest is NaN or infinite: the first such, and it
  kCat,       // inputs..., attrs.dim
  kPad,       // constant pad of inputs[0]: attrs.ints = low, high per dimension; imm
  kRand,      // inputs seed (i64 scalar), offset (i64 scalar): uniform [0,1) by Philox over the linear index
  kCopyTo,    // inputs dst (a graph input or a view of one), src: dst's storage is overwritten; output: dst
  kExchange,  // between the ranks of attrs.group. Inputs x (sent to every rank), or one value for each rank;
              // outputs, one for each rank: what that rank has sent to this one. All alike in type and layout.
              // Uneven: one value x; behind it, what kPost made for the ranks attrs.ints; behind the outputs, what the
              // ranks attrs.map have posted to this one, in sizes of its own
  kPost,      // inputs[0], for an uneven exchange, which alone reads the output: a part for one rank
};

inline constexpr int kNumOpKinds = static_cast<int>(OpKind::kPost) + 1;
const char* name(OpKind op);

struct Attrs {
  Opcode opcode = Opcode::kAdd;
  ReduceOp reduce = ReduceOp::kSum;
  std::vector<int64_t> dims;  // Reduce
  std::vector<int64_t> ints;  // Pad; Exchange: ranks that parts go to
  std::vector<int32_t> map;   // IndexLoad, IndexStore; Exchange: ranks that parts come from
  bool keepdim = false, causal = false, has_mask = false;
  bool of_part = false;       // Reduce: of parts of longer rows, made by the planner (not in JSON)
  bool rounds = false;        // Cast: a float is rounded to its own type first, as if it had been in memory
  int64_t dim = 0;            // Cat
  double imm = 0, scale = 1;  // Full, Pad; attention
  int64_t imm_int = 0;        // Full of integer type; Iota's start; ScatterSum: the index that is left out
  Size start;                 // Iota's start when symbolic
  int64_t step = 1;
  std::string group;  // Exchange: name of the process group
  /// Exchange in a graph with all-to-alls: "even" (of what this rank knows), "uneven", or of other collectives "met".
  std::string splits;
};

struct Node {
  OpKind op = OpKind::kView;
  std::vector<ValueId> inputs, outputs;
  Attrs attrs;
  std::string name;    // node of the FX graph
  std::string module;  // module path of the user's code, for profiles
};

/// Of an exchange: the ranks of its group; how many of the inputs go to all ranks or to one each.
inline size_t num_ranks(const Node& exchange) { return exchange.outputs.size() - exchange.attrs.map.size(); }
inline size_t num_sent(const Node& exchange) { return exchange.inputs.size() - exchange.attrs.ints.size(); }

/// A graph that may run several times in one launch: what an iteration stores into its inputs (kCopyTo) the next one
/// reads there. Numbers are positions in Graph::inputs.
struct Loop {
  std::vector<int32_t> carried;  // stored as a whole in every iteration; empty: the graph is no loop
  int32_t go = -1;  // two bools, or none: does iteration 0 run; does the next one, which every iteration stores
  bool any() const { return !carried.empty(); }
};

/// Launch symbols are no inputs: bind takes their numbers, in the order of `symbols`.
struct Graph {
  std::string name;
  std::vector<std::string> symbols;
  std::vector<SizeExpr> exprs;
  std::vector<Value> values;
  std::vector<ValueId> inputs;   // tensors, in call order
  std::vector<bool> immutable;   // per input: a parameter or buffer (may be loaded ahead of every dependency)
  std::vector<ValueId> outputs;  // values returned, in order
  std::vector<Node> nodes;
  Loop loop;
};

/// Every size expression evaluated; throws UserError when a symbol is missing or a size is negative.
Graph bind(const Graph& graph, std::span<const int64_t> symbols);
/// Throws InternalError naming the node when the graph is malformed (use before definition, shapes, dtypes, arity,
/// aliasing).
void verify(const Graph& graph);
std::string to_string(const Graph& graph);
/// JSON, both ways; from_json throws UserError on malformed text.
std::string to_json(const Graph& graph);
Graph from_json(const std::string& text);

}  // namespace ark::ir
