/*
 * What a kind of residual stream does, one row a kind, from residual/: what it takes of memory and
 * of time, what a branch reads, and how a branch's output is joined. All other code asks these
 * rows, and none assumes one stream.
 *
 * A token has `width` numbers that one layer hands to the next, and `kept` more that a branch's
 * read() leaves for its join(), which may come after all chunks (a mixture's does). They are f->x:
 * [pass, width] of CTW_RESIDUAL, and behind it [pass, kept].
 *
 * One stream (one_stream.c): width = hidden.
 *
 * One stream beside the embedding (beside_embedding.c): width = 2 hidden, the stream and the
 * embedding; kept = hidden, for what a layer's branches put aside for each other.
 *
 * One stream with a shortcut (shortcut.c): width = 2 hidden, the stream and a branch's output that
 * waits for the end of a later layer; kept = hidden, for the embedding before it is the stream.
 *
 * Several streams (streams.c), mixed around each branch (hyper-connections; n streams of H):
 *
 *     begin():  every stream = the embedding
 *     read():   f = the token's n H numbers; m = fn f / rms(f), of (2 + n) n numbers;
 *               pre = sigmoid(m scale[0] + base) + eps, post and comb likewise; some families
 *               make comb doubly stochastic (Sinkhorn), some have none; post and comb are kept;
 *               y = norm of (sum over s of pre[s] stream[s])
 *     join():   stream[t] = post[t] out + sum over s of comb[s, t] stream[s]
 *     finish(): y = norm of (sum over s of pre[s] stream[s]) with a pre of its own, or the mean
 *
 * Width is n H, and kept is n + n n. fn, base and scale are vectors of the branch's stretch, where
 * planner, prefetch and inspect find them: fn has few rows, and is not rounded to the activations'
 * dtype, as the streams are not. There is no rows(): no product adds to a stream, and a mixture has
 * an array of its own for its sum.
 *
 * Several streams, mixed around each branch by gates of each number (gated_streams.c):
 *
 *     begin():  every stream = the embedding
 *     read():   f = the streams, each after its norm; m = sigmoid(up silu(down f / n));
 *               y = mean over s of m[s] f[s]; w = 2 sigmoid(inject f / n), kept
 *     join():   stream[s] += w[s] out
 *     finish(): y as of read(), with matrices of its own
 *
 * Width is n H, and kept is n. down, inject and up are products of the branch's.
 *
 * Several streams with alternating updates (alternating.c), for layers of a mixer, an MLP and an
 * own input; a is the active stream, and r is kept:
 *
 *     begin():  stream[0] = the embedding e, stream[s] = projection[s - 1] e, at e's magnitude
 *     read():   mixer: every stream += sum of all, by coefficients of a; y = norm(a);
 *                      r = (a + y + norm(up(down(y)))) / sqrt(2)
 *               MLP: y = norm(r)
 *               own input: every stream += (1 + a coefficient of r) (r - a); y = factors * a
 *     join():   mixer: r += norm(out) / sqrt(2); MLP: r += norm(out);
 *               own input: every stream but the first += norm(out)
 *     finish(): y = norm of the mean of the projections of the streams but the first, at the
 *               first's magnitude, and of the first
 *
 * Width is n H, and kept is H.
 *
 * Sums of blocks of layers (attention residuals; a running sum p, at most b blocks of H):
 *
 *     begin():  p = the embedding
 *     read():   y = norm of (sum over the blocks and p of softmax(w . x / rms(x)) x);
 *               at the first branch of a layer that begins a block, then: next block = p, p = 0
 *     rows():   p, so that products add to p directly
 *     finish(): as read(), with a w of its own
 *
 * Width is (b + 1) H, and kept is H, for the sum before its norm (block_sums.c).
 */
#ifndef CTW_WORKER_RESIDUALS_H
#define CTW_WORKER_RESIDUALS_H

#include "worker/model/model.h"

/*
 * The residual stream is fp32 regardless of the activations' dtype: every layer adds to it, and
 * rounding these sums would be most of a 16-bit run's error.
 */
#define CTW_RESIDUAL CTW_F32

struct ctw_forward;
struct ctw_step;
struct ctw_widths;

/* [.., hidden] of CTW_RESIDUAL, with this leading dimension. */
struct ctw_residual_rows {
    void *at;
    int64_t ld;
};

struct ctw_residual_ops {
    int64_t (*width)(const struct ctw_model *m);
    int64_t (*kept)(const struct ctw_model *m); /* NULL: 0 */
    /* Raises w to what read(), join() and finish() need. */
    void (*widen)(struct ctw_widths *w, const struct ctw_model *m);
    /* Floating-point operations of a token in a layer, without products; NULL: 0. */
    double (*flops)(const struct ctw_model *m, const struct ctw_layer *l);

    /* Where the chunk's embedding is to be written, [n_tok, hidden] of CTW_RESIDUAL, contiguous;
     * begin() then makes the stream of it. */
    void *(*embedding)(const struct ctw_step *s);
    enum ctw_status (*begin)(const struct ctw_step *s, struct ctw_err *err);
    /* y [n_tok, hidden] = the branch's norm at `place` of what the branch reads, of the
     * activations' dtype. Marks rows that are not finite (s->stamp). May use f->wide. */
    enum ctw_status (*read)(const struct ctw_step *s, int place, void *y, struct ctw_err *err);
    /* Joins the branch's output x [n_tok, hidden], before its norm (CTW_AT_OUT) and its factor.
     * f->wide may hold x. */
    enum ctw_status (*join)(const struct ctw_step *s, const void *x, enum ctw_dtype x_dtype,
                            struct ctw_err *err);
    /* The chunk's streams, [n_tok, width]; NULL: branches may not read or change them. */
    float *(*streams)(const struct ctw_step *s);
    /* The rows from tok0 on to which a branch without such a norm or factor may add its output
     * itself; joined() ends that. Both NULL: none may, and no branch may have another beside it.
     * Does not read the step's chunk. */
    struct ctw_residual_rows (*rows)(const struct ctw_step *s, int64_t tok0);
    bool (*takes)(const struct ctw_layer *l, int branch); /* may this one? NULL: every one may */
    enum ctw_status (*joined)(const struct ctw_step *s, struct ctw_err *err);
    /* y [n_tok, hidden] = the head's norm (CTW_AT_IN) of tokens rows[0 .. n_tok - 1] (device). */
    enum ctw_status (*finish)(const struct ctw_step *s, const int64_t *rows, void *y,
                              struct ctw_err *err);
};

const struct ctw_residual_ops *ctw_residual_of(const struct ctw_layer *l);

/* Of a model: its layers have one kind. */
int64_t ctw_residual_width(const struct ctw_model *m);
/* Bytes of f->x for so many tokens. */
size_t ctw_residual_bytes(const struct ctw_model *m, int64_t n_tok);

#endif
