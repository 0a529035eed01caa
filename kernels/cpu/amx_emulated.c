/* The source of the variant "amx" over AVX2, with tile operations in C (amx_tiles.h), for tests on
 * processors without AMX. */
#define CTW_HAS_PAIRS 1
#define CTW_HAS_AMX 1
#define CTW_AMX_EMULATED 1
#include "kernels/cpu/simd_avx2.h"

#include "kernels/cpu/fast_variant.h"

const struct ctw_cpu_variant ctw_cpu_amx_emulated =
    FAST_VARIANT("amx-emulated", ctw_cpu_lacks_avx2, .by_request = true);
