/* Opens and closes backends, and what they say of themselves. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "kernels/backend_internal.h"

static const struct ctw_backend_options no_options;

static enum ctw_status open_cuda(struct ctw_backend **out, const struct ctw_backend_options *opt,
                                 struct ctw_err *err)
{
    const struct ctw_backend_ops *ops;
    enum ctw_status st = ctw_cuda_load(&ops, err);
    return st != CTW_OK ? st : ops->open(out, opt, err);
}

enum ctw_status ctw_backend_open(struct ctw_backend **out, const char *name,
                                 const struct ctw_backend_options *opt, struct ctw_err *err)
{
    *out = NULL;
    opt = opt == NULL ? &no_options : opt;
    bool is_auto = name == NULL || strcmp(name, "auto") == 0;
    struct ctw_err no_gpu = {.msg = "requested"};
    if (is_auto || strcmp(name, "cuda") == 0) {
        enum ctw_status st = open_cuda(out, opt, is_auto ? &no_gpu : err);
        if (st == CTW_OK) {
            snprintf((*out)->reason, sizeof((*out)->reason),
                     is_auto ? "a GPU is present" : "requested");
            return CTW_OK;
        }
        /* A machine without a GPU is not an error; a mistyped option or a broken GPU is. */
        if (is_auto && st != CTW_EUNSUP)
            return ctw_fail(err, st, "%s", no_gpu.msg);
        if (!is_auto && st == CTW_EUNSUP && err != NULL) {
            struct ctw_err why = *err;
            return ctw_fail(err, st, "%s (--backend cpu needs no GPU)", why.msg);
        }
        if (!is_auto)
            return st;
    } else if (strcmp(name, "cpu") != 0) {
        return ctw_fail(err, CTW_EINVAL,
                        "backend \"%s\" is unknown; this program has: auto, cpu, cuda", name);
    }
    enum ctw_status st = ctw_backend_cpu.open(out, opt, err);
    if (st == CTW_OK)
        snprintf((*out)->reason, sizeof((*out)->reason), "%.*s", (int)sizeof((*out)->reason) - 1,
                 no_gpu.msg);
    return st;
}

void ctw_backend_close(struct ctw_backend *be)
{
    if (be != NULL) {
        ctw_inputs_free(be);
        be->ops->close(be);
    }
}

enum ctw_status ctw_backend_count(const struct ctw_backend *be, int *n, struct ctw_err *err)
{
    return be->ops->count(n, err);
}

enum ctw_status ctw_backend_find(const char *name, const char *uuid, int *device,
                                 struct ctw_err *err)
{
    const struct ctw_backend_ops *ops;
    char found[48];
    int n, n_found = 0;
    if (name != NULL && strcmp(name, "cpu") == 0)
        return ctw_fail(err, CTW_EINVAL, "%s is a GPU, and --backend is cpu", uuid);
    enum ctw_status st = ctw_cuda_load(&ops, err);
    if (st == CTW_OK)
        st = ops->count(&n, err);
    for (int i = 0; st == CTW_OK && i < n; i++) {
        st = ops->uuid(i, found, err);
        if (st != CTW_OK || strncasecmp(found, uuid, strlen(uuid)) != 0)
            continue;
        *device = i;
        n_found++;
    }
    if (st == CTW_OK && n_found != 1)
        st = ctw_fail(err, CTW_EINVAL,
                      "%s: %d of the %d GPUs that this program sees have a UUID that begins so; "
                      "`nvidia-smi -L` lists those of the machine, and CUDA_VISIBLE_DEVICES may "
                      "hide some",
                      uuid, n_found, n);
    return st;
}

void ctw_backend_get_info(const struct ctw_backend *be, struct ctw_backend_info *out)
{
    *out = (struct ctw_backend_info){0};
    be->ops->info(be, out);
    memcpy(out->reason, be->reason, sizeof(out->reason));
}

void ctw_backend_describe(const struct ctw_backend *be, char *buf, size_t cap)
{
    be->ops->describe(be, buf, cap);
}

const struct ctw_backend_traits *ctw_backend_traits(const struct ctw_backend *be)
{
    return &be->ops->traits;
}

int64_t ctw_backend_head_rows(const struct ctw_backend *be, enum ctw_dtype dtype, int64_t k,
                              bool plain)
{
    return be->ops->head_rows(be, dtype, k, plain);
}
