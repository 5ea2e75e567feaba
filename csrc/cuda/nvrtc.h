// CUDA C++ -> cubin with NVRTC, opened at run time.
#pragma once
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "base/embedded.h"

namespace ark::cuda {

struct CompileResult {
  std::string cubin;
  std::string log;  // ptxas's resource report and warnings
  double seconds = 0;
};

/// An opened libnvrtc. Immutable after construction; `compile` may be called from several threads.
class Nvrtc {
 public:
  /// Looks into `folders`, then CUDA_HOME, CUDA_PATH, /usr/local/cuda and the loader's own path. Never throws; see
  /// problem().
  explicit Nvrtc(const std::vector<std::string>& folders);

  /// Empty when usable, else what was tried.
  const std::string& problem() const { return problem_; }
  const std::string& path() const { return path_; }
  int major() const { return major_; }
  int minor() const { return minor_; }

  /// Throws UnsupportedError when NVRTC is missing, InternalError with the compiler's log when the source does not
  /// compile.
  CompileResult compile(const std::string& source, std::span<const EmbeddedFile> headers,
                        const std::vector<std::string>& options) const;

 private:
  bool open(const std::string& folder, std::string& tried);
  void check_result(int result, const char* what) const;

  using Program = struct NvrtcProgram*;
  struct Api {
    const char* (*get_error_string)(int);
    int (*version)(int*, int*);
    int (*create_program)(Program*, const char* source, const char* name, int num_headers, const char* const* headers,
                          const char* const* names);
    int (*compile_program)(Program, int num_options, const char* const* options);
    int (*get_cubin_size)(Program, size_t*);
    int (*get_cubin)(Program, char*);
    int (*get_log_size)(Program, size_t*);
    int (*get_log)(Program, char*);
    int (*destroy_program)(Program*);
  } api_{};
  std::string path_, problem_;
  int major_ = 0, minor_ = 0;
};

}  // namespace ark::cuda
