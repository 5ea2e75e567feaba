// kAttentionSimple: attention forward of what kAttentionForward does not take. tile_q says how: kMmaQueries by the
// tensor cores at warp level (mma.cuh), kTiledQueries or kTiledQueriesF64 on the CUDA cores (tiled.cuh).
//
// An item has kPages pages that no loader fills: while it runs, the ring is the consumers' memory.
#pragma once
#include "device/abi/variants.h"
#include "device/attention/mma.cuh"
#include "device/attention/tiled.cuh"

namespace ark::device {

/// Which forms a kernel has (device/abi/variants.h). Generated code may narrow it with Programs::kSimpleAttention.
template <class Programs>
consteval u64 simple_attention_forms() {
  if constexpr (requires { Programs::kSimpleAttention; })
    return Programs::kSimpleAttention;
  else
    return (1ull << abi::kSimpleFormEnd) - 1;
}

template <class Programs>
struct AttentionSimple {
  static ARK_DEVICE void load_immutable(Loader& loader, const Task&) { loader.skip(kPages); }
  static ARK_DEVICE void load_dependent(Loader& loader, const Task&) {
    load_tile_pages(loader, TilePages(loader.slot, kPages, 0), [](int, u32, u32) { return false; });
  }

  static ARK_DEVICE void consume(Consumer& consumer, const Task& task) {
#pragma unroll 1
    for (int i = 0; i < kPages; ++i) consumer.wait_page(consumer.page + i);
    consumer.wait_for_item(task);
    consumer.stamp(1);
    const int form = abi::simple_attention_form(task.record->params.attention);
#pragma unroll 1
    for (int i = 0; i < task.count; ++i) run<0>(form, consumer, task, task.first + i);
    fence_proxy_async_shared();  // the next pages in these slots may be copied by the async proxy
#pragma unroll 1
    for (int i = 0; i < kPages; ++i) consumer.release_page(consumer.page + i);
    consumer.advance(kPages);
  }

 private:
  static_assert(AttentionTiled<float, 1>::kColumns == abi::kTiledColumns);

  template <int kForm>
  static ARK_DEVICE void run(int form, Consumer& consumer, const Task& task, int tile) {
    if constexpr (kForm < abi::kSimpleFormEnd) {
      if constexpr ((simple_attention_forms<Programs>() >> kForm & 1) != 0)
        if (form == kForm) {
          if constexpr (kForm == abi::kTiledF64Form)
            AttentionTiled<double, 2>(consumer, task, tile).run();
          else if constexpr (kForm >= abi::kTiledForm)
            AttentionTiled<float, kForm == abi::kTiledForm ? 1 : 2>(consumer, task, tile).run();
          else
            AttentionMma<abi::mma_form_blocks(kForm), abi::is_half_form(kForm)>(consumer, task, tile).run();
          return;
        }
      run<kForm + 1>(form, consumer, task, tile);
    }
  }
};

}  // namespace ark::device
