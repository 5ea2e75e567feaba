#include "comm/symmetric_memory.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <string_view>

#include "base/check.h"

namespace ark::comm {
namespace {

constexpr std::string_view kRefused = "none";

/// Names this process among all of the host.
const std::string& process_token() {
  static const std::string token = [] {
    uint64_t random = 0;
    check<DeviceError>(getrandom(&random, sizeof random, 0) == sizeof random, "getrandom failed");
    return cat(::getpid(), '.', random);
  }();
  return token;
}

std::string place_key(const GroupInfo& group, const std::string& tag, int rank) {
  return cat("ark/", group.name, "/", tag, "/place/", rank);
}

}  // namespace

SymmetricMemory::SymmetricMemory(Store& store, const GroupInfo& group, const cuda::GpuInfo& gpu, const std::string& tag,
                                 size_t size_bytes)
    : store_(store), group_(group), gpu_(gpu), tag_(tag), segments_(group.world), addresses_(group.world, 0) {
  segments_[group.rank] = CudaSegment(gpu, size_bytes);
  size_bytes_ = segments_[group.rank].size_bytes();
  addresses_[group.rank] = segments_[group.rank].address();
}

void SymmetricMemory::refuse(Store& store, const GroupInfo& group, const std::string& tag, const std::string& why) {
  store.set(place_key(group, tag, group.rank), cat(kRefused, ' ', why));
}

void SymmetricMemory::offer() {
  if (server_) return;
  store_.set(place_key(group_, tag_, group_.rank),
             cat(process_token(), ' ', gpu_.device, ' ', own(), ' ', size_bytes_));
  server_ = std::make_unique<FdServer>(store_, group_, tag_, segments_[group_.rank].export_fd());
}

cuda::DevicePtr SymmetricMemory::of(int rank, Clock::time_point deadline) {
  check(rank >= 0 && rank < group_.world, "symmetric memory of rank ", rank, " in a group of ", group_.world);
  if (addresses_[rank]) return addresses_[rank];
  const std::string said = store_.get(place_key(group_, tag_, rank), deadline, rank);
  check<UnsupportedError>(said.compare(0, kRefused.size(), kRefused) != 0, "rank ", rank, ": ",
                          said.substr(std::min(said.size(), kRefused.size() + 1)));
  std::istringstream place(said);
  std::string process;
  cuda::Device device = -1;
  cuda::DevicePtr address = 0;
  size_t size_bytes = 0;
  place >> process >> device >> address >> size_bytes;
  check(size_bytes == size_bytes_, "symmetric memory ", tag_, " of group ", group_.name, ": rank ", group_.rank,
        " has ", size_bytes_, " bytes, rank ", rank, " has ", size_bytes);
  if (process == process_token() && device == gpu_.device) return addresses_[rank] = address;
  segments_[rank] = CudaSegment(gpu_, request_fd(store_, group_, tag_, rank, deadline), size_bytes_);
  return addresses_[rank] = segments_[rank].address();
}

void SymmetricMemory::settle(Clock::time_point deadline) {
  auto key = [&](int rank) { return cat("ark/", group_.name, "/", tag_, "/mapped/", rank); };
  store_.set(key(group_.rank), "1");
  for (int r = 0; r < group_.world; ++r)
    if (r != group_.rank) store_.get(key(r), deadline, r);
  server_.reset();
}

}  // namespace ark::comm
