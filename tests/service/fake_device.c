/*
 * A backend for tests, loaded in place of the CUDA backend (CTWORKER_CUDA_LIBRARY). It computes
 * with the CPU backend's kernels, so its scores equal the CPU's bit for bit, but it behaves like a
 * GPU: separate memory, uploads that take time, weights announced in advance, faults. --cpu-variant
 * and --threads choose the kernels; --cuda-variant and --device have the same meaning as for a GPU.
 * The backend checks that the operands of every operation lie in the memory that they claim to be
 * in. fake_device_gpu.h describes how to make the backend fail.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/mem.h"
#include "fake_device_gpu.h"
#include "fake_device_slots.h"
#include "kernels/backend.h"
#include "kernels/contract.h"

struct fake {
    struct ctw_backend backend; /* first: a struct ctw_backend * is a struct fake * */
    struct ctw_backend *cpu;
    struct gpu *gpu;
    int device;
    char variant[16];
    uint64_t joined;  /* uploads before this ticket precede the next operation */
    uint64_t scratch; /* bytes taken by reserve() */
    struct slot slot[CTW_N_SLOTS];
    uint64_t n_linear, n_prepared, n_trims;
};

static const struct ctw_backend_ops fake_ops; /* at the end */

static struct fake *fake_of(struct ctw_backend *be)
{
    return (struct fake *)be;
}

/* ---- opening ------------------------------------------------------------------------------ */

static void fake_close(struct ctw_backend *be)
{
    struct fake *f = fake_of(be);
    for (int i = 0; i < CTW_N_SLOTS; i++)
        slot_empty(&f->slot[i]);
    ctw_backend_cpu.close(f->cpu);
    gpu_give(f->gpu, f->scratch);
    gpu_close(f->gpu);
    ctw_free(f);
}

static enum ctw_status fake_open(struct ctw_backend **out, const struct ctw_backend_options *opt,
                                 struct ctw_err *err)
{
    struct fake *f = ctw_calloc(1, sizeof(*f));
    if (f == NULL)
        return ctw_fail(err, CTW_ENOMEM, "fake: out of memory");
    f->backend.ops = &fake_ops;
    f->device = opt->device;
    snprintf(f->variant, sizeof(f->variant), "%s",
             opt->cuda_variant == NULL ? "hopper" : opt->cuda_variant);
    enum ctw_status st = ctw_backend_cpu.open(&f->cpu, opt, err);
    if (st == CTW_OK) {
        st = gpu_open(&f->gpu, opt->device, err);
        if (st != CTW_OK)
            ctw_backend_cpu.close(f->cpu);
    }
    if (st != CTW_OK) {
        ctw_free(f);
        return st;
    }
    *out = &f->backend;
    return CTW_OK;
}

static enum ctw_status fake_uuid(int device, char out[48], struct ctw_err *err)
{
    (void)err;
    snprintf(out, 48, "GPU-%08x-0000-0000-0000-000000000000", device);
    return CTW_OK;
}

static void fake_info(const struct ctw_backend *be, struct ctw_backend_info *out)
{
    const struct fake *f = (const struct fake *)be;
    ctw_backend_cpu.info(f->cpu, out);
    snprintf(out->numerics, sizeof(out->numerics), "fake-%s%.*d", out->variant,
             gpu_kind(f->gpu) > 0, gpu_kind(f->gpu));
    snprintf(out->device, sizeof(out->device), "fake GPU %d", f->device);
    snprintf(out->pci, sizeof(out->pci), "00000000:%02X:00.0", 0x10 + f->device);
    (void)fake_uuid(f->device, out->uuid, NULL);
    out->backend = "cuda";
    out->variant = f->variant;
    out->n_threads = 0;
    out->memory_total = gpu_memory_total(f->gpu);
}

static void fake_describe(const struct ctw_backend *be, char *buf, size_t cap)
{
    const struct fake *f = (const struct fake *)be;
    int n = snprintf(buf, cap, "products %llu\nprepared %llu\ntrims %llu\n",
                     (unsigned long long)f->n_linear, (unsigned long long)f->n_prepared,
                     (unsigned long long)f->n_trims);
    if (n >= 0 && (size_t)n < cap)
        gpu_describe(f->gpu, buf + n, cap - (size_t)n);
}

/* ---- memory ------------------------------------------------------------------------------- */

static size_t fake_scratch_bytes(const struct ctw_backend *be, const struct ctw_reserve *r)
{
    size_t bytes = (size_t)(r->n_tok * r->max_n) * ctw_dtype_bytes(r->dtype);
    (void)be;
    for (int s = 0; s < CTW_N_SLOTS; s++)
        bytes += (size_t)r->slot_elems[s] * ctw_dtype_bytes(r->dtype);
    return bytes;
}

static enum ctw_status fake_reserve(struct ctw_backend *be, const struct ctw_reserve *r,
                                    struct ctw_err *err)
{
    struct fake *f = fake_of(be);
    size_t bytes = fake_scratch_bytes(be, r);
    if (bytes <= f->scratch)
        return CTW_OK;
    enum ctw_status st = gpu_take(f->gpu, bytes - f->scratch, err);
    if (st == CTW_OK)
        f->scratch = bytes;
    return st;
}

static void fake_trim(struct ctw_backend *be)
{
    struct fake *f = fake_of(be);
    gpu_give(f->gpu, f->scratch);
    f->scratch = 0;
    for (int i = 0; i < CTW_N_SLOTS; i++)
        slot_empty(&f->slot[i]);
    f->n_trims++;
}

static uint64_t fake_memory_free(const struct ctw_backend *be)
{
    return gpu_memory_free(((const struct fake *)be)->gpu);
}

static enum ctw_status fake_alloc(struct ctw_backend *be, void **out, size_t bytes,
                                  struct ctw_err *err)
{
    return gpu_alloc(fake_of(be)->gpu, out, bytes, err);
}

static void fake_free(struct ctw_backend *be, void *p)
{
    gpu_free(fake_of(be)->gpu, p);
}

static enum ctw_status fake_sync(struct ctw_backend *be, struct ctw_err *err)
{
    return gpu_sync(fake_of(be)->gpu, fake_of(be)->joined, err);
}

static enum ctw_status fake_upload(struct ctw_backend *be, void *dst, const void *src, size_t bytes,
                                   struct ctw_err *err)
{
    const struct fake *f = fake_of(be);
    gpu_check_write(f->gpu, dst, bytes, "upload: the target");
    gpu_check_host(f->gpu, src, "upload: the source");
    enum ctw_status st = fake_sync(be, err);
    if (st == CTW_OK && bytes > 0)
        memcpy(dst, src, bytes);
    return st;
}

static enum ctw_status fake_download(struct ctw_backend *be, void *dst, const void *src,
                                     size_t bytes, struct ctw_err *err)
{
    const struct fake *f = fake_of(be);
    gpu_check_host(f->gpu, dst, "download: the target");
    gpu_check(f->gpu, src, bytes, "download: the source");
    enum ctw_status st = fake_sync(be, err);
    if (st == CTW_OK && bytes > 0)
        memcpy(dst, src, bytes);
    return st;
}

static enum ctw_status fake_copy(struct ctw_backend *be, void *dst, const void *src, size_t bytes,
                                 struct ctw_err *err)
{
    const struct fake *f = fake_of(be);
    bool lost;
    gpu_check_write(f->gpu, dst, bytes, "copy: the target");
    gpu_check(f->gpu, src, bytes, "copy: the source");
    enum ctw_status st = gpu_begin(f->gpu, f->joined, &lost, err);
    if (st == CTW_OK && !lost && bytes > 0)
        memmove(dst, src, bytes);
    return st;
}

static enum ctw_status fake_zero(struct ctw_backend *be, void *p, size_t bytes, struct ctw_err *err)
{
    struct fake *f = fake_of(be);
    bool lost;
    gpu_check_write(f->gpu, p, bytes, "zero: the target");
    enum ctw_status st = gpu_begin(f->gpu, f->joined, &lost, err);
    return st != CTW_OK || lost ? st : ctw_backend_cpu.zero(f->cpu, p, bytes, err);
}

/* ---- uploads of other threads ------------------------------------------------------------- */

static enum ctw_status fake_stage_alloc(struct ctw_backend *be, void **out, size_t bytes,
                                        struct ctw_err *err)
{
    return gpu_stage_alloc(fake_of(be)->gpu, out, bytes, err);
}

static void fake_stage_free(struct ctw_backend *be, void *p)
{
    gpu_stage_free(fake_of(be)->gpu, p);
}

static enum ctw_status fake_upload_begin(struct ctw_backend *be, void *dst, const void *stage,
                                         size_t bytes, uint64_t *ticket, struct ctw_err *err)
{
    return gpu_upload_begin(fake_of(be)->gpu, dst, stage, bytes, ticket, err);
}

static enum ctw_status fake_peer_begin(struct ctw_backend *be, void *dst, struct ctw_backend *from,
                                       const void *src, size_t bytes, uint64_t *ticket,
                                       struct ctw_err *err)
{
    return gpu_peer_begin(fake_of(be)->gpu, dst, fake_of(from)->gpu, src, bytes, ticket, err);
}

static enum ctw_link fake_peer_link(struct ctw_backend *be, struct ctw_backend *from)
{
    return gpu_link(fake_of(be)->gpu, fake_of(from)->gpu);
}

static enum ctw_status fake_upload_wait(struct ctw_backend *be, uint64_t ticket,
                                        struct ctw_err *err)
{
    return gpu_upload_wait(fake_of(be)->gpu, ticket, err);
}

static enum ctw_status fake_upload_join(struct ctw_backend *be, struct ctw_err *err)
{
    struct fake *f = fake_of(be);
    f->joined = gpu_uploads_begun(f->gpu);
    return gpu_sync(f->gpu, 0, err);
}

static enum ctw_status fake_fence_record(struct ctw_backend *be, uint64_t *fence,
                                         struct ctw_err *err)
{
    return gpu_fence_record(fake_of(be)->gpu, fence, err);
}

static enum ctw_status fake_fence_wait(struct ctw_backend *be, uint64_t fence, struct ctw_err *err)
{
    return gpu_fence_wait(fake_of(be)->gpu, fence, err);
}

/* ---- weights ------------------------------------------------------------------------------ */

static void read_bias(const struct fake *f, const struct ctw_shard *s, const char *what)
{
    if (s->bias != NULL)
        gpu_read(f->gpu, s->bias, area(1, 0, (s->n - 1) * ctw_shard_step(s) + 1, s->bias_dtype),
                 what);
}

static void read_shard(const struct fake *f, const struct ctw_shard *s, const char *what)
{
    for (int i = 0; i < CTW_N_PARTS; i++)
        if (s->data->part[i] != NULL)
            gpu_read(f->gpu, s->data->part[i], s->weight->part[i].bytes, what);
    read_bias(f, s, what);
}

static enum ctw_status fake_prepare(struct ctw_backend *be, const struct ctw_op_linear *op,
                                    struct ctw_err *err)
{
    struct fake *f = fake_of(be);
    struct slot *slot = &f->slot[op->slot];
    bool lost;
    slot_empty(slot);
    for (int i = 0; i < op->n_shards; i++)
        read_shard(f, &op->shards[i], "prepare: a weight");
    enum ctw_status st = gpu_begin(f->gpu, f->joined, &lost, err);
    if (st != CTW_OK || lost)
        return st;
    return slot_fill(slot, op, err);
}

/* The largest of n rows, and 1; without rows, n. */
static int64_t n_rows_of(const struct fake *f, const int32_t *rows, int64_t n)
{
    int64_t most = rows == NULL ? n : 0;
    if (rows != NULL)
        gpu_check(f->gpu, rows, (size_t)n * sizeof(*rows), "linear: rows");
    for (int64_t t = 0; rows != NULL && t < n; t++)
        most = rows[t] >= most ? rows[t] + 1 : most;
    return most;
}

/* x and y [.., n], gathered and scattered. */
static void check_rows(const struct fake *f, const struct ctw_op_linear *op, int64_t n)
{
    enum ctw_dtype y_dtype = op->epilogue == CTW_EPI_ADD ? op->residual_dtype : op->dtype;
    if (op->epilogue == CTW_EPI_LOGITS || op->epilogue == CTW_EPI_SCATTER)
        y_dtype = CTW_F32;
    gpu_check(
        f->gpu, op->x,
        area(n_rows_of(f, op->x_rows, op->n_tok), op->ldx, op->shards[0].weight->k, op->dtype),
        "linear: x");
    gpu_check(f->gpu, op->y, area(n_rows_of(f, op->y_rows, op->n_tok), op->ldy, n, y_dtype),
              "linear: y");
    gpu_check_any(f->gpu, op->x_weight, (size_t)op->n_tok * sizeof(float), "linear: x_weight");
    gpu_check_any(f->gpu, op->y_weight, (size_t)op->n_tok * sizeof(float), "linear: y_weight");
}

static enum ctw_status fake_linear(struct ctw_backend *be, const struct ctw_op_linear *op,
                                   struct ctw_err *err)
{
    struct fake *f = fake_of(be);
    struct ctw_shard shards[CTW_MAX_SHARDS];
    int64_t n = 0;
    const struct slot *slot = &f->slot[op->slot];
    bool lost, prepared = slot_has(slot, op);
    for (int i = 0; i < op->n_shards; i++) {
        if (!prepared || ctw_weight_is_dense(op->shards[i].weight))
            read_shard(f, &op->shards[i], "linear: a weight");
        else
            read_bias(f, &op->shards[i], "linear: a bias");
        n += op->shards[i].n;
    }
    n = op->epilogue == CTW_EPI_GATE ? n / 2 : n;
    check_rows(f, op, n);
    enum ctw_status st = gpu_begin(f->gpu, f->joined, &lost, err);
    if (st != CTW_OK || lost)
        return st;
    f->n_linear++;
    f->n_prepared += prepared;
    if (!prepared)
        return ctw_backend_cpu.linear(f->cpu, op, err);
    const struct ctw_op_linear own = slot_product(slot, op, shards);
    return ctw_backend_cpu.linear(f->cpu, &own, err);
}

static enum ctw_status fake_decode(struct ctw_backend *be, const struct ctw_op_decode *op,
                                   struct ctw_err *err)
{
    struct fake *f = fake_of(be);
    int64_t k = op->shard->weight->k;
    bool lost;
    read_shard(f, op->shard, "decode: the weight");
    gpu_check(f->gpu, op->dst, area(op->n_rows, k, k, op->dtype), "decode: dst");
    enum ctw_status st = gpu_begin(f->gpu, f->joined, &lost, err);
    return st != CTW_OK || lost ? st : ctw_backend_cpu.decode(f->cpu, op, err);
}

/* ---- the other operations ----------------------------------------------------------------- */

static enum ctw_status fake_embed(struct ctw_backend *be, const struct ctw_op_embed *op,
                                  struct ctw_err *err)
{
    struct fake *f = fake_of(be);
    int64_t k = op->table->weight->k;
    bool lost;
    read_shard(f, op->table, "embed: the table");
    gpu_check(f->gpu, op->tokens, (size_t)op->n_tok * sizeof(*op->tokens), "embed: tokens");
    gpu_check(f->gpu, op->y, area(op->n_tok, k, k, op->dtype), "embed: y");
    enum ctw_status st = gpu_begin(f->gpu, f->joined, &lost, err);
    return st != CTW_OK || lost ? st : ctw_backend_cpu.embed(f->cpu, op, err);
}

static enum ctw_status fake_norm(struct ctw_backend *be, const struct ctw_op_norm *op,
                                 struct ctw_err *err)
{
    struct fake *f = fake_of(be);
    int64_t n_x = op->rows == NULL ? op->n_tok : 0, width = op->n_groups * op->dim;
    int64_t n_weights = op->own_weights ? width : op->dim;
    bool lost;
    if (op->weight != NULL)
        gpu_read(f->gpu, op->weight, area(1, 0, n_weights, op->weight_dtype), "norm: weight");
    if (op->bias != NULL)
        gpu_read(f->gpu, op->bias, area(1, 0, n_weights, op->bias_dtype), "norm: bias");
    gpu_check(f->gpu, op->y, area(op->n_tok, op->ldy, width, op->dtype), "norm: y");
    gpu_check_any(f->gpu, op->rows, (size_t)op->n_tok * sizeof(*op->rows), "norm: rows");
    for (int64_t t = 0; op->rows != NULL && t < op->n_tok; t++)
        n_x = op->rows[t] >= n_x ? op->rows[t] + 1 : n_x;
    gpu_check(f->gpu, op->x, area(n_x, op->ldx, width, op->x_dtype), "norm: x");
    gpu_check_any(f->gpu, op->bad, (size_t)n_x * sizeof(*op->bad), "norm: bad");
    enum ctw_status st = gpu_begin(f->gpu, f->joined, &lost, err);
    return st != CTW_OK || lost ? st : ctw_backend_cpu.norm(f->cpu, op, err);
}

static enum ctw_status fake_act(struct ctw_backend *be, const struct ctw_op_act *op,
                                struct ctw_err *err)
{
    struct fake *f = fake_of(be);
    bool lost;
    gpu_check(f->gpu, op->x, area(op->n_tok, op->ldx, op->dim, op->dtype), "act: x");
    gpu_check(f->gpu, op->y, area(op->n_tok, op->ldy, op->dim, op->dtype), "act: y");
    gpu_check_any(f->gpu, op->up, area(op->n_tok, op->ldup, op->dim, op->dtype), "act: up");
    enum ctw_status st = gpu_begin(f->gpu, f->joined, &lost, err);
    return st != CTW_OK || lost ? st : ctw_backend_cpu.act(f->cpu, op, err);
}

static enum ctw_status fake_qkv(struct ctw_backend *be, const struct ctw_op_qkv *op,
                                struct ctw_err *err)
{
    struct fake *f = fake_of(be);
    int64_t q = (int64_t)op->n_head * op->head, kv = (int64_t)op->n_kv * op->head;
    int32_t last = 0;
    bool lost;
    gpu_check(f->gpu, op->qkv, area(op->n_tok, op->columns.ld, op->columns.ld, op->dtype),
              "qkv: qkv");
    gpu_check(f->gpu, op->q, area(op->n_tok, q, q, op->dtype), "qkv: q");
    if (op->k != NULL) {
        gpu_check(f->gpu, op->k, area(op->n_tok, kv, kv, op->dtype), "qkv: k");
        if (op->v != NULL)
            gpu_check(f->gpu, op->v, area(op->n_tok, kv, kv, op->dtype), "qkv: v");
    }
    if (op->q_norm != NULL)
        gpu_read(f->gpu, op->q_norm, area(1, 0, op->head, op->norm_dtype), "qkv: q_norm");
    if (op->k_norm != NULL)
        gpu_read(f->gpu, op->k_norm, area(1, 0, op->head, op->norm_dtype), "qkv: k_norm");
    if ((op->rot_dim > 0 || op->q_factor != NULL) && op->n_tok > 0) {
        gpu_check(f->gpu, op->positions, (size_t)op->n_tok * sizeof(*op->positions),
                  "qkv: positions");
        for (int64_t t = 0; t < op->n_tok; t++)
            last = op->positions[t] > last ? op->positions[t] : last;
        if (op->rot_dim > 0)
            gpu_check(f->gpu, op->cos_sin, area(last + 1, op->rot_dim, op->rot_dim, CTW_F32),
                      "qkv: cos_sin");
        if (op->q_factor != NULL)
            gpu_check(f->gpu, op->q_factor, area(1, 0, last + 1, CTW_F32), "qkv: q_factor");
    }
    enum ctw_status st = gpu_begin(f->gpu, f->joined, &lost, err);
    return st != CTW_OK || lost ? st : ctw_backend_cpu.qkv(f->cpu, op, err);
}

static enum ctw_status fake_attention(struct ctw_backend *be, const struct ctw_op_attention *op,
                                      struct ctw_err *err)
{
    struct fake *f = fake_of(be);
    int64_t q = (int64_t)op->n_head * op->head, kv = (int64_t)op->n_kv * op->head;
    int64_t values = (int64_t)op->n_kv * op->head_v, out = (int64_t)op->n_head * op->head_v;
    int64_t n_q = 0, n_kv = 0;
    bool lost;
    for (int64_t i = 0; i < op->n_seqs; i++) {
        const struct ctw_attn_seq *s = &op->seqs[i];
        n_q = s->q_row + s->n_q > n_q ? s->q_row + s->n_q : n_q;
        for (int r = 0; r < s->n_runs; r++)
            n_kv =
                s->runs[r].row + s->runs[r].n_tok > n_kv ? s->runs[r].row + s->runs[r].n_tok : n_kv;
    }
    gpu_check(f->gpu, op->q, area(n_q, q, q, op->dtype), "attention: q");
    gpu_check(f->gpu, op->k, area(n_kv, kv, kv, op->dtype), "attention: k");
    gpu_check(f->gpu, op->v, area(n_kv, values, values, op->dtype), "attention: v");
    gpu_check(f->gpu, op->out, area(n_q, out, out, op->dtype), "attention: out");
    gpu_check_any(f->gpu, op->alibi, (size_t)op->n_head * sizeof(float), "attention: alibi");
    if (op->sinks != NULL)
        gpu_read(f->gpu, op->sinks, area(1, 0, op->n_head, op->sinks_dtype), "attention: sinks");
    enum ctw_status st = gpu_begin(f->gpu, f->joined, &lost, err);
    return st != CTW_OK || lost ? st : ctw_backend_cpu.attention(f->cpu, op, err);
}

static enum ctw_status fake_quantise(struct ctw_backend *be, const struct ctw_op_quantise *op,
                                     struct ctw_err *err)
{
    struct fake *f = fake_of(be);
    bool lost;
    gpu_check_any(f->gpu, op->rows, (size_t)op->n_tok * sizeof(*op->rows), "quantise: rows");
    gpu_check(f->gpu, op->y, area(op->n_tok, op->ldy, op->dim, op->dtype), "quantise: y");
    enum ctw_status st = gpu_begin(f->gpu, f->joined, &lost, err);
    return st != CTW_OK || lost ? st : ctw_backend_cpu.quantise(f->cpu, op, err);
}

static enum ctw_status fake_rotate(struct ctw_backend *be, const struct ctw_op_rotate *op,
                                   struct ctw_err *err)
{
    struct fake *f = fake_of(be);
    size_t size = (size_t)op->how->size;
    bool lost;
    gpu_check_any(f->gpu, op->rows, (size_t)op->n_tok * sizeof(*op->rows), "rotate: rows");
    gpu_check_any(f->gpu, op->how->matrix, size * size * sizeof(float), "rotate: matrix");
    gpu_check_any(f->gpu, op->how->signs, size * sizeof(float), "rotate: signs");
    gpu_check(f->gpu, op->y, area(op->n_tok, op->ldy, op->dim, op->dtype), "rotate: y");
    enum ctw_status st = gpu_begin(f->gpu, f->joined, &lost, err);
    return st != CTW_OK || lost ? st : ctw_backend_cpu.rotate(f->cpu, op, err);
}

static enum ctw_status fake_latent(struct ctw_backend *be, const struct ctw_op_latent *op,
                                   struct ctw_err *err)
{
    struct fake *f = fake_of(be);
    int64_t q = (int64_t)op->n_head * (op->own + op->turning);
    int64_t kv = (int64_t)op->n_head * (op->own + op->head_v), v = (int64_t)op->n_head * op->head_v;
    bool lost;
    gpu_check(f->gpu, op->q, area(op->n_tok, q, q, op->dtype), "latent: q");
    gpu_check(f->gpu, op->kv, area(op->n_tok, kv, kv, op->dtype), "latent: kv");
    gpu_check(f->gpu, op->k_turned, area(op->n_tok, op->ld_turned, op->turning, op->dtype),
              "latent: k_turned");
    gpu_check(f->gpu, op->k, area(op->n_tok, q, q, op->dtype), "latent: k");
    gpu_check(f->gpu, op->v, area(op->n_tok, v, v, op->dtype), "latent: v");
    enum ctw_status st = gpu_begin(f->gpu, f->joined, &lost, err);
    return st != CTW_OK || lost ? st : ctw_backend_cpu.latent(f->cpu, op, err);
}

static enum ctw_status fake_gate(struct ctw_backend *be, const struct ctw_op_gate *op,
                                 struct ctw_err *err)
{
    struct fake *f = fake_of(be);
    bool lost;
    gpu_check(f->gpu, op->x, area(op->n_tok, op->ldx, op->n_groups, op->dtype), "gate: x");
    gpu_check(f->gpu, op->y, area(op->n_tok, op->ldy, op->n_groups * op->size, op->dtype), "gate");
    enum ctw_status st = gpu_begin(f->gpu, f->joined, &lost, err);
    return st != CTW_OK || lost ? st : ctw_backend_cpu.gate(f->cpu, op, err);
}

static enum ctw_status fake_conv(struct ctw_backend *be, const struct ctw_op_conv *op,
                                 struct ctw_err *err)
{
    bool lost;
    gpu_check_conv(fake_of(be)->gpu, op);
    enum ctw_status st = gpu_begin(fake_of(be)->gpu, fake_of(be)->joined, &lost, err);
    return st != CTW_OK || lost ? st : ctw_backend_cpu.conv(fake_of(be)->cpu, op, err);
}

static enum ctw_status fake_index(struct ctw_backend *be, const struct ctw_op_index *op,
                                  struct ctw_err *err)
{
    struct fake *f = fake_of(be);
    bool lost;
    enum ctw_status st = gpu_begin(f->gpu, f->joined, &lost, err);
    return st != CTW_OK || lost ? st : ctw_backend_cpu.index(f->cpu, op, err);
}

static int64_t fake_head_rows(const struct ctw_backend *be, enum ctw_dtype dtype, int64_t k,
                              bool plain)
{
    return ctw_backend_cpu.head_rows(((const struct fake *)be)->cpu, dtype, k, plain);
}

static enum ctw_status fake_head(struct ctw_backend *be, const struct ctw_op_head *op,
                                 struct ctw_err *err)
{
    struct fake *f = fake_of(be);
    int64_t k = op->weight->weight->k;
    bool lost;
    read_shard(f, op->weight, "head: the weight");
    gpu_check(f->gpu, op->x, area(op->n_rows, k, k, op->dtype), "head: x");
    gpu_check(f->gpu, op->targets, (size_t)op->n_rows * sizeof(*op->targets), "head: targets");
    gpu_check(f->gpu, op->out, (size_t)op->n_rows * sizeof(*op->out), "head: out");
    gpu_check_any(f->gpu, op->logits, (size_t)(op->n_rows * op->ld_logits) * sizeof(float),
                  "head: logits");
    gpu_check_any(f->gpu, op->norms, (size_t)op->n_rows * sizeof(*op->norms), "head: norms");
    enum ctw_status st = gpu_begin(f->gpu, f->joined, &lost, err);
    return st != CTW_OK || lost ? st : ctw_backend_cpu.head(f->cpu, op, err);
}

static void check_logits(const struct fake *f, const struct ctw_logits *l, int64_t n_rows)
{
    gpu_check(f->gpu, l->logits, (size_t)(n_rows * l->ld) * sizeof(float), "divergence: logits");
    gpu_check(f->gpu, l->norms, (size_t)n_rows * sizeof(*l->norms), "divergence: norms");
}

static enum ctw_status fake_divergence(struct ctw_backend *be, const struct ctw_op_divergence *op,
                                       struct ctw_err *err)
{
    struct fake *f = fake_of(be);
    bool lost;
    check_logits(f, &op->model, op->n_rows);
    check_logits(f, &op->reference, op->n_rows);
    gpu_check(f->gpu, op->out, (size_t)op->n_rows * sizeof(*op->out), "divergence: out");
    enum ctw_status st = gpu_begin(f->gpu, f->joined, &lost, err);
    return st != CTW_OK || lost ? st : ctw_backend_cpu.divergence(f->cpu, op, err);
}

static enum ctw_status fake_difference(struct ctw_backend *be, const struct ctw_op_difference *op,
                                       struct ctw_err *err)
{
    struct fake *f = fake_of(be);
    size_t streams = (size_t)(op->n_rows * op->dim) * sizeof(float), n = (size_t)op->n_seqs;
    size_t blocks = n * (size_t)ctw_difference_blocks(op->dim);
    bool lost;
    gpu_check(f->gpu, op->start, (n + 1) * sizeof(*op->start), "difference: start");
    gpu_check(f->gpu, op->x, streams, "difference: x");
    gpu_check(f->gpu, op->y, streams, "difference: y");
    gpu_check(f->gpu, op->rows, (size_t)op->n_rows * sizeof(*op->rows), "difference: rows");
    gpu_check(f->gpu, op->channels, blocks * sizeof(*op->channels), "difference: channels");
    gpu_check(f->gpu, op->out, n * sizeof(*op->out), "difference: out");
    enum ctw_status st = gpu_begin(f->gpu, f->joined, &lost, err);
    return st != CTW_OK || lost ? st : ctw_backend_cpu.difference(f->cpu, op, err);
}

static enum ctw_status fake_route(struct ctw_backend *be, const struct ctw_op_route *op,
                                  struct ctw_err *err)
{
    struct fake *f = fake_of(be);
    size_t n_tok = (size_t)op->n_tok, n = (size_t)op->rule.n_experts;
    size_t n_chosen = n_tok * (size_t)op->rule.chosen;
    bool lost;
    gpu_check(f->gpu, op->logits, n_tok * n * sizeof(float), "route: logits");
    gpu_check(f->gpu, op->ids, n_chosen * sizeof(*op->ids), "route: ids");
    gpu_check(f->gpu, op->weights, n_chosen * sizeof(*op->weights), "route: weights");
    if (op->correction != NULL)
        gpu_read(f->gpu, op->correction, area(1, 0, (int64_t)n, op->correction_dtype),
                 "route: correction");
    if (op->expert_scale != NULL)
        gpu_read(f->gpu, op->expert_scale, area(1, 0, (int64_t)n, op->expert_scale_dtype),
                 "route: expert scale");
    enum ctw_status st = gpu_begin(f->gpu, f->joined, &lost, err);
    return st != CTW_OK || lost ? st : ctw_backend_cpu.route(f->cpu, op, err);
}

static enum ctw_status fake_group(struct ctw_backend *be, const struct ctw_op_group *op,
                                  struct ctw_err *err)
{
    struct fake *f = fake_of(be);
    size_t n = (size_t)op->n_tok * (size_t)op->chosen;
    bool lost;
    gpu_check(f->gpu, op->ids, n * sizeof(*op->ids), "group: ids");
    gpu_check(f->gpu, op->weights, n * sizeof(*op->weights), "group: weights");
    gpu_check(f->gpu, op->rows, n * sizeof(*op->rows), "group: rows");
    gpu_check(f->gpu, op->row_weights, n * sizeof(*op->row_weights), "group: row weights");
    gpu_check(f->gpu, op->start, ((size_t)op->n_experts + 1) * sizeof(*op->start), "group: start");
    enum ctw_status st = gpu_begin(f->gpu, f->joined, &lost, err);
    return st != CTW_OK || lost ? st : ctw_backend_cpu.group(f->cpu, op, err);
}

static const struct ctw_backend_ops fake_ops = {
    .name = "cuda",
    .traits = {.host_memory = false,
               .chunk_tokens = 256,
               .pass_tokens = 8192,
               .pass_flops = 1e13,
               .decodes_ahead = true},
    .head_rows = fake_head_rows,
    .uuid = fake_uuid,
    .count = gpu_count,
    .open = fake_open,
    .close = fake_close,
    .info = fake_info,
    .describe = fake_describe,
    .scratch_bytes = fake_scratch_bytes,
    .reserve = fake_reserve,
    .trim = fake_trim,
    .memory_free = fake_memory_free,
    .alloc = fake_alloc,
    .free = fake_free,
    .upload = fake_upload,
    .download = fake_download,
    .copy = fake_copy,
    .zero = fake_zero,
    .sync = fake_sync,
    .stage_alloc = fake_stage_alloc,
    .stage_free = fake_stage_free,
    .upload_begin = fake_upload_begin,
    .peer_begin = fake_peer_begin,
    .peer_link = fake_peer_link,
    .upload_wait = fake_upload_wait,
    .upload_join = fake_upload_join,
    .fence_record = fake_fence_record,
    .fence_wait = fake_fence_wait,
    .prepare = fake_prepare,
    .decode = fake_decode,
    .embed = fake_embed,
    .norm = fake_norm,
    .act = fake_act,
    .linear = fake_linear,
    .qkv = fake_qkv,
    .quantise = fake_quantise,
    .rotate = fake_rotate,
    .latent = fake_latent,
    .attention = fake_attention,
    .gate = fake_gate,
    .conv = fake_conv,
    .index = fake_index,
    .head = fake_head,
    .divergence = fake_divergence,
    .difference = fake_difference,
    .route = fake_route,
    .group = fake_group,
};

__attribute__((visibility("default"))) ctw_cuda_contract_fn ctw_cuda_contract;
const char *ctw_cuda_contract(void)
{
    return CTW_CONTRACT;
}

__attribute__((visibility("default"))) ctw_cuda_ops_fn ctw_cuda_ops;
const struct ctw_backend_ops *ctw_cuda_ops(void)
{
    return &fake_ops;
}
