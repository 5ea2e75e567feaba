// The kernels of one instruction set. Such a file (avx2.cpp) sets the target, defines ARK_HOST_ISA (a namespace),
// ARK_HOST_LANES (floats of a vector register) and ARK_HOST_MR (rows of the matmul micro-kernel), includes this file
// and so defines `const Kernels& <isa>_kernels()`.
//
// Standard headers and kernels.h are included by that file before it sets the target: nothing inline of theirs may be
// compiled for a machine that is not there.

namespace ark::targets::host {
namespace ARK_HOST_ISA {

#include "targets/host/kernels/scalar_ops.h"
#include "targets/host/kernels/storage.h"

template <RegType>
struct ValueOf;
template <>
struct ValueOf<RegType::kF32> {
  using Type = float;
};
template <>
struct ValueOf<RegType::kF64> {
  using Type = double;
};
template <>
struct ValueOf<RegType::kI64> {
  using Type = int64_t;
};
template <>
struct ValueOf<RegType::kBool> {
  using Type = uint8_t;
};

// clang-format off: each uses those before it
#include "targets/host/kernels/elementwise.h"
#include "targets/host/kernels/memory.h"
#include "targets/host/kernels/reduce.h"
#include "targets/host/kernels/matrix.h"
#include "targets/host/kernels/pack.h"
// clang-format on

Kernels make_kernels() {
  Kernels k;
  k.isa = ARK_HOST_ISA_NAME;
  k.unary = find_unary;
  k.binary = find_binary;
  k.ternary = find_ternary;
  k.convert = find_convert;
  k.round_to = find_round;
  k.reduce_rows = find_reduce_rows;
  k.reduce_columns = find_reduce_columns;
  add_storage<DType::kBool>(k);
  k.pack[static_cast<int>(DType::kBool)] = pack_panel<DType::kBool>;
  add_storage<DType::kU8>(k);
  k.pack[static_cast<int>(DType::kU8)] = pack_panel<DType::kU8>;
  add_storage<DType::kI8>(k);
  k.pack[static_cast<int>(DType::kI8)] = pack_panel<DType::kI8>;
  add_storage<DType::kI16>(k);
  k.pack[static_cast<int>(DType::kI16)] = pack_panel<DType::kI16>;
  add_storage<DType::kI32>(k);
  k.pack[static_cast<int>(DType::kI32)] = pack_panel<DType::kI32>;
  add_storage<DType::kI64>(k);
  k.pack[static_cast<int>(DType::kI64)] = pack_panel<DType::kI64>;
  add_storage<DType::kF16>(k);
  k.pack[static_cast<int>(DType::kF16)] = pack_panel<DType::kF16>;
  add_storage<DType::kBF16>(k);
  k.pack[static_cast<int>(DType::kBF16)] = pack_panel<DType::kBF16>;
  add_storage<DType::kF32>(k);
  k.pack[static_cast<int>(DType::kF32)] = pack_panel<DType::kF32>;
  add_storage<DType::kF64>(k);
  k.pack[static_cast<int>(DType::kF64)] = pack_panel<DType::kF64>;
  k.fill[static_cast<int>(RegType::kF32)] = fill<float>;
  k.fill[static_cast<int>(RegType::kF64)] = fill<double>;
  k.fill[static_cast<int>(RegType::kI64)] = fill<int64_t>;
  k.fill[static_cast<int>(RegType::kBool)] = fill<uint8_t>;
  k.f32 = {ARK_HOST_MR, 2 * ARK_HOST_LANES, micro_kernel<float, ARK_HOST_MR>, dot<float>, axpy<float>};
  k.f64 = {ARK_HOST_MR, ARK_HOST_LANES, micro_kernel<double, ARK_HOST_MR>, dot<double>, axpy<double>};
  k.i64 = {ARK_HOST_MR, ARK_HOST_LANES, micro_kernel<int64_t, ARK_HOST_MR>, dot<int64_t>, axpy<int64_t>};
  k.dot_storage[static_cast<int>(DType::kBF16)] = dot_from<ReadBfloat>;
  k.dot_storage[static_cast<int>(DType::kF16)] = dot_from<ReadHalf>;
  k.dot_storage[static_cast<int>(DType::kF32)] = dot_from<ReadPlain<float>>;
  k.row_max = row_max;
  k.exp_sum = exp_sum;
  return k;
}

}  // namespace ARK_HOST_ISA
}  // namespace ark::targets::host
