/* Compares what two providers give of a layer, byte by byte. Include it after cmocka.h. */
#ifndef CTW_TESTS_SAME_LAYER_H
#define CTW_TESTS_SAME_LAYER_H

#include "worker/weights/provider.h"

static inline void assert_same_layer(const struct ctw_layer *l, const struct ctw_layer_data *a,
                                     const struct ctw_layer_data *b)
{
    for (int i = 0; i < CTW_N_MATRICES; i++)
        for (int part = 0; part < CTW_N_PARTS; part++) {
            const void *x = a->matrix[i].part[part], *y = b->matrix[i].part[part];
            if (part == CTW_PART_SHAPE)
                continue;
            assert_int_equal(x == NULL, y == NULL);
            if (x != NULL)
                assert_memory_equal(x, y, l->matrix[i].part[part]->bytes);
        }
    for (int i = 0; i < CTW_N_VECTORS; i++) {
        assert_int_equal(a->vector[i] == NULL, b->vector[i] == NULL);
        if (a->vector[i] != NULL)
            assert_memory_equal(a->vector[i], b->vector[i], ctw_vector_bytes(l, i));
    }
}

#endif
