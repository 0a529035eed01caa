#include "worker/weights/stages.h"

#include "base/clock.h"
#include "base/numa.h"

void ctw_run_near(struct ctw_backend *be)
{
    struct ctw_backend_info info;
    ctw_backend_get_info(be, &info);
    ctw_numa_run_on("", ctw_numa_of_pci("", info.pci));
}

void ctw_stages_init(struct ctw_stages *s, struct ctw_backend *be, size_t bytes, int n)
{
    *s = (struct ctw_stages){.be = be, .bytes = bytes, .n = n};
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->changed, NULL);
}

static void give_back(struct ctw_stages *s, struct ctw_stage *stage)
{
    pthread_mutex_lock(&s->lock);
    stage->is_taken = false;
    stage->n_unread = 0;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

/* Takes a stage that has been used, or one that has not. NULL if no stage is free. */
static struct ctw_stage *take_any(struct ctw_stages *s, bool is_used)
{
    struct ctw_stage *found = NULL;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->n && found == NULL; i++)
        if (!s->stage[i].is_taken && (s->stage[i].p != NULL || s->stage[i].begun) == is_used)
            found = &s->stage[i];
    if (found != NULL)
        found->is_taken = true;
    pthread_mutex_unlock(&s->lock);
    return found;
}

static enum ctw_status wait_for_upload(struct ctw_stages *s, struct ctw_stage *stage,
                                       struct ctw_err *err)
{
    enum ctw_status st = stage->begun ? ctw_upload_wait(s->be, stage->ticket, err) : CTW_OK;
    if (st == CTW_OK)
        stage->begun = false;
    return st;
}

void ctw_stages_trim(struct ctw_stages *s)
{
    struct ctw_stage *stage;
    struct ctw_err err;
    while ((stage = take_any(s, true)) != NULL) {
        if (wait_for_upload(s, stage, &err) == CTW_OK)
            ctw_stage_free(s->be, stage->p);
        stage->p = NULL;
        stage->begun = false;
        give_back(s, stage);
    }
}

void ctw_stages_fini(struct ctw_stages *s)
{
    ctw_stages_drop(s);
    ctw_stages_trim(s);
    pthread_cond_destroy(&s->changed);
    pthread_mutex_destroy(&s->lock);
}

void ctw_stages_set_memory(struct ctw_stages *s, void *memory)
{
    pthread_mutex_lock(&s->lock);
    s->memory = memory;
    s->memory_s = ctw_now_s();
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

void ctw_stages_stop(struct ctw_stages *s)
{
    pthread_mutex_lock(&s->lock);
    s->stop = true;
    pthread_cond_broadcast(&s->changed);
    pthread_mutex_unlock(&s->lock);
}

enum ctw_status ctw_stages_allocate(struct ctw_stages *s, struct ctw_err *err)
{
    struct ctw_stage *stage = take_any(s, false);
    if (stage == NULL)
        return CTW_OK;
    enum ctw_status st = ctw_stage_alloc(s->be, (void **)&stage->p, s->bytes, err);
    give_back(s, stage);
    return st;
}

/* Is `a` a better stage to take than `b`? */
static bool is_better(const struct ctw_stage *a, const struct ctw_stage *b)
{
    if (b == NULL || !a->begun || !b->begun)
        return b == NULL || (b->begun && !a->begun) ||
               (a->begun == b->begun && a->p != NULL && b->p == NULL);
    return a->ticket < b->ticket;
}

struct ctw_stage *ctw_stages_take(struct ctw_stages *s, size_t to, size_t bytes, int n)
{
    struct ctw_stage *best = NULL;
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->n; i++)
        if (!s->stage[i].is_taken && is_better(&s->stage[i], best))
            best = &s->stage[i];
    if (best != NULL) {
        best->is_taken = true;
        best->is_ready = false;
        best->to = to;
        best->bytes = bytes;
        best->n_slices = best->n_unread = n;
    }
    pthread_mutex_unlock(&s->lock);
    return best;
}

static enum ctw_status cancelled(struct ctw_err *err)
{
    return ctw_fail(err, CTW_ECANCELED, "loading: cancelled");
}

enum ctw_status ctw_stages_ready(struct ctw_stages *s, struct ctw_stage *stage, bool is_taker,
                                 struct ctw_err *err)
{
    enum ctw_status st = is_taker ? wait_for_upload(s, stage, err) : CTW_OK;
    if (st == CTW_OK && is_taker && stage->p == NULL)
        st = ctw_stage_alloc(s->be, (void **)&stage->p, s->bytes, err);
    if (st != CTW_OK)
        return st;
    pthread_mutex_lock(&s->lock);
    stage->is_ready = stage->is_ready || is_taker;
    pthread_cond_broadcast(&s->changed);
    while (!stage->is_ready && !s->stop)
        pthread_cond_wait(&s->changed, &s->lock);
    bool is_ready = stage->is_ready;
    pthread_mutex_unlock(&s->lock);
    return is_ready ? CTW_OK : cancelled(err);
}

/* Waits for the device's memory. NULL: the stages were stopped. */
static char *memory_of(struct ctw_stages *s)
{
    pthread_mutex_lock(&s->lock);
    while (s->memory == NULL && !s->stop)
        pthread_cond_wait(&s->changed, &s->lock);
    s->begun_s = s->begun_s == 0 ? ctw_now_s() : s->begun_s;
    char *memory = s->stop ? NULL : s->memory;
    pthread_mutex_unlock(&s->lock);
    return memory;
}

enum ctw_status ctw_stages_upload(struct ctw_stages *s, struct ctw_stage *stage, const void *from,
                                  uint64_t *ticket, struct ctw_err *err)
{
    char *memory = memory_of(s);
    enum ctw_status st = memory != NULL ? wait_for_upload(s, stage, err) : cancelled(err);
    if (st == CTW_OK) {
        st = ctw_upload_begin(s->be, memory + stage->to, from, stage->bytes, &stage->ticket, err);
        stage->begun = st == CTW_OK;
        if (st != CTW_OK && from == stage->p)
            stage->p = NULL; /* never freed: the driver may still read it */
    }
    *ticket = stage->ticket;
    give_back(s, stage);
    return st;
}

enum ctw_status ctw_stages_read(struct ctw_stages *s, struct ctw_stage *stage, int *n_in,
                                struct ctw_err *err)
{
    uint64_t ticket;
    pthread_mutex_lock(&s->lock);
    bool is_last = --stage->n_unread == 0;
    pthread_mutex_unlock(&s->lock);
    *n_in = is_last ? stage->n_slices : 0;
    return is_last ? ctw_stages_upload(s, stage, stage->p, &ticket, err) : CTW_OK;
}

void ctw_stages_drop(struct ctw_stages *s)
{
    pthread_mutex_lock(&s->lock);
    for (int i = 0; i < s->n; i++) {
        struct ctw_stage *stage = &s->stage[i];
        stage->is_taken = stage->is_taken && stage->n_unread == 0;
    }
    pthread_mutex_unlock(&s->lock);
}
