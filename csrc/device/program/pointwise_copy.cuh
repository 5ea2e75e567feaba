// Pointwise items that do nothing but copy, in plans of several ranks: through pages that the dependent loader fills, by
// bulk stores of one thread. A worker that sends to peers keeps a ring of pages in flight: 45 GB/s, where vectors of 16
// bytes by all threads wait for their loads and move 15 to 25.
#pragma once
#include "device/program/support.cuh"

namespace ark::device {

/// The program stores what it loads, over one dimension; kFrom (generated): per operand that is stored the number of
/// the one that is loaded, -1 of those that are loaded.
template <class P>
consteval bool copies_in_bulk() {
  if constexpr (kRanks > 1 && requires { P::kFrom[0]; })
    return true;
  else
    return false;
}

/// An item as all roles see it.
template <class P>
struct BulkCopy {
  static constexpr int kAhead = 6;  // pages whose bytes are on their way out

  const Task& task;
  u32 bytes = 0;  // of every operand; 0: not in bulk

  ARK_DEVICE explicit BulkCopy(const Task& t) : task(t) {
    const i64 size = element_bytes(operand(0).dtype), first = begin(),
              end = min(t.record->size[0], first + t.count * t.record->params.program.tile);
    bool fits = (first * size) % 16 == 0 && (end - first) * size % 16 == 0;
#pragma unroll
    for (int i = 0; i < P::kNumOperands; ++i)
      fits = fits && operand(i).slot != abi::kFlagSlot && operand(i).stride[0] == 1 && operand(i).vector * size >= 16;
    if (fits) bytes = static_cast<u32>((end - first) * size);
  }
  ARK_DEVICE const abi::Operand& operand(int i) const {
    return task.operand(task.record->params.program.first_operand + i);
  }
  ARK_DEVICE i64 begin() const { return task.first * task.record->params.program.tile; }
  /// Worked out where it is needed: loaders have few registers.
  ARK_DEVICE unsigned char* address(int i, int page) const {
    const abi::Operand& o = operand(i);
    return reinterpret_cast<unsigned char*>(o.offset) + begin() * element_bytes(o.dtype) +
           static_cast<i64>(page) * kPageBytes;
  }
  ARK_DEVICE int pages_of_operand() const { return static_cast<int>((bytes + kPageBytes - 1) / kPageBytes); }
  ARK_DEVICE int pages() const { return __popc(loads()) * pages_of_operand(); }
  ARK_DEVICE u32 page_bytes(int page) const {
    return min(u32{kPageBytes}, bytes - static_cast<u32>(page) * kPageBytes);
  }

  ARK_DEVICE void load(Loader& loader) const {
    if (bytes == 0) return;
    loader.wait_for(task, task.first, task.count);
#pragma unroll 1
    for (u32 left = loads(); left != 0; left &= left - 1)
#pragma unroll 1
      for (int page = 0; page < pages_of_operand() && loader.ok; ++page) {
        const u32 shared = loader.acquire();
        if (loader.ok && loader.lane() == 0) {
          mbarrier_arrive_expect(loader.barrier(), page_bytes(page));
          bulk_load(shared, address(__ffs(left) - 1, page), page_bytes(page), loader.barrier());
        }
        loader.advance();
      }
  }

  /// One warp stores and releases every page for all.
  ARK_DEVICE void store(Consumer& consumer) const {
    const int total = pages();
    if (consumer.warp() == 0) {
      int done = 0, stored = 0;
#pragma unroll 1
      for (u32 left = loads(); left != 0; left &= left - 1)
#pragma unroll 1
        for (int page = 0; page < pages_of_operand() && !consumer.worker.waiter.failed(); ++page, ++stored) {
          const u32 data = shared_address(consumer.wait_page(consumer.page + stored));
          if (consumer.lane() == 0) {
            store_page(__ffs(left) - 1, data, page);
            bulk_commit();
            bulk_wait_read<kAhead>();
          }
          if (stored >= kAhead) consumer.release_page(consumer.page + done++, kConsumerWarps);
        }
      if (consumer.lane() == 0) bulk_wait<0>();
      while (done < total) consumer.release_page(consumer.page + done++, kConsumerWarps);
    }
    consumer.mark_loaded();
    consumer.advance(total);
  }

 private:
  /// Bits of the operands that are loaded.
  static consteval u32 loads() {
    u32 bits = 0;
    for (int i = 0; i < P::kNumOperands; ++i) bits |= P::kFrom[i] < 0 ? 1u << i : 0;
    return bits;
  }
  ARK_DEVICE void store_page(int from, u32 data, int page) const {
    unrolled<P::kNumOperands>([&](auto i) __attribute__((always_inline)) {
      constexpr int kSource = P::kFrom[i.value];
      if (kSource >= 0 && kSource == from) bulk_store(address(i.value, page), data, page_bytes(page));
    });
  }
};

}  // namespace ark::device
