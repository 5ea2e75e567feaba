#include "bindings/distributed/cuda/work.h"

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <pybind11/pybind11.h>

#include <map>
#include <mutex>
#include <thread>

#include "base/check.h"
#include "bindings/distributed/support/profiling_title.h"
#include "cuda/device.h"

namespace ark::bindings {

cuda::Stream raw_stream(const c10::Stream& stream) {
  // Torch's numbering: 0 is the default stream, even numbers are handles of foreign streams, odd ones name streams of
  // its pools, whose handles only torch knows.
  const c10::StreamId id = stream.id();
  if ((id & 1) == 0) return reinterpret_cast<cuda::Stream>(static_cast<intptr_t>(id));
  static thread_local std::map<std::pair<c10::DeviceIndex, c10::StreamId>, cuda::Stream> known;
  auto [found, inserted] = known.try_emplace({stream.device_index(), id}, nullptr);
  if (inserted) {
    c10::StreamGuard guard(stream);
    pybind11::gil_scoped_acquire gil;
    pybind11::object get = pybind11::module_::import("torch._C").attr("_cuda_getCurrentRawStream");
    found->second =
        reinterpret_cast<cuda::Stream>(PyLong_AsUnsignedLongLong(get(static_cast<int>(stream.device_index())).ptr()));
  }
  return found->second;
}

namespace {

/// In a thread without one, as autograd's may be before its first work, a default stream cannot be asked. Of any GPU:
/// barriers of the host ask too.
cuda::Context context_of(c10::DeviceIndex device) {
  static std::mutex mutex;
  static auto& known = *new std::map<c10::DeviceIndex, cuda::Context>;  // for groups that outlive it, never destroyed
  const std::lock_guard lock(mutex);
  auto [found, inserted] = known.try_emplace(device, nullptr);
  if (found->second == nullptr) found->second = cuda::primary_context(device);
  return found->second;
}

}  // namespace

bool is_capturing(const c10::Stream& stream) {
  const cuda::ContextScope scope(context_of(stream.device_index()));
  cuda::CaptureStatus status = cuda::CaptureStatus::kNone;
  unsigned long long id = 0;
  cuda::check_result(cuda::driver().stream_capture_info(raw_stream(stream), &status, &id, nullptr, nullptr, nullptr),
                     "cuStreamGetCaptureInfo");
  return status == cuda::CaptureStatus::kActive;
}

bool has_ended(const c10::Event& event) {
  cuda::RelaxedCaptureScope relaxed;
  return event.query();
}

namespace {

c10::Stream current_stream(c10::Device device) { return c10::impl::VirtualGuardImpl(device.type()).getStream(device); }

c10::intrusive_ptr<c10::ivalue::Future> make_future(const std::vector<c10::Device>& devices) {
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()), devices);
}

}  // namespace

CudaWork::CudaWork(int rank, c10d::OpType type, uint64_t sequence, std::vector<at::Tensor> results, c10::Stream stream,
                   std::shared_ptr<comm::CudaCollectives> collectives, bool blocks_host, bool own_stream)
    : c10d::Work(rank, type, profiling_title(type), results),
      results_(std::move(results)),
      sequence_(sequence),
      stream_(stream),
      blocks_host_(blocks_host),
      collectives_(std::move(collectives)) {
  if (own_stream) end();
  if (recordFunctionEndCallback_) recordFunctionEndCallback_();  // launched
}

c10::Event& CudaWork::end() {
  std::lock_guard lock(mutex_);
  if (!end_) {
    captured_ = is_capturing(stream_);
    end_.emplace(c10::DeviceType::CUDA);
    end_->record(stream_);
  }
  return *end_;
}

bool CudaWork::isCompleted() {
  collectives_->poll();
  c10::Event& event = end();
  return captured_ || has_ended(event);
}

bool CudaWork::isSuccess() const { return true; }  // poll() has thrown otherwise

bool CudaWork::wait(std::chrono::milliseconds timeout) {
  collectives_->poll();
  c10::Stream current = current_stream(stream_.device());
  if (current != stream_) end().block(current);
  const bool limited = timeout != kNoTimeout;
  if (!blocks_host_ && !limited) return true;
  c10::Event& event = end();
  if (captured_) return true;
  // Not an event's wait: a rank that fails must be heard of.
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (!has_ended(event)) {
    collectives_->poll();
    TORCH_CHECK(!limited || std::chrono::steady_clock::now() < deadline, "ark process group, rank ", rank_, ": ",
                c10d::opTypeToString(opType_), " number ", sequence_, " did not end within ", timeout.count(), " ms");
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  collectives_->poll();
  return true;
}

c10::intrusive_ptr<c10::ivalue::Future> CudaWork::getFuture() {
  std::lock_guard lock(mutex_);
  if (!future_) {
    future_ = make_future({stream_.device()});
    // The future notes the current streams: who waits for it waits for this one.
    c10::StreamGuard guard(stream_);
    future_->markCompleted(c10::IValue(results_));
  }
  return future_;
}

CombinedWork::CombinedWork(int rank, uint64_t sequence, std::vector<c10::intrusive_ptr<c10d::Work>> parts)
    : c10d::Work(rank, c10d::OpType::COALESCED), sequence_(sequence), parts_(std::move(parts)) {}

bool CombinedWork::isCompleted() {
  for (auto& part : parts_)
    if (!part->isCompleted()) return false;
  return true;
}

bool CombinedWork::wait(std::chrono::milliseconds timeout) {
  for (auto& part : parts_) part->wait(timeout);
  return true;
}

std::vector<at::Tensor> CombinedWork::result() {
  std::vector<at::Tensor> all;
  for (auto& part : parts_)
    for (const at::Tensor& t : part->result()) all.push_back(t);
  return all;
}

c10::intrusive_ptr<c10::ivalue::Future> CombinedWork::getFuture() {
  if (!future_) {
    wait(kNoTimeout);
    std::vector<at::Tensor> results = result();
    std::vector<c10::Device> devices;
    for (const at::Tensor& t : results)
      if (t.is_cuda() && devices.empty()) devices.push_back(t.device());
    future_ = make_future(devices);
    future_->markCompleted(c10::IValue(results));
  }
  return future_;
}

}  // namespace ark::bindings
