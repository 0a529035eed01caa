/* The worker's table of models: see worker/service/queue.h. */
#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "worker/service/queue.h"

enum { BUSY_MS = 1000 }; /* before a refused client asks again */

const char *ctw_model_state_name(enum ctw_model_state state)
{
    static const char *const names[] = {[CTW_MODEL_LOADING] = "loading",
                                        [CTW_MODEL_READY] = "ready",
                                        [CTW_MODEL_FAILED] = "failed",
                                        [CTW_MODEL_CLOSING] = "unloading"};
    return names[state];
}

struct ctw_model_slot *ctw_queue_model(const struct ctw_queue *q, const char *name)
{
    if (name[0] == '\0')
        return q->n_models > 0 ? q->models[0] : NULL;
    for (int i = 0; i < q->n_models; i++) {
        if (strcmp(q->models[i]->name, name) == 0)
            return q->models[i];
    }
    return NULL;
}

/* "/models/Llama-3/" -> "Llama-3"; its beginning, where it is too long */
static bool last_name(const char *path, char out[CTW_MODEL_NAME_MAX])
{
    size_t end = strlen(path);
    while (end > 0 && path[end - 1] == '/')
        end--;
    size_t start = end;
    while (start > 0 && path[start - 1] != '/')
        start--;
    size_t n = end - start < CTW_MODEL_NAME_MAX ? end - start : CTW_MODEL_NAME_MAX - 1;
    return ctw_slice_copy((struct ctw_slice){.data = path + start, .n = n}, out,
                          CTW_MODEL_NAME_MAX) &&
           n > 0;
}

static enum ctw_status add_slot(struct ctw_queue *q, const char *path, const char *name,
                                int *retry_ms, struct ctw_err *err)
{
    const struct ctw_model_slot *same = ctw_queue_model(q, name);
    if (same != NULL && same->state != CTW_MODEL_FAILED)
        return ctw_fail(err, CTW_EINVAL,
                        "a model named %s is there already (%s): give this one another name "
                        "(serve: NAME=DIR; load: model)",
                        name, ctw_model_state_name(same->state));
    if (same != NULL) { /* another try */
        struct ctw_model_slot *again = ctw_queue_model(q, name);
        char *copy = ctw_strdup(path);
        if (copy == NULL)
            return ctw_fail(err, CTW_ENOMEM, "load: out of memory");
        ctw_free(again->path);
        again->path = copy;
        again->state = CTW_MODEL_LOADING;
        return CTW_OK;
    }
    if (q->n_models == CTW_IPC_MODELS) {
        *retry_ms = BUSY_MS;
        return ctw_fail(err, CTW_EBUSY, "%d models are loaded, which is the bound: unload one",
                        CTW_IPC_MODELS);
    }
    struct ctw_model_slot *m = ctw_calloc(1, sizeof(*m));
    char *copy = ctw_strdup(path);
    if (m == NULL || copy == NULL) {
        ctw_free(m);
        ctw_free(copy);
        return ctw_fail(err, CTW_ENOMEM, "load: out of memory");
    }
    m->path = copy;
    snprintf(m->name, sizeof(m->name), "%s", name);
    q->models[q->n_models++] = m;
    return CTW_OK;
}

enum ctw_status ctw_queue_load(struct ctw_queue *q, const char *path, const char *name,
                               char out_name[CTW_MODEL_NAME_MAX], int *retry_ms,
                               struct ctw_err *err)
{
    *retry_ms = 0;
    bool named = name != NULL && name[0] != '\0';
    bool fits = named ? ctw_slice_copy(ctw_slice_of(name), out_name, CTW_MODEL_NAME_MAX)
                      : last_name(path, out_name);
    if (!fits)
        return ctw_fail(err, CTW_EINVAL,
                        "%s: no model name of 1..%d bytes can be had from it: give one",
                        named ? name : path, CTW_MODEL_NAME_MAX - 1);
    ctw_text_clean(out_name, strlen(out_name)); /* it goes over the wire */
    pthread_mutex_lock(&q->lock);
    enum ctw_status st = ctw_queue_admits(q, err);
    if (st == CTW_OK)
        st = add_slot(q, path, out_name, retry_ms, err);
    pthread_cond_broadcast(&q->work);
    pthread_mutex_unlock(&q->lock);
    return st;
}

static enum ctw_status mark_closing(struct ctw_queue *q, const char *name, int *retry_ms,
                                    struct ctw_err *err)
{
    struct ctw_model_slot *m = name[0] == '\0' ? NULL : ctw_queue_model(q, name);
    if (m == NULL)
        return ctw_fail(err, CTW_ENOTFOUND, "no model is named \"%s\"", name);
    *retry_ms = BUSY_MS;
    if (m->state == CTW_MODEL_LOADING)
        return ctw_fail(err, CTW_EBUSY, "model %s is loading", name);
    for (const struct ctw_job *j = q->jobs; j != NULL; j = j->next) {
        if (!ctw_job_is_final(j) && strcmp(j->head.model, name) == 0)
            return ctw_fail(err, CTW_EBUSY, "model %s has unfinished jobs: cancel them first",
                            name);
    }
    *retry_ms = 0;
    m->state = CTW_MODEL_CLOSING;
    pthread_cond_broadcast(&q->work);
    return CTW_OK;
}

enum ctw_status ctw_queue_unload(struct ctw_queue *q, const char *name, int *retry_ms,
                                 struct ctw_err *err)
{
    *retry_ms = 0;
    pthread_mutex_lock(&q->lock);
    enum ctw_status st = mark_closing(q, name, retry_ms, err);
    pthread_mutex_unlock(&q->lock);
    return st;
}
