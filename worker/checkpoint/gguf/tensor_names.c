#include "worker/checkpoint/gguf/tensor_names.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"

enum { MAX_NAME = 300 };

/* The renamed tensors so far. */
struct renamed {
    struct ctw_tensor *tensors;
    int64_t n, cap;
    char *names; /* [names_cap]; the tensors' names are offsets until all are there */
    size_t names_bytes, names_cap;
};

/* A stored name in its pieces. */
struct pieces {
    int64_t layer;      /* -1: outside the layers */
    char stem[128];     /* "attn_q", or with its ending for names that are whole */
    const char *ending; /* ".weight", ".bias", or "" */
};

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

static struct pieces take_apart(const char *name)
{
    struct pieces p = {.layer = -1, .ending = ""};
    if (strncmp(name, "blk.", 4) == 0 && name[4] >= '0' && name[4] <= '9') {
        char *end;
        p.layer = strtol(name + 4, &end, 10);
        name = *end == '.' ? end + 1 : end;
    }
    p.ending = ends_with(name, ".weight") ? ".weight" : ends_with(name, ".bias") ? ".bias" : "";
    (void)snprintf(p.stem, sizeof(p.stem), "%.*s", (int)(strlen(name) - strlen(p.ending)), name);
    return p;
}

static const struct ctw_gguf_name *
look_up(const struct ctw_gguf_keys *k, const struct ctw_gguf_name *names, const struct pieces *p)
{
    char whole[160];
    (void)snprintf(whole, sizeof(whole), "%s%s", p->stem, p->ending);
    for (; names != NULL && names->stored != NULL; names++) {
        bool is_whole = (names->changes & CTW_GGUF_WHOLE) != 0;
        bool is_linear = (names->changes & CTW_GGUF_LINEAR) != 0;
        if (strcmp(names->stored, is_whole ? whole : p->stem) == 0 &&
            (!is_linear || ctw_gguf_layer_tensor(k, p->layer, "attn_q") == NULL))
            return names;
    }
    return NULL;
}

/* NULL: the architecture has no such tensor. */
static const struct ctw_gguf_name *find(const struct ctw_gguf_keys *k, const struct pieces *p)
{
    const struct ctw_gguf_name *own = look_up(k, k->arch->layers, p);
    if (own != NULL)
        return own;
    return look_up(k, p->layer >= 0 ? ctw_gguf_layer_names : ctw_gguf_top_names, p);
}

static bool grow(struct renamed *r)
{
    if (r->n == r->cap) {
        int64_t cap = r->cap == 0 ? 256 : 2 * r->cap;
        struct ctw_tensor *tensors = ctw_realloc(r->tensors, (size_t)cap, sizeof(*tensors));
        if (tensors == NULL)
            return false;
        r->tensors = tensors;
        r->cap = cap;
    }
    if (r->names_bytes + MAX_NAME > r->names_cap) {
        size_t cap = 2 * r->names_cap + 64 * MAX_NAME;
        char *names = ctw_realloc(r->names, cap, 1);
        if (names == NULL)
            return false;
        r->names = names;
        r->names_cap = cap;
    }
    return true;
}

static bool add(struct renamed *r, const struct ctw_tensor *t, const char *name)
{
    if (!grow(r))
        return false;
    size_t bytes = strlen(name) + 1; /* at most MAX_NAME */
    memcpy(r->names + r->names_bytes, name, bytes);
    r->tensors[r->n] = *t;
    r->tensors[r->n++].name = (const char *)(uintptr_t)r->names_bytes;
    r->names_bytes += bytes;
    return true;
}

/* "model.layers.3.self_attn.q_proj.weight", with '#' as the expert. */
static void spell(char buf[MAX_NAME], const struct ctw_gguf_arch *arch, const struct pieces *p,
                  const struct ctw_gguf_name *n, int64_t expert)
{
    const char *prefix = arch->prefix != NULL ? arch->prefix : "model.layers.";
    const char *mark = strchr(n->name, '#');
    const char *ending = (n->changes & CTW_GGUF_WHOLE) != 0 ? "" : p->ending;
    char layer[48] = "", number[32] = "";
    if (p->layer >= 0)
        (void)snprintf(layer, sizeof(layer), "%s%" PRId64 ".", prefix, p->layer);
    if (mark != NULL)
        (void)snprintf(number, sizeof(number), "%" PRId64, expert);
    (void)snprintf(buf, MAX_NAME, "%s%.*s%s%s%s", layer,
                   (int)(mark != NULL ? mark - n->name : (ptrdiff_t)strlen(n->name)), n->name,
                   number, mark != NULL ? mark + 1 : "", ending);
}

/* The matrices, or vectors, of a stack. Of n_parts names, each has as many of a matrix's rows. */
static bool add_experts(struct ctw_gguf_keys *k, struct renamed *r, const struct ctw_tensor *t,
                        const struct pieces *p, const struct ctw_gguf_name *const names[],
                        int n_parts)
{
    char name[MAX_NAME];
    int64_t count = t->n_dims >= 2 ? t->shape[0] : 0;
    struct ctw_tensor one = *t;
    if (t->unusable != NULL || count < 1) {
        spell(name, k->arch, p, names[0], 0);
        return add(r, t, name);
    }
    bool experts = p->layer >= 0; /* other stacks are Gemma 3n's, of its streams */
    if ((experts && count != ctw_gguf_int(k, "expert_count", 0)) || t->shape[1] % n_parts != 0) {
        ctw_gguf_refuse(k, "expert_count", "differs from %s, which has %" PRId64 " matrices",
                        t->name, count);
        return true;
    }
    one.n_dims--;
    memmove(one.shape, one.shape + 1, sizeof(one.shape) - sizeof(one.shape[0]));
    one.shape[CTW_MAX_DIMS - 1] = 0;
    one.shape[0] /= n_parts;
    one.bytes = t->bytes / (size_t)(count * n_parts);
    for (int64_t e = 0; e < count * n_parts; e++) {
        one.offset = t->offset + (uint64_t)e * one.bytes;
        spell(name, k->arch, p, names[e % n_parts], e / n_parts);
        if (!add(r, &one, name))
            return false;
    }
    return true;
}

/* With all elements in the first of n_dims dimensions, the others empty. */
static struct ctw_tensor reshaped(const struct ctw_tensor *t, int n_dims)
{
    struct ctw_tensor out = *t;
    for (int i = 1; i < t->n_dims; i++)
        out.shape[0] *= t->shape[i];
    memset(out.shape + 1, 0, sizeof(out.shape) - sizeof(out.shape[0]));
    out.n_dims = n_dims;
    return out;
}

/* Notes what the converter changed. */
static void note(struct ctw_gguf_keys *k, struct ctw_tensor *t, const struct pieces *p,
                 unsigned changes)
{
    bool queries = (changes & CTW_GGUF_PAIRS_Q) != 0, keys = (changes & CTW_GGUF_PAIRS_K) != 0;
    if ((changes & CTW_GGUF_ONE_ROW) != 0 && t->n_dims == 1) {
        t->n_dims = 2;
        t->shape[1] = t->shape[0];
        t->shape[0] = 1;
    }
    int64_t taps = t->n_dims >= 2 ? t->shape[t->n_dims - 1] : 0;
    if ((changes & CTW_GGUF_TAPS) != 0 && taps > 0) {
        *t = reshaped(t, 3);
        t->shape[0] /= taps;
        t->shape[1] = 1;
        t->shape[2] = taps;
    }
    if ((changes & CTW_GGUF_FLAT) != 0 && t->n_dims >= 2)
        *t = reshaped(t, 1);
    t->as_rates = (changes & CTW_GGUF_RATES) != 0;
    t->tiled = (changes & CTW_GGUF_TILED) != 0;
    if ((queries || keys) && t->n_dims == 2) {
        int64_t heads = ctw_gguf_of_layer(k, "attention.head_count", p->layer, 1);
        heads = keys ? ctw_gguf_of_layer(k, "attention.head_count_kv", p->layer, heads) : heads;
        if (heads < 1 || t->shape[0] % (2 * heads) != 0)
            ctw_gguf_refuse(k, "attention.head_count",
                            "%" PRId64 " heads do not divide the %" PRId64 " rows of %s", heads,
                            t->shape[0], t->name);
        else
            t->paired = t->shape[0] / heads;
    } else if ((queries || keys) && t->unusable == NULL) {
        t->unusable = "a bias whose elements are in RoPE's order is not supported";
    }
    const bool is_norm = ends_with(p->stem, "norm") || (changes & CTW_GGUF_PLUS_ONE) != 0;
    if (k->arch->norms_plus_one && is_norm && strcmp(p->ending, ".weight") == 0 &&
        (changes & CTW_GGUF_AS_IS) == 0)
        t->added = 1;
}

static bool rename_one(struct ctw_gguf_keys *k, struct renamed *r, struct ctw_tensor *t,
                       const struct pieces *p, const struct ctw_gguf_name *n)
{
    char name[MAX_NAME];
    note(k, t, p, n->changes);
    if ((n->changes & CTW_GGUF_EXPERTS) != 0)
        return add_experts(k, r, t, p, &n, 1);
    spell(name, k->arch, p, n, k->arch->number != NULL ? ctw_gguf_int(k, k->arch->number, 0) : 0);
    return add(r, t, name);
}

/* The same pieces with another stem. */
static struct pieces with_stem(const struct pieces *p, const char *stem)
{
    struct pieces other = *p;
    (void)snprintf(other.stem, sizeof(other.stem), "%s", stem);
    return other;
}

/* Rows of q, k and v one after another: the converter's option --fuse-qkv. Queries may have gates,
 * as many rows again. */
static bool split_qkv(struct ctw_gguf_keys *k, struct renamed *r, const struct ctw_tensor *t,
                      const struct pieces *p)
{
    static const char *const stems[] = {"attn_q", "attn_k", "attn_v"};
    int64_t head = ctw_gguf_head(k);
    int64_t heads = ctw_gguf_of_layer(k, "attention.head_count", p->layer, 0);
    int64_t kv = ctw_gguf_of_layer(k, "attention.head_count_kv", p->layer, heads);
    int64_t rows[] = {heads * head, kv * head,
                      kv * ctw_gguf_int(k, "attention.value_length", head)};
    int64_t all = rows[0] + rows[1] + rows[2];
    if (t->unusable == NULL && t->shape[0] == all + rows[0]) {
        all += rows[0];
        rows[0] *= 2;
    }
    struct ctw_tensor one = *t;
    if (t->unusable == NULL && t->shape[0] != all) {
        ctw_gguf_refuse(k, "attention.head_count", "%s has %" PRId64 " rows, expected %" PRId64,
                        t->name, t->shape[0], all);
        return true;
    }
    bool room = true;
    for (int i = 0; i < 3 && room; i++) {
        const struct pieces part = with_stem(p, stems[i]);
        struct ctw_tensor own = one;
        own.shape[0] = t->unusable == NULL ? rows[i] : 0;
        own.bytes = t->unusable == NULL ? t->bytes / (size_t)all * (size_t)rows[i] : 0;
        one.offset += own.bytes;
        room = rename_one(k, r, &own, &part, find(k, &part));
    }
    return room;
}

/* Gate and up of each expert one after the other: the converter's option --fuse-gate-up-exps. */
static bool split_gate_up(struct ctw_gguf_keys *k, struct renamed *r, const struct ctw_tensor *t,
                          const struct pieces *p)
{
    const struct pieces gate = with_stem(p, "ffn_gate_exps"), up = with_stem(p, "ffn_up_exps");
    const struct ctw_gguf_name *const names[] = {find(k, &gate), find(k, &up)};
    return add_experts(k, r, t, p, names, 2);
}

static bool rename_any(struct ctw_gguf_keys *k, struct renamed *r, struct ctw_tensor *t)
{
    const struct pieces p = take_apart(t->name);
    const struct ctw_gguf_name *n = find(k, &p);
    char name[MAX_NAME];
    bool fused = strcmp(p.stem, "attn_qkv") == 0;
    /* A delta rule's projection has the same name. */
    if (fused && n != NULL && strstr(n->name, "linear_attn.") == n->name)
        fused = ctw_gguf_layer_tensor(k, p.layer, "ssm_conv1d") == NULL;
    else
        fused &= n == NULL;
    if (fused)
        return split_qkv(k, r, t, &p);
    if (n != NULL && (n->changes & CTW_GGUF_LEFT_OUT) != 0)
        return true;
    if (n != NULL)
        return rename_one(k, r, t, &p, n);
    if (strcmp(p.stem, "ffn_gate_up_exps") == 0)
        return split_gate_up(k, r, t, &p);
    (void)snprintf(name, sizeof(name), "%s", t->name);
    return add(r, t, name);
}

/* Numbers of layers that are elements of arrays in the header: a tensor each, of one element. */
static bool add_numbers(struct ctw_gguf_keys *k, struct renamed *r)
{
    const struct ctw_gguf_key *n = k->arch->numbers;
    int64_t n_layers = ctw_gguf_layers(k);
    for (; n != NULL && n->name != NULL && k->st == CTW_OK; n++) {
        const struct ctw_meta *m = ctw_meta_find(k->metadata, n->stored);
        if (m == NULL || m->type != CTW_META_F32 || m->n != (uint64_t)n_layers)
            k->st =
                ctw_fail(k->err, CTW_EFORMAT,
                         "%s: %s: expected an array of float32, one for each of %" PRId64 " layers",
                         k->file, n->stored, n_layers);
        for (int64_t i = 0; i < n_layers && k->st == CTW_OK; i++) {
            char name[MAX_NAME];
            uint64_t at = (uint64_t)(m->data - k->metadata->block) + 4 * (uint64_t)i;
            const struct ctw_tensor t = {
                .dtype = CTW_F32, .n_dims = 1, .shape = {1}, .offset = at, .bytes = 4};
            (void)snprintf(name, sizeof(name), "model.layers.%" PRId64 ".%s", i, n->name);
            if (!add(r, &t, name))
                return false;
        }
    }
    return true;
}

/* Arrays of the header that are tensors. */
static bool add_lists(struct ctw_gguf_keys *k, struct renamed *r)
{
    const struct ctw_gguf_key *n = k->arch->lists;
    const int64_t number = n != NULL ? ctw_gguf_int(k, k->arch->number, -1) : -1;
    for (; number >= 0 && n->name != NULL && k->st == CTW_OK; n++) {
        const struct ctw_meta *m = ctw_gguf_meta(k, n->stored);
        const struct pieces whole = {.layer = -1, .ending = ""};
        const struct ctw_gguf_name name = {"", n->name, 0};
        char spelt[MAX_NAME];
        if (m == NULL || (m->type != CTW_META_I64 && m->type != CTW_META_U64)) {
            ctw_gguf_refuse(k, n->stored, "expected an array of 64-bit integers");
            return true;
        }
        const struct ctw_tensor t = {.dtype = CTW_I64,
                                     .n_dims = 1,
                                     .shape = {(int64_t)m->n},
                                     .offset = (uint64_t)(m->data - k->metadata->block),
                                     .bytes = 8 * (size_t)m->n};
        spell(spelt, k->arch, &whole, &name, number);
        if (!add(r, &t, spelt))
            return false;
    }
    return true;
}

enum ctw_status ctw_gguf_rename(struct ctw_gguf_keys *k, struct ctw_container *files)
{
    struct renamed r = {0};
    bool room = true, drafts = ctw_gguf_meta(k, "nextn_predict_layers") != NULL;
    int64_t n_layers = ctw_gguf_layers(k);
    for (int64_t i = 0; i < ctw_container_count(files) && k->st == CTW_OK && room; i++) {
        struct ctw_tensor t = *ctw_container_at(files, i);
        if (strncmp(t.name, "rope_f", 6) == 0) /* a part of the keys */
            continue;
        if (!drafts || take_apart(t.name).layer < n_layers)
            room = rename_any(k, &r, &t);
    }
    if (room && k->st == CTW_OK)
        room = add_numbers(k, &r) && add_lists(k, &r);
    if (!room)
        k->st = ctw_fail(k->err, CTW_ENOMEM, "%s: out of memory for the tensors' names", k->file);
    for (int64_t i = 0; i < r.n; i++)
        r.tensors[i].name = r.names + (uintptr_t)r.tensors[i].name;
    if (k->st == CTW_OK)
        return k->st = ctw_container_rename(files, r.tensors, r.n, r.names, k->err);
    ctw_free(r.tensors);
    ctw_free(r.names);
    return k->st;
}
