// Scalar programs: what a task does to each element. One program is a list of instructions in SSA form (register i is
// the result of instruction i), shared by equal layers: it holds no sizes, strides or addresses, only operand numbers.
//
// A program runs over the iteration domain of its op record (abi::OpRecord::size, up to kMaxDims dimensions, innermost
// last).
//  * pointwise task: every instruction once per element of the domain.
//  * row task: the last `reduce_dims` dimensions are the row. A Reduce instruction yields one value per row;
//    instructions that depend on it run in a later phase (the elements are loaded and computed again). A Store whose
//    inputs are all row-uniform and which has `uniform` set runs once per row.
//  * column task: the first `reduce_dims` dimensions are reduced, the others are kept; exactly one phase: everything
//    before the Reduces runs per element, everything that depends on them once per kept element.
//  * matmul epilogue: domain (batch, m, n); Root is the fp32 accumulator at (batch, m, n + delta), delta in {0, +p, -p}
//    where p is the record's pair distance; a gated pair has Root index 0 and 1 for the two weight matrices.
//  * matmul prologue (few-row matmul only): a row task over (m, k) that ends in one Yield, the activation.
#pragma once
#include <bit>
#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include "base/types.h"

namespace ark {

enum class Opcode : uint8_t {
  kConst,   // imm (float) or imm_int, by dtype
  kIndex,   // coordinate along domain dimension `aux` (dtype i64)
  kLoad,    // operand `operand`; a: index register or -1; b: second index register or -1; c: predicate register or -1
            // (false: 0)
  kRoot,    // matmul accumulator; aux: which root (0 or 1); delta_sign: 0, +1, -1 (times the record's pair distance)
  kStore,   // operand `operand` <- a; b, c: index registers or -1; d: predicate register or -1; uniform: once per row
  kYield,   // a: value handed to the matmul that this prologue belongs to
  kReduce,  // a: value; aux: ReduceOp
  kCast,    // a, rounded to `dtype`'s storage type (bf16: round to nearest even), kept in its compute type
  // unary, a
  kNeg,
  kAbs,
  kExp,
  kExp2,
  kExpm1,
  kLog,
  kLog2,
  kLog1p,
  kSqrt,
  kRsqrt,
  kReciprocal,
  kSin,
  kCos,
  kTan,
  kTanh,
  kSigmoid,
  kErf,
  kFloor,
  kCeil,
  kRound,
  kTrunc,
  kSign,
  kIsNan,
  kIsInf,
  kLogicalNot,
  kBitNot,
  kRelu,
  kAsin,
  kAcos,
  kAtan,
  kSinh,
  kCosh,
  kAsinh,
  kAcosh,
  kAtanh,
  kErfc,
  kLgamma,
  // binary, a b
  kAdd,
  kSub,
  kMul,
  kDiv,
  kDivFloor,
  kDivTrunc,
  kRemainder,
  kFmod,
  kPow,
  kMaximum,
  kMinimum,
  kAtan2,
  kEq,
  kNe,
  kLt,
  kLe,
  kGt,
  kGe,
  kAnd,
  kOr,
  kXor,
  kShl,
  kShr,
  kLogicalAnd,
  kLogicalOr,
  kLogicalXor,
  // ternary
  kWhere,  // a ? b : c
  kFma,    // a * b + c
  kRand,   // uniform [0, 1): Philox4x32-10, a: seed (i64), b: offset (i64), c: linear element index (i64)
           // key = seed (low, high word), counter = (index / 4 low, high, offset low, high); word index % 4 of the
           // result, x, gives (x >> 8) * 2^-24
  // One element of an attention that kAttentionDecode left in parts (AttentionParams::parts > 1), combined in the order
  // of the parts. a: row (i64) = (batch * kv_heads + kv_head) * rows + head_in_group * queries + query; b: column (i64)
  // in [0, value_dim).
  //   operand + 0: f32 [batch * kv_heads][parts][rows][value_dim], unnormalised sums of exp2(score - m) * v
  //   operand + 1: f32 [batch * kv_heads][parts][rows][2]: m (scores times log2 e) and l = sum of exp2(score - m);
  //     nothing seen: m -inf, l 0
  //   operand + 2: i32 pairs (first, end): visible keys; batch b's pair is at element offset + b * stride[0];
  //     kNoSlot: (0, keys)
  //   operand + 3: no storage; stride[0..5] = parts, rows, value_dim, positions_per_part, keys, kv_heads
  //   operand + 4: i64, the position of a cache, of which the device knows the used parts; kNoSlot: none.
  //     stride[5] = queries
  // bg = a / rows, used = clamp(ceil((end - first) / positions_per_part), 1, parts) as in AttentionParams, M = max m
  // over used parts, result = sum o[p] * exp2(m[p] - M) / sum l[p] * exp2(m[p] - M) over p < used (0 when the
  // denominator is 0). Result f32.
  kLoadParts,
  // A number of the record instead of the program, so that equal layers share code (planner/tile/share_programs.h):
  // i64, stride[aux] of operand `operand`, which has no slot.
  kParameter,
  // An index (i64) that has to lie in [0, b). aux 1: a negative one counts from the end. The result lies there; where a
  // does not, it is b, and where c (predicate register or -1: always) holds too, the launch reports an index out of
  // range with a and b.
  kCheckIndex,
};

/// Sum is ordered (fixed tree), so that runs are bitwise reproducible. Arg* yield the first index, NaN wins as in ATen.
enum class ReduceOp : uint8_t { kSum, kProd, kMax, kMin, kAny, kAll, kArgMax, kArgMin };

struct Instr {
  Opcode op = Opcode::kConst;
  DType dtype = DType::kF32;  // type of the result (Load: the operand's element type; Store: the element type stored)
  int16_t a = -1, b = -1, c = -1, d = -1;
  int16_t operand = -1;   // Load, Store: index into the op record's operands, relative to the program's first operand
  int16_t aux = 0;        // Index: dimension; Root: which; Reduce: ReduceOp
  int8_t delta_sign = 0;  // Root
  bool uniform = false;   // Store in a row task: once per row
  double imm = 0;         // Const of float type
  int64_t imm_int = 0;    // Const of integer or bool type
  /// Constants are compared as bits: 0.0 and -0.0 are two numbers, a NaN is one.
  friend bool operator==(const Instr& x, const Instr& y) {
    const auto rest = [](const Instr& i) {
      return std::tie(i.op, i.dtype, i.a, i.b, i.c, i.d, i.operand, i.aux, i.delta_sign, i.uniform, i.imm_int);
    };
    return rest(x) == rest(y) && std::bit_cast<uint64_t>(x.imm) == std::bit_cast<uint64_t>(y.imm);
  }
};

enum class ProgramKind : uint8_t { kPointwise, kRow, kColumn, kEpilogue, kPrologue };

struct Program {
  ProgramKind kind = ProgramKind::kPointwise;
  int num_dims = 1;     // rank of the domain
  int reduce_dims = 0;  // row: innermost so many; column: outermost so many
  int num_operands = 0;
  std::vector<Instr> instrs;
  friend bool operator==(const Program&, const Program&) = default;
};

/// One instruction a line, for dumps and golden tests.
std::string to_string(const Program& program);
const char* name(Opcode op);
const char* name(ReduceOp op);
const char* name(ProgramKind kind);
inline constexpr int kNumOpcodes = static_cast<int>(Opcode::kCheckIndex) + 1;
inline constexpr int kNumReduceOps = static_cast<int>(ReduceOp::kArgMin) + 1;
/// Elements along the last dimension that code for the program moves at once, at most: 16 bytes of the narrowest.
int longest_vector(const Program& program);
/// A pointwise program that may begin its vectors anywhere in a row: none of its values counts along the row.
bool has_free_rows(const Program& program);
/// Of each operand: some access of it is by index or under a predicate, not by coordinates alone.
std::vector<bool> irregular_operands(const Program& program);
/// Scalar arguments that the opcode takes (registers a, b, c); 0 for const, index and root.
int arity(Opcode op);

}  // namespace ark
