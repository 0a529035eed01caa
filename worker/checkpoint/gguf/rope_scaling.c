/* RoPE in a GGUF file's metadata, as config.json of transformers 4 describes it. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/dtype.h"
#include "kernels/math.h"
#include "worker/checkpoint/gguf/config_writer.h"

/* What transformers' llama3 divides a frequency by (converter: Llama's generate_extra_tensors).
 * low_freq_factor 1; high_freq_factor is `high`: 4, or of Llama 4 Scout 1. */
static double llama3_divisor(double theta, int64_t head, int64_t i, double factor, double length,
                             double high)
{
    double wave = 2 * M_PI * ctw_pow(theta, 2.0 * (double)i / (double)head);
    if (wave < length / high)
        return 1;
    if (wave > length)
        return factor;
    double smooth = (length / wave - 1) / (high - 1);
    return 1 / ((1 - smooth) / factor + smooth);
}

/* The original length, from a divisor between 1 and the factor, which depends on it; else 0. */
static double llama3_length(double theta, int64_t head, int64_t i, double factor, double divisor)
{
    double wave = 2 * M_PI * ctw_pow(theta, 2.0 * (double)i / (double)head);
    if (!(divisor > 1.001 && divisor < 0.999 * factor))
        return 0;
    double smooth = (1 / divisor - 1 / factor) / (1 - 1 / factor);
    return nearbyint(wave * (1 + 3 * smooth));
}

/* The first divisor that differs from those of type llama3; n: none does. */
static int64_t llama3_differs(const uint8_t *data, int64_t n, double theta, double factor,
                              double length, double high)
{
    for (int64_t i = 0; i < n; i++) {
        double want = llama3_divisor(theta, 2 * n, i, factor, length, high);
        if (!(fabs(ctw_load_float(data, CTW_F32, i) - want) <= 1e-4 * want))
            return i;
    }
    return n;
}

/* A length with which high_freq_factor 1 divides the same frequencies. */
static double llama3_step(const uint8_t *data, int64_t n, double theta, double factor)
{
    int64_t i = 0;
    while (i < n - 1 && ctw_load_float(data, CTW_F32, i) < 0.999 * factor)
        i++;
    return floor(2 * M_PI * ctw_pow(theta, (double)i / (double)n));
}

static void write_llama3(struct ctw_gguf_keys *k, double factor, double length, double high)
{
    ctw_json_write_key_string(&k->writer, "rope_type", "llama3");
    ctw_json_write_key_double(&k->writer, "factor", factor);
    ctw_json_write_key_double(&k->writer, "low_freq_factor", 1);
    ctw_json_write_key_double(&k->writer, "high_freq_factor", high);
    ctw_json_write_key_int(&k->writer, "original_max_position_embeddings", (int64_t)length);
}

/* rope_freqs.weight holds divisors of the frequencies. They are those of type llama3 with the
 * factors of all published models, or the file is refused: no key says how they were made. */
static void write_divisors(struct ctw_gguf_keys *k, const struct ctw_tensor *t, double theta,
                           int64_t head)
{
    double factor = 0, length = 0;
    int64_t n = head / 2;
    if (t->dtype != CTW_F32 || t->unusable != NULL || t->n_dims != 1 || t->shape[0] < n) {
        ctw_gguf_refuse(k, "rope.scaling", "rope_freqs.weight is not F32 [%" PRId64 "]", n);
        return;
    }
    const uint8_t *data = ctw_container_data(k->files, t);
    for (int64_t i = n; i < t->shape[0]; i++) /* of elements that are not rotated */
        if (ctw_load_float(data, CTW_F32, i) != 1)
            ctw_gguf_refuse(k, "rope.scaling",
                            "rope_freqs.weight[%" PRId64 "] is %g; expected 1 beyond the %" PRId64
                            " pairs that are rotated",
                            i, (double)ctw_load_float(data, CTW_F32, i), n);
    for (int64_t i = 0; i < n; i++)
        factor = fmax(factor, ctw_load_float(data, CTW_F32, i));
    for (int64_t i = 0; i < n && length == 0; i++)
        length = llama3_length(theta, head, i, factor, ctw_load_float(data, CTW_F32, i));
    length = length == 0 ? 8192 : length;
    double step = llama3_step(data, n, theta, factor);
    int64_t at = llama3_differs(data, n, theta, factor, length, 4);
    if (at == n)
        write_llama3(k, factor, length, 4);
    else if (llama3_differs(data, n, theta, factor, step, 1) == n)
        write_llama3(k, factor, step, 1);
    else
        ctw_gguf_refuse(k, "rope.scaling",
                        "rope_freqs.weight[%" PRId64 "] is %g; type llama3 with factor %g, "
                        "low_freq_factor 1, high_freq_factor 4 and %g positions has %g; give "
                        "the original model's configuration (--config)",
                        at, (double)ctw_load_float(data, CTW_F32, at), factor, length,
                        llama3_divisor(theta, head, at, factor, length, 4));
}

/* YaRN's attention_factor, if it differs from the value that transformers computes. */
static void write_attention_factor(struct ctw_gguf_keys *k, bool yarn)
{
    static const char key[] = "rope.scaling.yarn_attn_factor";
    double usual = 1 + 0.1 * ctw_ln(ctw_gguf_number(k, "rope.scaling.factor", 1));
    double found = ctw_gguf_number(k, key, usual);
    if (yarn && !(fabs(found - usual) <= 1e-6 * usual))
        ctw_gguf_write(k, "attention_factor", key, true);
}

/* DeepSeek's mscale and mscale_all_dim. A file has one number for both, since they are equal. */
static void write_mscale(struct ctw_gguf_keys *k)
{
    static const char key[] = "rope.scaling.yarn_log_multiplier";
    float weight = (float)(10 * ctw_gguf_number(k, key, 0));
    if (ctw_gguf_meta(k, key) == NULL)
        return;
    ctw_json_write_key(&k->writer, "mscale");
    ctw_json_write_float(&k->writer, weight);
    ctw_json_write_key(&k->writer, "mscale_all_dim");
    ctw_json_write_float(&k->writer, weight);
}

/* Types linear and yarn. */
static void write_scaled(struct ctw_gguf_keys *k, const char *type)
{
    static const struct ctw_gguf_key members[] = {
        {"factor", "rope.scaling.factor", true},
        {"original_max_position_embeddings", "rope.scaling.original_context_length", false},
        {"beta_fast", "rope.scaling.yarn_beta_fast", false},
        {"beta_slow", "rope.scaling.yarn_beta_slow", false},
    };
    bool yarn = strcmp(type, "yarn") == 0;
    ctw_json_write_key_string(&k->writer, "rope_type", type);
    for (size_t i = 0; i < (yarn ? CTW_COUNT(members) : 1); i++)
        ctw_gguf_write(k, members[i].name, members[i].stored, members[i].needed);
    for (const struct ctw_gguf_key *own = k->arch->yarn_keys;
         yarn && own != NULL && own->name != NULL; own++)
        ctw_gguf_write(k, own->name, own->stored, own->needed);
    write_attention_factor(k, yarn);
    if (yarn && k->arch->yarn_mscale)
        write_mscale(k);
    if (yarn && k->arch->yarn != NULL)
        ctw_json_write_source(&k->writer, k->arch->yarn, strlen(k->arch->yarn));
    if (ctw_gguf_number(k, "rope.scaling.attn_factor", 1) != 1)
        ctw_gguf_refuse(k, "rope.scaling.attn_factor",
                        "a factor of attention beside that of %s is not supported", type);
}

/* rope_factors_short and rope_factors_long (converter: Phi3MiniModel.generate_extra_tensors). */
static void write_factors(struct ctw_gguf_keys *k, const char *name, const struct ctw_tensor *t,
                          int64_t rotated)
{
    if (t == NULL || t->dtype != CTW_F32 || t->unusable != NULL || t->n_dims != 1 ||
        t->shape[0] != rotated / 2) {
        ctw_gguf_refuse(k, "rope.scaling", "rope_factors_%s.weight is not F32 [%" PRId64 "]",
                        strcmp(name, "long_factor") == 0 ? "long" : "short", rotated / 2);
        return;
    }
    ctw_json_write_key(&k->writer, name);
    ctw_json_write_open(&k->writer, '[');
    for (int64_t i = 0; i < t->shape[0]; i++)
        ctw_json_write_float(&k->writer,
                             ctw_load_float(ctw_container_data(k->files, t), CTW_F32, i));
    ctw_json_write_close(&k->writer, ']');
}

/* The factor of cosines and sines, which no family reads, must be transformers'. */
static void check_longrope_factor(struct ctw_gguf_keys *k)
{
    double length = ctw_gguf_number(k, "rope.scaling.original_context_length",
                                    ctw_gguf_number(k, "context_length", 0));
    double longer = ctw_gguf_number(k, "context_length", 0) / length;
    double want = longer > 1 ? sqrt(1 + ctw_ln(longer) / ctw_ln(length)) : 1;
    double found = ctw_gguf_number(k, "rope.scaling.attn_factor", want);
    if (!(fabs(found - want) <= 1e-5 * want))
        ctw_gguf_refuse(k, "rope.scaling.attn_factor",
                        "found %g; type longrope has %g with these lengths", found, want);
}

static void write_longrope(struct ctw_gguf_keys *k, int64_t rotated)
{
    ctw_json_write_key(&k->writer, "rope_scaling");
    ctw_json_write_open(&k->writer, '{');
    ctw_json_write_key_string(&k->writer, "rope_type", "longrope");
    write_factors(k, "short_factor", ctw_container_find(k->files, "rope_factors_short.weight"),
                  rotated);
    write_factors(k, "long_factor", ctw_container_find(k->files, "rope_factors_long.weight"),
                  rotated);
    if (k->arch->mscale > 0) {
        ctw_json_write_key_double(&k->writer, "short_mscale", k->arch->mscale);
        ctw_json_write_key_double(&k->writer, "long_mscale", k->arch->mscale);
    }
    ctw_json_write_close(&k->writer, '}');
    const char *original = "rope.scaling.original_context_length"; /* absent: the model's length */
    if (ctw_gguf_meta(k, original) == NULL)
        original = "context_length";
    ctw_gguf_write(k, "original_max_position_embeddings", original, true);
    check_longrope_factor(k);
}

/* rope_scaling.type; "none": no key. */
static void scaling_type(const struct ctw_gguf_keys *k, char type[32])
{
    const struct ctw_meta *m = ctw_gguf_meta(k, "rope.scaling.type");
    const char *text = "none";
    size_t n = 4;
    if (m != NULL && !ctw_meta_text(m, &text, &n))
        n = 0;
    (void)snprintf(type, 32, "%.*s", (int)(n < 31 ? n : 31), text);
}

/* The members of an object of type linear, yarn or llama3. */
static void write_members(struct ctw_gguf_keys *k, const char *type, double theta, int64_t rotated)
{
    const struct ctw_tensor *divisors = ctw_container_find(k->files, "rope_freqs.weight");
    bool scaled = strcmp(type, "linear") == 0 || strcmp(type, "yarn") == 0;
    if (!scaled && strcmp(type, "none") != 0)
        ctw_gguf_refuse(k, "rope.scaling.type",
                        "\"%s\" is not supported for %s; supported: none, "
                        "linear, yarn",
                        type, k->arch->name);
    if (scaled)
        write_scaled(k, type);
    if (divisors != NULL && scaled)
        ctw_gguf_refuse(k, "rope.scaling.type", "found \"%s\" and rope_freqs.weight", type);
    else if (divisors != NULL)
        write_divisors(k, divisors, theta, rotated);
}

/* Does the file scale RoPE, other than with the factors of type longrope? */
static bool is_scaled(const struct ctw_gguf_keys *k, const char *type)
{
    return strcmp(type, "none") != 0 || ctw_container_find(k->files, "rope_freqs.weight") != NULL;
}

/* rope_scaling, if the file has any. */
static void write_scaling(struct ctw_gguf_keys *k, double theta, int64_t rotated)
{
    char type[32];
    scaling_type(k, type);
    /* The converter writes no type for Phi 3, whose factors tell it. */
    bool is_long =
        ctw_container_find(k->files, "rope_factors_long.weight") != NULL && k->arch->longrope;
    if (is_long) {
        write_longrope(k, rotated);
        return;
    }
    if (!is_scaled(k, type))
        return;
    ctw_json_write_key(&k->writer, "rope_scaling");
    ctw_json_write_open(&k->writer, '{');
    write_members(k, type, theta, rotated);
    ctw_json_write_close(&k->writer, '}');
}

/* One kind of layer's object. */
static void write_kind(struct ctw_gguf_keys *k, const char *name, const char *theta,
                       int64_t rotated, bool scales)
{
    double head = (double)ctw_gguf_head(k);
    char type[32] = "none";
    if (scales)
        scaling_type(k, type);
    ctw_json_write_key(&k->writer, name);
    ctw_json_write_open(&k->writer, '{');
    ctw_gguf_write(k, "rope_theta", theta, true);
    ctw_json_write_key_double(&k->writer, "partial_rotary_factor", (double)rotated / head);
    if (scales && is_scaled(k, type))
        write_members(k, type, ctw_gguf_number(k, theta, 10000), rotated);
    else
        ctw_json_write_key_string(&k->writer, "rope_type", "default");
    ctw_json_write_close(&k->writer, '}');
}

void ctw_gguf_write_rope_of_windows(struct ctw_gguf_keys *k, int64_t full, int64_t windowed)
{
    static const char theta[] = "rope.freq_base", own[] = "rope.freq_base_swa";
    if (k->st != CTW_OK)
        return;
    ctw_json_write_key(&k->writer, "rope_parameters");
    ctw_json_write_open(&k->writer, '{');
    write_kind(k, "full_attention", theta, full, true);
    write_kind(k, "sliding_attention", ctw_gguf_meta(k, own) != NULL ? own : theta, windowed,
               false);
    ctw_json_write_close(&k->writer, '}');
}

void ctw_gguf_write_rope(struct ctw_gguf_keys *k, int64_t head)
{
    int64_t rotated = ctw_gguf_int(k, "rope.dimension_count", head);
    double theta = ctw_gguf_number(k, "rope.freq_base", 10000);
    if (ctw_gguf_meta(k, "rope.freq_base") != NULL)
        ctw_gguf_write(k, "rope_theta", "rope.freq_base", true);
    else
        ctw_json_write_key_double(&k->writer, "rope_theta", theta);
    if (k->arch->partial_rope)
        ctw_json_write_key_double(&k->writer, "partial_rotary_factor",
                                  (double)rotated / (double)head);
    else if (rotated != head)
        ctw_gguf_refuse(k, "rope.dimension_count",
                        "found %" PRId64 " of the %" PRId64
                        " elements of a head; this architecture "
                        "rotates all",
                        rotated, head);
    if (k->st == CTW_OK)
        write_scaling(k, theta, rotated);
}

void ctw_gguf_write_rope_of_count(struct ctw_gguf_keys *k)
{
    ctw_gguf_write_rope(k, ctw_gguf_int(k, "rope.dimension_count", 0));
}

void ctw_gguf_write_no_rope(struct ctw_gguf_keys *k)
{
    (void)k;
}
