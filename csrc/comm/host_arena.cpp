#include "comm/host_arena.h"

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/check.h"

namespace ark::comm {
namespace {

std::byte* map_segment(int fd, size_t size_bytes, int rank) {
  struct stat info{};
  check<DeviceError>(::fstat(fd, &info) == 0 && static_cast<size_t>(info.st_size) == size_bytes, "the segment of rank ",
                     rank, " has ", info.st_size, " bytes, expected ", size_bytes);
  void* address = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  check<DeviceError>(address != MAP_FAILED, "mmap of ", size_bytes, " bytes of rank ", rank, ": ",
                     std::strerror(errno));
  return static_cast<std::byte*>(address);
}

}  // namespace

HostArena::HostArena(Store& store, const GroupInfo& group, size_t size_bytes, Clock::time_point deadline)
    : size_bytes_(size_bytes), segments_(group.world, nullptr) {
  UniqueFd own(::memfd_create("ark-symmetric", MFD_CLOEXEC));
  check<DeviceError>(own.valid(), "memfd_create: ", std::strerror(errno));
  check<DeviceError>(::ftruncate(own.get(), static_cast<off_t>(size_bytes)) == 0, "ftruncate to ", size_bytes,
                     " bytes: ", std::strerror(errno));
  segments_[group.rank] = map_segment(own.get(), size_bytes, group.rank);
  try {
    std::vector<UniqueFd> peers = exchange_fds(store, group, "arena", own.get(), deadline);
    for (int rank = 0; rank < group.world; ++rank)
      if (rank != group.rank) segments_[rank] = map_segment(peers[rank].get(), size_bytes, rank);
  } catch (...) {
    for (std::byte* segment : segments_)
      if (segment) ::munmap(segment, size_bytes_);
    throw;
  }
}

HostArena::HostArena(std::vector<std::byte*> segments, size_t size_bytes)
    : size_bytes_(size_bytes), owns_(false), segments_(std::move(segments)) {}

HostArena::~HostArena() {
  if (!owns_) return;
  for (std::byte* segment : segments_)
    if (segment) ::munmap(segment, size_bytes_);
}

}  // namespace ark::comm
