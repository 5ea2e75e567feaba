// Inline assembly of the device code, in this file and in those that it includes, nowhere else. Each function is one
// instruction (or one inseparable group); its comment says scope and order where it has any.
#pragma once
#include "device/ptx/base.cuh"
#include "device/ptx/math.cuh"
#include "device/ptx/tensor_copy.cuh"
#include "device/ptx/tensor_core.cuh"

namespace ark::device {

// ---- addresses, time, identity

ARK_DEVICE u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

/// Cycles of this SM; wraps.
ARK_DEVICE u32 clock_cycles() {
  u32 t;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(t)::"memory");
  return t;
}
/// SMs 2 n and 2 n + 1 share what leads out of them.
ARK_DEVICE u32 sm_index() {
  u32 v;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(v));
  return v;
}
ARK_DEVICE u64 global_time_ns() {
  u64 t;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
  return t;
}

/// Thread number, read anew at each use: values derived from it are not kept in registers across items (measured:
/// dozens of addresses are, and spill).
ARK_DEVICE int thread_index() {
  int t;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(t));
  return t;
}

/// One lane of a converged warp. The compiler knows that code under `chosen` has one lane: instructions that take their
/// operands from uniform registers (tensor copies) need no loop over lanes there, which costs 45 cycles each.
struct Elected {
  bool chosen;
  u32 lane;  // who it is
};
ARK_DEVICE Elected elect_lane() {
  u32 chosen, lane;
  asm volatile("{.reg .pred p; elect.sync %1|p, 0xffffffff; selp.u32 %0, 1, 0, p;}" : "=r"(chosen), "=r"(lane));
  return {chosen != 0, lane};
}

// ---- mbarriers in shared memory

ARK_DEVICE void mbarrier_init(u64* barrier, u32 count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}
/// Makes initialised barriers visible to the async proxy.
ARK_DEVICE void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

/// release.cta
ARK_DEVICE void mbarrier_arrive(u64* barrier, u32 count = 1) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}
/// release.cta; the phase ends when `bytes` more bytes have landed too.
ARK_DEVICE void mbarrier_arrive_expect(u64* barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
/// acquire.cta when true: the phase of this parity has ended. Sleeps a little before it says no.
ARK_DEVICE bool mbarrier_try_wait(u32 barrier, u32 parity) {
  u32 ok;
  asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
               : "=r"(ok)
               : "r"(barrier), "r"(parity)
               : "memory");
  return ok != 0;
}
ARK_DEVICE bool mbarrier_try_wait(u64* barrier, u32 parity) {
  return mbarrier_try_wait(shared_address(barrier), parity);
}

/// The same, without sleeping.
ARK_DEVICE bool mbarrier_test_wait(u32 barrier, u32 parity) {
  u32 ok;
  asm volatile("{.reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}"
               : "=r"(ok)
               : "r"(barrier), "r"(parity)
               : "memory");
  return ok != 0;
}

// The same by address in the shared window, for inner loops that keep addresses in registers.
ARK_DEVICE void mbarrier_init(u32 barrier, u32 count) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
ARK_DEVICE void mbarrier_arrive(u32 barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}
ARK_DEVICE void mbarrier_arrive_expect(u32 barrier, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// ---- bulk copies (async proxy)

ARK_DEVICE u64 policy_evict_first() {
  u64 policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
/// What policy_evict_first() makes: for code that has no registers to keep it.
inline constexpr u64 kEvictFirst = 0x12f0000000000000ull;

/// Contiguous bytes, global -> shared; addresses and size are multiples of 16; completes on `barrier`.
ARK_DEVICE void bulk_load(u32 shared, const void* global, u32 bytes, u64* barrier, u64 policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(shared),
      "l"(global), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}
ARK_DEVICE void bulk_load(u32 shared, const void* global, u32 bytes, u32 barrier, u64 policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(shared),
      "l"(global), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}
ARK_DEVICE void bulk_load(u32 shared, const void* global, u32 bytes, u64* barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
               "l"(global), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}
ARK_DEVICE void bulk_load(u32 shared, const void* global, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared),
               "l"(global), "r"(bytes), "r"(barrier)
               : "memory");
}

// ---- copies by the threads themselves (generic proxy), 16 bytes each

/// Global -> shared, both aligned to 16 bytes: the first `bytes` of them are read, the others become 0. Part of this
/// thread's current group of copies.
ARK_DEVICE void copy_async(u32 shared, const void* global, u32 bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global), "r"(bytes) : "memory");
}
ARK_DEVICE void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Until at most `kPending` of this thread's groups are unfinished.
template <int kPending>
ARK_DEVICE void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

ARK_DEVICE void prefetch_l2(const void* global) { asm volatile("prefetch.global.L2 [%0];" ::"l"(global)); }

// ---- order between proxies

/// Generic accesses before it (here or observed by an acquire) happen before async ones (bulk copies, wgmma) after it.
ARK_DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async;" ::: "memory"); }
/// The same for global memory only: without the MEMBAR.ALL.GPU of the one above (0.4 us on a hop from op to op).
ARK_DEVICE void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }
/// The same for shared memory only.
ARK_DEVICE void fence_proxy_async_shared() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- signals in global memory

ARK_DEVICE u32 load_acquire(const u32* p) {
  u32 v;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
ARK_DEVICE u32 load_relaxed(const u32* p) {
  u32 v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
/// Four words, each by itself.
ARK_DEVICE uint4 load_relaxed4(const u32* p) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(p)
               : "memory");
  return v;
}
ARK_DEVICE void red_relaxed_add(u32* p, u32 v) {
  asm volatile("red.relaxed.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
ARK_DEVICE void red_release_add(u32* p, u32 v) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
ARK_DEVICE u32 atomic_add_acq_rel(u32* p, u32 v) {
  u32 old;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
  return old;
}
ARK_DEVICE u32 atomic_exchange_relaxed(u32* p, u32 v) {
  u32 old;
  asm volatile("atom.relaxed.gpu.global.exch.b32 %0, [%1], %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
  return old;
}
ARK_DEVICE void store_relaxed(u32* p, u32 v) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
/// Release at system scope: what this thread wrote before is visible to the host first. Only on the way out after a
/// failure.
ARK_DEVICE void store_release_system(u32* p, u32 v) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

// ---- shared memory words that one role writes and another reads

ARK_DEVICE u32 shared_load_acquire(const u32* p) {
  u32 v;
  asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(v) : "r"(shared_address(p)) : "memory");
  return v;
}
ARK_DEVICE void shared_store_release(u32* p, u32 v) {
  asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(shared_address(p)), "r"(v) : "memory");
}
/// Adds one: whoever sees it by an acquire sees what came before.
ARK_DEVICE void shared_count_release(u32* p) {
  asm volatile("red.release.cta.shared.add.u32 [%0], 1;" ::"r"(shared_address(p)) : "memory");
}
/// Ordered only with this thread's other accesses of shared memory (one SM serves them in order).
ARK_DEVICE void shared_store_relaxed(u32* p, u32 v) {
  asm volatile("st.relaxed.cta.shared.u32 [%0], %1;" ::"r"(shared_address(p)), "r"(v) : "memory");
}

// What one thread keeps there for itself, by address in the shared window.
ARK_DEVICE void shared_store4(u32 shared, uint4 v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
               : "memory");
}
ARK_DEVICE uint4 shared_load4(u32 shared) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(shared)
               : "memory");
  return v;
}
ARK_DEVICE void shared_store_u64(u32 shared, u64 v) {
  asm volatile("st.shared.u64 [%0], %1;" ::"r"(shared), "l"(v) : "memory");
}
ARK_DEVICE u64 shared_load_u64(u32 shared) {
  u64 v;
  asm volatile("ld.shared.u64 %0, [%1];" : "=l"(v) : "r"(shared) : "memory");
  return v;
}

// ---- named barriers

/// Barrier `id` of `threads` threads (whole warps); release/acquire.cta.
ARK_DEVICE void named_barrier_sync(int id, int threads) {
  __syncwarp();
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
/// Counts towards the barrier without waiting at it.
ARK_DEVICE void named_barrier_arrive(int id, int threads) {
  __syncwarp();
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// ---- registers of a warpgroup

template <int kRegisters>
ARK_DEVICE void registers_increase() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
ARK_DEVICE void registers_decrease() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- element access in global memory
// Volatile (never moved over a wait) but without a memory clobber: fields of records stay in registers between them.
// Plain, cached accesses: what other workers wrote is visible after the acquire of a wait.

template <int kBytes>
struct Raw;  // kBytes bytes as 32-bit words (1 and 2 bytes: one word)
template <>
struct Raw<1> {
  u32 w[1];
};
template <>
struct Raw<2> {
  u32 w[1];
};
template <>
struct Raw<4> {
  u32 w[1];
};
template <>
struct Raw<8> {
  u32 w[2];
};
template <>
struct Raw<16> {
  u32 w[4];
};

template <int kBytes>
ARK_DEVICE Raw<kBytes> load_global(const void* p) {
  Raw<kBytes> r;
  if constexpr (kBytes == 1)
    asm volatile("ld.global.u8 %0, [%1];" : "=r"(r.w[0]) : "l"(p));
  else if constexpr (kBytes == 2) {
    unsigned short h;
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(h) : "l"(p));
    r.w[0] = h;
  } else if constexpr (kBytes == 4)
    asm volatile("ld.global.u32 %0, [%1];" : "=r"(r.w[0]) : "l"(p));
  else if constexpr (kBytes == 8)
    asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(r.w[0]), "=r"(r.w[1]) : "l"(p));
  else
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r.w[0]), "=r"(r.w[1]), "=r"(r.w[2]), "=r"(r.w[3])
                 : "l"(p));
  return r;
}
/// The same where the predicate holds, zeros else; without a branch, so that words stay as they come. Volatile as well:
/// it stays in order with waits and stores.
template <int kBytes>
ARK_DEVICE Raw<kBytes> load_global_if(bool predicate, const void* p) {
  static_assert(kBytes == 4 || kBytes == 8 || kBytes == 16);
  Raw<kBytes> r{};
  const int asked = predicate;
  if constexpr (kBytes == 4)
    asm volatile("{ .reg .pred q; setp.ne.s32 q, %1, 0; @q ld.global.u32 %0, [%2]; }"
                 : "+r"(r.w[0])
                 : "r"(asked), "l"(p));
  else if constexpr (kBytes == 8)
    asm volatile("{ .reg .pred q; setp.ne.s32 q, %2, 0; @q ld.global.v2.u32 {%0, %1}, [%3]; }"
                 : "+r"(r.w[0]), "+r"(r.w[1])
                 : "r"(asked), "l"(p));
  else
    asm volatile("{ .reg .pred q; setp.ne.s32 q, %4, 0; @q ld.global.v4.u32 {%0, %1, %2, %3}, [%5]; }"
                 : "+r"(r.w[0]), "+r"(r.w[1]), "+r"(r.w[2]), "+r"(r.w[3])
                 : "r"(asked), "l"(p));
  return r;
}
/// The register is a whole word from here on: the compiler does not know what is in it.
ARK_DEVICE void keep_word(u32& word) { asm("" : "+r"(word)); }
template <int kBytes>
ARK_DEVICE void store_global(void* p, const Raw<kBytes>& r) {
  if constexpr (kBytes == 1)
    asm volatile("st.global.u8 [%0], %1;" ::"l"(p), "r"(r.w[0]));
  else if constexpr (kBytes == 2)
    asm volatile("st.global.u16 [%0], %1;" ::"l"(p), "h"(static_cast<unsigned short>(r.w[0])));
  else if constexpr (kBytes == 4)
    asm volatile("st.global.u32 [%0], %1;" ::"l"(p), "r"(r.w[0]));
  else if constexpr (kBytes == 8)
    asm volatile("st.global.v2.u32 [%0], {%1, %2};" ::"l"(p), "r"(r.w[0]), "r"(r.w[1]));
  else
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(r.w[0]), "r"(r.w[1]), "r"(r.w[2]),
                 "r"(r.w[3]));
}

// ---- small arithmetic of the tensor tasks

/// Two floats rounded to nearest even, packed: `low` in the lower half.
template <bool kHalf>
ARK_DEVICE u32 pack_two(float low, float high) {
  u32 packed;
  if constexpr (kHalf)
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
/// 1 / x, but for a bit or two.
ARK_DEVICE float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
ARK_DEVICE float log2_fast(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// ---- shared memory words in fp32, by address in the shared window

ARK_DEVICE void shared_store_two(u32 shared, float x, float y) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(shared), "f"(x), "f"(y) : "memory");
}
ARK_DEVICE void shared_load_four(float (&v)[4], u32 shared) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
               : "r"(shared)
               : "memory");
}
/// The same of what a tensor copy has brought: volatile (never moved over a wait for it), without a memory clobber.
ARK_DEVICE void shared_read_four(float (&v)[4], u32 shared) {
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3])
               : "r"(shared));
}
ARK_DEVICE void shared_store_four(u32 shared, float x, float y, float z, float w) {
  asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "f"(x), "f"(y), "f"(z), "f"(w) : "memory");
}
ARK_DEVICE void shared_load_two(float (&v)[2], u32 shared) {
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v[0]), "=f"(v[1]) : "r"(shared) : "memory");
}
ARK_DEVICE void shared_store_float(u32 shared, float x) {
  asm volatile("st.shared.f32 [%0], %1;" ::"r"(shared), "f"(x) : "memory");
}
ARK_DEVICE void shared_store_word(u32 shared, u32 x) {
  asm volatile("st.shared.u32 [%0], %1;" ::"r"(shared), "r"(x) : "memory");
}
/// 16 bits.
ARK_DEVICE u32 shared_load_half(u32 shared) {
  unsigned short x;
  asm volatile("ld.shared.u16 %0, [%1];" : "=h"(x) : "r"(shared) : "memory");
  return x;
}
ARK_DEVICE float shared_load_float(u32 shared) {
  float v;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(shared) : "memory");
  return v;
}

/// The same value; the compiler computes nothing that depends on it ahead of this point.
ARK_DEVICE u32 opaque(u32 x) {
  asm volatile("" : "+r"(x));
  return x;
}

// ---- between the GPUs of a host: scope .sys, memory of a peer mapped here

ARK_DEVICE u32 load_acquire_system(const u32* p) {
  u32 v;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
ARK_DEVICE u32 load_relaxed_system(const u32* p) {
  u32 v;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}
ARK_DEVICE void store_relaxed_system(u32* p, u32 v) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
ARK_DEVICE void red_relaxed_add_system(u32* p, u32 v) {
  asm volatile("red.relaxed.sys.global.add.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}
/// `v` if there was 0; what there was.
ARK_DEVICE u32 atomic_set_first_system(u32* p, u32 v) {
  u32 old;
  asm volatile("atom.relaxed.sys.global.cas.b32 %0, [%1], 0, %2;" : "=r"(old) : "l"(p), "r"(v) : "memory");
  return old;
}
ARK_DEVICE void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }
/// One of it stands before any number of relaxed flag stores.
ARK_DEVICE void fence_system() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }

/// 16 bytes in one access. Each half of 8 bytes arrives as a whole; packets rely on no more than that.
ARK_DEVICE void store_packet(void* p, const u32 (&w)[4]) {
  asm volatile("st.relaxed.sys.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(w[0]), "r"(w[1]), "r"(w[2]),
               "r"(w[3])
               : "memory");
}
ARK_DEVICE void load_packet(u32 (&w)[4], const void* p) {
  asm volatile("ld.relaxed.sys.global.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
               : "l"(p)
               : "memory");
}

/// Shared -> global (here or at a peer), contiguous, addresses and size multiples of 16; part of this thread's current
/// group of bulk stores.
ARK_DEVICE void bulk_store(void* global, u32 shared, u32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(global), "r"(shared), "r"(bytes)
               : "memory");
}
ARK_DEVICE void bulk_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Until at most `kPending` of this thread's groups are unfinished: their writes are done, a fence and a flag may
/// follow.
template <int kPending>
ARK_DEVICE void bulk_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}
/// Until all but the last kPending groups have read their source.
template <int kPending>
ARK_DEVICE void bulk_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

/// Programmatic dependent launch: until the kernel before this one in the stream has ended (at once without one).
ARK_DEVICE void grid_wait_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
/// The next kernel of the stream may be brought in while this one runs.
ARK_DEVICE void grid_release_next() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

}  // namespace ark::device
