// What the executables of a process share: the compiler with its cubins, and the modules that are loaded.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "cuda/compiler.h"
#include "cuda/device.h"

namespace ark::cuda {

/// A cubin loaded into a context, with its entry function ready for launch.
class LoadedModule {
 public:
  LoadedModule(const GpuInfo& gpu, const Cubin& cubin, const std::string& entry, int dynamic_shared_bytes);
  ~LoadedModule();
  LoadedModule(const LoadedModule&) = delete;
  LoadedModule& operator=(const LoadedModule&) = delete;
  Function function() const { return function_; }

 private:
  Context context_ = nullptr;
  Module module_ = nullptr;
  Function function_ = nullptr;
};

class ModuleCache {
 public:
  /// Loads on the first call for this cubin and device; a module is unloaded with its last user.
  std::shared_ptr<LoadedModule> get(const GpuInfo& gpu, const Cubin& cubin, const std::string& entry,
                                    int dynamic_shared_bytes);

 private:
  std::mutex mutex_;
  std::map<std::pair<std::string, Device>, std::weak_ptr<LoadedModule>> modules_;
};

struct Toolchain {
  explicit Toolchain(const Compiler::Options& options) : compiler(options) {}
  Compiler compiler;
  ModuleCache modules;
};

}  // namespace ark::cuda
