/* The state of the whole worker. */
#include "worker/service/requests/handlers.h"

/* The state by the models, once all models of the command line are loaded. */
static const char *models_state(const struct ctw_service *service, const char **message)
{
    const struct ctw_queue *q = service->queue;
    const struct ctw_model_slot *m = ctw_models_in_state(&q->models, CTW_MODEL_LOADING, false);
    if (ctw_models_in_state(&q->models, CTW_MODEL_READY, false) != NULL)
        return "ready";
    if (m != NULL) {
        *message = m->name; /* not the path, which tcp clients must not see */
        return "loading";
    }
    m = ctw_models_in_state(&q->models, CTW_MODEL_FAILED, false);
    if (m != NULL) {
        *message = m->error.msg;
        return "failed";
    }
    *message =
        service->allow_load != NULL
            ? "no model is loaded: load one below the folder of --allow-load"
            : "no model is loaded, and clients cannot load one without --allow-load: start another "
              "worker";
    return "empty";
}

const char *ctw_service_state(const struct ctw_service *service, const char **message)
{
    const struct ctw_queue *q = service->queue;
    *message = "";
    if (q->life.fatal.status != CTW_OK) {
        *message = q->life.fatal.msg;
        return "failed";
    }
    const struct ctw_model_slot *m = ctw_models_in_state(&q->models, CTW_MODEL_FAILED, true);
    if (m != NULL) {
        *message = m->error.msg;
        return "failed";
    }
    if (q->life.draining)
        return "draining";
    m = ctw_models_in_state(&q->models, CTW_MODEL_LOADING, true);
    if (m != NULL) {
        *message = m->name; /* not the path, as above */
        return "loading";
    }
    return models_state(service, message);
}
