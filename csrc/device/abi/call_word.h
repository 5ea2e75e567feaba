// A collective call as ranks tell each other of it: 64 bits, so that one packet carries it.
//
// Bits: kind 0-2, whether on registered memory 3, type 4-7, operation 8-11, root + 1 12-15, count of elements or bytes
// from 16 on. Compiled by the host compiler and by NVRTC: no standard headers here.
#pragma once
#include "device/abi/abi.h"

namespace ark::abi {

enum class CollectiveKind : i32 { kBarrier, kAllReduce, kReduce, kReduceScatter, kExchange, kSend, kReceive };
/// Values of comm::Reduction.
enum class ReduceOp : i32 { kSum, kProduct, kMin, kMax, kAverage, kBitAnd, kBitOr, kBitXor };
inline constexpr u64 kDirectCall = 8;     // on registered memory
inline constexpr u64 kCallHead = 0xffff;  // all but the count

ARK_HOST_DEVICE inline constexpr u64 count_of_call(u64 call) { return call >> 16; }
ARK_HOST_DEVICE inline constexpr u64 call_with_count(u64 call, u64 count) { return (call & kCallHead) | count << 16; }
/// The same but for the count.
ARK_HOST_DEVICE inline constexpr bool alike_but_count(u64 a, u64 b) { return ((a ^ b) & kCallHead) == 0; }

ARK_HOST_DEVICE inline constexpr u64 pack_call(CollectiveKind kind, i32 dtype, ReduceOp op, i32 root, u64 count) {
  return static_cast<u64>(kind) | static_cast<u64>(dtype & 15) << 4 | static_cast<u64>(op) << 8 |
         static_cast<u64>((root + 1) & 15) << 12 | count << 16;
}

/// What pack_call has packed.
struct Call {
  CollectiveKind kind;
  bool direct;
  i32 dtype, op, root;  // op: of a reduction with comm::kFactor, of an exchange its number; root -1: none
  u64 count;
};
ARK_HOST_DEVICE inline constexpr Call unpack_call(u64 call) {
  return {static_cast<CollectiveKind>(call & 7), (call & kDirectCall) != 0,
          static_cast<i32>(call >> 4 & 15),      static_cast<i32>(call >> 8 & 15),
          static_cast<i32>(call >> 12 & 15) - 1, count_of_call(call)};
}
static_assert(unpack_call(pack_call(CollectiveKind::kReceive, 13, ReduceOp::kBitXor, 7, 1ull << 47)).root == 7);
static_assert(unpack_call(pack_call(CollectiveKind::kReduce, 13, ReduceOp::kBitXor, -1, 1ull << 47)).root == -1);
static_assert(unpack_call(pack_call(CollectiveKind::kReduce, 13, ReduceOp::kBitXor, 7, 1ull << 47)).dtype == 13);

}  // namespace ark::abi
