/* Checkpoints of other methods than compressed-tensors, whose q_proj is quantised. */
#ifndef NATIVE_CHECKPOINT_H
#define NATIVE_CHECKPOINT_H

#include "small_checkpoint.h"

#define Q LAYER "self_attn.q_proj"
#define QUANTISED(members) BF16_CONFIG ", \"quantization_config\": {" members "}"
#define FP8 "\"quant_method\": \"fp8\", \"activation_scheme\": \"dynamic\", \"fmt\": \"e4m3\""
#define BLOCKS FP8 ", \"weight_block_size\": [16, 24]"

/* Replaces q_proj's tensor by `values` and up to two more parts: suffix, dtype, shape, bytes. */
struct parts {
    struct tensor values, scale, more;
};

static inline void set_parts(struct checkpoint *c, const struct parts *p)
{
    const struct tensor *all[] = {&p->values, &p->scale, &p->more};
    for (int i = c->n - 1; i >= 0; i--)
        if (strncmp(c->tensors[i].name, Q ".", strlen(Q) + 1) == 0)
            c->tensors[i] = c->tensors[--c->n];
    for (int i = 0; i < 3; i++)
        if (all[i]->name != NULL)
            c->tensors[c->n++] = *all[i];
}

static const struct parts fp8_blocks = {
    {Q ".weight", "F8_E4M3", "32, 32", 1024, NULL},
    {Q ".weight_scale_inv", "F32", "2, 2", 16, NULL},
    {NULL, NULL, NULL, 0, NULL},
};
static const struct parts fp8_tensor = {
    {Q ".weight", "F8_E4M3", "32, 32", 1024, NULL},
    {Q ".weight_scale", "F32", "", 4, NULL},
    {Q ".input_scale", "F32", "", 4, NULL},
};

/* A file that is removed again. */
static inline void write_beside(const struct checkpoint *c, const char *name, const char *text)
{
    char path[128];
    path_of(c, name, path);
    FILE *to = fopen(path, "wb");
    assert_non_null(to);
    assert_true(fputs(text, to) >= 0);
    assert_int_equal(fclose(to), 0);
}

static inline void remove_beside(const struct checkpoint *c, const char *name)
{
    char path[128];
    path_of(c, name, path);
    assert_int_equal(remove(path), 0);
}

/* The weight of q_proj of the model, which is closed. */
static inline struct ctw_weight q_weight(struct checkpoint *c, const char *activations)
{
    struct ctw_model *m = open_ok(c);
    struct ctw_weight w = m->layers[1].matrix[CTW_M_Q].weight;
    if (activations == NULL)
        assert_null(m->activations);
    else
        assert_string_equal(m->activations, activations);
    ctw_model_close(m);
    return w;
}

#endif
