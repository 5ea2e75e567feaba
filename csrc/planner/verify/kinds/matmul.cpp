// Products in tiles: kMatmulTile, kMatmulFloat, kMatmulSimple.
#include <array>

#include "base/check.h"
#include "device/abi/variants.h"
#include "plan/early_reads.h"
#include "planner/verify/kinds/kinds.h"

namespace ark::planner {
namespace {

using abi::TaskKind;

using X = abi::MatmulOperand;

void uses(const plan::Op& op, const std::vector<Program>& programs, std::vector<OperandUse>& uses) {
  check(uses.size() >= X::kCount, "op ", op.name, ": a matmul with ", uses.size(), " operands");
  uses[X::kA].read = uses[X::kB].read = true;
  if (abi::has_own_rows(op.record)) uses.at(X::kOwn).read = true;
  if (abi::is_gated_tile(op.record)) uses.at(X::kB2).read = true;
  const abi::MatmulTileParams& p = op.record.params.matmul;
  plan::program_uses(op, programs, p.program, p.first_operand, uses);
}

bool is_own(const Region& r) { return r.operand == X::kOwn && abi::has_own_rows(r.op.record); }
bool is_second_weight(const Region& r) { return r.operand == X::kB2 && abi::is_gated_tile(r.op.record); }

void region(const Region& r, BoxEmitter& emitter) {
  const abi::MatmulTileParams& p = r.op.record.params.matmul;
  const abi::Operand& x = r.x();
  const TileBlock& c = r.tiles;
  const Range batch{c.first[0], c.count[0], x.stride[0]};
  const Range m = blocks_of(c.first[1], c.count[1], p.tile_m, p.m, x.stride[1]);
  const Range n = blocks_of(c.first[2], c.count[2], p.tile_n, p.n, x.stride[2]);
  if (m.count <= 0 || n.count <= 0) return;
  if (r.operand == X::kA || is_own(r)) return emitter.box(std::array{batch, m, Range{0, p.k, x.stride[2]}});
  if (r.operand == X::kB || is_second_weight(r)) return emitter.box(std::array{batch, Range{0, p.k, x.stride[1]}, n});
  emitter.box(std::array{batch, m, n});
}

std::optional<Dims> coordinates(const Region& r) {
  const abi::MatmulTileParams& p = r.op.record.params.matmul;
  const abi::Operand& x = r.x();
  if (r.operand < X::kCount || is_own(r) || is_second_weight(r)) return std::nullopt;
  const int64_t batches = r.use.batch >= 0 ? 1 : p.batch;  // that touch it
  return Dims{{batches, x.stride[0]}, {p.m, x.stride[1]}, {p.n, x.stride[2]}};
}

/// Its program may ask for no sums but those that there are.
void check_roots(const RecordCheck& check, bool gated) {
  const int number = check.record().params.matmul.program;
  for (const Instr& in : check.plan().programs[static_cast<size_t>(number)].instrs)
    check.need(in.op != Opcode::kRoot || in.aux == 0 || (gated && in.aux == 1), "sums number ", in.aux,
               " in the epilogue of ", gated ? "two products" : "one product");
}

void record(const RecordCheck& check) {
  const abi::MatmulTileParams& p = check.record().params.matmul;
  check.program(p.program, p.first_operand, ProgramKind::kEpilogue);
  check.need(check.op().operands.size() >= 2 && p.tile_m > 0 && p.tile_n > 0, "tiles of ", p.tile_m, " x ", p.tile_n);
  const bool tensor_cores = check.record().kind == TaskKind::kMatmulTile;
  check.need(p.own_rows == 0 || (p.own_rows == 1 && tensor_cores && p.first_operand == X::kOwn + 1), "own rows ",
             p.own_rows, " and an epilogue's operands from ", p.first_operand,
             ", expected 0 or, on tensor cores, 1 and ", X::kOwn + 1);
  check.need(p.gated == 0 || (p.gated == 1 && tensor_cores && p.tile_m == 64 && p.own_rows == 0 &&
                              p.pair_distance == 0 && p.first_operand == X::kB2 + 1),
             "gated ", p.gated, ", rows of a tile ", p.tile_m, ", own rows ", p.own_rows, ", pairs ", p.pair_distance,
             " apart and an epilogue's operands from ", p.first_operand, ", expected 0 or, of 64 rows, 1, 0, 0 and ",
             X::kB2 + 1);
  check_roots(check, p.gated != 0);
  check.grid({p.batch, ceil_div(p.m, p.tile_m), ceil_div(p.n, p.tile_n)});
  if (check.record().kind == TaskKind::kMatmulSimple) return;
  const auto whole = [](int tile) { return tile == 64 || tile == 128; };
  check.need(check.record().kind != TaskKind::kMatmulFloat || (whole(p.tile_m) && whole(p.tile_n)), "fp32 tiles of ",
             p.tile_m, " x ", p.tile_n, ", expected 64 or 128 each");
  const bool small = p.tile_m == 64;
  if (check.record().kind == TaskKind::kMatmulTile) {
    const bool large = p.tile_m == 128 && (p.tile_n == 128 || p.tile_n == 256) && p.tile_k == 64;
    check.need(large || (small && p.tile_n == 64 && p.tile_k == 128), "tiles of ", p.tile_m, " x ", p.tile_n,
               ", steps of ", p.tile_k, ", expected 128 x 128 or 128 x 256 of 64, or 64 x 64 of 128");
    check.need(!small || (p.k % 64 == 0 && (p.pair_distance == 0 || 32 % p.pair_distance == 0)), "small tiles of ", p.k,
               " k and pairs ", p.pair_distance, " apart, expected whole blocks of 64 k, and a divisor of 32");
  }
  // Batches that share b are rows of a that follow each other.
  const abi::Operand& a = check.op().operands[X::kA];
  const bool joins = check.plan().world > 1 && !(small && check.record().kind == TaskKind::kMatmulTile);
  const bool shared = joins && p.batch > 1 && check.op().operands[X::kB].stride[0] == 0;
  check.need(!shared || a.stride[0] == p.m * a.stride[1], "all batches share b, rows of a lie ", a.stride[1],
             " apart, batches of ", p.m, " rows ", a.stride[0]);
  const int64_t batches = shared ? 1 : p.batch, rows_a = shared ? int64_t{p.m} * p.batch : p.m;
  auto sizes = [&](bool k_major, int64_t rows, int64_t batch) {
    if (k_major && small && check.record().kind == TaskKind::kMatmulTile)
      return std::vector<int64_t>{64, rows, p.k / 64, batch};
    return k_major ? std::vector<int64_t>{p.k, rows, batch} : std::vector<int64_t>{rows, p.k, batch};
  };
  // `half`: weights of small tiles of two, whose pages have 64 k of each.
  const auto box = [&](bool k_major, bool half, int rows) {
    if (check.record().kind == TaskKind::kMatmulFloat)
      return k_major ? std::vector<int32_t>{32, 64, 1} : std::vector<int32_t>{64, 32, 1};
    if (small && half) return k_major ? std::vector<int32_t>{64, 64, 1, 1} : std::vector<int32_t>{64, 64, 1};
    if (small) return k_major ? std::vector<int32_t>{64, rows, 2, 1} : std::vector<int32_t>{64, 128, 1};
    return k_major ? std::vector<int32_t>{64, 128, 1} : std::vector<int32_t>{64, 64, 1};
  };
  const auto k_major = [&](int operand, int k_dim) {
    return check.op().operands[static_cast<size_t>(operand)].stride[k_dim] == 1;
  };
  check.need((p.a_k_major != 0) == k_major(X::kA, 2) && (p.b_k_major != 0) == k_major(X::kB, 1), "k major ",
             p.a_k_major, ' ', p.b_k_major, ", the operands are ", k_major(X::kA, 2), ' ', k_major(X::kB, 1));
  // Of an operand whose dimensions 1 and 2 are its rows and k, or k and its rows.
  const auto map_of = [&](int number, int operand, bool inner_k, int rows_dim, int64_t rows, int64_t batch) {
    const abi::Operand& x = check.op().operands.at(static_cast<size_t>(operand));
    const std::vector<int64_t> shown = sizes(inner_k, rows, batch);
    const int64_t outer = x.stride[inner_k ? rows_dim : 3 - rows_dim];
    const bool blocks = shown.size() == 4;
    check.map(
        number, operand, shown,
        box(inner_k, p.gated != 0 && (operand == X::kB || operand == X::kB2),
            operand == X::kA || (operand == X::kOwn && p.own_rows != 0) ? abi::small_page_rows(p) : abi::kSmallTile),
        blocks ? std::vector<int64_t>{outer, 64, x.stride[0]} : std::vector<int64_t>{outer, x.stride[0]});
  };
  map_of(p.map_a, X::kA, p.a_k_major, 1, rows_a, batches);
  map_of(p.map_b, X::kB, p.b_k_major, 2, p.n, batches);
  if (p.gated != 0) {
    const abi::Operand &b = check.op().operands[X::kB], &b2 = check.op().operands[X::kB2];
    check.need(plan::is_early(check.op(), X::kB) && plan::is_early(check.op(), X::kB2), "early operands ",
               check.op().early, ", expected both weights among them");
    check.need(b2.dtype == b.dtype && (b2.stride[1] == 1) == (b.stride[1] == 1), "weights of types ", b.dtype, " and ",
               b2.dtype, ", strides along k ", b.stride[1], " and ", b2.stride[1], ", expected them alike");
    map_of(p.map_b + 1, X::kB2, p.b_k_major, 2, p.n, batches);
  }
  if (p.own_rows != 0) map_of(p.map_own, X::kOwn, p.a_k_major, 1, p.m, 1);
}

}  // namespace

extern const Reading kReadMatmul = {uses, region, coordinates, record};

}  // namespace ark::planner
