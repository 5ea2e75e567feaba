#include "cuda/nvrtc.h"

#include <dlfcn.h>

#include <chrono>

#include "base/check.h"
#include "base/env.h"
#include "base/files.h"

namespace ark::cuda {
namespace {

/// Full path of the newest file of `folder` whose name starts with `prefix`; empty if there is none.
std::string newest_library(const std::string& folder, const std::string& prefix) {
  std::string best;
  for (const std::string& name : files::list(folder))  // sorted
    if (name.starts_with(prefix) && name.find(".alt.") == std::string::npos) best = folder + "/" + name;
  return best;
}

std::vector<std::string> toolkit_folders() {
  std::vector<std::string> result;
  for (const char* variable : {"CUDA_HOME", "CUDA_PATH"})
    if (std::string home = env::text(variable, ""); !home.empty()) result.push_back(home + "/lib64");
  result.push_back("/usr/local/cuda/lib64");
  return result;
}

}  // namespace

bool Nvrtc::open(const std::string& folder, std::string& tried) {
  tried += cat(tried.empty() ? "" : ", ", folder.empty() ? "the loader's path" : folder);
  std::string file = folder.empty() ? "libnvrtc.so.13" : newest_library(folder, "libnvrtc.so.");
  if (file.empty()) return false;
  // NVRTC opens its builtins library by bare name, which fails when it lies in a Python package: load that one first.
  if (std::string builtins = newest_library(folder, "libnvrtc-builtins.so."); !builtins.empty())
    dlopen(builtins.c_str(), RTLD_NOW | RTLD_GLOBAL);
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    tried += cat(" (", dlerror(), ")");
    return false;
  }
  bool complete = true;
  auto get = [&](const char* symbol, auto& entry) {
    entry = reinterpret_cast<std::remove_reference_t<decltype(entry)>>(dlsym(library, symbol));
    complete = complete && entry;
  };
  get("nvrtcGetErrorString", api_.get_error_string);
  get("nvrtcVersion", api_.version);
  get("nvrtcCreateProgram", api_.create_program);
  get("nvrtcCompileProgram", api_.compile_program);
  get("nvrtcGetCUBINSize", api_.get_cubin_size);
  get("nvrtcGetCUBIN", api_.get_cubin);
  get("nvrtcGetProgramLogSize", api_.get_log_size);
  get("nvrtcGetProgramLog", api_.get_log);
  get("nvrtcDestroyProgram", api_.destroy_program);
  if (!complete || api_.version(&major_, &minor_) != 0 || major_ < 12) {
    tried += cat(" (version ", major_, ".", minor_, " is too old: 12.3 is needed)");
    return false;
  }
  path_ = file;
  return true;
}

Nvrtc::Nvrtc(const std::vector<std::string>& folders) {
  std::string tried;
  if (const std::string only = env::text("ARK_NVRTC", ""); !only.empty()) {
    if (open(only, tried)) return;
    problem_ = cat("no usable NVRTC in ARK_NVRTC=", only);
    return;
  }
  for (const std::string& folder : folders)
    if (open(folder, tried)) return;
  for (const std::string& folder : toolkit_folders())
    if (open(folder, tried)) return;
  if (open("", tried)) return;
  problem_ = cat("no usable NVRTC (pip install nvidia-cuda-nvrtc, or set CUDA_HOME); looked in ", tried);
}

void Nvrtc::check_result(int result, const char* what) const {
  check(result == 0, what, " failed with NVRTC error ", result, ": ", result ? api_.get_error_string(result) : "");
}

CompileResult Nvrtc::compile(const std::string& source, std::span<const EmbeddedFile> headers,
                             const std::vector<std::string>& options) const {
  check<UnsupportedError>(problem_.empty(), problem_);
  auto begin = std::chrono::steady_clock::now();
  std::vector<std::string> texts, names;
  for (const EmbeddedFile& file : headers) {
    texts.emplace_back(file.text);
    names.emplace_back(file.name);
  }
  std::vector<const char*> text_pointers, name_pointers, option_pointers;
  for (const std::string& text : texts) text_pointers.push_back(text.c_str());
  for (const std::string& name : names) name_pointers.push_back(name.c_str());
  for (const std::string& option : options) option_pointers.push_back(option.c_str());

  Program program = nullptr;
  check_result(api_.create_program(&program, source.c_str(), "ark_loop.cu", static_cast<int>(texts.size()),
                                   text_pointers.data(), name_pointers.data()),
               "nvrtcCreateProgram");
  struct Destroyer {
    const Api& api;
    Program& program;
    ~Destroyer() { api.destroy_program(&program); }
  } destroyer{api_, program};

  int status = api_.compile_program(program, static_cast<int>(option_pointers.size()), option_pointers.data());
  CompileResult result;
  size_t size = 0;
  check_result(api_.get_log_size(program, &size), "nvrtcGetProgramLogSize");
  result.log.resize(size);
  if (size) check_result(api_.get_log(program, result.log.data()), "nvrtcGetProgramLog");
  while (!result.log.empty() && result.log.back() == '\0') result.log.pop_back();
  check(status == 0, "the generated kernel does not compile (", status ? api_.get_error_string(status) : "", "):\n",
        result.log);
  check_result(api_.get_cubin_size(program, &size), "nvrtcGetCUBINSize");
  result.cubin.resize(size);
  check_result(api_.get_cubin(program, result.cubin.data()), "nvrtcGetCUBIN");
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return result;
}

}  // namespace ark::cuda
