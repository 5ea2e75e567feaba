// Send requests: what starts a transfer between pre-agreed buffers, 8 bytes, the same for every engine. See
// docs/DMA.md. Compiled by the host compiler and by NVRTC: no standard headers here.
#pragma once
#include "device/abi/collective.h"

namespace ark::abi {

inline constexpr int kMaxDmaBuffers = 256;

/// A buffer that all ranks know by its number. `address` is where this rank reaches it.
struct DmaBuffer {
  unsigned char* address;
  u64 size_bytes;
  u32* received;  // in the memory of the buffer's rank: messages that have come; counts from 0, may wrap
};

inline constexpr u32 kDmaNotifyReceiver = 1;  // raise `received` of the destination
inline constexpr u32 kDmaNotifySender = 2;    // raise the engine's count of sent messages

/// Moves bytes [piece * length, (piece + 1) * length) of buffer `source` to the same place in `destination`.
struct SendRequest {
  u64 bits;
};

/// length in units of 16 bytes (at most 16 MB - 16), piece below 2^20.
ARK_HOST_DEVICE inline constexpr SendRequest make_request(u32 source, u32 destination, u32 piece, u32 length_16,
                                                          u32 flags) {
  return {static_cast<u64>(source & 255) | static_cast<u64>(destination & 255) << 8 |
          static_cast<u64>(piece & 0xfffff) << 16 | static_cast<u64>(length_16 & 0xfffff) << 36 |
          static_cast<u64>(flags & 255) << 56};
}
ARK_HOST_DEVICE inline constexpr u32 source_of(SendRequest r) { return static_cast<u32>(r.bits & 255); }
ARK_HOST_DEVICE inline constexpr u32 destination_of(SendRequest r) { return static_cast<u32>(r.bits >> 8 & 255); }
ARK_HOST_DEVICE inline constexpr u32 length_of(SendRequest r) { return static_cast<u32>(r.bits >> 36 & 0xfffff) * 16; }
inline constexpr u64 kPieceBits = 0xfffffull << 16;
ARK_HOST_DEVICE inline constexpr u32 piece_of(SendRequest r) { return static_cast<u32>(r.bits >> 16) & 0xfffff; }
ARK_HOST_DEVICE inline constexpr u64 offset_of(SendRequest r) { return static_cast<u64>(piece_of(r)) * length_of(r); }
ARK_HOST_DEVICE inline constexpr u32 flags_of(SendRequest r) { return static_cast<u32>(r.bits >> 56); }

}  // namespace ark::abi
