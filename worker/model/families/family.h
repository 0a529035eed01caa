/*
 * What a model family is written with. A family is one function, which reads its keys from
 * config.json by name and describes the model: its sizes, its layers, and the tensors that the
 * checkpoint must have. A new family is one file with such a function and one line in list.h.
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
#include "worker/model/families/list.h"

/*
 * A model that reads text and images, say. We score its text model, whose keys are in text_config;
 * tie_word_embeddings, dtype and quantization_config may be at either level.
 */
struct ctw_wrapper {
    const char *text_type; /* text_config.model_type; NULL: any, as the class has one text model */
    bool is_default;       /* also without a text_config.model_type */
    bool flat;             /* without text_config, the keys are at the top level (older files) */
    bool tied;             /* transformers' default for tie_word_embeddings */
    bool adapters;         /* its LoRA is for other inputs than text */
};

/* What takes the place of "model." and "lm_head" in the names of a file. */
struct ctw_spelling {
    const char *model, *head;
};

/* What transformers 5's class calls in memory a module or tensor of a decoder layer, or what is in
 * it; the makers' files have it as described. */
struct ctw_renamed {
    const char *described, *in_memory;
};

struct ctw_family {
    const char *model_type;
    const char *architecture;          /* config.json's architectures[0] */
    const char *old_architecture;      /* another spelling; NULL: none */
    const struct ctw_wrapper *wrapper; /* NULL: the text model is all there is */
    const char *prefix;                /* of names of describe(), beside lm_head; NULL: "model." */
    /* How files spell names, transformers 5's spelling first, up to {NULL}; NULL: as described. */
    const struct ctw_spelling *spellings;
    const struct ctw_renamed *in_memory; /* up to {NULL}; NULL: as described */
    bool layers_differ; /* describe() reads per_layer_config (ctw_key_of_layer()) */
    void (*describe)(struct ctw_config *c);
};

#define CTW_FAMILY_DECLARE(name) extern const struct ctw_family ctw_family_##name;
CTW_FAMILIES(CTW_FAMILY_DECLARE)
#undef CTW_FAMILY_DECLARE

/*
 * A model that takes one of several families' text models, each as in its own files, but that the
 * head is the model's: text_config.model_type says which (hosts.c).
 */
struct ctw_host {
    const char *model_type, *architecture;
    const char *text_key;  /* instead of text_config; NULL: text_config */
    const char *text_type; /* of a text_config without model_type */
    struct ctw_wrapper wrapper;
    const struct ctw_spelling *spellings;
};

extern const struct ctw_host ctw_hosts[]; /* up to a model_type of NULL */
/* The families that hosts take: those whose heads are a product and nothing else. NULL-terminated.
 */
extern const struct ctw_family *const ctw_hosted[];

/* Of text models in wrappers. */
extern const struct ctw_spelling ctw_wrapped_spellings[];
/* Of models whose names begin with "transformer.", which some files leave out. */
extern const struct ctw_spelling ctw_transformer_spellings[];

/* Sets c->family and c->text, or refuses config.json. */
enum ctw_status ctw_find_family(struct ctw_config *c, struct ctw_err *err) CTW_MUST_CHECK;

/* ---- keys of config.json (config_keys.c) ---- */

/* "OBJECT.KEY" names a key of an object in the file: "attn_config.clip_qkv". */

/* What null means, if it is an error, as in transformers. */
enum { CTW_NULL_REFUSED = -1 };

/* `absent`: transformers' default; `null`: the value for null, or CTW_NULL_REFUSED; the accepted
 * range is min..max, inclusive. Reading a key a second time is an error. */
int64_t ctw_key_int(struct ctw_config *c, const char *name, int64_t absent, int64_t null,
                    int64_t min, int64_t max);
double ctw_key_number(struct ctw_config *c, const char *name, double absent, double null,
                      double min, double max);
bool ctw_key_bool(struct ctw_config *c, const char *name, bool absent);
/* null: as absent. */
const char *ctw_key_string(struct ctw_config *c, const char *name, const char *absent);
/* Decoder layer i's value in per_layer_config, whose entries may have these members alone
 * (NULL-terminated). The only key that may be read more than once. */
int64_t ctw_key_of_layer(struct ctw_config *c, int64_t i, const char *const *members,
                         const char *name, int64_t absent, int64_t min, int64_t max);
/* Absent or null: false. */
bool ctw_key_is_true(struct ctw_config *c, const char *name);
enum ctw_activation ctw_key_activation(struct ctw_config *c, const char *name,
                                       enum ctw_activation absent);

/* Which of n layers have something: n or more numbers, 1 or 0; absent or null: all but every
 * `every`-th. The configuration owns the array, and those of the functions below. */
const bool *ctw_key_layers(struct ctw_config *c, const char *name, int64_t n, int64_t every);
/* The same by names, say "sparse" and "dense". NULL: absent or null, or after an error. */
const bool *ctw_key_layers_called(struct ctw_config *c, const char *name, int64_t n,
                                  const char *yes, const char *no);
/* kind[i]: which of `names`, up to NULL, layer i is called. Absent or null: `kind` stays. */
void ctw_key_layer_kinds(struct ctw_config *c, const char *name, int64_t n,
                         const char *const *names, int *kind);
/* Which layers have something by a list of these layers. */
const bool *ctw_key_layer_set(struct ctw_config *c, const char *name, int64_t n);
/* A number for each of n layers: n or more numbers, of which null is 0, or one for all. NULL:
 * absent or null, or after an error. */
const double *ctw_key_layer_numbers(struct ctw_config *c, const char *name, int64_t n, double min,
                                    double max);

/*
 * Without layer_types: layers below `first` are full, and so is every `every`-th (0: no other).
 * With letters, which repeat, a layer is full if its letter is G, or if it is the last layer.
 */
struct ctw_window_rule {
    int64_t first, every;
    const char *letters; /* "LLLG"; NULL: none */
    const bool *full;    /* NULL, or which layers are full, without any other rule */
};

/* Reads a key that is a rule: a number, `every`, or letters L and G. null: 0. */
struct ctw_window_rule ctw_key_window_pattern(struct ctw_config *c, const char *name,
                                              int64_t absent);

/*
 * The window of each of n layers, in keys (0: all): `window` in the layers that layer_types calls
 * sliding_attention, or that the rule makes so. The configuration owns the array.
 */
const int64_t *ctw_key_windows(struct ctw_config *c, int64_t n, int64_t window,
                               const struct ctw_window_rule *absent);

/* tie_word_embeddings, at either level; `absent`: transformers' default for the text model. */
bool ctw_key_tied(struct ctw_config *c, bool absent);
/* Is the key this string? Absent or null: false. */
bool ctw_key_is(struct ctw_config *c, const char *name, const char *text);
/* The first entry of an array of n, for ctw_json_next(); NULL after an error. */
const struct ctw_json_node *ctw_key_list(struct ctw_config *c, const char *name, int64_t n);

/* Is the key present, with a value other than null? Does not count as reading it. */
bool ctw_key_is_given(const struct ctw_config *c, const char *name);

/* The name of a key that the class also takes under Llama's name, which wins (attribute_map). */
const char *ctw_key_either(const struct ctw_config *c, const char *name, const char *llama);

/* Keeps an error about a key, which may be absent: "config.json: KEY: found 0, expected ..". */
void ctw_key_fail(struct ctw_config *c, const char *name, enum ctw_status status, const char *fmt,
                  ...) CTW_PRINTF(4, 5);

/* ---- sizes (sizes.c), and models with Llama's keys, module names and layers (recipe/describe.c)
 * ---- */

/* The sizes that a configuration gives, or transformers' defaults for them. */
struct ctw_sizes {
    int64_t vocab, hidden, inner, n_layers, n_head;
    int64_t n_kv; /* 0, as a default: as many as n_head */
    int64_t max_length;
    const char *hidden_key, *n_head_key; /* which keys gave them, for messages */
};

/* Reads vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads,
 * num_key_value_heads (null: num_attention_heads) and max_position_embeddings. */
struct ctw_sizes ctw_key_sizes(struct ctw_config *c, const struct ctw_sizes *absent);

/* The keys of these sizes, if they are not Llama's. NULL: Llama's; "": there is no such key. */
struct ctw_size_keys {
    const char *vocab, *hidden, *inner, *n_layers, *n_head, *n_kv, *max_length;
};
struct ctw_sizes ctw_key_sizes_as(struct ctw_config *c, const struct ctw_sizes *absent,
                                  const struct ctw_size_keys *keys);

/* Reads head_dim; 0, as the default or for null: hidden / n_head. */
int64_t ctw_key_head_dim(struct ctw_config *c, const struct ctw_sizes *s, int64_t absent,
                         int64_t null);

/* The same of configurations without such a key: hidden / n_head. */
int64_t ctw_head_of(struct ctw_config *c, const struct ctw_sizes *s);
/* The same of classes of which only RoPE reads the key: any other head_dim is refused. */
int64_t ctw_key_same_head(struct ctw_config *c, const struct ctw_sizes *s);

/* How a norm computes. */
struct ctw_norm_form {
    enum ctw_norm_kind kind;
    double eps;
    double offset;   /* added to its weight */
    bool bias;       /* has one beside its weight */
    bool weightless; /* has neither */
};

/* An RMS norm with a weight, whose eps is the key's value. */
struct ctw_norm_form ctw_key_rms_norm(struct ctw_config *c, const char *eps_key, double absent);
/* A layer norm with weight and bias, likewise. */
struct ctw_norm_form ctw_key_layer_norm(struct ctw_config *c, const char *eps_key, double absent);

/* The model around its layers. Names: NULL is Llama's. */
struct ctw_model_rules {
    const char *layers;        /* "model.layers": layer 3's names begin with "model.layers.3." */
    const char *embed;         /* "model.embed_tokens" */
    const char *final_norm;    /* "model.norm"; "": there is none */
    const char *head;          /* "lm_head" */
    struct ctw_norm_form norm; /* the final norm's */
    bool tied;                 /* transformers' default for tie_word_embeddings */
    bool head_bias;
    bool unit_head, wide_head;      /* the head's rows are divided by their lengths; it is fp32 */
    bool conv1d;                    /* layers' linear weights are stored [in, out] (GPT-2) */
    int64_t embed_dim;              /* columns of the embedding and of the head; 0: hidden */
    int64_t head_rows;              /* ids with a probability, the first ones; 0: all */
    double embed_scale, head_scale; /* 0: 1 */
    double head_softcap;            /* 0: none */
};

/* Begins the model: reads tie_word_embeddings, and describes the embedding, the final norm and the
 * head. Later calls take sizes that their rules leave out from *s. */
void ctw_describe_model(struct ctw_config *c, const struct ctw_sizes *s,
                        const struct ctw_model_rules *rules);

/* Learned positions, added to the embedding: rows first .. first + max_length - 1 of a table. */
void ctw_describe_positions(struct ctw_config *c, const char *module, int64_t first);

/* ALiBi in all layers: slopes for n_head heads up to 2^-(max_bias / n), times factor. */
void ctw_describe_alibi(struct ctw_config *c, int64_t n_head, double max_bias, double factor);

/*
 * Reads a RoPE's keys (rope.h), adds it to the model, unless the model has an equal one, and
 * returns its index, for the layers that use it. After ctw_describe_model().
 * (recipe/describe_rope.c)
 */
int ctw_describe_rope(struct ctw_config *c, const struct ctw_rope_rules *rules);

/* Has the file a RoPE's parameters? Without, a class may have a RoPE of its own. */
bool ctw_key_has_rope(const struct ctw_config *c);

/* Reads a number of rope_parameters or rope_scaling, or of the top level, that is the family's own:
 * not one of a RoPE's. */
double ctw_key_rope_number(struct ctw_config *c, const char *name, double absent);

/* A branch of decoder layer i, to set what the functions below do not (model.h says what its
 * members mean). After an error: a branch that nothing reads. */
struct ctw_branch *ctw_describe_branch(struct ctw_config *c, int64_t i, int branch);
/* The same, of this kind. */
struct ctw_branch *ctw_describe_kind(struct ctw_config *c, int64_t i, int branch,
                                     enum ctw_kind kind);

/* Layers of ctw_describe_norm(), beside the decoders 0 .. */
enum { CTW_EMBEDDING = -1 };

/* A norm over the residual or a branch, "MODULE.weight" and ".bias", of n elements (0: hidden). */
void ctw_describe_norm(struct ctw_config *c, int64_t i, int place, const struct ctw_norm_form *form,
                       const char *module, int64_t n);
/* Llama's two norms: input_layernorm and post_attention_layernorm. */
void ctw_describe_norms(struct ctw_config *c, int64_t i, const struct ctw_norm_form *form);

/* Norms of query and key heads. */
struct ctw_qk_norms {
    struct ctw_norm_form form;
    enum ctw_head_norms heads;
    bool apart; /* CTW_HEADS_OWN: head 3's weight is the tensor "MODULE.3.weight" */
    bool after_rope;
    const char *q, *k; /* NULL: self_attn.q_norm, self_attn.k_norm */
};

enum ctw_qkv_order {
    CTW_QKV_SPLIT,     /* three modules */
    CTW_QKV_IN_ORDER,  /* one module: all rows of q, then k, then v */
    CTW_QKV_BY_HEAD,   /* one module: for each key head, its queries, its key, its value */
    CTW_QKV_IN_BLOCKS, /* one module: for each block of heads, its queries, values, keys */
    CTW_QKV_IN_RANKS   /* the same of the blocks' queries, keys, values: ranks of a release */
};

/* Grouped-query attention. Names: NULL is Llama's. */
struct ctw_attention_rules {
    int64_t n_head, n_kv; /* 0: those of the model's sizes */
    int64_t head, window;
    int rope;          /* an index of ctw_describe_rope(); -1: none */
    bool q_factors;    /* queries are multiplied by the model's factors (model.h) */
    double scale;      /* of scores; 0: 1 / sqrt(head) */
    double softcap;    /* of scores; 0: none */
    double limit;      /* of q, k and v, which are clamped; 0: none */
    bool limit_normed; /* after the norms of q and k */
    enum ctw_qkv_order order;
    int blocks;            /* IN_BLOCKS, IN_RANKS; n_head and n_kv are multiples */
    const char *q, *k, *v; /* self_attn.q_proj, .k_proj, .v_proj */
    const char *qkv, *o;   /* self_attn.qkv_proj, .o_proj */
    bool qkv_bias, o_bias;
    int64_t head_v;    /* elements of a value head; 0: head. Another: not BY_HEAD nor IN_BLOCKS */
    int64_t chunk;     /* a query sees keys of its own chunk of positions alone; 0: all */
    double v_factor;   /* of values; 0: 1 */
    const char *sinks; /* a tensor [n_head]: the name, "self_attn.sinks"; NULL: none */
    enum ctw_gate_kind gate; /* of attention's output: of each head, or of each value, by */
    bool gate_values;
    bool gate_in_q; /* of each value, by the rows of q behind those of each head, as many */
    const char *g;  /* the module self_attn.g_proj, without bias; not with gate_in_q */
    const struct ctw_qk_norms *norms;   /* NULL: none */
    const struct ctw_norm_form *v_norm; /* of value heads, without weight; NULL: none */
    bool values_are_keys;    /* no v: values are what k gives, before its norm and RoPE */
    int64_t input;           /* columns that q, k and v read; 0: hidden */
    const char *adapters[3]; /* of q, k and v: the modules NAME.0, to the rank, and NAME.1; NULL:
                                there are none. With CTW_QKV_SPLIT */
    int64_t adapter_rank;
    const char
        *relative; /* a learned bias of scores by distance: the module of the queries' states */
    const char *relative_proj;              /* and the tensor [rank, extent]; NULL: none. With */
    int64_t relative_rank, relative_extent; /* CTW_QKV_SPLIT, and no gate in q */
    const char *k_conv, *v_conv; /* convolutions of keys and values before their norms, which are
                                    added to them: the tensors [n, taps]; NULL: none. With
                                    CTW_QKV_SPLIT, and without RoPE */
    int conv_taps;
    struct ctw_block_choice choice; /* with CTW_QKV_SPLIT, ALIKE norms of queries and keys, a RoPE,
                                       and keys and values of its own */
    struct ctw_pool_choice pools;   /* likewise */
    int uses;  /* 1 + the kept keys and values that it uses instead of its own; 0: own */
    int keeps; /* 1 + the kept keys and values that its own become; 0: none */
};

/* Latent attention (MLA), with DeepSeek's names. A query or key head is [nope | rope]; the rope
 * part of a token's keys is the same in all heads. */
struct ctw_latent_attention {
    int64_t n_head;
    int64_t q_rank;  /* of queries' latent; 0: none, queries are q_proj's */
    int64_t kv_rank; /* of keys' and values' */
    int64_t nope, rope, head_v;
    int rope_index; /* an index of ctw_describe_rope(), for heads of `rope` elements; -1: none */
    double scale;   /* of scores; 0: 1 / sqrt(nope + rope) */
    bool q_factors; /* queries are multiplied by the model's factors (model.h) */
    bool bias;      /* of q_a_proj (q_proj has none), kv_a_proj_with_mqa and o_proj */
    struct ctw_norm_form norm; /* of latents */
    const char *module, *out;  /* NULL: self_attn, o_proj */
    double kv_factor;          /* of the latent of keys and values, after its norm; 0: 1 */
    const char *gate;          /* of each head of the output, without bias; NULL: none */
    bool gate_values;          /* ... of each value */
    const char *sinks;         /* the tensor [n_head] of attention's sinks; NULL: none */
    double index_eps;          /* of the norm of the indexer's keys; 0: 1e-6 */
    struct ctw_indexer index;  /* sparse attention, with q_rank; chosen 0: none */
};

/* A dense MLP. Names: NULL is Llama's. */
struct ctw_mlp {
    int branch; /* of the layer; 0: CTW_MLP */
    int64_t inner;
    enum ctw_activation act;
    bool plain; /* no gate */
    bool bias;
    struct ctw_glu glu;         /* how gate and up are joined */
    bool fused;                 /* gate and up are one module: the rows of gate, then of up */
    bool up_first;              /* of these rows, up's */
    bool interleaved;           /* of these rows, gate's and up's take turns */
    const char *gate, *up;      /* mlp.gate_proj, mlp.up_proj */
    const char *gate_up, *down; /* mlp.gate_up_proj, mlp.down_proj */
    double cutoff; /* of gate, before act (CTW_NORM_CUTOFF); 0: none. Without `fused`, PLAIN glu */
    const char *adapter; /* of gate_up, as attention's; NULL: none. With `fused`, gate first */
    int64_t adapter_rank;
};

/* How a mixture's router chooses (struct ctw_route_rule). Names: NULL is Qwen's. */
struct ctw_router {
    const char *module;        /* "mlp.gate", a matrix [n, hidden] */
    bool bias;                 /* has one */
    const char *correction;    /* the tensor [n] that corrects the choice; NULL: none */
    bool correction_is_row;    /* the file has it as [1, n] */
    bool correction_of_logits; /* it is added to the logits instead of the scores */
    const char *expert_scale;  /* the tensor [n] of factors; NULL: none */
    const char *table; /* the tensor [vocabulary, chosen] of tokens' fixed experts; NULL: none */
    enum ctw_score score;
    int64_t n_groups, kept_groups; /* 0 or 1 group: none */
    int group_best;
    bool normalised;
    double sum_add, sum_least;
    double scale, factor;   /* 0: 1 */
    double softcap, jitter; /* softcap: of the logits; 0: none */
    bool on_input;          /* an expert's weight multiplies its input */
};

/*
 * A mixture of experts. Names: NULL is Qwen's. The norms CTW_AT_ROUTER, CTW_AT_EXPERTS and so on
 * are described by ctw_describe_norm(), as any other.
 *
 * Apart, expert 3's matrices are modules: "mlp.experts.3.gate_proj", "mlp.experts.3.gate_up_proj".
 * Stacked, all experts' matrices of one role are one tensor of three dimensions, the first of n:
 * "mlp.experts.gate_up_proj", or "mlp.experts.gate_up_proj.weight".
 */
struct ctw_experts {
    int branch;         /* of the layer; 0: CTW_MLP. Another: without a shared expert */
    int64_t n, chosen;  /* chosen: of n and n_identity, for a token */
    int64_t n_identity; /* experts behind the n that give what they read, and have no tensors */
    int64_t inner;
    enum ctw_activation act;
    struct ctw_glu glu;         /* how gate and up are joined */
    bool plain;                 /* no gate */
    bool bias;                  /* stacked: tensors "mlp.experts.gate_up_proj_bias" [n, rows] */
    bool stacked, flat;         /* flat: [n * inner, hidden], down's transposed (MegaBlocks) */
    bool transposed;            /* stacked [n, inputs, outputs] */
    bool fused;                 /* gate and up are one matrix: the rows of gate, then of up */
    bool interleaved;           /* of these rows, gate's and up's take turns */
    const char *module;         /* "mlp.experts"; "": the names below are those of the layer */
    const char *apart;          /* the same in files of llm-compressor; NULL: the module */
    const char *gate, *up;      /* "gate_proj", "up_proj" */
    const char *gate_up, *down; /* "gate_up_proj", "down_proj" */
    struct ctw_router router;
    int64_t latent;                     /* the experts read and write so many values; 0: hidden */
    const char *latent_in, *latent_out; /* the modules from and to hidden */
    int64_t n_always; /* experts behind the n, which every token has beside its choice and whose
                         logits are the router's last: stacked and fused, of this module */
    const char *always, *always_gate_up, *always_down;
    bool latent_bias;
    const struct ctw_mlp *shared; /* the shared expert; its names are the family's; NULL: none */
    const char *shared_gate;      /* the module of its factor [1, hidden]; NULL: none */
};

/* Does the checkpoint's quantisation tool store the parts of a fused projection as modules? */
static inline bool ctw_is_unfused(const struct ctw_config *c)
{
    return c->quant.names->unfused;
}

/* The branch's output plus its convolution over the tokens takes the output's place: the tensor
 * `name` [hidden, taps]. The branch has been described. */
void ctw_describe_out_conv(struct ctw_config *c, int64_t i, int branch, const char *name, int taps);

void ctw_describe_attention(struct ctw_config *c, int64_t i, const struct ctw_attention_rules *a);
void ctw_describe_latent_attention(struct ctw_config *c, int64_t i,
                                   const struct ctw_latent_attention *a);
void ctw_describe_mlp(struct ctw_config *c, int64_t i, const struct ctw_mlp *mlp);
/* Gemma 4's, behind the MLP. */
void ctw_describe_own_input(struct ctw_config *c, int64_t i, enum ctw_activation act,
                            const struct ctw_norm_form *norm);
/*
 * Instead of ctw_describe_mlp(), which describes the shared expert for it. Files of llm-compressor,
 * which have a module for each expert ("experts.0.gate_proj") whatever the family's own files have,
 * are described as they are. (recipe/mixture.c)
 */
void ctw_describe_experts(struct ctw_config *c, int64_t i, const struct ctw_experts *x);

/* ---- what other builders are made of ---- */

static inline const char *ctw_name_or(const char *name, const char *absent)
{
    return name != NULL ? name : absent;
}

/* Adds a tensor or matrix to the list of those that the checkpoint must have. `name` is relative to
 * a decoder layer's names. */
void ctw_describe_want(struct ctw_config *c, struct ctw_want w, const char *name);

/* What is described from here on is named as decoder layer i's, whichever layer it is described
 * for; -1: as each layer's own. For modules that several layers share. */
void ctw_describe_named_as(struct ctw_config *c, int64_t i);

/* A Linear module as the next shard of a branch's product, all by their roles. */
struct ctw_linear_rules {
    int product, matrix;
    int bias; /* the vector; 0: none */
    const char *module;
    int64_t n, k;
};

/* Of decoder layer i (CTW_EMBEDDING, or n_layers: the head's layer). */
void ctw_describe_linear(struct ctw_config *c, int64_t i, int branch,
                         const struct ctw_linear_rules *r);
/* The parts of that: the layer's matrix, rows as the next shard of the layer's product, and the
 * bias "MODULE.bias" as the layer's vector. */
void ctw_describe_matrix(struct ctw_config *c, int64_t i, int matrix, const char *module, int64_t n,
                         int64_t k);
void ctw_describe_shard(struct ctw_config *c, int64_t i, int product, struct ctw_rows rows);
void ctw_describe_bias(struct ctw_config *c, int64_t i, int vector, const char *module, int64_t n);
/* A vector [n] of such a layer, by the tensor's name; again: a tensor that continues it. */
void ctw_describe_vector(struct ctw_config *c, int64_t i, int vector, const char *name, int64_t n);
/* A norm without a tensor. */
void ctw_describe_nameless_norm(struct ctw_config *c, int64_t i, int place,
                                const struct ctw_norm_form *form);
/* An embedding table of layer 0. */
void ctw_describe_table(struct ctw_config *c, int role, const char *module, int64_t n, int64_t k);
/* Decoder layer i's module that files hold but the model does not use. */
void ctw_describe_unused(struct ctw_config *c, int64_t i, const char *module);
/* The first tensor of the files that has this in its name; NULL: none. */
const struct ctw_tensor *ctw_files_find(const struct ctw_config *c, const char *part);
/* Did mlx-lm convert the files of a model with Mamba's or Qwen's convolutions? Their shape tells,
 * [n, taps, 1] instead of [n, 1, taps]. */
bool ctw_files_by_mlx(const struct ctw_config *c);
/* Layers for drafts (multi-token prediction) that files may have behind the decoders; not read. */
void ctw_describe_drafts(struct ctw_config *c, int64_t n);
/* Tensors whose names end so are buffers, not weights. NULL-terminated, static. */
void ctw_describe_buffers(struct ctw_config *c, const char *const *endings);

#endif
