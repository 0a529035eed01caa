/*
 * One model's operations on one chunk of a pass, in the order of the layer's branches. The forward
 * code owns the device buffers of the plan.
 *
 * model.h says what a layer can be. mixers/ and mlps/ have the kinds of branches.
 */
#ifndef CTW_WORKER_FORWARD_H
#define CTW_WORKER_FORWARD_H

#include "worker/engine/pass/kinds.h"
#include "worker/engine/pass/layout.h"
#include "worker/weights/provider.h"

struct ctw_forward {
    const struct ctw_model *model;
    struct ctw_backend *be;
    enum ctw_dtype dtype;
    struct ctw_plan plan;
    /* device arrays; `pass` and `chunk` are the plan's token counts */
    void *x;      /* the residual stream, see residuals.h */
    void *norm;   /* [chunk, hidden]: the input of a product, or the output of a branch */
    void *wide;   /* intermediate values, laid out by the branch's kind; experts use two halves
                     in turn, so that the next expert may begin before the previous has ended */
    void *inputs; /* [pass, n_decoders * input_dim]: the layers' own inputs */
    void *carry[CTW_N_CARRIES]; /* see carry.h */
    void *trunk;                /* the trunk's blocks; NULL: the plan has none */
    size_t *trunk_places;       /* host: where they are, see ctw_trunk_size() */
    int32_t *trunk_tokens;      /* host, [plan.trunk_tokens] */
    struct ctw_trunk has;       /* what `trunk` holds */
    /* Of mixtures of experts (NULL: the model has none); `chosen` and n_experts are the most of any
     * layer: */
    void *mixed;            /* [pass, hidden]: what the experts read */
    void *sum;              /* [pass, hidden] fp32: their sum, if it is not the residual */
    float *logits, *factor; /* [chunk, n_experts]; [chunk]: of the shared expert */
    float *identity;        /* [pass], or NULL: weights of experts that give what they read */
    int32_t *ids;           /* [pass, chosen]: each token's choice */
    float *weights;         /* [pass, chosen] */
    int32_t *expert_rows;   /* [pass * chosen]: the rows of each expert, one after another */
    float *expert_weights;  /* [pass * chosen] */
    int32_t *device_start;  /* [n_experts + 1]: where each expert's rows begin */
    int32_t *start;         /* the same, on the host */
    int32_t *tokens;        /* [pass] */
    /* Of models with tables: host, of the pass, [n_tok, 1 + ngram_before]: each token and those
     * before it (before.h); and room for a chunk's rows of a table. */
    const int32_t *before;
    char *gathered;
    struct ctw_threads *readers; /* of these rows */
    int32_t *positions; /* [pass], each within its sequence; with RoPE for long sequences: the
                           rows of its tables */
    int16_t *bad;       /* [pass]: -1, or the layer after which the token's state is not finite */
    int64_t *rows;      /* [pass]: the rows of x to score */
    int32_t *targets;   /* [pass]: the targets of these rows */
    int32_t *first_target;           /* [pass + 1], see struct ctw_layout */
    struct ctw_head_result *results; /* [pass]: of each target */
    float *cos_sin[CTW_MAX_ROPES];   /* [longest, rot_dim] */
    float *q_factor;                 /* [longest], or NULL */
    float *alibi;                    /* [n_head], or NULL */
    float *rates;                    /* [n_rates], or NULL */
    struct ctw_rotation *rotations;  /* the model's, with arrays on the device */
};

/* The rotation that a matrix or a layer names; NULL: none. */
static inline const struct ctw_rotation *ctw_forward_rotation(const struct ctw_forward *f, int name)
{
    return name == 0 ? NULL : &f->rotations[name - 1];
}

/* Device memory for the logits of some rows, see struct ctw_op_head. */
struct ctw_kept_logits {
    float *logits; /* [n_rows, ld] */
    int64_t ld;
    struct ctw_head_norm *norms; /* [n_rows] */
};

/* Allocates the buffers. n_threads: that read rows of tables; 0: all CPUs. The model and the
 * backend must outlive *out. */
enum ctw_status ctw_forward_open(struct ctw_forward **out, const struct ctw_model *model,
                                 struct ctw_backend *be, enum ctw_dtype dtype,
                                 const struct ctw_plan *plan, int n_threads,
                                 struct ctw_err *err) CTW_MUST_CHECK;
void ctw_forward_close(struct ctw_forward *f); /* NULL is fine */

/* What f->trunk holds is in doubt, or about to be overwritten. */
static inline void ctw_forward_forget_trunk(struct ctw_forward *f)
{
    f->has.n_tok = 0;
}

/* Lets the backend decode the weights of decoder layer `layer` once for all chunks. Call it after
 * each acquire of the layer's part, before the first chunk. `data`, here and below, is valid until
 * the layer's release. */
enum ctw_status ctw_forward_prepare(struct ctw_forward *f, int layer,
                                    const struct ctw_layer_data *data,
                                    struct ctw_err *err) CTW_MUST_CHECK;

/* x[tok0 ..] = embedding of tokens[tok0 ..]; of an embedding in parts, after the last. */
enum ctw_status ctw_forward_embed(struct ctw_forward *f, const struct ctw_layer_data *data,
                                  int64_t tok0, int64_t n_tok, struct ctw_err *err) CTW_MUST_CHECK;

/*
 * Runs the branches of decoder layer `layer` (1 .. n_decoders) on one chunk, from branch `from` on,
 * up to the next branch that has a part for the whole pass. Of that branch, the chunk's part is
 * included. The branch's index is ctw_forward_stop(), or the layer's n_branches if there is none.
 * from > 0 begins with the end of the previous branch. Chunks come in their order.
 */
int ctw_forward_stop(const struct ctw_forward *f, int layer, int from);
enum ctw_status ctw_forward_branches(struct ctw_forward *f, int layer,
                                     const struct ctw_layer_data *data,
                                     const struct ctw_chunk *chunk, int from,
                                     struct ctw_err *err) CTW_MUST_CHECK;
/* That branch's part for all n_tok tokens of the pass, after all chunks. */
enum ctw_status ctw_forward_whole(struct ctw_forward *f, int layer,
                                  const struct ctw_layer_data *data, int branch, int64_t n_tok,
                                  ctw_rows_done *done, void *arg,
                                  struct ctw_err *err) CTW_MUST_CHECK;

/* f->norm = the final hidden states of rows[row0 ..], as the head reads them: [n_rows, embed_dim];
 * n_rows is at most a chunk. */
enum ctw_status ctw_forward_read(struct ctw_forward *f, const struct ctw_layer_data *data,
                                 int64_t row0, int64_t n_rows, struct ctw_err *err) CTW_MUST_CHECK;

/* Computes the results of rows row0 .. from f->norm and their targets, over the first n_vocab ids.
 * several: first_target states whose targets are whose; else each row has one. If the
 * head comes in parts, the results are complete after the last part, and no other call may come
 * between the parts. keep (or NULL) is the memory for the logits and norms of these rows. */
enum ctw_status ctw_forward_head(struct ctw_forward *f, const struct ctw_layer_data *data,
                                 int64_t row0, int64_t n_rows, bool several, int64_t n_vocab,
                                 const struct ctw_kept_logits *keep,
                                 struct ctw_err *err) CTW_MUST_CHECK;

#endif
