// The kernels for x86 with AVX2 and FMA.
#include <cstdint>

#include "targets/host/kernels/kernels.h"
#include "targets/host/kernels/sets.h"

#if ARK_HOST_X86
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3", "no-math-errno", "no-trapping-math")
#pragma GCC target("avx2,fma")
#endif

#define ARK_HOST_ISA avx2
#define ARK_HOST_ISA_NAME "avx2"
#define ARK_HOST_LANES 8
#define ARK_HOST_MR 6
#include "targets/host/kernels/impl.h"

namespace ark::targets::host {
Kernels avx2_kernels() { return avx2::make_kernels(); }
}  // namespace ark::targets::host
#endif
