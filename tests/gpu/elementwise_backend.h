/* Of test_elementwise.cu: the backend that it calls into; with ALONE, as little of one as it needs. */

#ifdef ALONE

enum ctw_status ctw_cuda_check(cudaError_t e, const char *what, struct ctw_err *err)
{
    return e == cudaSuccess ? CTW_OK
                            : ctw_fail(err, CTW_EDEVICE, "%s: %s", what, cudaGetErrorString(e));
}

enum ctw_status ctw_cuda_launched(const char *what, struct ctw_err *err)
{
    return ctw_cuda_check(cudaGetLastError(), what, err);
}

enum ctw_status ctw_cuda_grow(struct ctw_cuda *c, struct ctw_cuda_buffer *b, size_t bytes,
                              struct ctw_err *err)
{
    (void)c;
    if (b->bytes >= bytes)
        return CTW_OK;
    must(cudaDeviceSynchronize(), "running");
    must(cudaFree(b->p), "cudaFree");
    b->bytes = bytes;
    return ctw_cuda_check(cudaMalloc(&b->p, bytes), "cudaMalloc", err);
}

bool ctw_cuda_gate_hopper_can(const struct ctw_cuda *c, enum ctw_dtype dtype, int64_t n, int64_t k)
{
    return c->hopper && dtype != CTW_F32 && n % 16 == 0 && k % 8 == 0;
}

static __device__ float element_of(const void *p, int64_t i, enum ctw_dtype t)
{
    return t == CTW_F32    ? ((const float *)p)[i]
           : t == CTW_BF16 ? __bfloat162float(((const __nv_bfloat16 *)p)[i])
                           : __half2float(((const __half *)p)[i]);
}

/* A thread an element of y, one chain over k. */
static __global__ void plain_gemm(struct ctw_cuda_gemm g)
{
    int64_t n = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, m = blockIdx.y;
    float sum = 0;
    if (n >= g.n)
        return;
    for (int64_t i = 0; i < g.k; i++)
        sum =
            fmaf(element_of(g.x, m * g.ldx + i, g.dtype), element_of(g.w, n * g.ldw + i, g.dtype), sum);
    ((float *)g.y)[m * g.ldy + n] = sum;
}

static bool skip_products;

enum ctw_status ctw_cuda_gemm(struct ctw_cuda *c, const struct ctw_cuda_gemm *g, struct ctw_err *err)
{
    dim3 grid((unsigned)((g->n + 255) / 256), (unsigned)g->m);
    if (!skip_products)
        plain_gemm<<<grid, 256, 0, c->stream>>>(*g);
    return ctw_cuda_launched("product", err);
}

static void backend_open(void)
{
    static struct ctw_cuda alone;
    cudaDeviceProp p;
    cu = &alone;
    must(cudaGetDeviceProperties(&p, 0), "device");
    cu->n_sm = p.multiProcessorCount;
    cu->hopper = true;
    must(cudaStreamCreateWithFlags(&cu->stream, cudaStreamNonBlocking), "stream");
    must(cudaStreamCreateWithFlags(&cu->ahead, cudaStreamNonBlocking), "stream");
    for (int i = 0; i < CTW_N_SLOTS; i++) {
        must(cudaEventCreateWithFlags(&cu->slot[i].ready, cudaEventDisableTiming), "event");
        must(cudaEventCreateWithFlags(&cu->slot[i].unused, cudaEventDisableTiming), "event");
    }
    printf("%s, alone\n", p.name);
}

#else

static bool skip_products; /* has no effect */

extern "C" const struct ctw_backend_ops *ctw_cuda_entry(uint64_t abi);

static void backend_open(void)
{
    struct ctw_backend_options opt = {};
    struct ctw_backend *be;
    opt.cuda_variant = getenv("CTW_TEST_CUDA_VARIANT");
    OK(ctw_cuda_entry(CTW_BACKEND_ABI)->open(&be, &opt, &last_err));
    cu = (struct ctw_cuda *)be;
    printf("%s, %s\n", cu->name, cu->numerics);
}

#endif
