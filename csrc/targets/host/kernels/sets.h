// The kernel sets, one per instruction set; see impl.h.
#pragma once

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define ARK_HOST_X86 1
#else
#define ARK_HOST_X86 0
#endif

namespace ark::targets::host {

struct Kernels;  // kernels.h

Kernels baseline_kernels();
#if ARK_HOST_X86
Kernels avx2_kernels();
Kernels avx512_kernels();
#endif

}  // namespace ark::targets::host
