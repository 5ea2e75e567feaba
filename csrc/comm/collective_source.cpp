#include "comm/collective_source.h"

#include "base/check.h"
#include "device/abi/collective.h"

namespace ark::comm {
namespace {

constexpr int kStageBytes = abi::kMessageBytes;
// Sizes of the structs in csrc/device/collective/ring.cuh and device/collective/kernel.cuh, which the source asserts.
constexpr int kRingSharedBytes = (6 + 4 + 3) * kStageBytes + 4096;
constexpr int kExchangeSharedBytes = 12 * kStageBytes;
constexpr int kPointSharedBytes = 6 * kStageBytes;

}  // namespace

KernelSource collective_source(const KernelKey& key) {
  KernelSource source;
  std::string body, checks;
  switch (key.family) {
    case KernelFamily::kPackets:
      source = {.text = {}, .entry = "ark_packets", .threads = 256, .shared_bytes = 0};
      body = cat("PacketKernel<ElementOf<", static_cast<int>(key.dtype), ">, ", key.world, ">::run(p)");
      break;
    case KernelFamily::kRing:
      source = {.text = {}, .entry = "ark_ring", .threads = 448, .shared_bytes = kRingSharedBytes};
      body = cat("ring_kernel<ElementOf<", static_cast<int>(key.dtype), ">, ", key.world, ">(p)");
      checks = cat("static_assert(sizeof(ark::device::RingShared) <= ", kRingSharedBytes, ");\n");
      break;
    case KernelFamily::kExchange:
      source = {.text = {}, .entry = "ark_exchange", .threads = 416, .shared_bytes = kExchangeSharedBytes};
      body = cat("exchange_kernel<", key.world, ">(p)");
      checks = cat("static_assert(sizeof(ark::device::ExchangeShared) <= ", kExchangeSharedBytes, ");\n");
      break;
    case KernelFamily::kPoint:
      source = {.text = {}, .entry = "ark_point", .threads = 96, .shared_bytes = kPointSharedBytes};
      body = "point_kernel(p)";
      break;
    case KernelFamily::kDirectReduce:
      source = {.text = {}, .entry = "ark_direct_reduce", .threads = 512, .shared_bytes = 0};
      body = cat("direct_reduce_kernel<ElementOf<", static_cast<int>(key.dtype), ">, ", key.world, ">(p)");
      break;
    case KernelFamily::kDirectMove:
      source = {.text = {}, .entry = "ark_direct_move", .threads = 512, .shared_bytes = 0};
      body = cat("direct_move_kernel<", key.world, ">(p)");
      break;
  }
  source.text = cat("#include \"device/collective/kernel.cuh\"\n#include \"device/collective/direct.cuh\"\n", checks,
                    "extern \"C\" __global__ void __launch_bounds__(", source.threads, ", ",
                    key.family == KernelFamily::kPackets ? 2 : 1, ") ", source.entry,
                    "(const __grid_constant__ ark::abi::CollectiveParams p) {\n  using namespace ark::device;\n  ",
                    body, ";\n}\n");
  return source;
}

}  // namespace ark::comm
