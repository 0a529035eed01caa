/* The formats' decoders for AVX-512. */
#include "kernels/cpu/cpu.h"
#include "kernels/formats/all.h"
#include "kernels/formats/list.h"

#define DECODER(name) [CTW_FORMAT_##name] = ctw_##name##_decode,
ctw_decode_fn *const ctw_decoders_avx512[CTW_N_FORMATS] = {CTW_FORMATS(DECODER)};
