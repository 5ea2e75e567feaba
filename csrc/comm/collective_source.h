// The kernels of the collectives as source text: one entry that calls into csrc/device, for a type and a group's size.
#pragma once
#include <compare>
#include <string>

#include "base/types.h"

namespace ark::comm {

enum class KernelFamily { kPackets, kRing, kExchange, kPoint, kDirectReduce, kDirectMove };

struct KernelKey {
  KernelFamily family;
  DType dtype = DType::kU8;  // kPackets, kRing, kDirectReduce
  int world = 0;             // all but kPoint
  auto operator<=>(const KernelKey&) const = default;
};

struct KernelSource {
  std::string text, entry;
  int threads;
  int shared_bytes;  // dynamic, at most
};

KernelSource collective_source(const KernelKey& key);

}  // namespace ark::comm
