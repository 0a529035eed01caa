/*
 * A checkpoint that a test changes and writes: 1 layer, hidden 32, inner 64, 4 heads of 8, 2 of
 * keys, 16 tokens. Include it after cmocka.h.
 */
#ifndef CTW_TESTS_SMALL_CHECKPOINT_H
#define CTW_TESTS_SMALL_CHECKPOINT_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "worker/model/model.h"

struct tensor {
    const char *name, *dtype, *shape;
    size_t bytes;
    const char *data; /* NULL: zeros */
};

struct checkpoint {
    char dir[64];
    struct tensor tensors[64];
    int n;
    const char *family; /* LLAMA, QWEN3 */
    const char *config; /* more members of config.json, each after a comma */
};

#define CONFIG                                                                                     \
    ", \"hidden_size\": 32, "                                                                      \
    "\"intermediate_size\": 64, \"num_hidden_layers\": 1, \"num_attention_heads\": 4, "            \
    "\"num_key_value_heads\": 2, \"vocab_size\": 16, \"max_position_embeddings\": 128"
#define LLAMA "\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\""
#define QWEN3 "\"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": \"qwen3\""
#define BF16_CONFIG ", \"dtype\": \"bfloat16\""
#define LAYER "model.layers.0."

static const struct tensor dense[] = {
    {"model.embed_tokens.weight", "BF16", "16, 32", 1024, NULL},
    {LAYER "input_layernorm.weight", "BF16", "32", 64, NULL},
    {LAYER "post_attention_layernorm.weight", "BF16", "32", 64, NULL},
    {LAYER "self_attn.q_proj.weight", "BF16", "32, 32", 2048, NULL},
    {LAYER "self_attn.k_proj.weight", "BF16", "16, 32", 1024, NULL},
    {LAYER "self_attn.v_proj.weight", "BF16", "16, 32", 1024, NULL},
    {LAYER "self_attn.o_proj.weight", "BF16", "32, 32", 2048, NULL},
    {LAYER "mlp.gate_proj.weight", "BF16", "64, 32", 4096, NULL},
    {LAYER "mlp.up_proj.weight", "BF16", "64, 32", 4096, NULL},
    {LAYER "mlp.down_proj.weight", "BF16", "32, 64", 4096, NULL},
    {"model.norm.weight", "BF16", "32", 64, NULL},
    {"lm_head.weight", "BF16", "16, 32", 1024, NULL},
};

static inline int set_up(void **state)
{
    struct checkpoint *c = calloc(1, sizeof(*c));
    if (c == NULL)
        return -1;
    (void)snprintf(c->dir, sizeof(c->dir), "/tmp/ctw-model-XXXXXX");
    if (mkdtemp(c->dir) == NULL)
        return -1;
    memcpy(c->tensors, dense, sizeof(dense));
    c->n = (int)CTW_COUNT(dense);
    c->family = LLAMA;
    c->config = BF16_CONFIG;
    ctw_log_set_level(CTW_LOG_ERROR);
    *state = c;
    return 0;
}

static inline void path_of(const struct checkpoint *c, const char *name, char path[128])
{
    (void)snprintf(path, 128, "%s/%s", c->dir, name);
}

static inline int tear_down(void **state)
{
    struct checkpoint *c = *state;
    char path[128];
    path_of(c, "model.safetensors", path);
    (void)remove(path);
    path_of(c, "config.json", path);
    (void)remove(path);
    int st = rmdir(c->dir);
    free(c);
    return st;
}

static inline struct tensor *find(struct checkpoint *c, const char *name)
{
    for (int i = 0; i < c->n; i++)
        if (strcmp(c->tensors[i].name, name) == 0)
            return &c->tensors[i];
    fail_msg("the test has no tensor %s", name);
    return NULL;
}

static inline void drop(struct checkpoint *c, const char *name)
{
    struct tensor *t = find(c, name);
    *t = c->tensors[--c->n];
}

static inline void add(struct checkpoint *c, const char *name, const char *dtype, const char *shape,
                       size_t bytes, const char *data)
{
    c->tensors[c->n++] = (struct tensor){name, dtype, shape, bytes, data};
}

static inline void write_config(const struct checkpoint *c)
{
    char path[128];
    path_of(c, "config.json", path);
    FILE *to = fopen(path, "wb");
    assert_non_null(to);
    (void)fprintf(to, "{%s" CONFIG "%s}", c->family, c->config);
    assert_int_equal(fclose(to), 0);
}

static inline void write_it(const struct checkpoint *c)
{
    static char header[16384];
    static const char zeros[16384];
    char path[128];
    size_t at = 0, offset = 0;
    for (int i = 0; i < c->n; i++) {
        at += (size_t)snprintf(
            header + at, sizeof(header) - at,
            "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
            i == 0 ? "{" : ",", c->tensors[i].name, c->tensors[i].dtype, c->tensors[i].shape,
            offset, offset + c->tensors[i].bytes);
        offset += c->tensors[i].bytes;
    }
    header[at++] = '}';
    path_of(c, "model.safetensors", path);
    FILE *to = fopen(path, "wb");
    assert_non_null(to);
    uint64_t n = at;
    assert_int_equal(fwrite(&n, 1, 8, to), 8);
    assert_int_equal(fwrite(header, 1, at, to), at);
    for (int i = 0; i < c->n; i++) {
        assert_true(c->tensors[i].data != NULL || c->tensors[i].bytes <= sizeof(zeros));
        assert_int_equal(fwrite(c->tensors[i].data != NULL ? c->tensors[i].data : zeros, 1,
                                c->tensors[i].bytes, to),
                         c->tensors[i].bytes);
    }
    assert_int_equal(fclose(to), 0);
    write_config(c);
}

static inline struct ctw_model *open_ok(struct checkpoint *c)
{
    struct ctw_model *m;
    struct ctw_err err = {0};
    write_it(c);
    if (ctw_model_open(&m, c->dir, NULL, &err) != CTW_OK)
        fail_msg("%s", err.msg);
    return m;
}

static inline void expect_refusal(struct checkpoint *c, const char *words)
{
    struct ctw_model *m;
    struct ctw_err err = {0};
    write_it(c);
    enum ctw_status st = ctw_model_open(&m, c->dir, NULL, &err);
    assert_true(st == CTW_EFORMAT || st == CTW_EUNSUP);
    assert_null(m);
    if (strstr(err.msg, words) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", err.msg, words);
}

/* ---- quantised parts ---- */

#define PACK(targets, ignore)                                                                      \
    BF16_CONFIG                                                                                    \
    ", \"quantization_config\": {\"quant_method\": \"compressed-tensors\", "                       \
    "\"format\": \"pack-quantized\", \"config_groups\": {\"g\": {\"targets\": [" targets           \
    "], \"input_activations\": {\"num_bits\": 8, \"dynamic\": true, "                              \
    "\"strategy\": \"token\"}, \"weights\": {\"num_bits\": 4, \"group_size\": 16}}}, "             \
    "\"ignore\": [" ignore "]}"

/* q_proj quantised by a file of 2024. */
#define FROZEN(format, args)                                                                       \
    BF16_CONFIG                                                                                    \
    ", \"quantization_config\": {\"quant_method\": \"compressed-tensors\", "                       \
    "\"quantization_status\": "                                                                    \
    "\"frozen\", \"format\": \"" format "\", \"config_groups\": {\"g\": {\"targets\": "            \
    "[\"re:.*q_proj\"], \"weights\": {\"num_bits\": 4, \"group_size\": 16" args "}}}}"

/* Makes the dense [n, 32] matrix NAME.weight a 4-bit one of groups of 16. */
static inline void pack(struct checkpoint *c, const char *name, const char *packed,
                        const char *scale, int64_t n)
{
    char full[128];
    static char shapes[8][2][16];
    static int next;
    char(*shape)[16] = shapes[next++ % 8];
    (void)snprintf(full, sizeof(full), "%s.weight", name);
    (void)snprintf(shape[0], 16, "%d, 4", (int)n);
    (void)snprintf(shape[1], 16, "%d, 2", (int)n);
    drop(c, full);
    add(c, packed, "I32", shape[0], (size_t)n * 16, NULL);
    add(c, scale, "BF16", shape[1], (size_t)n * 4, NULL);
}

#define PACK_MATRIX(c, name, n) pack(c, name, name ".weight_packed", name ".weight_scale", n)

#endif
