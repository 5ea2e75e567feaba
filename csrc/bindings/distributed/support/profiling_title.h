// What torch's profiler calls the collectives, like those of its own backends: "ark:all_reduce".
#pragma once
#include <ATen/record_function.h>

#include <torch/csrc/distributed/c10d/Work.hpp>

namespace ark::bindings {

/// For the constructor of c10d::Work; null while nobody records, which costs a call nothing.
inline const char* profiling_title(c10d::OpType type) {
  if (!at::hasCallbacks()) return nullptr;
  switch (type) {
    case c10d::OpType::BROADCAST:
      return "ark:broadcast";
    case c10d::OpType::ALLREDUCE:
      return "ark:all_reduce";
    case c10d::OpType::ALLREDUCE_COALESCED:
      return "ark:all_reduce_coalesced";
    case c10d::OpType::REDUCE:
      return "ark:reduce";
    case c10d::OpType::ALLGATHER:
      return "ark:all_gather";
    case c10d::OpType::_ALLGATHER_BASE:
      return "ark:_all_gather_base";
    case c10d::OpType::ALLGATHER_COALESCED:
      return "ark:all_gather_coalesced";
    case c10d::OpType::GATHER:
      return "ark:gather";
    case c10d::OpType::SCATTER:
      return "ark:scatter";
    case c10d::OpType::REDUCE_SCATTER:
      return "ark:reduce_scatter";
    case c10d::OpType::_REDUCE_SCATTER_BASE:
      return "ark:_reduce_scatter_base";
    case c10d::OpType::ALLTOALL:
    case c10d::OpType::ALLTOALL_BASE:
      return "ark:all_to_all";
    case c10d::OpType::SEND:
      return "ark:send";
    case c10d::OpType::RECV:
    case c10d::OpType::RECVANYSOURCE:
      return "ark:recv";
    case c10d::OpType::BARRIER:
      return "ark:barrier";
    default:
      return nullptr;
  }
}

}  // namespace ark::bindings
