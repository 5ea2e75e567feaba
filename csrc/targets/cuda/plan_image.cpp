#include "targets/cuda/plan_image.h"

#include <cstring>

#include "base/check.h"
#include "plan/as_run.h"

namespace ark::cuda {
namespace {

constexpr size_t kAlignment = 256;

size_t aligned(size_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

size_t append(std::string& bytes, const void* from, size_t size) {
  size_t offset = bytes.size();
  bytes.resize(aligned(offset + size));
  if (size) std::memcpy(bytes.data() + offset, from, size);
  return offset;
}

}  // namespace

PlanImage lay_out(const plan::Plan& plan, const plan::KernelNumbers& numbers) {
  plan::Packed packed = plan::pack(plan, numbers);
  PlanImage image;
  image.records = append(image.bytes, packed.records.data(), packed.records.size());
  image.items = append(image.bytes, packed.items.data(), packed.items.size() * sizeof(abi::WorkItem));
  image.list_begin = append(image.bytes, packed.list_begin.data(), packed.list_begin.size() * sizeof(abi::i32));
  image.num_items = packed.items.size();
  check(packed.list_begin.size() >= static_cast<size_t>(plan.num_workers), "the packed plan has ",
        packed.list_begin.size(), " lists for ", plan.num_workers, " workers");
  std::vector<abi::TensorMapPatch> patches;
  for (size_t i = 0; i < plan.maps.size(); ++i)
    patches.push_back({plan::run_slot(plan, plan.maps[i].slot), static_cast<abi::u32>(i), plan.maps[i].offset_bytes});
  image.patches = append(image.bytes, patches.data(), patches.size() * sizeof(abi::TensorMapPatch));
  std::vector<abi::PoisonRange> poison;
  for (size_t i = 0; i < plan.buffers.size(); ++i)
    if (plan.buffers[i].kind == plan::BufferKind::kOutput)
      poison.push_back({static_cast<abi::u32>(i), 0, plan.buffers[i].size_bytes});
  image.poison = append(image.bytes, poison.data(), poison.size() * sizeof(abi::PoisonRange));
  image.num_poison = poison.size();
  image.maps = image.bytes.size();
  image.bytes.resize(aligned(image.bytes.size() + plan.maps.size() * abi::kTensorMapBytes));
  for (const plan::Buffer& buffer : plan.buffers)
    image.constants.push_back(append(image.bytes, buffer.data.data(), buffer.data.size()));
  return image;
}

size_t state_loop_offset(const plan::Plan& plan) {
  return sizeof(abi::RunState) +
         static_cast<size_t>(plan::counter_lines(plan)) * abi::kCounterStride * sizeof(abi::u32);
}

size_t state_maps_offset(const plan::Plan& plan) {
  const bool loop = !plan.loop.carried.empty();
  return aligned(state_loop_offset(plan) + (loop ? sizeof(abi::LoopState) : 0));
}

size_t state_size_bytes(const plan::Plan& plan) { return state_maps_offset(plan) + abi::maps_bytes(plan.maps.size()); }

}  // namespace ark::cuda
