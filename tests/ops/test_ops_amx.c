/*
 * The variant `amx`, on the processor's tiles and on emulated ones, each if it runs here. Sums have
 * exactly the bits of TDPBF16PS as Intel defines it (kernels/cpu/amx_tiles.h), which is written
 * once more here, number by number; and the products of both have equal bits.
 */
#include "ops.h"

enum { STEP = 32, MOST_K = 700 };

static const char *const names[] = {"amx", "amx-emulated"};

/* NULL: the variant does not run here. */
static struct ctw_backend *amx(size_t i, int n_threads)
{
    for (int v = 0; ctw_cpu_variants[v] != NULL; v++)
        if (strcmp(ctw_cpu_variants[v]->name, names[i]) == 0 && runs_here(v) && !left_out(names[i]))
            return backend(names[i], n_threads);
    return NULL;
}

/* ---- the definition ----------------------------------------------------------------------- */

static float flushed(float v)
{
    return fabsf(v) < 0x1p-126f ? copysignf(0, v) : v;
}

/* The sum over k as products in tiles have it: steps of 32, of which the even and the odd products
 * are a chain each. */
static float defined_sum(const float *x, const float *w, int64_t k)
{
    float sum = 0;
    for (int64_t k0 = 0; k0 < k; k0 += STEP) {
        float part[2] = {0, 0};
        for (int64_t i = k0; i < k0 + STEP; i++) {
            const float a = i < k ? flushed(x[i]) : 0, b = i < k ? flushed(w[i]) : 0;
            part[i % 2] = flushed(fmaf(a, b, part[i % 2]));
        }
        sum = flushed(sum + flushed(part[0] + part[1]));
    }
    return sum;
}

static bool same_float(float a, float b)
{
    return isnan(b) ? isnan(a) : memcmp(&a, &b, sizeof(a)) == 0;
}

/* ---- products ----------------------------------------------------------------------------- */

/* Rows whose products are of ordinary sizes, rows whose sums and partial sums are about 2^-126, and
 * rows that overflow or are not finite. */
static float scale_of_row(int64_t row)
{
    static const float scales[] = {1, 0x1p-60f, 0x1p-63f, 1, 0x1p62f, 0x1p-126f, 3};
    return scales[row % (int64_t)CTW_COUNT(scales)];
}

static struct buf rows_of(int64_t n, int64_t k)
{
    struct buf b = buf_random(CTW_BF16, n * k, 1, 2);
    for (int64_t i = 0; i < n * k; i++)
        ctw_store_float(b.p, CTW_BF16, i, ctw_load_float(b.p, CTW_BF16, i) * scale_of_row(i / k));
    return b;
}

static void products_have_the_bits_of_the_definition(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {{1, 1, 1},     {1, 33, 64},     {16, 32, 32},
                                        {17, 40, 33},  {31, 70, 31},    {33, 129, 96},
                                        {50, 64, 385}, {97, 65, MOST_K}};
    for (size_t s = 0; s < CTW_COUNT(shapes); s++) {
        const int64_t m = shapes[s][0], n = shapes[s][1], k = shapes[s][2];
        struct test_weight w;
        weight_open(&w, W_BF16, n, k, 0);
        struct buf x = rows_of(m, k), values = rows_of(n, k);
        memcpy(w.part[CTW_PART_VALUES].p, values.p, values.bytes);
        float *row = calloc((size_t)((m + n) * k), sizeof(*row)), *column = row + m * k;
        assert_non_null(row);
        for (int64_t i = 0; i < m * k; i++)
            row[i] = ctw_load_float(x.p, CTW_BF16, i);
        for (int64_t i = 0; i < n * k; i++)
            column[i] = ctw_load_float(values.p, CTW_BF16, i);
        for (size_t v = 0; v < CTW_COUNT(names); v++) {
            struct ctw_backend *be = amx(v, 1 + (int)(s % 3));
            if (be == NULL)
                continue;
            struct buf y = buf_open((size_t)(m * n) * sizeof(float), 0);
            memset(y.p, 0, y.bytes);
            OK(ctw_linear(be,
                          &(struct ctw_op_linear){.shards = &w.shard,
                                                  .n_shards = 1,
                                                  .dtype = CTW_BF16,
                                                  .residual_dtype = CTW_F32,
                                                  .epilogue = CTW_EPI_ADD,
                                                  .n_tok = m,
                                                  .x = x.p,
                                                  .ldx = k,
                                                  .y = y.p,
                                                  .ldy = n},
                          &last_err));
            for (int64_t i = 0; i < m * n; i++) {
                const float want = 0 + defined_sum(row + i / n * k, column + i % n * k, k);
                if (!same_float(((float *)y.p)[i], want))
                    fail_msg("%s, m %" PRId64 " n %" PRId64 " k %" PRId64 ", element %" PRId64
                             ": %a, expected %a",
                             names[v], m, n, k, i, (double)((float *)y.p)[i], (double)want);
            }
            buf_close(&y);
            ctw_backend_close(be);
        }
        free(row);
        buf_close(&x);
        buf_close(&values);
        weight_close(&w);
    }
}

/* ---- the processor's tiles and the emulated ones -------------------------------------------- */

enum { TOKENS = 131, VOCAB = 304, HIDDEN = 192 };

static struct buf logits_of(struct ctw_backend *be, const struct test_weight *w,
                            const struct buf *x)
{
    enum { LD = (VOCAB + CTW_LOGITS_ALIGN - 1) / CTW_LOGITS_ALIGN * CTW_LOGITS_ALIGN };
    struct buf logits = buf_open((size_t)(TOKENS * LD) * sizeof(float), 0);
    memset(logits.p, 0, logits.bytes);
    struct ctw_head_norm norms[TOKENS];
    struct ctw_head_result out[TOKENS];
    int32_t targets[TOKENS] = {0};
    OK(ctw_head(be,
                &(struct ctw_op_head){.weight = &w->shard,
                                      .dtype = CTW_BF16,
                                      .scale = 1,
                                      .n_vocab = VOCAB,
                                      .n_rows = TOKENS,
                                      .x = x->p,
                                      .targets = targets,
                                      .out = out,
                                      .logits = logits.p,
                                      .ld_logits = LD,
                                      .norms = norms},
                &last_err));
    return logits;
}

/* Of a compressed weight, whose decoder is compiled for each variant. Attention's exponentials are
 * in vectors of the variant, so its bits differ. */
static void heads_have_the_bits_of_the_emulation(void **state)
{
    (void)state;
    struct ctw_backend *be[2] = {amx(0, 2), amx(1, 3)};
    static const enum weight_kind kinds[] = {W_BF16, W_BF16_TRANSPOSED, W_NVFP4, W_GPTQ};
    if (be[0] == NULL || be[1] == NULL)
        printf("skipped: this machine does not run both variants\n");
    for (size_t i = 0; i < CTW_COUNT(kinds) && be[0] != NULL && be[1] != NULL; i++) {
        struct test_weight w;
        weight_open(&w, kinds[i], VOCAB, HIDDEN, 0);
        struct buf x = buf_random(CTW_BF16, TOKENS * HIDDEN, 1, 0);
        struct buf a = logits_of(be[0], &w, &x), b = logits_of(be[1], &w, &x);
        if (memcmp(a.p, b.p, a.bytes) != 0)
            fail_msg("weight %d: the processor's tiles and the emulated ones differ",
                     (int)kinds[i]);
        buf_close(&a);
        buf_close(&b);
        buf_close(&x);
        weight_close(&w);
    }
    for (int i = 0; i < 2; i++)
        ctw_backend_close(be[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(products_have_the_bits_of_the_definition),
        cmocka_unit_test(heads_have_the_bits_of_the_emulation),
    };
    return cmocka_run_group_tests(tests, ops_setup, NULL);
}
