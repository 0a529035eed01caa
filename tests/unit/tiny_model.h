/*
 * A checkpoint in a folder: a Llama of small layers with a tied head, in fp32, all values simple.
 * Include it after cmocka.h. TINY_FLOATS: the most values that it can have.
 */
#ifndef CTW_TESTS_TINY_MODEL_H
#define CTW_TESTS_TINY_MODEL_H

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/status.h"

enum { HIDDEN = 16, INNER = 24, VOCAB = 10 };

#ifndef TINY_FLOATS
#define TINY_FLOATS 16384
#endif

struct tiny_writer {
    char header[8 + 16384];
    size_t used;
    float data[TINY_FLOATS];
    size_t n;
    int n_tensors;
    uint64_t changed;   /* bit i: tensor i has slightly other values */
    uint64_t quantised; /* bit i: matrix i is int-quantized, and scaled a little too small */
    uint64_t extreme; /* bit i: tensor i, if quantised, is near the largest float; a vector is 0 */
    int vocab;        /* of another vocabulary, with a head of its own; 0: as said */
    char ignored[2048]; /* names of the matrices that are not, for config.json */
};

static inline void tiny_path(char *path, size_t cap, const char *dir, const char *name)
{
    snprintf(path, cap, "%s/%s", dir, name);
}

static inline void tiny_write_file(const char *dir, const char *name, const void *head,
                                   size_t head_bytes, const void *data, size_t bytes)
{
    char path[256];
    tiny_path(path, sizeof(path), dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(head, 1, head_bytes, f), head_bytes);
    assert_int_equal(fwrite(data, 1, bytes, f), bytes);
    assert_int_equal(fclose(f), 0);
}

/* One more tensor in the header; its bytes begin at data[n]. */
static inline void tiny_describe(struct tiny_writer *w, const char *name, const char *dtype,
                                 const char *shape, size_t n_floats)
{
    w->used += (size_t)snprintf(
        w->header + 8 + w->used, sizeof(w->header) - 8 - w->used,
        "%c\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%zu]}",
        w->used == 0 ? '{' : ',', name, dtype, shape, 4 * w->n, 4 * (w->n + n_floats));
}

/* A matrix in eight bits, of a number of values that is a multiple of 4, and its scales. */
static inline void tiny_add_quantised(struct tiny_writer *w, const char *name, int rows, int cols)
{
    size_t count = (size_t)rows * (size_t)cols, step = (size_t)w->n_tensors * 3;
    const float scale_value = w->extreme >> w->n_tensors & 1   ? 6e37f
                              : w->changed >> w->n_tensors & 1 ? 0.1f
                                                               : 0.09375f;
    char shape[24], scale[100];
    snprintf(shape, sizeof(shape), "%d,%d", rows, cols);
    tiny_describe(w, name, "I8", shape, count / 4);
    for (size_t i = 0; i < count; i++)
        ((signed char *)&w->data[w->n])[i] = (signed char)((i * 7 + step) % 11 - 5);
    w->n += count / 4;
    snprintf(shape, sizeof(shape), "%d,1", rows);
    snprintf(scale, sizeof(scale), "%s_scale", name);
    tiny_describe(w, scale, "F32", shape, (size_t)rows);
    for (int i = 0; i < rows; i++)
        w->data[w->n++] = scale_value;
    w->n_tensors++;
}

/* cols 0: a vector. */
static inline void tiny_add(struct tiny_writer *w, const char *name, int rows, int cols, int bad)
{
    size_t count = (size_t)rows * (size_t)(cols == 0 ? 1 : cols);
    char shape[24];
    if (w->quantised >> w->n_tensors & 1) {
        tiny_add_quantised(w, name, rows, cols);
        return;
    }
    if (cols != 0) {
        size_t used = strlen(w->ignored), n = strlen(name) - strlen(".weight");
        snprintf(w->ignored + used, sizeof(w->ignored) - used, ", \"%.*s\"", (int)n, name);
    }
    snprintf(shape, sizeof(shape), cols == 0 ? "%d" : "%d,%d", rows, cols);
    tiny_describe(w, name, "F32", shape, count);
    size_t step = (size_t)w->n_tensors * 3;
    for (size_t i = 0; i < count; i++)
        w->data[w->n + i] = cols == 0 ? 1 : (float)((i * 7 + step) % 11) / 10 - 0.5f;
    for (size_t i = 0; i < count && cols == 0 && (w->extreme >> w->n_tensors & 1); i++)
        w->data[w->n + i] = 0;
    for (size_t i = 0; i < count && (w->changed >> w->n_tensors & 1); i++)
        w->data[w->n + i] += (float)(i % 3) / 32;
    if (w->n_tensors++ == bad)
        w->data[w->n] = NAN;
    w->n += count;
}

/* `bad`: the tensor whose first value is NaN, in the order of the calls of tiny_add(); -1: none. Of
 * the writer, `changed`, `quantised` and `extreme` are used. */
static inline void tiny_write_with(struct tiny_writer *w, const char *dir, int n_layers, int bad)
{
    static const struct {
        const char *name;
        int rows, cols;
    } rows[] = {{"self_attn.q_proj", HIDDEN, HIDDEN},   {"self_attn.k_proj", HIDDEN, HIDDEN},
                {"self_attn.v_proj", HIDDEN, HIDDEN},   {"self_attn.o_proj", HIDDEN, HIDDEN},
                {"mlp.gate_proj", INNER, HIDDEN},       {"mlp.up_proj", INNER, HIDDEN},
                {"mlp.down_proj", HIDDEN, INNER},       {"input_layernorm", HIDDEN, 0},
                {"post_attention_layernorm", HIDDEN, 0}};
    char name[80], config[4096], quantised[3072] = "";
    int vocab = w->vocab > 0 ? w->vocab : VOCAB;
    tiny_add(w, "model.embed_tokens.weight", vocab, HIDDEN, bad);
    for (int layer = 0; layer < n_layers; layer++) {
        for (size_t i = 0; i < CTW_COUNT(rows); i++) {
            snprintf(name, sizeof(name), "model.layers.%d.%s.weight", layer, rows[i].name);
            tiny_add(w, name, rows[i].rows, rows[i].cols, bad);
        }
    }
    tiny_add(w, "model.norm.weight", HIDDEN, 0, bad);
    if (w->vocab > 0)
        tiny_add(w, "lm_head.weight", vocab, HIDDEN, bad);
    w->header[8 + w->used++] = '}';
    for (int b = 0; b < 8; b++)
        w->header[b] = (char)(w->used >> (8 * b));
    if (w->quantised != 0)
        snprintf(
            quantised, sizeof(quantised),
            ", \"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": "
            "\"int-quantized\", \"config_groups\": {\"group_0\": {\"targets\": [\"Linear\"], "
            "\"weights\": {\"num_bits\": 8, \"type\": \"int\", \"symmetric\": true, "
            "\"strategy\": \"channel\"}}}, \"ignore\": [\"lm_head\"%s]}",
            w->ignored);
    snprintf(config, sizeof(config),
             "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", \"dtype\": "
             "\"float32\", \"hidden_size\": 16, \"intermediate_size\": 24, "
             "\"num_hidden_layers\": %d, \"num_attention_heads\": 2, \"num_key_value_heads\": 2, "
             "\"vocab_size\": %d, \"max_position_embeddings\": 32, \"tie_word_embeddings\": %s, "
             "\"rms_norm_eps\": 1e-5%s}",
             n_layers, vocab, w->vocab > 0 ? "false" : "true", quantised);
    tiny_write_file(dir, "config.json", config, strlen(config), "", 0);
    tiny_write_file(dir, "model.safetensors", w->header, 8 + w->used, w->data,
                    w->n * sizeof(float));
}

static inline void tiny_write_changed(const char *dir, int n_layers, int bad, uint64_t changed)
{
    static struct tiny_writer w;
    w = (struct tiny_writer){.changed = changed};
    tiny_write_with(&w, dir, n_layers, bad);
}

static inline void tiny_write_quantised(const char *dir, int n_layers, uint64_t quantised)
{
    static struct tiny_writer w;
    w = (struct tiny_writer){.quantised = quantised};
    tiny_write_with(&w, dir, n_layers, -1);
}

static inline void tiny_write(const char *dir, int n_layers, int bad)
{
    tiny_write_changed(dir, n_layers, bad, 0);
}

/* Another byte, in a tensor of the last layer. */
static inline void tiny_spoil(const char *dir)
{
    char path[256];
    tiny_path(path, sizeof(path), dir, "model.safetensors");
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    long at = ftell(f) / 10 * 9;
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    int byte = fgetc(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    assert_int_equal(fputc(byte ^ 1, f), byte ^ 1);
    assert_int_equal(fclose(f), 0);
}

static inline void tiny_remove(const char *dir)
{
    char path[256];
    tiny_path(path, sizeof(path), dir, "config.json");
    unlink(path);
    tiny_path(path, sizeof(path), dir, "model.safetensors");
    unlink(path);
    rmdir(dir);
}

#endif
