/*
 * What a kind of branch does, one row a kind, from mixers/ or mlps/: what it takes of memory and of
 * time, and how it runs. The planner, the pass and the forward code ask these rows alone.
 */
#ifndef CTW_WORKER_KINDS_H
#define CTW_WORKER_KINDS_H

#include "worker/engine/pass/carry.h"
#include "worker/engine/pass/plan.h"
#include "worker/engine/pass/residuals.h"
#include "worker/model/recipe/kinds.h"

/* The largest widths over all branches, in elements. */
struct ctw_widths {
    int64_t norm, wide;        /* wide: of a token; see struct ctw_forward */
    int64_t inner_k;           /* the largest inner dimension of a product */
    int64_t rot;               /* of all tables of positions together */
    int64_t relative;          /* of a learned bias's proj */
    int64_t head, group;       /* of attention: elements of a head, query heads of a key head */
    int64_t n_experts, chosen; /* of a mixture */
    int64_t expert_inner;
    int64_t state; /* elements of a head's recurrent state, padded */
    bool sum;      /* some layer has an array for its experts' sum */
    bool identity; /* some layer has experts that give what they read */
    bool chooses;  /* sparse attention */
};

/* In elements. What is in `wide` begins at a multiple of this; parts that begin so, beside the
 * first. */
enum { CTW_WIDE_ALIGN = 128, CTW_PARTS_OF_WIDE = 3 };

static inline int64_t ctw_wide_up(int64_t elements)
{
    return (elements + CTW_WIDE_ALIGN - 1) / CTW_WIDE_ALIGN * CTW_WIDE_ALIGN;
}

struct ctw_expert_products {
    const struct ctw_product *up, *down;
    bool gated;
    int64_t width; /* of what they read */
    int64_t inner;
    int chosen; /* by a token */
};

struct ctw_step;

/* Called when n_rows choices of tokens are computed. A failure ends the computation. */
typedef enum ctw_status ctw_rows_done(void *arg, int64_t n_rows, struct ctw_err *err);

struct ctw_kind_ops {
    /* Raises w to what the branch needs for sequences of `longest` tokens. */
    void (*widen)(struct ctw_widths *w, const struct ctw_layer *l, int branch, int64_t longest);
    /* What the branch's tokens leave behind for sequences of up to `longest`; NULL: nothing. */
    void (*carry)(const struct ctw_model *m, const struct ctw_branch *b, int64_t longest,
                  enum ctw_dtype dtype, struct ctw_carry_rule rules[CTW_BRANCH_CARRIES]);
    /* Of a product, for ctw_prepare(); NULL: ctw_step_join()'s for the first product that it
     * names, and otherwise CTW_EPI_STORE. */
    enum ctw_epilogue (*epilogue)(const struct ctw_layer *l, int branch, int product);
    int joins; /* the product that ctw_step_join() adds to the residual */
    /* Floating-point operations of a query that sees n_keys keys; NULL: 0. */
    double (*key_flops)(const struct ctw_branch *b, int64_t n_keys);
    /* Of the layer's experts; NULL: it has none. */
    struct ctw_expert_products (*experts)(const struct ctw_branch *b);
    /* On a chunk; what it reads is in f->norm, unless it reads the residual itself. */
    enum ctw_status (*run)(const struct ctw_step *s, struct ctw_err *err);
    bool reads;
    /* NULL, or: for all n_tok tokens of the pass, after all chunks' run() (s->chunk is not read).
     * Then end() for each chunk. */
    enum ctw_status (*run_pass)(const struct ctw_step *s, int64_t n_tok, ctw_rows_done *done,
                                void *arg, struct ctw_err *err);
    enum ctw_status (*end)(const struct ctw_step *s, struct ctw_err *err);
};

const struct ctw_kind_ops *ctw_ops_of(const struct ctw_branch *b);

/* What the branch's tokens leave behind: the kind's, and the convolution's of the output. */
void ctw_branch_carry(const struct ctw_model *m, const struct ctw_branch *b, int64_t longest,
                      enum ctw_dtype dtype, struct ctw_carry_rule rules[CTW_BRANCH_CARRIES]);

/* The epilogue of a layer's product. */
enum ctw_epilogue ctw_product_epilogue(const struct ctw_layer *l, int product);
/* Has the residual rows to which the branch may add its output itself? */
static inline bool ctw_branch_has_rows(const struct ctw_layer *l, int branch)
{
    const struct ctw_residual_ops *r = ctw_residual_of(l);
    return r->rows != NULL && (r->takes == NULL || r->takes(l, branch));
}

/* Does a branch's last product add to the residual itself, since the residual's kind allows it and
 * no norm, factor or convolution comes between? */
static inline bool ctw_branch_is_direct(const struct ctw_layer *l, int branch)
{
    return ctw_branch_has_rows(l, branch) && !l->norm[ctw_norm_at(branch, CTW_AT_OUT)].present &&
           l->branch[branch].factor == 1 && l->branch[branch].conv_taps == 0;
}

static inline int64_t ctw_max64(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static inline int64_t ctw_min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

#endif
