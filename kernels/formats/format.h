/*
 * Weight formats. A weight is one matrix [n, k] (output features, input features) in the
 * checkpoint's own bytes, described by struct ctw_weight (no pointers to data) and, while its layer
 * is acquired, by struct ctw_weight_data (the address of each part in the backend's memory).
 *
 * A format defines which tensors ("parts") make up a weight, checks them, and decodes spans of
 * rows. Decoding is bit-equal to compressed-tensors' decompress(): the value in the weight's
 * `dtype`, widened to fp32. To add a format: one folder here with a .c file (checks) and a decode.h
 * (the arithmetic, plain C that every backend compiles), one line in list.h and one in all.h.
 */
#ifndef CTW_KERNELS_FORMAT_H
#define CTW_KERNELS_FORMAT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "kernels/dtype.h"
#include "kernels/formats/list.h"

#define CTW_FORMAT_ID(name) CTW_FORMAT_##name,
enum ctw_format_id { CTW_FORMATS(CTW_FORMAT_ID) CTW_N_FORMATS };
#undef CTW_FORMAT_ID

enum ctw_part_kind {
    CTW_PART_VALUES,
    CTW_PART_SCALE,
    CTW_PART_ZERO_POINT,
    CTW_PART_GROUP_INDEX,
    CTW_PART_GLOBAL_SCALE,
    CTW_PART_COLUMN_SCALE, /* a factor of each column */
    CTW_PART_SIGNS,        /* of each column: rotated embeddings */
    CTW_PART_GROUP_BIAS,   /* a number for each scale, added to the product */
    CTW_PART_CODE_VALUES,  /* the values of codes */
    CTW_PART_SCALE_VALUES, /* the values of scales that are codes */
    CTW_PART_SCALE_SCALE,  /* factors of those */
    CTW_PART_MORE_VALUES,  /* of other rows of the matrix */
    CTW_PART_SHAPE,        /* from here on: read on opening, never by a decoder */
    CTW_PART_CODEBOOK,     /* its name counts */
    CTW_PART_STATE,        /* JSON */
    CTW_PART_LAYOUT,       /* a number */
    CTW_N_PARTS
};

enum { CTW_MAX_DIMS = 4 };

/*
 * What a quantisation method calls the parts of a weight: last components of tensors' names. A name
 * that begins with '_' or '.' follows the module's without another dot.
 */
struct ctw_part_names {
    const char *method;              /* as in quantization_config's "quant_method" */
    uint32_t formats;                /* of its tensors: bits 1 << enum ctw_format_id */
    const char *codes[CTW_N_PARTS];  /* NULL: the method has no such part */
    const char *also[CTW_N_PARTS];   /* another name that files have; NULL: none */
    const char *makers[CTW_N_PARTS]; /* another one, of a model's own makers; NULL: none */
    /* The same of a stack that is no module, as transformers 5 and llm-compressor save it from
     * memory. */
    const char *stacks[CTW_N_PARTS];
    const char *values; /* VALUES, if the values themselves are stored */
    bool needs_config;  /* the tensors alone do not show the meaning of their codes */
    bool unfused;       /* stores fused projections as modules of their own, and a head of its own
                           beside a tied embedding */
    int64_t padding;    /* biases may be padded to a multiple of this; 0: they are not */
    bool mlx;           /* see ctw_parts_as_mlx() */
    /* Last components of other tensors of a module, which say nothing more; NULL-terminated. */
    const char *const *unread;
    /* Static scales of int8 activations (a scale of 0: not quantised). NULL: not of this method. */
    const char *input_range, *output_range;
};

/* NULL: the method is not supported. */
const struct ctw_part_names *ctw_part_names_find(const char *method);
/* The method after *last, or the first (last NULL); NULL: no more. */
const struct ctw_part_names *ctw_part_names_next(const struct ctw_part_names *last);

struct ctw_block_type; /* kernels/formats/ggml/ggml_types.h */

/* Does a decoder need the part? */
static inline bool ctw_part_is_decoded(int kind)
{
    return kind < CTW_PART_SHAPE;
}

/* One tensor of a weight, as found in the file; n_dims -1: absent. */
struct ctw_part {
    enum ctw_dtype dtype;
    const struct ctw_block_type *block; /* NULL: plain values of dtype. Else dtype is U8, and shape
                                           counts values. */
    const char *name; /* as stored, for messages; NULL: as the method's codes say */
    bool transposed;  /* VALUES: the module (a Conv1D) stores [k, n]. No file says so; the caller
                         sets it. */
    int64_t heads;  /* VALUES, transposed: so many stacked matrices, each [k, n / heads], whose rows
                       follow one another; 0: one */
    int64_t paired; /* VALUES: heads of this many rows are stored in the order of RoPE's pairs
                       (ctw_stored_row()); 0: rows are in order */
    int64_t sections; /* VALUES: may be quantised in so many parts of equal rows, each of which has
                         blocks of its own; 0: as a whole */
    int n_dims;
    int64_t shape[CTW_MAX_DIMS];
    size_t bytes;
};

/*
 * MLX stores the codes of its float modes in words (U32), and every scale of these as a byte (U8).
 * Describes such parts as the bytes of mxfp4, mxfp8 or nvfp4 that they are; the number of bytes
 * that share a scale tells which. The file's bytes are the same in either description.
 */
void ctw_parts_as_mlx(struct ctw_part part[CTW_N_PARTS]);

enum ctw_strategy {
    CTW_STRATEGY_TENSOR,
    CTW_STRATEGY_CHANNEL,
    CTW_STRATEGY_GROUP,
    CTW_STRATEGY_BLOCK,
    CTW_STRATEGY_TENSOR_GROUP
};

/* What quantization_config specifies for a weight (compressed-tensors' QuantizationArgs). */
struct ctw_quant_args {
    bool present; /* false: no config group targets this weight, so it must be dense */
    int num_bits;
    bool is_float; /* type: "float", else "int" */
    bool symmetric;
    enum ctw_strategy strategy;
    int64_t group_size;             /* 0 if the strategy has none */
    int64_t block_rows, block_cols; /* of strategy block, else 0 */
    bool actorder_group;
    bool zero_less_one;   /* zero points are stored less 1 */
    enum ctw_dtype dtype; /* of the values, if the method states one */
    float scale_offset;   /* added to scales that are codes */
    bool fp4;             /* bitsandbytes: codes are FP4, not NF4 */
    bool e3m2;            /* of 6-bit floats: E3M2, not E2M3 */
    bool is_signed;       /* Quark: codes are in two's complement */
    bool interleaved;     /* Quark: words have AWQ's order */
    bool by_shape;        /* if the shapes of the tensors show other bits or groups, these count */
    bool by_shape_alone;  /* the configuration does not say which values share a scale */
    const char *format;   /* "pack-quantized", ...; NULL: not specified */
};

struct ctw_format;

/* The largest size of a matrix in each dimension, so that k * bits and similar products fit. */
enum { CTW_MAX_DIM = 1 << 28 };

struct ctw_weight {
    const struct ctw_format *format;
    const struct ctw_part_names *names; /* the method's, for messages */
    int64_t n, k;                       /* logical shape */
    enum ctw_dtype dtype;               /* dtype of the decoded values: F32, BF16 or F16 */
    int bits;                           /* bits of one code, for reports and decoders */
    bool symmetric;                     /* no zero points are stored: the code 2^(bits-1) is 0 */
    int64_t group_rows;   /* rows that share their scales: 1, or the height of a block */
    int64_t section_rows; /* blocks begin anew after so many rows; 0: they do not */
    int64_t group_size;   /* columns that share a scale; k if a whole row shares one. Blocks: their
                             width, which need not divide k */
    int64_t n_groups;     /* scales per row */
    int64_t scale_stride; /* scales (and unpacked zero points) from one row (of blocks) to the next:
                             n_groups, or 0 if one scale serves the whole matrix */
    size_t row_bytes;     /* bytes of values from one row to the next */
    bool indexed;         /* column c's group is GROUP_INDEX[c] (int32), else c / group_size */
    bool zero_packed;     /* zero points are packed along rows (int32), else one int8 each */
    bool zero_less_one;   /* zero points are stored less 1: GPTQ, version 1 */
    int64_t paired;       /* as in struct ctw_part */
    float scale_offset;   /* added to scales that are codes */
    bool fp4;             /* bitsandbytes: codes are FP4, not NF4 */
    bool e3m2;            /* of mxfp6: codes are E3M2, not E2M3 */
    bool is_signed;       /* of quark_int: codes are in two's complement */
    bool interleaved;     /* of quark_int: words have AWQ's order */
    bool by_input;        /* of quark_int: a line of codes is the outputs of one input; of hqq: a
                             group is a column of W_q */
    bool whole_codes;     /* old pack-quantized layout: no code crosses a word boundary */
    uint32_t block;       /* of ggml, ggml_heads: enum ctw_block_id, the type of VALUES' blocks;
                             0 of a plain type */
    uint32_t more_block;  /* the same of MORE_VALUES */
    int64_t key_rows, value_rows; /* of ggml_heads: rows of each head */
    int64_t rows_of_head;         /* of dense_transposed: rows of each stacked matrix */
    int codebook;                 /* of exl3: the function from codes to values */
    struct ctw_part part[CTW_N_PARTS];
};

/* The stored row that is this row of the matrix. GGUF files of some families store the rows of each
 * head of queries and keys so that the two halves that RoPE rotates together are adjacent. */
CTW_HD int64_t ctw_stored_row(const struct ctw_weight *w, int64_t row)
{
    if (w->paired == 0)
        return row;
    int64_t i = row % w->paired, half = w->paired / 2;
    return row - i + 2 * (i % half) + i / half;
}

/* The row of scales that is a row's, where scales have rows. */
CTW_HD int64_t ctw_scale_row(const struct ctw_weight *w, int64_t row)
{
    if (w->group_rows == 1)
        return row;
    if (w->section_rows == 0)
        return row / w->group_rows;
    int64_t rows = (w->section_rows + w->group_rows - 1) / w->group_rows;
    return row / w->section_rows * rows + row % w->section_rows / w->group_rows;
}

struct ctw_weight_data {
    const void *part[CTW_N_PARTS]; /* NULL: absent. May be unaligned for its dtype. */
};

/* Spans passed to a decoder start at a multiple of this many columns. */
enum { CTW_DECODE_ALIGN = 256 };

/*
 * Decodes columns col0 .. col0+n_col-1 of one row into dst [n_col], fp32 holding values of w->dtype
 * exactly. col0 is a multiple of CTW_DECODE_ALIGN. Host memory.
 */
typedef void ctw_decode_fn(const struct ctw_weight *w, const struct ctw_weight_data *data,
                           int64_t row, int64_t col0, int64_t n_col, float *dst);

/*
 * Rows whose values depend on each other are decoded in bands: rows that start at a multiple of
 * CTW_DECODE_BAND. Decodes rows row0 .. row0+n_rows-1, any rows, into dst [n_rows, ld] in the same
 * way; whole bands cost least.
 */
enum { CTW_DECODE_BAND = 128 };
typedef void ctw_decode_rows_fn(const struct ctw_weight *w, const struct ctw_weight_data *data,
                                int64_t row0, int64_t n_rows, int64_t col0, int64_t n_col,
                                float *dst, int64_t ld);

struct ctw_format {
    enum ctw_format_id id; /* index in ctw_formats[] and in the backends' decoder tables */
    const char *name;      /* as in quantization_config's "format", if that can name it */
    const char *also;      /* another name, perhaps of several formats; NULL: none */
    /*
     * Do these parts, by presence and dtype, belong to this format? (The stored tensors decide; the
     * configuration is checked against them afterwards.)
     */
    bool (*owns)(const struct ctw_part part[CTW_N_PARTS]);
    /*
     * Checks the parts against each other, against args and against the shape [n, k] that the
     * architecture needs, and fills every field of *w except format, names and part (which are
     * already set; format may become another one that has the same bytes). `shape_part` is the
     * content of the weight_shape tensor (two values), or NULL if absent. CTW_EFORMAT / CTW_EUNSUP:
     * the message states the tensor, what was found and what was expected; the caller prepends the
     * file and the weight's name.
     */
    enum ctw_status (*check)(struct ctw_weight *w, const struct ctw_quant_args *args,
                             const int64_t *shape_part, struct ctw_err *err);
    /*
     * Checks contents that decoding relies on (group indices in range) and sets the fields that
     * depend on them (`indexed`). Called once, on host memory, before the first decode. NULL:
     * nothing to check.
     */
    enum ctw_status (*check_data)(struct ctw_weight *w, const struct ctw_weight_data *data,
                                  struct ctw_err *err);
    ctw_decode_fn *decode; /* the reference decoder */
    /* The same for bands. NULL: every row is decoded by itself. */
    ctw_decode_rows_fn *decode_rows;
};

#define CTW_FORMAT_DECLARE(name) extern const struct ctw_format ctw_format_##name;
CTW_FORMATS(CTW_FORMAT_DECLARE)
#undef CTW_FORMAT_DECLARE
/* In the order of list.h, NULL-terminated. */
extern const struct ctw_format *const ctw_formats[];

/* May quantization_config call the format so? */
bool ctw_format_is_called(const struct ctw_format *format, const char *name) CTW_MUST_CHECK;

/*
 * The format of a method's parts: the first format of the method whose owns() returns true.
 * CTW_EUNSUP if there is none; the message names the parts and describes them.
 */
enum ctw_status ctw_format_find(const struct ctw_format **out, const struct ctw_part_names *names,
                                const struct ctw_part part[CTW_N_PARTS],
                                struct ctw_err *err) CTW_MUST_CHECK;

/* What the file calls a part of the weight, or would call it: "weight_scale". For messages. */
const char *ctw_part_name(const struct ctw_part_names *names,
                          const struct ctw_part part[CTW_N_PARTS], enum ctw_part_kind kind);

/* "BF16", "Q4_K": the type of the stored values. */
const char *ctw_part_type(const struct ctw_part *part);
/*
 * Writes "BF16 [64, 128]" (or "absent") to buf and returns buf. For messages.
 */
const char *ctw_part_text(const struct ctw_part *part, char *buf, size_t bytes);

/*
 * Decodes whole rows row0 .. row0+n_rows-1 into dst [n_rows, ld] of `dtype` (F32, BF16, F16),
 * rounding once if dtype is narrower than w->dtype. ld is in elements. The reference; slow.
 */
void ctw_weight_decode(const struct ctw_weight *w, const struct ctw_weight_data *data, int64_t row0,
                       int64_t n_rows, enum ctw_dtype dtype, void *dst, int64_t ld);

/* Decodes columns col0 .. col0+n_col-1 of rows row0 .. row0+n_rows-1 into dst [n_rows, ld], in
 * bands if the format has bands. */
static inline void ctw_weight_decode_rows(const struct ctw_weight *w,
                                          const struct ctw_weight_data *data, int64_t row0,
                                          int64_t n_rows, int64_t col0, int64_t n_col, float *dst,
                                          int64_t ld)
{
    if (w->format->decode_rows != NULL) {
        w->format->decode_rows(w, data, row0, n_rows, col0, n_col, dst, ld);
        return;
    }
    for (int64_t r = 0; r < n_rows; r++)
        w->format->decode(w, data, row0 + r, col0, n_col, dst + r * ld);
}

/* Are the values themselves stored, and not codes for them? */
static inline bool ctw_weight_is_dense(const struct ctw_weight *w)
{
    return w->format->id == CTW_FORMAT_dense || w->format->id == CTW_FORMAT_dense_transposed ||
           w->format->id == CTW_FORMAT_dense_paired;
}

/* The same, but in whatever parts and order: reports do not count the weight as quantised. */
static inline bool ctw_weight_has_no_codes(const struct ctw_weight *w)
{
    return ctw_weight_is_dense(w) ||
           (w->format->id == CTW_FORMAT_ggml_heads && w->block == 0 && w->more_block == 0);
}

/* n rows of a dense weight, as a weight; its values begin with the first of them. */
struct ctw_weight ctw_weight_rows(const struct ctw_weight *w, int64_t n);

/* Total bytes of all parts. */
size_t ctw_weight_bytes(const struct ctw_weight *w);

#endif
