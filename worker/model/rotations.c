#include "worker/model/rotations.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "worker/model/names/names.h"
#include "worker/model/recipe/kinds.h"

enum { MAX_NAME = 1024, MAX_MATRIX = 32768 };

static const char remedy[] = "save the model before it is rotated, or with rotations that are "
                             "fused into its weights (weight_input, weight_output)";

enum { MOST_SHARED = 64 };

/* Matrices that modules share, which are looked for and made once. */
struct shared {
    struct made {
        const struct ctw_transform *transform;
        int64_t size;
        bool inverse;
        int rotation;
    } made[MOST_SHARED];
    int n;
};

/* One application of a transform: to rows of blocks of `size` elements. */
struct turn {
    const struct ctw_finder *finder;
    struct ctw_model *model;
    const struct ctw_transform *transform;
    const struct ctw_transform_use *use;
    struct shared *shared;
    const char *module;
    int64_t size;
};

static enum ctw_status cannot(const struct turn *t, const char *why, struct ctw_err *err)
{
    return ctw_fail(err, CTW_EUNSUP, "%s: transform_config %s, %s of %s: %s; %s",
                    t->finder->config->file, t->transform->name, t->use->location, t->module, why,
                    remedy);
}

/* ---- tensors ---- */

static enum ctw_status keep_tensor(struct ctw_model *m, const struct ctw_tensor *t,
                                   struct ctw_err *err)
{
    size_t n = (size_t)m->n_rotation_tensors;
    const struct ctw_tensor **more = ctw_calloc(n + 1, sizeof(struct ctw_tensor *));
    if (more == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for rotations");
    if (n > 0)
        memcpy(more, m->rotation_tensors, n * sizeof(struct ctw_tensor *));
    more[n] = t;
    ctw_free(m->rotation_tensors);
    m->rotation_tensors = more;
    m->n_rotation_tensors++;
    return CTW_OK;
}

/* Is this tensor the same transform's, of the same size, for another module? An inverse of a random
 * matrix is a tensor of its own, which its location must tell. */
static bool is_shared(const struct turn *t, const char *part, const struct ctw_tensor *tensor)
{
    char end[MAX_NAME];
    size_t n = strlen(tensor->name);
    bool found = false;
    for (int64_t i = 0; i < t->transform->n_uses; i++) {
        const struct ctw_transform_use *use = &t->transform->uses[i];
        size_t length = (size_t)snprintf(end, sizeof(end), ".%s_%s.%s", t->transform->name,
                                         use->location, part);
        if (length >= n || strcmp(tensor->name + n - length, end) != 0)
            continue;
        if (t->transform->type == CTW_TRANSFORM_RANDOM_MATRIX && use->inverse != t->use->inverse)
            return false;
        found = true;
    }
    return found && tensor->n_dims >= 1 && tensor->shape[0] == t->size;
}

/*
 * Finds the transform's tensor for this module: its own, or, as shared tensors are stored once, the
 * only tensor of this size under another module's name. *out is NULL if there is none.
 */
static enum ctw_status find_part(const struct turn *t, const char *part,
                                 const struct ctw_tensor **out, struct ctw_err *err)
{
    char name[MAX_NAME];
    const struct ctw_container *files = t->finder->container;
    snprintf(name, sizeof(name), "%s.%s_%s.%s", t->module, t->transform->name, t->use->location,
             part);
    *out = ctw_container_find(files, name);
    if (*out != NULL)
        return keep_tensor(t->model, *out, err);
    for (int64_t i = 0; i < ctw_container_count(files); i++) {
        const struct ctw_tensor *other = ctw_container_at(files, i);
        if (!is_shared(t, part, other))
            continue;
        bool same = *out == NULL || ((*out)->bytes == other->bytes &&
                                     memcmp(ctw_container_data(files, *out),
                                            ctw_container_data(files, other), other->bytes) == 0);
        if (!same)
            return ctw_fail(err, CTW_EFORMAT,
                            "the checkpoint has no tensor %s, and several that it might be (%s and "
                            "%s differ)",
                            name, (*out)->name, other->name);
        *out = other;
    }
    return CTW_OK;
}

/* ---- the matrix ---- */

/* The matrix as it multiplies a row from the right. */
struct source {
    const uint8_t *data; /* NULL: Hadamard's */
    enum ctw_dtype dtype;
    const int64_t *order; /* of rows and columns alike; NULL: as they are */
    int64_t size;
    bool transposed;
};

static float hadamard_at(int64_t i, int64_t o)
{
    return __builtin_parityll((unsigned long long)(i & o)) ? -1.0f : 1.0f;
}

static float stored_at(const struct source *s, int64_t i)
{
    double value;
    if (s->dtype != CTW_F64)
        return ctw_load_float(s->data, s->dtype, i);
    memcpy(&value, s->data + i * (int64_t)sizeof(value), sizeof(value));
    return (float)value;
}

static float element(const struct source *s, int64_t i, int64_t o)
{
    int64_t row = s->transposed ? o : i, col = s->transposed ? i : o;
    if (s->order != NULL) {
        row = s->order[row];
        col = s->order[col];
    }
    return s->data == NULL ? hadamard_at(row, col) : stored_at(s, row * s->size + col);
}

/* Is the matrix Hadamard's, with the signs of its first column for its rows, or of its first row
 * for its columns? */
static bool is_hadamard(const struct source *s, bool columns)
{
    bool power = (s->size & (s->size - 1)) == 0 && s->size <= CTW_MAX_HADAMARD;
    for (int64_t i = 0; i < s->size && power; i++)
        for (int64_t o = 0; o < s->size && power; o++) {
            float sign = columns ? element(s, 0, o) : element(s, i, 0);
            power = fabsf(sign) == 1 && element(s, i, o) == sign * hadamard_at(i, o);
        }
    return power;
}

static bool same_floats(const float *a, const float *b, size_t n)
{
    return a == NULL || b == NULL ? a == b : memcmp(a, b, n * sizeof(*a)) == 0;
}

/* Adds the rotation, unless the model has an equal one; *out: 1 + its index. Takes r's arrays. */
static enum ctw_status add(struct ctw_model *m, const struct ctw_rotation *r, int *out,
                           struct ctw_err *err)
{
    size_t size = (size_t)r->size, n = (size_t)m->n_rotations;
    struct ctw_rotation *more = NULL;
    for (int i = 0; i < m->n_rotations; i++) {
        const struct ctw_rotation *old = &m->rotations[i];
        if (old->size != r->size || old->factor != r->factor || old->signs_last != r->signs_last ||
            !same_floats(old->signs, r->signs, size) ||
            !same_floats(old->matrix, r->matrix, size * size))
            continue;
        *out = i + 1;
        goto free_arrays;
    }
    more = ctw_calloc(n + 1, sizeof(*more));
    if (more == NULL)
        goto free_arrays;
    if (n > 0)
        memcpy(more, m->rotations, n * sizeof(*more));
    more[n] = *r;
    ctw_free(m->rotations);
    m->rotations = more;
    *out = ++m->n_rotations;
    return CTW_OK;
free_arrays:
    ctw_free((void *)(uintptr_t)r->signs);
    ctw_free((void *)(uintptr_t)r->matrix);
    return *out > 0 ? CTW_OK : ctw_fail(err, CTW_ENOMEM, "out of memory for rotations");
}

/* The signs of a Hadamard matrix, or all elements of any other. */
static enum ctw_status make(const struct turn *t, const struct source *s, int *out,
                            struct ctw_err *err)
{
    struct ctw_rotation r = {.size = s->size, .factor = 1};
    if (s->size > MAX_MATRIX)
        return cannot(t, "matrices of more than 32768 rows are not supported", err);
    bool rows = is_hadamard(s, false), columns = !rows && is_hadamard(s, true), any = false;
    int64_t n = rows || columns ? s->size : s->size * s->size;
    float *values = ctw_calloc((size_t)n, sizeof(*values));
    if (values == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for rotations");
    if (t->transform->type != CTW_TRANSFORM_RANDOM_MATRIX)
        r.factor = (float)(1 / sqrt((double)s->size));
    for (int64_t i = 0; i < n; i++) {
        values[i] = rows      ? element(s, i, 0)
                    : columns ? element(s, 0, i)
                              : element(s, i / s->size, i % s->size);
        any |= values[i] != 1;
    }
    r.signs_last = columns;
    if (!rows && !columns)
        r.matrix = values;
    else if (any)
        r.signs = values;
    else
        ctw_free(values);
    return add(t->model, &r, out, err);
}

/* A permutation [size] of I64, which the caller frees. */
static enum ctw_status read_order(const struct turn *t, int64_t **out, struct ctw_err *err)
{
    const struct ctw_tensor *p;
    enum ctw_status st = find_part(t, "perm", &p, err);
    if (st != CTW_OK)
        return st;
    if (p == NULL || p->dtype != CTW_I64 || p->n_dims != 1 || p->shape[0] != t->size)
        return cannot(t, "the checkpoint has no permutation for it, \"perm\", I64 [size]", err);
    int64_t *order = ctw_calloc((size_t)t->size, sizeof(*order));
    if (order == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for rotations");
    memcpy(order, ctw_container_data(t->finder->container, p), p->bytes);
    *out = order;
    for (int64_t i = 0; i < t->size; i++)
        if (order[i] < 0 || order[i] >= t->size)
            return ctw_fail(err, CTW_EFORMAT,
                            "%s: element %" PRId64 " is %" PRId64 ", expected 0 to %" PRId64,
                            p->name, i, order[i], t->size - 1);
    return CTW_OK;
}

static bool has_own(const struct turn *t)
{
    static const char *const parts[] = {"weight", "perm"};
    char name[MAX_NAME];
    bool own = false;
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof(name), "%s.%s_%s.%s", t->module, t->transform->name, t->use->location,
                 parts[i]);
        own |= ctw_container_find(t->finder->container, name) != NULL;
    }
    return own;
}

/* *out: 1 + the index of the model's rotation. */
static enum ctw_status make_turn(const struct turn *t, int *out, struct ctw_err *err)
{
    const struct ctw_transform *transform = t->transform;
    bool random_matrix = transform->type == CTW_TRANSFORM_RANDOM_MATRIX;
    const struct ctw_tensor *weight;
    int64_t *order = NULL;
    enum ctw_status st = find_part(t, "weight", &weight, err);
    if (st != CTW_OK)
        return st;
    struct source s = {.size = t->size, .transposed = t->use->inverse && !random_matrix};
    if (weight != NULL) {
        bool is_float = weight->dtype == CTW_F64 || weight->dtype == CTW_F32 ||
                        weight->dtype == CTW_BF16 || weight->dtype == CTW_F16;
        if (weight->unusable != NULL || !is_float || weight->n_dims != 2 ||
            weight->shape[0] != t->size || weight->shape[1] != t->size)
            return cannot(t, "its matrix is not F64, F32, BF16 or F16 [size, size]", err);
        /* If only headers are known, Hadamard's matrix stands for the stored matrix, whose contents
         * change no size. */
        if (!ctw_container_is_headers_alone(t->finder->container))
            s.data = ctw_container_data(t->finder->container, weight);
        s.dtype = weight->dtype;
    } else if (transform->type != CTW_TRANSFORM_HADAMARD) {
        return cannot(t, "the checkpoint has no matrix for it", err);
    } else if ((t->size & (t->size - 1)) != 0) {
        return cannot(t, "its size is not a power of two", err);
    }
    if (transform->permuted && !random_matrix)
        st = read_order(t, &order, err);
    s.order = order;
    if (st == CTW_OK)
        st = make(t, &s, out, err);
    ctw_free(order);
    return st;
}

/* The same, from the shared tensor if this module has no tensor of its own. */
static enum ctw_status open_turn(const struct turn *t, int *out, struct ctw_err *err)
{
    struct shared *s = t->shared;
    bool own = has_own(t);
    for (int i = 0; i < s->n && !own; i++)
        if (s->made[i].transform == t->transform && s->made[i].size == t->size &&
            s->made[i].inverse == t->use->inverse) {
            *out = s->made[i].rotation;
            return CTW_OK;
        }
    enum ctw_status st = make_turn(t, out, err);
    if (st != CTW_OK || own || s->n == MOST_SHARED)
        return st;
    s->made[s->n++] = (struct made){t->transform, t->size, t->use->inverse, *out};
    return CTW_OK;
}

/* ---- modules ---- */

/* Blocks of a product's columns must lie within its shards. */
static enum ctw_status check_shards(const struct turn *t, const struct ctw_layer *l, int role,
                                    struct ctw_err *err)
{
    for (int product = 0; product < CTW_LAYER_SLOTS; product++)
        for (int i = 0; i < l->product[product].n_shards; i++) {
            const struct ctw_rows *rows = &l->product[product].shard[i];
            if (rows->matrix != role)
                continue;
            const struct ctw_branch *b = &l->branch[product / CTW_BRANCH_PRODUCTS];
            const struct ctw_kind_row *k = ctw_kind_of(b);
            const char *why = k->rotated_output != NULL
                                  ? k->rotated_output(b, product % CTW_BRANCH_PRODUCTS)
                                  : NULL;
            if (why != NULL)
                return cannot(t, why, err);
            if (rows->step > 1 || rows->row0 % t->size != 0 || rows->n % t->size != 0)
                return cannot(t,
                              "blocks of its output that span several parts of a fused module are "
                              "not supported",
                              err);
        }
    return CTW_OK;
}

static enum ctw_status turn_matrix(struct turn *t, const struct ctw_want *want, struct ctw_layer *l,
                                   struct ctw_matrix *m, struct ctw_err *err)
{
    bool in = t->use->place == CTW_TRANSFORM_INPUT, expert = want->kind == CTW_WANT_EXPERT;
    int *to = in ? &m->rotate_in : &m->rotate_out;
    int64_t width = in ? m->weight.k : m->weight.n;
    t->module = want->name;
    t->size = t->transform->head_dim != 0 ? t->transform->head_dim : width;
    if (strcmp(want->class_name, "Linear") != 0)
        return cannot(t, "rotations of this kind of module are not supported", err);
    /* The module's class depends on transformers' version: "Linear" may or may not mean the
     * module. */
    if (ctw_want_is_in(want, ctw_kind_at(want->of)->router))
        return cannot(t, "rotations of routers are not supported", err);
    if (width % t->size != 0)
        return cannot(t, "head_dim does not divide its width", err);
    if (*to != 0)
        return cannot(t, "it is rotated twice, which is not supported", err);
    if (expert && (!in || !ctw_layer_changes_inputs(l) || want->n_stacked > 0))
        return cannot(t, "this is supported only of inputs of experts that are modules", err);
    if (!in && ctw_is_vocabulary(t->model, want->layer, want->role))
        return cannot(t, "logits are not supported", err);
    enum ctw_status st = in || expert ? CTW_OK : check_shards(t, l, want->role, err);
    return st == CTW_OK ? open_turn(t, to, err) : st;
}

static struct ctw_matrix *matrix_of(struct ctw_model *m, const struct ctw_want *w)
{
    struct ctw_layer *l = &m->layers[w->layer];
    if (w->kind == CTW_WANT_EXPERT)
        return &l->expert[w->expert * CTW_N_EXPERT_MATRICES + (int64_t)w->role];
    return w->kind == CTW_WANT_MATRIX || w->kind == CTW_WANT_TIED ? &l->matrix[w->role] : NULL;
}

/* Modules that contain others (and norms) may be targets of an expression, too. */
static enum ctw_status check_parents(struct turn *t, const struct ctw_want *want,
                                     struct ctw_err *err)
{
    char name[MAX_NAME];
    enum ctw_status st = CTW_OK;
    bool bias = want->kind == CTW_WANT_VECTOR &&
                want->role % CTW_BRANCH_VECTORS >= CTW_V_SCALAR; /* of no norm */
    snprintf(name, sizeof(name), "%s", want->name);
    for (int up = 1; st == CTW_OK && strchr(name, '.') != NULL; up++) {
        bool target = false;
        ctw_name_parent(name);
        if (bias && up == 1)
            continue;
        st = ctw_name_is_target(t->finder->config, want, up, "", &t->use->targets, &t->use->ignore,
                                &target, err);
        t->module = name;
        if (st == CTW_OK && target)
            return cannot(t, "rotations of this kind of module are not supported", err);
    }
    return st;
}

static enum ctw_status turn_matrices(struct turn *t, int64_t *n, struct ctw_err *err)
{
    const struct ctw_config *c = t->finder->config;
    enum ctw_status st = CTW_OK;
    for (int64_t i = 0; i < c->n_wants && st == CTW_OK; i++) {
        const struct ctw_want *w = &c->wants[i];
        struct ctw_matrix *m = matrix_of(t->model, w);
        bool target = false;
        st = check_parents(t, w, err);
        if (m == NULL || st != CTW_OK)
            continue;
        st = ctw_name_is_target(c, w, 0, w->class_name, &t->use->targets, &t->use->ignore, &target,
                                err);
        if (st == CTW_OK && target)
            st = turn_matrix(t, w, &t->model->layers[w->layer], m, err);
        *n += target;
    }
    return st;
}

/* Queries or keys of the layer that has this projection. */
static enum ctw_status turn_heads(struct turn *t, const struct ctw_want *want, struct ctw_branch *b,
                                  struct ctw_err *err)
{
    char module[MAX_NAME];
    struct ctw_head_inputs *inputs = ctw_branch_inputs(b);
    int *to = t->use->place == CTW_TRANSFORM_QUERIES ? &inputs->rotate_q : &inputs->rotate_k;
    snprintf(module, sizeof(module), "%s", want->name);
    ctw_name_parent(module);
    t->module = module;
    t->size = t->transform->head_dim;
    if (t->size == 0 || ctw_kind_of(b)->heads(b, CTW_HEADS_Q).width % t->size != 0)
        return cannot(t, "head_dim does not divide its heads", err);
    if (*to != 0)
        return cannot(t, "it is rotated twice, which is not supported", err);
    return open_turn(t, to, err);
}

static enum ctw_status turn_attentions(struct turn *t, int64_t *n, struct ctw_err *err)
{
    const struct ctw_config *c = t->finder->config;
    const char *class_name = ctw_name_attention_class(&t->use->targets);
    enum ctw_status st = CTW_OK;
    for (int64_t i = 0; i < c->n_wants && st == CTW_OK; i++) {
        const struct ctw_want *w = &c->wants[i];
        const struct ctw_kind_row *k = ctw_kind_at(w->of);
        bool target = false;
        if (!k->rotates_heads || !ctw_want_is_in(w, k->module))
            continue;
        struct ctw_layer *l = &t->model->layers[w->layer];
        struct ctw_branch *b = &l->branch[w->role / CTW_BRANCH_MATRICES];
        st = ctw_name_is_target(c, w, 1, class_name, &t->use->targets, &t->use->ignore, &target,
                                err);
        bool other = t->use->place == CTW_TRANSFORM_KEYS && k->heads(b, CTW_HEADS_K).n == 0;
        if (st == CTW_OK && target && !other)
            st = turn_heads(t, w, b, err);
        *n += target;
    }
    return st;
}

enum ctw_status ctw_rotations_open(const struct ctw_finder *finder, struct ctw_model *m,
                                   struct ctw_err *err)
{
    const struct ctw_quant_config *qc = &finder->config->quant;
    struct shared shared = {.n = 0};
    enum ctw_status st = CTW_OK;
    for (int64_t i = 0; i < qc->n_transforms; i++)
        for (int64_t j = 0; j < qc->transforms[i].n_uses && st == CTW_OK; j++) {
            struct turn t = {.finder = finder,
                             .model = m,
                             .transform = &qc->transforms[i],
                             .use = &qc->transforms[i].uses[j],
                             .shared = &shared,
                             .module = "its targets"};
            int64_t n = 0;
            st = t.use->place == CTW_TRANSFORM_INPUT || t.use->place == CTW_TRANSFORM_OUTPUT
                     ? turn_matrices(&t, &n, err)
                     : turn_attentions(&t, &n, err);
            if (st == CTW_OK && n == 0)
                st = cannot(&t, "the model has no such module", err);
        }
    return st;
}

void ctw_rotations_close(struct ctw_model *m)
{
    for (int i = 0; i < m->n_rotations; i++) {
        ctw_free((void *)(uintptr_t)m->rotations[i].signs);
        ctw_free((void *)(uintptr_t)m->rotations[i].matrix);
    }
    ctw_free(m->rotations);
    ctw_free(m->rotation_tensors);
}
