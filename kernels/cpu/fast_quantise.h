/* Quantised activations: the arithmetic of kernels/quantise.h on vectors, with the same bits. */
#ifndef CTW_KERNELS_CPU_FAST_QUANTISE_H
#define CTW_KERNELS_CPU_FAST_QUANTISE_H

typedef uint32_t vu __attribute__((vector_size(VL * 4)));
typedef int32_t vi __attribute__((vector_size(VL * 4)));

/* v rounded to dtype; a NaN is one of kernels/quantise.h or was widened. */
INLINE vf round_lanes(vf v, const enum ctw_dtype dtype)
{
    if (dtype == CTW_BF16) {
        vu u = (vu)v;
        return (vf)((u + 0x7fffu + (u >> 16 & 1u)) & 0xffff0000u);
    }
    if (dtype == CTW_F16) {
        uint16_t h[VL];
        vf_store_f16(h, v);
        return vf_load_f16(h);
    }
    return v;
}

/* ctw_quantised(), lane by lane; t_dtype is a constant. */
INLINE vf quantised_lanes(vf x, const struct ctw_code_range *r, const struct ctw_quantised_group *g,
                          const enum ctw_dtype t_dtype)
{
    const uint32_t low = (uint32_t)(r->least + 127), up = (uint32_t)(23 - r->fraction);
    vf scale = vf_set1(g->scale), zero = vf_set1(g->zero);
    vf t = round_lanes(vf_div(x, scale), t_dtype);
    t = round_lanes(vf_add(t, zero), t_dtype);
    t = vf_min(vf_set1(r->hi), vf_max(vf_set1(r->lo), t));
    vu e = (vu)t >> 23 & 255u;
    vu above = (vu)((vi)e > (int32_t)low);
    e = (e & above) | (low & ~above);
    vf magic = (vf)((e + up) << 23 | 0x400000u);
    t = vf_sub(vf_add(t, magic), magic);
    return vf_mul(vf_sub(t, zero), scale);
}

/* n values in place, up to whole vectors. */
static void quantise_values(float *v, int64_t n, const struct ctw_code_range *r,
                            const struct ctw_quantised_group *g)
{
    for (int64_t i = 0; i < n; i += VL) {
        vf x = vf_load(v + i);
        x = g->t_dtype == CTW_BF16  ? quantised_lanes(x, r, g, CTW_BF16)
            : g->t_dtype == CTW_F16 ? quantised_lanes(x, r, g, CTW_F16)
                                    : quantised_lanes(x, r, g, CTW_F32);
        vf_store(v + i, x);
    }
}

/* What ctw_quantised_group_of() needs to know of a group; lane by lane. */
struct extent {
    vf lo, hi;
    vu largest;
};

/* n values, up to whole vectors: the rest is overwritten with zeros. */
static void extend(struct extent *e, float *v, int64_t n)
{
    for (int64_t i = n; i < round_up(n, VL); i++)
        v[i] = 0;
    for (int64_t i = 0; i < n; i += VL) {
        vf x = vf_load(v + i);
        vu magnitude = (vu)x & 0x7fffffffu;
        vu above = (vu)((vi)magnitude > (vi)e->largest);
        e->lo = vf_min(x, e->lo);
        e->hi = vf_max(x, e->hi);
        e->largest = (magnitude & above) | (e->largest & ~above);
    }
}

static struct ctw_quantised_group group_of(const struct ctw_op_quantise *op, const struct extent *e)
{
    float lo[VL], hi[VL];
    uint32_t largest[VL];
    vf_store(lo, e->lo);
    vf_store(hi, e->hi);
    memcpy(largest, &e->largest, sizeof(largest));
    for (int i = 1; i < VL; i++) {
        lo[0] = lo[i] < lo[0] ? lo[i] : lo[0];
        hi[0] = hi[i] > hi[0] ? hi[i] : hi[0];
        largest[0] = largest[i] > largest[0] ? largest[i] : largest[0];
    }
    return ctw_quantised_group_of(op->how, op->dtype, lo[0], hi[0], ctw_bits_to_f32(largest[0]));
}

static void quantise_row(const void *arg, int64_t t)
{
    const struct ctw_op_quantise *op = arg;
    const struct ctw_code_range r = ctw_code_range_of(op->how->codes, op->how->bits);
    int64_t n = op->how->group > 0 ? op->how->group : op->dim;
    int64_t from = (op->rows != NULL ? op->rows[t] : t) * op->ldx, to = t * op->ldy;
    float v[ROW_SPAN];
    for (int64_t at0 = 0; at0 < op->dim; at0 += n) {
        struct extent e = {vf_zero(), vf_zero(), (vu)vf_zero()};
        for (int64_t c = 0; c < n; c += ROW_SPAN) {
            int64_t m = min64(ROW_SPAN, n - c);
            widen(v, at(op->x, op->dtype, from + at0 + c), op->dtype, m);
            extend(&e, v, m);
        }
        const struct ctw_quantised_group g = group_of(op, &e);
        for (int64_t c = 0; c < n; c += ROW_SPAN) {
            int64_t m = min64(ROW_SPAN, n - c);
            if (n > ROW_SPAN) /* else v still has them */
                widen(v, at(op->x, op->dtype, from + at0 + c), op->dtype, m);
            quantise_values(v, m, &r, &g);
            narrow(at(op->y, op->dtype, to + at0 + c), op->dtype, v, m);
        }
    }
}

static enum ctw_status fast_quantise(struct ctw_cpu *cpu, const struct ctw_op_quantise *op,
                                     struct ctw_err *err)
{
    (void)err;
    return each_row(cpu, op->n_tok, quantise_row, op);
}

#endif
