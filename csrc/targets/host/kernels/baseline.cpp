// The kernels for every machine.
#include <cstdint>

#include "targets/host/kernels/kernels.h"
#include "targets/host/kernels/sets.h"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3", "no-math-errno", "no-trapping-math")
#endif

#define ARK_HOST_ISA baseline
#define ARK_HOST_ISA_NAME "baseline"
#define ARK_HOST_LANES 4
#define ARK_HOST_MR 4
#include "targets/host/kernels/impl.h"

namespace ark::targets::host {
Kernels baseline_kernels() { return baseline::make_kernels(); }
}  // namespace ark::targets::host
