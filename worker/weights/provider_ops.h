/* Private to the layer providers; all other code includes worker/weights/provider.h. */
#ifndef CTW_WORKER_PROVIDER_OPS_H
#define CTW_WORKER_PROVIDER_OPS_H

#include "worker/weights/provider.h"

struct ctw_provider_ops {
    enum ctw_status (*acquire)(struct ctw_provider *p, int layer, const struct ctw_layer_data **out,
                               struct ctw_err *err);
    void (*release)(struct ctw_provider *p, int layer);
    bool (*needs_files)(struct ctw_provider *p);
    void (*close)(struct ctw_provider *p);
    /* All four may be NULL: then each layer has one part, the whole layer. */
    int (*parts)(struct ctw_provider *p, int layer);
    enum ctw_status (*acquire_part)(struct ctw_provider *p, int layer, int part,
                                    struct ctw_err *err);
    void (*release_part)(struct ctw_provider *p, int layer, int part);
    void (*repeat)(struct ctw_provider *p, int64_t n);
};

/* The first member of every provider's own struct. */
struct ctw_provider {
    const struct ctw_provider_ops *ops;
    atomic_bool *waiting; /* argument of ctw_provider_watch(); NULL: none */
};

#endif
