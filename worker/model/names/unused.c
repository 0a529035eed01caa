/* Finds the tensors of a checkpoint that belong to no layer of the model. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/model/names/names.h"
#include "worker/model/names/scales.h"
#include "worker/model/recipe/kinds.h"
#include "worker/model/tensors.h"

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

enum leftover { LEFT_UNKNOWN, LEFT_HARMLESS, LEFT_SCALE, LEFT_KV_SCALE };

/* Does the family's function list this tensor as unused? */
static bool is_unused(const struct ctw_config *c, const char *name)
{
    for (const char *const *end = c->buffers; end != NULL && *end != NULL; end++)
        if (ends_with(name, *end))
            return true;
    for (int64_t i = 0; i < c->n_wants; i++) {
        size_t n = strlen(c->wants[i].name);
        if (c->wants[i].kind == CTW_WANT_UNUSED && strncmp(name, c->wants[i].name, n) == 0 &&
            (name[n] == '.' || name[n] == '\0'))
            return true;
    }
    return false;
}

/* Does the method store this tensor beside a module's parts, and does it say nothing more? */
static bool is_unread(const struct ctw_config *c, const char *name)
{
    const char *last = strrchr(name, '.');
    const char *const *known = c->quant.names->unread;
    for (; last != NULL && known != NULL && *known != NULL; known++)
        if (strcmp(last + 1, *known) == 0)
            return true;
    return false;
}

/* Tensors that do not change a weight-only score. */
static enum leftover classify(const char *name)
{
    static const char *const kv[] = {
        ".k_scale",       ".k_zero_point",        ".k_global_scale",
        ".v_scale",       ".v_zero_point",        ".v_global_scale",
        ".q_scale",       ".q_zero_point",        ".q_global_scale",
        ".k_proj.k_bias", ".k_proj.output_scale", ".k_proj.output_zero_point",
        ".v_proj.v_bias", ".v_proj.output_scale", ".v_proj.output_zero_point",
    };
    static const char *const activations[] = {".input_scale",        ".input_zero_point",
                                              ".input_global_scale", ".output_scale",
                                              ".output_zero_point",  "activation_scale"};
    for (size_t i = 0; i < CTW_COUNT(kv); i++)
        if (ends_with(name, kv[i]))
            return LEFT_KV_SCALE;
    for (size_t i = 0; i < CTW_COUNT(activations); i++)
        if (ends_with(name, activations[i]))
            return LEFT_SCALE;
    /* A buffer in old files, which is computed from config.json here */
    return ends_with(name, ".rotary_emb.inv_freq") ? LEFT_HARMLESS : LEFT_UNKNOWN;
}

bool ctw_says_nothing(const struct ctw_finder *finder, const struct ctw_tensor *t)
{
    bool gptq = strcmp(finder->config->quant.names->method, "gptq") == 0;
    bool zero = (gptq && ends_with(t->name, ".bias")) ||
                (ends_with(t->name, "_zero_point") && ctw_dtype_bytes(t->dtype) == 1);
    const char *data = zero ? ctw_container_data(finder->container, t) : NULL;
    for (size_t i = 0; zero && i < t->bytes; i++)
        zero = data[i] == 0;
    return zero;
}

static int by_address(const void *a, const void *b)
{
    uintptr_t x = (uintptr_t) * (const struct ctw_tensor *const *)a;
    uintptr_t y = (uintptr_t) * (const struct ctw_tensor *const *)b;
    return x < y ? -1 : x > y;
}

/* Appends a tensor, if there is one. */
static void list_one(const struct ctw_tensor **list, int64_t *n, const struct ctw_tensor *t)
{
    if (t != NULL && list != NULL)
        list[*n] = t;
    *n += t != NULL;
}

static void list_matrix(const struct ctw_tensor **list, int64_t *n, const struct ctw_matrix *m)
{
    for (int part = 0; part < CTW_N_PARTS; part++)
        list_one(list, n, m->part[part]);
    for (size_t i = 0; i < CTW_COUNT(m->input_part); i++)
        list_one(list, n, m->input_part[i]);
    list_one(list, n, m->output_part);
}

static void list_inputs(const struct ctw_tensor **list, int64_t *n,
                        const struct ctw_head_inputs *inputs)
{
    for (int i = 0; inputs != NULL && i < CTW_N_HEADS; i++)
        for (int j = 0; j < 2; j++)
            list_one(list, n, inputs->of[i].part[j]);
}

int64_t ctw_list_tensors(const struct ctw_model *m, const struct ctw_tensor **list)
{
    int64_t n = 0;
    for (int64_t i = 0; i < m->n_rotation_tensors; i++)
        list_one(list, &n, m->rotation_tensors[i]);
    for (int l = 0; l < m->n_layers; l++) {
        const struct ctw_layer *layer = &m->layers[l];
        for (int i = 0; i < ctw_layer_n_matrices(layer); i++)
            if (ctw_layer_matrix_of(layer, i)->at == 0) /* one for all of a stack */
                list_matrix(list, &n, ctw_layer_matrix_of(layer, i));
        for (int b = 0; b < layer->n_branches; b++)
            list_inputs(list, &n, ctw_branch_inputs((struct ctw_branch *)&layer->branch[b]));
        for (int i = 0; i < layer->table.n; i++)
            list_one(list, &n, layer->table.part[i]);
        for (int i = 0; i < CTW_N_VECTORS; i++) {
            list_one(list, &n, layer->vector[i]);
            for (const struct ctw_tensor **t = layer->more[i]; t != NULL && *t != NULL; t++)
                list_one(list, &n, *t);
        }
    }
    return n;
}

/* What a tensor is that no layer reads. */
static enum ctw_status classify_leftover(const struct ctw_finder *finder, const struct ctw_model *m,
                                         struct ctw_scale_owners *owners,
                                         const struct ctw_tensor *t, enum leftover *what,
                                         struct ctw_err *err)
{
    bool scale = false;
    *what = classify(t->name);
    if (*what != LEFT_UNKNOWN)
        return CTW_OK;
    if (is_unused(finder->config, t->name) || is_unread(finder->config, t->name) ||
        ctw_says_nothing(finder, t)) {
        *what = LEFT_HARMLESS;
        return CTW_OK;
    }
    bool quantises_kv = finder->config->quant.kv_cache[0] != '\0';
    enum ctw_status st = ctw_scale_belongs(owners, m, quantises_kv, t, &scale, err);
    if (st == CTW_OK && scale)
        *what = ends_with(t->name, ".kv_scale") ? LEFT_KV_SCALE : LEFT_SCALE;
    return st;
}

enum ctw_status ctw_unused_check(const struct ctw_finder *finder, struct ctw_model *m,
                                 const struct ctw_tensor **used, int64_t n_used, bool *kv_scales,
                                 struct ctw_err *err)
{
    const struct ctw_tensor *first = NULL, *tied = NULL;
    struct ctw_scale_owners owners = {0};
    enum ctw_status st = CTW_OK;
    int64_t n_unknown = 0;
    char head[512], found[96], more[48] = " has";
    qsort(used, (size_t)n_used, sizeof(*used), by_address);
    if (m->tied) { /* ctw_matrix_tie() checked that its bytes equal the embedding's */
        (void)snprintf(head, sizeof(head), "%s.weight",
                       m->layers[m->n_layers - 1].matrix[CTW_M_HEAD].name);
        tied = ctw_container_find(finder->container, head);
    }
    *kv_scales = false;
    for (int64_t i = 0; i < ctw_container_count(finder->container) && st == CTW_OK; i++) {
        const struct ctw_tensor *t = ctw_container_at(finder->container, i);
        if (t == tied || bsearch(&t, used, (size_t)n_used, sizeof(*used), by_address) != NULL)
            continue;
        if (ctw_name_is_apart(finder->config, t->name)) {
            m->n_apart++;
            m->apart_bytes += t->bytes;
            continue;
        }
        enum leftover what;
        st = classify_leftover(finder, m, &owners, t, &what, err);
        *kv_scales |= what == LEFT_KV_SCALE;
        m->n_scales += what == LEFT_SCALE || what == LEFT_KV_SCALE;
        if (what == LEFT_UNKNOWN && n_unknown++ == 0)
            first = t;
    }
    ctw_scale_owners_close(&owners);
    if (st != CTW_OK || n_unknown == 0)
        return st;
    struct ctw_part part = ctw_tensor_part(first);
    if (n_unknown > 1)
        snprintf(more, sizeof(more), " and %" PRId64 " more tensors have", n_unknown - 1);
    return ctw_fail(err, CTW_EUNSUP,
                    "%s: %s (%s)%s no use in a %s model as %s describes it; the configuration does "
                    "not fit the checkpoint, or this kind of checkpoint is not supported",
                    ctw_container_file(finder->container, first->file), first->name,
                    ctw_part_text(&part, found, sizeof(found)), more, m->model_type,
                    finder->config->file);
}
