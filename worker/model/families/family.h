/*
 * What a model family is written with. A family is one function, which reads its keys from
 * config.json by name and describes the model: its sizes, its layers, and the tensors that the
 * checkpoint must have. A new family is one file with such a function and one line in families.c.
 *
 * Errors are sticky: the configuration keeps the first one, and later calls do nothing and return
 * defaults. So a family's function needs no checks between its calls.
 *
 * Read every key that transformers' class for the family reads and that can change a score, and
 * read it once. All other keys are ignored, and `inspect` lists them (config.c, rope.c and
 * quant_config.c read the keys that all families share). So a key that is not read can make scores
 * wrong: read the class's configuration_*.py and modeling_*.py. A tensor that is not described
 * refuses the checkpoint.
 */
#ifndef CTW_WORKER_FAMILY_H
#define CTW_WORKER_FAMILY_H

#include "worker/model/config.h"

struct ctw_family {
    const char *model_type;
    const char *architecture;     /* config.json's architectures[0] */
    const char *old_architecture; /* an older spelling; NULL: none */
    void (*describe)(struct ctw_config *c);
};

/* NULL-terminated. */
extern const struct ctw_family *const ctw_families[];

/* ---- keys of config.json (keys.c) ---- */

/* What null means, if it is an error, as in transformers. */
enum { CTW_NULL_REFUSED = -1 };

/* `absent`: transformers' default; `null`: the value for null, or CTW_NULL_REFUSED; the accepted
 * range is min..max, inclusive. Reading a key a second time is an error. */
int64_t ctw_key_int(struct ctw_config *c, const char *name, int64_t absent, int64_t null,
                    int64_t min, int64_t max);
double ctw_key_number(struct ctw_config *c, const char *name, double absent, double null,
                      double min, double max);
bool ctw_key_bool(struct ctw_config *c, const char *name, bool absent);
enum ctw_activation ctw_key_activation(struct ctw_config *c, const char *name,
                                       enum ctw_activation absent);

/*
 * The window of each of n layers, in keys (0: all): `window` in the layers that layer_types calls
 * sliding_attention. Without layer_types: in the layers from `first` on. The configuration owns the
 * array.
 */
const int64_t *ctw_key_windows(struct ctw_config *c, int64_t n, int64_t window, int64_t first);

/* Is the key present, with a value other than null? Does not count as reading it. */
bool ctw_key_is_given(const struct ctw_config *c, const char *name);

/* Keeps an error about a key, which may be absent: "config.json: KEY: found 0, expected ..". */
void ctw_key_fail(struct ctw_config *c, const char *name, enum ctw_status status, const char *fmt,
                  ...) CTW_PRINTF(4, 5);

/* ---- models with Llama's keys, module names and layers (describe.c) ---- */

/* The sizes that a configuration gives, or transformers' defaults for them. */
struct ctw_sizes {
    int64_t vocab, hidden, inner, n_layers, n_head;
    int64_t n_kv; /* 0, as a default: as many as n_head */
    int64_t max_length;
};

/* Reads vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads,
 * num_key_value_heads (null: num_attention_heads) and max_position_embeddings. */
struct ctw_sizes ctw_key_sizes(struct ctw_config *c, const struct ctw_sizes *absent);

/* Reads head_dim; 0, as the default or for null: hidden / n_head. */
int64_t ctw_key_head_dim(struct ctw_config *c, const struct ctw_sizes *s, int64_t absent,
                         int64_t null);

/* What differs between such models, beside sizes. */
struct ctw_model_rules {
    double norm_eps; /* transformers' default */
};

/*
 * Begins the model: reads hidden_act, rms_norm_eps and tie_word_embeddings, and describes the
 * embedding, the final norm and the head.
 */
void ctw_describe_model(struct ctw_config *c, const struct ctw_sizes *s,
                        const struct ctw_model_rules *rules);

/*
 * Reads a RoPE's keys (rope.h), adds it to the model, unless the model has an equal one, and
 * returns its index, for the layers that use it. After ctw_describe_model(). (describe_rope.c)
 */
int ctw_describe_rope(struct ctw_config *c, const struct ctw_rope_rules *rules);

/* Reads a number of rope_parameters or rope_scaling, or of the top level, that is the family's own:
 * not one of a RoPE's. */
double ctw_key_rope_number(struct ctw_config *c, const char *name, double absent);

struct ctw_attention {
    int64_t n_head, n_kv, head, window;
    int rope; /* an index of ctw_describe_rope(); -1: none */
    bool qkv_bias, o_bias;
    bool fused;      /* qkv_proj: the rows of q, then k, then v; without bias */
    bool head_norms; /* RMS norms of each query and key head */
};

struct ctw_gated_mlp {
    int64_t inner;
    bool bias;
    bool fused; /* gate_up_proj: the rows of gate, then up; without bias */
};

/* Decoder layer i: its norms, grouped-query attention, and gated MLP. */
void ctw_describe_norms(struct ctw_config *c, int64_t i);
void ctw_describe_attention(struct ctw_config *c, int64_t i, const struct ctw_attention *a);
void ctw_describe_gated_mlp(struct ctw_config *c, int64_t i, const struct ctw_gated_mlp *mlp);

#endif
