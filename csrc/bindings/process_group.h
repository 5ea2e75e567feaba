// The c10d backend `ark`.
//
// CPU tensors: the collectives of csrc/comm over shared memory, run in order by a thread of the group (point to point:
// a thread per peer and direction), any dtype that torch can send, any strides (copied where not contiguous). CUDA
// tensors: kernels in the caller's streams (cuda_group.h); what those do not do is handed to the group given as
// `cuda_backend`, counted in `delegated` and logged once. Errors become exceptions of the Work: disagreement of ranks,
// a rank that died or did not arrive.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "bindings/cuda_group.h"
#include "bindings/work_queue.h"
#include "comm/host_collectives.h"

namespace ark::bindings {

class ProcessGroupArk : public c10d::Backend {
 public:
  ProcessGroupArk(c10::intrusive_ptr<c10d::Store> store, int rank, int size, std::chrono::milliseconds timeout,
                  std::string name, c10::intrusive_ptr<c10d::Backend> cuda_backend, uint64_t first_step,
                  std::unique_ptr<CudaGroup> cuda);
  ~ProcessGroupArk() override;

  using Tensors = std::vector<at::Tensor>;
  using WorkPtr = c10::intrusive_ptr<c10d::Work>;

  const std::string getBackendName() const override { return "ark"; }
  void setTimeout(std::chrono::milliseconds timeout) override;
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  bool supportsCoalescing() const override { return true; }
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
  void shutdown() override;

  CudaGroup* cuda_group() { return cuda_.get(); }
  /// How often each operation went to the CUDA backend.
  std::map<std::string, int64_t> delegated() const;

 private:
  using Call = comm::HostCollectives::Call;
  using Body = std::function<void(const Call&)>;
  WorkPtr submit(c10d::OpType type, Tensors results, std::chrono::milliseconds timeout, Body body);
  WorkPtr enqueue(WorkQueue& queue, c10d::OpType type, uint64_t sequence, Tensors results,
                  std::chrono::milliseconds timeout, Body body, std::optional<comm::CallCounts> before = {});
  void abort_kernels();
  std::optional<c10::Device> barrier_gpu(const c10d::BarrierOptions& opts) const;
  void gather_parts(const at::Tensor& input, const Tensors& parts, const Call& call);
  c10d::Backend& delegate(const char* operation);
  /// The work of ark's own kernels, or else that of the CUDA backend.
  template <class Own, class Theirs>
  WorkPtr on_gpu(const char* operation, const Own& own, const Theirs& theirs) {
    if (cuda_) {
      if (WorkPtr work = own(*cuda_)) {
        if (coalescing_) {
          coalesced_.push_back(work);
          coalescing_own_ = true;
        }
        return work;
      }
    }
    return theirs(delegate(operation));
  }
  bool on_cuda(const Tensors& tensors, const char* operation) const;
  WorkQueue& queue(std::unique_ptr<WorkQueue>& slot);

  std::string name_;
  std::atomic<std::chrono::milliseconds> timeout_;
  std::unique_ptr<comm::StepChannel> channel_;
  std::unique_ptr<comm::HostCollectives> collectives_;
  c10::intrusive_ptr<c10d::Backend> cuda_backend_;
  std::unique_ptr<CudaGroup> cuda_;
  uint64_t sequence_ = 0;
  std::map<int, uint64_t> sent_, received_;
  bool coalescing_ = false, coalescing_cuda_ = false, coalescing_own_ = false;
  std::vector<WorkPtr> coalesced_;
  mutable std::mutex mutex_;
  std::map<std::string, int64_t> delegated_;
  std::unique_ptr<WorkQueue> collective_queue_, any_queue_;
  std::map<int, std::unique_ptr<WorkQueue>> send_queues_, receive_queues_;
};

}  // namespace ark::bindings
