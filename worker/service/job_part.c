/* Checks the messages of a client and makes items of them. */
#include <inttypes.h>
#include <string.h>

#include "base/mem.h"
#include "worker/service/job.h"
#include "worker/service/windows.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "bin columns are little-endian");

/* ---- head ---- */

static enum ctw_status read_columns(struct ctw_job_head *out, const struct ctw_list *columns,
                                    struct ctw_err *err)
{
    const struct ctw_slice *names = columns->data;
    for (size_t i = 0; i < columns->n; i++) {
        if (ctw_slice_is(names[i], "logprob"))
            out->want_logprob = true;
        else if (ctw_slice_is(names[i], "greedy"))
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
    if ((map->has >> CTW_HEAD_ORPHAN & 1) == 0)
        return CTW_OK;
    out->keep = ctw_slice_is(map->orphan.policy, "keep");
    if (!out->keep && !ctw_slice_is(map->orphan.policy, "cancel"))
        return ctw_fail(err, CTW_EINVAL, "submit.head.orphan: policy is neither keep nor cancel");
    if (map->orphan.ttl_s < 1 || map->orphan.ttl_s > CTW_IPC_TTL_S)
        return ctw_fail(err, CTW_EINVAL, "submit.head.orphan: ttl_s %" PRIu64 " is not in 1..%d",
                        map->orphan.ttl_s, CTW_IPC_TTL_S);
    out->ttl_ms = (int64_t)map->orphan.ttl_s * 1000;
    return CTW_OK;
}

static enum ctw_status read_rolling(struct ctw_job_head *out, const struct ctw_head_map *map,
                                    struct ctw_err *err)
{
    bool has_prefix = map->has >> CTW_HEAD_PREFIX_TOKEN & 1;
    bool has_context = map->has >> CTW_HEAD_CONTEXT_LENGTH & 1;
    if (out->kind == CTW_JOB_LOGLIKELIHOOD)
        return !has_prefix && !has_context
                   ? CTW_OK
                   : ctw_fail(err, CTW_EINVAL,
                              "submit.head: prefix_token and context_length belong to kind "
                              "loglikelihood_rolling, not loglikelihood");
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

enum ctw_status ctw_job_read_head(struct ctw_job_head *out, const struct ctw_head_map *map,
                                  const struct ctw_model_limits *model, struct ctw_err *err)
{
    *out = (struct ctw_job_head){.vocab = model->vocab,
                                 .max_length = model->max_length,
                                 .fit_length = model->fit_length,
                                 .memory_limit = model->memory_limit,
                                 .pair_cost = model->pair_cost};
    if (ctw_slice_is(map->kind, "loglikelihood_rolling"))
        out->kind = CTW_JOB_ROLLING;
    else if (!ctw_slice_is(map->kind, "loglikelihood"))
        return ctw_fail(err, CTW_EUNSUP,
                        "submit.head: no kind \"%.*s\"; this worker has loglikelihood, "
                        "loglikelihood_rolling",
                        (int)(map->kind.n < 48 ? map->kind.n : 48), map->kind.data);
    if (map->max_length > (uint64_t)model->max_length)
        return ctw_fail(err, CTW_EINVAL,
                        "submit.head: max_length %" PRIu64 " is more than the %" PRId64
                        " of model %s: start the worker with --max-length",
                        map->max_length, model->max_length, model->name);
    if (map->max_length != 0)
        out->max_length = (int64_t)map->max_length;
    ctw_slice_copy(ctw_slice_of(model->name), out->model, sizeof(out->model));
    enum ctw_status st = read_columns(out, &map->columns, err);
    if (st == CTW_OK)
        st = read_orphan(out, map, err);
    return st == CTW_OK ? read_rolling(out, map, err) : st;
}

/* ---- digest ---- */

/* Two multiplications per word (after Vigna's splitmix64 finisher): 16 MiB take milliseconds. */
static uint64_t mix(uint64_t h, uint64_t v)
{
    h = (h ^ v) * 0xbf58476d1ce4e5b9u;
    h = (h ^ h >> 29) * 0x94d049bb133111ebu;
    return h ^ h >> 32;
}

static uint64_t mix_bytes(uint64_t h, struct ctw_slice s)
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
    if (submit->has >> CTW_SUBMIT_HEAD & 1) {
        const struct ctw_head_map *m = &submit->head;
        const struct ctw_slice *columns = m->columns.data;
        h = mix_bytes(mix_bytes(mix(h, m->has), m->kind), m->model);
        for (size_t i = 0; i < m->columns.n; i++)
            h = mix_bytes(h, columns[i]);
        h = mix(mix_bytes(mix(h, m->max_length), m->orphan.policy), m->orphan.ttl_s);
        h = mix(mix(h, m->prefix_token), m->context_length);
    }
    h = mix_bytes(mix_bytes(h, submit->items.tokens), submit->items.n_tokens);
    return mix_bytes(mix_bytes(h, submit->items.n_context), submit->items.n_continuation);
}

/* ---- items ---- */

/* The columns of a part, which need not be aligned. */
struct columns {
    const struct ctw_items_map *map;
    bool rolling;
    int64_t n_items, n_tokens;
};

static int32_t int_at(struct ctw_slice s, int64_t i)
{
    int32_t v;
    memcpy(&v, s.data + i * (int64_t)sizeof(v), sizeof(v));
    return v;
}

static enum ctw_status check_columns(struct columns *c, struct ctw_err *err)
{
    const struct ctw_items_map *m = c->map;
    uint32_t want = 1u << CTW_ITEMS_TOKENS;
    want |= c->rolling ? 1u << CTW_ITEMS_N_TOKENS
                       : 1u << CTW_ITEMS_N_CONTEXT | 1u << CTW_ITEMS_N_CONTINUATION;
    if (m->has != want)
        return ctw_fail(err, CTW_EINVAL,
                        "submit.items: kind %s needs exactly the columns tokens, %s",
                        ctw_job_kind_name(c->rolling ? CTW_JOB_ROLLING : CTW_JOB_LOGLIKELIHOOD),
                        c->rolling ? "n_tokens" : "n_context, n_continuation");
    size_t bytes = m->tokens.n + m->n_context.n + m->n_continuation.n + m->n_tokens.n;
    if (bytes > CTW_IPC_PART_BYTES)
        return ctw_fail(err, CTW_EINVAL,
                        "submit.items: %zu bytes, a part may have %d: send more parts", bytes,
                        CTW_IPC_PART_BYTES);
    if (m->tokens.n % 4 != 0 || m->n_context.n % 4 != 0 || m->n_continuation.n % 4 != 0 ||
        m->n_tokens.n % 4 != 0)
        return ctw_fail(err, CTW_EINVAL,
                        "submit.items: the bytes of a column are not a multiple of 4 (int32)");
    if (m->n_context.n != m->n_continuation.n)
        return ctw_fail(err, CTW_EINVAL,
                        "submit.items: n_context has %zu items, n_continuation %zu",
                        m->n_context.n / 4, m->n_continuation.n / 4);
    c->n_items = (int64_t)(c->rolling ? m->n_tokens.n : m->n_context.n) / 4;
    c->n_tokens = (int64_t)m->tokens.n / 4;
    return CTW_OK;
}

static enum ctw_status check_lengths(int64_t item, int32_t n_context, int32_t n_targets,
                                     const struct ctw_job_head *head, struct ctw_err *err)
{
    if (n_context < 0 || n_targets < 0)
        return ctw_fail(err, CTW_EINVAL, "item %" PRId64 ": a negative number of tokens", item);
    if (head->kind == CTW_JOB_ROLLING)
        return CTW_OK;
    if (n_context == 0)
        return ctw_fail(err, CTW_EINVAL,
                        "item %" PRId64 ": the context is empty: put the prefix token there", item);
    if (n_targets == 0)
        return ctw_fail(err, CTW_EINVAL,
                        "item %" PRId64 ": the continuation is empty: there is nothing to score",
                        item);
    if (n_targets > head->max_length)
        return ctw_fail(err, CTW_EINVAL,
                        "item %" PRId64
                        ": the continuation has %d tokens, more than max_length %" PRId64,
                        item, n_targets, head->max_length);
    return CTW_OK;
}

static enum ctw_status check_tokens(int64_t item, const int32_t *tokens, int64_t n,
                                    const struct ctw_job_head *head, struct ctw_err *err)
{
    for (int64_t i = 0; i < n; i++) {
        if (tokens[i] < 0 || tokens[i] >= head->vocab)
            return ctw_fail(err, CTW_EINVAL,
                            "item %" PRId64 ": token %" PRId64
                            " is %d, the vocabulary of model %s has 0..%" PRId64,
                            item, i, tokens[i], head->model, head->vocab - 1);
    }
    return CTW_OK;
}

static void set_item(struct ctw_item *it, int32_t *tokens, int64_t n_context, int64_t n_targets,
                     const struct ctw_job_head *head)
{
    int64_t n_tok = n_context + n_targets;
    int64_t most = head->max_length + 1;
    bool rolling = head->kind == CTW_JOB_ROLLING;
    int64_t cut = rolling || n_tok <= most ? 0 : n_tok - most;
    int64_t n_units =
        rolling ? ctw_windows_count(n_targets, head->max_length, head->context_length) : 1;
    *it = (struct ctw_item){.tokens = tokens + cut,
                            .n_tok = (int32_t)(n_tok - cut),
                            .n_targets = (int32_t)n_targets,
                            .truncated = (int32_t)cut,
                            .n_units = (int32_t)n_units,
                            .units_left = (int32_t)n_units,
                            .is_greedy = true};
}

/* An input that can never be scored is refused now, not when its pass is prepared. */
static enum ctw_status check_memory(int64_t item, const struct ctw_item *it,
                                    const struct ctw_job_head *head, struct ctw_err *err)
{
    const double mib = 1024 * 1024;
    bool rolling = head->kind == CTW_JOB_ROLLING;
    int64_t n_input = it->n_tok - 1;
    if (rolling && n_input > head->max_length) /* in windows */
        n_input = head->max_length;
    if (n_input <= head->fit_length)
        return CTW_OK;
    return ctw_fail(err, CTW_ENOMEM,
                    "item %" PRId64 ": its input of %" PRId64
                    " tokens does not fit the memory limit of %.1f MiB beyond the weights, enough "
                    "for %" PRId64
                    " tokens: start the worker with a larger --memory-limit or with --max-length "
                    "%" PRId64,
                    item, n_input, (double)head->memory_limit / mib, head->fit_length,
                    head->fit_length);
}

static void count_item(struct ctw_job_part *p, struct ctw_item *it, const struct ctw_job_head *head)
{
    it->out = p->n_targets;
    p->n_targets += it->n_targets;
    p->n_units += it->n_units;
    p->n_input += head->kind == CTW_JOB_ROLLING
                      ? ctw_windows_input(it->n_targets, head->max_length, head->context_length)
                      : it->n_tok - 1;
}

static enum ctw_status read_items(struct ctw_job_part *p, const struct columns *c,
                                  const struct ctw_job_head *head, int64_t first_item,
                                  int64_t *bad_item, struct ctw_err *err)
{
    int32_t *to = p->tokens;
    int64_t from = 0; /* of c->n_tokens */
    for (int64_t i = 0; i < c->n_items; i++) {
        int32_t n_context = c->rolling ? 0 : int_at(c->map->n_context, i);
        int32_t n_targets =
            c->rolling ? int_at(c->map->n_tokens, i) : int_at(c->map->n_continuation, i);
        *bad_item = first_item + i;
        enum ctw_status st = check_lengths(first_item + i, n_context, n_targets, head, err);
        if (st != CTW_OK)
            return st;
        int64_t n = (int64_t)n_context + n_targets;
        if (n > c->n_tokens - from)
            return ctw_fail(err, CTW_EINVAL,
                            "item %" PRId64 ": it has %" PRId64 " tokens, but only %" PRId64
                            " are left in the column tokens",
                            first_item + i, n, c->n_tokens - from);
        int32_t *start = to;
        if (c->rolling)
            *to++ = head->prefix_token;
        memcpy(to, c->map->tokens.data + from * 4, (size_t)n * 4);
        st = check_tokens(first_item + i, to, n, head, err);
        if (st != CTW_OK)
            return st;
        to += n;
        from += n;
        set_item(&p->items[i], start, c->rolling ? 1 : n_context, n_targets, head);
        st = check_memory(first_item + i, &p->items[i], head, err);
        if (st != CTW_OK)
            return st;
        count_item(p, &p->items[i], head);
    }
    *bad_item = -1;
    if (from != c->n_tokens)
        return ctw_fail(err, CTW_EINVAL,
                        "submit.items: the items have %" PRId64
                        " tokens, the column tokens %" PRId64,
                        from, c->n_tokens);
    return CTW_OK;
}

enum ctw_status ctw_job_part_create(struct ctw_job_part **out, const struct ctw_items_map *items,
                                    const struct ctw_job_head *head, int64_t first_item,
                                    int64_t *bad_item, struct ctw_err *err)
{
    struct columns c = {.map = items, .rolling = head->kind == CTW_JOB_ROLLING};
    *bad_item = -1;
    enum ctw_status st = check_columns(&c, err);
    if (st != CTW_OK)
        return st;
    if (first_item + c.n_items > CTW_IPC_JOB_ITEMS)
        return ctw_fail(err, CTW_EINVAL, "the job has more than %d items: split it",
                        CTW_IPC_JOB_ITEMS);
    struct ctw_job_part *p = ctw_calloc(1, sizeof(*p));
    if (p == NULL)
        return ctw_fail(err, CTW_ENOMEM, "submit: out of memory");
    int64_t n_stored = c.n_tokens + (c.rolling ? c.n_items : 0);
    p->n_items = c.n_items;
    p->tokens = ctw_calloc((size_t)n_stored, sizeof(*p->tokens));
    p->items = ctw_calloc((size_t)c.n_items, sizeof(*p->items));
    if (p->tokens == NULL || p->items == NULL) {
        st = ctw_fail(err, CTW_ENOMEM, "submit: out of memory");
        goto fail;
    }
    st = read_items(p, &c, head, first_item, bad_item, err);
    if (st != CTW_OK)
        goto fail;
    p->bytes = sizeof(*p) + (size_t)n_stored * sizeof(*p->tokens) +
               (size_t)p->n_items * (sizeof(*p->items) + sizeof(int32_t)) +
               (size_t)p->n_units * sizeof(struct ctw_unit) + (size_t)p->n_targets * 8;
    *out = p;
    return CTW_OK;
fail:
    ctw_job_part_destroy(p);
    return st;
}

void ctw_job_part_destroy(struct ctw_job_part *p)
{
    if (p == NULL)
        return;
    ctw_free(p->tokens);
    ctw_free(p->items);
    ctw_free(p);
}
