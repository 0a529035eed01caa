/* The requests by which jobs come into the queue: submit and seal. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "worker/service/jobs/space.h"
#include "worker/service/requests/handlers.h"

static struct ctw_span state_of(const struct ctw_job *j)
{
    return ctw_span_of(ctw_job_state_name(j->state));
}

/* ---- submit ---- */

/* The model that the part of a new job was checked against. */
struct opening {
    uint64_t opened;
    char identity[65]; /* "": not known */
};

/* A submit that is being checked, and copies of the model's values, for use without the lock. */
struct arrival {
    const struct ctw_submit *submit;
    const struct ctw_contact *contact;
    bool has_store;                  /* the worker has */
    bool repeated;                   /* the job has a part in this place already... */
    uint64_t has_digest;             /* ...with this digest */
    uint64_t digest;                 /* of this part; known only after the cheap checks */
    const struct ctw_job_head *head; /* of `found` or `job` */
    int64_t n_items;                 /* of the job so far */
    struct ctw_job_part *part;
    struct ctw_job *found; /* in the queue, pinned; NULL: part 0 of a new job */
    struct ctw_job *job;   /* new, not yet in the queue */
    struct opening model, reference;
    int *retry_ms;
    struct ctw_space_request space;
};

static void fill_reply(const struct ctw_job *j, bool repeated, struct ctw_submit_reply *reply)
{
    *reply = (struct ctw_submit_reply){.state = state_of(j),
                                       .parts = (uint64_t)j->input.n_parts,
                                       .items = (uint64_t)j->input.n_items,
                                       .repeated = repeated};
}

/* May the part be added to the job, or does the job have a part in this place already? */
static enum ctw_status check_place(const struct ctw_job *j, struct arrival *a, struct ctw_err *err)
{
    uint64_t part = a->submit->part;
    a->repeated = part < (uint64_t)j->input.n_parts;
    if (a->repeated) {
        a->has_digest = j->input.parts[part]->digest;
        return CTW_OK;
    }
    if (j->state != CTW_JOB_OPEN)
        return ctw_fail(err, CTW_EINVAL, "part %" PRIu64 ": the job is %s and takes no more parts",
                        part, ctw_job_state_name(j->state));
    if (part > (uint64_t)j->input.n_parts)
        return ctw_fail(err, CTW_EINVAL, "part %" PRIu64 " came before part %" PRId64, part,
                        j->input.n_parts);
    return CTW_OK;
}

static enum ctw_status check_repeat(const struct arrival *a, struct ctw_err *err)
{
    if (a->has_digest == a->digest)
        return CTW_OK;
    return ctw_fail(err, CTW_EINVAL,
                    "part %" PRIu64 " was already submitted with other content: a job's parts "
                    "cannot be changed; choose another job id",
                    a->submit->part);
}

static enum ctw_status usable_model(struct ctw_queue *q, const char *name, int *retry_ms,
                                    const struct ctw_model_slot **out, struct ctw_err *err)
{
    const struct ctw_model_slot *m = ctw_models_find(&q->models, name);
    *out = m;
    if (m == NULL || m->state == CTW_MODEL_CLOSING)
        return ctw_fail(err, CTW_ENOTFOUND, "no model is named \"%s\"; info lists them", name);
    if (m->state == CTW_MODEL_FAILED)
        return ctw_fail(err, CTW_EINVAL, "model %s has failed: %s", m->name, m->error.msg);
    if (m->state == CTW_MODEL_LOADING) {
        *retry_ms = 500;
        return ctw_fail(err, CTW_EBUSY, "model %s is still loading", m->name);
    }
    return CTW_OK;
}

/* ---- the two checks of a submit ---- */

static enum ctw_status find_model(struct ctw_queue *q, struct arrival *a, struct ctw_span asked,
                                  const struct ctw_model_slot **out, struct opening *opening,
                                  struct ctw_err *err)
{
    char name[CTW_MODEL_NAME_MAX];
    if (!ctw_span_copy(asked, name, sizeof(name)))
        return ctw_fail(err, CTW_ENOTFOUND, "submit.head: the model's name is too long");
    enum ctw_status st = usable_model(q, name, a->retry_ms, out, err);
    if (st != CTW_OK)
        return st;
    opening->opened = (*out)->opened;
    snprintf(opening->identity, sizeof(opening->identity), "%s",
             ctw_engine_identity((*out)->engine));
    return CTW_OK;
}

/* The model of a new job, and its reference: NULL if none is given. */
static enum ctw_status find_models(struct ctw_queue *q, struct arrival *a,
                                   const struct ctw_model_slot **m,
                                   const struct ctw_model_slot **reference, int64_t *n_matrices,
                                   struct ctw_err *err)
{
    const struct ctw_head_map *head = &a->submit->head;
    *reference = NULL;
    enum ctw_status st = find_model(q, a, head->model, m, &a->model, err);
    if (st != CTW_OK || !head->has.reference)
        return st;
    st = find_model(q, a, head->reference, reference, &a->reference, err);
    if (st != CTW_OK)
        return st;
    st = ctw_engines_comparable((*m)->engine, (*reference)->engine, NULL, err);
    if (st == CTW_OK && head->layers)
        st = ctw_engines_layers_comparable((*m)->engine, (*reference)->engine, err);
    if (st == CTW_OK && head->matrices)
        st = ctw_engines_exchangeable((*m)->engine, (*reference)->engine, n_matrices, err);
    return st == CTW_OK ? st : ctw_fail_prefix(err, "submit.head");
}

static int64_t min64(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static struct ctw_model_limits limits_of(const struct ctw_model_slot *m,
                                         const struct ctw_model_slot *reference, bool has_store)
{
    struct ctw_model_limits l = {.name = m->name,
                                 .max_length = m->info.max_length,
                                 .fit_length = m->info.fit_length,
                                 .memory_limit = m->info.memory_limit,
                                 .vocab = m->info.vocab,
                                 .key_bytes = has_store ? sizeof(struct ctw_store_key) : 0,
                                 .pair_cost = m->info.pair_cost};
    if (reference == NULL)
        return l;
    const struct ctw_engine_info *info = &reference->info;
    l.reference = reference->name;
    l.n_layers = info->model->n_decoders + 1;
    l.max_length = min64(l.max_length, info->max_length);
    l.fit_length = min64(l.fit_length, info->fit_length);
    l.memory_limit = l.memory_limit < info->memory_limit ? l.memory_limit : info->memory_limit;
    l.vocab = min64(l.vocab, info->vocab);
    return l;
}

/* The numerics id of a job with probabilities over the first `limit` ids (0: all). */
static const char *numerics_of(const struct ctw_model_slot *m, int64_t limit,
                               char buf[CTW_NUMERICS_MAX])
{
    if (limit == 0)
        return m->info.numerics;
    ctw_engine_numerics(m->engine, limit, buf);
    return buf;
}

/* Part 0 of a new job: makes the job, which is not in the queue yet. */
static enum ctw_status make_job(struct ctw_queue *q, struct arrival *a, struct ctw_err *err)
{
    const struct ctw_submit *s = a->submit;
    const struct ctw_model_slot *m, *reference;
    struct ctw_job_head head;
    char buf[CTW_NUMERICS_MAX];
    int64_t n_matrices = 0;
    enum ctw_status st = ctw_space_for_job(q, &a->space, err);
    if (st == CTW_OK)
        st = find_models(q, a, &m, &reference, &n_matrices, err);
    if (st != CTW_OK)
        return st;
    struct ctw_model_limits limits = limits_of(m, reference, a->has_store);
    limits.n_matrices = n_matrices;
    st = ctw_job_read_head(&head, &s->head, &limits, err);
    if (st != CTW_OK)
        return st;
    a->job = ctw_job_create(s->job.data, &head, numerics_of(m, head.limit, buf),
                            reference != NULL ? reference->info.numerics : NULL, a->contact);
    bool ok = a->job != NULL;
    for (int64_t i = 0; ok && i < n_matrices; i++)
        ok = ctw_job_name_matrix(a->job, i, ctw_engine_matrix_name(m->engine, i));
    if (!ok)
        return ctw_fail(err, CTW_ENOMEM, "submit: out of memory");
    a->head = &a->job->head;
    return CTW_OK;
}

/* First check, with the lock: finds the job that the part belongs to, or makes it for part 0. */
static enum ctw_status find_or_make_job(struct ctw_queue *q, struct arrival *a,
                                        struct ctw_submit_reply *reply, struct ctw_err *err)
{
    const struct ctw_submit *s = a->submit;
    struct ctw_job *j;
    enum ctw_status st = ctw_jobs_find(&q->jobs, a->contact, s->job, NULL, &j, err);
    if (st == CTW_EINVAL)
        return st;
    if (s->has.head != (s->part == 0))
        return ctw_fail(err, CTW_EINVAL, "submit: part 0 has a head, and no other part has one");
    if (j == NULL)
        return s->part == 0 ? make_job(q, a, err) : st; /* not found */
    st = check_place(j, a, err);
    if (st == CTW_OK && a->repeated)
        fill_reply(j, true, reply);
    if (st != CTW_OK || a->repeated)
        return st;
    a->head = &j->head;
    a->n_items = j->input.n_items;
    a->found = j;
    ctw_jobs_pin(j);
    return CTW_OK;
}

/* Is the model still the model whose limits the part of a new job was checked against? */
static enum ctw_status check_model(struct ctw_queue *q, const struct arrival *a, const char *name,
                                   const struct opening *was, const char *numerics,
                                   struct ctw_err *err)
{
    char buf[CTW_NUMERICS_MAX];
    const struct ctw_model_slot *m;
    enum ctw_status st = usable_model(q, name, a->retry_ms, &m, err);
    if (st == CTW_OK && m->opened == was->opened)
        return CTW_OK;
    if (st == CTW_OK && was->identity[0] != '\0' &&
        strcmp(numerics_of(m, a->head->limit, buf), numerics) == 0 &&
        strcmp(ctw_engine_identity(m->engine), was->identity) == 0)
        return CTW_OK;
    *a->retry_ms = 500;
    return ctw_fail(err, CTW_EBUSY, "model %s was unloaded or loaded again meanwhile: submit again",
                    name);
}

static enum ctw_status check_models(struct ctw_queue *q, const struct arrival *a,
                                    struct ctw_err *err)
{
    const struct ctw_job_results *r = &a->job->results;
    enum ctw_status st = check_model(q, a, a->head->model, &a->model, r->numerics, err);
    if (st == CTW_OK && r->ref_numerics != NULL)
        st = check_model(q, a, a->head->reference, &a->reference, r->ref_numerics, err);
    return st;
}

/*
 * Second check, with the lock: the queue may have changed while the part was read. The functions
 * below add the part; if the job has it already, a->repeated is set.
 */

static enum ctw_status add_to_found(struct ctw_queue *q, struct arrival *a, struct ctw_job **to,
                                    struct ctw_err *err)
{
    enum ctw_status st = ctw_jobs_find(&q->jobs, a->contact, a->submit->job, NULL, to, err);
    if (st == CTW_OK && *to != a->found) /* the part was checked against the former job's head */
        return ctw_fail(
            err, CTW_ENOTFOUND,
            "the job was released, and another job with its id was submitted meanwhile");
    if (st == CTW_OK)
        st = check_place(*to, a, err);
    if (st != CTW_OK || a->repeated)
        return st;
    st = ctw_space_for_part(q, &a->space, *to, a->part->bytes, err);
    return st == CTW_OK ? ctw_jobs_add_part(&q->jobs, *to, a->part, err) : st;
}

static enum ctw_status add_new(struct ctw_queue *q, struct arrival *a, struct ctw_job **to,
                               struct ctw_err *err)
{
    if (ctw_jobs_find(&q->jobs, a->contact, a->submit->job, NULL, to, err) == CTW_OK)
        return check_place(*to, a, err); /* another connection was faster: it has part 0 */
    enum ctw_status st = ctw_space_for_job(q, &a->space, err);
    if (st == CTW_OK)
        st = check_models(q, a, err);
    if (st == CTW_OK)
        st = ctw_space_for_part(q, &a->space, a->job, a->part->bytes, err);
    if (st == CTW_OK)
        st = ctw_job_add_part(a->job, a->part, err);
    if (st != CTW_OK)
        return st;
    *to = a->job;
    a->job = NULL;
    ctw_jobs_append(&q->jobs, *to);
    return CTW_OK;
}

static enum ctw_status add_part(struct ctw_queue *q, struct arrival *a,
                                struct ctw_submit_reply *reply, struct ctw_err *err)
{
    struct ctw_job *to;
    enum ctw_status st = a->found != NULL ? add_to_found(q, a, &to, err) : add_new(q, a, &to, err);
    if (st != CTW_OK)
        return st;
    fill_reply(to, a->repeated, reply);
    if (a->repeated)
        return check_repeat(a, err);
    a->part = NULL;
    ctw_space_taken(q, &a->space, to);
    return CTW_OK;
}

enum ctw_status ctw_handle_submit(struct ctw_handler_call *c, struct ctw_err *err)
{
    struct ctw_queue *q = c->service->queue;
    const struct ctw_submit *submit = &c->request->body.submit;
    struct ctw_submit_reply *reply = &c->reply->body.submit;
    struct arrival a = {
        .submit = submit,
        .contact = &c->contact,
        .has_store = c->service->store != NULL,
        .retry_ms = &c->retry_ms,
        .space = {.contact = &c->contact, .job = submit->job, .retry_ms = &c->retry_ms}};
    pthread_mutex_lock(&q->lock);
    enum ctw_status st = find_or_make_job(q, &a, reply, err);
    pthread_mutex_unlock(&q->lock);
    if (st == CTW_OK && !a.repeated)
        st = ctw_job_part_create(&a.part, &submit->items, a.head, a.n_items, &c->bad_item, err);
    if (st != CTW_OK)
        goto done;
    a.digest = ctw_job_part_digest(submit); /* takes milliseconds for a large part */
    if (a.repeated) {
        st = check_repeat(&a, err);
        goto done;
    }
    a.part->digest = a.digest;
    pthread_mutex_lock(&q->lock);
    st = add_part(q, &a, reply, err);
    pthread_mutex_unlock(&q->lock);
done:
    if (a.found != NULL) {
        pthread_mutex_lock(&q->lock);
        ctw_jobs_unpin(&q->jobs, a.found);
        pthread_mutex_unlock(&q->lock);
    }
    ctw_space_log(&a.space.dropped);
    ctw_job_part_destroy(a.part);
    ctw_job_destroy(a.job);
    return st;
}

/* ---- seal ---- */

static enum ctw_status seal_job(struct ctw_queue *q, struct ctw_job *j, uint64_t parts,
                                struct ctw_err *err)
{
    if (parts != (uint64_t)j->input.n_parts)
        return ctw_fail(err, CTW_EINVAL,
                        "seal: the worker has %" PRId64 " parts of the job, not %" PRIu64,
                        j->input.n_parts, parts);
    if (j->state != CTW_JOB_OPEN)
        return CTW_OK; /* repeated */
    ctw_job_seal(j, ctw_now_ms());
    if (j->input.n_items == 0)
        ctw_queue_end(q, j, CTW_JOB_DONE, NULL);
    pthread_cond_signal(&q->work);
    return CTW_OK;
}

enum ctw_status ctw_handle_seal(struct ctw_handler_call *c, struct ctw_err *err)
{
    struct ctw_queue *q = c->service->queue;
    const struct ctw_seal *seal = &c->request->body.seal;
    struct ctw_job *j;
    pthread_mutex_lock(&q->lock);
    enum ctw_status st = ctw_jobs_find(&q->jobs, &c->contact, seal->job, NULL, &j, err);
    if (st == CTW_OK)
        st = seal_job(q, j, seal->parts, err);
    if (st == CTW_OK)
        c->reply->body.seal =
            (struct ctw_seal_reply){.state = state_of(j), .items = (uint64_t)j->input.n_items};
    pthread_mutex_unlock(&q->lock);
    return st;
}
