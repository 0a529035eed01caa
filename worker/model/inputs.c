#include "worker/model/inputs.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "worker/model/names/names.h"
#include "worker/model/recipe/kinds.h"

enum { MAX_NAME = 512 };

static const char remedy[] = "score it with --activations=none, which quantises weights only";

static bool has_strategy(const struct ctw_quant_activations *a, const char *name)
{
    return strcmp(a->strategy, name) == 0;
}

static enum ctw_status cannot(const struct ctw_quant_activations *a, const char *why,
                              struct ctw_err *err)
{
    char text[96];
    ctw_quant_activations_text(a, text, sizeof(text));
    return ctw_fail(err, CTW_EUNSUP, "activations quantised as %s%s%s: %s; %s", text,
                    a->scale_dtype[0] != '\0' ? ", scales " : "", a->scale_dtype, why, remedy);
}

/* ---- from the scheme ---- */

static enum ctw_status read_codes(const struct ctw_quant_activations *a, struct ctw_quantise *q,
                                  struct ctw_err *err)
{
    if (a->is_float && !a->symmetric)
        return cannot(a, "floats with a zero point are not supported", err);
    if (!a->is_float && (a->num_bits < 2 || a->num_bits > 8))
        return cannot(a, "integers of 2 to 8 bits are supported", err);
    if (a->is_float && a->num_bits != 8 && a->num_bits != 4)
        return cannot(a, "floats of 8 and 4 bits are supported", err);
    q->codes = !a->is_float ? CTW_CODES_INT : a->num_bits == 8 ? CTW_CODES_E4M3 : CTW_CODES_E2M1;
    q->bits = a->num_bits;
    q->asymmetric = !a->symmetric;
    return CTW_OK;
}

/* compressed-tensors' rules, in which group sizes distinguish NVFP4 and MX. Older files name no
 * dtype of the scales, because NVFP4 and MX were then the only kinds. */
static bool is_nvfp4(const struct ctw_quant_activations *a)
{
    return a->is_float && a->num_bits == 4 && a->group_size == 16 &&
           (a->scale_dtype[0] == '\0' || strcmp(a->scale_dtype, "float8_e4m3fn") == 0);
}

static bool is_mx(const struct ctw_quant_activations *a)
{
    return a->is_float && a->group_size == 32 &&
           (strcmp(a->scale_dtype, "uint8") == 0 ||
            (a->num_bits == 4 && a->scale_dtype[0] == '\0'));
}

static enum ctw_status read_groups(const struct ctw_quant_activations *a, int64_t k,
                                   struct ctw_quantise *q, struct ctw_err *err)
{
    q->group = a->group_size;
    if (q->group == 0 || k % q->group != 0)
        return ctw_fail(err, CTW_EUNSUP,
                        "activations in groups of %" PRId64 ", which do not divide the %" PRId64
                        " columns; %s",
                        q->group, k, remedy);
    /* Some makers write false instead of "local" for NVFP4, whose groups have no stored scales. */
    if (a->when == CTW_QUANT_STATIC && !is_nvfp4(a))
        return cannot(a, "static scales of groups are not supported", err);
    q->scale_kind = is_nvfp4(a) ? CTW_SCALE_E4M3 : is_mx(a) ? CTW_SCALE_E8M0 : CTW_SCALE_DYNAMIC;
    if (q->scale_kind == CTW_SCALE_DYNAMIC && a->scale_dtype[0] != '\0')
        return cannot(a, "such scales are supported in groups of 16 (NVFP4) and 32 (MX) only", err);
    return CTW_OK;
}

/* `k` elements in a row. The stored scales are still to be read. */
static enum ctw_status read_scheme(const struct ctw_quant_activations *a, int64_t k,
                                   struct ctw_quantise *q, struct ctw_err *err)
{
    enum ctw_status st = read_codes(a, q, err);
    if (st != CTW_OK)
        return st;
    if (has_strategy(a, "group") || has_strategy(a, "tensor_group"))
        return read_groups(a, k, q, err);
    if (a->scale_dtype[0] != '\0')
        return cannot(a, "scales of another dtype are supported with groups only", err);
    if (has_strategy(a, "token") && a->when == CTW_QUANT_DYNAMIC) {
        q->scale_kind = CTW_SCALE_DYNAMIC;
        return CTW_OK;
    }
    if (has_strategy(a, "tensor") && a->when == CTW_QUANT_STATIC) {
        q->scale_kind = CTW_SCALE_STATIC;
        return CTW_OK;
    }
    if (has_strategy(a, "tensor"))
        return cannot(a,
                      "one dynamic scale for all tokens of a batch would make a score depend on "
                      "its batch",
                      err);
    return cannot(a, "this strategy is not supported", err);
}

/* ---- stored scales ---- */

/* module.part, one number; *out NULL: absent. */
static enum ctw_status find_number(const struct ctw_finder *finder, const char *module,
                                   const char *part, const struct ctw_tensor **out, float *value,
                                   struct ctw_err *err)
{
    char name[MAX_NAME];
    snprintf(name, sizeof(name), "%s.%s", module, part);
    *out = ctw_container_find(finder->container, name);
    if (*out == NULL)
        return CTW_OK;
    const struct ctw_tensor *t = *out;
    const uint8_t *data = t->unusable == NULL ? ctw_container_data(finder->container, t) : NULL;
    bool is_float = t->dtype == CTW_F32 || t->dtype == CTW_BF16 || t->dtype == CTW_F16;
    if (data == NULL || !(is_float || t->dtype == CTW_I8) || t->bytes != ctw_dtype_bytes(t->dtype))
        return ctw_fail(err, CTW_EUNSUP,
                        "%s: found %s of %" PRIu64 " bytes, expected one number (F32, BF16, F16, "
                        "I8); %s",
                        name, ctw_dtype_name(t->dtype), (uint64_t)t->bytes, remedy);
    *value = is_float ? ctw_load_float(data, t->dtype, 0) : (float)(int8_t)data[0];
    return CTW_OK;
}

/* The same for a scale, which must be there. */
static enum ctw_status find_scale(const struct ctw_finder *finder, const char *module,
                                  const char *part, const struct ctw_tensor **out, float *value,
                                  struct ctw_err *err)
{
    enum ctw_status st = find_number(finder, module, part, out, value, err);
    if (st == CTW_OK && *out == NULL)
        st = ctw_fail(err, CTW_EFORMAT,
                      "the checkpoint has no tensor %s.%s, which the quantisation of its "
                      "activations needs; %s",
                      module, part, remedy);
    if (st == CTW_OK && !(*value > 0 && isfinite(*value)))
        st = ctw_fail(err, CTW_EFORMAT, "%s.%s is %g, expected a number above 0; %s", module, part,
                      (double)*value, remedy);
    return st;
}

/* A static scale of int8, by which activations are rounded unless it is 0; *out as above. */
static enum ctw_status open_range(const struct ctw_finder *finder, const char *module,
                                  const char *part, struct ctw_quantise *q,
                                  const struct ctw_tensor **out, struct ctw_err *err)
{
    float scale = 0;
    enum ctw_status st = find_number(finder, module, part, out, &scale, err);
    if (st == CTW_OK && !(scale >= 0 && isfinite(scale)))
        return ctw_fail(err, CTW_EFORMAT, "%s.%s is %g, expected 0 (none) or a number above; %s",
                        module, part, (double)scale, remedy);
    if (st == CTW_OK && scale > 0)
        *q = (struct ctw_quantise){
            .codes = CTW_CODES_INT, .bits = 8, .scale_kind = CTW_SCALE_STATIC, .scale = scale};
    return st;
}

enum ctw_status ctw_input_open(const struct ctw_finder *finder, struct ctw_matrix *m,
                               const struct ctw_quant_group *group, struct ctw_err *err)
{
    struct ctw_quantise *q = &m->input;
    const struct ctw_part_names *names = m->weight.names;
    if (names->input_range != NULL) {
        enum ctw_status st =
            open_range(finder, m->name, names->input_range, q, &m->input_part[0], err);
        return st == CTW_OK ? open_range(finder, m->name, names->output_range, &m->output,
                                         &m->output_part, err)
                            : st;
    }
    if (group->output.present)
        return cannot(&group->output, "quantised outputs are not supported", err);
    if (!group->input.present)
        return CTW_OK;
    enum ctw_status st = read_scheme(&group->input, m->weight.k, q, err);
    if (st == CTW_OK && q->scale_kind == CTW_SCALE_E4M3)
        st = find_scale(finder, m->name, "input_global_scale", &m->input_part[0], &q->global, err);
    if (st == CTW_OK && q->scale_kind == CTW_SCALE_STATIC)
        st = find_scale(finder, m->name, "input_scale", &m->input_part[0], &q->scale, err);
    if (st == CTW_OK && q->scale_kind == CTW_SCALE_STATIC && q->asymmetric)
        st = find_number(finder, m->name, "input_zero_point", &m->input_part[1], &q->zero, err);
    return st;
}

/* ---- keys, values and queries ---- */

/* The stored numbers of n heads, [n, 1, 1]: scales above 0, or zero points. */
static enum ctw_status find_of_heads(const struct ctw_finder *finder, const char *module,
                                     const char *part, int n, bool scales,
                                     const struct ctw_tensor **out, float **numbers,
                                     struct ctw_err *err)
{
    char name[MAX_NAME];
    snprintf(name, sizeof(name), "%s.%s", module, part);
    const struct ctw_tensor *t = ctw_container_find(finder->container, name);
    bool is_float =
        t != NULL && (t->dtype == CTW_F32 || t->dtype == CTW_BF16 || t->dtype == CTW_F16);
    bool ok = scales ? is_float : t != NULL && t->dtype == CTW_I8;
    if (!ok || t->unusable != NULL || t->bytes != (size_t)n * ctw_dtype_bytes(t->dtype))
        return ctw_fail(err, CTW_EFORMAT,
                        "the checkpoint has no tensor %s of %d numbers (%s), one for each head, "
                        "which the quantisation of its attention needs; %s",
                        name, n, scales ? "F32, BF16, F16" : "I8", remedy);
    *numbers = ctw_calloc((size_t)n, sizeof(**numbers));
    if (*numbers == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for the scales of attention");
    *out = t;
    const uint8_t *data = ctw_container_data(finder->container, t);
    for (int i = 0; i < n; i++) {
        float number = scales ? ctw_load_float(data, t->dtype, i) : (float)(int8_t)data[i];
        (*numbers)[i] = number;
        if (scales && !(number > 0 && isfinite(number)))
            return ctw_fail(err, CTW_EFORMAT, "%s: element %d is %g, expected a number above 0; %s",
                            name, i, (double)number, remedy);
    }
    return CTW_OK;
}

static const struct {
    const char *scale, *zero, *global;
} parts_of[CTW_N_HEADS] = {
    [CTW_HEADS_K] = {"k_scale", "k_zero_point", "k_global_scale"},
    [CTW_HEADS_V] = {"v_scale", "v_zero_point", "v_global_scale"},
    [CTW_HEADS_Q] = {"q_scale", "q_zero_point", "q_global_scale"},
};

static enum ctw_status open_heads(const struct ctw_finder *finder, struct ctw_branch *b,
                                  const char *module, const struct ctw_quant_activations *a,
                                  enum ctw_heads which, struct ctw_err *err)
{
    struct ctw_heads_input *h = &ctw_branch_inputs(b)->of[which];
    struct ctw_quantise *q = &h->how;
    const struct ctw_heads_shape shape = ctw_kind_of(b)->heads(b, which);
    enum ctw_status st = CTW_OK;
    if (shape.n == 0)
        return CTW_OK;
    if (shape.latent && has_strategy(a, "attn_head"))
        return cannot(a, "the latents of a cache have no heads", err);
    if (has_strategy(a, "attn_head") && a->when == CTW_QUANT_STATIC) {
        st = read_codes(a, q, err);
        q->scale_kind = CTW_SCALE_STATIC;
        q->scale = 1; /* each head has its own */
        if (st == CTW_OK)
            st = find_of_heads(finder, module, parts_of[which].scale, shape.n, true, &h->part[0],
                               &h->scale, err);
        if (st == CTW_OK && q->asymmetric)
            st = find_of_heads(finder, module, parts_of[which].zero, shape.n, false, &h->part[1],
                               &h->zero, err);
        return st;
    }
    /* compressed-tensors takes the second dimension, which is heads here, for tokens. */
    if (has_strategy(a, "token"))
        return cannot(a,
                      "one dynamic scale for all of a head's keys would make a score depend on the "
                      "tokens after it",
                      err);
    st = read_scheme(a, shape.width, q, err);
    if (st == CTW_OK && q->scale_kind == CTW_SCALE_STATIC)
        st = find_scale(finder, module, parts_of[which].scale, &h->part[0], &q->scale, err);
    if (st == CTW_OK && q->scale_kind == CTW_SCALE_STATIC && q->asymmetric)
        st = find_number(finder, module, parts_of[which].zero, &h->part[1], &q->zero, err);
    if (st == CTW_OK && q->scale_kind == CTW_SCALE_E4M3)
        st = find_scale(finder, module, parts_of[which].global, &h->part[0], &q->global, err);
    return st;
}

/* The scheme of the attention module that has this projection: a group's, or that of keys and
 * values alone; NULL: none. */
static enum ctw_status find_scheme(const struct ctw_finder *finder, const struct ctw_want *want,
                                   const struct ctw_quant_activations **out, bool *queries,
                                   struct ctw_err *err)
{
    const struct ctw_quant_config *qc = &finder->config->quant;
    enum ctw_status st = CTW_OK;
    *out = qc->kv_scheme.present ? &qc->kv_scheme : NULL;
    *queries = false;
    for (int64_t i = 0; i < qc->n_groups && st == CTW_OK && !*queries; i++) {
        const struct ctw_quant_group *g = &qc->groups[i];
        if (g->quantised || !g->input.present)
            continue;
        st = ctw_name_is_target(finder->config, want, 1, ctw_name_attention_class(&g->targets),
                                &g->targets, &qc->ignore, queries, err);
        if (st == CTW_OK && *queries) {
            finder->group_used[i] = true;
            *out = &g->input;
        }
    }
    return st;
}

static enum ctw_status open_attention(const struct ctw_finder *finder, const struct ctw_want *want,
                                      struct ctw_branch *b, struct ctw_err *err)
{
    const struct ctw_quant_activations *a;
    const struct ctw_kind_row *k = ctw_kind_of(b);
    char module[MAX_NAME];
    bool queries;
    enum ctw_status st = find_scheme(finder, want, &a, &queries, err);
    if (st != CTW_OK || a == NULL)
        return st;
    snprintf(module, sizeof(module), "%s", want->name);
    ctw_name_parent(module);
    if (k->quantises_heads != NULL && !k->quantises_heads(b))
        return ctw_fail(err, CTW_EUNSUP,
                        "%s: quantised keys and values of this kind of attention are not "
                        "supported; %s",
                        module, remedy);
    st = open_heads(finder, b, module, a, CTW_HEADS_K, err);
    if (st == CTW_OK)
        st = open_heads(finder, b, module, a, CTW_HEADS_V, err);
    return st == CTW_OK && queries ? open_heads(finder, b, module, a, CTW_HEADS_Q, err) : st;
}

static enum ctw_status open_attentions(const struct ctw_finder *finder, struct ctw_model *m,
                                       struct ctw_err *err)
{
    const struct ctw_config *c = finder->config;
    enum ctw_status st = CTW_OK;
    for (int64_t i = 0; i < c->n_wants && st == CTW_OK; i++) {
        const struct ctw_want *w = &c->wants[i];
        if (ctw_want_is_in(w, ctw_kind_at(w->of)->module))
            st = open_attention(finder, w,
                                &m->layers[w->layer].branch[w->role / CTW_BRANCH_MATRICES], err);
    }
    return st;
}

/* Adds the findings about the module without the last `up` components of its name to *known and
 * *live. */
static enum ctw_status ask_module(const struct ctw_config *c, const struct ctw_want *w, int up,
                                  const char *class_name, const struct ctw_patterns *target,
                                  bool *known, bool *live, struct ctw_err *err)
{
    const struct ctw_patterns none = {0};
    bool meant = false, not_ignored = false;
    enum ctw_status st = ctw_name_is_target(c, w, up, class_name, target, &none, &meant, err);
    if (st == CTW_OK && meant)
        st = ctw_name_is_target(c, w, up, class_name, target, &c->quant.ignore, &not_ignored, err);
    *known |= meant;
    *live |= not_ignored;
    return st;
}

/* Are there modules that the target names, linear layers, attention or norms, and all ignored? */
static enum ctw_status is_ignored(const struct ctw_config *c, const struct ctw_patterns *target,
                                  bool *out, struct ctw_err *err)
{
    bool known = false, live = false;
    enum ctw_status st = CTW_OK;
    for (int64_t i = 0; i < c->n_wants && !live && st == CTW_OK; i++) {
        const struct ctw_want *w = &c->wants[i];
        const char *end = strrchr(w->name, '.');
        bool linear = w->kind == CTW_WANT_MATRIX;
        bool norm = w->kind == CTW_WANT_VECTOR && end != NULL && strcmp(end, ".weight") == 0;
        bool of_attention = ctw_want_is_in(w, ctw_kind_at(w->of)->module);
        if (linear)
            st = ask_module(c, w, 0, w->class_name, target, &known, &live, err);
        if (st == CTW_OK && (of_attention || norm)) /* a norm's class is unknown */
            st = ask_module(c, w, 1, norm ? "" : ctw_name_attention_class(target), target, &known,
                            &live, err);
    }
    *out = known && !live;
    return st;
}

enum ctw_status ctw_inputs_are_ignored(const struct ctw_config *c, const struct ctw_quant_group *g,
                                       bool *out, struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    *out = true;
    for (int64_t i = 0; i < g->targets.n && *out && st == CTW_OK; i++) {
        const struct ctw_patterns target = {.items = &g->targets.items[i], .n = 1};
        st = is_ignored(c, &target, out, err);
    }
    return st;
}

static enum ctw_status check_groups(const struct ctw_finder *finder, struct ctw_err *err)
{
    const struct ctw_quant_config *qc = &finder->config->quant;
    if (qc->kv_cache[0] != '\0' && !qc->kv_scheme.present)
        return ctw_fail(err, CTW_EUNSUP, "%s: a K/V cache quantised as %s is not supported; %s",
                        finder->config->file, qc->kv_cache, remedy);
    for (int64_t i = 0; i < qc->n_groups; i++) {
        const struct ctw_quant_group *g = &qc->groups[i];
        bool told = g->input.present || g->output.present;
        if (finder->group_used[i] && !told && g->activations[0] != '\0')
            return ctw_fail(err, CTW_EUNSUP,
                            "%s: activations quantised as %s by another method than "
                            "compressed-tensors (%s) are not supported; %s",
                            finder->config->file, g->activations, g->name, remedy);
        bool harmless = finder->group_used[i] || g->quantised || !told;
        enum ctw_status st =
            harmless ? CTW_OK : ctw_inputs_are_ignored(finder->config, g, &harmless, err);
        if (st != CTW_OK)
            return st;
        if (!harmless)
            return ctw_fail(err, CTW_EUNSUP,
                            "%s: group %s quantises activations (%s) of modules that are no linear "
                            "layers and no attention, which is not supported; %s",
                            finder->config->file, g->name, g->activations, remedy);
    }
    return CTW_OK;
}

/* What only shows once all matrices are open. */
static enum ctw_status check_experts(const struct ctw_layer *l, struct ctw_err *err)
{
    int64_t n = ctw_layer_changes_inputs(l) ? 0 : (int64_t)l->n_experts * CTW_N_EXPERT_MATRICES;
    for (int64_t e = 0; e < n; e++)
        if (l->expert[e].input.codes != CTW_CODES_NONE)
            return ctw_fail(err, CTW_EUNSUP,
                            "%s: quantised activations of experts whose weights multiply their "
                            "inputs are not supported; %s",
                            l->expert[e].name, remedy);
    return CTW_OK;
}

enum ctw_status ctw_inputs_open(const struct ctw_finder *finder, struct ctw_model *m,
                                struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    for (int i = 1; i <= m->n_decoders && st == CTW_OK; i++)
        st = check_experts(&m->layers[i], err);
    if (st == CTW_OK)
        st = open_attentions(finder, m, err);
    return st == CTW_OK ? check_groups(finder, err) : st;
}
