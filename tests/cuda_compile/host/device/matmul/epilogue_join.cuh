// Small tiles are not walked over on the host.
#pragma once
#include "device/matmul/epilogue_chunk.cuh"

namespace ark::device {

template <class Layout, int kRegisters>
void stage_joined(int chunk, const float (&acc)[kRegisters], u32 staging);

}  // namespace ark::device
