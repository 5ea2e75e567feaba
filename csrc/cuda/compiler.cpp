#include "cuda/compiler.h"

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstring>
#include <optional>

#include "base/check.h"
#include "base/embedded.h"
#include "base/env.h"
#include "base/files.h"
#include "base/log.h"
#include "cuda/sha256.h"

namespace ark::cuda {
namespace {

constexpr std::string_view kMagic = "ark cubin 1\n";
constexpr size_t kDigestSize = 64;

std::vector<std::string> options_for(const std::string& arch, const Nvrtc& compiler) {
  // Lambdas without annotation are device code; NVRTC lacks the compiler's spelling of memcpy that nvcc takes from its
  // host.
  std::vector<std::string> options{"--gpu-architecture=" + arch, "--std=c++20", "--ptxas-options=-v",
                                   "--device-as-default-execution-space", "-D__builtin_memcpy=memcpy"};
  // From 12.9 on NVRTC keeps results itself where there is a driver: a second copy of ours, and without the report.
  const bool keeps = compiler.major() > 12 || (compiler.major() == 12 && compiler.minor() >= 9);
  if (keeps) options.push_back("--no-cache");
  return options;
}

/// By as many threads as there are cores: quicker, but now and then the machine code compiler takes a function of the
/// kernel for a foreign one (C7506, C7509), gives up setmaxnreg and spills.
constexpr const char* kInParallel = "--split-compile=0";

std::string default_cache_folder() {
  if (std::string folder = env::text("ARK_CACHE_DIR", ""); !folder.empty()) return folder == "off" ? "" : folder;
  if (std::string folder = env::text("XDG_CACHE_HOME", ""); !folder.empty()) return folder + "/ark";
  std::string home = env::text("HOME", "");
  return home.empty() ? "" : home + "/.cache/ark";
}

/// Number before `text` in the log's report, e.g. "48 bytes spill stores"; the sum over all functions.
int number_before(std::string_view log, std::string_view text) {
  int sum = 0;
  for (size_t at = log.find(text); at != log.npos; at = log.find(text, at + 1)) {
    size_t end = log.find_last_of("0123456789", at), begin = end;
    if (end == log.npos) continue;
    while (begin > 0 && std::isdigit(static_cast<unsigned char>(log[begin - 1]))) --begin;
    sum += std::stoi(std::string(log.substr(begin, end - begin + 1)));
  }
  return sum;
}

void read_report(Cubin& cubin) {
  cubin.registers = number_before(cubin.log, " registers");
  cubin.spill_bytes = number_before(cubin.log, " bytes spill stores") + number_before(cubin.log, " bytes spill loads");
  cubin.stack_bytes = number_before(cubin.log, " bytes stack frame");
}

/// The file: magic, digest of what follows, size of the log, log, cubin.
std::string encode(const Cubin& cubin) {
  uint64_t log_size = cubin.log.size();
  std::string payload(reinterpret_cast<const char*>(&log_size), sizeof log_size);
  payload += cubin.log;
  payload += cubin.bytes;
  return std::string(kMagic) + sha256(cubin.key + payload) + payload;
}

/// Null when the bytes are not an undamaged file of this key.
std::shared_ptr<const Cubin> decode(std::string_view file, const std::string& key) {
  uint64_t log_size = 0;
  if (file.size() < kMagic.size() + kDigestSize + sizeof log_size || !file.starts_with(kMagic)) return nullptr;
  std::string_view digest = file.substr(kMagic.size(), kDigestSize), payload = file.substr(kMagic.size() + kDigestSize);
  if (sha256(key + std::string(payload)) != digest) return nullptr;
  std::memcpy(&log_size, payload.data(), sizeof log_size);
  payload.remove_prefix(sizeof log_size);
  if (log_size > payload.size()) return nullptr;
  auto cubin = std::make_shared<Cubin>();
  cubin->key = key;
  cubin->log = payload.substr(0, log_size);
  cubin->bytes = payload.substr(log_size);
  read_report(*cubin);
  return cubin;
}

/// Comments name the nodes of one graph; equal code of another graph is the same kernel. (Generated code has no string
/// with //.)
std::string without_comments(const std::string& source) {
  std::string result;
  for (size_t begin = 0; begin < source.size();) {
    size_t end = std::min(source.find('\n', begin), source.size());
    std::string_view line(source.data() + begin, end - begin);
    line = line.substr(0, line.find("//"));
    while (!line.empty() && line.back() == ' ') line.remove_suffix(1);
    if (!line.empty()) result.append(line) += '\n';
    begin = end + 1;
  }
  return result;
}

std::vector<std::string> warning_codes(const Cubin& cubin) {
  std::vector<std::string> found;
  for (const char* code : {"C7504", "C7506", "C7508", "C7509", "C7510", "C7511", "C7512", "C7515", "C7520"})
    if (cubin.log.find(code) != std::string::npos) found.emplace_back(code);
  return found;
}

std::string file_of(const std::string& folder, const std::string& key) { return folder + "/" + key + ".cubin"; }

}  // namespace

Compiler::Compiler(const Options& options)
    : nvrtc_folders_(options.nvrtc_folders),
      folder_(options.cache_folder.empty()    ? default_cache_folder()
              : options.cache_folder == "off" ? ""
                                              : options.cache_folder) {}

const Nvrtc& Compiler::nvrtc() {
  std::lock_guard lock(mutex_);
  if (!nvrtc_) nvrtc_ = std::make_unique<Nvrtc>(nvrtc_folders_);
  return *nvrtc_;
}

std::string Compiler::key_of(const std::string& source, const std::string& arch) {
  const Nvrtc& compiler = nvrtc();
  check<UnsupportedError>(compiler.problem().empty(), compiler.problem());
  Sha256 hash;
  hash.update_field(kMagic);
  hash.update_field(cat(compiler.major(), '.', compiler.minor(), ' ', files::name_of(compiler.path())));
  for (const std::string& option : options_for(arch, compiler)) hash.update_field(option);
  hash.update_field(kInParallel);
  for (const EmbeddedFile& file : embedded_files()) {
    hash.update_field(file.name);
    hash.update_field(file.text);
  }
  hash.update_field(without_comments(source));
  return hash.finish();
}

std::shared_ptr<const Cubin> Compiler::load(const std::string& key) const {
  if (folder_.empty()) return nullptr;
  std::optional<std::string> bytes = files::read(file_of(folder_, key));
  if (!bytes) return nullptr;
  auto cubin = decode(*bytes, key);
  if (!cubin) log::warn("damaged kernel in the cache, compiling again: ", file_of(folder_, key));
  return cubin;
}

void Compiler::save(const Cubin& cubin) {
  if (folder_.empty()) return;
  std::string problem = "the folder cannot be made";
  if (files::make_folders(folder_)) problem = files::replace(file_of(folder_, cubin.key), encode(cubin));
  if (problem.empty()) return;
  std::lock_guard lock(mutex_);
  if (!warned_) log::warn("kernels are kept in memory only: cannot write to ", folder_, " (", problem, ")");
  warned_ = true;
}

CompileOutcome Compiler::compile(const std::string& source, const std::string& arch) {
  const std::string key = key_of(source, arch);
  std::shared_ptr<Entry> entry;
  {
    std::lock_guard lock(mutex_);
    auto& slot = entries_[key];
    if (!slot) slot = std::make_shared<Entry>();
    entry = slot;
  }
  std::lock_guard lock(entry->mutex);  // a second thread with the same source waits for the first
  if (entry->cubin) return {entry->cubin, CubinOrigin::kMemory, 0};
  auto begin = std::chrono::steady_clock::now();
  if ((entry->cubin = load(key))) {
    std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    return {entry->cubin, CubinOrigin::kDisk, seconds.count()};
  }
  double seconds = 0;
  std::shared_ptr<const Cubin> cubin = compile_best(source, arch, key, seconds);
  if (std::string problems = performance_warnings(*cubin); !problems.empty())
    log::warn("the compiled kernel will be slow: ", problems);
  save(*cubin);
  entry->cubin = cubin;
  return {cubin, CubinOrigin::kCompiled, seconds};
}

std::shared_ptr<const Cubin> Compiler::compile_best(const std::string& source, const std::string& arch,
                                                    const std::string& key, double& seconds) {
  const auto compile_with = [&](bool in_parallel) {
    std::vector<std::string> options = options_for(arch, nvrtc());
    if (in_parallel) options.emplace_back(kInParallel);
    CompileResult compiled = nvrtc().compile(source, embedded_files(), options);
    seconds += compiled.seconds;
    auto cubin = std::make_shared<Cubin>();
    cubin->key = key;
    cubin->bytes = std::move(compiled.cubin);
    cubin->log = std::move(compiled.log);
    read_report(*cubin);
    return cubin;
  };
  std::shared_ptr<Cubin> first = compile_with(true);
  const std::string problems = performance_warnings(*first);
  if (problems.empty()) return first;
  log::info("compiling a kernel again, in one piece: ", problems);
  std::shared_ptr<Cubin> second = compile_with(false);
  const auto rank = [](const Cubin& c) { return std::pair(warning_codes(c).size(), c.spill_bytes); };
  return rank(*second) < rank(*first) ? second : first;
}

std::vector<std::string> Compiler::files_on_disk() const {
  std::vector<std::string> paths;
  if (folder_.empty()) return paths;
  for (const std::string& name : files::list(folder_))
    if (name.ends_with(".cubin")) paths.push_back(folder_ + "/" + name);
  return paths;
}

std::pair<int, int64_t> Compiler::disk_usage() const {
  std::pair<int, int64_t> usage{0, 0};
  for (const std::string& path : files_on_disk()) {
    ++usage.first;
    usage.second += std::max<int64_t>(files::size_bytes(path), 0);
  }
  return usage;
}

int Compiler::clear_disk() {
  int count = 0;
  for (const std::string& path : files_on_disk()) count += files::remove(path);
  return count;
}

std::string performance_warnings(const Cubin& cubin) {
  std::string found;
  if (cubin.spill_bytes > kSpillsOfTasks) found = cat(cubin.spill_bytes, " bytes of register spills");
  for (const std::string& code : warning_codes(cubin)) found += cat(found.empty() ? "" : ", ", "warning ", code);
  return found;
}

}  // namespace ark::cuda
