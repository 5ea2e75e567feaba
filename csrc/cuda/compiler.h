// Source -> cubin, remembered in this process and on disk. The key covers everything that the cubin depends on: the
// source, every embedded header, the compiler's version, the architecture and the options.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cuda/nvrtc.h"

namespace ark::cuda {

struct Cubin {
  std::string bytes;
  std::string key;  // 64 hexadecimal digits
  std::string log;  // of the compilation that made it
  int registers = 0;
  int spill_bytes = 0;  // stores and loads
  int stack_bytes = 0;
};

/// Where a cubin came from.
enum class CubinOrigin { kCompiled, kDisk, kMemory };

struct CompileOutcome {
  std::shared_ptr<const Cubin> cubin;
  CubinOrigin origin = CubinOrigin::kCompiled;
  double seconds = 0;  // NVRTC's time, or that of reading the file
};

class Compiler {
 public:
  struct Options {
    std::vector<std::string> nvrtc_folders;
    std::string
        cache_folder;  // empty: ARK_CACHE_DIR, else $XDG_CACHE_HOME/ark, else ~/.cache/ark; "off": no disk cache
  };
  explicit Compiler(const Options& options);

  /// Thread-safe; equal sources are compiled once. A damaged file is replaced; a folder that cannot be written costs
  /// one log line.
  CompileOutcome compile(const std::string& source, const std::string& arch);

  const Nvrtc& nvrtc();
  /// Empty when there is no disk cache.
  const std::string& cache_folder() const { return folder_; }
  /// Number of cubins on disk and their bytes.
  std::pair<int, int64_t> disk_usage() const;
  /// Removes the cubins from disk; returns how many.
  int clear_disk();

 private:
  struct Entry {
    std::mutex mutex;
    std::shared_ptr<const Cubin> cubin;
  };
  std::string key_of(const std::string& source, const std::string& arch);
  /// In parallel and, where that gives a slow kernel, in one piece too: the better one. Adds NVRTC's time to `seconds`.
  std::shared_ptr<const Cubin> compile_best(const std::string& source, const std::string& arch, const std::string& key,
                                            double& seconds);
  std::shared_ptr<const Cubin> load(const std::string& key) const;
  void save(const Cubin& cubin);
  std::vector<std::string> files_on_disk() const;

  std::vector<std::string> nvrtc_folders_;
  std::string folder_;
  std::mutex mutex_;  // of the members below
  std::unique_ptr<Nvrtc> nvrtc_;
  std::map<std::string, std::shared_ptr<Entry>> entries_;
  bool warned_ = false;
};

/// What a loop kernel may spill, stores and loads in bytes: some words that are kept over a task lie on the stack where
/// main loops take all registers. Llama's prefill spills 460 bytes, 496 when traced, none in a loop that multiplies.
inline constexpr int kSpillsOfTasks = 640;

/// What ptxas says in `log` that must not be: more spills than that, wgmma or setmaxnreg ignored or serialised (C7504,
/// C7506, C7508, C7509, C7510, C7511, C7512, C7515, C7520). Empty if all is well.
std::string performance_warnings(const Cubin& cubin);

}  // namespace ark::cuda
