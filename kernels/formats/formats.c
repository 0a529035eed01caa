#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "kernels/formats/format.h"
#include "kernels/formats/ggml/ggml_types.h"

#define ROW(name) [CTW_FORMAT_##name] = &ctw_format_##name,
const struct ctw_format *const ctw_formats[] = {CTW_FORMATS(ROW)[CTW_N_FORMATS] = NULL};

#define FORMAT(name) (1u << CTW_FORMAT_##name)
#define DENSE (FORMAT(dense) | FORMAT(dense_transposed))

/* Members of HQQ's metadata, and of the configuration of a module. */
static const char *const hqq_unread[] = {"nbits",
                                         "group_size",
                                         "axis",
                                         "packing",
                                         "unpack_view_dtype",
                                         "quant_scale",
                                         "quant_zero",
                                         "view_as_float",
                                         "compute_dtype",
                                         "offload_meta",
                                         "channel_wise",
                                         "optimize",
                                         "round_zero",
                                         "encoded_state_dict",
                                         "stores_quant_config",
                                         NULL};

static const struct ctw_part_names methods[] = {
    {.method = "compressed-tensors",
     .formats = DENSE | FORMAT(pack_quantized) | FORMAT(nvfp4) | FORMAT(float_quantized) |
                FORMAT(int_quantized) | FORMAT(mxfp8) | FORMAT(mxfp6) | FORMAT(mxfp4),
     .codes = {[CTW_PART_VALUES] = "weight_packed",
               [CTW_PART_SCALE] = "weight_scale",
               [CTW_PART_ZERO_POINT] = "weight_zero_point",
               [CTW_PART_GROUP_INDEX] = "weight_g_idx",
               [CTW_PART_GLOBAL_SCALE] = "weight_global_scale",
               [CTW_PART_SHAPE] = "weight_shape"},
     .stacks = {[CTW_PART_VALUES] = "_packed",
                [CTW_PART_SCALE] = "_scale",
                [CTW_PART_ZERO_POINT] = "_zero_point",
                [CTW_PART_GROUP_INDEX] = "_g_idx",
                [CTW_PART_GLOBAL_SCALE] = "_global_scale",
                [CTW_PART_SHAPE] = "_shape"},
     .values = "weight"},
    /* Scales multiply, although some names contain "inv". */
    {.method = "fp8",
     .formats = DENSE | FORMAT(float_quantized) | FORMAT(mxfp8) | FORMAT(mxfp4),
     .codes = {[CTW_PART_SCALE] = "weight_scale_inv"},
     .also = {[CTW_PART_SCALE] = "weight_scale"},
     .makers = {[CTW_PART_SCALE] = "scale"}, /* DeepSeek V4 */
     .stacks = {[CTW_PART_SCALE] = "_scale_inv"},
     .values = "weight"},
    {.method = "fbgemm_fp8",
     .formats = DENSE | FORMAT(float_quantized),
     .codes = {[CTW_PART_SCALE] = "weight_scale"},
     .values = "weight"},
    {.method = "modelopt",
     .formats = DENSE | FORMAT(float_quantized) | FORMAT(int_quantized) | FORMAT(mxfp8) |
                FORMAT(mxfp4) | FORMAT(nvfp4_modelopt) | FORMAT(modelopt_awq),
     .codes = {[CTW_PART_SCALE] = "weight_scale",
               [CTW_PART_GLOBAL_SCALE] = "weight_scale_2",
               [CTW_PART_COLUMN_SCALE] = "pre_quant_scale"},
     .values = "weight"},
    {.method = "mxfp4",
     .formats = DENSE | FORMAT(mxfp4),
     .codes = {[CTW_PART_VALUES] = "_blocks", [CTW_PART_SCALE] = "_scales"},
     .values = "weight"},
    {.method = "gptq",
     .formats = DENSE | FORMAT(gptq),
     .codes = {[CTW_PART_VALUES] = "qweight",
               [CTW_PART_SCALE] = "scales",
               [CTW_PART_ZERO_POINT] = "qzeros",
               [CTW_PART_GROUP_INDEX] = "g_idx"},
     .values = "weight",
     .needs_config = true},
    {.method = "exl3",
     .formats = DENSE | FORMAT(exl3_table) | FORMAT(exl3),
     .codes = {[CTW_PART_VALUES] = "trellis",
               [CTW_PART_SCALE] = "svh",
               [CTW_PART_COLUMN_SCALE] = "suh",
               [CTW_PART_SIGNS] = "signs",
               [CTW_PART_CODEBOOK] = "mul1"},
     .also = {[CTW_PART_SCALE] = "sv", [CTW_PART_COLUMN_SCALE] = "su", [CTW_PART_CODEBOOK] = "mcg"},
     .values = "weight",
     .unfused = true,
     .padding = CTW_DECODE_BAND},
    {.method = "awq",
     .formats = DENSE | FORMAT(awq),
     .codes = {[CTW_PART_VALUES] = "qweight",
               [CTW_PART_SCALE] = "scales",
               [CTW_PART_ZERO_POINT] = "qzeros"},
     .values = "weight",
     .needs_config = true},
    /* A file of GGUF has no other tensors than values. */
    {.method = "ggml",
     .formats = DENSE | FORMAT(dense_paired) | FORMAT(ggml) | FORMAT(ggml_heads),
     .codes = {[CTW_PART_MORE_VALUES] = "more_values"},
     .values = "weight"},
    {.method = "bitsandbytes",
     .formats = DENSE | FORMAT(bnb_4bit) | FORMAT(bnb_int8),
     .codes = {[CTW_PART_SCALE] = "weight.absmax",
               [CTW_PART_CODE_VALUES] = "weight.quant_map",
               [CTW_PART_SCALE_VALUES] = "weight.nested_quant_map",
               [CTW_PART_SCALE_SCALE] = "weight.nested_absmax",
               [CTW_PART_STATE] = "weight.quant_state.bitsandbytes__nf4",
               [CTW_PART_LAYOUT] = "weight_format"},
     .also = {[CTW_PART_SCALE] = "SCB", [CTW_PART_STATE] = "weight.quant_state.bitsandbytes__fp4"},
     .values = "weight",
     .needs_config = true},
    /* Embeddings have names of their own. */
    {.method = "gemma",
     .formats = DENSE | FORMAT(gemma_int),
     .codes = {[CTW_PART_VALUES] = "embedding_quantized", [CTW_PART_SCALE] = "weight_scale"},
     .also = {[CTW_PART_SCALE] = "embedding_scale"},
     .values = "weight",
     .input_range = "input_activation_scale",
     .output_range = "output_activation_scale"},
    {.method = "mlx",
     .formats = DENSE | FORMAT(mlx_affine) | FORMAT(nvfp4_mlx) | FORMAT(nvfp4) | FORMAT(mxfp8) |
                FORMAT(mxfp4),
     .codes = {[CTW_PART_SCALE] = "scales",
               [CTW_PART_GROUP_BIAS] = "biases",
               [CTW_PART_GLOBAL_SCALE] = "global_scale"},
     .values = "weight",
     .needs_config = true,
     .mlx = true},
    {.method = "quark",
     .formats = DENSE | FORMAT(quark_int) | FORMAT(float_quantized) | FORMAT(int_quantized) |
                FORMAT(mxfp6) | FORMAT(mxfp4) | FORMAT(nvfp4_modelopt),
     .codes = {[CTW_PART_SCALE] = "weight_scale",
               [CTW_PART_ZERO_POINT] = "weight_zero_point",
               [CTW_PART_GLOBAL_SCALE] = "weight_scale_2",
               [CTW_PART_COLUMN_SCALE] = "input_rotation"},
     .values = "weight",
     .needs_config = true},
    {.method = "hqq",
     .formats = DENSE | FORMAT(hqq),
     .codes = {[CTW_PART_VALUES] = "W_q",
               [CTW_PART_SCALE] = "scale",
               [CTW_PART_ZERO_POINT] = "zero",
               [CTW_PART_SHAPE] = "shape"},
     .values = "weight",
     .needs_config = true,
     .unread = hqq_unread},
    {.method = "torchao",
     .formats = DENSE | FORMAT(float_quantized) | FORMAT(int_quantized),
     .codes = {[CTW_PART_VALUES] = "._weight_qdata",
               [CTW_PART_SCALE] = "._weight_scale",
               [CTW_PART_ZERO_POINT] = "._weight_zero_point",
               [CTW_PART_COLUMN_SCALE] = "._weight_act_pre_scale"},
     .values = "weight",
     .needs_config = true},
};

const struct ctw_part_names *ctw_part_names_find(const char *method)
{
    for (size_t i = 0; i < CTW_COUNT(methods); i++)
        if (strcmp(methods[i].method, method) == 0)
            return &methods[i];
    return NULL;
}

const struct ctw_part_names *ctw_part_names_next(const struct ctw_part_names *last)
{
    const struct ctw_part_names *next = last == NULL ? methods : last + 1;
    return next < methods + CTW_COUNT(methods) ? next : NULL;
}

const char *ctw_part_name(const struct ctw_part_names *names,
                          const struct ctw_part part[CTW_N_PARTS], enum ctw_part_kind kind)
{
    const char *name = names->codes[kind];
    if (part[kind].n_dims >= 0 && part[kind].name != NULL)
        return part[kind].name;
    bool packed = part[kind].dtype == CTW_I32 || part[kind].dtype == CTW_U8;
    return kind == CTW_PART_VALUES && (!packed || name == NULL) ? names->values : name;
}

const char *ctw_part_type(const struct ctw_part *part)
{
    return part->block != NULL ? part->block->name : ctw_dtype_name(part->dtype);
}

const char *ctw_part_text(const struct ctw_part *part, char *buf, size_t bytes)
{
    if (part->n_dims < 0) {
        snprintf(buf, bytes, "absent");
        return buf;
    }
    size_t at = (size_t)snprintf(buf, bytes, "%s [", ctw_part_type(part));
    for (int i = 0; i < part->n_dims && at < bytes; i++)
        at +=
            (size_t)snprintf(buf + at, bytes - at, "%s%" PRId64, i > 0 ? ", " : "", part->shape[i]);
    if (at < bytes)
        snprintf(buf + at, bytes - at, "]");
    return buf;
}

/* A description of stored tensors that no format owns. */
static const char *look(const struct ctw_part *part)
{
    bool values = part[CTW_PART_VALUES].n_dims >= 0, scale = part[CTW_PART_SCALE].n_dims >= 0;
    if (!values)
        return "no weight at all";
    enum ctw_dtype dtype = part[CTW_PART_VALUES].dtype;
    if (dtype == CTW_F8_E5M2)
        return "FP8 of 5 exponent bits (E5M2)";
    if (dtype == CTW_F8_E4M3)
        return scale ? "FP8 with scales of an unknown kind" : "FP8 without scales";
    if (dtype == CTW_I8)
        return "int8 without scales";
    if (dtype == CTW_I16)
        return "integers of more than 8 bits";
    if (dtype == CTW_U8)
        return "packed codes without the scales of NVFP4, MXFP4 or MXFP6";
    if (dtype == CTW_I32)
        return "packed integers without scales";
    if (dtype == CTW_U32)
        return "MLX's words without the scales of any mode";
    return "an unknown format";
}

bool ctw_format_is_called(const struct ctw_format *format, const char *name)
{
    return strcmp(format->name, name) == 0 ||
           (format->also != NULL && strcmp(format->also, name) == 0);
}

enum ctw_status ctw_format_find(const struct ctw_format **out, const struct ctw_part_names *names,
                                const struct ctw_part part[CTW_N_PARTS], struct ctw_err *err)
{
    char text[96], scale[96], known[192] = "";
    size_t at = 0;
    for (int i = 0; ctw_formats[i] != NULL; i++) {
        if ((names->formats >> i & 1u) == 0)
            continue;
        if (ctw_formats[i]->owns(part)) {
            *out = ctw_formats[i];
            return CTW_OK;
        }
        if (at < sizeof(known))
            at += (size_t)snprintf(known + at, sizeof(known) - at, "%s%s", at > 0 ? ", " : "",
                                   ctw_formats[i]->name);
    }
    return ctw_fail(err, CTW_EUNSUP,
                    "its tensors look like %s, which is not supported (%s %s, %s %s); formats "
                    "of %s that are supported: %s",
                    look(part), ctw_part_name(names, part, CTW_PART_VALUES),
                    ctw_part_text(&part[CTW_PART_VALUES], text, sizeof(text)),
                    ctw_part_name(names, part, CTW_PART_SCALE),
                    ctw_part_text(&part[CTW_PART_SCALE], scale, sizeof(scale)), names->method,
                    known);
}

/* The reference decodes spans of rows through a buffer. */
enum { BAND_SPAN = CTW_DECODE_ALIGN, ROW_SPAN = 2 * CTW_DECODE_ALIGN };

void ctw_weight_decode(const struct ctw_weight *w, const struct ctw_weight_data *data, int64_t row0,
                       int64_t n_rows, enum ctw_dtype dtype, void *dst, int64_t ld)
{
    float span[CTW_DECODE_BAND * BAND_SPAN];
    const bool bands = w->format->decode_rows != NULL;
    const int64_t rows = bands ? CTW_DECODE_BAND : 1, columns = bands ? BAND_SPAN : ROW_SPAN;
    for (int64_t row = row0, end = row0 + n_rows, n; row < end; row += n) {
        n = rows - row % rows < end - row ? rows - row % rows : end - row;
        for (int64_t c = 0; c < w->k; c += columns) {
            int64_t n_col = w->k - c < columns ? w->k - c : columns;
            ctw_weight_decode_rows(w, data, row, n, c, n_col, span, columns);
            for (int64_t r = 0; r < n; r++)
                for (int64_t i = 0; i < n_col; i++)
                    ctw_store_float(dst, dtype, (row - row0 + r) * ld + c + i,
                                    span[r * columns + i]);
        }
    }
}

struct ctw_weight ctw_weight_rows(const struct ctw_weight *w, int64_t n)
{
    struct ctw_weight rows = *w;
    rows.n = n;
    rows.part[CTW_PART_VALUES].shape[0] = n;
    rows.part[CTW_PART_VALUES].bytes = (size_t)n * w->row_bytes;
    return rows;
}

size_t ctw_weight_bytes(const struct ctw_weight *w)
{
    size_t bytes = 0;
    for (int i = 0; i < CTW_N_PARTS; i++)
        bytes += w->part[i].n_dims >= 0 ? w->part[i].bytes : 0;
    return bytes;
}
