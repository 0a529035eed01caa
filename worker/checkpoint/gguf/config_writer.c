#include "worker/checkpoint/gguf/config_writer.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MAX_KEY = 256, MOST_LAYERS = 4096 };

static const char windows_key[] = "attention.sliding_window_pattern";

/* ---- metadata ---- */

static void full_name(const struct ctw_gguf_keys *k, const char *key, char full[MAX_KEY])
{
    (void)snprintf(full, MAX_KEY, "%s.%s", k->arch->name, key);
}

const struct ctw_meta *ctw_gguf_meta(const struct ctw_gguf_keys *k, const char *key)
{
    char full[MAX_KEY];
    full_name(k, key, full);
    return ctw_meta_find(k->metadata, full);
}

void ctw_gguf_refuse(struct ctw_gguf_keys *k, const char *key, const char *fmt, ...)
{
    char full[MAX_KEY], text[512];
    va_list args;
    if (k->st != CTW_OK)
        return;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    full_name(k, key, full);
    k->st = ctw_fail(k->err, CTW_EUNSUP, "%s: %s: %s", k->file, full, text);
}

/* Refuses a value that is not a number (`kind`), or an array whose elements differ. */
static void refuse_value(struct ctw_gguf_keys *k, const char *key, const struct ctw_meta *m,
                         const char *kind)
{
    char found[128];
    if (m->is_array && m->n > 0)
        ctw_gguf_refuse(k, key,
                        "an array of %" PRIu64 " different values, one for each layer, is "
                        "not supported here",
                        m->n);
    else
        ctw_gguf_refuse(k, key, "found %s, expected %s", ctw_meta_describe(m, found, sizeof(found)),
                        kind);
}

int64_t ctw_gguf_int(struct ctw_gguf_keys *k, const char *key, int64_t absent)
{
    const struct ctw_meta *m = ctw_gguf_meta(k, key);
    int64_t value = absent, other;
    if (m == NULL || k->st != CTW_OK)
        return absent;
    bool ok = ctw_meta_int(m, 0, &value);
    for (uint64_t i = 1; ok && i < m->n; i++)
        ok = ctw_meta_int(m, i, &other) && other == value;
    if (!ok)
        refuse_value(k, key, m, "an integer");
    return ok ? value : absent;
}

int64_t ctw_gguf_layers(struct ctw_gguf_keys *k)
{
    const int64_t n = ctw_gguf_int(k, "block_count", 0),
                  drafts = ctw_gguf_int(k, "nextn_predict_layers", 0);
    if (n >= 0 && n <= MOST_LAYERS && drafts >= 0 && drafts <= n)
        return n - drafts;
    ctw_gguf_refuse(k, "block_count",
                    "found %" PRId64 ", of which %" PRId64
                    " are layers for drafts; expected 0 to %d layers",
                    n, drafts, MOST_LAYERS);
    return 0;
}

int64_t ctw_gguf_largest(struct ctw_gguf_keys *k, const char *key, int64_t absent)
{
    const struct ctw_meta *m = ctw_gguf_meta(k, key);
    int64_t largest = absent, value;
    for (uint64_t i = 0; m != NULL && i < m->n && k->st == CTW_OK; i++) {
        if (!ctw_meta_int(m, i, &value))
            refuse_value(k, key, m, "an integer");
        else if (i == 0 || value > largest)
            largest = value;
    }
    return largest;
}

int64_t ctw_gguf_of_layer(struct ctw_gguf_keys *k, const char *key, int64_t layer, int64_t absent)
{
    const struct ctw_meta *m = ctw_gguf_meta(k, key);
    int64_t value = absent;
    if (m == NULL || !m->is_array || k->st != CTW_OK)
        return ctw_gguf_int(k, key, absent);
    if (layer < 0 || (uint64_t)layer >= m->n)
        ctw_gguf_refuse(k, key, "found %" PRIu64 " elements, expected one for each layer", m->n);
    else if (!ctw_meta_int(m, (uint64_t)layer, &value))
        refuse_value(k, key, m, "integers");
    return value;
}

int64_t ctw_gguf_of_windows(struct ctw_gguf_keys *k, const char *key, bool windowed)
{
    const struct ctw_meta *windows = ctw_gguf_meta(k, windows_key);
    int64_t value;
    for (uint64_t i = 0; windows != NULL && i < windows->n; i++)
        if (ctw_meta_int(windows, i, &value) && (value != 0) == windowed)
            return ctw_gguf_of_layer(k, key, (int64_t)i, 0);
    return 0;
}

double ctw_gguf_number(struct ctw_gguf_keys *k, const char *key, double absent)
{
    const struct ctw_meta *m = ctw_gguf_meta(k, key);
    double value = absent;
    if (m == NULL || k->st != CTW_OK)
        return absent;
    if (m->is_array || !ctw_meta_number(m, 0, &value))
        refuse_value(k, key, m, "a number");
    return value;
}

double ctw_gguf_same_number(struct ctw_gguf_keys *k, const char *key, double absent)
{
    const struct ctw_meta *m = ctw_gguf_meta(k, key);
    double value = absent, other;
    if (m == NULL || k->st != CTW_OK)
        return absent;
    bool ok = ctw_meta_number(m, 0, &value);
    for (uint64_t i = 1; ok && i < m->n; i++)
        ok = ctw_meta_number(m, i, &other) && other == value;
    if (!ok)
        refuse_value(k, key, m, "a number");
    return ok ? value : absent;
}

bool ctw_gguf_has(const struct ctw_gguf_keys *k, const char *tensor)
{
    char first[MAX_KEY];
    (void)snprintf(first, sizeof(first), "blk.0.%s", tensor);
    return ctw_container_find(k->files, tensor) != NULL ||
           ctw_container_find(k->files, first) != NULL;
}

const struct ctw_tensor *ctw_gguf_layer_tensor(const struct ctw_gguf_keys *k, int64_t layer,
                                               const char *name)
{
    char full[96];
    (void)snprintf(full, sizeof(full), "blk.%" PRId64 ".%s.weight", layer, name);
    return ctw_container_find(k->files, full);
}

const struct ctw_tensor *ctw_gguf_first_tensor(struct ctw_gguf_keys *k, const char *name)
{
    const struct ctw_tensor *t = NULL;
    for (int64_t i = 0; i < ctw_gguf_layers(k) && t == NULL; i++)
        t = ctw_gguf_layer_tensor(k, i, name);
    return t;
}

/* ---- members ---- */

void ctw_gguf_write(struct ctw_gguf_keys *k, const char *name, const char *key, bool needed)
{
    const struct ctw_meta *m = ctw_gguf_meta(k, key);
    if (k->st != CTW_OK || (m == NULL && !needed))
        return;
    if (m == NULL) {
        ctw_gguf_refuse(k, key, "the key is missing, which a model of this architecture needs");
        return;
    }
    ctw_json_write_key(&k->writer, name);
    if (m->type == CTW_META_F32) /* the shortest decimal: 1e-05, as config.json has it */
        ctw_json_write_float(&k->writer, (float)ctw_gguf_number(k, key, 0));
    else if (m->type == CTW_META_F64)
        ctw_json_write_double(&k->writer, ctw_gguf_number(k, key, 0));
    else if (m->type == CTW_META_BOOL)
        ctw_json_write_bool(&k->writer, ctw_gguf_int(k, key, 0) != 0);
    else
        ctw_json_write_int(&k->writer, ctw_gguf_int(k, key, 0));
}

void ctw_gguf_write_layers(struct ctw_gguf_keys *k, const char *name, const char *key,
                           const char *zero, const char *other)
{
    const struct ctw_meta *m = ctw_gguf_meta(k, key);
    int64_t n = ctw_gguf_layers(k), value = 0;
    if (k->st != CTW_OK || m == NULL || !m->is_array)
        return;
    if (m->n < (uint64_t)n) {
        ctw_gguf_refuse(k, key,
                        "found %" PRIu64 " elements, expected one for each of %" PRId64 " layers",
                        m->n, n);
        return;
    }
    ctw_json_write_key(&k->writer, name);
    ctw_json_write_open(&k->writer, '[');
    for (int64_t i = 0; i < n; i++) {
        if (!ctw_meta_int(m, (uint64_t)i, &value))
            refuse_value(k, key, m, "integers");
        ctw_json_write_string(&k->writer, value == 0 ? zero : other);
    }
    ctw_json_write_close(&k->writer, ']');
}

void ctw_gguf_write_layers_with(struct ctw_gguf_keys *k, const char *name, const char *tensor,
                                const char *without, const char *with)
{
    ctw_json_write_key(&k->writer, name);
    ctw_json_write_open(&k->writer, '[');
    for (int64_t i = 0; i < ctw_gguf_layers(k); i++)
        ctw_json_write_string(&k->writer,
                              ctw_gguf_layer_tensor(k, i, tensor) != NULL ? with : without);
    ctw_json_write_close(&k->writer, ']');
}

void ctw_gguf_write_each(struct ctw_gguf_keys *k, const char *name, const char *key)
{
    const int64_t n = ctw_gguf_layers(k);
    ctw_json_write_key(&k->writer, name);
    ctw_json_write_open(&k->writer, '[');
    for (int64_t i = 0; i < n && k->st == CTW_OK; i++)
        ctw_json_write_int(&k->writer, ctw_gguf_of_layer(k, key, i, 0));
    ctw_json_write_close(&k->writer, ']');
}

void ctw_gguf_write_windows(struct ctw_gguf_keys *k)
{
    const struct ctw_meta *m = ctw_gguf_meta(k, windows_key);
    if (m != NULL && m->is_array)
        ctw_gguf_write_layers(k, "layer_types", windows_key, "full_attention", "sliding_attention");
    else
        ctw_gguf_write(k, "sliding_window_pattern", windows_key, false);
}

void ctw_gguf_write_rows(struct ctw_gguf_keys *k, const char *name, const struct ctw_tensor *t)
{
    if (t != NULL && t->n_dims == 2)
        ctw_json_write_key_int(&k->writer, name, t->shape[0]);
}

void ctw_gguf_write_qkv_bias(struct ctw_gguf_keys *k)
{
    ctw_json_write_key_bool(&k->writer, "attention_bias",
                            ctw_gguf_has(k, "attn_qkv.bias") || ctw_gguf_has(k, "attn_q.bias"));
}

void ctw_gguf_refuse_unnormalised(struct ctw_gguf_keys *k)
{
    static const char key[] = "expert_weights_norm";
    if (ctw_gguf_int(k, key, 1) == 0)
        ctw_gguf_refuse(k, key,
                        "weights of chosen experts that do not add up to 1 are not supported for "
                        "this architecture");
}

void ctw_gguf_check_shared_width(struct ctw_gguf_keys *k)
{
    enum { MOST = 1 << 24 };
    static const char key[] = "expert_shared_feed_forward_length";
    const int64_t each = ctw_gguf_int(k, "expert_feed_forward_length", 0),
                  n = ctw_gguf_int(k, "expert_shared_count", 0);
    const bool in_range = each >= 0 && each <= MOST && n >= 0 && n <= MOST;
    const int64_t width = in_range ? each * n : -1, found = ctw_gguf_int(k, key, width);
    if (found != width || width < 0)
        ctw_gguf_refuse(k, key,
                        "found %" PRId64 "; shared experts of another width than expert_shared_"
                        "count experts (%" PRId64 ") are not supported",
                        found, width);
}

int64_t ctw_gguf_head(struct ctw_gguf_keys *k)
{
    static const char given[] = "attention.key_length", count[] = "attention.head_count";
    const bool is_given =
        ctw_gguf_meta(k, given) != NULL; /* heads may then differ in number from layer to layer */
    const int64_t found = ctw_gguf_int(k, is_given ? given : count, 0);
    const int64_t head = is_given    ? found
                         : found > 0 ? ctw_gguf_int(k, "embedding_length", 0) / found
                                     : 0;
    if (head < 1)
        ctw_gguf_refuse(k, is_given ? given : count, "found %" PRId64 ", expected 1 or more",
                        found);
    return head;
}

void ctw_gguf_write_space_head(struct ctw_gguf_keys *k, const char *name)
{
    int64_t heads = ctw_gguf_int(k, "ssm.time_step_rank", 0);
    int64_t inner = ctw_gguf_int(k, "ssm.inner_size", 0);
    if (heads < 1 || inner % heads != 0)
        ctw_gguf_refuse(k, "ssm.inner_size",
                        "found %" PRId64 ", not a multiple of %" PRId64 " heads", inner, heads);
    else
        ctw_json_write_key_int(&k->writer, name, inner / heads);
}

/* Rows of the embedding: no metadata gives them reliably. */
static void write_vocabulary(struct ctw_gguf_keys *k)
{
    const struct ctw_tensor *t = ctw_container_find(k->files, "token_embd.weight");
    if (k->st == CTW_OK && (t == NULL || t->unusable != NULL || t->n_dims != 2))
        k->st = ctw_fail(k->err, CTW_EFORMAT,
                         "%s: %s token_embd.weight, a matrix, which every "
                         "model has",
                         k->file, t == NULL ? "there is no" : "cannot read");
    if (k->st == CTW_OK)
        ctw_json_write_key_int(&k->writer, "vocab_size", t->shape[0]);
}

static void check_gating(struct ctw_gguf_keys *k)
{
    static const char key[] = "expert_gating_func";
    int64_t found = ctw_gguf_int(k, key, k->arch->gating);
    if (k->arch->gating != 0 && found != k->arch->gating)
        ctw_gguf_refuse(k, key, "found %" PRId64 "; this architecture is read with %d (%s) only",
                        found, k->arch->gating,
                        k->arch->gating == CTW_GGUF_SIGMOID   ? "sigmoid"
                        : k->arch->gating == CTW_GGUF_SOFTMAX ? "softmax"
                                                              : "sqrtsoftplus");
}

void ctw_gguf_write_sizes(struct ctw_gguf_keys *k)
{
    static const struct ctw_gguf_key shared[] = {
        {"hidden_size", "embedding_length", true},
        {"num_attention_heads", "attention.head_count", true},
        {"num_key_value_heads", "attention.head_count_kv", false},
        {"head_dim", "attention.key_length", false},
        {"intermediate_size", "feed_forward_length", false},
        {"max_position_embeddings", "context_length", true},
        {"rms_norm_eps", "attention.layer_norm_rms_epsilon", false},
    };
    for (size_t i = 0; i < CTW_COUNT(shared); i++) {
        const struct ctw_gguf_key *own = k->arch->keys;
        while (own != NULL && own->name != NULL && strcmp(own->name, shared[i].name) != 0)
            own++;
        if (own == NULL || own->name == NULL)
            ctw_gguf_write(k, shared[i].name, shared[i].stored, shared[i].needed);
    }
    for (const struct ctw_gguf_key *own = k->arch->keys; own != NULL && own->name != NULL; own++)
        if (own->stored != NULL)
            ctw_gguf_write(k, own->name, own->stored, own->needed);
    if (ctw_gguf_meta(k, "block_count") == NULL)
        ctw_gguf_write(k, "num_hidden_layers", "block_count", true);
    else
        ctw_json_write_key_int(&k->writer, "num_hidden_layers", ctw_gguf_layers(k));
    check_gating(k);
    write_vocabulary(k);
    ctw_json_write_key_bool(&k->writer, "tie_word_embeddings", !ctw_gguf_has(k, "output.weight"));
}
