/*
 * config.json read by the function of its model family (worker/model/families). A key that
 * transformers' class for the family reads is used, or takes transformers' default, or is refused
 * by name if its value requests an unsupported feature. Any other key cannot change transformers'
 * numbers: it is ignored and listed. Configurations written by transformers 4 and 5 give the same
 * result.
 */
#ifndef CTW_WORKER_CONFIG_H
#define CTW_WORKER_CONFIG_H

#include "worker/checkpoint/config/unread.h"
#include "worker/checkpoint/quant/quant_config.h"
#include "worker/model/model.h"
#include "worker/model/rope/rope.h"

struct ctw_family;

enum { CTW_MAX_DECODERS = 4096, CTW_MAX_KEYS = 64, CTW_MAX_ROPE_KEYS = 4, CTW_MAX_OWNED = 4 };

enum ctw_want_kind {
    CTW_WANT_MATRIX,
    CTW_WANT_VECTOR,
    CTW_WANT_EXPERT, /* a matrix of one expert, or of all of them */
    CTW_WANT_TIED,
    CTW_WANT_TABLE, /* the next rows of the layer's table, [.., k] */
    CTW_WANT_UNUSED /* a module whose tensors files may hold, but which is not opened */
};

/* A matrix [n, k] or vector [n] (k 0) or [n, k] that the checkpoint must have, or a head that is
 * the embedding. */
struct ctw_want {
    enum ctw_want_kind kind;
    int layer, role;  /* place in the model: the layer's matrix or vector, or a ctw_expert_role */
    enum ctw_kind of; /* a matrix: its branch's */
    char *name;       /* the matrix's module, or the vector's tensor */
    char *described;  /* the name that the family's function gave it; NULL: this name */
    const char *class_name; /* the module's, for quantization_config: "Linear", "Embedding" */
    int64_t n, k;
    bool transposed;  /* a matrix that the module (a Conv1D) stores as [k, n] */
    int64_t heads;    /* transposed: of so many stacked matrices (struct ctw_part) */
    int64_t sections; /* a matrix that may be quantised in so many parts (struct ctw_part) */
    int64_t below;    /* > 0: a vector of integers from 0 on, below this, different ones in a row */
    int64_t expert, n_stacked; /* the expert; n_stacked > 0: all, whose matrices are one tensor */
    bool flat;                 /* ... of two dimensions, one matrix's rows after another's */
};

/* Is it a matrix in one of a kind's sets (recipe/kinds.h)? */
static inline bool ctw_want_is_in(const struct ctw_want *w, uint32_t set)
{
    return w->kind == CTW_WANT_MATRIX && (set >> w->role % CTW_BRANCH_MATRICES & 1) != 0;
}

/* Is it this matrix of the embedding, or the head? */
static inline bool ctw_want_is_end(const struct ctw_want *w, bool head, int role)
{
    return w->kind == CTW_WANT_MATRIX && w->of == CTW_KIND_ends && (w->layer > 0) == head &&
           w->role == role;
}

struct ctw_config {
    struct ctw_json *doc;
    struct ctw_json *beside; /* a file that says how the weights are quantised, in place of `doc`;
                                NULL: none */
    const char *file;        /* the file's name, for messages */
    const struct ctw_container *files; /* the checkpoint's tensors; NULL: unknown */
    struct {
        bool known;    /* are the others? They are asked for by the first layer with experts */
        bool apart;    /* a module for each expert, "experts.0.down_proj" */
        bool stacked;  /* one tensor for all, "experts.gate_up_proj" */
        bool switches; /* mlx-lm's stacks, "switch_mlp.gate_proj.weight" */
    } experts;         /* how the files name them */
    const struct ctw_family *family;
    struct ctw_family *hosted;        /* NULL, or `family`: that of the text model in its host */
    const struct ctw_json_node *text; /* the object with the text model's keys: the root, or
                                         text_config */
    const struct ctw_json_node *quantised; /* the one with quantization_config */
    bool tied_by_default; /* the tensors decide about a tied head: tie_word_embeddings is absent,
                             or true in text_config and false beside it */
    int spelling;         /* of names in the files, of the family's spellings */
    const char *keys[CTW_MAX_KEYS]; /* the keys that the family has read */
    int n_keys;
    enum ctw_status status; /* the first error, and its message */
    struct ctw_err err;
    /* The model as described: sizes, layers and RoPE, without tensors. The caller may take it. */
    struct ctw_model *model;
    struct ctw_want *wants; /* in the order in which they are opened */
    int64_t n_wants, wants_cap;
    int64_t *windows;           /* ctw_key_windows() */
    void *owned[CTW_MAX_OWNED]; /* ctw_key_layers() and the like */
    int n_owned;
    struct ctw_branch nothing;     /* what a family's function may write to after an error */
    const char *layers;            /* the layers' names begin with "LAYERS.N." */
    int64_t n_head, n_kv;          /* of attention, if its rules give no others */
    int64_t named_as;              /* ctw_describe_named_as(): 1 + the layer; 0: none */
    int64_t first_draft, n_drafts; /* ctw_describe_drafts(): layers that are no part of the model */
    bool conv1d;                   /* the layers' linear weights are transposed */
    bool in_turn;                  /* GGUF files have rows of q, k and v one after another, and no
                                      transposed weights, whatever the module has */
    const char *const *buffers;    /* endings of tensors that are not weights; NULL: none */
    bool has_dtype;
    enum ctw_dtype dtype;
    int n_ropes; /* the RoPEs that the family has read, and their indices in the model */
    struct ctw_rope_params rope[CTW_MAX_ROPES];
    int rope_index[CTW_MAX_ROPES];
    int n_rope_keys;
    const char *rope_keys[CTW_MAX_ROPE_KEYS + 1]; /* ctw_key_rope_number() */
    struct ctw_quant_config quant;
    struct ctw_unread unread;
};

/* Takes over `keys`, those of `file`; `files` are the checkpoint's. The caller closes *out, also
 * after a failure. */
enum ctw_status ctw_config_read(struct ctw_config *out, struct ctw_json *keys, const char *file,
                                const struct ctw_container *files,
                                struct ctw_err *err) CTW_MUST_CHECK;
/* Reads the quantisation of weights from a file in `dir`, if config.json does not state it and
 * there is such a file. */
enum ctw_status ctw_config_read_beside(struct ctw_config *c, const char *dir,
                                       struct ctw_err *err) CTW_MUST_CHECK;
/* Reads config.json from a string, for tests. */
enum ctw_status ctw_config_parse(struct ctw_config *out, const char *text, size_t bytes,
                                 const char *file, struct ctw_err *err) CTW_MUST_CHECK;
void ctw_config_close(struct ctw_config *c);

#endif
