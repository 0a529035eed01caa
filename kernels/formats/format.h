/*
 * Weight formats. A weight is one matrix [n, k] (output features, input features) in the
 * checkpoint's own bytes, described by struct ctw_weight (no pointers to data) and, while its
 * layer is acquired, struct ctw_weight_data (where each part lies in the backend's memory).
 *
 * A format says which tensors ("parts") make up a weight, checks them, and decodes spans of rows.
 * Decoding is bit-equal to compressed-tensors' decompress(): the value in the weight's `dtype`,
 * widened to fp32. To add a format: one folder here with a .c file (checks) and a decode.h (the
 * arithmetic, plain C that every backend compiles), and a line each in list.h and all.h.
 */
#ifndef CTW_KERNELS_FORMAT_H
#define CTW_KERNELS_FORMAT_H

#include <stdbool.h>

#include "base/status.h"
#include "kernels/dtype.h"
#include "kernels/formats/list.h"

#define CTW_FORMAT_ID(name) CTW_FORMAT_##name,
enum ctw_format_id { CTW_FORMATS(CTW_FORMAT_ID) CTW_N_FORMATS };
#undef CTW_FORMAT_ID

enum ctw_part_kind {
    CTW_PART_VALUES,       /* weight or weight_packed */
    CTW_PART_SCALE,        /* weight_scale */
    CTW_PART_ZERO_POINT,   /* weight_zero_point */
    CTW_PART_GROUP_INDEX,  /* weight_g_idx */
    CTW_PART_GLOBAL_SCALE, /* weight_global_scale */
    CTW_PART_SHAPE,        /* weight_shape: read when opening, never by a decoder */
    CTW_N_PARTS
};

enum { CTW_MAX_DIMS = 4 };

/* One tensor of a weight as found in the file; n_dims -1: absent. */
struct ctw_part {
    enum ctw_dtype dtype;
    int n_dims;
    int64_t shape[CTW_MAX_DIMS];
    size_t bytes;
};

enum ctw_strategy {
    CTW_STRATEGY_TENSOR,
    CTW_STRATEGY_CHANNEL,
    CTW_STRATEGY_GROUP,
    CTW_STRATEGY_BLOCK,
    CTW_STRATEGY_TENSOR_GROUP
};

/* What quantization_config says of a weight (compressed-tensors' QuantizationArgs). */
struct ctw_quant_args {
    bool present; /* false: no config group targets this weight, it must be dense */
    int num_bits;
    bool is_float; /* type: "float", else "int" */
    bool symmetric;
    enum ctw_strategy strategy;
    int64_t group_size; /* 0 where the strategy has none */
    bool actorder_group;
    const char *format; /* "pack-quantized", ...; NULL: not said */
};

struct ctw_format;

/* Matrices are at most this large in each direction, so that k * bits and the like fit. */
enum { CTW_MAX_DIM = 1 << 28 };

struct ctw_weight {
    const struct ctw_format *format;
    int64_t n, k;         /* logical shape */
    enum ctw_dtype dtype; /* of the decoded values: F32, BF16 or F16 */
    int bits;             /* of one stored value, for reports and decoders */
    bool symmetric;       /* no zero points are stored: the code 2^(bits-1) is 0 */
    int64_t group_size;   /* columns that share a scale; k where a whole row does */
    int64_t n_groups;     /* scales in a row */
    int64_t scale_stride; /* scales (and unpacked zero points) from a row to the next: n_groups, or
                             0 where one serves the whole matrix */
    size_t row_bytes;     /* of the values, from a row to the next */
    bool indexed;         /* column c's group is GROUP_INDEX[c] (int32), else c / group_size */
    bool zero_packed;     /* zero points packed along rows (int32), else one int8 each */
    bool whole_codes;     /* pack-quantized of old: no code crosses a word's end */
    struct ctw_part part[CTW_N_PARTS];
};

struct ctw_weight_data {
    const void *part[CTW_N_PARTS]; /* NULL: absent. Not necessarily aligned for its dtype. */
};

/* Spans handed to a decoder start at a multiple of this many columns. */
enum { CTW_DECODE_ALIGN = 256 };

/*
 * Decodes columns col0 .. col0+n_col-1 of one row into dst [n_col], fp32 holding values of
 * w->dtype exactly. col0 is a multiple of CTW_DECODE_ALIGN. Host memory.
 */
typedef void ctw_decode_fn(const struct ctw_weight *w, const struct ctw_weight_data *data,
                           int64_t row, int64_t col0, int64_t n_col, float *dst);

struct ctw_format {
    enum ctw_format_id id; /* index in ctw_formats[] and in the backends' decoder tables */
    const char *name;      /* as in quantization_config's "format" */
    /*
     * Do these parts, by presence and dtype, belong to this format? (The stored tensors decide;
     * the configuration is then checked against them.)
     */
    bool (*owns)(const struct ctw_part part[CTW_N_PARTS]);
    /*
     * Checks the parts against each other, against args and against the shape [n, k] that the
     * architecture needs, and fills every field of *w but format and part (which are set).
     * `shape_part` is the content of the weight_shape tensor (two values), or NULL if absent.
     * CTW_EFORMAT / CTW_EUNSUP: the message says which tensor, found, expected; the caller puts
     * the file and the weight's name before it.
     */
    enum ctw_status (*check)(struct ctw_weight *w, const struct ctw_quant_args *args,
                             const int64_t *shape_part, struct ctw_err *err);
    /*
     * Checks contents that decoding relies on (group indices in range) and sets what depends on
     * them (`indexed`). Called once, on host memory, before the first decode. NULL: nothing to do.
     */
    enum ctw_status (*check_data)(struct ctw_weight *w, const struct ctw_weight_data *data,
                                  struct ctw_err *err);
    ctw_decode_fn *decode; /* the definition */
};

/* In the order of list.h, NULL-terminated. */
extern const struct ctw_format *const ctw_formats[];

/*
 * The format of these parts: the first whose owns() holds. CTW_EUNSUP, naming the parts and what
 * they look like, when none does.
 */
enum ctw_status ctw_format_find(const struct ctw_format **out,
                                const struct ctw_part part[CTW_N_PARTS],
                                struct ctw_err *err) CTW_MUST_CHECK;

/*
 * The i-th name that a part may have in a file, as the tensor name's last component; NULL past the
 * last. All have one but VALUES: "weight_packed", "weight".
 */
const char *ctw_part_name(enum ctw_part_kind kind, int i);

/*
 * "BF16 [64, 128]" (or "absent") in buf, which it returns. For messages.
 */
const char *ctw_part_text(const struct ctw_part *part, char *buf, size_t bytes);

/*
 * Decodes rows row0 .. row0+n_rows-1 whole into dst [n_rows, ld] of `dtype` (F32, BF16, F16),
 * rounding once if dtype is narrower than w->dtype. ld is in elements. The definition, slow.
 */
void ctw_weight_decode(const struct ctw_weight *w, const struct ctw_weight_data *data, int64_t row0,
                       int64_t n_rows, enum ctw_dtype dtype, void *dst, int64_t ld);

/* Bytes of all parts. */
size_t ctw_weight_bytes(const struct ctw_weight *w);

#endif
