// kRowSelect: what the first digit leaves of each part of a row, as lists, and their histogram. The order of a list may
// differ from run to run: what is made of it are sums of integers.
#pragma once
#include "device/program/row_select_histogram.cuh"
#include "device/program/support.cuh"

namespace ark::device {

/// The number of elements, and from word kSelectHead on the elements.
struct SelectList {
  const Consumer& consumer;
  u32* list;
  int& listed;  // shared by the threads; 0 at first

  /// Of neighbours, of which the first `left` are there, those that have the bits found.
  ARK_DEVICE void add(const Vec<float, 4>& x, int left, u32 found) const {
    u32 lanes[4];
    int before[5] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool fits = i < left && (select_steps(x.v[i]) ^ found) >> abi::select_shift(0) == 0;
      lanes[i] = __ballot_sync(~0u, fits);
      before[i + 1] = before[i] + __popc(lanes[i]);
    }
    if (before[4] == 0) return;
    int at = 0;
    if (consumer.lane() == 0) at = atomicAdd(&listed, before[4]);
    at = __shfl_sync(~0u, at, 0) + abi::kSelectHead;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (lanes[i] >> consumer.lane() & 1)
        store_element(list + at + before[i] + __popc(lanes[i] & ((1u << consumer.lane()) - 1)),
                      __float_as_uint(x.v[i]));
  }
  ARK_DEVICE void finish() const {
    if (consumer.thread() == 0) store_element(list, static_cast<u32>(listed));
  }
};

/// A warp has every eighth list. What one load of a warp reads of a list, most often all, stays with the lanes.
struct SelectLists {
  static constexpr int kTogether = 8, kStep = kTogether * kConsumerWarps, kWarp = 32, kVectors = 4;

  const Consumer& consumer;
  const SelectHistogram& histogram;
  const u32* lists;
  i64 stride;
  int parts, part_size;
  u32 heads[kTogether] = {};

  /// Of the step that begins with list `first`.
  ARK_DEVICE void load_heads(int first) {
#pragma unroll
    for (int k = 0; k < kTogether; ++k) {
      const int part = first + k * kConsumerWarps + consumer.warp();
      heads[k] = part < parts ? load_element(lists + part * stride + consumer.lane()) : 0;
    }
  }

  template <bool kMass>
  ARK_DEVICE void count(int round, u32 found) {
    if (round > 1 && parts > kStep) load_heads(0);
#pragma unroll 1
    for (int first = 0;;) {
      int longest = 0;
#pragma unroll
      for (int k = 0; k < kTogether; k += 4) {
        Vec<float, 4> x;
        bool there[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int listed = static_cast<int>(__shfl_sync(~0u, heads[k + i], 0));
          longest = max(longest, listed);
          there[i] = consumer.lane() >= abi::kSelectHead && consumer.lane() < abi::kSelectHead + listed;
          x.v[i] = __uint_as_float(heads[k + i]);
        }
        histogram.template add<kMass, true>(x, there, found, round);
      }
      if (longest > kWarp - abi::kSelectHead) count_rests<kMass>(first, round, found);
      first += kStep;
      if (first >= parts) return;
      load_heads(first);
    }
  }

 private:
  template <bool kMass>
  ARK_DEVICE void count_rests(int first, int round, u32 found) const {
#pragma unroll 1
    for (int part = first + consumer.warp(); part < min(first + kStep, parts); part += kConsumerWarps) {
      const u32* list = lists + part * stride;
      // Behind a wait that has failed anything may stand there: nothing outside of the list is read.
      const int end = static_cast<int>(min(load_element(list), static_cast<u32>(part_size))) + abi::kSelectHead;
#pragma unroll 1
      for (int at = kWarp + consumer.lane() * 4; at < end; at += kVectors * kWarp * 4) {
        Vec<float, 4> x[kVectors] = {};
#pragma unroll
        for (int k = 0; k < kVectors; ++k)
          if (at + k * kWarp * 4 < end) load_vector(reinterpret_cast<const float*>(list) + at + k * kWarp * 4, x[k]);
#pragma unroll
        for (int k = 0; k < kVectors; ++k)
          histogram.template add<kMass, true>(x[k], end - (at + k * kWarp * 4), found, round);
      }
    }
  }
};

}  // namespace ark::device
