/* Features of n-grams: their builder, and their facts. */
#include "worker/model/recipe/ngram.h"

#include <inttypes.h>
#include <stdio.h>

#include "worker/model/families/family.h"
#include "worker/model/recipe/kinds.h"

static void linear(struct ctw_config *c, int64_t i, int matrix, const char *module, int64_t n,
                   int64_t k)
{
    ctw_describe_linear(c, i, CTW_NGRAM,
                        &(struct ctw_linear_rules){CTW_P_NGRAM_KV, matrix, 0, module, n, k});
}

void ctw_describe_ngram(struct ctw_config *c, int64_t i, const struct ctw_ngram *g,
                        const struct ctw_norm_form *norm, int64_t n_parts)
{
    char name[128];
    if (c->status != CTW_OK)
        return;
    struct ctw_layer *l = &c->model->layers[i + 1];
    const int64_t hidden = c->model->hidden, width = l->residual.gated_streams.n * hidden;
    const int64_t columns = ctw_ngram_columns(g);
    ctw_describe_kind(c, i, CTW_NGRAM, CTW_KIND_ngram)->ngram = *g;
    l->leads = CTW_NGRAM;
    for (int64_t p = 0; p < n_parts; p++) {
        (void)snprintf(name, sizeof(name),
                       "ple.ple_embedding.ngram_embedding.shard_%" PRId64 ".weight", p);
        ctw_describe_want(
            c, (struct ctw_want){.kind = CTW_WANT_TABLE, .layer = (int)i + 1, .k = g->dim}, name);
    }
    linear(c, i, CTW_M_NGRAM_KEY, "ple.key_proj", width, columns);
    linear(c, i, CTW_M_NGRAM_VALUE, "ple.value_proj", hidden, columns);
    ctw_describe_norm(c, i, ctw_norm_at(CTW_NGRAM, CTW_AT_NGRAM_KEY), norm, "ple.norm_key", width);
    ctw_describe_norm(c, i, ctw_norm_at(CTW_NGRAM, CTW_AT_NGRAM_X), norm, "ple.norm_query", width);
    ctw_describe_norm(c, i, ctw_norm_at(CTW_NGRAM, CTW_AT_NGRAM_CONV), norm, "ple.norm_conv",
                      width);
    ctw_describe_want(c,
                      (struct ctw_want){.kind = CTW_WANT_VECTOR,
                                        .layer = (int)i + 1,
                                        .role = ctw_vector_at(CTW_NGRAM, CTW_V_NGRAM_CONV),
                                        .n = width,
                                        .k = g->taps},
                      "ple.conv1d.weight");
}

static enum ctw_status check(const struct ctw_layer *l, int branch, struct ctw_err *err)
{
    const int64_t want = l->branch[branch].ngram.n_rows, found = l->table.row0[l->table.n];
    const int key = ctw_norm_at(branch, CTW_AT_NGRAM_KEY), x = ctw_norm_at(branch, CTW_AT_NGRAM_X);
    if (l->norm[key].offset != l->norm[x].offset) /* struct ctw_op_ngram_gate has one for both */
        return ctw_fail(err, CTW_EUNSUP,
                        "%s and %s: only one of them is stored as 1 + w; store both alike",
                        l->vector[ctw_norm_weight(key)]->name, l->vector[ctw_norm_weight(x)]->name);
    if (found == want)
        return CTW_OK;
    return ctw_fail(err, CTW_EFORMAT,
                    "%s and the %d tensors after it have %" PRId64 " rows, expected %" PRId64
                    " by ngram_vocab_size_base and the keys around it",
                    l->table.part[0]->name, l->table.n - 1, found, want);
}

const struct ctw_kind_row ctw_kind_ngram = {.name = "features of n-grams", .check = check};
