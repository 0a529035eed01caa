/* How a layer's branches meet the residual stream: a kind of list.h, the same for all layers of a
 * model. */
#ifndef CTW_WORKER_RECIPE_RESIDUAL_H
#define CTW_WORKER_RECIPE_RESIDUAL_H

#include "worker/model/recipe/list.h"
#include "worker/model/recipe/parts.h"

/* Of a stream beside which the embedding stays: what a branch reads, */
enum ctw_reads {
    CTW_READS_STREAM,
    CTW_READS_BOTH, /* the stream and, behind it, the embedding */
    CTW_READS_ASIDE /* what an earlier branch of the layer put aside */
};
/* and what becomes of its output. */
enum ctw_joins {
    CTW_JOINS_STREAM,      /* the stream becomes the sum */
    CTW_JOINS_ASIDE,       /* the output is put aside */
    CTW_JOINS_STREAM_ASIDE /* the sum of stream and output is put aside */
};

struct ctw_beside_embedding {
    enum ctw_reads reads[CTW_MAX_BRANCHES];
    enum ctw_joins joins[CTW_MAX_BRANCHES];
};

/* Of a stream beside which the output of one branch waits, from its layer to a later layer's end:
 * which branches' outputs wait, and at which branches' ends what waits joins the stream. */
struct ctw_shortcut {
    bool waits[CTW_MAX_BRANCHES], ends[CTW_MAX_BRANCHES];
};

/*
 * Of sums of blocks of layers: the embedding is sum 0, and the layers of block b add to sum b + 1.
 * A branch reads a blend (kernels/blend.h) of the first n sums, weighted by the product of its
 * vectors CTW_V_BLEND and, if there is one, CTW_V_BLEND_FACTOR, whose tensors the family describes.
 */
struct ctw_block_sums {
    int n_sums;    /* of the model */
    int n_read[2]; /* by the mixer, by the MLP; in the head's layer by the first */
    int adds_to;   /* this sum; the mixer of a block's first layer finds it empty */
    bool begins;   /* the layer is a block's first */
    float eps;
};

/*
 * Of several streams, mixed around each branch (hyper-connections): kernels/streams.h has their
 * arithmetic. Each branch has three vectors, CTW_V_MIX_FN [rows, n * hidden] and so on. If the
 * head's layer has them, too, the final norm's input is the streams' weighted sum, else their mean.
 */
struct ctw_streams {
    int n, n_sinkhorn; /* n_sinkhorn 0: branches do not mix the streams with each other */
    float eps, norm_eps;
    float post_factor, post_eps; /* post_factor 0: 2 */
};

/*
 * Of several streams, mixed around each branch by gates of each number:
 * worker/engine/pass/residuals.h has their arithmetic. Each branch has matrices CTW_M_MIX_DOWN and
 * so on, and its norm CTW_AT_IN is of the streams, each by itself, with weights of its own. The
 * head's layer has them, too, but for CTW_M_MIX_INJECT.
 */
struct ctw_gated_streams {
    int n;
    int64_t rank; /* rows of CTW_M_MIX_DOWN */
};

/*
 * Of several streams with alternating updates (AltUp, kernels/altup.h), for layers of attention, an
 * MLP and an own input: worker/engine/pass/residuals.h has their arithmetic. Laurel's matrices are
 * the mixer's CTW_M_MIX_DOWN and CTW_M_MIX_UP, its norm is CTW_AT_LAUREL. The mixer's vectors are
 * the router [n, hidden] (CTW_V_MIX_FN), its norm's weight (CTW_V_MIX_BASE) and the predictions'
 * coefficients (CTW_V_MIX_SCALE), the own input's those of the corrections, likewise, and the
 * factors of what it reads (CTW_V_MIX_BASE).
 */
struct ctw_alternating {
    int n, active; /* number of streams; index of the stream that branches read */
    float eps;     /* of the router's norm */
    bool scales;   /* what the own input reads is multiplied by factors */
    int64_t low;   /* Laurel's rank */
};

enum { CTW_AT_LAUREL = CTW_AT_SUM };

/* A kind with facts of its own has its struct in the union. All zeros is one stream. */
struct ctw_residual {
    enum ctw_residual_kind kind;
    union {
        struct ctw_beside_embedding beside_embedding;
        struct ctw_shortcut shortcut;
        struct ctw_block_sums block_sums;
        struct ctw_streams streams;
        struct ctw_gated_streams gated_streams;
        struct ctw_alternating alternating;
    };
};

struct ctw_config;
struct ctw_norm_form;

/* Keeps the embedding beside the stream in all layers. After ctw_describe_model(). */
void ctw_describe_beside_embedding(struct ctw_config *c);
/* What branch `branch` of decoder layer i reads and joins; otherwise the stream. */
void ctw_describe_aside(struct ctw_config *c, int64_t i, int branch, enum ctw_reads reads,
                        enum ctw_joins joins);

/* A stream with a shortcut in all layers. After ctw_describe_model(). */
void ctw_describe_shortcuts(struct ctw_config *c);
/* The output of decoder layer i's branch waits; and it joins the stream behind layer j's. */
void ctw_describe_shortcut(struct ctw_config *c, int64_t i, int branch, int64_t j, int end);

/* Sums of blocks of `size` layers. After ctw_describe_model(). */
void ctw_describe_block_sums(struct ctw_config *c, int64_t size, double eps);
/* The weights of a branch's blend: "NORM.weight" [hidden] and "FACTOR.weight" [1, hidden]; factor
 * NULL: "NORM.weight" alone. Layer n_decoders is the head's. */
void ctw_describe_blend(struct ctw_config *c, int64_t i, int branch, const char *norm,
                        const char *factor);
/* Several streams in all layers. After ctw_describe_model(). */
void ctw_describe_streams(struct ctw_config *c, const struct ctw_streams *s);
/* The tensors NAME_fn, NAME_base and NAME_scale of decoder layer i's branch; i = n_layers, branch
 * 0: those of the head. */
void ctw_describe_mix(struct ctw_config *c, int64_t i, int branch, const char *name);

/* Streams with alternating updates in all layers: the projections altup_projections.N from the
 * embedding, altup_unembed_projections.N to what the head reads. After ctw_describe_model(). */
void ctw_describe_altup(struct ctw_config *c, const struct ctw_alternating *a);
/* Decoder layer i's modules "altup" and "laurel". */
void ctw_describe_altup_layer(struct ctw_config *c, int64_t i, const struct ctw_norm_form *norm);

/* Streams mixed by gates in all layers. After ctw_describe_model(). */
void ctw_describe_gated_streams(struct ctw_config *c, const struct ctw_gated_streams *s);
/* The norm and matrices of decoder layer i's branch, MODULE.hc_norm and so on; i = n_layers, branch
 * 0: those of the head. */
void ctw_describe_gates(struct ctw_config *c, int64_t i, int branch,
                        const struct ctw_norm_form *norm, const char *module);

#endif
