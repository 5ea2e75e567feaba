// The kernels for x86 with AVX-512 (F, BW, DQ, VL).
#include <cstdint>

#include "targets/host/kernels/kernels.h"
#include "targets/host/kernels/sets.h"

#if ARK_HOST_X86
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3", "no-math-errno", "no-trapping-math")
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma")
#endif

#define ARK_HOST_ISA avx512
#define ARK_HOST_ISA_NAME "avx512"
#define ARK_HOST_LANES 16
#define ARK_HOST_MR 8  // divides tiles of 64 rows; 16 accumulators hide the latency of 2 x 4 FMAs
#include "targets/host/kernels/impl.h"

namespace ark::targets::host {
Kernels avx512_kernels() { return avx512::make_kernels(); }
}  // namespace ark::targets::host
#endif
