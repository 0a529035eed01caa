/* A dense MLP: its builder (family.h), and its facts. */
#include <assert.h>
#include <stdio.h>

#include "kernels/math.h"
#include "worker/model/families/family.h"
#include "worker/model/recipe/kinds.h"

static int branch_of(const struct ctw_mlp *mlp)
{
    return mlp->branch != 0 ? mlp->branch : CTW_MLP;
}

static void describe_adapter(struct ctw_config *c, int64_t i, const struct ctw_mlp *mlp)
{
    enum { MAX_NAME = 512 };
    const int64_t r = mlp->adapter_rank;
    char name[MAX_NAME];
    assert(mlp->fused && !mlp->up_first && !mlp->interleaved && mlp->glu.kind == CTW_GLU_PLAIN);
    snprintf(name, sizeof(name), "%s.0", mlp->adapter);
    ctw_describe_linear(c, i, branch_of(mlp),
                        &(struct ctw_linear_rules){CTW_P_ADAPT_UP_IN, CTW_M_ADAPT_UP_IN, 0, name, r,
                                                   c->model->hidden});
    snprintf(name, sizeof(name), "%s.1", mlp->adapter);
    ctw_describe_linear(
        c, i, branch_of(mlp),
        &(struct ctw_linear_rules){CTW_P_ADAPT_UP, CTW_M_ADAPT_UP, 0, name, 2 * mlp->inner, r});
}

struct ctw_dense ctw_describe_dense(struct ctw_config *c, int64_t i, const struct ctw_mlp *mlp)
{
    const int branch = branch_of(mlp), matrix = ctw_matrix_at(branch, CTW_M_GATE_UP);
    const int product = ctw_product_at(branch, CTW_P_GATE_UP);
    int64_t hidden = c->model->hidden, inner = mlp->inner;
    bool bias = mlp->bias;
    if (mlp->fused) {
        ctw_describe_matrix(c, i, matrix, ctw_name_or(mlp->gate_up, "mlp.gate_up_proj"), 2 * inner,
                            hidden);
        const int64_t step = mlp->interleaved ? 2 : 1, other = mlp->interleaved ? 1 : inner;
        int64_t gate = mlp->up_first ? other : 0, up = other - gate;
        ctw_describe_shard(c, i, product, (struct ctw_rows){matrix, gate, inner, -1, step});
        ctw_describe_shard(c, i, product, (struct ctw_rows){matrix, up, inner, -1, step});
    } else {
        if (!mlp->plain)
            ctw_describe_linear(
                c, i, branch,
                &(struct ctw_linear_rules){CTW_P_GATE_UP, CTW_M_GATE, bias ? CTW_V_GATE_BIAS : 0,
                                           ctw_name_or(mlp->gate, "mlp.gate_proj"), inner, hidden});
        ctw_describe_linear(
            c, i, branch,
            &(struct ctw_linear_rules){CTW_P_GATE_UP, CTW_M_UP, bias ? CTW_V_UP_BIAS : 0,
                                       ctw_name_or(mlp->up, "mlp.up_proj"), inner, hidden});
    }
    ctw_describe_linear(
        c, i, branch,
        &(struct ctw_linear_rules){CTW_P_DOWN, CTW_M_DOWN, bias ? CTW_V_DOWN_BIAS : 0,
                                   ctw_name_or(mlp->down, "mlp.down_proj"), hidden, inner});
    assert(mlp->cutoff == 0 || (!mlp->fused && !mlp->plain && mlp->glu.kind == CTW_GLU_PLAIN));
    return (struct ctw_dense){.inner = inner,
                              .gated = !mlp->plain,
                              .act = mlp->act,
                              .glu = mlp->glu,
                              .cutoff = (float)mlp->cutoff};
}

void ctw_describe_mlp(struct ctw_config *c, int64_t i, const struct ctw_mlp *mlp)
{
    struct ctw_branch *b = ctw_describe_kind(c, i, branch_of(mlp), CTW_KIND_dense);
    b->dense = ctw_describe_dense(c, i, mlp);
    if (mlp->adapter == NULL)
        return;
    b->dense.adapter_rank = mlp->adapter_rank;
    describe_adapter(c, i, mlp);
}

/* ---- facts -------------------------------------------------------------------------------- */

static double softplus(double x)
{
    return x > 30 ? x : ctw_ln(1 + ctw_exp(x));
}

void ctw_dense_take_numbers(struct ctw_dense *d, const double *v)
{
    d->act_param[0] = (float)softplus(v[0]);
    d->act_param[1] = (float)(v[2] + softplus(v[1]));
    d->act_param[2] = (float)v[2];
    d->act_param[3] = (float)v[3];
}

const char *ctw_dense_rotated_output(const struct ctw_dense *d, int product)
{
    return product == CTW_P_GATE_UP && d->gated && d->glu.kind != CTW_GLU_PLAIN
               ? "outputs of clamped gates are not supported"
               : NULL;
}

static struct ctw_facts facts(const struct ctw_branch *b)
{
    return (struct ctw_facts){.inner = b->dense.inner};
}

static void take_numbers(struct ctw_branch *b, const double *values)
{
    ctw_dense_take_numbers(&b->dense, values);
}

static const char *rotated_output(const struct ctw_branch *b, int product)
{
    return ctw_dense_rotated_output(&b->dense, product);
}

const struct ctw_kind_row ctw_kind_dense = {.name = "dense",
                                            .facts = facts,
                                            .numbers = CTW_V_ACT,
                                            .n_numbers = 4,
                                            .take_numbers = take_numbers,
                                            .rotated_output = rotated_output};
