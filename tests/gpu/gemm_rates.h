/* Part of test_gemm.cu: cuBLASLt, its bits against ours, and rates. */

/* ---- cuBLASLt ----------------------------------------------------------------------------- */

struct peer {
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulHeuristicResult_t best[8];
    int n;
};

static void sure(cublasStatus_t s, const char *what)
{
    if (s != CUBLAS_STATUS_SUCCESS) {
        printf("FAILED cuBLASLt: %s: %d\n", what, (int)s);
        exit(1);
    }
}

static cudaDataType_t type_of(enum ctw_dtype t)
{
    return t == CTW_F32 ? CUDA_R_32F : t == CTW_BF16 ? CUDA_R_16BF : CUDA_R_16F;
}

/* Its first eight algorithms without splitting k. */
static void open_peer(struct peer *p, const struct ctw_cuda_gemm *g)
{
    cublasOperation_t trans = CUBLAS_OP_T;
    cublasLtMatmulPreference_t pref;
    uint64_t bytes = CTW_CUDA_WORKSPACE;
    uint32_t none = CUBLASLT_REDUCTION_SCHEME_NONE;
    cudaDataType_t in = type_of(g->dtype), out = type_of(g->y_dtype);
    sure(cublasLtMatmulDescCreate(&p->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F), "desc");
    sure(cublasLtMatmulDescSetAttribute(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, &trans, sizeof(trans)),
         "trans");
    sure(cublasLtMatrixLayoutCreate(&p->a, in, (uint64_t)g->k, (uint64_t)g->n, g->ldw), "layout");
    sure(cublasLtMatrixLayoutCreate(&p->b, in, (uint64_t)g->k, (uint64_t)g->m, g->ldx), "layout");
    sure(cublasLtMatrixLayoutCreate(&p->d, out, (uint64_t)g->n, (uint64_t)g->m, g->ldy), "layout");
    sure(cublasLtMatmulPreferenceCreate(&pref), "preference");
    sure(cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes,
                                              sizeof(bytes)),
         "preference");
    sure(cublasLtMatmulPreferenceSetAttribute(pref, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &none,
                                              sizeof(none)),
         "preference");
    sure(cublasLtMatmulAlgoGetHeuristic(cu.lt, p->desc, p->a, p->b, p->d, p->d, pref, 8, p->best, &p->n),
         "heuristic");
    cublasLtMatmulPreferenceDestroy(pref);
}

static void close_peer(struct peer *p)
{
    cublasLtMatrixLayoutDestroy(p->a);
    cublasLtMatrixLayoutDestroy(p->b);
    cublasLtMatrixLayoutDestroy(p->d);
    cublasLtMatmulDescDestroy(p->desc);
}

static void run_peer(const struct peer *p, const struct ctw_cuda_gemm *g, int i)
{
    float one = 1, beta = g->add;
    sure(cublasLtMatmul(cu.lt, p->desc, &one, g->w, p->a, g->x, p->b, &beta, g->y, p->d, g->y, p->d,
                        &p->best[i].algo, cu.workspace, CTW_CUDA_WORKSPACE, cu.stream),
         "matmul");
}

/* For information: is our sum's order cuBLASLt's? */
static void check_peer(void)
{
    const int64_t shapes[][3] = {{2048, 4096, 4096}, {1000, 1000, 1536}, {2048, 4096, 14336}};
    char *x = (char *)device(2048 * 14336 * 2), *w = (char *)device(4096 * 14336 * 2);
    char *y = (char *)device(2048 * 4096 * 4), *z = (char *)device(2048 * 4096 * 4);
    for (int e = 0; e < 12; e++) {
        struct ctw_cuda_gemm g = {};
        struct peer p;
        g.m = shapes[e % 3][0], g.n = shapes[e % 3][1], g.k = shapes[e % 3][2];
        g.dtype = e / 3 % 2 ? CTW_F16 : CTW_BF16;
        g.y_dtype = e / 6 ? g.dtype : CTW_F32;
        g.x = x, g.w = w, g.y = y, g.ldx = g.ldw = g.k, g.ldy = g.n;
        fill<<<512, 256, 0, cu.stream>>>(x, g.m * g.k, g.dtype, 1, 1);
        fill<<<512, 256, 0, cu.stream>>>(w, g.n * g.k, g.dtype, 1 / 64.0f, 2);
        run(&g, STORED, CTW_ACT_SILU);
        g.y = z;
        open_peer(&p, &g);
        size_t bytes = (size_t)(g.m * g.n) * ctw_dtype_bytes(g.y_dtype);
        printf("against cuBLASLt, %s, %lld x %lld x %lld: half-words that differ:",
               name_of(STORED, g.dtype, g.y_dtype), (long long)g.m, (long long)g.n, (long long)g.k);
        for (int i = 0; i < p.n; i++) {
            run_peer(&p, &g, i);
            printf(" %.4f%%", 100.0 * (double)differences(y, z, bytes) / ((double)bytes / 2));
        }
        printf("\n");
        close_peer(&p);
    }
    cudaFree(x), cudaFree(w), cudaFree(y), cudaFree(z);
}

/* ---- rates -------------------------------------------------------------------------------- */

struct contender {
    struct ctw_cuda_gemm g;
    struct head head; /* what == HEADED */
    struct peer *peer; /* NULL: ours */
#ifndef ALONE
    struct qkv qkv; /* what == SPLIT, FUSED */
#endif
    int what, algo, group, lead;
    double burst, seconds, products;
};

static void start(const struct contender *c)
{
    if (c->peer != NULL) {
        run_peer(c->peer, &c->g, c->algo);
        return;
    }
    ctw_hopper_group = c->group;
    ctw_hopper_lead = c->lead;
#ifndef ALONE
    if (c->what == SPLIT || c->what == FUSED) {
        run_qkv(&c->qkv, c->what == FUSED);
        return;
    }
#endif
    if (c->what == HEADED)
        run_head(&c->head);
    else
        run(&c->g, c->what, CTW_ACT_SILU);
}

/* Seconds for n products in sequence. */
static double timed(const struct contender *c, int n)
{
    float ms = 0;
    must(cudaEventRecord(event[0], cu.stream), "event");
    for (int i = 0; i < n; i++)
        start(c);
    must(cudaEventRecord(event[1], cu.stream), "event");
    must(cudaEventSynchronize(event[1]), "products");
    must(cudaEventElapsedTime(&ms, event[0], event[1]), "event");
    return ms / 1000.0;
}

static double flops(const struct contender *c)
{
    return 2.0 * (double)c->g.m * (double)c->g.n * (double)c->g.k;
}

/* Bursts after a rest, then `rounds` rounds of `slice` seconds each, interleaved. */
static void race(struct contender *c, int n, int rounds, double slice)
{
    for (int i = 0; i < n; i++) {
        timed(&c[i], 1);
        must(cudaDeviceSynchronize(), "products");
        usleep(100000);
        timed(&c[i], 1);
        c[i].burst = timed(&c[i], 8) / 8;
    }
    for (int r = 0; r < rounds; r++)
        for (int i = 0; i < n; i++) {
            int times = 1 + (int)(slice / c[i].burst);
            double s = timed(&c[i], times);
            if (r == 0)
                continue; /* until it is warm */
            c[i].seconds += s;
            c[i].products += times;
        }
}

/* cuBLASLt's fastest in a short run. */
static int fastest(struct contender *c)
{
    int best = 0;
    double s[8];
    for (c->algo = 0; c->algo < c->peer->n; c->algo++) {
        timed(c, 1);
        s[c->algo] = timed(c, 6);
        if (s[c->algo] < s[best])
            best = c->algo;
    }
    return best;
}

static void new_contender(struct contender *c, const struct ctw_cuda_gemm *g, int what, struct peer *peer)
{
    struct contender fresh = {};
    *c = fresh;
    c->g = *g;
    c->what = what;
    c->peer = peer;
    c->group = 8;
    c->lead = 2;
    c->g.add = what == ADDED;
    if (what == ADDED || what == HEADED)
        c->g.y_dtype = CTW_F32;
    if (what == GATED)
        c->g.ldy = g->n / 2;
}

/* The head of 2048 rows: states and results are in y. */
static void make_head(struct contender *c, int32_t *targets)
{
    c->head.g = c->g;
    c->head.scale = 1;
    c->head.targets = targets;
    c->head.states = (struct ctw_cuda_head_state *)c->g.y;
    c->head.out = (struct ctw_head_result *)((char *)c->g.y + ((size_t)1 << 29));
}

/* The heads come last; `first` is the first case. */
enum { N_RATED = 13, FIRST_HEAD = 10 };

/* Cases in addition to cuBLASLt's product and ours: the epilogues. Returns their number. For an
 * fp32 sum with y's previous content, `adds` is cuBLASLt's. */
static int add_contenders(struct contender *c, const struct ctw_cuda_gemm *g, int what, int32_t *ids,
                          float *cos_sin, struct peer *adds)
{
    int n = 1;
    new_contender(&c[0], g, what, NULL);
    if (what == HEADED)
        make_head(&c[0], ids);
    if (what == ADDED) {
        new_contender(&c[n], g, what, adds);
        open_peer(adds, &c[n].g);
        c[n].algo = fastest(&c[n]);
        n++;
    }
    (void)cos_sin;
#ifndef ALONE
    if (what == STORED) {
        for (n = 0; n < 2; n++) {
            new_contender(&c[n], g, n == 0 ? SPLIT : FUSED, NULL);
            make_qkv(&c[n].qkv, g, ids, cos_sin);
        }
    }
#endif
    return n;
}

static __global__ void make_positions(int32_t *p, int m)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < m)
        p[i] = i % 2048;
}

static void print_contender(const struct contender *c, const struct contender *beside)
{
    double lt = flops(beside) * beside->products / beside->seconds / 1e12;
    double rate = flops(c) * c->products / c->seconds / 1e12;
    const char *name = !c->peer    ? name_of(c->what, CTW_BF16, c->g.y_dtype)
                       : c->g.add ? "cuBLASLt, add32"
                                  : "cuBLASLt";
    printf("%5lld x %6lld x %-6lld %-24s burst %6.1f   sustained %6.1f TFLOP/s   %7.1f us   "
           "%.3f of cuBLASLt\n",
           (long long)c->g.m, (long long)c->g.n, (long long)c->g.k, name, flops(c) / c->burst / 1e12,
           rate, 1e6 * c->seconds / c->products, rate / lt);
}

static void rates(int first)
{
    const int64_t shapes[N_RATED][4] = {
        {8192, 6144, 4096, STORED},   {8192, 4096, 4096, ADDED},    {8192, 28672, 4096, GATED},
        {8192, 4096, 14336, ADDED},   {8192, 10240, 8192, STORED},  {8192, 8192, 8192, ADDED},
        {8192, 57344, 8192, GATED},   {8192, 8192, 28672, ADDED},   {2048, 6144, 4096, STORED},
        {256, 6144, 4096, STORED},    {2048, 128256, 4096, HEADED}, {2048, 262144, 4096, HEADED},
        {2048, 262144, 2048, HEADED}};
    char *x = (char *)device((size_t)8192 * 28672 * 2), *w = (char *)device((size_t)262144 * 4096 * 2);
    char *y = (char *)device((size_t)2048 * 262144 * 2);
    int32_t *targets = (int32_t *)device(2048 * 4), *positions = (int32_t *)device(8192 * 4);
    float *cos_sin = (float *)device(2048 * 128 * 4);
    fill<<<512, 256, 0, cu.stream>>>(x, (int64_t)8192 * 28672, CTW_BF16, 1, 1);
    fill<<<512, 256, 0, cu.stream>>>(w, (int64_t)262144 * 4096, CTW_BF16, 1 / 64.0f, 2);
    fill<<<64, 256, 0, cu.stream>>>(cos_sin, 2048 * 128, CTW_F32, 0.7f, 3);
    make_targets<<<8, 256, 0, cu.stream>>>(targets, 2048, 128256);
    make_positions<<<32, 256, 0, cu.stream>>>(positions, 8192);
    for (int i = first; i < N_RATED; i++) {
        struct ctw_cuda_gemm g = {};
        struct peer p;
        struct contender c[4];
        int what = (int)shapes[i][3];
        g.m = shapes[i][0], g.n = g.ldy = shapes[i][1], g.k = g.ldx = g.ldw = shapes[i][2];
        g.dtype = g.y_dtype = CTW_BF16;
        g.x = x, g.w = w, g.y = y;
        open_peer(&p, &g);
        new_contender(&c[0], &g, STORED, &p);
        new_contender(&c[1], &g, STORED, NULL);
        struct peer adds;
        int n = 2 + add_contenders(c + 2, &g, what, what == HEADED ? targets : positions, cos_sin, &adds);
        c[0].algo = fastest(&c[0]);
        must(cudaMemsetAsync(y, 0, (size_t)8192 * 8192 * 4, cu.stream), "memset"); /* to add to */
        race(c, n, 7, 0.25);
        for (int j = 0; j < n; j++)
            print_contender(&c[j], &c[0]);
        close_peer(&p);
        if (what == ADDED)
            close_peer(&adds);
    }
    cudaFree(x), cudaFree(w), cudaFree(y), cudaFree(targets), cudaFree(positions), cudaFree(cos_sin);
}

/* Tile orders and leads. */
static void tune(void)
{
    const int64_t m = 8192, shapes[4][3] = {
        {28672, 4096, GATED}, {4096, 4096, ADDED}, {4096, 14336, ADDED}, {57344, 8192, GATED}};
    const int groups[] = {4, 8, 12, 16, 32}, leads[] = {0, 1, 2, 3};
    char *x = (char *)device(m * 14336 * 2), *w = (char *)device((size_t)57344 * 8192 * 2);
    char *y = (char *)device((size_t)m * 28672 * 4);
    fill<<<512, 256, 0, cu.stream>>>(x, m * 14336, CTW_BF16, 1, 1);
    fill<<<512, 256, 0, cu.stream>>>(w, (int64_t)57344 * 8192, CTW_BF16, 1 / 64.0f, 2);
    must(cudaMemsetAsync(y, 0, (size_t)m * 28672 * 4, cu.stream), "memset");
    for (int i = 0; i < 4; i++) {
        struct ctw_cuda_gemm g = {};
        struct contender c[8];
        g.m = m, g.n = g.ldy = shapes[i][0], g.k = g.ldx = g.ldw = shapes[i][1];
        g.dtype = g.y_dtype = CTW_BF16;
        g.x = x, g.w = w, g.y = y;
        for (int j = 0; j < 8; j++) {
            new_contender(&c[j], &g, (int)shapes[i][2], NULL);
            if (j < 5)
                c[j].group = groups[j];
            else
                c[j].lead = leads[j == 7 ? 3 : j - 5];
        }
        race(c, 8, 4, 0.15);
        for (int j = 0; j < 8; j++)
            printf("%6lld x %-6lld %s: group %2d lead %d: burst %.1f sustained %.1f\n", (long long)g.n,
                   (long long)g.k, name_of(c[j].what, CTW_BF16, c[j].g.y_dtype), c[j].group, c[j].lead,
                   flops(&c[j]) / c[j].burst / 1e12, flops(&c[j]) * c[j].products / c[j].seconds / 1e12);
    }
    cudaFree(x), cudaFree(w), cudaFree(y);
}
