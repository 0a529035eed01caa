#define CTW_HAS_PAIRS 1
#define CTW_HAS_AMX 1
#define CTW_AMX_EMULATED 0
#include "kernels/cpu/simd_avx512.h"

#include "kernels/cpu/fast_variant.h"

const struct ctw_cpu_variant ctw_cpu_amx = FAST_VARIANT("amx", ctw_cpu_lacks_amx);
