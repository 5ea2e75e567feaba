// The c10d backend `ark`.
//
// CPU tensors: the collectives of csrc/comm over shared memory, run in order by a thread of the group (sends: a thread
// per peer; receives: one thread that matches them by sender and tag), any dtype that torch can send, any strides
// (copied where not contiguous). CUDA tensors: kernels in the caller's streams (cuda/group.h). What ark does not do is
// handed to NCCL or Gloo, counted in `delegated` and logged once. Errors become exceptions of the Work: disagreement of
// ranks, a call that a rank refused, a rank that died, left or did not arrive.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "bindings/distributed/cuda/group.h"
#include "bindings/distributed/plan_memory.h"
#include "bindings/distributed/support/group_setup.h"
#include "bindings/distributed/support/work_queue.h"
#include "comm/host_collectives.h"
#include "comm/inbox.h"
#include "targets/rank_memory.h"

namespace ark::bindings {

class ProcessGroupArk : public c10d::Backend {
 public:
  /// What torch copies to split a group off another.
  struct Options : c10d::Backend::Options {
    explicit Options(std::chrono::milliseconds timeout) : c10d::Backend::Options("ark", timeout) {}
  };

  ProcessGroupArk(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, std::chrono::milliseconds timeout,
                  std::string name, GroupSetup setup);
  ~ProcessGroupArk() override;

  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  const std::string getBackendName() const override { return "ark"; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  bool supportsCoalescing() const override { return true; }
  bool supportsSplitting() const override { return true; }
  c10::intrusive_ptr<c10d::Backend::Options> getBackendOptions() override;
  /// Collective over `ranks` (of this group); null on a rank that is not among them. Called for each device type of
  /// this group with the same store: one group serves them all.
  c10::intrusive_ptr<c10d::Backend> split(const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
                                          const c10::intrusive_ptr<c10d::Backend::Options>& opts) override;
  void startCoalescing() override;
  WorkPtr endCoalescing() override;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_coalesced(std::vector<Tensors>& outputs, Tensors& inputs,
                              const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override;
  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override;
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& opts) override;
  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs,
                         const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  WorkPtr send(Tensors& tensors, int destination, int tag) override;
  WorkPtr recv(Tensors& tensors, int source, int tag) override;
  WorkPtr recvAnysource(Tensors& tensors, int tag) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;
  void abort() override;
  /// Sends and collectives that are under way get some seconds to end, receives that nothing has come for end with an
  /// exception. Gives all memory back.
  void shutdown() override;

  /// Part of a launch of a plan with exchanges (plan_ranks.h): this rank has met the others, which have the same memory
  /// for it. The group is not destroyed meanwhile.
  class PlanTurn {
   public:
    /// Launches of the plan go one at a time; on a GPU nobody else launches in the group.
    void take();
    /// What the ranks of the launch hear of each other; with the turn taken.
    targets::RankMemory view() const { return group_->view_of(*memory_); }
    void launched() const { memory_->fresh = false; }

   private:
    friend class ProcessGroupArk;
    PlanTurn(ProcessGroupArk& group, const RankPlan& plan)
        : group_(&group), use_(group.plans_.use()), name_(plan.plan.name), device_(plan.device), stream_(plan.stream) {}

    ProcessGroupArk* group_;
    std::shared_lock<std::shared_mutex> use_;
    std::string name_;
    int device_;
    void* stream_;
    std::shared_ptr<PlanMemory> memory_;
    std::unique_lock<std::mutex> of_memory_, on_gpu_;
  };
  /// Waits for the ranks at the first launch; in a graph with all-to-alls at each.
  PlanTurn meet_plan(const RankPlan& plan);
  /// A launch in this group alone.
  void run_plan(const RankPlan& plan, const PlanLaunch& launch);
  /// This rank will not run a plan that its peers may wait for.
  void fail_plan(const std::string& why);
  /// Of all groups of this process.
  uint64_t number() const { return number_; }

  /// Null: the group has no CUDA side, or has been destroyed.
  CudaGroup* cuda_group() { return closed_ ? nullptr : cuda_.get(); }
  /// How often each operation went to NCCL or Gloo.
  std::map<std::string, int64_t> delegated() const { return own_delegated_.counts(); }

 private:
  using Call = comm::HostCollectives::Call;
  using Body = std::function<void(const Call&)>;
  /// Around every operation: if it throws on this rank alone, the peers hear of it (they would wait otherwise).
  class Attempt {
   public:
    Attempt(ProcessGroupArk& group, const char* operation);
    ~Attempt();
    Attempt(const Attempt&) = delete;

   private:
    ProcessGroupArk& group_;
    const char* operation_;
    int exceptions_;
    std::unique_lock<std::recursive_mutex> turn_;
  };
  /// Throws if the group has been destroyed, or belongs to the process that this one was forked from.
  void check_open(const char* operation) const;
  /// Threads that call the group do so one at a time.
  std::unique_lock<std::recursive_mutex> turn(const char* operation);
  void leave_to_parent();
  WorkPtr submit(c10d::OpType type, Tensors results, std::chrono::milliseconds timeout, Body body);
  WorkPtr enqueue(WorkQueue& queue, c10d::OpType type, uint64_t sequence, Tensors results,
                  std::chrono::milliseconds timeout, Body body, std::optional<comm::CallCounts> before = {});
  WorkPtr receive(at::Tensor tensor, int source, int tag);
  WorkPtr message_to_self(c10d::OpType type, const at::Tensor& tensor, int tag);
  WorkPtr copy_to_self(c10d::OpType type, const at::Tensor& from, const at::Tensor& to, int tag);
  WorkPtr end_batch();
  void drop_batch();
  /// Around calls that are no Attempt: if one throws, its batch ends.
  class BatchGuard {
   public:
    explicit BatchGuard(ProcessGroupArk& group) : group_(group), exceptions_(std::uncaught_exceptions()) {}
    ~BatchGuard();
    BatchGuard(const BatchGuard&) = delete;

   private:
    ProcessGroupArk& group_;
    int exceptions_;
  };
  void sequence_failed(const std::exception& error);
  uint64_t number_gpu_call();
  void abort_kernels();
  std::shared_ptr<c10::Event> queued_on_gpu() const;
  void wait_for(const std::shared_ptr<c10::Event>& event, const Call& call);
  std::optional<c10::Device> barrier_gpu(const c10d::BarrierOptions& opts) const;
  void gather_parts(const at::Tensor& input, const Tensors& parts, const Call& call);
  void count_delegated(const char* operation, const char* to);
  c10d::Backend& delegate(const char* operation);
  c10d::Backend& gloo();
  WorkPtr on_gloo(const char* operation, c10d::OpType type, const Tensors& tensors, std::chrono::milliseconds timeout,
                  std::function<WorkPtr(c10d::Backend&)> call);
  void end_queues(comm::Clock::time_point deadline);
  /// The work of ark's own kernels, or else that of NCCL. A collective takes one number on every rank, whoever does it.
  template <class Own, class Theirs>
  WorkPtr on_gpu(const char* operation, const Own& own, const Theirs& theirs, bool collective = true) {
    gpu_call_ = {operation, false};
    WorkPtr work;
    if (cuda_) {
      try {
        work = own(*cuda_);
      } catch (const std::exception& error) {
        if (gpu_call_.numbered) sequence_failed(error);
        throw;
      }
    }
    if (work && coalescing_) {
      coalesced_.push_back(work);
      coalescing_own_ = true;
    }
    if (work) return work;
    work = theirs(delegate(operation));
    if (collective && !gpu_call_.numbered) number_gpu_call();
    return work;
  }
  bool on_cuda(const Tensors& tensors, const char* operation) const;
  std::string meet_for(const RankPlan& plan);
  std::shared_ptr<PlanMemory> plan_memory(const RankPlan& plan);
  targets::RankMemory view_of(const PlanMemory& memory);
  void give_up_plans(const std::string& why);
  WorkQueue& queue(std::unique_ptr<WorkQueue>& slot);

  const uint64_t number_;
  std::string name_;
  std::atomic<std::chrono::milliseconds> timeout_;
  GroupSetup setup_;
  std::atomic<bool> closed_{false};
  const int process_;
  std::recursive_mutex calls_;
  c10::intrusive_ptr<c10d::Store> store_;  // of this group alone
  std::unique_ptr<comm::StepChannel> channel_;
  PlanMemories plans_;
  std::unique_ptr<comm::HostCollectives> collectives_;
  std::unique_ptr<CudaGroup> cuda_;
  c10::intrusive_ptr<c10d::Backend> nccl_, gloo_;
  uint64_t sequence_ = 0;
  std::map<int, uint64_t> sent_, received_;
  struct {
    const char* operation;
    bool numbered;
  } gpu_call_{"", false};
  struct {
    std::map<std::string, int> times;  // by ranks
    c10::intrusive_ptr<c10d::Store> store;
    ProcessGroupArk* group = nullptr;  // the last one, while it lives
    std::weak_ptr<void> lives{};
  } splits_;
  std::shared_ptr<void> life_ = std::make_shared<char>();
  bool coalescing_ = false, coalescing_cuda_ = false, coalescing_own_ = false;
  std::vector<WorkPtr> coalesced_;
  struct ToSelf {
    bool sends;
    int tag;
    at::Tensor tensor;
    c10::intrusive_ptr<ArkWork> work;
  };
  std::vector<ToSelf> to_self_;  // halves of messages in the batch that is being called
  DelegatedCalls own_delegated_;
  std::unique_ptr<WorkQueue> collective_queue_;
  std::map<int, std::unique_ptr<WorkQueue>> send_queues_;
  std::unique_ptr<comm::Inbox> inbox_;
};

}  // namespace ark::bindings
