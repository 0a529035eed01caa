#define CTW_HAS_PAIRS 0
#define CTW_HAS_AMX 0
#include "kernels/cpu/simd_avx2.h"

#include "kernels/cpu/fast_variant.h"

const struct ctw_cpu_variant ctw_cpu_avx2 = FAST_VARIANT("avx2", ctw_cpu_lacks_avx2);
