/*
 * Architectures of GGUF files, as general.architecture names them: how llama.cpp's converter
 * renames and changes the tensors of a Hugging Face checkpoint, and which of its keys are in the
 * metadata. One row an architecture, in archs_*.c; the row's comment names the converter's class.
 *
 * Sources: conversion/NAME.py and gguf-py/gguf/{constants,tensor_mapping}.py of
 * github.com/ggml-org/llama.cpp; for numbers that no key holds, src/models/NAME.cpp there.
 */
#ifndef CTW_WORKER_ARCHS_H
#define CTW_WORKER_ARCHS_H

#include <stdbool.h>

struct ctw_gguf_keys;

/* What the converter does to a tensor, beside its name. */
enum ctw_gguf_change {
    CTW_GGUF_PAIRS_Q = 1, /* rows of each head of queries, or of keys: RoPE's pairs are adjacent */
    CTW_GGUF_PAIRS_K = 2,
    CTW_GGUF_EXPERTS = 4,  /* one tensor [n, rows, columns], or [n, rows], for all experts; '#' in
                              the name is the expert */
    CTW_GGUF_WHOLE = 8,    /* both names are whole: no ".weight" or ".bias" follows */
    CTW_GGUF_ONE_ROW = 16, /* a matrix of one row is stored as a vector */
    CTW_GGUF_TAPS = 32,    /* taps of a convolution, [n, 1, taps], are stored as [n, taps] */
    CTW_GGUF_RATES = 64,   /* A_log is stored as -exp(A_log), or without the sign */
    CTW_GGUF_TILED = 128,  /* with it: the heads of values are stored in another order */
    CTW_GGUF_FLAT = 256,   /* a vector is stored as a matrix */
    CTW_GGUF_AS_IS = 512,  /* a norm whose weights are stored without the 1 of other norms */
    CTW_GGUF_LEFT_OUT = 1024, /* the checkpoint has no such tensor: keys hold its values, or text
                                 does not need it */
    CTW_GGUF_LINEAR = 2048,   /* the row is for layers without attn_q */
    CTW_GGUF_PLUS_ONE = 4096 /* a norm of another name than "*norm", which has the 1 of all norms */
};

/* "attn_q" of "blk.3.attn_q.weight", or "output_norm", and the name in the checkpoint. */
struct ctw_gguf_name {
    const char *stored, *name;
    unsigned changes;
};

/* A key of config.json, and the metadata's key without the architecture. */
struct ctw_gguf_key {
    const char *name, *stored;
    bool needed;
};

struct ctw_gguf_arch {
    const char *name; /* general.architecture */
    const char *model_type, *class_name;
    const char *only_with;              /* the row is for files whose key is above 0; NULL: all */
    const char *only_with_tensor;       /* the same: files with this tensor in some layer */
    const char *prefix;                 /* of layers: "transformer.h."; NULL: "model.layers." */
    const struct ctw_gguf_name *layers; /* beyond the names that architectures share, or in their
                                           place; up to NULL */
    const struct ctw_gguf_key *keys;    /* the same of keys */
    const struct ctw_gguf_key *numbers; /* tensors of one F32 number in each layer, and the keys of
                                           their arrays, whole */
    const struct ctw_gguf_key *lists;   /* arrays of 64-bit integers that are tensors, and their
                                           keys; "model.layers.#." */
    const char *number;                 /* the key whose number is '#' outside of layers */
    const char *fixed;                  /* members that no key holds, as JSON: "\"a\":true" */
    const char *yarn;                   /* the same of a rope_scaling of type yarn */
    const struct ctw_gguf_key *yarn_keys;  /* further keys of a rope_scaling of type yarn */
    void (*rope)(struct ctw_gguf_keys *k); /* writes the RoPE in place of ctw_gguf_write_rope() */
    void (*more)(struct ctw_gguf_keys *k); /* writes members that depend on more than a key */
    bool in_text_config;                   /* the family is a text model inside another model */
    bool norms_plus_one; /* 1 was added to the weights of all norms ("*norm.weight") */
    bool partial_rope;   /* a part of each head may be rotated: partial_rotary_factor */
    bool longrope;       /* may have rope_factors_short and rope_factors_long */
    bool yarn_mscale;    /* yarn_log_multiplier is a tenth of mscale and mscale_all_dim */
    double mscale;       /* with it: longrope's short_mscale and long_mscale, which no key holds */
    bool wide;           /* activations exceed the range of float16 */
    int gating;          /* enum ctw_gguf_gating, which the family has; another is refused */
};

/* expert_gating_func, as llama.cpp numbers the scores of experts. */
enum ctw_gguf_gating { CTW_GGUF_SOFTMAX = 1, CTW_GGUF_SIGMOID = 2, CTW_GGUF_SQRT_SOFTPLUS = 4 };

/* Tables of archs_*.c, each up to a row without a name. */
extern const struct ctw_gguf_arch ctw_gguf_archs_llama[], ctw_gguf_archs_qwen[],
    ctw_gguf_archs_gemma[], ctw_gguf_archs_more[], ctw_gguf_archs_glm[], ctw_gguf_archs_window[],
    ctw_gguf_archs_mixture[], ctw_gguf_archs_layer_norm[], ctw_gguf_archs_hybrid[],
    ctw_gguf_archs_recurrent[], ctw_gguf_archs_latent[], ctw_gguf_archs_fused[],
    ctw_gguf_archs_mamba[], ctw_gguf_archs_heads[], ctw_gguf_archs_kda[], ctw_gguf_archs_streams[];

/* Names that all architectures share, in layers and outside them. */
extern const struct ctw_gguf_name ctw_gguf_layer_names[], ctw_gguf_top_names[];

/* Names of shared experts and of the correction of the choice, as DeepSeek and most others have
 * them, and keys of such mixtures. */
#define CTW_GGUF_SHARED_EXPERTS                                                                    \
    {"ffn_gate_shexp", "mlp.shared_experts.gate_proj", 0},                                         \
        {"ffn_up_shexp", "mlp.shared_experts.up_proj", 0},                                         \
    {                                                                                              \
        "ffn_down_shexp", "mlp.shared_experts.down_proj", 0                                        \
    }

/* Mixes of several residual streams around a layer's branches. */
#define CTW_GGUF_STREAMS                                                                           \
    {"hc_attn_fn.weight", "hc_attn_fn", CTW_GGUF_WHOLE},                                           \
        {"hc_attn_base.weight", "hc_attn_base", CTW_GGUF_WHOLE},                                   \
        {"hc_attn_scale.weight", "hc_attn_scale", CTW_GGUF_WHOLE},                                 \
        {"hc_ffn_fn.weight", "hc_ffn_fn", CTW_GGUF_WHOLE},                                         \
        {"hc_ffn_base.weight", "hc_ffn_base", CTW_GGUF_WHOLE},                                     \
    {                                                                                              \
        "hc_ffn_scale.weight", "hc_ffn_scale", CTW_GGUF_WHOLE                                      \
    }

#define CTW_GGUF_ROUTED_NAMES                                                                      \
    CTW_GGUF_SHARED_EXPERTS,                                                                       \
    {                                                                                              \
        "exp_probs_b.bias", "mlp.gate.e_score_correction_bias", CTW_GGUF_WHOLE                     \
    }

#define CTW_GGUF_ROUTED_KEYS                                                                       \
    {"n_routed_experts", "expert_count", true},                                                    \
        {"num_experts_per_tok", "expert_used_count", true},                                        \
        {"moe_intermediate_size", "expert_feed_forward_length", true},                             \
        {"n_shared_experts", "expert_shared_count", false},                                        \
        {"first_k_dense_replace", "leading_dense_block_count", false},                             \
        {"routed_scaling_factor", "expert_weights_scale", false},                                  \
        {"norm_topk_prob", "expert_weights_norm", false},                                          \
        {"n_group", "expert_group_count", false},                                                  \
    {                                                                                              \
        "topk_group", "expert_group_used_count", false                                             \
    }

#endif
