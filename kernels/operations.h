/*
 * What every numeric operation computes, and its arguments. backend.h declares the calls, and says
 * what "device" memory is. The plain C definitions are kernels/cpu/c_*.c.
 *
 * Activations have one dtype (F32, BF16 or F16) throughout a model: arrays [n_tok, dim], row-major.
 * Every sum is accumulated in fp32 or better. Its order depends only on the row's own inputs and on
 * the shape in the other dimensions, never on n_tok, the row's position or the number of threads: a
 * row's result is bit-identical regardless of the other rows in the batch. Results are rounded
 * once, when stored.
 */
#ifndef CTW_KERNELS_OPERATIONS_H
#define CTW_KERNELS_OPERATIONS_H

#include <math.h>

#include "kernels/formats/format.h"
#include "kernels/quantise.h"
#include "kernels/relative.h"
#include "kernels/rotation.h"
#include "kernels/routing.h"

/* ---- linear ------------------------------------------------------------------------------- */

/* Rows of a linear layer: n rows of a stored matrix with its own format and scales: row0,
 * row0 + step, row0 + 2 step, .. Several shards may be rows of one matrix (a fused projection). */
struct ctw_shard {
    const struct ctw_weight *weight;
    const struct ctw_weight_data *data;
    int64_t row0, n;
    int64_t step;     /* 0: 1. 2: the other rows are another shard's (gate and up in turn) */
    const void *bias; /* device, of bias_dtype: row i's is element i * step; NULL: none */
    enum ctw_dtype bias_dtype;
    const struct ctw_quantise *input, *output; /* how x, and sum + bias, are quantised; NULL: not */
    const struct ctw_rotation *rotate_in, *rotate_out; /* of x before, of sum + bias; NULL: none */
};

static inline int64_t ctw_shard_step(const struct ctw_shard *s)
{
    return s->step == 0 ? 1 : s->step;
}

/* All rows of a matrix, without a bias. */
static inline struct ctw_shard ctw_shard_of(const struct ctw_weight *weight,
                                            const struct ctw_weight_data *data)
{
    struct ctw_shard s = {weight, data, 0, weight->n, 1, NULL, CTW_F32, NULL, NULL, NULL, NULL};
    return s;
}

enum ctw_activation {
    CTW_ACT_SILU,
    CTW_ACT_GELU,
    CTW_ACT_GELU_TANH,
    CTW_ACT_RELU,
    CTW_ACT_RELU2, /* the square of relu */
    /* Of ctw_act() alone, with parameters: */
    CTW_ACT_XIELU, /* {ap, an, beta, eps}: ap g^2 + beta g if g > 0, else
                      (expm1(min(g, eps)) - g) an + beta g */
    CTW_ACT_CLIP,  /* {limit}: -limit..limit */
    CTW_ACT_SIGMOID
};

enum ctw_epilogue {
    CTW_EPI_STORE,  /* y[t, o] = sum + bias */
    CTW_EPI_ADD,    /* y[t, o] = y[t, o] + (sum + bias), in fp32, rounded once to residual_dtype */
    CTW_EPI_GATE,   /* two shards of n rows: y[t, o] = act(gate) * up (see ctw_glu); ldy >= n */
    CTW_EPI_LOGITS, /* y[t, o] = sum + bias, in fp32; w is not rounded to `dtype` */
    CTW_EPI_SCATTER /* y[r, o] = y[r, o] + f * (sum + bias), in fp32, rounded once to fp32:
                       r = y_rows[t], f = y_weight[t] */
};

/* How CTW_EPI_GATE joins a gate g and an up u. clamp(x) is x within -limit..limit; a limit of
 * infinity clamps nothing. NaN stays NaN. */
enum ctw_glu_kind {
    CTW_GLU_PLAIN,       /* act(g) * u */
    CTW_GLU_CLAMPED,     /* act(min(g, limit)) * clamp(u) */
    CTW_GLU_CLAMPED_ACT, /* min(act(g), limit) * clamp(u) */
    CTW_GLU_OFFSET,      /* m * sigmoid(alpha * m) * (clamp(u) + 1), m = min(g, limit); no act */
    CTW_GLU_SLOPED,      /* m * sigmoid(alpha * m) * clamp(u), m = min(g, limit); no act */
    /* alpha * tanh(g / alpha) * sigmoid(g) * limit * tanh(u / limit), or u if limit is infinity */
    CTW_GLU_BOUNDED
};

struct ctw_glu {
    enum ctw_glu_kind kind;
    float limit, alpha;
};

enum { CTW_ACT_PARAMS = 4, CTW_MAX_SHARDS = 24, CTW_EXPERTS_IN_FLIGHT = 4 };

/* Which product of a layer this is. Each slot has its own memory for weights decoded ahead. */
enum { CTW_LAYER_SLOTS = 92 };
enum ctw_slot {
    CTW_SLOT_FIRST,
    CTW_SLOT_EXPERTS = CTW_LAYER_SLOTS, /* and on: see ctw_expert_slot() */
    CTW_N_SLOTS = CTW_SLOT_EXPERTS + 2 * CTW_EXPERTS_IN_FLIGHT
};

/* Expert i's first product (gate and up, or up alone) and its second (down). Consecutive experts
 * have other slots, so that some are decoded while the ones before them compute. */
static inline enum ctw_slot ctw_expert_slot(int64_t i, bool down)
{
    return (enum ctw_slot)(CTW_SLOT_EXPERTS + 2 * (int)(i % CTW_EXPERTS_IN_FLIGHT) + down);
}

/*
 * y[t, o] = epilogue(sum over i of x[t, i] * w[o, i]); w is the shards' rows, concatenated, each
 * rounded to `dtype`. With x_rows, row t of x is row x_rows[t] of the array; with x_weight, that
 * row times x_weight[t], rounded to `dtype`.
 */
struct ctw_op_linear {
    const struct ctw_shard *shards;
    int n_shards; /* 1..CTW_MAX_SHARDS; all have the same k */
    enum ctw_slot slot;
    enum ctw_dtype dtype;
    enum ctw_epilogue epilogue;
    enum ctw_activation act;       /* CTW_EPI_GATE only; without parameters */
    struct ctw_glu glu;            /* likewise */
    enum ctw_dtype residual_dtype; /* CTW_EPI_ADD only: dtype of y, which is F32 with
                                      CTW_EPI_LOGITS and CTW_EPI_SCATTER, and otherwise `dtype` */
    int64_t n_tok;
    const void *x; /* device [n_tok, k], leading dimension ldx */
    int64_t ldx;
    const int32_t *x_rows; /* device [n_tok], or NULL: row t. With CTW_EPI_GATE and CTW_EPI_STORE */
    const float *x_weight; /* device [n_tok], or NULL: 1. With x_rows */
    void *y;               /* device, must not overlap x */
    int64_t ldy;
    const int32_t *y_rows; /* CTW_EPI_SCATTER only: device [n_tok], no row twice; NULL: row t */
    const float *y_weight; /* CTW_EPI_SCATTER only: device [n_tok]; NULL: 1 */
};

/* The dtype of y. */
static inline enum ctw_dtype ctw_linear_y_dtype(const struct ctw_op_linear *op)
{
    bool wide = op->epilogue == CTW_EPI_LOGITS || op->epilogue == CTW_EPI_SCATTER;
    return wide ? CTW_F32 : op->epilogue == CTW_EPI_ADD ? op->residual_dtype : op->dtype;
}

/* ---- elementwise -------------------------------------------------------------------------- */

/* y[t] = table[tokens[t]] * scale, or y[t] + that, in fp32, rounded once. */
struct ctw_op_embed {
    const struct ctw_shard *table; /* token id0 + i is the shard's row i */
    enum ctw_dtype dtype;
    float scale;
    bool add;
    int64_t n_tok;
    const int32_t *tokens; /* device [n_tok], checked; with `add`, others take the first row */
    void *y;               /* device [n_tok, k] */
    int32_t id0;           /* 0 unless in_part */
    bool in_part; /* `table`, dense, has only some tokens' rows: others' y stays; without `add` */
};

enum ctw_norm_kind {
    CTW_NORM_RMS,   /* x / sqrt(mean(x^2) + eps) */
    CTW_NORM_LAYER, /* (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) */
    CTW_NORM_NONE,  /* x */
    CTW_NORM_CUTOFF /* max(0, x - mean(x) - eps * sqrt(mean((x - mean(x))^2))), before factor */
};

/*
 * A row of x is n_groups groups of dim elements, each normalised by itself:
 *     v = normalised * (weight + weight_offset) + bias;  y = factor * v, or y + factor * v.
 * In fp32, rounded once. Row t of y comes from row t of x, or from row rows[t].
 */
struct ctw_op_norm {
    enum ctw_norm_kind kind;
    enum ctw_dtype dtype; /* dtype of y */
    int64_t n_tok, dim;
    int64_t n_groups; /* 0: 1 */
    const void *x;    /* device [.., ldx] of x_dtype */
    int64_t ldx;      /* 0: n_groups * dim */
    enum ctw_dtype x_dtype;
    const int64_t *rows; /* device [n_tok], or NULL */
    const void *weight;  /* device [dim], or [n_groups, dim], of weight_dtype; NULL: ones */
    const void *bias;    /* likewise; NULL: zeros */
    bool own_weights;    /* each group has its own row of weight and bias */
    enum ctw_dtype weight_dtype, bias_dtype;
    float weight_offset; /* with a weight */
    float eps;
    float factor; /* 0: 1 */
    bool add;
    void *y;     /* device [n_tok, ldy]; may be x if dtypes and ld are equal and rows is NULL */
    int64_t ldy; /* 0: n_groups * dim */
    /*
     * device, one element per row of x, or NULL. If an element of row r, or the sum of the squares
     * of its first group, is not finite and bad[r] is negative, bad[r] = stamp: the first operation
     * that finds a bad row marks it. With bad, n_groups is 1.
     */
    int16_t *bad;
    int16_t stamp;
};

/* y[t, i] = act(x[t, i]) * up[t, i], in fp32, rounded once */
struct ctw_op_act {
    enum ctw_activation act;
    float param[CTW_ACT_PARAMS]; /* the activation's */
    enum ctw_dtype dtype;
    int64_t n_tok, dim;
    const void *x; /* device [n_tok, ldx] */
    int64_t ldx;
    const void *up; /* device [n_tok, ldup], or NULL: ones */
    int64_t ldup;
    void *y; /* device [n_tok, ldy]; may be x if ldy is ldx */
    int64_t ldy;
};

enum ctw_rope_pairing {
    CTW_ROPE_HALVES,     /* element i pairs with element i + rot_dim / 2 (Hugging Face Llama) */
    CTW_ROPE_INTERLEAVED /* element 2i pairs with element 2i + 1 */
};

/* Columns of a row of qkv. Query head h reads key head g = h / r, r = n_head / n_kv. */
struct ctw_qkv_columns {
    int64_t ld;              /* of a row; 0: q, k and v are side by side, and nothing else is set */
    int64_t q, k, v;         /* of the first query, key and value head */
    int64_t q_step, kv_step; /* from g to g + 1. Query head h is at q + g q_step + h % r * q_head */
    int64_t q_head;          /* 0: head; more: something else is behind each query head */
};

/*
 * Splits qkv [n_tok, ld] into q, k and v. With q_norm / k_norm, RMS-normalises each head. Rotates
 * the first rot_dim elements of each query and key head by the row of cos_sin that the token's
 * position names: (a, b) -> (a cos - b sin, b cos + a sin). Multiplies queries by q_factor.
 * Computes in fp32 and rounds once. rot_dim 0: no RoPE.
 */
struct ctw_op_qkv {
    enum ctw_dtype dtype;
    int64_t n_tok;
    int n_head, n_kv, head; /* head: elements of one head */
    const void *qkv;
    struct ctw_qkv_columns columns;
    const void *q_norm, *k_norm; /* device [head] of norm_dtype, or NULL */
    enum ctw_dtype norm_dtype;
    float norm_offset; /* added to the norms' weights */
    float norm_eps;
    enum ctw_rope_pairing pairing;
    int rot_dim;
    const int32_t *positions; /* device [n_tok] */
    const float *cos_sin;  /* device [max position + 1, rot_dim]: rot_dim/2 cosines, then sines */
    const float *q_factor; /* device [max position + 1], or NULL: ones */
    void *q;               /* device [n_tok, n_head * head] */
    void *k, *v;           /* device [n_tok, n_kv * head]; v, or both, NULL: not wanted */
};

/*
 * The heads of latent attention. A query or key head is [part of its own | part that turns], of
 * `own` and `turning` elements. Row t of kv has, for each head, its key's own part and its value;
 * the turning part of a token's keys is the same in all heads. Turning parts are rotated, and
 * queries multiplied by q_factor, as in ctw_op_qkv, with rot_dim = turning. q stays in its place.
 */
struct ctw_op_latent {
    enum ctw_dtype dtype;
    int64_t n_tok;
    int n_head, own, turning, head_v;
    void *q;              /* device [n_tok, n_head * (own + turning)], changed in place */
    const void *kv;       /* device [n_tok, n_head * (own + head_v)] */
    const void *k_turned; /* device [n_tok, ld_turned], of which `turning` columns are read */
    int64_t ld_turned;
    enum ctw_rope_pairing pairing;
    const int32_t *positions; /* device [n_tok] */
    const float *cos_sin;     /* device [max position + 1, turning]; NULL: nothing is rotated */
    const float *q_factor;    /* device [max position + 1], or NULL: ones */
    void *k;                  /* device [n_tok, n_head * (own + turning)] */
    void *v;                  /* device [n_tok, n_head * head_v] */
};

enum ctw_gate_kind {
    CTW_GATE_NONE, /* no operation has it */
    CTW_GATE_SIGMOID,
    CTW_GATE_SOFTPLUS
};

/* y[t, g * size + i] = y[t, g * size + i] * gate(x[t, column(g)]) for n_groups groups of size
 * elements, in fp32, rounded once; column(g) = g / run * step + g % run */
struct ctw_op_gate {
    enum ctw_gate_kind kind;
    enum ctw_dtype dtype;
    int64_t n_tok, n_groups, size;
    const void *x; /* device [n_tok, ldx] */
    int64_t ldx;
    int64_t run, step; /* run 0: column(g) = g */
    void *y;           /* device [n_tok, ldy], must not overlap x */
    int64_t ldy;
};

/* The column of x that gates group g. */
CTW_HD int64_t ctw_gate_column(const struct ctw_op_gate *op, int64_t g)
{
    return op->run == 0 ? g : g / op->run * op->step + g % op->run;
}

/* ---- attention ---------------------------------------------------------------------------- */

enum { CTW_MAX_HEAD = 512 }; /* elements of a query, key or value head */

/* Rows row .. row+n_tok-1 of the key and value arrays. */
struct ctw_kv_run {
    int64_t row;
    int64_t n_tok;
};

/*
 * The queries of one sequence in this call: rows q_row .. q_row+n_q-1 of q and out, at positions
 * pos0 .. pos0+n_q-1. The sequence's keys and values are runs[0 .. n_runs-1] concatenated, from
 * position 0, at least pos0 + n_q of them. Results do not depend on how the keys are split into
 * runs, nor on how the queries of a sequence are split into calls.
 */
struct ctw_attn_seq {
    int64_t q_row, n_q, pos0;
    const struct ctw_kv_run *runs;
    int n_runs;
};

/*
 * out = softmax(scale * q k^T, causal) v, with grouped heads (query head h uses key head
 * h / (n_head / n_kv)); scores, softmax and sums in fp32.
 *
 * With sinks, the softmax of query head h has one additional logit, sinks[h], which is neither
 * scaled nor capped. Every query sees it, and it has no value: for scores s and m = the maximum of
 * s and sinks[h], the weight of key j is
 *     exp(s[j] - m) / (exp(sinks[h] - m) + sum over keys of exp(s - m)).
 * A sink of -infinity gives the same bits as no sink. A sink of NaN or +infinity makes all results
 * of the head NaN.
 *
 * With ALiBi, slope[h] * (j - i) is added to the scaled score of the query at position i and the
 * key at position j. A relative bias is added likewise.
 */
struct ctw_op_attention {
    enum ctw_dtype dtype;
    int n_head, n_kv, head;
    int head_v; /* elements of a value head, at most CTW_MAX_HEAD; 0: head */
    float scale;
    int64_t window; /* number of keys a query sees, including its own; 0: all */
    int64_t chunk; /* a query at i sees keys j with j / chunk = i / chunk; 0: all. Not with window */
    float v_factor; /* of values, applied to their weighted sum; 0: 1 */
    /* device [rows of q, ld_seen]: of the keys above, a query sees key j if bit j % 32 of word j /
     * 32 is set; NULL: all of them. Words past the query's own key may hold anything. Not with
     * chunk, softcap or alibi; scale is positive. */
    const uint32_t *seen;
    int64_t ld_seen;
    int64_t seen_head; /* key head g's are from g * seen_head on; 0: all heads' are the same */
    int64_t seen_from; /* queries at lower positions have all bits set */
    float softcap;     /* 0: none; else scores become softcap * tanh(score / softcap) */
    const void *sinks; /* device [n_head] of sinks_dtype, or NULL */
    enum ctw_dtype sinks_dtype;
    const float *alibi;              /* device [n_head]: the slopes, or NULL; not with softcap */
    struct ctw_relative relative;    /* with no chunk, softcap, alibi, seen, v_factor, own head_v */
    const void *q;                   /* device [rows, n_head * head] */
    const void *k;                   /* device [rows, n_kv * head] */
    const void *v;                   /* device [rows, n_kv * head_v] */
    void *out;                       /* device [rows, n_head * head_v] */
    const struct ctw_attn_seq *seqs; /* host */
    int64_t n_seqs;
};

/* The position of the first key that the query at position pos sees. */
static inline int64_t ctw_attn_first(const struct ctw_op_attention *op, int64_t pos)
{
    if (op->chunk > 0)
        return pos - pos % op->chunk;
    return op->window > 0 && pos >= op->window ? pos + 1 - op->window : 0;
}

/* ---- LM head ------------------------------------------------------------------------------ */

struct ctw_head_result { /* of one target */
    float logprob;       /* log softmax(logits)[target], natural log */
    int32_t greedy;      /* the lowest id with the largest logit */
};

/* What turns a row's logits into log-probabilities: logit - largest - ln_sum. */
struct ctw_head_norm {
    double largest, ln_sum; /* ln_sum: of the sum of exp(logit - largest) */
};

/*
 * logits = cap(scale * (x w^T + bias)) over the first n_vocab rows of w, in fp32, the sums being
 * quantised if the shard's output is; only stored if `logits` says where, which does not change
 * `out`. If a logit of a row is NaN or +infinity, or no logit is finite, its targets' logprob is
 * NaN and its ln_sum not finite; its greedy is within 0..n_vocab-1 but meaningless. With unit_rows,
 * a row of w, already rounded to dtype, is divided by its length, and rounded again: in fp32, by
 * ctw_unit_length() of the sum of its squares in double.
 * The weight's shard is a whole matrix: w, or rows of it from id0 on. Such parts come in order,
 * from multiples of ctw_backend_head_rows() on; the last, which reaches n_vocab, completes the
 * results, with the bits of the whole. No operation comes between them.
 */
struct ctw_op_head {
    const struct ctw_shard *weight;
    enum ctw_dtype dtype;
    float scale;
    float softcap;   /* 0: none */
    int64_t n_vocab; /* rows of w that are tokens */
    int64_t n_rows;
    const void *x;               /* device [n_rows, k] */
    const int32_t *targets;      /* device, 0..n_vocab-1 */
    struct ctw_head_result *out; /* device, of each target; holds logits between parts of a head */
    float *logits;               /* device [n_rows, ld_logits], aligned to 64 bytes, or NULL */
    int64_t ld_logits; /* a multiple of CTW_LOGITS_ALIGN; columns behind n_vocab are undefined */
    struct ctw_head_norm *norms; /* device [n_rows]; with logits */
    bool unit_rows;              /* of w (Baichuan 2) */
    int64_t id0;                 /* the token of the shard's first row */
    const int32_t *first_target; /* device [n_rows + 1], or NULL: see head_targets.h */
};

enum { CTW_LOGITS_ALIGN = 16 };

/* A row's length, of its squares' sum; at least 1e-12, as in torch's normalize(). */
CTW_HD float ctw_unit_length(double squares)
{
    return squares < 1e-24 ? 1e-12f : (float)sqrt(squares);
}

/* The logits of n_vocab ids for some rows, as ctw_head() left them. */
struct ctw_logits {
    int64_t n_vocab;
    const float *logits; /* device [n_rows, ld] */
    int64_t ld;
    const struct ctw_head_norm *norms; /* device [n_rows] */
};

/* How two models' predictions differ for one row. */
struct ctw_divergence_result {
    float kl, kl_reverse; /* KL(reference || model), KL(model || reference), in nats */
    float tv;             /* total variation, 0..1 */
    float ref_top;        /* the reference's largest log-probability */
    int32_t overlap5;     /* ids among both models' five largest logits (ties: the lower id) */
};

/*
 * Compares two models over the ids that both have: the first n = min(n_vocab) of each. With
 * unequal n_vocab, p (reference) and q (model) are the softmax of these n logits; ref_top is always
 * of all the reference's ids.
 *     kl = sum of p ln(p / q) - p + q    kl_reverse = sum of q ln(q / p) - q + p
 *     tv = sum of |p - q| / 2
 * No term is negative, and none depends in first order on an error of a normaliser. Equal logits
 * give exactly 0. An id with logit -infinity in one model only makes one of kl and kl_reverse
 * infinite. If the ln_sum of either row is not finite (or, with unequal n_vocab, none of its n
 * logits is), its kl, kl_reverse and tv are NaN, and overlap5 is meaningless.
 */
struct ctw_op_divergence {
    int64_t n_rows;
    struct ctw_logits model, reference;
    struct ctw_divergence_result *out; /* device [n_rows] */
};

/* ---- residual streams --------------------------------------------------------------------- */

/* How y differs from x over the rows of one sequence. Sums are in double. */
struct ctw_difference_result {
    double reference;     /* sum of x^2 */
    double error;         /* sum of (y - x)^2 */
    double cosine;        /* sum over rows of x.y / (|x| |y|); 1 if both are 0, 0 if one is */
    double relative;      /* sum over rows of |y - x| / |x|; 0 if both are 0, 1 if only x is */
    double channel_error; /* sum of (y - x)^2 over the rows of one channel: the largest such sum */
    int64_t channel;      /* that channel; the lowest among equals */
};

enum { CTW_DIFFERENCE_BLOCK = 128 }; /* channels */

/* Of one row, and of one sequence's block of channels. */
struct ctw_difference_row {
    double reference, error, cosine, relative;
};
struct ctw_difference_channel {
    double error;
    int64_t channel;
};

/*
 * Compares two residual streams sequence by sequence. Equal rows give an error of exactly 0 and a
 * cosine of exactly 1. A result depends on the sequence's own rows alone. With a NaN in a row,
 * `channel` is meaningless, and the sums are NaN.
 */
struct ctw_op_difference {
    int64_t n_seqs, n_rows, dim;
    const int64_t *start; /* device [n_seqs + 1]: sequence i is rows start[i] .. start[i + 1] - 1 */
    const float *x, *y;   /* device [n_rows, dim]; x is the reference's */
    struct ctw_difference_row *rows;         /* device [n_rows], for intermediate results */
    struct ctw_difference_channel *channels; /* device [n_seqs, blocks of dim], likewise */
    struct ctw_difference_result *out;       /* device [n_seqs] */
};

static inline int64_t ctw_difference_blocks(int64_t dim)
{
    return (dim + CTW_DIFFERENCE_BLOCK - 1) / CTW_DIFFERENCE_BLOCK;
}

/* ---- decoding ----------------------------------------------------------------------------- */

/* dst = rows row0 .. row0+n_rows-1 of a shard in `dtype`, as decompress() returns them. */
struct ctw_op_decode {
    const struct ctw_shard *shard;
    int64_t row0, n_rows;
    enum ctw_dtype dtype;
    void *dst; /* device [n_rows, k] */
};

#endif
