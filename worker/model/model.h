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
    CTW_M_QKV,     /* q, k and v in one matrix */
    CTW_M_GATE_UP, /* gate and up in one matrix */
    CTW_M_EMBED,
    CTW_M_HEAD,
    CTW_N_MATRICES
};

enum ctw_vector_role {
    CTW_V_ATTN_NORM, /* before attention */
    CTW_V_MLP_NORM,  /* before the MLP */
    CTW_V_Q_NORM,
    CTW_V_K_NORM,
    CTW_V_Q_BIAS,
    CTW_V_K_BIAS,
    CTW_V_V_BIAS,
    CTW_V_O_BIAS,
    CTW_V_GATE_BIAS,
    CTW_V_UP_BIAS,
    CTW_V_DOWN_BIAS,
    CTW_V_FINAL_NORM,
    CTW_N_VECTORS
};

struct ctw_matrix {
    char *name;               /* "model.layers.0.self_attn.q_proj"; NULL: the layer has none */
    struct ctw_weight weight;
    const struct ctw_tensor *part[CTW_N_PARTS]; /* NULL: absent */
};

/* Rows of one of a layer's matrices, as a shard of a product. */
struct ctw_rows {
    enum ctw_matrix_role matrix;
    int64_t row0, n;
    int bias; /* a ctw_vector_role, [n]; -1: none */
};

/* A product of a layer: its shards, in the order of the output's columns. All of worker/ reads a
 * layer's products from here. */
struct ctw_product {
    int n_shards; /* 0: the layer has no such product */
    struct ctw_rows shard[CTW_MAX_SHARDS];
};

struct ctw_layer {
    int n_head, n_kv, head; /* heads, key-value heads, elements of a head */
    int64_t window;         /* keys visible to a query, its own included; 0: all */
    int rope;               /* index into the model's rope[]; -1: none */
    float attn_scale;       /* factor of q k^T */
    float attn_softcap;     /* 0: none */
    int64_t inner;          /* rows of gate and up */
    struct ctw_product product[CTW_N_SLOTS];
    struct ctw_matrix matrix[CTW_N_MATRICES];
    const struct ctw_tensor *vector[CTW_N_VECTORS]; /* NULL: the layer has none */
};

enum { CTW_MAX_LAYER_TENSORS = CTW_N_MATRICES * CTW_N_PARTS + CTW_N_VECTORS };

/* One kind of rotary embedding: angle(position, i) = fl32(position * inv_freq[i]). */
struct ctw_rope {
    enum ctw_rope_pairing pairing;
    int rot_dim;          /* elements of a head that are rotated */
    float *inv_freq;      /* [rot_dim / 2], computed in fp32 as transformers does */
    float *long_inv_freq; /* [rot_dim / 2], for every position of a sequence of more than */
    int64_t long_from;    /* this many inputs; NULL: all sequences have inv_freq */
    float scale;     /* factor of cosines and sines (yarn's attention factor; else 1) */
};

enum { CTW_MAX_ROPES = 4 };

struct ctw_model {
    char *dir;
    char *architecture; /* "LlamaForCausalLM" */
    char *model_type;   /* "llama" */
    enum ctw_dtype dtype; /* the checkpoint's: dtype in config.json */
    int64_t hidden, vocab;
    int64_t max_length;   /* max_position_embeddings */
    int64_t length_limit; /* the longest sequence that RoPE is valid for; 0: any */
    float norm_eps, norm_offset;
    float embed_scale;
    enum ctw_activation act;
    float head_scale, head_softcap; /* 1 and 0 */
    bool tied;                      /* the head is the embedding's matrix */
    int n_ropes;
    struct ctw_rope rope[CTW_MAX_ROPES];
    int n_decoders;
    /* [n_decoders + 2]: the embedding (only CTW_M_EMBED), the decoder layers, and the head
     * (CTW_V_FINAL_NORM and CTW_M_HEAD; when tied, its parts are the embedding's). */
    int n_layers;
    struct ctw_layer *layers;
    struct ctw_container *container;
    char *activations; /* the declared activation quantisation, which is not simulated ("int8 per
                          token"); NULL: none */
    char *unread;      /* keys of config.json that are not read: "a, b"; NULL: none */
    double weight_bits;     /* mean bits per weight of the quantised matrices, scales included */
    int64_t n_params;       /* elements of all matrices and vectors; a tied matrix counts once */
    struct ctw_identity *identity; /* which checkpoint this is; known once every byte was read */
};

/* Opens and validates a checkpoint folder. `config_name` NULL: "config.json". */
enum ctw_status ctw_model_open(struct ctw_model **out, const char *dir, const char *config_name,
                               struct ctw_err *err) CTW_MUST_CHECK;
void ctw_model_close(struct ctw_model *m); /* NULL is fine */

#endif
