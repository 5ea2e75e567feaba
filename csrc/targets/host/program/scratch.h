// A thread's working memory: named buffers that grow and are kept from tile to tile. Contents do not survive a get().
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>

namespace ark::targets::host {

class Scratch {
 public:
  enum Buffer {
    kElementFile,
    kUniformFile,
    kOffsets,
    kPredicate,
    kAccumulators,
    kPanelA,
    kPanelB,
    kConvert,
    kTile,
    kSums,
    kActivation,
    kQuery,
    kScores,
    kGradient,
    kOutput,
    kKeys,
    kValues,
    kMask,
    kCount
  };

  void* get(Buffer buffer, size_t size_bytes) {
    Memory& memory = memory_[buffer];
    if (memory.size_bytes < size_bytes) {
      memory.bytes.reset(static_cast<std::byte*>(::operator new(size_bytes, std::align_val_t{kAlignment})));
      memory.size_bytes = size_bytes;
    }
    return memory.bytes.get();
  }
  template <class T>
  T* get(Buffer buffer, int64_t count) {
    return static_cast<T*>(get(buffer, static_cast<size_t>(count) * sizeof(T)));
  }

  /// Whose activation kActivation holds, and of which launch (kMatmulRows).
  const void* activation_owner = nullptr;
  uint64_t activation_launch = 0;

 private:
  static constexpr size_t kAlignment = 64;
  struct Free {
    void operator()(std::byte* p) const { ::operator delete(p, std::align_val_t{kAlignment}); }
  };
  struct Memory {
    std::unique_ptr<std::byte, Free> bytes;
    size_t size_bytes = 0;
  };
  std::array<Memory, kCount> memory_;
};

}  // namespace ark::targets::host
