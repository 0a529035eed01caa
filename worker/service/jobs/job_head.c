/* Reads the head of a job, its kind and the kind's options, and digests parts. */
#include <inttypes.h>
#include <string.h>

#include "worker/service/jobs/job.h"

const char *ctw_job_kind_name(enum ctw_job_kind kind)
{
    static const char *const names[CTW_N_JOB_KINDS] = {[CTW_JOB_LOGLIKELIHOOD] = "loglikelihood",
                                                       [CTW_JOB_ROLLING] = "loglikelihood_rolling",
                                                       [CTW_JOB_WINDOWS] = "loglikelihood_windows",
                                                       [CTW_JOB_DIVERGENCE] = "divergence"};
    return names[kind];
}

/* ---- what every kind has ---- */

static enum ctw_status read_columns(struct ctw_job_head *out, const struct ctw_list *columns,
                                    struct ctw_err *err)
{
    const struct ctw_span *names = columns->data;
    for (size_t i = 0; i < columns->n; i++) {
        if (ctw_span_is(names[i], "logprob"))
            out->want_logprob = true;
        else if (ctw_span_is(names[i], "greedy"))
            out->want_greedy = true;
        else
            return ctw_fail(err, CTW_EUNSUP,
                            "submit.head: no column \"%.*s\"; this worker has logprob, greedy",
                            (int)(names[i].n < 48 ? names[i].n : 48), names[i].data);
    }
    return CTW_OK;
}

static enum ctw_status read_orphan(struct ctw_job_head *out, const struct ctw_head_map *map,
                                   struct ctw_err *err)
{
    out->keep = true;
    out->ttl_ms = 600 * 1000;
    if (!map->has.orphan)
        return CTW_OK;
    out->keep = ctw_span_is(map->orphan.policy, "keep");
    if (!out->keep && !ctw_span_is(map->orphan.policy, "cancel"))
        return ctw_fail(err, CTW_EINVAL, "submit.head.orphan: policy is neither keep nor cancel");
    if (map->orphan.ttl_s < 1 || map->orphan.ttl_s > CTW_IPC_TTL_S)
        return ctw_fail(err, CTW_EINVAL, "submit.head.orphan: ttl_s %" PRIu64 " is not in 1..%d",
                        map->orphan.ttl_s, CTW_IPC_TTL_S);
    out->ttl_ms = (int64_t)map->orphan.ttl_s * 1000;
    return CTW_OK;
}

static enum ctw_status read_vocabulary(struct ctw_job_head *out, const struct ctw_head_map *map,
                                       struct ctw_err *err)
{
    if (!map->has.vocabulary)
        return CTW_OK;
    if (out->kind == CTW_JOB_DIVERGENCE)
        return ctw_fail(err, CTW_EINVAL,
                        "submit.head: vocabulary does not go with kind divergence, which is over "
                        "all ids that both models have");
    if (map->vocabulary < 1 || map->vocabulary > (uint64_t)out->vocab)
        return ctw_fail(err, CTW_EINVAL,
                        "submit.head: vocabulary %" PRIu64 " is not in 1..%" PRId64
                        " (vocab of the model)",
                        map->vocabulary, out->vocab);
    if ((int64_t)map->vocabulary < out->vocab)
        out->vocab = out->limit = (int64_t)map->vocabulary;
    return CTW_OK;
}

/* ---- rolling ---- */

static enum ctw_status read_rolling(struct ctw_job_head *out, const struct ctw_head_map *map,
                                    struct ctw_err *err)
{
    bool has_prefix = map->has.prefix_token;
    bool has_context = map->has.context_length;
    if (out->kind != CTW_JOB_ROLLING)
        return !has_prefix && !has_context
                   ? CTW_OK
                   : ctw_fail(err, CTW_EINVAL,
                              "submit.head: prefix_token and context_length belong to kind "
                              "loglikelihood_rolling, not %s",
                              ctw_job_kind_name(out->kind));
    if (!has_prefix)
        return ctw_fail(err, CTW_EINVAL,
                        "submit.head: kind loglikelihood_rolling needs prefix_token");
    if (map->prefix_token >= (uint64_t)out->vocab)
        return ctw_fail(err, CTW_EINVAL,
                        "submit.head: prefix_token %" PRIu64 " is not in the vocabulary of %" PRId64
                        " tokens",
                        map->prefix_token, out->vocab);
    uint64_t context = has_context ? map->context_length : 1;
    if (context < 1 || context > (uint64_t)out->max_length)
        return ctw_fail(err, CTW_EINVAL,
                        "submit.head: context_length %" PRIu64 " is not in 1..%" PRId64
                        " (max_length)",
                        context, out->max_length);
    out->prefix_token = (int32_t)map->prefix_token;
    out->context_length = (int64_t)context;
    return CTW_OK;
}

/* ---- the rule by which texts are cut ---- */

static bool has_rule(const struct ctw_head_map *map)
{
    return map->has.window || map->has.stride || map->has.first || map->has.rows || map->has.new ||
           map->has.tail || map->has.bos || map->has.bos_mode;
}

static enum ctw_status check_range(const char *key, uint64_t value, uint64_t least, uint64_t most,
                                   const char *why, struct ctw_err *err)
{
    if (value >= least && value <= most)
        return CTW_OK;
    return ctw_fail(err, CTW_EINVAL,
                    "submit.head: %s %" PRIu64 " is not in %" PRIu64 "..%" PRIu64 " (%s)", key,
                    value, least, most, why);
}

static enum ctw_status read_bos(struct ctw_job_head *out, const struct ctw_head_map *map,
                                struct ctw_err *err)
{
    bool has_bos = map->has.bos, has_mode = map->has.bos_mode;
    if (has_bos != has_mode)
        return ctw_fail(err, CTW_EINVAL, "submit.head: %s is given without %s",
                        has_bos ? "bos" : "bos_mode", has_bos ? "bos_mode" : "bos");
    if (!has_bos)
        return CTW_OK;
    if (ctw_span_is(map->bos_mode, "replace"))
        out->rule.bos_mode = CTW_BOS_REPLACE;
    else if (ctw_span_is(map->bos_mode, "prefix"))
        out->rule.bos_mode = CTW_BOS_PREFIX;
    else
        return ctw_fail(err, CTW_EINVAL, "submit.head: bos_mode is neither replace nor prefix");
    if (map->bos >= (uint64_t)out->vocab)
        return ctw_fail(err, CTW_EINVAL,
                        "submit.head: bos %" PRIu64 " is not in the vocabulary of %" PRId64
                        " tokens",
                        map->bos, out->vocab);
    out->rule.bos = (int32_t)map->bos;
    return CTW_OK;
}

static enum ctw_status read_rule(struct ctw_job_head *out, const struct ctw_head_map *map,
                                 struct ctw_err *err)
{
    struct ctw_cut_rule *r = &out->rule;
    const char *kind = ctw_job_kind_name(out->kind);
    if (!ctw_job_kind_has_rule(out->kind))
        return !has_rule(map)
                   ? CTW_OK
                   : ctw_fail(err, CTW_EINVAL,
                              "submit.head: window, stride, first, rows, new, tail, bos and "
                              "bos_mode belong to kind loglikelihood_windows, not %s; divergence "
                              "has them, too",
                              kind);
    if (!map->has.window)
        return ctw_fail(err, CTW_EINVAL, "submit.head: kind %s needs window", kind);
    if (read_bos(out, map, err) != CTW_OK)
        return err->status;
    bool before = r->bos_mode == CTW_BOS_PREFIX;
    uint64_t stride = map->has.stride ? map->stride : map->window;
    uint64_t first = map->has.first ? map->first : 1;
    enum ctw_status st =
        check_range("window", map->window, 2, (uint64_t)out->max_length + !before,
                    before ? "max_length, with bos before the window" : "max_length + 1", err);
    if (st == CTW_OK)
        st = check_range("stride", stride, 1, map->window, "window", err);
    if (st == CTW_OK)
        st = check_range("first", first, !before, map->window - 1,
                         before ? "window - 1" : "window - 1; 0 only with bos_mode prefix", err);
    if (st == CTW_OK)
        st = check_range("rows", map->rows, 0, INT32_MAX, "0: all windows", err);
    if (st != CTW_OK)
        return st;
    r->window = (int64_t)map->window;
    r->stride = (int64_t)stride;
    r->first = (int64_t)first;
    r->rows = (int64_t)map->rows;
    r->only_new = map->new;
    r->tail = map->tail;
    return CTW_OK;
}

/* ---- head ---- */

static enum ctw_status read_kind(struct ctw_job_head *out, struct ctw_span kind,
                                 struct ctw_err *err)
{
    for (int i = 0; i < CTW_N_JOB_KINDS; i++) {
        if (ctw_span_is(kind, ctw_job_kind_name((enum ctw_job_kind)i))) {
            out->kind = (enum ctw_job_kind)i;
            return CTW_OK;
        }
    }
    return ctw_fail(err, CTW_EUNSUP,
                    "submit.head: no kind \"%.*s\"; this worker has loglikelihood, "
                    "loglikelihood_rolling, loglikelihood_windows, divergence",
                    (int)(kind.n < 48 ? kind.n : 48), kind.data);
}

/* The names of a divergence's two models differ: the caller has found both. */
static enum ctw_status read_reference(struct ctw_job_head *out, const struct ctw_head_map *map,
                                      const struct ctw_model_limits *model, struct ctw_err *err)
{
    bool compared = out->kind == CTW_JOB_DIVERGENCE;
    if (compared && model->reference == NULL)
        return ctw_fail(err, CTW_EINVAL,
                        "submit.head: kind divergence needs reference, the name of a model of this "
                        "worker");
    const char *given = model->reference != NULL ? "reference"
                        : map->layers            ? "layers"
                        : map->matrices          ? "matrices"
                                                 : NULL;
    if (!compared && given != NULL)
        return ctw_fail(err, CTW_EINVAL, "submit.head: %s belongs to kind divergence, not %s",
                        given, ctw_job_kind_name(out->kind));
    if (!compared)
        return CTW_OK;
    out->n_layers = map->layers ? model->n_layers : 0;
    out->n_matrices = map->matrices ? model->n_matrices : 0;
    ctw_span_copy(ctw_span_of(model->reference), out->reference, sizeof(out->reference));
    out->want_logprob = out->want_greedy = true;
    return CTW_OK;
}

enum ctw_status ctw_job_read_head(struct ctw_job_head *out, const struct ctw_head_map *map,
                                  const struct ctw_model_limits *model, struct ctw_err *err)
{
    *out = (struct ctw_job_head){.vocab = model->vocab,
                                 .max_length = model->max_length,
                                 .fit_length = model->fit_length,
                                 .memory_limit = model->memory_limit,
                                 .key_bytes = model->key_bytes,
                                 .pair_cost = model->pair_cost};
    if (read_kind(out, map->kind, err) != CTW_OK)
        return err->status;
    if (map->max_length > (uint64_t)model->max_length)
        return ctw_fail(err, CTW_EINVAL,
                        "submit.head: max_length %" PRIu64 " is more than the %" PRId64
                        " of model %s: start the worker with --max-length",
                        map->max_length, model->max_length, model->name);
    if (map->max_length != 0)
        out->max_length = (int64_t)map->max_length;
    ctw_span_copy(ctw_span_of(model->name), out->model, sizeof(out->model));
    enum ctw_status st = read_columns(out, &map->columns, err);
    if (st == CTW_OK)
        st = read_reference(out, map, model, err);
    if (st == CTW_OK)
        st = read_orphan(out, map, err);
    if (st == CTW_OK)
        st = read_vocabulary(out, map, err);
    if (st == CTW_OK)
        st = read_rolling(out, map, err);
    return st == CTW_OK ? read_rule(out, map, err) : st;
}

/* ---- digest ---- */

/* Two multiplications per word (after Vigna's splitmix64 finisher): 16 MiB take milliseconds. */
static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0xbf58476d1ce4e5b9u;
    h = (h ^ h >> 29) * 0x94d049bb133111ebu;
    return h ^ h >> 32;
}

static uint64_t mix_bytes(uint64_t h, struct ctw_span s)
{
    h = mix(h, s.n);
    for (size_t at = 0; at < s.n; at += sizeof(uint64_t)) {
        uint64_t v = 0;
        memcpy(&v, s.data + at, s.n - at < sizeof(v) ? s.n - at : sizeof(v));
        h = mix(h, v);
    }
    return h;
}

uint64_t ctw_job_part_digest(const struct ctw_submit *submit)
{
    uint64_t h = mix(1, submit->part);
    if (submit->has.head) {
        const struct ctw_head_map *m = &submit->head;
        const struct ctw_span *columns = m->columns.data;
        const struct ctw_span flags = {.data = (const char *)&m->has, .n = sizeof(m->has)};
        h = mix_bytes(mix_bytes(mix_bytes(h, flags), m->kind), m->model);
        for (size_t i = 0; i < m->columns.n; i++)
            h = mix_bytes(h, columns[i]);
        h = mix(mix_bytes(mix(h, m->max_length), m->orphan.policy), m->orphan.ttl_s);
        h = mix(mix(h, m->prefix_token), m->context_length);
        h = mix(mix(mix(mix(h, m->window), m->stride), m->first), m->rows);
        h = mix_bytes(mix(mix(mix(h, m->new), m->tail), m->bos), m->bos_mode);
        h = mix(mix(mix(mix_bytes(h, m->reference), m->layers), m->matrices), m->vocabulary);
    }
    h = mix_bytes(mix_bytes(h, submit->items.tokens), submit->items.n_tokens);
    return mix_bytes(mix_bytes(h, submit->items.n_context), submit->items.n_continuation);
}
