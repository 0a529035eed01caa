/*
 * The complete fast engine for one instruction set: a file includes its vocabulary (simd_*.h), then
 * this header, and defines its row of ctw_cpu_variants with FAST_VARIANT.
 */
#ifndef CTW_KERNELS_CPU_FAST_VARIANT_H
#define CTW_KERNELS_CPU_FAST_VARIANT_H

#ifdef CTW_LEFT_OUT /* kernels/CMakeLists.txt: the row alone, which refuses the variant */

static const char *left_out(void)
{
    return "this build, with a sanitizer, has only variants of the machine that compiled it";
}

#define FAST_VARIANT(variant_name, lack, ...)                                                      \
    {                                                                                              \
        .name = (variant_name), .lacks = left_out, __VA_ARGS__                                     \
    }

#else

#if CTW_HAS_AMX
#include "kernels/cpu/amx_tiles.h"
#endif

/* Each header needs the previous ones. */

/* clang-format off */
#include "kernels/cpu/fast_math.h"
#include "kernels/cpu/fast_rows.h"
#include "kernels/cpu/fast_tile.h"
#include "kernels/cpu/fast_amx.h"
#include "kernels/cpu/fast_pack.h"
#include "kernels/cpu/fast_block.h"
#include "kernels/cpu/fast_bands.h"
#include "kernels/cpu/fast_linear.h"
#include "kernels/cpu/fast_elementwise.h"
#include "kernels/conv.h"
#include "kernels/cpu/fast_conv.h"
#include "kernels/delta.h"
#include "kernels/math.h"
#include "kernels/cpu/fast_delta.h"
#include "kernels/cpu/fast_quantise.h"
#include "kernels/cpu/fast_norm.h"
#include "kernels/cpu/fast_keys.h"
#include "kernels/cpu/fast_scores.h"
#include "kernels/cpu/fast_attention.h"
#include "kernels/cpu/fast_ssm.h"
#include "kernels/cpu/fast_lru.h"
#include "kernels/cpu/fast_head.h"
#include "kernels/cpu/fast_divergence.h"
/* clang-format on */

/* The scratch of the largest operation with words of this mode. */
static int64_t mode_scratch_floats(enum mode mode, int64_t n_threads, const struct ctw_reserve *r)
{
    const int64_t n_tok = r->n_tok, kw = n_words(mode, r->max_k);
    int64_t product = packed_floats(mode, n_tok, kw) + n_threads * linear_local_floats(kw);
    int64_t head = round_up(n_tok, 16) +
                   HEAD_BLOCKS * n_tok * (int64_t)(sizeof(struct head_state) / sizeof(float));
    struct attn_job job = {0};
    int64_t attention =
        n_threads * shape_attention(&job, r->max_group, r->max_head, r->max_head, mode) +
        n_tok * (int64_t)(sizeof(struct attn_block) / sizeof(float)) + r->relative;
    return max64(product + head, attention);
}

/* Pairs need more than fp32 only if they fill whole tiles. */
static size_t fast_scratch_bytes(const struct ctw_cpu *cpu, const struct ctw_reserve *r)
{
    int64_t n_threads = ctw_threads_count(cpu->threads);
    int64_t floats = mode_scratch_floats(FLOATS, n_threads, r);
    if (CTW_HAS_AMX)
        floats = max64(floats, mode_scratch_floats(PAIRS, n_threads, r));
    size_t recurrent =
        r->state > 0 ? (size_t)n_threads * delta_scratch(r->state) / sizeof(float) + 1 : 0;
    return (size_t)max64(floats, (int64_t)recurrent) * sizeof(float);
}

#define FAST_VARIANT(variant_name, lack, ...)                                                      \
    {                                                                                              \
        .name = (variant_name), .lacks = (lack), .scratch_bytes = fast_scratch_bytes,              \
        .embed = fast_embed, .norm = fast_norm, .act = fast_act, .quantise = fast_quantise,        \
        .linear = fast_linear, .qkv = fast_qkv, .conv = fast_conv, .delta = fast_delta,            \
        .ssm = fast_ssm, .lru = fast_lru, .attention = fast_attention, .head = fast_head,          \
        .divergence = fast_divergence, __VA_ARGS__                                                 \
    }

#endif /* CTW_LEFT_OUT */

#endif
