// kMatmulFloat: fp32 products on the CUDA cores, from operands that tensor copies bring in. A tile is 64 or 128 rows by
// 64 or 128 columns, k in steps of 32. Each consumer warp has 32 x 64 sums, a lane 8 x 8 of them; where the tile has
// fewer than eight such parts, warps share one and each takes its part of every step's k (FloatShare). What a lane
// reads of shared memory, 16 times 16 bytes per 4 k, then is a sixteenth of its multiplications.
//
// Page sequence: per tile, per step of k: one page of A, one of B. A page holds one or two blocks of 64 rows x 32 k: 64
// lines of 32 k with 128-byte swizzle where k is contiguous, else 32 lines of 64 rows without.
#pragma once
#include "device/abi/variants.h"
#include "device/loop/loop.cuh"
#include "device/loop/outline.cuh"
#include "device/loop/page_walk.cuh"
#include "device/loop/tensor_map.cuh"
#include "device/matmul/float_epilogue.cuh"

namespace ark::device {

/// One program and the layouts (device/abi/variants.h) of the products that end in it.
template <class P, u32 kBits>
struct FloatProgram : OneProgram<P> {
  static constexpr u32 kLayouts = kBits;
};
template <class Programs>
consteval u32 float_layouts() {
  if constexpr (requires { Programs::kLayouts; })
    return Programs::kLayouts;
  else
    return (1u << abi::kNumLayouts) - 1;
}
/// The worker's handles, made anew from what lies in shared memory: nobody has to keep them in registers.
ARK_DEVICE Worker worker_anew(Shared* shared) { return Worker(*shared, shared->launch); }

/// A consumer warp's view of the pages of a step, for a loop that needs its registers for sums.
struct FloatPages {
  Shared* shared;
  u32 slot, parity;

  ARK_DEVICE explicit FloatPages(const Consumer& c)
      : shared(&c.worker.shared), slot(c.page % kPages), parity(c.page / kPages & 1) {}

  ARK_DEVICE u32 page(u32 i) const { return shared_address(shared->ring) + slot_at(i) * kPageBytes; }
  ARK_DEVICE void wait(i32 op) const {
    const u32 full = shared_address(shared->full);
    const bool a = mbarrier_try_wait(full + slot * 8, parity);
    if (mbarrier_try_wait(full + slot_at(1) * 8, parity_at(1)) && a) return;
#pragma unroll 1
    for (u32 i = 0; i < 2; ++i)
      worker_anew(shared).waiter.wait_barrier(&shared->full[slot_at(i)], parity_at(i),
                                              WaitName{op, -1, abi::kWaitPageFull});
  }
  /// This warp has read the pages of the step before.
  ARK_DEVICE void release_last() const {
    __syncwarp();
    if ((thread_index() & 31) != 0) return;
    const u32 empty = shared_address(shared->empty);
#pragma unroll
    for (u32 i = 1; i <= 2; ++i) mbarrier_arrive(empty + (slot >= i ? slot - i : slot + kPages - i) * 8);
  }
  ARK_DEVICE void advance() {
    parity = parity_at(2);
    slot = slot_at(2);
  }

 private:
  ARK_DEVICE u32 slot_at(u32 i) const { return slot + i < kPages ? slot + i : slot + i - kPages; }
  ARK_DEVICE u32 parity_at(u32 i) const { return slot + i < kPages ? parity : parity ^ 1; }
};

/// The main loop of a warp. A is read 4 values of a lane at a time, B of 4 k is kept: in both layouts 8 loads of 16
/// bytes are 8 rows (columns) by 4 k, and each of A's meets 32 values of B.
template <bool kTransA, bool kTransB>
struct FloatLoop {
  float (&sum)[8][8];
  float a[2][4], b[2][8][4];

  /// Where 4 k of the lane's rows and columns lie.
  struct Place {
    u32 a, b;
  };

  ARK_DEVICE explicit FloatLoop(float (&s)[8][8]) : sum(s) {}

  /// The warp's chunks of 4 k of every step.
  ARK_DEVICE void run(const Consumer& consumer, int steps, const FloatShare& share) {
    const u32 chunks = kFloatStep / 4 / share.parts;  // 2, 4 or 8
    FloatPages pages(consumer);
    pages.wait(consumer.op);
    Place lines = lines_of(pages, share);
    u32 chunk = share.part * chunks;
    Place next = place(lines, chunk);
    load_a<0>(a[0], next.a);
    unrolled<8>([&](auto t) __attribute__((always_inline)) { load_b<t.value>(b[0][t.value], next.b); });
#pragma unroll 1
    while (steps > 0) {
      const Place here = next, second = after(here);
      multiply<0>(here, second);
      chunk += 2;
      const bool last = (chunk & (chunks - 1)) == 0;
      if (last) {
        chunk -= chunks;
        lines.a -= pages.page(0);
        lines.b -= pages.page(1);
        pages.advance();
        lines.a += pages.page(0);
        lines.b += pages.page(1);
        if (--steps > 0) pages.wait(consumer.op);  // without a next step nobody uses what is read below
      }
      next = place(lines, chunk);
      multiply<1>(second, next);
      if (last) pages.release_last();
    }
  }

 private:
  /// The lane's first rows in the pages. Where k is contiguous, with what their chunks are swizzled by.
  static ARK_DEVICE Place lines_of(const FloatPages& pages, const FloatShare& share) {
    const u32 row = share.lane_row(), column = share.lane_column();
    return {pages.page(0) + share.row / 64 * kFloatBlockBytes + share.row % 64 * (kTransA ? 4 : 128) +
                row * (kTransA ? 16 : 128 + 16),
            pages.page(1) + share.column / 64 * kFloatBlockBytes + column * (kTransB ? 16 : 128 + 16)};
  }
  static ARK_DEVICE Place place(const Place& lines, u32 chunk) {
    return {kTransA ? lines.a + chunk * 1024 : lines.a ^ chunk * 16,
            kTransB ? lines.b + chunk * 1024 : lines.b ^ chunk * 16};
  }
  static ARK_DEVICE Place after(const Place& p) {  // p: an even chunk
    return {kTransA ? p.a + 1024 : p.a ^ 16, kTransB ? p.b + 1024 : p.b ^ 16};
  }
  template <int kNumber>
  static ARK_DEVICE void load_a(float (&v)[4], u32 place) {
    if constexpr (kTransA)
      shared_read_four(v, place + kNumber / 2 * 256 + kNumber % 2 * 64);
    else
      shared_read_four(v, (kNumber % 2 != 0 ? place ^ 64 : place) + kNumber * 512);
  }
  template <int kNumber>
  static ARK_DEVICE void load_b(float (&v)[4], u32 place) {
    if constexpr (kTransB)
      shared_read_four(v, place + kNumber / 2 * 256 + kNumber % 2 * 128);
    else
      shared_read_four(v, place + kNumber * 1024);
  }

  /// 4 k: A from `here` but for its first load, which is there; B of this half is there, the other half's and the
  /// next first load of A come from `next`.
  template <int kHalf>
  ARK_DEVICE void multiply(const Place& here, const Place& next) {
    unrolled<8>([&](auto number) __attribute__((always_inline)) {
      constexpr int t = number.value;
      if constexpr (t < 7)
        load_a<t + 1>(a[(t + 1) % 2], here.a);
      else
        load_a<0>(a[0], next.a);
      load_b<t>(b[kHalf ^ 1][t], next.b);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int k = kTransA ? t / 2 : e, i = kTransA ? t % 2 * 4 + e : t;
#pragma unroll
        for (int j = 0; j < 8; ++j)
          sum[i][j] += a[t % 2][e] * (kTransB ? b[kHalf][k * 2 + j / 4][j % 4] : b[kHalf][j][k]);
      }
    });
  }
};

template <class Programs>
struct MatmulFloat {
  static ARK_DEVICE void load_immutable(Loader& loader, const Task& task) {
    const abi::MatmulTileParams& p = task.record->params.matmul;
    load(loader, task, p.a_immutable != 0, p.b_immutable != 0, false);
  }
  static ARK_DEVICE void load_dependent(Loader& loader, const Task& task) {
    const abi::MatmulTileParams& p = task.record->params.matmul;
    load(loader, task, p.a_immutable == 0, p.b_immutable == 0, true);
  }

  static ARK_DEVICE void consume(Consumer& consumer, const Task& task) {
    for (int i = 0; i < task.count; ++i) {
      run_tile(consumer, task, task.first + i);
      if (i + 1 < task.count) consumer.arrive(task, 1);
    }
  }

 private:
  static constexpr u32 kLayouts = float_layouts<Programs>();

  static ARK_DEVICE void load(Loader& loader, const Task& task, bool load_a, bool load_b, bool dependent) {
    const abi::MatmulTileParams& p = task.record->params.matmul;
    if (!load_a && !load_b) {
      loader.skip(task.count * float_steps(p) * 2);
      return;
    }
    wait_tensor_maps(loader);
    prefetch_tensor_maps(loader, &p.map_a, 2);
    for (int i = 0; i < task.count && loader.ok; ++i) {
      if (dependent) loader.wait_for(task, task.first + i, 1);
      const Elected one = elect_lane();
      TileCoordinates at(*task.record, task.first + i);
      at.join_batches(task);
      if (one.chosen) load_tile(loader, p, at, load_a, load_b);
      PageWalk::rejoin(loader, one.lane);
    }
  }

  /// One lane: the pages of a tile that this loader fills.
  static ARK_DEVICE void load_tile(Loader& loader, const abi::MatmulTileParams& p, const TileCoordinates& at,
                                   bool load_a, bool load_b) {
    const void* map_a = tensor_map(loader.worker, p.map_a);
    const void* map_b = tensor_map(loader.worker, p.map_b);
    const u32 own = (load_a ? 1 : 0) | (load_b ? 2 : 0);
    PageWalk walk(loader);
#pragma unroll 1
    for (int k = 0; k < p.k; k += kFloatStep) {
      walk.acquire<2>(own);
      if (!loader.ok) break;
      if (load_a) load_page(walk, 0, map_a, p.a_k_major != 0, k, at.row, p.tile_m, at.batch);
      if (load_b) load_page(walk, 1, map_b, p.b_k_major != 0, k, at.column, p.tile_n, at.batch);
      walk.advance<2>(own);
      walk.publish();
    }
    walk.finish();
  }
  /// `count` rows (64 or 128) x 32 k of an operand.
  static ARK_DEVICE void load_page(const PageWalk& walk, u32 page, const void* map, bool k_major, int k, int row,
                                   int count, int batch) {
    const u32 barrier = walk.barrier(page), shared = walk.address(page);
    mbarrier_arrive_expect(barrier, count / 64 * kFloatBlockBytes);
    for (int i = 0; i < count; i += 64)
      tensor_load(shared + i / 64 * kFloatBlockBytes, map, barrier, k_major ? k : row + i, k_major ? row + i : k,
                  batch);
  }

  template <int kLayout>
  static ARK_DEVICE void multiply_any(Consumer& consumer, const abi::MatmulTileParams& p, float (&sum)[8][8]) {
    if constexpr (kLayout < abi::kNumLayouts) {
      if constexpr ((kLayouts >> kLayout & 1) != 0)
        if (abi::matmul_layout(p) == kLayout) {
          const FloatShare share(p, consumer.warp(), consumer.lane());
          FloatLoop<abi::has_rows_of_a(kLayout), abi::has_rows_of_b(kLayout)>(sum).run(consumer, float_steps(p), share);
          return;
        }
      multiply_any<kLayout + 1>(consumer, p, sum);
    }
  }

  static ARK_DEVICE void run_tile(Consumer& consumer, const Task& task, int tile) {
    const abi::MatmulTileParams& p = task.record->params.matmul;
    Shared* shared = &consumer.worker.shared;
    float sum[8][8];
#pragma unroll
    for (int i = 0; i < 64; ++i) sum[i / 8][i % 8] = 0.0f;
    multiply_any<0>(consumer, p, sum);
    consumer.advance(float_steps(p) * 2);
    consumer.mark_loaded();
    consumer.stamp(2);
    Worker worker = worker_anew(shared);
    Consumer again(worker, consumer);
    // Pages of the dependent loader carry its acquire; without any the epilogue's operands still have to be there.
    if (p.a_immutable && p.b_immutable) again.wait_for(task, tile, 1);
    Programs::epilogue_float(p.program, [&](auto program) __attribute__((always_inline)) {
      const FloatShare share(p, again.warp(), again.lane());
      FloatEpilogue<decltype(program), kLayouts>{again, task, share, TileCoordinates(*task.record, tile)}.run(sum);
    });
  }
};

}  // namespace ark::device
