// What a process group is made with besides its ranks: handed on to the groups that are split off it.
#pragma once
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "bindings/distributed/support/stream_pool.h"
#include "comm/cuda_collectives.h"

namespace ark::bindings {

/// Calls that went to another backend, over all groups that share the object.
class DelegatedCalls {
 public:
  /// True for the first call of its name.
  bool add(const std::string& name) {
    std::lock_guard lock(mutex_);
    return ++counts_[name] == 1;
  }
  std::map<std::string, int64_t> counts() const {
    std::lock_guard lock(mutex_);
    return counts_;
  }

 private:
  mutable std::mutex mutex_;
  std::map<std::string, int64_t> counts_;
};

/// Makes a backend of torch for a group, or null where torch has none.
using BackendMaker = std::function<c10::intrusive_ptr<c10d::Backend>(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout)>;

struct GroupSetup {
  uint64_t first_step = 0;
  bool cuda = false;
  std::string refuse_cuda{};  // tests: as if ark could not run on this rank's GPU, for this reason
  comm::CudaCollectivesOptions cuda_options{};
  std::shared_ptr<cuda::Toolchain> toolchain{};
  std::shared_ptr<StreamPool> streams{};
  BackendMaker make_nccl{}, make_gloo{};  // made when first needed
  std::shared_ptr<DelegatedCalls> delegated{};
};

}  // namespace ark::bindings
