/* Blocks of GGUF files: kernels/formats/ggml. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "kernels/formats/ggml/ggml_types.h"
#include "made_weight.h"

struct ggml_case {
    const char *name;
    uint32_t id;
    int factors[2];     /* where a block has fp16 factors; -1: no more */
    const char *sha256; /* of the fp32 values, from gguf-py's dequantize() */
};

#include "ggml_vectors.h"

enum { ROWS = 5, COLUMNS = 512 };
/* Of a matrix from latents to the keys and values of heads. */
enum { HEADS = 3, KEY_ROWS = 64, VALUE_ROWS = 8, RANK = 512 };

static void start_ggml(struct made *m, uint32_t id, int64_t n, int64_t k)
{
    start(m, n, k, (struct ctw_quant_args){.present = false});
    m->w.names = ctw_part_names_find("ggml");
    const struct ctw_block_type *type = ctw_block_type_find(id);
    uint64_t bytes;
    assert_non_null(type);
    assert_true(ctw_block_bytes(type, (uint64_t)(n * k), &bytes));
    (void)add_part(m, CTW_PART_VALUES, CTW_U8, 1, (int64_t)bytes, 0);
    struct ctw_part *part = &m->w.part[CTW_PART_VALUES];
    part->block = type;
    part->n_dims = 2;
    part->shape[0] = n;
    part->shape[1] = k;
}

/* As tests/tools/ggml_vectors.py makes them. */
static void make_ggml(struct made *m, const struct ggml_case *c)
{
    start_ggml(m, c->id, ROWS, COLUMNS);
    const struct ctw_block_type *type = m->w.part[CTW_PART_VALUES].block;
    uint8_t *values = (uint8_t *)(uintptr_t)m->data.part[CTW_PART_VALUES];
    for (uint8_t *b = values; b < values + m->w.part[CTW_PART_VALUES].bytes; b += type->bytes) {
        for (int i = 0; i < type->bytes; i++)
            b[i] = (uint8_t)next_byte(m);
        for (int i = 0; i < 2 && c->factors[i] >= 0; i++)
            b[c->factors[i] + 1] &= 0x97;
        if (c->id == CTW_BLOCK_IQ1_M)
            b[55] &= 0x9f;
    }
}

static void blocks_equal_gguf(void **state)
{
    (void)state;
    for (size_t i = 0; i < CTW_COUNT(ggml_cases); i++) {
        struct made m;
        make_ggml(&m, &ggml_cases[i]);
        check_ok(&m);
        assert_ptr_equal(m.w.format, &ctw_format_ggml);
        assert_int_equal(m.w.dtype, CTW_F32);
        assert_int_equal(m.w.block, ggml_cases[i].id);
        expect_hash(&m, ggml_cases[i].name, CTW_F32, ggml_cases[i].sha256);
        finish(&m);
    }
}

/* Blocks that ggml's C code decoded, too: elements 0, 1, n / 2 + 1 and n - 1, and their sum. */
static void known_blocks(void **state)
{
    (void)state;
    static const struct {
        uint32_t id;
        float values[4];
        double sum;
    } known[] = {
        {CTW_BLOCK_Q4_0, {-0.75f, 0.5f, -0.25f, 0.0f}, -5.25},
        {CTW_BLOCK_Q4_1, {3.625f, 0.875f, 2.875f, 2.875f}, 57.25},
        {CTW_BLOCK_Q5_0, {2.25f, -0.5f, 0.0f, 0.25f}, 3.75},
        {CTW_BLOCK_Q5_1, {4.625f, 5.875f, 1.125f, 1.125f}, 122.25},
        {CTW_BLOCK_Q8_0, {21.25f, 30.5f, -13.5f, -12.0f}, -44},
        {CTW_BLOCK_Q2_K, {8.25f, 0.0f, -0.375f, 1.125f}, 514.75},
        {CTW_BLOCK_Q3_K, {20.25f, -27.0f, -0.0f, 10.5f}, 239.5},
        {CTW_BLOCK_Q4_K, {78.875f, -6.375f, -1.5f, 12.125f}, 13610},
        {CTW_BLOCK_Q5_K, {202.875f, -6.375f, -1.5f, 27.125f}, 29054},
        {CTW_BLOCK_Q6_K, {-357.75f, 424.0f, 104.0f, -15.0f}, 1153},
        {CTW_BLOCK_IQ4_NL, {-8.75f, 6.25f, -2.5f, 0.25f}, -64.25},
        {CTW_BLOCK_IQ4_XS, {16.25f, -0.25f, 2.25f, -4.0f}, -2751.25},
        {CTW_BLOCK_MXFP4, {0.0f, 0.375f, 0.375f, 0.375f}, 1.5625},
        {CTW_BLOCK_NVFP4, {-0.12890625f, 0.04296875f, 26.0f, 160.0f}, 1541.37109375},
        {CTW_BLOCK_TQ1_0, {-0.25f, -0.25f, -0.25f, -0.25f}, -0.5},
        {CTW_BLOCK_TQ2_0, {0.5f, -0.25f, -0.25f, -0.25f}, 32.25},
        {CTW_BLOCK_IQ2_XXS, {-14.78125f, 14.78125f, 7.75f, -20.15625f}, 190.9375},
        {CTW_BLOCK_IQ2_XS, {-2.75f, 8.59375f, 25.53125f, -4.75f}, 372.625},
        {CTW_BLOCK_IQ2_S, {-36.28125f, 21.09375f, 4.03125f, 19.53125f}, -200.15625},
        {CTW_BLOCK_IQ3_XXS, {-3.25f, 2.25f, 30.25f, -3.75f}, -171},
        {CTW_BLOCK_IQ3_S, {-20.25f, 60.75f, 41.25f, 56.25f}, 364},
        {CTW_BLOCK_IQ1_S, {-0.65625f, 0.09375f, 2.53125f, -1.09375f}, 5},
        {CTW_BLOCK_IQ1_M, {-0.21875f, 1.53125f, 0.46875f, -0.46875f}, 10.25},
    };
    assert_int_equal(CTW_COUNT(known), CTW_COUNT(ggml_cases));
    for (size_t i = 0; i < CTW_COUNT(known); i++) {
        struct made m;
        const struct ctw_block_type *type = ctw_block_type_find(known[i].id);
        start_ggml(&m, known[i].id, 1, type->elements);
        uint8_t *b = (uint8_t *)(uintptr_t)m.data.part[CTW_PART_VALUES];
        for (int j = 0; j < type->bytes; j++)
            b[j] = (uint8_t)(37 * j + 11);
        for (size_t c = 0; c < CTW_COUNT(ggml_cases); c++)
            for (int f = 0; ggml_cases[c].id == type->id && f < 2; f++) {
                static const uint16_t factors[] = {0x3400, 0x3000}; /* 1/4, 1/8 */
                uint16_t h = f == 1 && type->elements == 32 ? 0xb000 : factors[f];
                if (ggml_cases[c].factors[f] >= 0)
                    memcpy(b + ggml_cases[c].factors[f], &h, 2);
            }
        if (type->id == CTW_BLOCK_MXFP4)
            b[0] = 124;
        for (int w = 0; type->id == CTW_BLOCK_IQ1_M && w < 4; w++)
            b[49 + 2 * w] = (uint8_t)((b[49 + 2 * w] & 15) | (0x3400 >> (4 * w) & 15) << 4);
        check_ok(&m);
        float out[CTW_BLOCK_MAX];
        double sum = 0;
        m.w.format->decode(&m.w, &m.data, 0, 0, m.w.k, out);
        for (int j = 0; j < type->elements; j++)
            sum += (double)out[j];
        const int at[] = {0, 1, type->elements / 2 + 1, type->elements - 1};
        for (int j = 0; j < 4; j++)
            if (memcmp(&out[at[j]], &known[i].values[j], 4) != 0)
                fail_msg("%s: element %d is %g, not %g", type->name, at[j], (double)out[at[j]],
                         (double)known[i].values[j]);
        if (sum != known[i].sum)
            fail_msg("%s: the sum is %.9g", type->name, sum);
        finish(&m);
    }
}

/* Spans that end within a block give the row's values, and write nothing behind their end. */
static void spans_agree_with_rows(void **state)
{
    (void)state;
    static const int64_t widths[] = {1, 7, 33, 255, 256};
    for (size_t i = 0; i < CTW_COUNT(ggml_cases); i++) {
        struct made m;
        float row[COLUMNS], span[COLUMNS];
        make_ggml(&m, &ggml_cases[i]);
        check_ok(&m);
        m.w.format->decode(&m.w, &m.data, ROWS - 1, 0, COLUMNS, row);
        for (int64_t c = 0; c < COLUMNS; c += CTW_DECODE_ALIGN)
            for (size_t j = 0; j < CTW_COUNT(widths); j++) {
                memset(span, 0x55, sizeof(span));
                m.w.format->decode(&m.w, &m.data, ROWS - 1, c, widths[j], span);
                assert_memory_equal(span, row + c, (size_t)widths[j] * 4);
                uint32_t guard;
                memcpy(&guard, span + widths[j], 4);
                assert_int_equal(guard, 0x55555555);
            }
        finish(&m);
    }
}

/* One part of a matrix of heads: its own rows [heads * rows, columns] in blocks, or BF16. */
static uint8_t *add_heads(struct made *m, enum ctw_part_kind kind, uint32_t id, int64_t rows,
                          int64_t columns)
{
    const struct ctw_block_type *type = ctw_block_type_find(id);
    uint64_t bytes;
    assert_true(ctw_block_bytes(type, (uint64_t)(HEADS * rows * columns), &bytes));
    uint8_t *p = add_part(m, kind, CTW_U8, 1, (int64_t)bytes, 0);
    struct ctw_part *part = &m->w.part[kind];
    part->block = type->plain ? NULL : type;
    part->dtype = type->plain ? type->dtype : CTW_U8;
    part->n_dims = 3;
    part->shape[0] = HEADS;
    part->shape[1] = rows;
    part->shape[2] = columns;
    for (uint64_t i = 0; i < bytes; i++)
        p[i] = (uint8_t)(next_byte(m) & 0x37); /* no infinite factors */
    return p;
}

static void start_heads(struct made *m, uint32_t keys, uint32_t values)
{
    start(m, (int64_t)HEADS * (KEY_ROWS + VALUE_ROWS), RANK, (struct ctw_quant_args){0});
    m->w.names = ctw_part_names_find("ggml");
    (void)add_heads(m, CTW_PART_VALUES, keys, RANK, KEY_ROWS);
    (void)add_heads(m, CTW_PART_MORE_VALUES, values, VALUE_ROWS, RANK);
}

/* The stored rows of one part, as a weight of its own decodes them. */
static void decode_part(const struct made *m, enum ctw_part_kind kind, float *dst)
{
    struct made one;
    const struct ctw_part *part = &m->w.part[kind];
    start(&one, part->shape[0] * part->shape[1], part->shape[2], (struct ctw_quant_args){0});
    one.w.names = ctw_part_names_find("ggml");
    one.w.part[CTW_PART_VALUES] = *part;
    one.w.part[CTW_PART_VALUES].n_dims = 2;
    one.w.part[CTW_PART_VALUES].shape[0] = one.w.n;
    one.w.part[CTW_PART_VALUES].shape[1] = one.w.k;
    one.w.part[CTW_PART_VALUES].paired = 0;
    one.w.part[CTW_PART_VALUES].transposed = false;
    one.data.part[CTW_PART_VALUES] = m->data.part[kind];
    check_ok(&one);
    for (int64_t r = 0; r < one.w.n; r++)
        one.w.format->decode(&one.w, &one.data, r, 0, one.w.k, dst + r * one.w.k);
}

/* Rows of keys are columns of their tensor, rows of values are rows of theirs. */
static void heads_agree_with_their_tensors(void **state)
{
    (void)state;
    static const uint32_t types[][2] = {
        {CTW_BLOCK_Q8_0, CTW_BLOCK_Q6_K}, {CTW_BLOCK_Q5_1, 30}, {30, CTW_BLOCK_Q4_K}};
    for (size_t i = 0; i < CTW_COUNT(types); i++) {
        struct made m;
        static float keys[HEADS * RANK * KEY_ROWS], values[HEADS * VALUE_ROWS * RANK];
        start_heads(&m, types[i][0], types[i][1]);
        check_ok(&m);
        assert_ptr_equal(m.w.format, &ctw_format_ggml_heads);
        decode_part(&m, CTW_PART_VALUES, keys);
        decode_part(&m, CTW_PART_MORE_VALUES, values);
        for (int64_t r = 0; r < m.w.n; r++)
            for (int64_t c = 0; c < RANK; c += CTW_DECODE_ALIGN) {
                float span[CTW_DECODE_ALIGN];
                int64_t head = r / (KEY_ROWS + VALUE_ROWS), row = r % (KEY_ROWS + VALUE_ROWS);
                int64_t n = c == 0 ? CTW_DECODE_ALIGN : 37; /* ends within a block */
                m.w.format->decode(&m.w, &m.data, r, c, n, span);
                for (int64_t j = 0; j < n; j++) {
                    const float *want =
                        row < KEY_ROWS
                            ? &keys[(head * RANK + c + j) * KEY_ROWS + row]
                            : &values[(head * VALUE_ROWS + row - KEY_ROWS) * RANK + c + j];
                    assert_memory_equal(&span[j], want, sizeof(*want));
                }
            }
        finish(&m);
    }
}

static void contradictory_heads_are_refused(void **state)
{
    (void)state;
    struct made m;
    start_heads(&m, 30, 30);
    m.w.part[CTW_PART_VALUES].n_dims = 2;
    expect_refusal(&m, NULL, "weight: found BF16 [3, 512], expected [heads, 512, rows of keys]");
    start_heads(&m, 30, 30);
    m.w.part[CTW_PART_MORE_VALUES].shape[1]--;
    expect_refusal(&m, NULL, "more_values: found BF16 [3, 7, 512], expected [3, 8, 512]");
    start_heads(&m, 30, CTW_BLOCK_Q4_K);
    m.w.part[CTW_PART_MORE_VALUES].bytes--;
    expect_refusal(&m, NULL, "expected 6912 bytes for 24 rows, found 6911");
}

static void contradictions_are_refused(void **state)
{
    (void)state;
    struct made m;
    start_ggml(&m, CTW_BLOCK_Q4_K, 4, 256);
    m.w.n = 5;
    expect_refusal(&m, NULL, "found Q4_K [4, 256], expected [5, 256]");
    start_ggml(&m, CTW_BLOCK_Q4_K, 4, 256);
    m.w.part[CTW_PART_VALUES].bytes--;
    expect_refusal(&m, NULL, "Q4_K [4, 256]: found 575 bytes, expected 576");
    start_ggml(&m, CTW_BLOCK_Q4_K, 4, 256);
    m.w.k = m.w.part[CTW_PART_VALUES].shape[1] = 128;
    expect_refusal(&m, NULL, "128 columns are not a multiple of 256, which Q4_K needs");
    start_ggml(&m, CTW_BLOCK_Q8_0, 4, 32);
    (void)add_part(&m, CTW_PART_SCALE, CTW_F32, 1, 1, 0);
    m.w.part[CTW_PART_SCALE].name = "weight_scale";
    expect_refusal(&m, NULL, "weight_scale: found F32 [1], which a ggml weight does not have");
}

static void types_have_ids_of_their_own(void **state)
{
    (void)state;
    char text[128];
    for (uint32_t id = 0; id < 256; id++) {
        const struct ctw_block_type *type = ctw_block_type_find(id);
        if (type == NULL)
            continue;
        assert_int_equal(type->id, id);
        assert_true(type->elements > 0);
        assert_true(type->bytes > 0);
        assert_int_equal(CTW_BLOCK_MAX % type->elements, 0);
        assert_int_equal(CTW_DECODE_ALIGN % type->elements, 0);
        assert_int_equal(type->elements % type->group, 0);
        assert_true(type->plain == (type->elements == 1));
        assert_true(!type->plain || ctw_dtype_bytes(type->dtype) == (size_t)type->bytes);
        (void)ctw_block_type_refused(id, text, sizeof(text));
        assert_non_null(strstr(text, "ggml does not define"));
    }
    assert_string_equal(ctw_block_type_find(12)->name, "Q4_K");
    assert_null(ctw_block_type_find(4));
    assert_null(ctw_block_type_find(UINT32_MAX));
    assert_string_equal(ctw_block_type_refused(139, text, sizeof(text)),
                        "ik_llama.cpp's IQ4_K (id 139)");
    assert_string_equal(ctw_block_type_refused(77, text, sizeof(text)),
                        "id 77, which ggml does not define");
    uint64_t bytes;
    assert_true(ctw_block_bytes(ctw_block_type_find(12), 512, &bytes));
    assert_int_equal(bytes, 288);
    assert_false(ctw_block_bytes(ctw_block_type_find(12), 300, &bytes));
    assert_false(ctw_block_bytes(ctw_block_type_find(28), UINT64_MAX, &bytes));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_equal_gguf),
        cmocka_unit_test(known_blocks),
        cmocka_unit_test(spans_agree_with_rows),
        cmocka_unit_test(heads_agree_with_their_tensors),
        cmocka_unit_test(contradictory_heads_are_refused),
        cmocka_unit_test(contradictions_are_refused),
        cmocka_unit_test(types_have_ids_of_their_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
