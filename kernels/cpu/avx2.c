#include "kernels/cpu/simd_avx2.h"

#include "kernels/cpu/fast_variant.h"

const struct ctw_cpu_variant ctw_cpu_avx2 = FAST_VARIANT("avx2", ctw_cpu_has_avx2);
