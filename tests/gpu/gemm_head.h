/* Part of test_gemm.cu: the head without logits in memory, against a head in double. */

struct head {
    struct ctw_cuda_gemm g;
    int64_t cut; /* tokens of a first call, or 0 */
    float scale;
    const int32_t *targets;
    struct ctw_cuda_head_state *states;
    struct ctw_head_result *out;
};

static void run_head(const struct head *h)
{
    struct ctw_err err;
    bool done = false;
    int64_t n = h->g.n;
    struct ctw_op_head op = {};
    op.scale = h->scale;
    op.n_vocab = n;
    op.n_rows = h->g.m;
    op.targets = h->targets;
    op.out = h->out;
    for (int64_t id = 0, part; id < n; id += part) {
        struct ctw_cuda_gemm g = h->g;
        part = id == 0 && h->cut > 0 && h->cut < n ? h->cut : n - id;
        g.n = part;
        g.w = (const char *)h->g.w + id * g.ldw * 2;
        if (ctw_cuda_head_tile_hopper(&cu, &g, &op, (int32_t)id, h->states, &done, &err) != CTW_OK ||
            !done) {
            printf("FAILED head: %s\n", done ? err.msg : "declined");
            exit(1);
        }
    }
    if (ctw_cuda_head_join_hopper(&cu, h->states, &op, &err) != CTW_OK) {
        printf("FAILED head: %s\n", err.msg);
        exit(1);
    }
}

static __global__ void make_targets(int32_t *t, int m, int n)
{
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < m)
        t[i] = (int32_t)((i * 2654435761u + 12345) % (unsigned)n);
}

/* One block per row; all its threads scan all logits for the largest, and share the sum. */
static __global__ void compare_head(struct head h, const double *sum, const double *size, counts *out)
{
    __shared__ double part[256];
    int64_t r = blockIdx.x, n = h.g.n;
    const double *x = sum + r * n;
    double best = -INFINITY, total = 0, slack = 0;
    for (int64_t i = 0; i < n; i++) {
        best = fmax(best, x[i] * h.scale);
        slack = fmax(slack, size[r * n + i] * h.scale);
    }
    for (int64_t i = threadIdx.x; i < n; i += 256)
        total += exp(x[i] * h.scale - best);
    part[threadIdx.x] = total;
    __syncthreads();
    if (threadIdx.x != 0)
        return;
    for (int i = 1; i < 256; i++)
        total += part[i];
    double want = x[h.targets[r]] * h.scale - best - log(total);
    /* a logit's error: sums as in compare(), and three roundings */
    double logit = (double)(h.g.k / 16 + 8) / (1 << 23) * slack + 3e-7 * fabs(best);
    double error = fabs(h.out[r].logprob - want) / (2 * logit + 1e-6);
    int32_t id = h.out[r].greedy;
    if (!(error <= 1) || id < 0 || id >= n || x[id] * h.scale < best - 2 * logit)
        atomicAdd(&out->bad, 1ull);
    if (error > out->worst)
        out->worst = error;
}

static void set_half(char *x, int64_t i, uint16_t v)
{
    must(cudaMemcpyAsync(x + 2 * i, &v, 2, cudaMemcpyHostToDevice, cu.stream), "copy");
    must(cudaStreamSynchronize(cu.stream), "copy");
}

static void check_head(void)
{
    const int vocabularies[] = {8, 255, 1000, 2049, 32003};
    const int m = 300, k = 576;
    char *x = (char *)device(m * k * 2), *w = (char *)device(32003 * k * 2);
    double *sum = (double *)device((size_t)m * 32003 * 8);
    double *size = (double *)device((size_t)m * 32003 * 8);
    counts *result = (counts *)device(sizeof(counts));
    struct ctw_head_result *one = (struct ctw_head_result *)device(sizeof(*one)), host[300];
    int32_t *targets = (int32_t *)device(m * 4);
    struct ctw_cuda_head_state *states = (struct ctw_cuda_head_state *)device(128 * m * sizeof(*states));
    struct ctw_head_result *results = (struct ctw_head_result *)device(m * sizeof(*results));
    for (int i = 0; i < 10; i++) {
        struct head h = {}, alone;
        counts c;
        unsigned long long moved = 0;
        h.g.m = m, h.g.n = vocabularies[i / 2], h.g.k = h.g.ldx = h.g.ldw = k;
        h.g.dtype = i % 2 ? CTW_F16 : CTW_BF16;
        h.g.x = x, h.g.w = w;
        h.cut = 2048;
        h.scale = i % 3 ? 1.0f : 0.7f;
        h.targets = targets, h.states = states, h.out = results;
        fill<<<512, 256, 0, cu.stream>>>(x, m * k, h.g.dtype, 1, 11 + i);
        fill<<<512, 256, 0, cu.stream>>>(w, h.g.n * k, h.g.dtype, 3 / sqrtf(k), 12 + i);
        make_targets<<<2, 256, 0, cu.stream>>>(targets, m, (int)h.g.n);
        dim3 grid((unsigned)(h.g.n + 31) / 32, (unsigned)(m + 7) / 8), block(32, 8);
        sums<<<grid, block, 0, cu.stream>>>(h.g, sum, size);
        must(cudaMemsetAsync(states, 0xFF, 128 * m * sizeof(*states), cu.stream), "memset");
        must(cudaMemsetAsync(result, 0, sizeof(c), cu.stream), "memset");
        run_head(&h);
        compare_head<<<m, 256, 0, cu.stream>>>(h, sum, size, result);
        must(cudaMemcpyAsync(&c, result, sizeof(c), cudaMemcpyDeviceToHost, cu.stream), "copy");
        for (int r = 0; r < m; r += 23) {
            alone = h;
            alone.g.m = 1, alone.g.x = x + r * k * 2, alone.targets = targets + r, alone.out = one;
            run_head(&alone);
            moved += differences(one, results + r, sizeof(*one));
        }
        /* Row 5 has a NaN, row 7 an infinity: they and no others have no log-probability. */
        set_half(x, 5 * k + 3, 0x7FFF);
        set_half(x, 7 * k + 3, h.g.dtype == CTW_F16 ? 0x7C00 : 0x7F80);
        run_head(&h);
        must(cudaMemcpyAsync(host, results, sizeof(host), cudaMemcpyDeviceToHost, cu.stream), "copy");
        must(cudaStreamSynchronize(cu.stream), "head");
        int odd = 0;
        for (int r = 0; r < m; r++)
            odd += (r == 5 || r == 7) != (bool)isnan(host[r].logprob);
        n_failed += c.bad || moved || odd;
        printf("%s head, %s, vocabulary %lld: %llu wrong, worst error %.2f of its bound, %llu moved, "
               "%d odd\n",
               c.bad || moved || odd ? "FAILED" : "ok", h.g.dtype == CTW_F16 ? "f16" : "bf16",
               (long long)h.g.n, c.bad, c.worst, moved, odd);
    }
    cudaFree(x), cudaFree(w), cudaFree(sum), cudaFree(size), cudaFree(result), cudaFree(one);
    cudaFree(targets), cudaFree(states), cudaFree(results);
}
