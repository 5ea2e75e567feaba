#include "cuda/toolchain.h"

#include "base/check.h"
#include "device/abi/launch.h"

namespace ark::cuda {

LoadedModule::LoadedModule(const GpuInfo& gpu, const Cubin& cubin, const std::string& entry, int dynamic_shared_bytes)
    : context_(gpu.context) {
  const Driver& api = driver();
  check(dynamic_shared_bytes <= gpu.max_shared_bytes, "the kernel wants ", dynamic_shared_bytes,
        " bytes of shared memory, ", gpu.name, " has ", gpu.max_shared_bytes);
  ContextScope scope(context_);
  RelaxedCaptureScope relaxed;
  check_result(api.module_load_data(&module_, cubin.bytes.data()), "cuModuleLoadData");
  check_result(api.module_get_function(&function_, module_, entry.c_str()), "cuModuleGetFunction");
  check_result(
      api.function_set_attribute(function_, FunctionAttribute::kMaxDynamicSharedSizeBytes, dynamic_shared_bytes),
      "cuFuncSetAttribute of the shared memory");
  int blocks = 0;
  check_result(api.occupancy(&blocks, function_, abi::kThreads, static_cast<size_t>(dynamic_shared_bytes)),
               "cuOccupancyMaxActiveBlocksPerMultiprocessor");
  check(blocks >= 1, "not one CTA of the kernel fits on a multiprocessor (", dynamic_shared_bytes,
        " bytes of shared memory, ", cubin.registers, " registers)");
}

LoadedModule::~LoadedModule() {
  Context current = nullptr;
  const Driver& api = driver();
  if (!module_ || api.context_push(context_) != kSuccess) return;
  api.module_unload(module_);
  api.context_pop(&current);
}

std::shared_ptr<LoadedModule> ModuleCache::get(const GpuInfo& gpu, const Cubin& cubin, const std::string& entry,
                                               int dynamic_shared_bytes) {
  std::lock_guard lock(mutex_);
  std::erase_if(modules_, [](const auto& item) { return item.second.expired(); });
  auto& slot = modules_[{cubin.key + cat('/', dynamic_shared_bytes), gpu.device}];
  if (auto module = slot.lock()) return module;
  auto module = std::make_shared<LoadedModule>(gpu, cubin, entry, dynamic_shared_bytes);
  slot = module;
  return module;
}

}  // namespace ark::cuda
