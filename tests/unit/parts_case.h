/*
 * Weights of other methods' formats, described by their parts, with contents that
 * tests/tools/parts_vectors.py repeats. Include it after made_weight.h.
 */
#ifndef CTW_TESTS_PARTS_CASE_H
#define CTW_TESTS_PARTS_CASE_H

#include "made_weight.h"

struct parts_case {
    const char *name;
    int64_t n, k;
    enum ctw_format_id format;
    enum ctw_dtype dtype; /* of the values */
    struct ctw_quant_args args;
    struct {
        enum ctw_part_kind kind;
        enum ctw_dtype dtype;
        int n_dims;
        int64_t shape[2];
        bool exponents; /* E8M0, of a small range */
    } part[4];          /* in the order in which they are filled; n_dims, shape 0: no more */
    const char *sha256; /* of the decoded bytes in dtype, from the library */
};

static inline void fill_part(struct made *m, enum ctw_part_kind kind, enum ctw_dtype dtype,
                             int n_dims, int64_t d0, int64_t d1, bool exponents)
{
    const int64_t elements = (n_dims > 0 ? d0 : 1) * (n_dims > 1 ? d1 : 1);
    if (dtype == CTW_F32 || dtype == CTW_BF16 || dtype == CTW_F16) {
        const struct ctw_part scale = m->w.part[CTW_PART_SCALE];
        const void *data = m->data.part[CTW_PART_SCALE];
        add_scales(m, dtype, 1, elements, 1);
        m->w.part[kind] = m->w.part[CTW_PART_SCALE];
        m->data.part[kind] = m->data.part[CTW_PART_SCALE];
        m->w.part[kind].n_dims = n_dims;
        m->w.part[kind].shape[0] = d0;
        m->w.part[kind].shape[1] = d1;
        if (kind != CTW_PART_SCALE) {
            m->w.part[CTW_PART_SCALE] = scale;
            m->data.part[CTW_PART_SCALE] = data;
        }
        return;
    }
    uint8_t *p = add_part(m, kind, dtype, n_dims, d0, d1);
    for (size_t i = 0; i < m->w.part[kind].bytes; i++) {
        uint32_t byte = next_byte(m);
        p[i] = (uint8_t)(dtype == CTW_F8_E4M3 ? byte & 0xfe : exponents ? 112 + (byte & 31) : byte);
    }
}

static inline void make_parts(struct made *m, const struct parts_case *c, const char *method)
{
    start(m, c->n, c->k, c->args);
    m->w.names = ctw_part_names_find(method);
    for (int i = 0; i < 4 && (i == 0 || c->part[i].kind != CTW_PART_VALUES); i++)
        fill_part(m, c->part[i].kind, c->part[i].dtype, c->part[i].n_dims, c->part[i].shape[0],
                  c->part[i].shape[1], c->part[i].exponents);
}

/* Decoded bit by bit as the library does. */
static inline void expect_parts(const struct parts_case *cases, size_t n, const char *method)
{
    for (size_t i = 0; i < n; i++) {
        struct made m;
        make_parts(&m, &cases[i], method);
        check_ok(&m);
        assert_int_equal(m.w.format->id, cases[i].format);
        expect_hash(&m, cases[i].name, cases[i].dtype, cases[i].sha256);
        finish(&m);
    }
}

#endif
