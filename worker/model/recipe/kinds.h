/* The properties of a kind for the code around the branches: one row per kind, from
 * recipe/KIND.c. */
#ifndef CTW_WORKER_RECIPE_KINDS_H
#define CTW_WORKER_RECIPE_KINDS_H

#include "worker/model/model.h"

/* Numbers of a branch, for people and for checks of stored scales. 0: it has none. */
struct ctw_facts {
    int64_t n_head, n_kv, head, inner, window;
};

/* Heads that a file may quantise. */
struct ctw_heads_shape {
    int n;         /* heads; 0: the branch has none of its own */
    int64_t width; /* elements of each */
    bool latent;   /* a cache of latents has them, which are no heads */
};

struct ctw_kind_row {
    const char *name;
    struct ctw_facts (*facts)(const struct ctw_branch *b);
    /* Sets of matrices, 1 << role: */
    uint32_t in_attention; /* modules of an attention module for which a file may have scales */
    uint32_t module;       /* a module of in_attention that identifies the attention module */
    uint32_t not_meant;    /* modules that a quantisation group of all modules does not mean */
    uint32_t router;
    /* The quantisation and rotation of heads; NULL: there are none. */
    struct ctw_head_inputs *(*inputs)(struct ctw_branch *b);
    struct ctw_heads_shape (*heads)(const struct ctw_branch *b, enum ctw_heads which);
    bool (*quantises_heads)(const struct ctw_branch *b); /* are they supported? NULL: yes */
    bool rotates_heads;
    /* Why the output of a product cannot be rotated; NULL: it can, as with NULL for all. */
    const char *(*rotated_output)(const struct ctw_branch *b, int product);
    /* Can experts' inputs be rotated or quantised? NULL: there are no experts. */
    bool (*changes_inputs)(const struct ctw_branch *b);
    /* Vectors of one number each that are read when they are open, n_numbers from `numbers` on. */
    int numbers, n_numbers;
    void (*take_numbers)(struct ctw_branch *b, const double *values);
    /* Checks that need the opened tensors. NULL: none. */
    enum ctw_status (*check)(const struct ctw_layer *l, int branch, struct ctw_err *err);
};

/* All zeros for the kinds none and ends. */
const struct ctw_kind_row *ctw_kind_of(const struct ctw_branch *b);
const struct ctw_kind_row *ctw_kind_at(enum ctw_kind kind);

/* A layer's facts: the largest of its branches'. */
struct ctw_facts ctw_layer_facts(const struct ctw_layer *l);

/* Can the inputs of the layer's experts be rotated or quantised? True without experts. */
bool ctw_layer_changes_inputs(const struct ctw_layer *l);

/* The quantisation and rotation of branch b's heads; NULL: there are none. */
static inline struct ctw_head_inputs *ctw_branch_inputs(struct ctw_branch *b)
{
    const struct ctw_kind_row *k = ctw_kind_of(b);
    return k->inputs != NULL ? k->inputs(b) : NULL;
}

#endif
