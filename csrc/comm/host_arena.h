// Symmetric memory on the host: one anonymous shared segment per rank, mapped by every rank of the group.
//
// The segments have no name in the file system: they vanish with the last process that maps them, also when one is
// killed.
#pragma once
#include <cstddef>
#include <memory>
#include <vector>

#include "comm/fd_exchange.h"

namespace ark::comm {

class HostArena {
 public:
  /// Collective. Every rank allocates `size_bytes` (zeroed, page-aligned) and maps all peers'.
  HostArena(Store& store, const GroupInfo& group, size_t size_bytes, Clock::time_point deadline);
  /// Over segments that somebody else owns: ranks that are threads of one process (so that ThreadSanitizer sees both
  /// sides).
  HostArena(std::vector<std::byte*> segments, size_t size_bytes);
  ~HostArena();
  HostArena(const HostArena&) = delete;
  HostArena& operator=(const HostArena&) = delete;

  std::byte* data(int rank) const { return segments_[rank]; }
  size_t size_bytes() const { return size_bytes_; }

 private:
  size_t size_bytes_;
  bool owns_ = true;
  std::vector<std::byte*> segments_;
};

}  // namespace ark::comm
