/*
 * The validated description of one model: what a pass needs to know, and which tensors belong to
 * which layer. It holds no pointers to weights; a layer provider (worker/weights/provider.h) gives
 * them layer by layer. Every property that can differ between layers is stored per layer. model.c
 * builds the description from config.json, the quantisation config and the container, according to
 * the family's function (worker/model/families), and checks it against the tensors' shapes.
 */
#ifndef CTW_WORKER_MODEL_H
#define CTW_WORKER_MODEL_H

#include "kernels/backend.h"
#include "worker/checkpoint/container.h"

enum ctw_matrix_role {
    CTW_M_Q,
    CTW_M_K,
    CTW_M_V,
    CTW_M_O,
    CTW_M_GATE,
    CTW_M_UP,
    CTW_M_DOWN,
    CTW_M_QKV,           /* q, k and v in one matrix */
    CTW_M_GATE_UP,       /* gate and up in one matrix */
    CTW_M_HEADS_GATE,    /* of attention's output, a row for each head */
    CTW_M_Q_A,           /* latent attention: to the queries' latent; without one, q is CTW_M_Q */
    CTW_M_Q_B,           /* from it to the queries */
    CTW_M_KV_A,          /* to the keys' and values' latent, and the part of keys that turns */
    CTW_M_KV_B,          /* from it to the keys' own parts and the values */
    CTW_M_INDEX_Q,       /* the indexer: from the queries' latent to its queries, */
    CTW_M_INDEX_K,       /* to its keys, */
    CTW_M_INDEX_WEIGHTS, /* to the weights of its heads */
    CTW_M_INPUT_GATE,    /* of the layer's own input (Gemma 4) */
    CTW_M_INPUT_PROJ,    /* likewise; in layer 0: from the embedding to all layers' inputs */
    CTW_M_EMBED,         /* layer 0, like the next three */
    CTW_M_POSITIONS,     /* learned positions */
    CTW_M_EMBED_PROJ,    /* from the embedding's width to the model's; in the last layer: back */
    CTW_M_INPUT_EMBED,   /* embeddings of all layers' own inputs, side by side */
    CTW_M_HEAD,
    CTW_M_ROUTER,
    CTW_M_SHARED_GATE, /* [1, hidden]: the shared expert's factor, before the sigmoid */
    CTW_N_MATRICES
};

/* The matrices of one expert. */
enum ctw_expert_role {
    CTW_X_GATE,
    CTW_X_UP,
    CTW_X_DOWN,
    CTW_X_GATE_UP, /* gate and up in one matrix */
    CTW_N_EXPERT_MATRICES
};

/* Where a layer normalises. */
enum ctw_norm_place {
    CTW_AT_MIXER,     /* the residual, for the mixer */
    CTW_AT_MIXER_OUT, /* the mixer's output, before it is added to the residual */
    CTW_AT_MIXER_SUM, /* the residual itself, afterwards */
    CTW_AT_MLP,       /* likewise, for the MLP */
    CTW_AT_MLP_OUT,
    CTW_AT_MLP_SUM,
    CTW_AT_Q, /* heads */
    CTW_AT_K,
    CTW_AT_V,
    CTW_AT_Q_A, /* latents */
    CTW_AT_KV_A,
    CTW_AT_INDEX_K,
    CTW_AT_HEADS_OUT, /* attention's output, before o */
    CTW_AT_INNER,     /* the MLP's inner activations, before down */
    CTW_AT_INPUT,   /* what the layer's own input adds; in layer 0: each layer's projected input */
    CTW_AT_EMBED,   /* the embedding, in layer 0 */
    CTW_AT_HEAD,    /* the residual, for the LM head */
    CTW_AT_ROUTER,  /* the residual, for the router; without: the router reads the experts' */
    CTW_AT_EXPERTS, /* the residual, for the experts; without: they read the MLP's */
    CTW_AT_SHARED_OUT,  /* the shared expert's output */
    CTW_AT_EXPERTS_OUT, /* the experts' sum; CTW_AT_MLP_OUT: that of experts and shared expert */
    CTW_N_NORMS
};

enum ctw_vector_role {
    CTW_V_WEIGHT,                            /* + a ctw_norm_place: the norm's weight */
    CTW_V_BIAS = CTW_V_WEIGHT + CTW_N_NORMS, /* + a ctw_norm_place: the norm's bias */
    CTW_V_Q_BIAS = CTW_V_BIAS + CTW_N_NORMS, /* from here on: biases of matrices */
    CTW_V_K_BIAS,
    CTW_V_V_BIAS,
    CTW_V_O_BIAS,
    CTW_V_GATE_BIAS,
    CTW_V_UP_BIAS,
    CTW_V_DOWN_BIAS,
    CTW_V_QKV_BIAS,
    CTW_V_HEAD_BIAS,
    CTW_V_SINKS,  /* [n_head]: attention's */
    CTW_V_SCALAR, /* [1]: a factor of the layer's output, the residual */
    CTW_V_ACT,    /* 4 of [1]: alpha_p, alpha_n, beta and eps of xIELU */
    CTW_V_ROUTER_BIAS = CTW_V_ACT + 4,
    CTW_V_CORRECTION,       /* [n_experts]: of the router's choice */
    CTW_V_EXPERT_SCALE,     /* [n_experts]: factors of the experts' weights */
    CTW_V_EXPERT_GATE_BIAS, /* [n_experts, rows], like the next three */
    CTW_V_EXPERT_UP_BIAS,
    CTW_V_EXPERT_DOWN_BIAS,
    CTW_V_EXPERT_GATE_UP_BIAS,
    CTW_N_VECTORS
};

struct ctw_matrix {
    char *name; /* "model.layers.0.self_attn.q_proj"; NULL: the layer has none */
    struct ctw_weight weight;
    const struct ctw_tensor *part[CTW_N_PARTS]; /* NULL: absent */
    struct ctw_quantise input; /* how what the matrix multiplies is quantised; codes NONE: not */
    const struct ctw_tensor *input_part[2]; /* the tensors that `input` was read from, or NULL */
    int rotate_in, rotate_out; /* what it multiplies, before that; its result: 1 + an index of the
                                  model's rotations; 0: not rotated */
    /* The tensors are stacks of n_stacked such matrices, of which this is number `at`: `weight`
     * describes its part of them. 0: they are this matrix alone. */
    int64_t n_stacked, at;
};

/* Rows of one of a layer's matrices, or of an expert's, as a shard of a product. */
struct ctw_rows {
    int matrix; /* a ctw_matrix_role, or a ctw_expert_role */
    int64_t row0, n;
    int bias;     /* a ctw_vector_role, of all rows of the matrix; -1: none */
    int64_t step; /* from row to row, in matrix and bias; 0: 1 */
};

/* A product of a layer: its shards, in the order of the output's columns. All of worker/ reads a
 * layer's products from here. */
struct ctw_product {
    int n_shards; /* 0: the layer has no such product */
    struct ctw_rows shard[CTW_MAX_SHARDS];
};

struct ctw_norm_rule {
    bool present;
    enum ctw_norm_kind kind;
    float eps, offset; /* offset: added to the weight */
};

enum ctw_head_norms {
    CTW_HEADS_ALIKE, /* each head by itself, all with one row of weights */
    CTW_HEADS_OWN,   /* each head by itself, with its own weights */
    CTW_HEADS_WIDE   /* all heads of a token together */
};

/* A layer's arena has a multiple of this many bytes, and begins at a multiple of it. */
enum { CTW_ARENA_ALIGN = 256 };

/* A tensor in the layer's arena, `at` bytes after its beginning. */
struct ctw_tensor_place {
    const struct ctw_tensor *tensor;
    const struct ctw_tensor **more; /* those that continue it, up to NULL; NULL: none */
    bool held;                      /* it lies at the arena's beginning: see struct ctw_layer */
    size_t at;
};

/*
 * A mixture of experts. Each of the experts is an MLP of the same form; the products' shards name
 * matrices by ctw_expert_role. With on_input, an expert's weight multiplies its input, not its
 * output.
 */
struct ctw_mixture {
    struct ctw_route_rule route; /* n_experts 0: the layer has no experts */
    bool on_input;
    int64_t inner; /* rows of an expert's up */
    bool gated;
    enum ctw_activation act; /* without parameters */
    struct ctw_glu glu;
    struct ctw_product up, down; /* up: gate and up, or up alone */
    struct ctw_matrix *matrix;   /* [n_experts][CTW_N_EXPERT_MATRICES] */
};

/* Sparse attention: a query sees the best `chosen` keys alone (struct ctw_op_index). */
struct ctw_indexer {
    int64_t chosen;   /* 0: all keys */
    bool shared;      /* the choice is that of the last layer that made one; the rest is not set */
    int n_head, head; /* of the indexer's queries; it has one key per token */
    int rope;         /* index into the model's rope[], of the heads' first elements */
};

/* What a file may quantise of attention, after RoPE. */
enum ctw_heads { CTW_HEADS_K, CTW_HEADS_V, CTW_HEADS_Q, CTW_N_HEADS };

struct ctw_heads_input {
    struct ctw_quantise how;          /* codes NONE: these heads are not quantised */
    float *scale, *zero;              /* [heads]: in place of how's; NULL: not */
    const struct ctw_tensor *part[2]; /* the tensors that these were read from, or NULL */
};

/*
 * What a decoder layer computes (forward.c):
 *     x += mixer_factor * out_norm(o(heads_out_norm(attention(qkv(mixer_norm(x))))))
 *     x += mlp_factor * out_norm(down(inner_norm(act(gate(n)) * up(n)))),  n = mlp_norm(x)
 * with the norms that are present. Without a gate, act(up(n)). With experts:
 *     x += mlp_factor * out_norm(shared_out(f * mlp(n)) + experts_out(sum of weight * expert(e))),
 *         e = experts_norm(x), or n;  weights = route(router(router_norm(x), or of e))
 * where mlp is the shared expert, if there is one, and f is 1 or sigmoid(shared_gate(n)).
 */
struct ctw_layer {
    struct ctw_norm_rule norm[CTW_N_NORMS];
    bool parallel; /* mixer and MLP read the same x; without a norm of its own, the MLP reads the
                      mixer's */
    float mixer_factor, mlp_factor;
    float scalar; /* factor of the residual at the layer's end */
    /* attention */
    int n_head, n_kv, head;  /* heads, key-value heads, elements of a head; 0: no attention */
    int head_v;              /* elements of a value head */
    int64_t window;          /* keys visible to a query, its own included; 0: all */
    int64_t attn_chunk;      /* a query sees its own chunk of so many positions; 0: all */
    float v_factor;          /* of values; 0: 1 */
    enum ctw_gate_kind gate; /* of attention's output, by the product CTW_SLOT_HEADS_GATE of what
                                the mixer reads */
    int rope;                /* index into the model's rope[]; -1: none */
    bool q_factors;          /* queries are multiplied by the model's q_factor of their position */
    float attn_scale;        /* factor of q k^T */
    float attn_softcap;      /* 0: none */
    float qkv_limit;         /* q, k and v are clamped to -limit..limit; 0: they are not */
    bool limits_normed;      /* after the norms of q and k, not before */
    struct ctw_qkv_columns columns; /* of the product */
    enum ctw_head_norms head_norms;
    bool norms_after_rope;
    /* latent attention: keys and values are products of a latent of kv_rank elements; 0: none. The
     * last `turning` elements of a head are rotated; those of a key are the same in all heads.
     * q_rank 0: queries are a product of what the mixer reads. */
    int64_t q_rank, kv_rank;
    struct ctw_indexer index;
    int turning;
    struct ctw_heads_input heads_input[CTW_N_HEADS];
    int rotate_q, rotate_k; /* queries and keys after RoPE; likewise */
    int keeps_kv; /* the model's kept keys and values: this layer writes them; -1: it does not */
    int uses_kv;  /* likewise: this layer has none of its own and reads them; -1: it has its own */
    /* MLP */
    int64_t inner; /* rows of up; 0: no MLP */
    bool gated;
    enum ctw_activation act;
    float act_param[CTW_ACT_PARAMS];
    struct ctw_glu glu;
    struct ctw_mixture mixture;
    struct ctw_product product[CTW_SLOT_EXPERTS];
    struct ctw_matrix matrix[CTW_N_MATRICES];
    const struct ctw_tensor *vector[CTW_N_VECTORS]; /* NULL: the layer has none */
    const struct ctw_tensor **more[CTW_N_VECTORS]; /* tensors that continue the vector, in order, up
                                                      to NULL; NULL: it is one tensor */
    /* What the layer consists of, in the order of the files, and the size of its arena
     * (worker/weights/arena.h), which begins with what operations may read at any time: all but a
     * decoder layer's matrices, the embedding or the head. A tied head has no matrix: its parts are
     * the embedding's. */
    struct ctw_tensor_place *places;
    int64_t n_places;
    size_t held_bytes, arena_bytes;
};

/* One kind of rotary embedding: angle(position, i) = fl32(position * inv_freq[i]). */
struct ctw_rope {
    enum ctw_rope_pairing pairing;
    int rot_dim;          /* elements of a head that are rotated */
    float *inv_freq;      /* [rot_dim / 2], computed in fp32 as transformers does */
    float *long_inv_freq; /* [rot_dim / 2], for every position of a sequence of more than */
    int64_t long_from;    /* this many inputs; NULL: all sequences have inv_freq */
    float scale;          /* factor of cosines and sines (yarn's attention factor; else 1) */
    float long_scale;     /* that of sequences with long_inv_freq */
};

enum { CTW_MAX_ROPES = 4, CTW_MAX_KEPT = 4 };

struct ctw_model {
    char *dir;
    char *architecture;   /* "LlamaForCausalLM" */
    char *model_type;     /* "llama" */
    enum ctw_dtype dtype; /* the checkpoint's: dtype in config.json */
    int64_t hidden, vocab;
    int64_t max_length;   /* max_position_embeddings */
    int64_t own_length;   /* the same, or more if RoPE is scaled for more; 0: ALiBi has no length */
    int64_t length_limit; /* the longest sequence that has positions; 0: any */
    const char *limited_by; /* what limits it: "RoPE type dynamic" */
    int64_t embed_dim;      /* columns of the embedding and of the head */
    int64_t position0;      /* row of position 0 in the table of learned positions */
    float embed_scale;
    float head_scale, head_softcap; /* 1 and 0 */
    bool unit_head;                 /* the head's rows are divided by their lengths */
    bool tied;                      /* the head is the embedding's matrix */
    float *alibi;                   /* [n_head]: the slopes of ALiBi; NULL: none */
    struct ctw_rotation *rotations; /* of activations; arrays in host memory */
    int n_rotations;
    const struct ctw_tensor **rotation_tensors; /* the tensors that these were read from */
    int64_t n_rotation_tensors;
    double q_factor_beta, q_factor_length; /* factor of queries at position p: 1 + beta ln(1 + */
    double q_factor_first;                 /* floor((p + first) / length)); beta 0: none */
    int n_kept;        /* keys and values that other layers use: arrays for the pass */
    int64_t input_dim; /* of a layer's own input (Gemma 4); 0: none */
    float input_embed_scale;
    int n_ropes;
    struct ctw_rope rope[CTW_MAX_ROPES];
    int n_decoders;
    /* [n_decoders + 2]: the embedding, the decoder layers, and the head (when tied, the parts of
     * CTW_M_HEAD are the embedding's). */
    int n_layers;
    struct ctw_layer *layers;
    struct ctw_container *container;
    char *activations; /* the declared activation quantisation ("int8 token dynamic"); NULL: none */
    bool quantises_activations; /* it is simulated */
    int64_t n_apart;            /* tensors of other models in the checkpoint: towers, drafts */
    uint64_t apart_bytes;
    int64_t n_scales;   /* tensors with scales, of activations and caches, that are not used */
    char *unread;       /* keys of config.json that are not read: "a, b"; NULL: none */
    double weight_bits; /* mean bits per weight of the quantised matrices, scales included */
    int64_t n_params;   /* elements of all matrices and vectors; a tied matrix counts once */
    struct ctw_identity *identity; /* which checkpoint this is; known once every byte was read */
    char files_stamp[65];          /* of the folder, from before it was opened; files_stamp.h */
};

struct ctw_model_options {
    const char *config_name;    /* NULL: "config.json" */
    bool quantises_activations; /* as the checkpoint declares, if it does */
};

/* Opens and validates a checkpoint folder. `opt` NULL: all defaults. */
enum ctw_status ctw_model_open(struct ctw_model **out, const char *dir,
                               const struct ctw_model_options *opt,
                               struct ctw_err *err) CTW_MUST_CHECK;
void ctw_model_close(struct ctw_model *m); /* NULL is fine */

/* "none": only weights are quantised; "checkpoint": activations too, as the file declares. */
static inline const char *ctw_activations_mode(const struct ctw_model *m)
{
    return m->quantises_activations ? "checkpoint" : "none";
}

/* The bytes of a vector that the layer has. */
size_t ctw_vector_bytes(const struct ctw_layer *l, int role);

/*
 * All of a layer's matrices, in one count: those of enum ctw_matrix_role, which may be absent (name
 * NULL), then the experts'.
 */
static inline int ctw_layer_n_matrices(const struct ctw_layer *l)
{
    return CTW_N_MATRICES + l->mixture.route.n_experts * CTW_N_EXPERT_MATRICES;
}

static inline struct ctw_matrix *ctw_layer_matrix(struct ctw_layer *l, int i)
{
    return i < CTW_N_MATRICES ? &l->matrix[i] : &l->mixture.matrix[i - CTW_N_MATRICES];
}

static inline const struct ctw_matrix *ctw_layer_matrix_of(const struct ctw_layer *l, int i)
{
    return i < CTW_N_MATRICES ? &l->matrix[i] : &l->mixture.matrix[i - CTW_N_MATRICES];
}

/* Does transformers' cache hold the layer's latents, and not keys and values made of them? Not with
 * sparse attention. */
static inline bool ctw_layer_caches_latents(const struct ctw_layer *l)
{
    return l->kv_rank > 0 && l->index.chosen == 0;
}

/* Does something come between the experts' sum and the residual, so that it needs an array of its
 * own? */
static inline bool ctw_layer_has_sum(const struct ctw_layer *l)
{
    return l->mixture.route.n_experts > 0 &&
           (l->norm[CTW_AT_SHARED_OUT].present || l->norm[CTW_AT_EXPERTS_OUT].present ||
            l->norm[CTW_AT_MLP_OUT].present);
}

/* Bytes from the beginning of a part's tensor to this matrix's; 0: the tensor is this matrix's
 * alone, or all of a stack share it. */
static inline size_t ctw_part_offset(const struct ctw_matrix *m, int part)
{
    size_t own = m->weight.part[part].bytes;
    return own == m->part[part]->bytes ? 0 : own * (size_t)m->at;
}

#endif
