/*
 * Writes the keys of config.json from a GGUF file's metadata. Errors are sticky; messages name the
 * file and the metadata's key.
 */
#ifndef CTW_WORKER_CONFIG_WRITER_H
#define CTW_WORKER_CONFIG_WRITER_H

#include "base/json.h"
#include "worker/checkpoint/container/container.h"
#include "worker/checkpoint/gguf/archs.h"

struct ctw_gguf_keys {
    const struct ctw_container *files;
    const struct ctw_metadata *metadata;
    const struct ctw_gguf_arch *arch;
    const char *file; /* for messages */
    struct ctw_json_writer writer;
    enum ctw_status st;
    struct ctw_err *err;
};

/* The metadata of "ARCHITECTURE.key"; NULL: absent. */
const struct ctw_meta *ctw_gguf_meta(const struct ctw_gguf_keys *k, const char *key);
/* An integer; absent: `absent`. An array must have equal elements. */
int64_t ctw_gguf_int(struct ctw_gguf_keys *k, const char *key, int64_t absent);
/* The element of a layer, or the number of all layers; absent: `absent`. */
int64_t ctw_gguf_of_layer(struct ctw_gguf_keys *k, const char *key, int64_t layer, int64_t absent);
/* The element of the first layer with a window (attention.sliding_window_pattern), or of the first
 * without one; 0: there is no such layer. */
int64_t ctw_gguf_of_windows(struct ctw_gguf_keys *k, const char *key, bool windowed);
/* A number; absent: `absent`. */
double ctw_gguf_number(struct ctw_gguf_keys *k, const char *key, double absent);
/* The number that all elements of an array have, of float32 too; absent: `absent`. */
double ctw_gguf_same_number(struct ctw_gguf_keys *k, const char *key, double absent);
/* Layers of the model, 0 to 4096. Those of a draft model, which come last in the file, do not
 * count. */
int64_t ctw_gguf_layers(struct ctw_gguf_keys *k);
/* The largest element, where layers differ; absent: `absent`. */
int64_t ctw_gguf_largest(struct ctw_gguf_keys *k, const char *key, int64_t absent);
/* Has the model a tensor of this stored name, or of "blk.0."? */
bool ctw_gguf_has(const struct ctw_gguf_keys *k, const char *tensor);
/* The tensor "blk.LAYER.NAME.weight"; NULL: the file lacks it. */
const struct ctw_tensor *ctw_gguf_layer_tensor(const struct ctw_gguf_keys *k, int64_t layer,
                                               const char *name);
/* The same of the first layer that has it; NULL: none. */
const struct ctw_tensor *ctw_gguf_first_tensor(struct ctw_gguf_keys *k, const char *name);

/* Writes a member from a metadata's key; an absent key writes none, or is an error if `needed`. */
void ctw_gguf_write(struct ctw_gguf_keys *k, const char *name, const char *key, bool needed);
/* Writes a list with a text for each layer: `zero` if the layer's element of the metadata is 0 or
 * false, else `other`. An absent key, or one with a single number, writes none. */
void ctw_gguf_write_layers(struct ctw_gguf_keys *k, const char *name, const char *key,
                           const char *zero, const char *other);
/* The same by whether the layer has the tensor "blk.LAYER.NAME.weight". */
void ctw_gguf_write_layers_with(struct ctw_gguf_keys *k, const char *name, const char *tensor,
                                const char *without, const char *with);
/* Writes a list with each layer's number, of a key with one number for all or one for each. */
void ctw_gguf_write_each(struct ctw_gguf_keys *k, const char *name, const char *key);
/* The rows of a matrix; without it, none. */
void ctw_gguf_write_rows(struct ctw_gguf_keys *k, const char *name, const struct ctw_tensor *t);
/* attention_bias: have q, k and v biases, apart or in one tensor? */
void ctw_gguf_write_qkv_bias(struct ctw_gguf_keys *k);
/* Refuses expert_weights_norm false, for families whose weights of chosen experts add up to 1. */
void ctw_gguf_refuse_unnormalised(struct ctw_gguf_keys *k);
/* Refuses shared experts of another width than expert_shared_count times that of the others. */
void ctw_gguf_check_shared_width(struct ctw_gguf_keys *k);
/* layer_types of models in which some layers have a window. */
void ctw_gguf_write_windows(struct ctw_gguf_keys *k);
/* Refuses the file: "FILE: ARCHITECTURE.key: ...". */
void ctw_gguf_refuse(struct ctw_gguf_keys *k, const char *key, const char *fmt, ...)
    CTW_PRINTF(3, 4);

/* Writes the members that all architectures share, but for RoPE's. */
void ctw_gguf_write_sizes(struct ctw_gguf_keys *k);
/* rope_scaling.c: rope_theta, rope_scaling and partial_rotary_factor. */
void ctw_gguf_write_rope(struct ctw_gguf_keys *k, int64_t head);
/* Writes none, for models without RoPE and for those whose RoPE is among other members. */
void ctw_gguf_write_no_rope(struct ctw_gguf_keys *k);
/* As ctw_gguf_write_rope(), with the file's rope.dimension_count. */
void ctw_gguf_write_rope_of_count(struct ctw_gguf_keys *k);
/* As ctw_gguf_write_rope() where layers with a window have a theta of their own and no scaling:
 * rope_parameters, with the numbers of elements that full layers and those with a window rotate. */
void ctw_gguf_write_rope_of_windows(struct ctw_gguf_keys *k, int64_t full, int64_t windowed);
/* The size of a state space's head. */
void ctw_gguf_write_space_head(struct ctw_gguf_keys *k, const char *name);
/* Size of a head of keys. */
int64_t ctw_gguf_head(struct ctw_gguf_keys *k);

#endif
