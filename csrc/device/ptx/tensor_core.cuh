// Inline assembly: the tensor cores, warp level and warpgroup level (wgmma).
#pragma once
#include "device/ptx/base.cuh"

namespace ark::device {

// ---- tensor cores, warp level

enum class MmaType { kBF16, kF16 };

/// c (16 x 8, fp32) += a (16 x 16) * b (16 x 8).
template <MmaType kType>
ARK_DEVICE void mma_16x8x16(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
  if constexpr (kType == MmaType::kBF16)
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  else
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// c (16 x 8, fp32) += a (16 x 8) * b (8 x 8), bf16.
ARK_DEVICE void mma_16x8x8(float (&c)[4], u32 a0, u32 a1, u32 b) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a0), "r"(a1), "r"(b));
}

/// Four 8 x 8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8.
ARK_DEVICE void ldmatrix_x4(u32 (&a)[4], u32 shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(shared)
               : "memory");
}

/// The same, each matrix transposed: lane i gets elements i / 4 of rows 2 (i % 4) and 2 (i % 4) + 1.
ARK_DEVICE void ldmatrix_x4_transposed(u32 (&a)[4], u32 shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(a[0]), "=r"(a[1]), "=r"(a[2]), "=r"(a[3])
               : "r"(shared)
               : "memory");
}

// ---- tensor cores (wgmma), one warpgroup together

/// Orders the warpgroup's register accesses before its next wgmma.
ARK_DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
ARK_DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/// Until at most `kPending` committed groups are unfinished.
template <int kPending>
ARK_DEVICE void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
/// Keeps the compiler from moving or copying accumulators across this point.
template <int kCount>
ARK_DEVICE void wgmma_keep(float (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i++) asm volatile("" : "+f"(d[i])::"memory");
}
template <int kCount>
ARK_DEVICE void wgmma_keep(u32 (&d)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; i++) asm volatile("" : "+r"(d[i])::"memory");
}

/// Descriptor of an operand in shared memory with 128-byte swizzle (atoms of 8 lines of 128 bytes). k-major:
/// `leading_bytes` is not used, `stride_bytes` lies between groups of 8 rows. mn-major: `leading_bytes` lies between
/// groups of 64 rows (mn), `stride_bytes` between groups of 8 k.
ARK_DEVICE u64 matrix_descriptor(u32 shared_address, u32 leading_bytes, u32 stride_bytes) {
  return static_cast<u64>((shared_address & 0x3ffffu) >> 4) | static_cast<u64>((leading_bytes & 0x3ffffu) >> 4) << 16 |
         static_cast<u64>((stride_bytes & 0x3ffffu) >> 4) << 32 | 1ull << 62;
}

#define ARK_REGS_32                                                        \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define ARK_REGS_64                                                                  \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "           \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define ARK_REGS_128                                                                             \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                       \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "             \
  "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "             \
  "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "             \
  "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "             \
  "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "             \
  "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
  "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define ARK_ACC_8(i)                                                                                          \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), \
      "+f"(d[i + 7])
#define ARK_ACC_32(i) ARK_ACC_8(i), ARK_ACC_8(i + 8), ARK_ACC_8(i + 16), ARK_ACC_8(i + 24)
#define ARK_ACC_64(i) ARK_ACC_32(i), ARK_ACC_32(i + 32)
#define ARK_ACC_128(i) ARK_ACC_64(i), ARK_ACC_64(i + 64)

/// d (64 x kN, f32) = a b + (accumulate ? d : 0), both operands in shared memory. kTransA, kTransB: the operand is
/// mn-major.
template <int kN, bool kHalf, bool kTransA, bool kTransB>
ARK_DEVICE void wgmma_ss(float (&d)[kN / 2], u64 a, u64 b, bool accumulate) {
  const int scale = accumulate;
  if constexpr (kN == 64 && kHalf)
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" ARK_REGS_32 "}, %32, %33, p, 1, 1, %35, %36;\n}"
        : ARK_ACC_32(0)
        : "l"(a), "l"(b), "r"(scale), "n"(kTransA), "n"(kTransB));
  else if constexpr (kN == 64 && !kHalf)
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" ARK_REGS_32 "}, %32, %33, p, 1, 1, %35, %36;\n}"
        : ARK_ACC_32(0)
        : "l"(a), "l"(b), "r"(scale), "n"(kTransA), "n"(kTransB));
  else if constexpr (kN == 128 && kHalf)
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" ARK_REGS_64 "}, %64, %65, p, 1, 1, %67, %68;\n}"
        : ARK_ACC_64(0)
        : "l"(a), "l"(b), "r"(scale), "n"(kTransA), "n"(kTransB));
  else if constexpr (kN == 128 && !kHalf)
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" ARK_REGS_64 "}, %64, %65, p, 1, 1, %67, %68;\n}"
        : ARK_ACC_64(0)
        : "l"(a), "l"(b), "r"(scale), "n"(kTransA), "n"(kTransB));
  else if constexpr (kN == 256 && kHalf)
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 {" ARK_REGS_128 "}, %128, %129, p, 1, 1, %131, %132;\n}"
        : ARK_ACC_128(0)
        : "l"(a), "l"(b), "r"(scale), "n"(kTransA), "n"(kTransB));
  else if constexpr (kN == 256 && !kHalf)
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %130, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" ARK_REGS_128 "}, %128, %129, p, 1, 1, %131, %132;\n}"
        : ARK_ACC_128(0)
        : "l"(a), "l"(b), "r"(scale), "n"(kTransA), "n"(kTransB));
  else
    static_assert(kN < 0, "no such wgmma");
}

/// The same with a (64 x 16, its four registers in fragment order) in registers.
template <int kN, bool kHalf, bool kTransB>
ARK_DEVICE void wgmma_rs(float (&d)[kN / 2], const u32 (&a)[4], u64 b, bool accumulate) {
  const int scale = accumulate;
  if constexpr (kN == 64 && kHalf)
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" ARK_REGS_32
        "}, {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}"
        : ARK_ACC_32(0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(scale), "n"(kTransB));
  else if constexpr (kN == 64 && !kHalf)
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {" ARK_REGS_32
        "}, {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}"
        : ARK_ACC_32(0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(scale), "n"(kTransB));
  else if constexpr (kN == 128 && kHalf)
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" ARK_REGS_64
        "}, {%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}"
        : ARK_ACC_64(0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(scale), "n"(kTransB));
  else if constexpr (kN == 128 && !kHalf)
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {" ARK_REGS_64
        "}, {%64, %65, %66, %67}, %68, p, 1, 1, %70;\n}"
        : ARK_ACC_64(0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(scale), "n"(kTransB));
  else
    static_assert(kN < 0, "no such wgmma");
}
#undef ARK_REGS_32
#undef ARK_REGS_64
#undef ARK_REGS_128
#undef ARK_ACC_8
#undef ARK_ACC_32
#undef ARK_ACC_64
#undef ARK_ACC_128

}  // namespace ark::device
