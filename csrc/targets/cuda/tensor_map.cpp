#include "targets/cuda/tensor_map.h"

#include "base/check.h"

namespace ark::cuda {
namespace {

TensorMapType map_type(DType dtype) {
  switch (dtype) {
    case DType::kBool:
    case DType::kU8:
    case DType::kI8:
      return TensorMapType::kU8;
    case DType::kI16:
      return TensorMapType::kU16;
    case DType::kI32:
      return TensorMapType::kI32;
    case DType::kI64:
      return TensorMapType::kI64;
    case DType::kF16:
      return TensorMapType::kF16;
    case DType::kBF16:
      return TensorMapType::kBF16;
    case DType::kF32:
      return TensorMapType::kF32;
    case DType::kF64:
      return TensorMapType::kF64;
  }
  throw InternalError(cat("no tensor map type for element type ", static_cast<int>(dtype)));
}

/// As wide as the box's lines, for conflict-free reads of columns: abi::column_byte of strips of 16 and 32 columns.
TensorMapSwizzle swizzle_of(int64_t line_bytes) {
  if (line_bytes > 128 || line_bytes <= 16) return TensorMapSwizzle::kNone;
  return line_bytes == 32   ? TensorMapSwizzle::k32B
         : line_bytes == 64 ? TensorMapSwizzle::k64B
                            : TensorMapSwizzle::k128B;
}

TensorMap encode(const plan::TensorMap& map, size_t number, DevicePtr stand_in) {
  size_t rank = map.sizes.size();
  check(rank >= 1 && rank <= 5 && map.strides_bytes.size() + 1 == rank && map.box.size() == rank, "tensor map ", number,
        ": ", rank, " sizes, ", map.strides_bytes.size(), " strides, ", map.box.size(), " box dimensions");
  uint64_t sizes[5]{}, strides[5]{};
  unsigned box[5]{}, element_strides[5] = {1, 1, 1, 1, 1};
  for (size_t d = 0; d < rank; ++d) {
    sizes[d] = static_cast<uint64_t>(map.sizes[d]);
    box[d] = static_cast<unsigned>(map.box[d]);
    if (d > 0) strides[d - 1] = static_cast<uint64_t>(map.strides_bytes[d - 1]);
    // The stride of a single row is never used, but the driver checks it: give it the one of a packed tensor.
    if (d > 0 && sizes[d] == 1)
      strides[d - 1] = d == 1 ? (sizes[0] * size_bytes(map.dtype) + 15) / 16 * 16 : sizes[d - 1] * strides[d - 2];
    check(d == 0 || strides[d - 1] % 16 == 0, "tensor map ", number, ": stride of ", strides[d > 0 ? d - 1 : 0],
          " bytes in dimension ", d, " is no multiple of 16");
  }
  check(map.offset_bytes % 16 == 0, "tensor map ", number, ": offset of ", map.offset_bytes,
        " bytes is no multiple of 16");
  TensorMap result{};
  check_result(driver().tensor_map_encode_tiled(&result, map_type(map.dtype), static_cast<unsigned>(rank),
                                                reinterpret_cast<void*>(stand_in), sizes, strides, box, element_strides,
                                                TensorMapInterleave::kNone, swizzle_of(box[0] * size_bytes(map.dtype)),
                                                TensorMapPromotion::k256B, TensorMapFill::kZero),
               cat("cuTensorMapEncodeTiled of map ", number).c_str());
  return result;
}

}  // namespace

std::vector<TensorMap> encode_maps(const plan::Plan& plan, DevicePtr stand_in) {
  std::vector<TensorMap> maps;
  maps.reserve(plan.maps.size());
  for (size_t i = 0; i < plan.maps.size(); ++i) maps.push_back(encode(plan.maps[i], i, stand_in));
  return maps;
}

}  // namespace ark::cuda
