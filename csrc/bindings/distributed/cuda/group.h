// The CUDA side of a process group: takes torch's tensors and options, puts the kernels of csrc/comm into a stream.
//
// A synchronous call goes into the caller's stream. An asynchronous one goes into a stream of the group that waits for
// the caller's, so that computation goes on beside it; sends and receives have a stream per peer and direction. Each
// operation returns null when ark does not do it; the process group then hands it to NCCL. Sends and receives of a
// batch are checked at their calls and launched when it ends, in the order of comm/message_rounds.h.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include "bindings/distributed/cuda/work.h"
#include "bindings/distributed/support/c10d_store.h"
#include "bindings/distributed/support/group_setup.h"
#include "bindings/distributed/support/pending_work.h"

namespace ark::bindings {

class CudaGroup {
 public:
  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  CudaGroup(c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::string name,
            std::chrono::milliseconds timeout, const GroupSetup& setup);
  ~CudaGroup();

  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }
  /// What the CPU side of the process group does for this one.
  struct HostSide {
    std::function<uint64_t()> number;   // counts a collective; numbers are shared. Throws if a peer will not come
    std::function<void(int)> check;     // throws if a rank has failed there, or the given one has died or left
    std::function<void()> abort_plans;  // ends launches of plans with exchanges
  };
  void set_host_side(HostSide host);

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts);
  WorkPtr allreduce(Tensors& tensors, const c10d::ReduceOp& op, bool async, std::chrono::milliseconds timeout);
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts);
  /// outputs[i][r] gets rank r's inputs[i].
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts);
  WorkPtr allgather_into(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts);
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts);
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts);
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& opts);
  WorkPtr reduce_scatter_from(Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts);
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& opts);
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts);
  WorkPtr send(Tensors& tensors, int destination);
  WorkPtr recv(Tensors& tensors, int source);
  /// Sends and receives that this thread calls from now on are held until one of the next two, or until somebody waits
  /// for one of them.
  void hold_messages();
  /// Throws if one cannot be launched; those behind it are not launched either.
  void launch_messages();
  void drop_messages(const std::exception_ptr& error);
  /// Copies on a stream of the group.
  WorkPtr message_to_self(c10d::OpType type, const at::Tensor& from, const at::Tensor& to);
  WorkPtr barrier(const c10d::BarrierOptions& opts, c10::Device device);

  /// For the launch of a plan with exchanges: the stream waits for what the group has in other streams, and nobody
  /// else launches before the lock is given back.
  std::unique_lock<std::mutex> take_turn(int device, void* stream);

  /// A tensor in new memory that all ranks map; its memory goes when the last tensor on it does. Collective.
  at::Tensor empty(at::IntArrayRef sizes, at::ScalarType dtype, c10::Device device);
  /// Maps the memory of a contiguous tensor on all ranks and keeps it alive; the number of the registration.
  int register_tensor(const at::Tensor& tensor);
  void deregister(int number);

  void abort();
  /// Waits for what is in the group's streams; what has not ended by the deadline is aborted. Gives memory and streams
  /// back; works that somebody still holds keep the memory until they go.
  void shutdown(comm::Clock::time_point deadline);
  /// ": why collectives go to NCCL"; empty if they do not.
  std::string unusable() const { return unusable_.empty() ? unusable_ : ": " + unusable_; }
  /// Throws if a kernel of the group has failed.
  void poll();
  /// Kernels launched so far.
  uint64_t launches() const;
  void force_algorithm(int algorithm);

 private:
  using Collectives = comm::CudaCollectives;
  using Call = Collectives::Call;
  using Body = std::function<void(Collectives&, const Call&)>;
  struct Plan {
    c10d::OpType type;
    Tensors results;
    Tensors inputs = {};
    bool async = true;
    std::chrono::milliseconds timeout = c10d::kUnsetTimeout;
    bool blocks_host = false;
  };
  /// Whether ark does collectives (or messages of a pair) on the device. A rank that cannot tells its peers.
  bool usable(c10::Device device, bool pair = false);
  /// Null before the first tensor; for any thread.
  std::shared_ptr<Collectives> collectives() const;
  /// Waits for the memory of all ranks; false if one of them has none: then no rank of the group goes on here.
  bool connected(std::chrono::milliseconds timeout, uint64_t number);
  void give_up(const std::string& why);
  std::chrono::milliseconds own_timeout(std::chrono::milliseconds asked) const;
  bool streams_end(comm::Clock::time_point deadline);
  WorkPtr submit(Plan plan, const Body& body, c10::Device device);
  WorkPtr submit_on(c10::Stream stream, Plan& plan, const Body& body, bool fork, uint64_t number);
  /// A send or receive that has been checked.
  struct Message {
    int peer;
    bool sends;
    at::Tensor tensor;
    c10::Event begin;  // after what the caller's stream held
    Body body;
    c10::intrusive_ptr<PendingWork> work{};  // of a batch
    int key() const { return 2 * peer + (sends ? 1 : 0); }
    c10d::OpType type() const { return sends ? c10d::OpType::SEND : c10d::OpType::RECV; }
  };
  WorkPtr point(int peer, bool sends, const at::Tensor& tensor, Body body);
  uint64_t next_number(int key) const;
  WorkPtr hold(Message message);
  WorkPtr launch(const Message& message);
  void launch_held();
  void drop_held(const std::exception_ptr& error);
  c10::Stream own_stream(int key);
  void follow(c10::Stream stream);
  void gather_parts(Collectives& collectives, const at::Tensor& input, const Tensors& parts, const Call& call);

  std::unique_ptr<C10dStore> store_;
  int rank_, size_;
  std::string name_;
  std::atomic<std::chrono::milliseconds> timeout_;
  GroupSetup setup_;
  HostSide host_;
  std::map<int, uint64_t> points_;  // messages of each pair and direction that have been launched
  std::thread::id holds_;           // of the thread that calls a batch
  std::vector<Message> held_;       // of that batch
  std::shared_ptr<Launcher> launcher_;
  std::shared_ptr<Collectives> collectives_;
  std::string unusable_;
  mutable std::mutex creation_mutex_;
  std::mutex mutex_;
  std::map<int, c10::Stream> streams_;
  std::map<int, at::Tensor> registered_;
  std::optional<c10::Stream> last_, last_captured_;  // where the last collective of the group is; in a graph
};

}  // namespace ark::bindings
