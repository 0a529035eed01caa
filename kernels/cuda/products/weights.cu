/*
 * The weights of a product as one matrix: the checkpoint's own bytes if they form one, the weights
 * decoded ahead into the product's slot, or weights decoded now.
 */
#include "kernels/cuda/elements.h"

static int64_t rows_of(const struct ctw_op_linear *op)
{
    int64_t n = 0;
    for (int i = 0; i < op->n_shards; i++)
        n += op->shards[i].n;
    return n;
}

bool ctw_cuda_interleaves(const struct ctw_cuda *cu, const struct ctw_op_linear *op)
{
    int64_t n = op->shards[0].n;
    return cu->hopper && op->epilogue == CTW_EPI_GATE && op->n_shards == 2 && op->shards[1].n == n &&
           n % CTW_CUDA_GATE_BLOCK == 0 &&
           ctw_cuda_gate_hopper_can(cu, op->dtype, 2 * n, op->shards[0].weight->k);
}

/*
 * The checkpoint's bytes, if they form the matrix that the product needs; else NULL. Several shards
 * do if each begins where the one before it ends, as the parts of a fused projection do.
 */
static const void *in_place(const struct ctw_cuda *cu, const struct ctw_op_linear *op)
{
    const char *first = NULL, *end = NULL;
    if (ctw_cuda_interleaves(cu, op))
        return NULL;
    for (int i = 0; i < op->n_shards; i++) {
        const struct ctw_shard *s = &op->shards[i];
        const char *at =
            (const char *)s->data->part[CTW_PART_VALUES] + (size_t)s->row0 * s->weight->row_bytes;
        if (s->weight->format->id != CTW_FORMAT_dense || s->weight->dtype != ctw_cuda_w_dtype(op) ||
            ctw_shard_step(s) != 1)
            return NULL;
        if (i > 0 && at != end)
            return NULL;
        first = i == 0 ? at : first;
        end = at + (size_t)s->n * s->weight->row_bytes;
    }
    return ctw_cuda_aligned16(first) ? first : NULL;
}

static size_t weights_bytes(const struct ctw_op_linear *op)
{
    return (size_t)rows_of(op) * (size_t)op->shards[0].weight->k *
           ctw_dtype_bytes(ctw_cuda_w_dtype(op));
}

/* Decodes all shards of op into dst. */
static enum ctw_status decode_shards(struct ctw_cuda *cu, cudaStream_t stream,
                                     const struct ctw_op_linear *op, void *dst, bool interleaved,
                                     struct ctw_err *err)
{
    enum ctw_dtype dtype = ctw_cuda_w_dtype(op);
    size_t row_bytes = (size_t)op->shards[0].weight->k * ctw_dtype_bytes(dtype);
    enum ctw_status st = CTW_OK;
    char *at = (char *)dst;
    for (int i = 0; st == CTW_OK && i < op->n_shards; i++) {
        int64_t n = op->shards[i].n;
        st = ctw_cuda_decode_range(cu, stream, &op->shards[i], 0, n, dtype, at,
                             interleaved ? CTW_CUDA_GATE_BLOCK : 0,
                             interleaved ? 2 * CTW_CUDA_GATE_BLOCK : 0, err);
        at += row_bytes * (size_t)(interleaved ? (int64_t)CTW_CUDA_GATE_BLOCK : n);
    }
    return st;
}

/* The slot that holds op's weights, or NULL. */
static struct ctw_cuda_slot *slot_of(struct ctw_cuda *cu, const struct ctw_op_linear *op)
{
    struct ctw_cuda_slot *slot = &cu->slot[op->slot];
    if (slot->n_shards != op->n_shards || slot->dtype != ctw_cuda_w_dtype(op) ||
        (slot->interleaved && op->epilogue != CTW_EPI_GATE))
        return NULL;
    for (int i = 0; i < op->n_shards; i++)
        if (slot->shard[i].weight != op->shards[i].weight ||
            slot->shard[i].values != op->shards[i].data->part[CTW_PART_VALUES] ||
            slot->shard[i].row0 != op->shards[i].row0 || slot->shard[i].n != op->shards[i].n ||
            slot->shard[i].step != ctw_shard_step(&op->shards[i]))
            return NULL;
    return slot;
}

/* Joins the biases of a product of experts, which runs once for each; others do it by the way. */
static enum ctw_status join_ahead(struct ctw_cuda *cu, struct ctw_cuda_slot *slot,
                                  const struct ctw_op_linear *op, bool interleaved,
                                  struct ctw_err *err)
{
    struct ctw_cuda_gemm g = ctw_cuda_gemm_of(op);
    char *at = (char *)slot->w.p + ctw_gpu_slot_bias(weights_bytes(op));
    enum ctw_status st = ctw_cuda_join_bias(cu->ahead, op, interleaved ? CTW_CUDA_GATE_BLOCK : 0, at,
                                            &g, err);
    slot->bias = st == CTW_OK ? g.bias : NULL;
    slot->bias_y = g.bias_y;
    return st;
}

enum ctw_status ctw_cuda_prepare(struct ctw_cuda *cu, const struct ctw_op_linear *op, struct ctw_err *err)
{
    struct ctw_cuda_slot *slot = &cu->slot[op->slot];
    slot->n_shards = 0;
    if (op->n_shards == 0 || in_place(cu, op) != NULL)
        return CTW_OK;
    bool joins = op->slot >= CTW_SLOT_EXPERTS && ctw_cuda_has_bias(op);
    size_t bytes = joins ? ctw_gpu_slot_bias(weights_bytes(op)) + ctw_gpu_bias_bytes(rows_of(op))
                         : weights_bytes(op);
    enum ctw_status st = ctw_cuda_grow(cu, &slot->w, bytes, err);
    if (st == CTW_OK) /* old content may still be read; an event never recorded is a no-op */
        st = ctw_cuda_check(cudaStreamWaitEvent(cu->ahead, slot->unused, 0), "decoding ahead", err);
    bool interleaved = ctw_cuda_interleaves(cu, op);
    if (st == CTW_OK)
        st = decode_shards(cu, cu->ahead, op, slot->w.p, interleaved, err);
    slot->bias = NULL;
    if (st == CTW_OK && joins)
        st = join_ahead(cu, slot, op, interleaved, err);
    if (st == CTW_OK)
        st = ctw_cuda_check(cudaEventRecord(slot->ready, cu->ahead), "decoding ahead", err);
    if (st != CTW_OK)
        return st;
    slot->n_shards = op->n_shards;
    slot->dtype = ctw_cuda_w_dtype(op);
    slot->interleaved = interleaved;
    slot->waited = false;
    for (int i = 0; i < op->n_shards; i++) {
        slot->shard[i].weight = op->shards[i].weight;
        slot->shard[i].values = op->shards[i].data->part[CTW_PART_VALUES];
        slot->shard[i].row0 = op->shards[i].row0;
        slot->shard[i].n = op->shards[i].n;
        slot->shard[i].step = ctw_shard_step(&op->shards[i]);
    }
    return CTW_OK;
}

bool ctw_cuda_slot_bias(struct ctw_cuda *cu, const struct ctw_op_linear *op, struct ctw_cuda_gemm *g)
{
    const struct ctw_cuda_slot *slot = slot_of(cu, op);
    if (slot == NULL || slot->bias == NULL)
        return false;
    g->bias = slot->bias;
    g->bias_y = slot->bias_y;
    return true;
}

enum ctw_status ctw_cuda_put_bias(struct ctw_cuda *cu, const struct ctw_op_linear *op, int64_t block,
                                  char *scratch, struct ctw_cuda_gemm *g, struct ctw_err *err)
{
    return ctw_cuda_slot_bias(cu, op, g) ? CTW_OK
                                         : ctw_cuda_join_bias(cu->stream, op, block, scratch, g, err);
}

bool ctw_cuda_weights_there(struct ctw_cuda *cu, const struct ctw_op_linear *op)
{
    return slot_of(cu, op) != NULL || in_place(cu, op) != NULL;
}

enum ctw_status ctw_cuda_weights(struct ctw_cuda *cu, const struct ctw_op_linear *op, const void **w,
                                 bool *interleaved, struct ctw_err *err)
{
    struct ctw_cuda_slot *slot = slot_of(cu, op);
    enum ctw_status st = CTW_OK;
    *interleaved = false;
    if (slot != NULL) {
        *w = slot->w.p;
        *interleaved = slot->interleaved;
        if (!slot->waited)
            st = ctw_cuda_check(cudaStreamWaitEvent(cu->stream, slot->ready, 0), "decoding ahead", err);
        slot->waited = st == CTW_OK;
        return st;
    }
    *w = in_place(cu, op);
    if (*w != NULL)
        return CTW_OK;
    struct ctw_cuda_buffer *b = &cu->scratch[CTW_CUDA_WEIGHT];
    st = ctw_cuda_grow(cu, b, weights_bytes(op), err);
    if (st != CTW_OK)
        return st;
    *w = b->p;
    *interleaved = ctw_cuda_interleaves(cu, op);
    return decode_shards(cu, cu->stream, op, b->p, *interleaved, err);
}

enum ctw_status ctw_cuda_weights_used(struct ctw_cuda *cu, const struct ctw_op_linear *op,
                                      struct ctw_err *err)
{
    struct ctw_cuda_slot *slot = slot_of(cu, op);
    if (slot == NULL)
        return CTW_OK;
    return ctw_cuda_check(cudaEventRecord(slot->unused, cu->stream), "running", err);
}
