/* Part of test_gemm.cu: sums in fp32 with y's previous content, including tiny and non-finite
 * numbers. */

/* Scales row r of w by 2^-(r % 140); every 11th is 0. Sums thus have all sizes down to subnormal
 * numbers. */
static __global__ void scale_rows(__nv_bfloat16 *w, int64_t k)
{
    for (int64_t i = threadIdx.x; i < k; i += blockDim.x) {
        __nv_bfloat16 *at = &w[blockIdx.x * k + i];
        float by = blockIdx.x % 11 == 5 ? 0 : ldexpf(1, -(int)(blockIdx.x % 140));
        *at = __float2bfloat16_rn(__bfloat162float(*at) * by);
    }
}

/* Addends that make a sum hard: nearly its opposite, subnormal, zero, of its size, or not
 * finite. */
static __global__ void hard_to_add(const float *sum, float *y, int64_t n)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        switch (i / 3 % 6) {
        case 0: y[i] = -__uint_as_float(__float_as_uint(sum[i]) ^ (unsigned)(i & 1)); break;
        case 1: y[i] = __uint_as_float((unsigned)(i * 2654435761u) & 0x807FFFFF); break;
        case 2: y[i] = i & 1 ? -0.0f : 0.0f; break;
        case 3: y[i] = __uint_as_float((unsigned)(i * 2654435761u) & 0x8DFFFFFF); break;
        case 4: y[i] = i % 3 == 0 ? NAN : i % 3 == 1 ? INFINITY : -INFINITY; break;
        default: y[i] = sum[i] * 0.7f;
        }
}

/* All NaN are equal: a NaN's payload does not matter. */
static __global__ void one_nan(float *y, int64_t n)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        if (isnan(y[i]))
            y[i] = __uint_as_float(0x7FFFFFFF);
}

static __global__ void add_plainly(const float *sum, float *y, int64_t n)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        y[i] = sum[i] + y[i];
}

/* For information: cuBLASLt's sums against plain ones. Whether cuBLASLt or our code adds may
 * depend on the number of rows, and kernels/cuda/gemm/gemm_trial.cu tries ordinary numbers only. */
static void sums_of_peer(const struct ctw_cuda_gemm *g, const char *before, const char *want, int64_t n)
{
    struct peer p;
    open_peer(&p, g);
    printf("against plain sums of fp32, cuBLASLt's: half-words that differ:");
    for (int i = 0; i < p.n; i++) {
        must(cudaMemcpyAsync(g->y, before, n * 4, cudaMemcpyDeviceToDevice, cu.stream), "copy");
        run_peer(&p, g, i);
        one_nan<<<256, 256, 0, cu.stream>>>((float *)g->y, n);
        printf(" %.4f%%", 100.0 * (double)differences(want, g->y, n * 4) / (2.0 * (double)n));
    }
    printf("\n");
    close_peer(&p);
}

/* A sum is rounded once, to nearest, and no number counts as zero: bit for bit the sum of the
 * stored product and the previous content, added separately. */
static void check_hard_sums(void)
{
    const int64_t m = 300, n = 1544, k = 64;
    struct ctw_cuda_gemm g = {};
    size_t bytes = (size_t)(m * n) * 4;
    char *x = (char *)device(m * k * 2), *w = (char *)device(n * k * 2);
    char *sum = (char *)device(bytes), *want = (char *)device(bytes), *y = (char *)device(bytes);
    char *before = (char *)device(bytes);
    g.m = m, g.n = g.ldy = n, g.k = g.ldx = g.ldw = k;
    g.dtype = CTW_BF16, g.y_dtype = CTW_F32;
    g.x = x, g.w = w, g.y = sum;
    fill<<<512, 256, 0, cu.stream>>>(x, m * k, CTW_BF16, 1, 11);
    fill<<<512, 256, 0, cu.stream>>>(w, n * k, CTW_BF16, 1, 12);
    scale_rows<<<(unsigned)n, 64, 0, cu.stream>>>((__nv_bfloat16 *)w, k);
    set_half(x, 5 * k + 3, 0x7FFF); /* NaN; below, infinity, which by a row of zeros is NaN */
    set_half(x, 7 * k + 3, 0x7F80);
    run(&g, STORED, CTW_ACT_SILU);
    hard_to_add<<<256, 256, 0, cu.stream>>>((const float *)sum, (float *)y, m * n);
    must(cudaMemcpyAsync(want, y, bytes, cudaMemcpyDeviceToDevice, cu.stream), "copy");
    must(cudaMemcpyAsync(before, y, bytes, cudaMemcpyDeviceToDevice, cu.stream), "copy");
    add_plainly<<<256, 256, 0, cu.stream>>>((const float *)sum, (float *)want, m * n);
    g.y = y, g.add = true;
    run(&g, ADDED, CTW_ACT_SILU);
    one_nan<<<256, 256, 0, cu.stream>>>((float *)want, m * n);
    one_nan<<<256, 256, 0, cu.stream>>>((float *)y, m * n);
    unsigned long long bad = differences(want, y, bytes);
    n_failed += bad != 0;
    printf("%s sums with tiny numbers, near opposites, NaN and infinity: %llu half-words differ\n",
           bad ? "FAILED" : "ok", bad);
    sums_of_peer(&g, before, want, m * n);
    cudaFree(x), cudaFree(w), cudaFree(sum), cudaFree(want), cudaFree(y), cudaFree(before);
}
