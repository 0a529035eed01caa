/* Deals sequences to the devices of an engine: see deal.h. */
#include "worker/engine/score/deal.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/mem.h"
#include "worker/checkpoint/identity.h"
#include "worker/engine/open/activity.h"
#include "worker/engine/score/scoring_state.h"

/* Sequences next to each other. */
struct range {
    int64_t first, n;
};

/* A device's part. */
struct lane {
    struct deal *deal;
    struct ctw_engine *e, *reference;
    pthread_t thread;
    bool started;
    /* under lock */
    bool busy, out;                 /* out: it takes no more */
    struct range share;             /* what it scores: not reported yet */
    const struct ctw_seq *next;     /* likely to come after the share; NULL: not known */
    int64_t first;                  /* of the share when it was taken, */
    double cost;                    /* what all of it costs, */
    double began_s;                 /* and when it began */
    int64_t tok_done, tok_of_share; /* reported, in all and of this share */
    int64_t tok_computed;           /* in earlier shares */
    struct ctw_progress progress;   /* of this share */
};

struct deal {
    struct ctw_seq *seqs;
    int64_t *shared; /* of each sequence: inputs that it shares with the sequence before it */
    struct ctw_hooks hooks;
    int64_t longest, total; /* input tokens */
    struct ctw_need need;
    struct ctw_cost cost;
    int n_lanes;
    struct lane lane[CTW_MAX_DEVICES];
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under lock */
    struct range pool[CTW_MAX_DEVICES + 1]; /* what no device has taken; a lane gives back once */
    int n_pool;
    int n_passes; /* reported */
    bool stop, in_reference;
    struct ctw_err err; /* the first failure that ends the scoring; or of the lanes that are out */
};

/* ---- costs -------------------------------------------------------------------------------- */

/* What sequence i shares if `first` is the first of a share. */
static int64_t shared_of(const struct deal *d, int64_t i, int64_t first)
{
    return i == first ? 0 : d->shared[i];
}

/* Of sequence i without its first `shared` inputs. */
static double cost_behind(const struct deal *d, int64_t i, int64_t shared)
{
    const struct ctw_seq *s = &d->seqs[i];
    return ctw_cost_of(&d->cost, ctw_seq_inputs(s), s->n_tok - s->first) -
           ctw_cost_of(&d->cost, shared, 0);
}

static double cost_of(const struct deal *d, int64_t i, int64_t first)
{
    return cost_behind(d, i, shared_of(d, i, first));
}

/* *n_tok: the tokens that are computed. */
static double pool_cost(const struct deal *d, int64_t *n_tok)
{
    double cost = 0;
    *n_tok = 0;
    for (int k = 0; k < d->n_pool; k++) {
        const struct range *r = &d->pool[k];
        for (int64_t i = r->first; i < r->first + r->n; i++) {
            cost += cost_of(d, i, r->first);
            *n_tok += ctw_seq_inputs(&d->seqs[i]) - shared_of(d, i, r->first);
        }
    }
    return cost;
}

/* Cost per second, as last measured; of a lane that was never measured, the others' average. */
static double rate_of(const struct lane *l)
{
    double sum = 0;
    int n = 0;
    if (l->e->rate > 0)
        return l->e->rate;
    for (int i = 0; i < l->deal->n_lanes; i++) {
        sum += l->deal->lane[i].e->rate;
        n += l->deal->lane[i].e->rate > 0;
    }
    return n > 0 ? sum / n : 1;
}

/* Seconds that a lane still needs for its share, by its rate. A GPU's progress counts queued work,
 * not finished work. */
static double seconds_left(const struct lane *l)
{
    double whole_s = l->cost / rate_of(l);
    if (!l->busy)
        return 0;
    return l->e->rate > 0 ? fmax(0, l->began_s + whole_s - ctw_now_s()) : whole_s;
}

/* ---- taking a share: under lock ------------------------------------------------------------ */

/* Would a busy lane finish its share and this sequence sooner? */
static bool is_sooner_elsewhere(const struct lane *l, double cost)
{
    const struct deal *d = l->deal;
    if (l->e->rate == 0)
        return false;
    for (int i = 0; i < d->n_lanes; i++) {
        const struct lane *o = &d->lane[i];
        if (o->busy && o->e->rate > 0 && seconds_left(o) + cost / o->e->rate < cost / l->e->rate)
            return true;
    }
    return false;
}

/*
 * The cost that the lane should take now. The lane's part of the remaining work, so that all lanes
 * finish together, is divided into equal shares, one per pass. A lane of unknown rate takes half of
 * its part first.
 */
static double fair_cost(const struct lane *l)
{
    const struct deal *d = l->deal;
    int64_t n_tok;
    double pool = pool_cost(d, &n_tok), left = pool, rates = 0;
    for (int i = 0; i < d->n_lanes; i++) {
        const struct lane *o = &d->lane[i];
        left += seconds_left(o) * rate_of(o);
        rates += o->out ? 0 : rate_of(o);
    }
    double part = fmin(pool, left * rate_of(l) / rates);
    double part_tok = (double)n_tok * part / pool;
    double n = ceil(part_tok / (double)l->e->plan.pass_tokens - 0.02);
    if (l->e->rate == 0 && part_tok > 2 * (double)l->e->plan.chunk_tokens)
        n = fmax(n, 2);
    return part / fmax(n, 1);
}

/* The inputs of sequence i that the lane's last share has left. The lane is not busy. */
static int64_t of_trunk(const struct lane *l, int64_t i)
{
    const struct ctw_forward *f = l->e->forward;
    struct ctw_path path;
    if (f == NULL)
        return 0;
    ctw_path_begin(&path, &f->plan, ctw_plan_long_from(f->model), !l->e->no_share, &f->has);
    return ctw_path_of_trunk(&path, &l->deal->seqs[i]);
}

/* Takes sequences of the pool's first range, up to about `cost` and one pass; at least one. */
static void take(struct lane *l, double cost)
{
    struct deal *d = l->deal;
    struct range *from = &d->pool[0];
    int64_t n = 0, n_tok = 0;
    l->cost = 0;
    while (n < from->n) {
        int64_t i = from->first + n, shared = n == 0 ? of_trunk(l, i) : d->shared[i];
        int64_t more_tok = ctw_seq_inputs(&d->seqs[i]) - shared;
        double more = cost_behind(d, i, shared);
        if (n > 0 && l->cost + more / 2 > cost * (1 + 1e-9))
            break;
        if (!ctw_pass_fits(n, n_tok, more_tok, l->e->plan.pass_tokens))
            break;
        l->cost += more;
        n_tok += more_tok;
        n++;
    }
    l->share = (struct range){from->first, n};
    l->first = from->first;
    l->began_s = ctw_now_s();
    l->progress = (struct ctw_progress){0};
    l->busy = true;
    from->first += n;
    from->n -= n;
    if (from->n == 0)
        memmove(from, from + 1, (size_t)--d->n_pool * sizeof(*from));
    l->next = d->n_pool > 0 ? &d->seqs[d->pool[0].first] : d->hooks.next;
}

static bool any_busy(const struct deal *d)
{
    for (int i = 0; i < d->n_lanes; i++)
        if (d->lane[i].busy)
            return true;
    return false;
}

/* Waits while other lanes may return sequences. False: the lane has ended. */
static bool take_share(struct lane *l)
{
    struct deal *d = l->deal;
    for (;;) {
        if (d->stop || l->out)
            return false;
        int64_t next = d->n_pool > 0 ? d->pool[0].first : 0;
        if (d->n_pool > 0 && !is_sooner_elsewhere(l, cost_of(d, next, next))) {
            take(l, fair_cost(l));
            return true;
        }
        if (!any_busy(d))
            return false;
        pthread_cond_wait(&d->changed, &d->lock);
    }
}

/* ---- the end of a share: under lock -------------------------------------------------------- */

static bool all_out(const struct deal *d)
{
    for (int i = 0; i < d->n_lanes; i++)
        if (!d->lane[i].out)
            return false;
    return true;
}

/* The lane's device cannot go on, now or ever. The other lanes score its unfinished sequences. */
static void drop_out(struct lane *l, const struct ctw_err *err)
{
    struct deal *d = l->deal;
    struct ctw_backend_info info;
    ctw_backend_get_info(l->e->be, &info);
    l->out = true;
    l->e->failed = err->status == CTW_EDEVICE;
    ctw_activity_end(l->e, err->status, err);
    if (l->share.n > 0)
        d->pool[d->n_pool++] = l->share;
    if (d->err.status == CTW_OK)
        d->err = *err;
    d->stop = d->stop || all_out(d);
    ctw_warn("device %d (%s) %s: %s%s", l->e->device_number, info.device,
             l->e->failed ? "has failed and is used no more" : "does not take part for now",
             err->msg, d->stop ? "" : "; its sequences go to the other devices");
}

static void end_share(struct lane *l, enum ctw_status st, bool in_reference,
                      const struct ctw_err *err)
{
    struct deal *d = l->deal;
    double took_s = ctw_now_s() - l->began_s;
    l->busy = false;
    l->tok_computed += l->progress.tok_computed;
    l->progress = (struct ctw_progress){0};
    l->tok_of_share = 0;
    if (st == CTW_OK) {
        l->e->rate = took_s > 0 ? l->cost / took_s : 0;
    } else if (st == CTW_EDEVICE || st == CTW_ENOMEM) {
        d->in_reference = in_reference;
        drop_out(l, err);
    } else if (!d->stop) {
        d->stop = true;
        d->in_reference = in_reference;
        d->err = *err;
    }
    pthread_cond_broadcast(&d->changed);
}

/* ---- hooks, of the lanes' threads ---------------------------------------------------------- */

/* The progress of all lanes together. The layer is the layer of the first lane that computes. Under
 * lock. */
static struct ctw_progress whole(const struct deal *d)
{
    struct ctw_progress p = {.tok_total = d->total, .pass = d->n_passes, .n_passes = d->n_passes};
    int64_t n_tok;
    for (int i = d->n_lanes - 1; i >= 0; i--) {
        const struct lane *l = &d->lane[i];
        p.tok_done += l->tok_done;
        p.tok_computed += l->tok_computed + l->progress.tok_computed;
        if (l->progress.tok_done > l->tok_of_share)
            p.tok_done += l->progress.tok_done - l->tok_of_share;
        p.n_layers = l->e->model->n_layers;
        if (l->busy) {
            p.n_passes += l->progress.n_passes - l->progress.pass;
            p.layer = l->progress.layer;
        }
    }
    (void)pool_cost(d, &n_tok);
    p.n_passes += (int)ceil((double)n_tok / (double)d->lane[0].e->plan.pass_tokens);
    return p;
}

static void on_progress(void *arg, const struct ctw_progress *progress)
{
    struct lane *l = arg;
    struct deal *d = l->deal;
    pthread_mutex_lock(&d->lock);
    l->progress = *progress;
    const struct ctw_progress p = whole(d);
    d->hooks.progress(d->hooks.arg, &p);
    pthread_mutex_unlock(&d->lock);
}

static bool is_cancelled(void *arg)
{
    struct deal *d = ((struct lane *)arg)->deal;
    pthread_mutex_lock(&d->lock);
    if (!d->stop && d->hooks.cancelled != NULL && d->hooks.cancelled(d->hooks.arg)) {
        d->stop = true;
        (void)ctw_fail(&d->err, CTW_ECANCELED, "cancelled");
        pthread_cond_broadcast(&d->changed);
    }
    bool stop = d->stop;
    pthread_mutex_unlock(&d->lock);
    return stop;
}

static void on_done(void *arg, int64_t first, int64_t n)
{
    struct lane *l = arg;
    struct deal *d = l->deal;
    /* Another lane may still digest the last block of a layer that this lane has used. */
    ctw_identity_wait(l->e->model->identity);
    if (l->reference != NULL)
        ctw_identity_wait(l->reference->model->identity);
    pthread_mutex_lock(&d->lock);
    int64_t n_tok = 0;
    for (int64_t i = l->share.first; i < l->share.first + n; i++)
        n_tok += ctw_seq_inputs(&d->seqs[i]);
    l->tok_of_share += n_tok;
    l->tok_done += n_tok;
    l->share = (struct range){l->share.first + n, l->share.n - n};
    d->n_passes++;
    if (d->hooks.done != NULL)
        d->hooks.done(d->hooks.arg, l->first + first, n);
    pthread_mutex_unlock(&d->lock);
}

static bool load_hidden(void *arg, int64_t first, int64_t n, void *rows)
{
    struct lane *l = arg;
    struct deal *d = l->deal;
    pthread_mutex_lock(&d->lock);
    bool found = d->hooks.load_hidden(d->hooks.arg, l->first + first, n, rows);
    pthread_mutex_unlock(&d->lock);
    return found;
}

static void keep_hidden(void *arg, int64_t first, int64_t n, const void *rows)
{
    struct lane *l = arg;
    struct deal *d = l->deal;
    pthread_mutex_lock(&d->lock);
    d->hooks.keep_hidden(d->hooks.arg, l->first + first, n, rows);
    pthread_mutex_unlock(&d->lock);
}

/* ---- lanes -------------------------------------------------------------------------------- */

static enum ctw_status score_share(struct lane *l, bool *in_reference, struct ctw_err *err)
{
    const struct deal *d = l->deal;
    const struct ctw_hooks hooks = {
        .arg = l,
        .progress = d->hooks.progress != NULL ? on_progress : NULL,
        .cancelled = is_cancelled,
        .done = on_done,
        .next = l->next,
        .load_hidden = d->hooks.load_hidden != NULL ? load_hidden : NULL,
        .keep_hidden = d->hooks.keep_hidden != NULL ? keep_hidden : NULL};
    struct ctw_seq *seqs = d->seqs + l->share.first;
    int64_t n = l->share.n;
    if (l->reference != NULL)
        return ctw_engine_compare_here(l->e, l->reference, seqs, n, &hooks, in_reference, err);
    enum ctw_status st = CTW_OK;
    if (l->e->share == 0) /* buffers for all shares to come */
        st = ctw_engine_prepare(l->e, &d->need, err);
    return st == CTW_OK ? ctw_engine_score_here(l->e, seqs, n, &hooks, err) : st;
}

static void *run_lane(void *arg)
{
    struct lane *l = arg;
    struct deal *d = l->deal;
    pthread_mutex_lock(&d->lock);
    while (take_share(l)) {
        struct ctw_err err = {0};
        bool in_reference = false;
        pthread_mutex_unlock(&d->lock);
        enum ctw_status st = score_share(l, &in_reference, &err);
        pthread_mutex_lock(&d->lock);
        end_share(l, st, in_reference, &err);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

/* One lane is this thread's own. A thread that does not start leaves its work to the others. */
static void run_lanes(struct deal *d)
{
    for (int i = 1; i < d->n_lanes; i++) {
        struct lane *l = &d->lane[i];
        l->started = pthread_create(&l->thread, NULL, run_lane, l) == 0;
    }
    (void)run_lane(&d->lane[0]);
    for (int i = 1; i < d->n_lanes; i++)
        if (d->lane[i].started)
            pthread_join(d->lane[i].thread, NULL);
}

static void open_lanes(struct deal *d, struct ctw_engine *e, struct ctw_engine *reference)
{
    for (int i = 0; i <= e->n_peers; i++) {
        struct ctw_engine *of = i == 0 ? e : e->peer[i - 1], *ref = reference;
        if (reference != NULL && i > 0)
            ref = reference->peer[i - 1];
        if (of->failed || (ref != NULL && ref->failed))
            continue;
        d->lane[d->n_lanes++] = (struct lane){.deal = d, .e = of, .reference = ref};
    }
    if (d->n_lanes == 0) /* let it say why */
        d->lane[d->n_lanes++] = (struct lane){.deal = d, .e = e, .reference = reference};
}

/* False: out of memory. */
static bool find_shared(struct deal *d, const struct ctw_engine *e, int64_t n_seqs, bool shares)
{
    const struct ctw_plan unlimited = {0};
    struct ctw_path path;
    d->shared = ctw_calloc((size_t)n_seqs, sizeof(*d->shared));
    if (d->shared == NULL)
        return false;
    d->need = ctw_scoring_need(e, d->seqs, n_seqs, d->longest, d->total, d->hooks.next);
    ctw_path_begin(&path, &unlimited, ctw_plan_long_from(e->model), shares && !e->no_share, NULL);
    for (int64_t i = 0; i < n_seqs; i++) {
        const struct ctw_shared shared = ctw_path_shared(&path, &d->seqs[i]);
        ctw_path_add(&path, &d->seqs[i], &shared);
        d->shared[i] = shared.n_tok;
    }
    return true;
}

enum ctw_status ctw_deal(struct ctw_engine *e, struct ctw_engine *reference, struct ctw_seq *seqs,
                         int64_t n_seqs, const struct ctw_hooks *hooks, bool *in_reference,
                         struct ctw_err *err)
{
    struct deal *d = ctw_calloc(1, sizeof(*d));
    if (d == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory");
    enum ctw_status st =
        reference == NULL
            ? ctw_scoring_check(e, seqs, n_seqs, &d->longest, &d->total, err)
            : ctw_scoring_check_both(e, reference, seqs, n_seqs, &d->longest, &d->total, err);
    d->seqs = seqs;
    d->hooks = hooks != NULL ? *hooks : (struct ctw_hooks){0};
    if (st == CTW_OK && n_seqs > 0 &&
        !find_shared(d, e, n_seqs,
                     reference == NULL || ctw_scoring_both_share(e, reference, seqs, n_seqs)))
        st = ctw_fail(err, CTW_ENOMEM, "out of memory");
    if (st != CTW_OK || n_seqs == 0) {
        ctw_free(d);
        return st;
    }
    d->pool[d->n_pool++] = (struct range){0, n_seqs};
    d->cost = ctw_plan_cost(e->model);
    pthread_mutex_init(&d->lock, NULL);
    pthread_cond_init(&d->changed, NULL);
    open_lanes(d, e, reference);
    run_lanes(d);
    if (d->stop || d->n_pool > 0) {
        st = d->err.status;
        if (err != NULL)
            *err = d->err;
        if (in_reference != NULL)
            *in_reference = d->in_reference;
    }
    pthread_cond_destroy(&d->changed);
    pthread_mutex_destroy(&d->lock);
    ctw_free(d->shared);
    ctw_free(d);
    return st;
}

int64_t ctw_deal_tokens(const struct ctw_engine *e)
{
    enum { MOST_PASSES = 4 };
    int64_t pass = e->plan.pass_tokens, n = e->n_peers + 1;
    double minute = ctw_backend_traits(e->be)->pass_flops /
                    fmax(1, ctw_plan_layer_flops(e->model) + ctw_plan_head_flops(e->model));
    double most = fmin(MOST_PASSES * (double)pass, fmax((double)pass, minute));
    return n == 1 ? pass : n * (int64_t)most;
}
