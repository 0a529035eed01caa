/*
 * Keys and values of a layer's attention, and attention over them. They are carried from chunk to
 * chunk, or kept for the whole pass because other layers use them (layout.h).
 */
#ifndef CTW_WORKER_KEYS_H
#define CTW_WORKER_KEYS_H

#include "worker/engine/step.h"

struct ctw_keys {
    void *k, *v;
    void *k_here, *v_here; /* the rows of the chunk's own tokens */
    void *index_here;      /* of the indexer's keys, if the layer has one */
    bool carried;
};

struct ctw_keys_shape {
    int n_kv, head, head_v;
    int index; /* elements of the indexer's key; 0: there is none */
    int kept;  /* index of the kept keys and values; -1: they are carried */
};

/* Moves the carried keys and values that the layout says, by way of f->wide. */
enum ctw_status ctw_keys_begin(const struct ctw_step *s, const struct ctw_keys_shape *shape,
                               struct ctw_keys *out, struct ctw_err *err) CTW_MUST_CHECK;

/* The chunk's keys, values or queries, in place, as the checkpoint quantises them: n_heads heads of
 * `head` elements in rows that are ld elements apart. */
enum ctw_status ctw_heads_quantise(const struct ctw_step *s, const struct ctw_heads_input *h,
                                   void *x, int n_heads, int64_t head, int64_t ld,
                                   struct ctw_err *err) CTW_MUST_CHECK;

/* Sparse attention: the bits of the chunk's queries. */
uint32_t *ctw_keys_seen(const struct ctw_step *s);

/* Attention of op's queries, [n_tok, n_head * head], over the keys; op's shape is set. */
enum ctw_status ctw_keys_attend(const struct ctw_step *s, const struct ctw_keys *keys,
                                struct ctw_op_attention op, struct ctw_err *err) CTW_MUST_CHECK;

#endif
