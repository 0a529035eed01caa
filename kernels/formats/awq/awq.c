#include "kernels/formats/awq/decode.h"

#include <inttypes.h>

#include "kernels/formats/check.h"

static enum ctw_status check(struct ctw_weight *w, const struct ctw_quant_args *args,
                             const int64_t *shape_part, struct ctw_err *err)
{
    (void)shape_part;
    enum ctw_status st = ctw_check_targeted(w, args, err);
    if (st != CTW_OK)
        return st;
    if (w->n % 8 != 0)
        return ctw_fail(err, CTW_EUNSUP,
                        "%" PRId64 " outputs are not a multiple of 8, which AWQ needs", w->n);
    w->bits = args->num_bits;
    w->zero_less_one = w->indexed = false;
    return ctw_check_transposed(w, args, w->k, w->n / 8, err);
}

const struct ctw_format ctw_format_awq = {
    .id = CTW_FORMAT_awq,
    .name = "awq",
    .owns = ctw_owns_words,
    .check = check,
    .decode = ctw_awq_decode,
};
