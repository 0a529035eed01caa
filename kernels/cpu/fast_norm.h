/* Norms: a row's groups are widened to fp32, measured, scaled, and narrowed once. */
#ifndef CTW_KERNELS_CPU_FAST_NORM_H
#define CTW_KERNELS_CPU_FAST_NORM_H

/* The sums of dim values x - shift, and of their squares. */
static void measure(const void *x, enum ctw_dtype dtype, int64_t dim, float shift, float *sum,
                    float *squares)
{
    float row[ROW_SPAN];
    vf sums = vf_zero(), lanes = vf_zero();
    for (int64_t c = 0; c < dim; c += ROW_SPAN) {
        int64_t n = min64(ROW_SPAN, dim - c);
        widen(row, at(x, dtype, c), dtype, n);
        for (int64_t i = n; i < round_up(n, VL); i++)
            row[i] = shift;
        for (int64_t i = 0; i < n; i += VL) {
            vf v = vf_sub(vf_load(row + i), vf_set1(shift));
            sums = vf_add(sums, v);
            lanes = vf_fma(v, v, lanes);
        }
    }
    *sum = vf_sum(sums);
    *squares = vf_sum(lanes);
}

/* A value is normalised to (x - mean - rest) * scale: mean + rest is the mean of the values, more
 * precise than one float, so that a mean far larger than the deviation costs no precision. */
struct norm_terms {
    float mean, rest, scale;
};

/* Of one group. Marks the row if its squares are not finite. */
static struct norm_terms norm_terms(const struct ctw_op_norm *op, const void *x, int64_t row)
{
    struct norm_terms terms = {0, 0, 1};
    const float n = (float)op->dim;
    float sum, squares;
    if (op->kind == CTW_NORM_NONE && op->bad == NULL)
        return terms;
    measure(x, op->x_dtype, op->dim, 0, &sum, &squares);
    if (op->bad != NULL && op->bad[row] < 0 && !isfinite(squares))
        op->bad[row] = op->stamp;
    if (op->kind == CTW_NORM_NONE)
        return terms;
    float variance = squares / n;
    const bool cutoff = op->kind == CTW_NORM_CUTOFF;
    if (op->kind == CTW_NORM_LAYER || cutoff) {
        terms.mean = sum / n;
        measure(x, op->x_dtype, op->dim, terms.mean, &sum, &squares);
        terms.rest = sum / n;
        variance = squares / n - terms.rest * terms.rest;
        if (variance < 0) /* NaN stays */
            variance = 0;
    }
    if (cutoff)
        terms.rest += op->eps * sqrtf(variance);
    else
        terms.scale = 1.0f / sqrtf(variance + op->eps);
    return terms;
}

/* row = factor * (row + bias) + y for n columns from `col` of a group's weights on. */
static void norm_more(const struct ctw_op_norm *op, float *row, int64_t col, const void *y,
                      int64_t n)
{
    float other[ROW_SPAN];
    const vf factor = vf_set1(op->factor);
    if (op->bias != NULL) {
        widen(other, at(op->bias, op->bias_dtype, col), op->bias_dtype, n);
        for (int64_t i = 0; i < n; i += VL)
            vf_store(row + i, vf_add(vf_load(row + i), vf_load(other + i)));
    }
    if (op->add)
        widen(other, y, op->dtype, n);
    for (int64_t i = 0; i < n; i += VL) {
        vf v = vf_load(row + i);
        vf_store(row + i, op->add ? vf_fma(v, factor, vf_load(other + i)) : vf_mul(v, factor));
    }
}

/* Group g of row t of y, from row `from` of x. */
static void norm_group(const struct ctw_op_norm *op, int64_t t, int64_t from, int64_t g)
{
    float row[ROW_SPAN], weight[ROW_SPAN];
    const void *x = at(op->x, op->x_dtype, from * op->ldx + g * op->dim);
    int64_t own = op->own_weights ? g * op->dim : 0;
    const struct norm_terms terms = norm_terms(op, x, from);
    const vf mean = vf_set1(terms.mean), rest = vf_set1(terms.rest), scale = vf_set1(terms.scale);
    const vf offset = vf_set1(op->weight != NULL ? op->weight_offset : 0);
    for (int64_t c = 0; c < op->dim; c += ROW_SPAN) {
        int64_t n = min64(ROW_SPAN, op->dim - c);
        void *y = at(op->y, op->dtype, t * op->ldy + g * op->dim + c);
        widen(row, at(x, op->x_dtype, c), op->x_dtype, n);
        if (op->weight != NULL)
            widen(weight, at(op->weight, op->weight_dtype, own + c), op->weight_dtype, n);
        for (int64_t i = 0; i < n; i += VL) {
            vf v = vf_sub(vf_sub(vf_load(row + i), mean), rest);
            vf w = op->weight != NULL ? vf_add(vf_load(weight + i), offset) : vf_set1(1);
            if (op->kind == CTW_NORM_CUTOFF) /* NaN stays */
                v = vf_select_le(v, vf_zero(), vf_zero(), v);
            vf_store(row + i, vf_mul(vf_mul(v, scale), w));
        }
        if (op->bias != NULL || op->factor != 1 || op->add)
            norm_more(op, row, own + c, y, n);
        narrow(y, op->dtype, row, n);
    }
}

static void norm_row(const void *arg, int64_t t)
{
    const struct ctw_op_norm *op = arg;
    for (int64_t g = 0; g < op->n_groups; g++)
        norm_group(op, t, op->rows == NULL ? t : op->rows[t], g);
}

static enum ctw_status fast_norm(struct ctw_cpu *cpu, const struct ctw_op_norm *op,
                                 struct ctw_err *err)
{
    (void)err;
    return each_row(cpu, op->n_tok, norm_row, op);
}

#endif
