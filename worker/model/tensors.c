#include "worker/model/tensors.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "worker/checkpoint/quant/foreign.h"
#include "worker/checkpoint/quant/quant_native.h"
#include "worker/model/inputs.h"
#include "worker/model/names/missing.h"
#include "worker/model/names/names.h"
#include "worker/model/names/stored.h"
#include "worker/model/recipe/kinds.h"

enum { MAX_NAME = 512 };

struct ctw_part ctw_tensor_part(const struct ctw_tensor *t)
{
    struct ctw_part part = {.dtype = t->dtype,
                            .block = t->block,
                            .paired = t->paired,
                            .n_dims = t->n_dims,
                            .bytes = t->bytes};
    memcpy(part.shape, t->shape, sizeof(part.shape));
    return part;
}

enum ctw_status ctw_tensor_find(const struct ctw_finder *finder, const char *module,
                                const char *name, const struct ctw_tensor **out,
                                struct ctw_err *err)
{
    char full[MAX_NAME];
    bool dot = module[0] != '\0' && name[0] != '_' && name[0] != '.'; /* struct ctw_part_names */
    snprintf(full, sizeof(full), "%s%s%s", module, dot ? "." : "", name);
    *out = ctw_container_find(finder->container, full);
    if (*out != NULL && (*out)->unusable != NULL)
        return ctw_fail(err, CTW_EUNSUP, "%s: %s: %s",
                        ctw_container_file(finder->container, (*out)->file), full,
                        (*out)->unusable);
    return CTW_OK;
}

/* ---- matrices ---- */

/* Do all matrices of a stack of n share the part: one number of a scheme without groups, or their
 * one shape? */
static bool is_shared(const struct ctw_part *part, enum ctw_part_kind kind, int64_t n)
{
    bool number = part->n_dims == 0 || (part->n_dims == 1 && part->shape[0] == 1 && n != 1);
    switch (kind) {
    case CTW_PART_SCALE:
    case CTW_PART_ZERO_POINT:
    case CTW_PART_GLOBAL_SCALE:
        return number;
    case CTW_PART_SHAPE:
        return part->n_dims == 1;
    default:
        return false;
    }
}

/* One matrix of a stack: the tensor's first dimension is gone, or of a flat stack's the other
 * matrices' rows. */
static enum ctw_status unstack(struct ctw_part *part, enum ctw_part_kind kind,
                               const struct ctw_matrix *m, struct ctw_err *err)
{
    const struct ctw_tensor *t = m->part[kind];
    const int64_t n = m->n_stacked;
    char found[96];
    if (is_shared(part, kind, n))
        return CTW_OK;
    if (m->flat && kind == CTW_PART_VALUES && part->n_dims == 2) {
        if (part->shape[0] % n != 0)
            return ctw_fail(err, CTW_EFORMAT,
                            "%s: found %s, expected the rows of %" PRId64 " matrices", t->name,
                            ctw_part_text(part, found, sizeof(found)), n);
        part->shape[0] /= n;
        part->bytes /= (size_t)n;
        return CTW_OK;
    }
    if (part->n_dims < 1 || part->shape[0] != n)
        return ctw_fail(err, CTW_EFORMAT,
                        "%s: found %s, expected a stack of %" PRId64 " matrices: [%" PRId64 ", ..]",
                        t->name, ctw_part_text(part, found, sizeof(found)), n, n);
    part->n_dims--;
    memmove(part->shape, part->shape + 1, sizeof(part->shape) - sizeof(part->shape[0]));
    part->bytes /= (size_t)n;
    while (kind == CTW_PART_GLOBAL_SCALE && part->n_dims > 0 && part->shape[part->n_dims - 1] == 1)
        part->n_dims--;
    return CTW_OK;
}

static enum ctw_status find_parts(const struct ctw_finder *finder, struct ctw_matrix *m,
                                  const char *name, const struct ctw_part_names *names,
                                  struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    m->weight.names = names;
    memset(m->part, 0, sizeof(m->part));
    const char *found[CTW_N_PARTS] = {NULL};
    for (int kind = 0; st == CTW_OK && kind < CTW_N_PARTS; kind++) {
        const char *stack = m->n_stacked > 0 ? names->stacks[kind] : NULL;
        const char *const any[] = {names->codes[kind], names->also[kind], names->makers[kind],
                                   stack};
        for (size_t i = 0; i < CTW_COUNT(any) && st == CTW_OK && m->part[kind] == NULL; i++) {
            found[kind] = any[i];
            st = any[i] == NULL ? CTW_OK
                                : ctw_tensor_find(finder, name, any[i], &m->part[kind], err);
        }
    }
    const struct ctw_tensor *values = NULL, **either = &m->part[CTW_PART_VALUES];
    if (st == CTW_OK)
        st = ctw_tensor_find(finder, name, names->values, &values, err);
    if (st == CTW_OK && values == NULL && *either == NULL)
        st = ctw_tensor_find(finder, "", name, &values, err); /* not of a module */
    if (st == CTW_OK && values != NULL && *either != NULL)
        return ctw_fail(err, CTW_EFORMAT, "%s: %s has both %s and %s; expected one of them",
                        ctw_container_file(finder->container, values->file), name,
                        names->codes[CTW_PART_VALUES], names->values);
    if (values != NULL) {
        *either = values;
        found[CTW_PART_VALUES] = names->values;
    }
    for (int kind = 0; kind < CTW_N_PARTS; kind++) {
        struct ctw_part *part = &m->weight.part[kind];
        *part = m->part[kind] != NULL ? ctw_tensor_part(m->part[kind])
                                      : (struct ctw_part){.n_dims = -1};
        part->name = found[kind];
        if (st == CTW_OK && m->part[kind] != NULL && m->n_stacked > 0)
            st = unstack(part, kind, m, err);
    }
    if (names->mlx)
        ctw_parts_as_mlx(m->weight.part);
    return st;
}

static bool is_quantised(struct ctw_matrix *m)
{
    return m->part[CTW_PART_VALUES] != NULL &&
           ctw_format_find(&m->weight.format, m->weight.names, m->weight.part, NULL) == CTW_OK &&
           !ctw_weight_is_dense(&m->weight);
}

/* The same by the names of the configuration's method, or of the first other under which the matrix
 * is quantised. */
static enum ctw_status find_any_parts(const struct ctw_finder *finder, struct ctw_matrix *m,
                                      const char *name, struct ctw_err *err)
{
    const struct ctw_quant_config *qc = &finder->config->quant;
    enum ctw_status st = find_parts(finder, m, name, qc->names, err);
    if (st != CTW_OK || !qc->mixes || is_quantised(m))
        return st;
    for (const struct ctw_part_names *names = ctw_stored_next(qc, NULL); names != NULL;
         names = ctw_stored_next(qc, names))
        if (find_parts(finder, m, name, names, NULL) == CTW_OK && is_quantised(m))
            return CTW_OK;
    return find_parts(finder, m, name, qc->names, err);
}

int64_t ctw_tensor_integer(const struct ctw_finder *finder, const struct ctw_tensor *t, int64_t i)
{
    const char *data = ctw_container_data(finder->container, t);
    int64_t wide;
    int32_t narrow;
    if (t->dtype == CTW_I64) {
        memcpy(&wide, data + 8 * i, 8);
        return wide;
    }
    memcpy(&narrow, data + 4 * i, 4);
    return narrow;
}

/* Reads weight_shape: [2], the shape; of a stack also [n, 2], a shape for each matrix, which must
 * be equal, or [3], the stack's own shape. */
static enum ctw_status read_shape(const struct ctw_finder *finder, const struct ctw_matrix *m,
                                  int64_t shape[2], struct ctw_err *err)
{
    const struct ctw_tensor *t = m->part[CTW_PART_SHAPE];
    const struct ctw_part part = ctw_tensor_part(t);
    int64_t n = m->n_stacked, count = t->n_dims == 1 ? t->shape[0] : 0;
    bool each = n > 0 && t->n_dims == 2 && t->shape[0] == n && t->shape[1] == 2;
    bool whole = n > 0 && count == 3;
    char found[96], stack[48] = "";
    if (n > 0)
        (void)snprintf(stack, sizeof(stack), ", [3] or [%" PRId64 ", 2]", n);
    if ((t->dtype != CTW_I64 && t->dtype != CTW_I32) || (!each && !whole && count != 2))
        return ctw_fail(err, CTW_EFORMAT, "weight_shape: found %s, expected I64 [2]%s",
                        ctw_part_text(&part, found, sizeof(found)), stack);
    for (int i = 0; i < 2; i++)
        shape[i] = ctw_tensor_integer(finder, t, whole + i);
    for (int64_t e = 1; each && e < n; e++)
        if (ctw_tensor_integer(finder, t, 2 * e) != shape[0] ||
            ctw_tensor_integer(finder, t, 2 * e + 1) != shape[1])
            return ctw_fail(err, CTW_EFORMAT,
                            "weight_shape: found (%" PRId64 ", %" PRId64 ") for matrix %" PRId64
                            " of the stack, expected (%" PRId64 ", %" PRId64 "), as for matrix 0",
                            ctw_tensor_integer(finder, t, 2 * e),
                            ctw_tensor_integer(finder, t, 2 * e + 1), e, shape[0], shape[1]);
    if (whole && ctw_tensor_integer(finder, t, 0) != n)
        return ctw_fail(err, CTW_EFORMAT,
                        "weight_shape: found a stack of %" PRId64 " matrices, expected %" PRId64,
                        ctw_tensor_integer(finder, t, 0), n);
    return CTW_OK;
}

static void count_lacking(struct ctw_lacking *lacking, const struct ctw_matrix *m,
                          enum ctw_part_kind kind)
{
    if (m->part[kind] == NULL && lacking->n++ == 0)
        lacking->first = m->name;
}

/* Checks the contents of the parts. */
static enum ctw_status check_contents(const struct ctw_finder *finder, struct ctw_matrix *m,
                                      struct ctw_err *err)
{
    struct ctw_weight_data data;
    if (m->weight.format->check_data == NULL || ctw_container_is_headers_alone(finder->container))
        return CTW_OK;
    for (int kind = 0; kind < CTW_N_PARTS; kind++)
        data.part[kind] = m->part[kind] == NULL
                              ? NULL
                              : (const char *)ctw_container_data(finder->container, m->part[kind]) +
                                    ctw_part_offset(m, kind);
    return m->weight.format->check_data(&m->weight, &data, err);
}

/* Checks; the caller prefixes their messages with the names of file and matrix. */
static enum ctw_status check_matrix(struct ctw_finder *finder, struct ctw_matrix *m,
                                    const struct ctw_quant_args *args, struct ctw_err *err)
{
    int64_t shape[2];
    const int64_t *stored_shape = NULL;
    const struct ctw_quant_args none = {.present = false};
    enum ctw_dtype dtype = m->part[CTW_PART_VALUES]->dtype;
    bool floats = dtype == CTW_F32 || dtype == CTW_BF16 || dtype == CTW_F16;
    if (args->present && floats && finder->config->quant.frozen)
        return ctw_fail(err, CTW_EUNSUP,
                        "weight is stored dense (%s), but quantization_config quantises it and "
                        "says quantization_status \"frozen\": it is rounded only at run time; "
                        "save the checkpoint with save_compressed=True",
                        ctw_dtype_name(dtype));
    enum ctw_status st = ctw_format_find(&m->weight.format, m->weight.names, m->weight.part, err);
    if (st == CTW_OK && finder->config->quant.tensors_decide && ctw_weight_is_dense(&m->weight))
        args = &none;
    if (st == CTW_OK && m->part[CTW_PART_SHAPE] != NULL &&
        !ctw_container_is_headers_alone(finder->container)) {
        st = read_shape(finder, m, shape, err);
        stored_shape = shape;
    }
    const struct ctw_tensor *state = m->part[CTW_PART_STATE];
    struct ctw_quant_args stated = *args;
    if (st == CTW_OK && args->present && state != NULL &&
        !ctw_container_is_headers_alone(finder->container)) {
        st = ctw_quant_read_bnb_state(&stated, ctw_container_data(finder->container, state),
                                      state->bytes, m->weight.n, m->weight.k, err);
        args = &stated;
    }
    if (st == CTW_OK)
        st = m->weight.format->check(&m->weight, args, stored_shape, err);
    if (st != CTW_OK)
        return st;
    if (args->present && args->format != NULL &&
        !ctw_format_is_called(m->weight.format, args->format))
        return ctw_fail(err, CTW_EFORMAT,
                        "its tensors are %s, but quantization_config says format \"%s\"",
                        m->weight.format->name, args->format);
    return check_contents(finder, m, err);
}

/* "NAME", or "NAME[3]" in a stack. */
static enum ctw_status name_matrix(struct ctw_matrix *m, const char *name, struct ctw_err *err)
{
    char full[MAX_NAME];
    (void)snprintf(full, sizeof(full), "%s[%" PRId64 "]", name, m->at);
    m->name = ctw_strdup(m->n_stacked > 0 ? full : name);
    return m->name != NULL
               ? CTW_OK
               : ctw_fail(err, CTW_ENOMEM, "out of memory for the names of the matrices");
}

/* Dense modules that a group's targets match by accident: transformers' routers; a head matched by
 * the class "Linear", which AutoRound's engines do not count among linear layers; an embedding
 * matched by expressions, because compressed-tensors before mid 2026 never quantised embeddings and
 * does not list an embedding that a recipe ignores. */
static bool is_not_meant(const struct ctw_want *want, const struct ctw_quant_group *group)
{
    bool expressions = false, named = false; /* by a name, or by another class than Linear */
    for (int64_t i = 0; group != NULL && i < group->targets.n; i++) {
        const struct ctw_pattern *p = &group->targets.items[i];
        expressions |= p->regex != NULL;
        named |= p->regex == NULL && strcmp(p->text, "Linear") != 0;
    }
    return ctw_want_is_in(want, ctw_kind_at(want->of)->router) ||
           (ctw_want_is_end(want, false, CTW_M_EMBED) && !named) ||
           (ctw_want_is_end(want, true, CTW_M_HEAD) && !named && !expressions);
}

/* The matrix's group. An expert that is stored with scales was quantised, as a module or in a
 * stack, whatever the tool then saved: targets may name the class of either. */
static enum ctw_status find_group(const struct ctw_finder *finder, const struct ctw_matrix *m,
                                  const struct ctw_want *want, const struct ctw_quant_group **out,
                                  struct ctw_err *err)
{
    const char *other = NULL;
    if (want->kind == CTW_WANT_EXPERT && m->part[CTW_PART_SCALE] != NULL)
        other = want->n_stacked > 0 ? "Linear" : CTW_CLASS_EXPERTS;
    return ctw_name_find_group(finder->config, want, other, out, err);
}

static enum ctw_status open_matrix(struct ctw_finder *finder, struct ctw_matrix *m,
                                   const struct ctw_want *want, struct ctw_err *err)
{
    const char *name = want->name;
    const struct ctw_quant_group *group = NULL;
    struct ctw_quant_args args = {.present = false};
    bool otherwise;
    m->weight =
        (struct ctw_weight){.names = finder->config->quant.names, .n = want->n, .k = want->k};
    m->n_stacked = want->n_stacked;
    m->flat = want->flat;
    enum ctw_status st = name_matrix(m, name, err);
    if (st == CTW_OK)
        st = find_any_parts(finder, m, name, err);
    /* Codes of a stack are packed along the inputs, in whatever order the class has them. */
    m->weight.part[CTW_PART_VALUES].transposed =
        want->transposed && (want->n_stacked == 0 || m->part[CTW_PART_SCALE] == NULL);
    m->weight.part[CTW_PART_VALUES].heads = want->heads;
    m->weight.part[CTW_PART_VALUES].sections = want->sections;
    const char *packed = m->weight.names->codes[CTW_PART_VALUES];
    const char *stack = m->n_stacked > 0 ? m->weight.names->stacks[CTW_PART_VALUES] : NULL;
    char other[64] = "";
    if (packed != NULL)
        (void)snprintf(other, sizeof(other), " (or %s%s%s%s)",
                       packed[0] == '_' || packed[0] == '.' ? "" : ".", packed,
                       stack != NULL ? ", " : "", stack != NULL ? stack : "");
    if (st == CTW_OK && m->part[CTW_PART_VALUES] == NULL)
        st = ctw_fail(err, CTW_EFORMAT,
                      "the checkpoint has no tensor %s.%s%s, which %s needs as a [%" PRId64
                      ", %" PRId64 "] matrix%s",
                      name, m->weight.names->values, other, finder->config->file, want->n, want->k,
                      ctw_missing_remedy(finder->container, want));
    if (st == CTW_OK)
        st = find_group(finder, m, want, &group, err);
    if (st != CTW_OK)
        return st;
    if (m->part[CTW_PART_SCALE] == NULL && is_not_meant(want, group))
        group = NULL;
    if (group != NULL)
        args = group->args;
    struct ctw_part *zero = &m->weight.part[CTW_PART_ZERO_POINT];
    if (args.symmetric && zero->n_dims >= 0 &&
        ctw_says_nothing(finder, m->part[CTW_PART_ZERO_POINT])) {
        m->part[CTW_PART_ZERO_POINT] = NULL;
        zero->n_dims = -1;
    }
    st = ctw_stored_args(finder, m, want, &args, &otherwise, err);
    group = otherwise ? NULL : group;
    if (st == CTW_OK)
        st = check_matrix(finder, m, &args, err);
    if (st == CTW_OK && group != NULL && finder->quantises_activations)
        st = ctw_input_open(finder, m, group, err);
    if (st != CTW_OK && st != CTW_ENOMEM)
        return ctw_fail_prefix(
            err, "%s: %s", ctw_container_file(finder->container, m->part[CTW_PART_VALUES]->file),
            name);
    bool dense = st == CTW_OK && ctw_weight_is_dense(&m->weight);
    if (group != NULL && !(dense && finder->config->quant.tensors_decide))
        finder->group_used[group - finder->config->quant.groups] = true;
    if (st != CTW_OK || dense)
        return st;
    if (args.actorder_group)
        count_lacking(&finder->index, m, CTW_PART_GROUP_INDEX);
    if (args.present && !args.symmetric)
        count_lacking(&finder->zero_points, m, CTW_PART_ZERO_POINT);
    return st;
}

enum ctw_status ctw_matrix_open(struct ctw_finder *finder, struct ctw_matrix *m,
                                const struct ctw_want *want, struct ctw_err *err)
{
    enum ctw_status st = open_matrix(finder, m, want, err);
    return st == CTW_OK
               ? st
               : ctw_foreign_explain(finder->container, m->weight.names, want->name, st, err);
}

enum ctw_status ctw_expert_open(struct ctw_finder *finder, struct ctw_matrix *experts,
                                const struct ctw_want *want, struct ctw_err *err)
{
    struct ctw_matrix *first = &experts[want->expert * CTW_N_EXPERT_MATRICES + (int64_t)want->role];
    enum ctw_status st = ctw_matrix_open(finder, first, want, err);
    for (int64_t e = 1; st == CTW_OK && e < want->n_stacked; e++) {
        struct ctw_matrix *m = first + e * CTW_N_EXPERT_MATRICES;
        *m = *first;
        m->at = e;
        st = name_matrix(m, want->name, err);
        if (st == CTW_OK)
            st = check_contents(finder, m, err);
        if (st != CTW_OK && st != CTW_ENOMEM)
            return ctw_fail_prefix(
                err, "%s: %s",
                ctw_container_file(finder->container, m->part[CTW_PART_VALUES]->file), m->name);
    }
    return st;
}

void ctw_matrix_close(struct ctw_matrix *m)
{
    ctw_free(m->name);
    m->name = NULL;
}

enum ctw_status ctw_matrix_tie(struct ctw_finder *finder, struct ctw_matrix *head,
                               const struct ctw_matrix *embed, const struct ctw_want *want,
                               struct ctw_err *err)
{
    const char *name = want->name;
    const struct ctw_quant_group *group;
    const struct ctw_tensor *own, *table = embed->part[CTW_PART_VALUES];
    enum ctw_status st = ctw_name_find_group(finder->config, want, NULL, &group, err);
    if (finder->config->quant.tensors_decide)
        group = NULL;
    if (st == CTW_OK && group != NULL && group->quantised && ctw_weight_is_dense(&embed->weight))
        st = ctw_fail(err, CTW_EUNSUP,
                      "%s: quantization_config quantises %s, but tie_word_embeddings makes it the "
                      "embedding; add %s to its ignore list, or untie the checkpoint",
                      finder->config->file, name, name);
    if (st == CTW_OK)
        st = ctw_tensor_find(finder, name, "weight", &own, err);
    if (st != CTW_OK)
        return st;
    /* Some files have both tensors; transformers then ties them only if they are equal. */
    bool equal =
        own == NULL || (own->dtype == table->dtype && own->bytes == table->bytes &&
                        (ctw_container_is_headers_alone(finder->container) ||
                         memcmp(ctw_container_data(finder->container, own),
                                ctw_container_data(finder->container, table), own->bytes) == 0));
    if (!equal)
        return ctw_fail(err, CTW_EFORMAT,
                        "%s: %s.weight differs from the embedding, but %s says "
                        "tie_word_embeddings; set it to false, or remove the tensor",
                        ctw_container_file(finder->container, own->file), name,
                        finder->config->file);
    *head = *embed;
    head->input = head->output = (struct ctw_quantise){0};
    head->input_part[0] = head->input_part[1] = head->output_part = NULL;
    st = name_matrix(head, name, err);
    if (st == CTW_OK && group != NULL && group->quantised)
        st = check_matrix(finder, head, &group->args, err); /* is the embedding what it says? */
    if (st == CTW_OK && group != NULL && finder->quantises_activations)
        st = ctw_input_open(finder, head, group, err);
    if (st == CTW_OK || st == CTW_ENOMEM)
        return st;
    return ctw_fail_prefix(err, "%s: %s", ctw_container_file(finder->container, table->file), name);
}
