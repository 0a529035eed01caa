/* The calls of the backends' table that concern memory, uploads and fences: backend.h has their
 * rules, and there is nothing to check. */
#include "kernels/backend_internal.h"

static size_t inputs_bytes(const struct ctw_reserve *r)
{
    return (size_t)r->n_tok * (size_t)r->input_elems * ctw_dtype_bytes(r->dtype);
}

void ctw_inputs_free(struct ctw_backend *be)
{
    ctw_device_free(be, be->inputs);
    be->inputs = NULL;
    be->inputs_bytes = 0;
}

enum ctw_status ctw_inputs_reserve(struct ctw_backend *be, size_t bytes, struct ctw_err *err)
{
    if (bytes <= be->inputs_bytes)
        return CTW_OK;
    ctw_inputs_free(be);
    enum ctw_status st = ctw_device_alloc(be, &be->inputs, bytes, err);
    be->inputs_bytes = st == CTW_OK ? bytes : 0;
    return st;
}

size_t ctw_backend_scratch_bytes(const struct ctw_backend *be, const struct ctw_reserve *r)
{
    return be->ops->scratch_bytes(be, r) + inputs_bytes(r);
}

enum ctw_status ctw_backend_reserve(struct ctw_backend *be, const struct ctw_reserve *r,
                                    struct ctw_err *err)
{
    enum ctw_status st = be->ops->reserve(be, r, err);
    return st == CTW_OK ? ctw_inputs_reserve(be, inputs_bytes(r), err) : st;
}

void ctw_backend_trim(struct ctw_backend *be)
{
    ctw_inputs_free(be);
    be->ops->trim(be);
}

uint64_t ctw_backend_memory_free(const struct ctw_backend *be)
{
    return be->ops->memory_free(be);
}

enum ctw_status ctw_backend_sync(struct ctw_backend *be, struct ctw_err *err)
{
    return be->ops->sync(be, err);
}

enum ctw_status ctw_device_alloc(struct ctw_backend *be, void **out, size_t bytes,
                                 struct ctw_err *err)
{
    *out = NULL;
    return be->ops->alloc(be, out, bytes, err);
}

void ctw_device_free(struct ctw_backend *be, void *p)
{
    if (p != NULL)
        be->ops->free(be, p);
}

enum ctw_status ctw_device_upload(struct ctw_backend *be, void *dst, const void *src, size_t bytes,
                                  struct ctw_err *err)
{
    return be->ops->upload(be, dst, src, bytes, err);
}

enum ctw_status ctw_device_download(struct ctw_backend *be, void *dst, const void *src,
                                    size_t bytes, struct ctw_err *err)
{
    return be->ops->download(be, dst, src, bytes, err);
}

enum ctw_status ctw_device_copy(struct ctw_backend *be, void *dst, const void *src, size_t bytes,
                                struct ctw_err *err)
{
    return be->ops->copy(be, dst, src, bytes, err);
}

enum ctw_status ctw_device_zero(struct ctw_backend *be, void *p, size_t bytes, struct ctw_err *err)
{
    return bytes == 0 ? CTW_OK : be->ops->zero(be, p, bytes, err);
}

enum ctw_status ctw_stage_alloc(struct ctw_backend *be, void **out, size_t bytes,
                                struct ctw_err *err)
{
    *out = NULL;
    return be->ops->stage_alloc(be, out, bytes, err);
}

void ctw_stage_free(struct ctw_backend *be, void *p)
{
    if (p != NULL)
        be->ops->stage_free(be, p);
}

enum ctw_status ctw_upload_begin(struct ctw_backend *be, void *dst, const void *stage, size_t bytes,
                                 uint64_t *ticket, struct ctw_err *err)
{
    return be->ops->upload_begin(be, dst, stage, bytes, ticket, err);
}

enum ctw_status ctw_peer_begin(struct ctw_backend *be, void *dst, struct ctw_backend *from,
                               const void *src, size_t bytes, uint64_t *ticket, struct ctw_err *err)
{
    if (from->ops != be->ops)
        return ctw_fail(err, CTW_EINTERNAL, "peer copy: needs two devices of one backend");
    return be->ops->peer_begin(be, dst, from, src, bytes, ticket, err);
}

enum ctw_link ctw_peer_link(struct ctw_backend *be, struct ctw_backend *from)
{
    return from->ops == be->ops ? be->ops->peer_link(be, from) : CTW_LINK_HOST;
}

enum ctw_status ctw_upload_wait(struct ctw_backend *be, uint64_t ticket, struct ctw_err *err)
{
    return be->ops->upload_wait(be, ticket, err);
}

enum ctw_status ctw_upload_join(struct ctw_backend *be, struct ctw_err *err)
{
    return be->ops->upload_join(be, err);
}

enum ctw_status ctw_fence_record(struct ctw_backend *be, uint64_t *fence, struct ctw_err *err)
{
    return be->ops->fence_record(be, fence, err);
}

enum ctw_status ctw_fence_wait(struct ctw_backend *be, uint64_t fence, struct ctw_err *err)
{
    return be->ops->fence_wait(be, fence, err);
}
