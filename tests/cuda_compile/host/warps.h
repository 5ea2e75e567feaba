// Warps of a worker on the host, by its threads (threads.h): what lanes tell each other, what they add in shared
// memory, and conversions. Included once, before what is written for the device.
#pragma once
#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#define ARK_HOST_THREADS 256
#define __device__
#define __forceinline__ inline
#include "device/abi/roles.h"
#include "device/program/support.cuh"
// of this folder, before what is written for the device

using ark::device::u32;
using ark::device::u64;

/// What the lanes of a warp tell each other.
struct Warp {
  Meeting barrier{32};
  u64 said[32];
};
inline std::vector<Warp>* warps_of_worker;
inline int own_lane() { return threads.own() % 32; }

template <class T, class F>
auto exchange(T mine, const F& f) {
  u64 bits = 0;
  std::memcpy(&bits, &mine, sizeof(T));
  Warp& warp = (*warps_of_worker)[static_cast<size_t>(threads.own() / 32)];
  warp.said[own_lane()] = bits;
  warp.barrier.arrive_and_wait();
  const auto of_lane = [&](int lane) {
    T value;
    std::memcpy(&value, &warp.said[lane], sizeof(T));
    return value;
  };
  const auto result = f(of_lane);
  warp.barrier.arrive_and_wait();
  return result;
}
template <class T>
T __shfl_sync(unsigned, T value, int lane) {
  return exchange(value, [&](const auto& of) { return of(lane); });
}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask) {
  return exchange(value, [&](const auto& of) { return of(own_lane() ^ mask); });
}
template <class T>
T __shfl_up_sync(unsigned, T value, int by) {
  return exchange(value, [&](const auto& of) { return of(std::max(own_lane() - by, 0)); });
}
template <class T>
T __shfl_down_sync(unsigned, T value, int by) {
  return exchange(value, [&](const auto& of) { return of(std::min(own_lane() + by, 31)); });
}
inline void __syncwarp() { (*warps_of_worker)[static_cast<size_t>(threads.own() / 32)].barrier.arrive_and_wait(); }
inline unsigned __ballot_sync(unsigned, bool vote) {
  return exchange(vote, [](const auto& of) {
    unsigned mask = 0;
    for (int lane = 0; lane < 32; ++lane) mask |= unsigned{of(lane)} << lane;
    return mask;
  });
}
inline unsigned __reduce_add_sync(unsigned, unsigned value) {
  return exchange(value, [](const auto& of) {
    unsigned sum = 0;
    for (int lane = 0; lane < 32; ++lane) sum += of(lane);
    return sum;
  });
}
inline unsigned __reduce_max_sync(unsigned, unsigned value) {
  return exchange(value, [](const auto& of) {
    unsigned most = 0;
    for (int lane = 0; lane < 32; ++lane) most = std::max(most, of(lane));
    return most;
  });
}
inline unsigned __reduce_min_sync(unsigned, unsigned value) {
  return exchange(value, [](const auto& of) {
    unsigned least = ~0u;
    for (int lane = 0; lane < 32; ++lane) least = std::min(least, of(lane));
    return least;
  });
}
inline u32 atomicMax(u32* at, u32 value) {
  u32 old = *at;
  while (old < value && !std::atomic_ref(*at).compare_exchange_weak(old, value)) {
  }
  return old;
}
inline u64 atomicAdd(u64* at, u64 value) { return std::atomic_ref(*at).fetch_add(value); }
inline u64 __float2ull_rn(float x) { return static_cast<u64>(std::llrint(x)); }
inline u32 atomicAdd(u32* at, u32 value) { return std::atomic_ref(*at).fetch_add(value); }
inline u32 atomicOr(u32* at, u32 value) { return std::atomic_ref(*at).fetch_or(value); }
/// Lanes of the host come one by one: none shares what it adds.
inline unsigned __activemask() { return 1u << own_lane(); }
inline unsigned __match_any_sync(unsigned mask, u32) { return mask; }
inline int __popc(u32 x) { return std::popcount(x); }
inline int __ffs(u32 x) { return x == 0 ? 0 : std::countr_zero(x) + 1; }
inline int __clz(u32 x) { return std::countl_zero(x); }
inline u32 __float2uint_rz(float x) { return x > 0 ? static_cast<u32>(x) : 0; }
inline u32 __float2uint_rn(float x) { return static_cast<u32>(std::lrint(x)); }
inline int __double2int_rn(double x) { return static_cast<int>(std::lrint(x)); }
inline double __hiloint2double(int high, int low) {
  return std::bit_cast<double>(u64{static_cast<u32>(high)} << 32 | low);
}
inline u32 __float_as_uint(float x) { return std::bit_cast<u32>(x); }
inline float __uint_as_float(u32 x) { return std::bit_cast<float>(x); }
inline long long __double_as_longlong(double x) { return std::bit_cast<long long>(x); }

namespace ark::device {
inline float exp2_approx(float x) { return std::exp2(x); }
inline float maximum_or_nan(float a, float b) { return std::isnan(a) || a > b ? a : b; }
namespace op {
inline float infinity() { return std::numeric_limits<float>::infinity(); }
inline float exp_fast(float x) { return std::exp(x); }
}  // namespace op
}  // namespace ark::device
