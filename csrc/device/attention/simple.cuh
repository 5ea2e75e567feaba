// kAttentionSimple: attention forward of what kAttentionForward does not take. tile_q says how: kMmaQueries by the
// tensor cores at warp level (mma.cuh), kTiledQueries or kTiledQueriesF64 on the CUDA cores
// (tiled.cuh).
//
// An item has kPages pages that no loader fills: while it runs, the ring is the consumers' memory.
#pragma once
#include "device/attention/mma.cuh"
#include "device/attention/tiled.cuh"

namespace ark::device {

/// Which forms a kernel has (codegen/kernel.cpp): bit (f16 << 4 | (value_dim - 1) / 16) of those on the tensor cores,
/// kTiledForms + 0: fp32 of up to 64 columns at once, + 1: of up to 128, + 2: fp64. Generated code may narrow it with
/// Programs::kSimpleAttention.
inline constexpr int kTiledForms = 32, kSimpleForms = 35;
template <class Programs>
consteval u64 simple_attention_forms() {
  if constexpr (requires { Programs::kSimpleAttention; })
    return Programs::kSimpleAttention;
  else
    return (1ull << kSimpleForms) - 1;
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
    const int form = form_of(task.record->params.attention);
#pragma unroll 1
    for (int i = 0; i < task.count; ++i) run<0>(form, consumer, task, task.first + i);
    fence_proxy_async_shared();  // the next pages in these slots may be copied by the async proxy
#pragma unroll 1
    for (int i = 0; i < kPages; ++i) consumer.release_page(consumer.page + i);
    consumer.advance(kPages);
  }

 private:
  static ARK_DEVICE int form_of(const abi::AttentionParams& p) {
    if (p.tile_q == abi::kMmaQueries) return (p.dtype == kTypeF16) << 4 | (p.value_dim - 1) / 16;
    return kTiledForms + (p.dtype == kTypeF64 ? 2 : p.value_dim > AttentionTiled<float, 1>::kColumns);
  }

  template <int kForm>
  static ARK_DEVICE void run(int form, Consumer& consumer, const Task& task, int tile) {
    if constexpr (kForm < kSimpleForms) {
      if constexpr ((simple_attention_forms<Programs>() >> kForm & 1) != 0)
        if (form == kForm) {
          if constexpr (kForm == kTiledForms + 2)
            AttentionTiled<double, 2>(consumer, task, tile).run();
          else if constexpr (kForm >= kTiledForms)
            AttentionTiled<float, kForm - kTiledForms + 1>(consumer, task, tile).run();
          else
            AttentionMma<kForm % 16 + 1, (kForm >= 16)>(consumer, task, tile).run();
          return;
        }
      run<kForm + 1>(form, consumer, task, tile);
    }
  }
};

}  // namespace ark::device
