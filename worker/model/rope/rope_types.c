/* The parameters of each type of RoPE. */
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "kernels/math.h"
#include "worker/model/rope/rope_internal.h"

static const char original[] = "original_max_position_embeddings";

static enum ctw_status read_original_length(struct ctw_rope_params *p,
                                            const struct ctw_rope_place *at, struct ctw_err *err)
{
    double top = p->rules.original_length;
    enum ctw_status st = CTW_OK;
    if (at->own)
        st =
            ctw_json_read_double(at->object, original, CTW_JSON_OPTIONAL, &p->original_length, err);
    else
        st = ctw_rope_read_either(&p->original_length, at, original, original, err);
    if (st == CTW_OK && top != 0 && !ctw_json_has(at->root, original)) {
        if (ctw_json_has(at->object, original) && p->original_length != top)
            return ctw_json_fail(ctw_json_get(at->object, original), err, CTW_EFORMAT,
                                 "found %g, but transformers takes %g, its default for the key at "
                                 "the top level: add the key there",
                                 p->original_length, top);
        p->original_length = top;
    }
    return st == CTW_OK ? ctw_rope_positive(at->root, original, p->original_length, 0, err) : st;
}

static enum ctw_status read_factor(struct ctw_rope_params *p, const struct ctw_rope_place *at,
                                   enum ctw_json_need need, struct ctw_err *err)
{
    enum ctw_status st = ctw_json_read_double(at->object, "factor", need, &p->factor, err);
    return st == CTW_OK ? ctw_rope_positive(at->object, "factor", p->factor, 0, err) : st;
}

/* ---- llama3 ---- */

static enum ctw_status read_llama3(struct ctw_rope_params *p, const struct ctw_json_node *node,
                                   struct ctw_err *err)
{
    enum ctw_status st =
        ctw_json_read_double(node, "low_freq_factor", CTW_JSON_REQUIRED, &p->low_freq_factor, err);
    if (st == CTW_OK)
        st = ctw_json_read_double(node, "high_freq_factor", CTW_JSON_REQUIRED, &p->high_freq_factor,
                                  err);
    if (st == CTW_OK)
        st = ctw_rope_positive(node, "low_freq_factor", p->low_freq_factor, 0, err);
    if (st == CTW_OK)
        st = ctw_rope_positive(node, "high_freq_factor", p->high_freq_factor, 0, err);
    if (st == CTW_OK && p->high_freq_factor < p->low_freq_factor)
        st = ctw_json_fail(node, err, CTW_EFORMAT,
                           "high_freq_factor: found %g, expected at least low_freq_factor, %g",
                           p->high_freq_factor, p->low_freq_factor);
    return st;
}

/* ---- yarn ---- */

static double mscale(double scale, double m)
{
    return scale <= 1.0 ? 1.0 : 0.1 * m * ctw_ln(scale) + 1.0;
}

/* transformers looks for truncate beside the objects of the layer types, where no file has it. */
static bool is_by_layer_type(const struct ctw_rope_params *p, const struct ctw_rope_place *at)
{
    return at->own && p->rules.layer_type != NULL;
}

static enum ctw_status read_yarn(struct ctw_rope_params *p, const struct ctw_rope_place *at,
                                 struct ctw_err *err)
{
    const struct ctw_json_node *node = at->object;
    double m = 0, m_all = 0, attention = NAN;
    const struct ctw_json_node *truncate = ctw_json_get(node, "truncate");
    p->beta_fast = p->beta_slow = 0;
    p->truncate = truncate == NULL || !ctw_json_is_null(truncate); /* null: false, as there */
    enum ctw_status st =
        ctw_json_read_double(node, "attention_factor", CTW_JSON_OPTIONAL, &attention, err);
    if (st == CTW_OK)
        st = ctw_json_read_double(node, "mscale", CTW_JSON_OPTIONAL, &m, err);
    if (st == CTW_OK)
        st = ctw_json_read_double(node, "mscale_all_dim", CTW_JSON_OPTIONAL, &m_all, err);
    if (st == CTW_OK)
        st = ctw_json_read_double(node, "beta_fast", CTW_JSON_OPTIONAL, &p->beta_fast, err);
    if (st == CTW_OK)
        st = ctw_json_read_double(node, "beta_slow", CTW_JSON_OPTIONAL, &p->beta_slow, err);
    if (st == CTW_OK)
        st = ctw_json_read_bool(node, "truncate", CTW_JSON_OPTIONAL, &p->truncate, err);
    if (st != CTW_OK)
        return st;
    p->truncate |= is_by_layer_type(p, at);
    p->beta_fast = p->beta_fast == 0 ? 32 : p->beta_fast; /* 0 is absent, as in transformers */
    p->beta_slow = p->beta_slow == 0 ? 1 : p->beta_slow;
    if (!isnan(attention))
        p->attention_factor = attention;
    else if (p->rules.unscaled_yarn && !at->own)
        p->attention_factor = 1;
    else if (m != 0 && m_all != 0)
        p->attention_factor = mscale(p->factor, m) / mscale(p->factor, m_all);
    else
        p->attention_factor = mscale(p->factor, 1);
    st = ctw_rope_positive(node, "beta_fast", p->beta_fast, 0, err);
    if (st == CTW_OK)
        st = ctw_rope_positive(node, "beta_slow", p->beta_slow, 0, err);
    if (st == CTW_OK)
        st = ctw_rope_positive(node, "attention_factor", p->attention_factor, 0, err);
    return st;
}

/* Logs a warning with the prefix of ctw_json_fail()'s messages. */
CTW_PRINTF(2, 3) static void warn(const struct ctw_json_node *node, const char *fmt, ...)
{
    struct ctw_err err;
    char text[256];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    (void)ctw_json_fail(node, &err, CTW_EFORMAT, "%s", text);
    ctw_warn("%s", err.msg);
}

enum ctw_status ctw_rope_warn_yarn(const struct ctw_rope_params *p, const struct ctw_rope_place *at,
                                   struct ctw_err *err)
{
    const struct ctw_json_node *node = at->object;
    double extra = 1, ratio = (double)at->max_length / p->original_length;
    bool finetuned = false;
    enum ctw_status st = ctw_json_read_double(node, "attn_factor", CTW_JSON_OPTIONAL, &extra, err);
    if (st == CTW_OK)
        st = ctw_json_read_bool(node, "finetuned", CTW_JSON_OPTIONAL, &finetuned, err);
    if (st != CTW_OK)
        return st;
    if (extra != 1)
        warn(ctw_json_get(node, "attn_factor"),
             "found %g, ignored as in transformers: cosines and sines are scaled by %g, not by %g",
             extra, p->attention_factor, extra * p->attention_factor);
    if (finetuned)
        warn(ctw_json_get(node, "finetuned"),
             "ignored as in transformers; in YaRN's own code it only changes how frequencies "
             "depend on a text's length, which they do not here");
    const struct ctw_json_node *truncate = ctw_json_get(node, "truncate");
    if (truncate != NULL && is_by_layer_type(p, at))
        warn(truncate, "ignored as in transformers, which reads it for one RoPE for all layers");
    bool given = ctw_json_has(node, original) || ctw_json_has(at->root, original);
    if (given && p->factor != ratio)
        warn(ctw_json_get(node, "factor"),
             "%g is used, although max_position_embeddings / %s is %g; transformers before 4.56 "
             "used the latter",
             p->factor, original, ratio);
    return CTW_OK;
}

/* ---- longrope ---- */

/* An array of a factor for each frequency. */
static enum ctw_status read_factors(const struct ctw_rope_params *p,
                                    const struct ctw_json_node *node, const char *key,
                                    const struct ctw_json_node **out, struct ctw_err *err)
{
    enum ctw_status st = ctw_json_read_node(node, key, CTW_JSON_REQUIRED, CTW_JSON_ARRAY, out, err);
    if (st == CTW_OK && ctw_json_count(*out) != p->rot_dim / 2)
        st = ctw_json_fail(*out, err, CTW_EFORMAT,
                           "found %" PRId64 " entries, expected %d, half of the %d elements that "
                           "are rotated",
                           ctw_json_count(*out), p->rot_dim / 2, p->rot_dim);
    if (st != CTW_OK)
        return st;
    for (const struct ctw_json_node *m = ctw_json_first(*out); m != NULL && st == CTW_OK;
         m = ctw_json_next(m)) {
        double value = 0;
        st = ctw_json_as_double(m, &value, err);
        if (st == CTW_OK && (value < 1e-6 || value > 1e12))
            st = ctw_json_fail(m, err, CTW_EFORMAT, "found %g, expected 1e-06 to 1e+12", value);
    }
    return st;
}

/* Phi-MoE's factors of cosines and sines, one for each kind of sequence. */
static enum ctw_status read_mscales(struct ctw_rope_params *p, const struct ctw_json_node *object,
                                    struct ctw_err *err)
{
    enum ctw_status st =
        ctw_json_read_double(object, "short_mscale", CTW_JSON_REQUIRED, &p->attention_factor, err);
    if (st == CTW_OK)
        st = ctw_json_read_double(object, "long_mscale", CTW_JSON_REQUIRED,
                                  &p->long_attention_factor, err);
    if (st == CTW_OK)
        st = ctw_rope_positive(object, "short_mscale", p->attention_factor, 0, err);
    return st == CTW_OK ? ctw_rope_positive(object, "long_mscale", p->long_attention_factor, 0, err)
                        : st;
}

static enum ctw_status read_longrope(struct ctw_rope_params *p, const struct ctw_rope_place *at,
                                     struct ctw_err *err)
{
    double attention = NAN;
    enum ctw_status st =
        ctw_json_read_double(at->object, "attention_factor", CTW_JSON_OPTIONAL, &attention, err);
    if (st == CTW_OK)
        st = read_factors(p, at->object, "short_factor", &p->short_factor, err);
    if (st == CTW_OK)
        st = read_factors(p, at->object, "long_factor", &p->long_factor, err);
    if (st != CTW_OK)
        return st;
    if (p->rules.mscales)
        return read_mscales(p, at->object, err);
    if (!isnan(attention))
        p->attention_factor = attention;
    else if (p->factor > 1)
        p->attention_factor = sqrt(1 + ctw_ln(p->factor) / ctw_ln(p->original_length));
    p->long_attention_factor = p->attention_factor;
    return ctw_rope_positive(at->object, "attention_factor", p->attention_factor, 0, err);
}

/* ---- dynamic ---- */

/* HunYuan's alpha scales theta for every length up to max_position_embeddings. */
static enum ctw_status read_alpha(struct ctw_rope_params *p, const struct ctw_rope_place *at,
                                  struct ctw_err *err)
{
    double alpha = 0, head = (double)p->rules.head;
    enum ctw_status st = ctw_json_read_double(at->object, "alpha", CTW_JSON_OPTIONAL, &alpha, err);
    if (st != CTW_OK || alpha == 0) /* 0 is absent, as in transformers */
        return st;
    st = ctw_rope_positive(at->object, "alpha", alpha, 0, err);
    if (st == CTW_OK)
        p->theta *= ctw_pow(alpha, head / (head - 2));
    return st == CTW_OK ? ctw_rope_positive(at->object, "alpha", p->theta, 1, err) : st;
}

/* ---- all types ---- */

enum ctw_status ctw_rope_read_type(struct ctw_rope_params *p, const struct ctw_rope_place *at,
                                   struct ctw_err *err)
{
    bool yarn = p->type == CTW_ROPE_YARN, longrope = p->type == CTW_ROPE_LONGROPE;
    const struct ctw_json_node *factor = ctw_json_get(at->object, "factor");
    enum ctw_status st = CTW_OK;
    if (yarn || longrope || p->type == CTW_ROPE_LLAMA3)
        st = read_original_length(p, at, err);
    if (st != CTW_OK)
        return st;
    /* yarn reads a null factor, but not an absent one, as this ratio */
    if (longrope || (yarn && factor != NULL))
        p->factor = (double)at->max_length / p->original_length;
    bool optional = longrope || p->type == CTW_ROPE_PROPORTIONAL || (yarn && factor != NULL);
    st = read_factor(p, at, optional ? CTW_JSON_OPTIONAL : CTW_JSON_REQUIRED, err);
    if (st != CTW_OK)
        return st;
    switch (p->type) {
    case CTW_ROPE_LLAMA3:
        return read_llama3(p, at->object, err);
    case CTW_ROPE_YARN:
        return read_yarn(p, at, err);
    case CTW_ROPE_LONGROPE:
        return read_longrope(p, at, err);
    case CTW_ROPE_DYNAMIC:
        return p->rules.alpha ? read_alpha(p, at, err) : CTW_OK;
    default:
        return CTW_OK;
    }
}
