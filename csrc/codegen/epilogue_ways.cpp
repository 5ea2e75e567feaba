#include "codegen/epilogue_ways.h"

#include <algorithm>
#include <bit>

#include "base/check.h"
#include "codegen/program_analysis.h"

namespace ark::codegen {
namespace {

class Shape : public ProgramAnalysis {
 public:
  using ProgramAnalysis::ProgramAnalysis;
  EpilogueShape get() const {
    const uint32_t stores = plain_operands(Opcode::kStore);
    return {vector_length(),       stores,        stores | plain_operands(Opcode::kLoad),
            program_.num_operands, reads_pairs(), by_batch_};
  }
};

bool moves(const abi::Operand& o, bool stored, int vector) {
  const bool spread = !stored && o.stride[2] == 0;
  if (!spread && o.vector < std::min(vector, 16 / static_cast<int>(size_bytes(static_cast<DType>(o.dtype)))))
    return false;
  constexpr int64_t kMostStride = int64_t{1} << 27;  // a row in bytes fits 32 bits
  return o.stride[1] >= -kMostStride && o.stride[1] < kMostStride;
}

/// Whether all operands that are walked over can be moved by `vector` elements (WarpTile::moves): of stores by batch
/// those of all batches.
bool moves(const EpilogueShape& shape, const plan::Op& op, int vector) {
  const abi::MatmulTileParams& p = op.record.params.matmul;
  if (p.n % vector != 0) return false;
  const auto fits = [&](int operand, bool stored) {
    return moves(op.operands[static_cast<size_t>(p.first_operand + operand)], stored, vector);
  };
  for (int i = 0; i < shape.num_operands; ++i)
    if ((shape.walked >> i & 1) != 0 && !fits(i, (shape.stores >> i & 1) != 0)) return false;
  for (int batch = 1; batch < shape.by_batch.count; ++batch)
    if (!fits(shape.by_batch.operand(batch), true)) return false;
  return true;
}

}  // namespace

bool EpilogueShape::walks() const {
  constexpr int kMostWalked = 6;  // device/matmul/epilogue_walk.cuh
  return num_operands <= 32 && std::popcount(walked) <= kMostWalked;
}

EpilogueShape epilogue_shape(const Program& program) { return Shape(program).get(); }

EpilogueWay epilogue_way(const EpilogueShape& shape, const plan::Op& op) {
  const abi::MatmulTileParams& p = op.record.params.matmul;
  check(op.record.kind == abi::TaskKind::kMatmulTile &&
            static_cast<size_t>(p.first_operand + shape.num_operands) <= op.operands.size(),
        "op '", op.name, "': a product in tiles with ", op.operands.size(), " operands, of them ", shape.num_operands,
        " of its epilogue from ", p.first_operand, " on");
  if (!shape.walks()) return p.n % shape.vector == 0 ? abi::kWholeVectors : abi::kSingleElements;
  if (moves(shape, op, shape.vector)) return abi::kWholeVectors;
  return shape.vector > 2 && !shape.pairs && moves(shape, op, 2) ? abi::kTwoElements : abi::kSingleElements;
}

}  // namespace ark::codegen
