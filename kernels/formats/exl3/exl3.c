#include <inttypes.h>
#include <string.h>

#include "kernels/formats/check.h"
#include "kernels/formats/exl3/decode.h"

static bool owns(const struct ctw_part part[CTW_N_PARTS])
{
    return ctw_part_present(&part[CTW_PART_VALUES]) && part[CTW_PART_VALUES].dtype == CTW_I16;
}

/* Elements of n inputs or outputs, padded to whole blocks. */
static int64_t padded(int64_t n)
{
    return (n + CTW_EXL3_BLOCK - 1) / CTW_EXL3_BLOCK * CTW_EXL3_BLOCK;
}

/* The trellis. Its last dimension is 16 times the bits of a weight. */
static enum ctw_status check_trellis(struct ctw_weight *w, struct ctw_err *err)
{
    const struct ctw_part *values = &w->part[CTW_PART_VALUES];
    const int64_t down = padded(w->k) / CTW_EXL3_TILE, right = padded(w->n) / CTW_EXL3_TILE;
    if (values->n_dims != 3 || values->shape[0] != down || values->shape[1] != right)
        return ctw_part_fail(w, CTW_PART_VALUES, err,
                             "I16 [%" PRId64 ", %" PRId64 ", 16 * bits] for a [%" PRId64
                             ", %" PRId64 "] matrix, padded to blocks of 128",
                             down, right, w->n, w->k);
    const int64_t rate = values->shape[2] / 8;
    bool whole = rate % 2 == 0 && rate >= 2 && rate <= 16;
    bool half = rate == 3 || rate == 5 || rate == 7;
    if (values->shape[2] % 8 != 0 || (!whole && !half))
        return ctw_part_fail(w, CTW_PART_VALUES, err,
                             "a last dimension of 16 times 1 to 8 bits, or times 1.5, 2.5 or 3.5");
    if (half && w->codebook != CTW_EXL3_MUL1)
        return ctw_part_fail(w, CTW_PART_VALUES, err,
                             "whole bits: %d.5 bits need the codebook mul1, whose tensor is absent",
                             (int)(rate / 2));
    w->bits = (int)((rate + 1) / 2);
    return CTW_OK;
}

/* suh and svh, or su and sv of the first files. */
static enum ctw_status check_scale(const struct ctw_weight *w, enum ctw_part_kind kind, int64_t n,
                                   struct ctw_err *err)
{
    const struct ctw_part *part = &w->part[kind];
    bool plain = part->dtype == CTW_F16 && ctw_part_has_shape(part, padded(n), -1);
    bool packed = part->dtype == CTW_I16 && ctw_part_has_shape(part, padded(n) / 16, -1);
    if (ctw_part_present(part) && (plain || packed))
        return CTW_OK;
    return ctw_part_fail(w, kind, err, "F16 [%" PRId64 "], or packed signs I16 [%" PRId64 "]",
                         padded(n), padded(n) / 16);
}

static enum ctw_status check(struct ctw_weight *w, const struct ctw_quant_args *args,
                             const int64_t *shape_part, struct ctw_err *err)
{
    (void)shape_part;
    const unsigned parts = 1u << CTW_PART_VALUES | 1u << CTW_PART_SCALE |
                           1u << CTW_PART_COLUMN_SCALE | 1u << CTW_PART_CODEBOOK;
    const char *codebook = ctw_part_name(w->names, w->part, CTW_PART_CODEBOOK);
    enum ctw_status st = ctw_check_targeted(w, args, err);
    w->codebook = !ctw_part_present(&w->part[CTW_PART_CODEBOOK]) ? CTW_EXL3_3INST
                  : strcmp(codebook, "mcg") == 0                 ? CTW_EXL3_MCG
                                                                 : CTW_EXL3_MUL1;
    if (st == CTW_OK)
        st = ctw_parts_only(w, parts, err);
    if (st == CTW_OK && ctw_part_present(&w->part[CTW_PART_CODEBOOK]) &&
        (w->part[CTW_PART_CODEBOOK].dtype != CTW_I32 ||
         !ctw_part_is_scalar(&w->part[CTW_PART_CODEBOOK])))
        st = ctw_part_fail(w, CTW_PART_CODEBOOK, err, "I32 []");
    if (st == CTW_OK)
        st = check_trellis(w, err);
    if (st == CTW_OK)
        st = check_scale(w, CTW_PART_COLUMN_SCALE, w->k, err);
    if (st == CTW_OK)
        st = check_scale(w, CTW_PART_SCALE, w->n, err);
    if (st != CTW_OK)
        return st;
    w->dtype = CTW_F16;
    w->symmetric = true;
    w->group_rows = 1;
    w->group_size = w->k;
    w->n_groups = 1;
    w->scale_stride = 1;
    w->row_bytes = (size_t)w->k * (size_t)w->part[CTW_PART_VALUES].shape[2] / 128; /* on average */
    w->indexed = w->zero_packed = w->whole_codes = w->zero_less_one = false;
    return CTW_OK;
}

/* The multiplier that the codebook's tensor holds, and the library computes with. */
static enum ctw_status check_data(struct ctw_weight *w, const struct ctw_weight_data *data,
                                  struct ctw_err *err)
{
    const struct ctw_part *codebook = &w->part[CTW_PART_CODEBOOK];
    const uint32_t want = w->codebook == CTW_EXL3_MUL1 ? CTW_EXL3_MUL1_FACTOR : CTW_EXL3_MCG_FACTOR;
    if (!ctw_part_present(codebook))
        return CTW_OK;
    uint32_t found = ctw_load_u32(data->part[CTW_PART_CODEBOOK]);
    return found == want
               ? CTW_OK
               : ctw_fail(err, CTW_EUNSUP,
                          "%s: found the multiplier 0x%08X, expected 0x%08X: no other "
                          "codebook of this name is known",
                          ctw_part_name(w->names, w->part, CTW_PART_CODEBOOK), found, want);
}

const struct ctw_format ctw_format_exl3 = {
    .id = CTW_FORMAT_exl3,
    .name = "exl3",
    .owns = owns,
    .check = check,
    .check_data = check_data,
    .decode = ctw_exl3_decode,
    .decode_rows = ctw_exl3_decode_rows,
};
