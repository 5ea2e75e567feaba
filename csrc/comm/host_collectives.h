// The collectives of torch.distributed between processes of one host, over a StepChannel.
//
// Every collective is an exchange of streams: each rank publishes a stream of bytes piece by piece, each rank reads the
// segments of the peers' streams that it needs. Reductions happen at the reader, in rank order, so that all ranks get
// the same bits. All calls block until the result is in place; a process group calls them from a thread of its own.
// Buffers are contiguous; in and out may be the same where torch allows it. Errors: DeviceError (time-out, a dead rank,
// a failure of a peer) and UserError (ranks disagree on operation, size or type), each naming the ranks, the collective
// and its number.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/types.h"
#include "comm/reduce.h"
#include "comm/step_channel.h"

namespace ark::comm {

enum class Collective : int32_t {
  kBarrier,
  kBroadcast,
  kAllReduce,
  kReduce,
  kAllGather,
  kGather,
  kScatter,
  kReduceScatter,
  kAllToAll,
};
const char* name(Collective kind);

class HostCollectives {
 public:
  explicit HostCollectives(StepChannel& channel) : channel_(channel) {}

  /// Applies to every call: what to say in errors, and until when to wait.
  struct Call {
    uint64_t sequence = 0;
    Deadline deadline;
    std::optional<CallCounts> before = {};  // collectives only: StepChannel::note_call
    const char* element = "";               // type of what is moved, by the caller's name; compared over the ranks
    const char* operation = "";             // what the caller was asked for, where that is done by another; for errors
  };

  void barrier(const Call& call);
  void broadcast(void* data, size_t bytes, int root, const Call& call);
  void all_reduce(void* data, size_t count, DType dtype, Reduction op, const Call& call);
  void reduce(void* data, size_t count, DType dtype, Reduction op, int root, const Call& call);
  /// out holds world * bytes, ordered by rank.
  void all_gather(const void* in, void* out, size_t bytes, const Call& call);
  void gather(const void* in, void* out, size_t bytes, int root, const Call& call);
  /// in holds world * bytes on the root.
  void scatter(const void* in, void* out, size_t bytes, int root, const Call& call);
  /// in holds world * count elements.
  void reduce_scatter(const void* in, void* out, size_t count, DType dtype, Reduction op, const Call& call);
  /// Bytes to and from every rank, in rank order within in and out.
  void all_to_all(const void* in, std::span<const uint64_t> to, void* out, std::span<const uint64_t> from,
                  const Call& call);

  /// What comes in is taken by comm/inbox.h.
  void send(const void* data, size_t bytes, int to, int64_t tag, const Call& call);

 private:
  struct Segment {
    int peer;
    uint64_t offset, bytes;  // within the peer's stream
    std::byte* out;
  };
  struct Exchange {
    Descriptor descriptor{};
    const std::byte* send = nullptr;
    std::vector<Segment> copies{};
    std::function<void(const std::vector<Descriptor>&)>
        check{};  // after the descriptors agree in kind, type, size and root
  };
  void run(const Exchange& exchange, const Call& call);
  /// Reads every rank's bytes [offset, offset + bytes) of the same stream position and reduces them into out (null:
  /// take part only).
  void run_reduction(const Descriptor& descriptor, const std::byte* send, std::byte* out, uint64_t offset,
                     const Call& call);
  /// All-reduce of large data: the owner of a slice reduces it, everybody reads the owners' slices (two steps a piece).
  void run_two_shot(const Descriptor& descriptor, std::byte* data, const Call& call);
  void agree(const Descriptor& own, const StepChannel::Scope& scope, std::vector<Descriptor>& all);
  StepChannel::Scope scope(Collective kind, const Call& call) const;
  void reduce_pieces(std::byte* out, uint64_t position, uint64_t begin, uint64_t end, const Descriptor& descriptor,
                     std::span<const std::byte* const> peers);

  StepChannel& channel_;
};

}  // namespace ark::comm
