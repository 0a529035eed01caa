/* The facts of kinds of residual streams (residual.h). */
#include <stdio.h>

#include "kernels/streams.h"
#include "worker/model/families/family.h"

void ctw_describe_beside_embedding(struct ctw_config *c)
{
    for (int i = 0; c->status == CTW_OK && i < c->model->n_layers; i++)
        c->model->layers[i].residual.kind = CTW_RESIDUAL_beside_embedding;
}

void ctw_describe_aside(struct ctw_config *c, int64_t i, int branch, enum ctw_reads reads,
                        enum ctw_joins joins)
{
    if (c->status != CTW_OK)
        return;
    struct ctw_beside_embedding *r = &c->model->layers[i + 1].residual.beside_embedding;
    r->reads[branch] = reads;
    r->joins[branch] = joins;
}

void ctw_describe_shortcuts(struct ctw_config *c)
{
    for (int i = 0; c->status == CTW_OK && i < c->model->n_layers; i++)
        c->model->layers[i].residual.kind = CTW_RESIDUAL_shortcut;
}

void ctw_describe_shortcut(struct ctw_config *c, int64_t i, int branch, int64_t j, int end)
{
    if (c->status != CTW_OK)
        return;
    c->model->layers[i + 1].residual.shortcut.waits[branch] = true;
    c->model->layers[j + 1].residual.shortcut.ends[end] = true;
}

void ctw_describe_block_sums(struct ctw_config *c, int64_t size, double eps)
{
    if (c->status != CTW_OK)
        return;
    const int n = c->model->n_decoders, per = (int)size;
    for (int i = 0; i < c->model->n_layers; i++) {
        const int layer = i - 1, block = i > n ? (n - 1) / per : i > 0 ? layer / per : -1;
        const bool begins = i > 0 && i <= n && layer % per == 0;
        struct ctw_residual *r = &c->model->layers[i].residual;
        r->kind = CTW_RESIDUAL_block_sums;
        r->block_sums = (struct ctw_block_sums){.n_sums = (n - 1) / per + 2,
                                                .n_read = {block + 2 - begins, block + 2},
                                                .adds_to = block + 1,
                                                .begins = begins,
                                                .eps = (float)eps};
    }
}

void ctw_describe_blend(struct ctw_config *c, int64_t i, int branch, const char *norm,
                        const char *factor)
{
    char name[256];
    (void)snprintf(name, sizeof(name), "%s.weight", norm);
    ctw_describe_vector(c, i, ctw_vector_at(branch, CTW_V_BLEND), name, c->model->hidden);
    if (factor == NULL)
        return;
    (void)snprintf(name, sizeof(name), "%s.weight", factor);
    ctw_describe_want(c,
                      (struct ctw_want){.kind = CTW_WANT_VECTOR,
                                        .layer = (int)i + 1,
                                        .role = ctw_vector_at(branch, CTW_V_BLEND_FACTOR),
                                        .n = 1,
                                        .k = c->model->hidden},
                      name);
}

void ctw_describe_streams(struct ctw_config *c, const struct ctw_streams *s)
{
    for (int i = 0; c->status == CTW_OK && i < c->model->n_layers; i++)
        c->model->layers[i].residual =
            (struct ctw_residual){.kind = CTW_RESIDUAL_streams, .streams = *s};
}

void ctw_describe_mix(struct ctw_config *c, int64_t i, int branch, const char *name)
{
    char full[128];
    if (c->status != CTW_OK)
        return;
    const struct ctw_streams *s = &c->model->layers[i + 1].residual.streams;
    const bool mixes = i < c->model->n_decoders;
    const int64_t n = s->n, rows = ctw_stream_rows(n, mixes, s->n_sinkhorn);
    (void)snprintf(full, sizeof(full), "%s_fn", name);
    ctw_describe_want(c,
                      (struct ctw_want){.kind = CTW_WANT_VECTOR,
                                        .layer = (int)i + 1,
                                        .role = ctw_vector_at(branch, CTW_V_MIX_FN),
                                        .n = rows,
                                        .k = n * c->model->hidden},
                      full);
    (void)snprintf(full, sizeof(full), "%s_base", name);
    ctw_describe_vector(c, i, ctw_vector_at(branch, CTW_V_MIX_BASE), full, rows);
    (void)snprintf(full, sizeof(full), "%s_scale", name);
    ctw_describe_vector(c, i, ctw_vector_at(branch, CTW_V_MIX_SCALE), full,
                        ctw_stream_scales(mixes, s->n_sinkhorn));
}

void ctw_describe_gated_streams(struct ctw_config *c, const struct ctw_gated_streams *s)
{
    for (int i = 0; c->status == CTW_OK && i < c->model->n_layers; i++)
        c->model->layers[i].residual =
            (struct ctw_residual){.kind = CTW_RESIDUAL_gated_streams, .gated_streams = *s};
}

static void describe_gate(struct ctw_config *c, int64_t i, int branch, const char *module,
                          const char *name, int product, int matrix, int64_t n, int64_t k)
{
    char full[256];
    (void)snprintf(full, sizeof(full), "%s.%s", module, name);
    ctw_describe_linear(c, i, branch, &(struct ctw_linear_rules){product, matrix, 0, full, n, k});
}

void ctw_describe_gates(struct ctw_config *c, int64_t i, int branch,
                        const struct ctw_norm_form *norm, const char *module)
{
    char name[256];
    if (c->status != CTW_OK)
        return;
    const struct ctw_gated_streams *s = &c->model->layers[i + 1].residual.gated_streams;
    const int64_t width = s->n * c->model->hidden;
    (void)snprintf(name, sizeof(name), "%s.hc_norm", module);
    ctw_describe_norm(c, i, ctw_norm_at(branch, CTW_AT_IN), norm, name, width);
    describe_gate(c, i, branch, module, "input_mix_weight_down", CTW_P_MIX_DOWN, CTW_M_MIX_DOWN,
                  s->rank, width);
    if (i < c->model->n_decoders)
        describe_gate(c, i, branch, module, "block_inject_weight", CTW_P_MIX_DOWN, CTW_M_MIX_INJECT,
                      s->n, width);
    describe_gate(c, i, branch, module, "input_mix_weight_up", CTW_P_MIX_UP, CTW_M_MIX_UP, width,
                  s->rank);
}

/* The first layer has all projections in one product, the last a product for each. */
static void describe_projections(struct ctw_config *c, int64_t i, const char *module, int n)
{
    const int64_t hidden = c->model->hidden;
    char name[128];
    for (int j = 0; j < n; j++) {
        (void)snprintf(name, sizeof(name), "%s.%d", module, j);
        ctw_describe_linear(c, i, 0,
                            &(struct ctw_linear_rules){CTW_P_ALTUP + (i < 0 ? 0 : j),
                                                       CTW_M_ALTUP + j, 0, name, hidden, hidden});
    }
}

void ctw_describe_altup(struct ctw_config *c, const struct ctw_alternating *a)
{
    if (c->status != CTW_OK)
        return;
    for (int i = 0; i < c->model->n_layers; i++)
        c->model->layers[i].residual =
            (struct ctw_residual){.kind = CTW_RESIDUAL_alternating, .alternating = *a};
    describe_projections(c, CTW_EMBEDDING, "model.altup_projections", a->n - 1);
    describe_projections(c, c->model->n_decoders, "model.altup_unembed_projections", a->n - 1);
}

static void describe_coefficients(struct ctw_config *c, int64_t i, int branch, int role,
                                  const char *name, int64_t n, int64_t k)
{
    ctw_describe_want(c,
                      (struct ctw_want){.kind = CTW_WANT_VECTOR,
                                        .layer = (int)i + 1,
                                        .role = ctw_vector_at(branch, role),
                                        .n = n,
                                        .k = k},
                      name);
}

void ctw_describe_altup_layer(struct ctw_config *c, int64_t i, const struct ctw_norm_form *norm)
{
    if (c->status != CTW_OK)
        return;
    const struct ctw_alternating *a = &c->model->layers[i + 1].residual.alternating;
    const int64_t hidden = c->model->hidden, n = a->n;
    describe_coefficients(c, i, CTW_MIXER, CTW_V_MIX_FN, "altup.modality_router.weight", n, hidden);
    ctw_describe_vector(c, i, ctw_vector_at(CTW_MIXER, CTW_V_MIX_BASE), "altup.router_norm.weight",
                        hidden);
    describe_coefficients(c, i, CTW_MIXER, CTW_V_MIX_SCALE, "altup.prediction_coefs.weight", n * n,
                          n);
    describe_coefficients(c, i, CTW_OWN_INPUT, CTW_V_MIX_SCALE, "altup.correction_coefs.weight", n,
                          n);
    if (a->scales)
        ctw_describe_vector(c, i, ctw_vector_at(CTW_OWN_INPUT, CTW_V_MIX_BASE),
                            "altup.correct_output_scale", hidden);
    else
        ctw_describe_want(c, (struct ctw_want){.kind = CTW_WANT_UNUSED, .layer = (int)i + 1},
                          "altup.correct_output_scale");
    ctw_describe_linear(c, i, CTW_MIXER,
                        &(struct ctw_linear_rules){CTW_P_MIX_DOWN, CTW_M_MIX_DOWN, 0,
                                                   "laurel.linear_left", a->low, hidden});
    ctw_describe_linear(c, i, CTW_MIXER,
                        &(struct ctw_linear_rules){CTW_P_MIX_UP, CTW_M_MIX_UP, 0,
                                                   "laurel.linear_right", hidden, a->low});
    ctw_describe_norm(c, i, ctw_norm_at(CTW_MIXER, CTW_AT_LAUREL), norm, "laurel.post_laurel_norm",
                      0);
}
