// SHA-256, and the compiler with its cache: hits, misses, damage, folders that cannot be written, many threads at once.
// Arguments: folders in which to look for NVRTC. Without any NVRTC only the hash is tested.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "base/files.h"
#include "cuda/compiler.h"
#include "cuda/sha256.h"

using namespace ark;
using namespace ark::cuda;
namespace fs = std::filesystem;

namespace {

int failures = 0;

void expect(bool ok, const std::string& what) {
  if (ok) return;
  ++failures;
  std::fprintf(stderr, "FAILED: %s\n", what.c_str());
}

void test_sha256() {
  expect(sha256("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "digest of nothing");
  expect(sha256("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", "digest of abc");
  expect(sha256(std::string(1000000, 'a')) == "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0",
         "digest of a million letters");
  Sha256 parts;
  for (int i = 0; i < 1000; ++i) parts.update(std::string(i % 131, static_cast<char>('a' + i % 26)));
  std::string whole;
  for (int i = 0; i < 1000; ++i) whole += std::string(i % 131, static_cast<char>('a' + i % 26));
  expect(parts.finish() == sha256(whole), "digest in pieces");
  Sha256 ab_c, a_bc;
  ab_c.update_field("ab"), ab_c.update_field("c");
  a_bc.update_field("a"), a_bc.update_field("bc");
  expect(ab_c.finish() != a_bc.finish(), "borders of fields count");
}

std::string kernel(int constant) {
  return cat("extern \"C\" __global__ void k(int* x) { x[threadIdx.x] += ", constant, "; }\n");
}

fs::path only_file(const fs::path& folder) {
  fs::path found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    expect(found.empty() && entry.path().extension() == ".cubin", cat("unexpected file ", entry.path().string()));
    found = entry.path();
  }
  return found;
}

Compiler::Options options(const std::vector<std::string>& folders, const fs::path& cache) {
  return {.nvrtc_folders = folders, .cache_folder = cache.string()};
}

void test_cache(const std::vector<std::string>& folders, const fs::path& root) {
  fs::path cache = root / "cache";
  Compiler first(options(folders, cache));
  CompileOutcome made = first.compile(kernel(1), "sm_90a");
  expect(made.origin == CubinOrigin::kCompiled && !made.cubin->bytes.empty(), "the first time compiles");
  expect(made.cubin->registers > 0, "registers are read off the report");
  expect(made.cubin->spill_bytes == 0 && performance_warnings(*made.cubin).empty(), "no spills in a small kernel");
  Cubin spilling = *made.cubin;
  spilling.spill_bytes = kSpillsOfTasks;
  expect(performance_warnings(spilling).empty(), "words of a task may be spilled");
  spilling.spill_bytes = 8 * kSpillsOfTasks;
  expect(!performance_warnings(spilling).empty(), "main loops may not spill");
  expect(first.compile(kernel(1), "sm_90a").origin == CubinOrigin::kMemory, "the second time is in memory");
  fs::path file = only_file(cache);

  Compiler second(options(folders, cache));
  CompileOutcome again = second.compile(kernel(1), "sm_90a");
  expect(again.origin == CubinOrigin::kDisk && again.cubin->bytes == made.cubin->bytes,
         "another process finds it on disk");
  expect(again.cubin->registers == made.cubin->registers, "with its report");
  expect(second.compile("// of another graph\n" + kernel(1), "sm_90a").origin == CubinOrigin::kMemory,
         "comments do not count");
  expect(second.compile(kernel(2), "sm_90a").origin == CubinOrigin::kCompiled, "another source is another kernel");
  expect(second.disk_usage().first == 2, "two kernels on disk");
  expect(second.clear_disk() == 2 && first.disk_usage().first == 0, "cleared");
}

/// What `body` writes to standard error.
template <class Body>
std::string errors_of(const fs::path& file, const Body& body) {
  std::fflush(stderr);
  const int before = ::dup(2), to = ::open(file.c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0600);
  ::dup2(to, 2);
  body();
  std::fflush(stderr);
  ::dup2(before, 2);
  ::close(before), ::close(to);
  return *files::read(file.string());
}

/// Compiled a second time; where that is no better, it is what there is.
void test_slow_kernel(const std::vector<std::string>& folders, const fs::path& root) {
  const std::string source = R"(
extern "C" __global__ void __launch_bounds__(1024, 2) ark_loop(float* x) {
  float v[256];
#pragma unroll
  for (int i = 0; i < 256; ++i) v[i] = x[i * 1024 + threadIdx.x];
  for (int round = 0; round < 8; ++round) {
#pragma unroll
    for (int i = 0; i < 256; ++i) v[i] = v[i] * v[(i * 7 + 3) % 256] + x[round];
  }
#pragma unroll
  for (int i = 0; i < 256; ++i) x[i * 1024 + threadIdx.x] = v[i];
}
)";
  Compiler compiler({.nvrtc_folders = folders, .cache_folder = "off"});
  CompileOutcome made;
  const std::string said = errors_of(root / "said", [&] { made = compiler.compile(source, "sm_90a"); });
  expect(said.find("compiling a kernel again, in one piece") != std::string::npos, "a kernel that spills: " + said);
  expect(!performance_warnings(*made.cubin).empty(), "is named as such");
  expect(compiler.compile(source, "sm_90a").cubin == made.cubin, "and kept");
}

void test_damage(const std::vector<std::string>& folders, const fs::path& root) {
  fs::path cache = root / "damage";
  Compiler(options(folders, cache)).compile(kernel(3), "sm_90a");
  fs::path file = only_file(cache);
  for (const double part : {0.0, 0.003, 0.01, 0.5, 1.0}) {
    // of this file: the next one may be some bytes longer, as the compiler's report has its time in it
    const auto at = static_cast<size_t>(part * static_cast<double>(fs::file_size(file) - 1));
    std::fstream io(file, std::ios::in | std::ios::out | std::ios::binary);
    io.seekg(static_cast<std::streamoff>(at));
    char byte = static_cast<char>(io.get());
    io.seekp(static_cast<std::streamoff>(at));
    io.put(static_cast<char>(byte ^ 0x40));
    io.close();
    CompileOutcome outcome = Compiler(options(folders, cache)).compile(kernel(3), "sm_90a");
    expect(outcome.origin == CubinOrigin::kCompiled, cat("damage at byte ", at));
    CompileOutcome again = Compiler(options(folders, cache)).compile(kernel(3), "sm_90a");
    expect(again.origin == CubinOrigin::kDisk && again.cubin->bytes == outcome.cubin->bytes,
           cat("repaired after damage at byte ", at));
  }
  fs::resize_file(file, fs::file_size(file) / 2);
  expect(Compiler(options(folders, cache)).compile(kernel(3), "sm_90a").origin == CubinOrigin::kCompiled, "cut short");
  // The right file under another key's name must not be taken.
  Compiler other(options(folders, root / "other"));
  other.compile(kernel(4), "sm_90a");
  fs::copy_file(only_file(root / "other"), file, fs::copy_options::overwrite_existing);
  expect(Compiler(options(folders, cache)).compile(kernel(3), "sm_90a").origin == CubinOrigin::kCompiled,
         "a wrong kernel");
}

void test_unwritable(const std::vector<std::string>& folders, const fs::path& root) {
  std::ofstream(root / "file") << "in the way";
  Compiler compiler(options(folders, root / "file" / "cache"));
  expect(compiler.compile(kernel(5), "sm_90a").origin == CubinOrigin::kCompiled, "compiles without a cache folder");
  expect(compiler.compile(kernel(5), "sm_90a").origin == CubinOrigin::kMemory, "and keeps it in memory");
}

void test_threads(const std::vector<std::string>& folders, const fs::path& root) {
  Compiler compiler(options(folders, root / "threads"));
  std::atomic<int> compiled{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&, i] {
      if (compiler.compile(kernel(10 + i % 2), "sm_90a").origin == CubinOrigin::kCompiled) ++compiled;
    });
  for (std::thread& thread : threads) thread.join();
  expect(compiled == 2, cat("8 threads, 2 sources: expected 2 compilations, got ", compiled.load()));
}

void test_errors(const std::vector<std::string>& folders) {
  Compiler compiler({.nvrtc_folders = folders, .cache_folder = "off"});
  try {
    compiler.compile("not C++", "sm_90a");
    expect(false, "bad source compiles");
  } catch (const InternalError& error) {
    expect(std::string(error.what()).find("error") != std::string::npos, "the message holds the compiler's log");
  }
}

}  // namespace

int main(int argc, char** argv) {
  ::setenv("ARK_LOG", "info", 1);
  test_sha256();
  std::vector<std::string> folders(argv + 1, argv + argc);
  if (Nvrtc nvrtc(folders); nvrtc.problem().empty()) {
    fs::path root = fs::temp_directory_path() / cat("ark_test_compiler_", getpid());
    fs::create_directories(root);
    test_cache(folders, root);
    test_damage(folders, root);
    test_slow_kernel(folders, root);
    test_unwritable(folders, root);
    test_threads(folders, root);
    test_errors(folders);
    fs::remove_all(root);
  } else {
    std::printf("without NVRTC: %s\n", nvrtc.problem().c_str());
  }
  std::printf("test_compiler: %s, %d failures\n", failures ? "FAILED" : "ok", failures);
  return failures ? 1 : 0;
}
