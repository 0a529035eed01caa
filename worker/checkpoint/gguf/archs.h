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
    CTW_GGUF_EXPERTS = 4, /* one tensor [n, rows, columns], or [n, rows], for all experts; '#' in
                             the name is the expert */
    CTW_GGUF_WHOLE = 8,   /* both names are whole: no ".weight" or ".bias" follows */
    CTW_GGUF_ONE_ROW = 16 /* a matrix of one row is stored as a vector */
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
    const char *only_with;              /* the row is for files with this key above 0; NULL: all */
    const struct ctw_gguf_name *layers; /* beyond the names that architectures share, or in their
                                           place; up to NULL */
    const struct ctw_gguf_key *keys;    /* the same of keys */
    const char *fixed;                  /* members that no key holds, as JSON: "\"a\":true" */
    const char *yarn;                   /* the same of a rope_scaling of type yarn */
    void (*more)(struct ctw_gguf_keys *k); /* writes members that depend on more than a key */
    bool norms_plus_one; /* 1 was added to the weights of all norms ("*norm.weight") */
    bool partial_rope;   /* a part of each head may be rotated: partial_rotary_factor */
    bool wide;           /* activations exceed the range of float16 */
};

/* Tables of archs_*.c, each up to a row without a name. */
extern const struct ctw_gguf_arch ctw_gguf_archs_llama[], ctw_gguf_archs_qwen[],
    ctw_gguf_archs_gemma[], ctw_gguf_archs_more[];

/* Names that all architectures share, in layers and outside them. */
extern const struct ctw_gguf_name ctw_gguf_layer_names[], ctw_gguf_top_names[];

#endif
