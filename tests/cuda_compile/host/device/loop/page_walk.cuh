// Walks over the noted pages: a loader adds to them, a consumer counts along them.
#pragma once
#include "device/loop/pipeline.cuh"

namespace ark::device {

struct PageWalk {
  u32 page = static_cast<u32>(noted.size());

  explicit PageWalk(Loader&) {}
  u32 acquire() const {
    noted.emplace_back();
    return page * kPageBytes;
  }
  u32 barrier() const { return page; }
  void throttle() const {}
  void advance() { ++page; }
  void publish() const {}
  void finish() const {}
  static void rejoin(Loader&, u32) {}
};

struct PageReader {
  u32 next = 0, there = 0;  // pages

  explicit PageReader(const Consumer&) {}
  u32 slot_at(u32 i) const { return next + i; }
  /// Only pages that were waited for are read.
  u32 address(u32 slot) const {
    memory.fine = memory.fine && slot >= next && slot < there;
    return slot * kPageBytes;
  }
  void wait(int count) {
    there = next + count;
    memory.fine = memory.fine && there <= noted.size();
  }
  void release_next(int) const {}
  void advance(u32 count) { next += count; }
};

}  // namespace ark::device
