#include "worker/service/jobs/models.h"

#include <stdio.h>
#include <string.h>

#include "base/mem.h"
#include "ipc/codec.h"

const char *ctw_model_state_name(enum ctw_model_state state)
{
    static const char *const names[] = {[CTW_MODEL_LOADING] = "loading",
                                        [CTW_MODEL_READY] = "ready",
                                        [CTW_MODEL_FAILED] = "failed",
                                        [CTW_MODEL_CLOSING] = "unloading"};
    return names[state];
}

/* ---- looking up ---- */

struct ctw_model_slot *ctw_models_find(const struct ctw_models *t, const char *name)
{
    if (name[0] == '\0')
        return t->n > 0 ? t->slots[0] : NULL;
    for (int i = 0; i < t->n; i++) {
        if (strcmp(t->slots[i]->name, name) == 0)
            return t->slots[i];
    }
    return NULL;
}

const struct ctw_model_slot *ctw_models_in_state(const struct ctw_models *t,
                                                 enum ctw_model_state state, bool initial)
{
    for (int i = 0; i < t->n; i++) {
        if (t->slots[i]->state == state && (t->slots[i]->initial || !initial))
            return t->slots[i];
    }
    return NULL;
}

/* ---- names ---- */

/* "/models/Llama-3/" -> "Llama-3"; truncated if it is too long */
static bool last_name(const char *path, char out[CTW_MODEL_NAME_MAX])
{
    size_t end = strlen(path);
    while (end > 0 && path[end - 1] == '/')
        end--;
    size_t start = end;
    while (start > 0 && path[start - 1] != '/')
        start--;
    size_t n = end - start < CTW_MODEL_NAME_MAX ? end - start : CTW_MODEL_NAME_MAX - 1;
    return ctw_span_copy((struct ctw_span){.data = path + start, .n = n}, out,
                         CTW_MODEL_NAME_MAX) &&
           n > 0;
}

enum ctw_status ctw_model_choose_name(const char *path, const char *name,
                                      char out[CTW_MODEL_NAME_MAX], struct ctw_err *err)
{
    bool named = name != NULL && name[0] != '\0';
    bool fits =
        named ? ctw_span_copy(ctw_span_of(name), out, CTW_MODEL_NAME_MAX) : last_name(path, out);
    if (!fits)
        return ctw_fail(err, CTW_EINVAL, "%s gives no model name of 1..%d bytes: give a name",
                        named ? name : path, CTW_MODEL_NAME_MAX - 1);
    ctw_text_clean(out, strlen(out)); /* it goes over the wire */
    return CTW_OK;
}

/* ---- the table ---- */

enum ctw_status ctw_models_add(struct ctw_models *t, const char *path, const char *name,
                               const char *dtype, int *retry_ms, struct ctw_err *err)
{
    struct ctw_model_slot *same = ctw_models_find(t, name);
    if (same != NULL && same->state != CTW_MODEL_FAILED)
        return ctw_fail(err, CTW_EINVAL,
                        "a model named %s exists already (%s): give the new model another name "
                        "(serve: NAME=DIR; load: model)",
                        name, ctw_model_state_name(same->state));
    if (same != NULL) { /* another attempt */
        char *copy = ctw_strdup(path);
        if (copy == NULL)
            return ctw_fail(err, CTW_ENOMEM, "load: out of memory");
        ctw_free(same->path);
        same->path = copy;
        same->dtype = dtype != NULL ? dtype : same->dtype;
        same->state = CTW_MODEL_LOADING;
        return CTW_OK;
    }
    if (t->n == CTW_IPC_MODELS) {
        *retry_ms = CTW_MODELS_BUSY_MS;
        return ctw_fail(err, CTW_EBUSY, "%d models are loaded, the maximum: unload one",
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
    m->dtype = dtype;
    snprintf(m->name, sizeof(m->name), "%s", name);
    t->slots[t->n++] = m;
    return CTW_OK;
}

void ctw_models_mark_initial(struct ctw_models *t)
{
    for (int i = 0; i < t->n; i++)
        t->slots[i]->initial = true;
}

void ctw_models_take_out(struct ctw_models *t, const struct ctw_model_slot *m)
{
    int i = 0;
    while (t->slots[i] != m)
        i++;
    t->n--;
    for (; i < t->n; i++)
        t->slots[i] = t->slots[i + 1];
}

void ctw_models_fini(struct ctw_models *t)
{
    for (int i = 0; i < t->n; i++)
        ctw_model_destroy(t->slots[i]);
    t->n = 0;
}

/* ---- a model's life ---- */

void ctw_models_opened(struct ctw_models *t, struct ctw_model_slot *m, struct ctw_engine *engine,
                       const struct ctw_engine_info *info)
{
    m->engine = engine;
    m->info = *info;
    m->opened = ++t->n_opened;
    m->state = CTW_MODEL_READY;
}

struct ctw_engine *ctw_model_fail(struct ctw_model_slot *m, const struct ctw_err *err)
{
    struct ctw_engine *engine = m->engine;
    m->error = *err;
    m->state = CTW_MODEL_FAILED;
    m->engine = NULL;
    if (engine != NULL)
        m->initial = false; /* clients may still fetch results: the worker does not end */
    return engine;
}

void ctw_model_start_closing(struct ctw_model_slot *m)
{
    m->state = CTW_MODEL_CLOSING;
}

int64_t ctw_models_pass_tokens(const struct ctw_model_slot *m,
                               const struct ctw_model_slot *reference)
{
    int64_t pass_tokens;
    if (reference != NULL &&
        ctw_engines_comparable(m->engine, reference->engine, &pass_tokens, NULL) == CTW_OK)
        return pass_tokens * m->info.n_devices;
    return m->info.call_tokens;
}

void ctw_model_describe(struct ctw_model_slot *m)
{
    ctw_engine_describe(m->engine, m->products, sizeof(m->products));
}

void ctw_model_destroy(struct ctw_model_slot *m)
{
    ctw_engine_close(m->engine);
    ctw_free(m->path);
    ctw_free(m);
}
