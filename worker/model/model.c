#include "worker/model/model.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/mem.h"
#include "worker/checkpoint/config/adapter.h"
#include "worker/checkpoint/config/model_keys.h"
#include "worker/checkpoint/container/files_stamp.h"
#include "worker/checkpoint/identity.h"
#include "worker/model/families/family.h"
#include "worker/model/inputs.h"
#include "worker/model/names/names.h"
#include "worker/model/places.h"
#include "worker/model/recipe/kinds.h"
#include "worker/model/rotations.h"
#include "worker/model/tensors.h"

/* ---- tensors ---- */

/* Opens a vector, or a tensor that continues it. */
static enum ctw_status open_vector(struct ctw_layer *l, struct ctw_finder *finder,
                                   const struct ctw_want *w, struct ctw_err *err)
{
    const struct ctw_tensor *t, **more = l->more[w->role];
    size_t n = 0;
    if (l->vector[w->role] == NULL)
        return ctw_vector_open(finder, &l->vector[w->role], w, err);
    enum ctw_status st = ctw_vector_open(finder, &t, w, err);
    if (st == CTW_OK && t->dtype != l->vector[w->role]->dtype)
        st = ctw_fail(err, CTW_EFORMAT, "%s: found %s, but %s is %s", t->name,
                      ctw_dtype_name(t->dtype), l->vector[w->role]->name,
                      ctw_dtype_name(l->vector[w->role]->dtype));
    if (st != CTW_OK)
        return st;
    while (more != NULL && more[n] != NULL)
        n++;
    more = ctw_realloc(more, n + 2, sizeof(struct ctw_tensor *));
    if (more == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for the list of tensors");
    more[n] = t;
    more[n + 1] = NULL;
    l->more[w->role] = more;
    return CTW_OK;
}

size_t ctw_vector_bytes(const struct ctw_layer *l, int vector)
{
    size_t bytes = l->vector[vector]->bytes;
    for (const struct ctw_tensor **t = l->more[vector]; t != NULL && *t != NULL; t++)
        bytes += (*t)->bytes;
    return bytes;
}

/* A norm whose weights are stored as 1 + w adds nothing to them. */
static enum ctw_status settle_norms(struct ctw_layer *l, struct ctw_err *err)
{
    for (int place = 0; place < CTW_N_NORMS; place++) {
        const struct ctw_tensor *t = l->vector[ctw_norm_weight(place)];
        if (t == NULL || t->added == 0)
            continue;
        if (l->norm[place].offset != (float)t->added)
            return ctw_fail(err, CTW_EUNSUP,
                            "%s: its weights are stored plus %d, but this norm multiplies by w, "
                            "not by 1 + w",
                            t->name, t->added);
        l->norm[place].offset = 0;
    }
    return CTW_OK;
}

/* Opens the tensors that the family's function describes, in its order. */
static enum ctw_status open_tensors(struct ctw_model *m, struct ctw_finder *finder,
                                    struct ctw_err *err)
{
    const struct ctw_config *c = finder->config;
    enum ctw_status st = CTW_OK;
    for (int64_t i = 0; i < c->n_wants && st == CTW_OK; i++) {
        const struct ctw_want *w = &c->wants[i];
        struct ctw_layer *l = &m->layers[w->layer];
        if (w->kind == CTW_WANT_UNUSED)
            continue;
        if (w->kind == CTW_WANT_VECTOR)
            st = open_vector(l, finder, w, err);
        else if (w->kind == CTW_WANT_TABLE)
            st = ctw_table_open(finder, &l->table, w, err);
        else if (w->kind == CTW_WANT_TIED)
            st = ctw_matrix_tie(finder, &l->matrix[w->role], &m->layers[0].matrix[CTW_M_EMBED], w,
                                err);
        else if (w->kind == CTW_WANT_EXPERT)
            st = ctw_expert_open(finder, l->expert, w, err);
        else
            st = ctw_matrix_open(finder, &l->matrix[w->role], w, err);
    }
    for (int i = 0; i < m->n_layers && st == CTW_OK; i++)
        st = settle_norms(&m->layers[i], err);
    return st;
}

/* ---- numbers of the description that are tensors ---- */

static double number_in(const struct ctw_model *m, const struct ctw_tensor *t)
{
    const uint8_t *data = ctw_container_data(m->container, t);
    uint8_t aligned[8] = {0};
    memcpy(aligned, data, ctw_dtype_bytes(t->dtype));
    return ctw_load_float(aligned, t->dtype, 0);
}

static void read_numbers(struct ctw_model *m, struct ctw_layer *l, int branch)
{
    struct ctw_branch *b = &l->branch[branch];
    const struct ctw_kind_row *k = ctw_kind_of(b);
    const struct ctw_tensor **vector = &l->vector[ctw_vector_at(branch, 0)];
    double values[CTW_BRANCH_VECTORS];
    if (vector[CTW_V_SCALAR] != NULL)
        b->scalar = (float)number_in(m, vector[CTW_V_SCALAR]);
    if (vector[CTW_V_FACTOR] != NULL)
        b->factor *= (float)number_in(m, vector[CTW_V_FACTOR]);
    if (k->n_numbers == 0 || vector[k->numbers] == NULL)
        return;
    for (int i = 0; i < k->n_numbers; i++)
        values[i] = number_in(m, vector[k->numbers + i]);
    k->take_numbers(b, values);
}

/* Checks and completes the branches with the opened tensors. */
static enum ctw_status finish_branches(struct ctw_model *m, struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    for (int i = 1; i <= m->n_decoders; i++)
        for (int b = 0; b < m->layers[i].n_branches && st == CTW_OK; b++) {
            const struct ctw_kind_row *k = ctw_kind_of(&m->layers[i].branch[b]);
            read_numbers(m, &m->layers[i], b);
            const struct ctw_tensor *factor = m->layers[i].vector[ctw_vector_at(b, CTW_V_FACTOR)];
            if (factor != NULL && m->layers[i].branch[b].factor == 0 &&
                !ctw_container_is_headers_alone(m->container))
                return ctw_fail(err, CTW_EUNSUP,
                                "%s: found 0, which would leave out the branch; expected another "
                                "factor",
                                factor->name);
            st = k->check != NULL ? k->check(&m->layers[i], b, err) : CTW_OK;
        }
    return st;
}

/* A configuration that lists unquantised modules, for a file without quantised modules. */
static enum ctw_status check_quantised(const struct ctw_finder *finder, struct ctw_err *err)
{
    const struct ctw_quant_config *qc = &finder->config->quant;
    bool used = !qc->tensors_decide || qc->n_groups == 0 || finder->otherwise.n > 0;
    for (int64_t i = 0; i < qc->n_groups; i++)
        used |= finder->group_used[i];
    return used ? CTW_OK
                : ctw_fail(err, CTW_EFORMAT,
                           "the configuration says quant_method \"%s\", but all weights are stored "
                           "unquantised; remove its quantization_config, or restore the weights",
                           qc->names->method);
}

/* What the opened tensors decide. */
static enum ctw_status finish_layers(struct ctw_model *m, const struct ctw_finder *finder,
                                     struct ctw_err *err)
{
    enum ctw_status st = finish_branches(m, err);
    if (st == CTW_OK)
        st = check_quantised(finder, err);
    if (st == CTW_OK && finder->quantises_activations)
        st = ctw_inputs_open(finder, m, err);
    if (st == CTW_OK)
        st = ctw_rotations_open(finder, m, err);
    return st == CTW_OK ? ctw_places_make(m, err) : st;
}

/* ---- properties derived from the layers ---- */

bool ctw_has_tables(const struct ctw_model *m)
{
    for (int i = 0; i < m->n_layers; i++)
        if (m->layers[i].table.n > 0)
            return true;
    return false;
}

bool ctw_is_repeated_matrix(const struct ctw_model *m, int layer, int matrix)
{
    const struct ctw_layer *l = &m->layers[layer];
    for (int i = 1; i < layer && matrix < CTW_N_MATRICES && l->matrix[matrix].name != NULL; i++)
        if (m->layers[i].matrix[matrix].part[CTW_PART_VALUES] ==
            l->matrix[matrix].part[CTW_PART_VALUES])
            return true;
    return false;
}

bool ctw_is_repeated_vector(const struct ctw_model *m, int layer, int vector)
{
    const struct ctw_tensor *t = m->layers[layer].vector[vector];
    for (int i = 1; i < layer && t != NULL; i++)
        if (m->layers[i].vector[vector] == t)
            return true;
    return false;
}

static void count_weights(struct ctw_model *m)
{
    double bits = 0, quantised = 0;
    for (int l = 0; l < m->n_layers; l++) {
        const struct ctw_layer *layer = &m->layers[l];
        for (int i = 0; i < ctw_layer_n_matrices(layer); i++) {
            const struct ctw_weight *w = &ctw_layer_matrix_of(layer, i)->weight;
            if (ctw_layer_matrix_of(layer, i)->name == NULL || ctw_is_tied_head(m, l, i) ||
                ctw_is_repeated_matrix(m, l, i))
                continue;
            m->n_params += w->n * w->k;
            if (ctw_weight_has_no_codes(w))
                continue;
            bits += 8.0 * (double)ctw_weight_bytes(w);
            quantised += (double)w->n * (double)w->k;
        }
        if (layer->table.n > 0)
            m->n_params += layer->table.row0[layer->table.n] * layer->table.part[0]->shape[1];
        for (int i = 0; i < CTW_N_VECTORS; i++)
            if (layer->vector[i] != NULL && !ctw_is_repeated_vector(m, l, i))
                m->n_params += (int64_t)(ctw_vector_bytes(layer, i) /
                                         ctw_dtype_bytes(layer->vector[i]->dtype));
    }
    m->weight_bits = quantised > 0 ? bits / quantised : 0;
}

/*
 * The dtype if the configuration names none: the dtype of the tensors that are not quantised.
 * (transformers uses the first such tensor.)
 */
static enum ctw_status infer_dtype(struct ctw_model *m, const struct ctw_config *c,
                                   struct ctw_err *err)
{
    const struct ctw_tensor *seen = NULL;
    for (int64_t i = 0; i < ctw_container_count(m->container); i++) {
        const struct ctw_tensor *t = ctw_container_at(m->container, i);
        if (ctw_name_is_apart(c, t->name))
            continue;
        if (t->dtype != CTW_BF16 && t->dtype != CTW_F16 && t->dtype != CTW_F32)
            continue;
        size_t n = strlen(t->name);
        if (n < 7 || strcmp(t->name + n - 7, ".weight") != 0)
            continue;
        if (seen != NULL && seen->dtype != t->dtype)
            return ctw_fail(err, CTW_EFORMAT,
                            "%s: no dtype is given, and the tensors have several (%s is %s, %s is "
                            "%s); add the dtype to compute in as \"dtype\"",
                            c->file, seen->name, ctw_dtype_name(seen->dtype), t->name,
                            ctw_dtype_name(t->dtype));
        seen = t;
    }
    if (seen == NULL)
        return ctw_fail(err, CTW_EFORMAT, "%s: no dtype is given; add \"dtype\"", c->file);
    m->dtype = seen->dtype;
    ctw_info("%s: no dtype is given; using %s, the tensors' dtype", c->file,
             ctw_dtype_name(m->dtype));
    return CTW_OK;
}

/* Logs parts that compressed-tensors omits from a file because they carry no information. */
static void tell_lacking(const struct ctw_finder *finder)
{
    const struct {
        const struct ctw_lacking *lacking;
        enum ctw_part_kind part;
        const char *meaning;
    } rows[] = {
        {&finder->index, CTW_PART_GROUP_INDEX,
         "although actorder is group: it was never set, so the groups are sequential"},
        {&finder->zero_points, CTW_PART_ZERO_POINT,
         "although symmetric is false: they were all 0, so the weights are symmetric"},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        int64_t n = rows[i].lacking->n;
        if (n > 0)
            ctw_info("%s: %" PRId64 " %s (the first is %s) %s no %s, %s", finder->config->file, n,
                     n == 1 ? "matrix" : "matrices", rows[i].lacking->first,
                     n == 1 ? "has" : "have", finder->config->quant.names->codes[rows[i].part],
                     rows[i].meaning);
    }
}

/* Warns of matrices whose stored form contradicts the configuration. */
static void warn_of_contradictions(const struct ctw_finder *finder)
{
    const struct {
        const struct ctw_lacking *matrices;
        const char *how;
    } rows[] = {
        {&finder->otherwise, "quantised, but not as quantization_config says of"},
        {&finder->plain, "unquantised, although quantization_config quantises"},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        int64_t n = rows[i].matrices->n;
        if (n > 0)
            ctw_warn("%s: %" PRId64 " %s (the first is %s) %s stored %s %s; the stored tensors "
                     "decide",
                     finder->config->file, n, n == 1 ? "matrix" : "matrices",
                     rows[i].matrices->first, n == 1 ? "is" : "are", rows[i].how,
                     n == 1 ? "it" : "them");
    }
}

/* Appends "text" or "; text" once. */
static void append(char *buf, size_t bytes, const char *text)
{
    size_t n = strlen(buf);
    if (text[0] != '\0' && strstr(buf, text) == NULL)
        snprintf(buf + n, bytes - n, "%s%s", n > 0 ? "; " : "", text);
}

static enum ctw_status describe_activations(struct ctw_model *m, const struct ctw_finder *finder,
                                            bool kv_scales, struct ctw_err *err)
{
    const struct ctw_quant_config *qc = &finder->config->quant;
    char text[512] = "", kv[96];
    for (int64_t i = 0; i < qc->n_groups; i++) {
        bool silent = qc->groups[i].quantised; /* else of attention modules */
        enum ctw_status st = CTW_OK;
        if (!finder->group_used[i] && !silent)
            st = ctw_inputs_are_ignored(finder->config, &qc->groups[i], &silent, err);
        if (st != CTW_OK)
            return st;
        if (finder->group_used[i] || !silent)
            append(text, sizeof(text), qc->groups[i].activations);
    }
    snprintf(kv, sizeof(kv), "K/V cache %s", qc->kv_cache);
    if (qc->kv_cache[0] != '\0')
        append(text, sizeof(text), kv);
    else if (kv_scales)
        append(text, sizeof(text), "K/V cache scales");
    if (text[0] == '\0')
        return CTW_OK;
    m->quantises_activations = finder->quantises_activations;
    m->activations = ctw_strdup(text);
    return m->activations != NULL
               ? CTW_OK
               : ctw_fail(err, CTW_ENOMEM, "out of memory for the model's description");
}

/* ---- opening ---- */

static enum ctw_status name_model(struct ctw_model *m, const char *dir, const struct ctw_config *c,
                                  struct ctw_err *err)
{
    m->dir = ctw_strdup(dir);
    m->architecture = ctw_strdup(c->family->architecture);
    m->model_type = ctw_strdup(c->family->model_type);
    m->dtype = c->dtype;
    return m->dir != NULL && m->architecture != NULL && m->model_type != NULL
               ? CTW_OK
               : ctw_fail(err, CTW_ENOMEM, "out of memory for the model's description");
}

/* Checks that the checkpoint has no other tensors than the layers', and opens their identity. */
static enum ctw_status account_for_tensors(struct ctw_model *m, const struct ctw_finder *finder,
                                           bool *kv_scales, struct ctw_err *err)
{
    int64_t n = ctw_list_tensors(m, NULL);
    const struct ctw_tensor **used = ctw_calloc((size_t)n, sizeof(struct ctw_tensor *));
    if (used == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for the list of tensors");
    (void)ctw_list_tensors(m, used);
    enum ctw_status st = ctw_unused_check(finder, m, used, n, kv_scales, err);
    if (st == CTW_OK)
        st = ctw_identity_open(&m->identity, finder->config->doc, finder->config->beside, used, n,
                               err);
    ctw_free(used);
    return st;
}

/* Do errors of the files come before those of config.json? They are what is wrong if the path names
 * a file, or if the folder has files that need no config.json. */
static bool are_files_first(const char *path, enum ctw_status opened, enum ctw_status keys)
{
    struct ctw_checkpoint_path place;
    bool is_file = ctw_checkpoint_path(&place, path, NULL) != CTW_OK || place.file[0] != '\0';
    return opened != CTW_OK &&
           (keys == CTW_OK || is_file || (keys == CTW_ENOTFOUND && opened != CTW_ENOTFOUND));
}

/* Reads config.json, or the files' own keys, and opens the files; *out is the model as described,
 * in the files' names. Families ask for the files' spelling of names, so the files are opened
 * first; errors of config.json are nevertheless reported first. */
static enum ctw_status describe_model(struct ctw_model **out, struct ctw_config *config,
                                      const char *path, const char *file, struct ctw_err *err)
{
    struct ctw_container *files = NULL;
    struct ctw_err files_err = {0};
    enum ctw_status opened = ctw_container_open(&files, path, &files_err);
    struct ctw_json *keys = NULL;
    const char *title;
    enum ctw_status st = ctw_model_keys_read(&keys, path, file, files, &title, err);
    if (st == CTW_OK)
        st = ctw_config_read(config, keys, title, files, err);
    if (st == CTW_OK && (files == NULL || ctw_container_metadata(files) == NULL))
        st = ctw_config_read_beside(config, path, err);
    if (are_files_first(path, opened, st)) {
        if (err != NULL)
            *err = files_err;
        st = opened;
    }
    if (st != CTW_OK) {
        ctw_container_close(files);
        return st;
    }
    *out = config->model;
    config->model = NULL;
    (*out)->container = files;
    st = name_model(*out, path, config, err);
    return st == CTW_OK ? ctw_names_choose(config, *out, err) : st;
}

enum ctw_status ctw_model_open(struct ctw_model **out, const char *dir,
                               const struct ctw_model_options *opt, struct ctw_err *err)
{
    struct ctw_config config = {0};
    struct ctw_finder finder = {.config = &config,
                                .quantises_activations = opt != NULL && opt->quantises_activations};
    bool kv_scales = false;
    const char *file = opt != NULL ? opt->config_name : NULL;
    char files_stamp[65];
    struct ctw_model *m = NULL;
    enum ctw_status st = CTW_OK;
    ctw_files_stamp(dir, (int64_t)time(NULL), files_stamp);
    st = describe_model(&m, &config, dir, file, err);
    if (st != CTW_OK)
        goto done;
    if (file == NULL || ctw_container_metadata(m->container) == NULL) /* else it may be elsewhere */
        memcpy(m->files_stamp, files_stamp, sizeof(files_stamp));
    if (finder.quantises_activations) /* its scales are numbers in the files */
        st = ctw_container_check_weights(m->container, err);
    if (st != CTW_OK)
        goto done;
    ctw_container_read_ahead(m->container); /* the weight_shape tensors are read one by one */
    finder.container = m->container;
    finder.group_used = ctw_calloc((size_t)config.quant.n_groups, sizeof(bool));
    if (finder.group_used == NULL) {
        st = ctw_fail(err, CTW_ENOMEM, "out of memory for a model");
        goto done;
    }
    st = open_tensors(m, &finder, err);
    if (st == CTW_OK)
        st = finish_layers(m, &finder, err);
    if (st == CTW_OK && !config.has_dtype)
        st = infer_dtype(m, &config, err);
    if (st == CTW_OK)
        st = account_for_tensors(m, &finder, &kv_scales, err);
    if (st == CTW_OK)
        st = describe_activations(m, &finder, kv_scales, err);
    /* The missing part of a file that became shorter was read as zeros. */
    if (ctw_container_check_maps(m->container, NULL) != CTW_OK)
        st = ctw_container_check_maps(m->container, err);
    if (st != CTW_OK)
        goto done;
    m->unread = config.unread.text;
    config.unread.text = NULL;
    if (m->length_limit != 0)
        ctw_info("%s: sequences of more than max_position_embeddings = %" PRId64
                 " tokens are refused (%s)",
                 config.file, m->length_limit, m->limited_by);
    tell_lacking(&finder);
    warn_of_contradictions(&finder);
    if (ctw_container_metadata(m->container) == NULL)
        ctw_adapter_warn(dir);
    count_weights(m);
done:
    ctw_free(finder.group_used);
    ctw_config_close(&config);
    if (st != CTW_OK) {
        ctw_model_close(m);
        m = NULL;
    }
    *out = m;
    return st;
}
