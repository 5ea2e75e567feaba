// Works of CUDA collectives: what is in a stream already. Waiting makes the caller's stream wait, not the host.
#pragma once
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <memory>
#include <mutex>
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "comm/cuda_collectives.h"

namespace ark::bindings {

/// The raw handle of a stream of torch.
cuda::Stream raw_stream(const c10::Stream& stream);
/// Whether a graph is being recorded from the stream.
bool is_capturing(const c10::Stream& stream);
/// Asks without ending the graph that another thread may be recording.
bool has_ended(const c10::Event& event);

class CudaWork : public c10d::Work {
 public:
  /// `stream` holds the work already. `blocks_host`: wait() returns when it is done (barrier). `own_stream`: nothing
  /// else comes into the stream; else the end is noted only when somebody asks (an event costs the CPU 1-2 us).
  CudaWork(int rank, c10d::OpType type, uint64_t sequence, std::vector<at::Tensor> results, c10::Stream stream,
           std::shared_ptr<comm::CudaCollectives> collectives, bool blocks_host, bool own_stream);
  bool isCompleted() override;
  bool isSuccess() const override;
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  std::vector<at::Tensor> result() override { return results_; }
  uint64_t getSequencenumber() const override { return sequence_; }

 private:
  std::vector<at::Tensor> results_;
  uint64_t sequence_;
  c10::Stream stream_;
  c10::Event& end();
  std::optional<c10::Event> end_;
  bool captured_ = false, blocks_host_;
  std::shared_ptr<comm::CudaCollectives> collectives_;
  std::mutex mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

/// Several works as one.
class CombinedWork : public c10d::Work {
 public:
  CombinedWork(int rank, uint64_t sequence, std::vector<c10::intrusive_ptr<c10d::Work>> parts);
  bool isCompleted() override;
  bool wait(std::chrono::milliseconds timeout) override;
  void synchronize() override { wait(kNoTimeout); }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  std::vector<at::Tensor> result() override;
  uint64_t getSequencenumber() const override { return sequence_; }

 private:
  uint64_t sequence_;
  std::vector<c10::intrusive_ptr<c10d::Work>> parts_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

}  // namespace ark::bindings
