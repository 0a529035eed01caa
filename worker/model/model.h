/*
 * The validated description of one model: everything that a pass needs, and the tensors of each
 * layer. The description holds no pointers to weights; a layer provider (worker/weights/provider.h)
 * supplies them layer by layer. Every property that can differ between layers is stored per layer.
 * model.c builds the description from config.json, the quantisation config and the container,
 * according to the family's function (worker/model/families), and checks it against the tensors'
 * shapes.
 */
#ifndef CTW_WORKER_MODEL_H
#define CTW_WORKER_MODEL_H

#include "worker/model/recipe/all.h"
#include "worker/model/recipe/list.h"

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
 * A branch of a layer computes something of the residual stream, and joins it
 * (worker/engine/pass/residuals.h). With one stream x: x += factor * out_norm(y), where y is the
 * kind's of in_norm(x), or with taps that plus its short convolution over the tokens;  x = scalar *
 * sum_norm(x) with the norms that are present.
 */
struct ctw_branch {
    enum ctw_kind kind;
    bool beside; /* the branch reads the same x as the previous branch or, without an in_norm of
                    its own, the same normalised input */
    float factor, scalar;
    int conv_taps; /* 0: no convolution */
#define CTW_MEMBER(name) struct ctw_##name name;
    union {
        CTW_KINDS(CTW_MEMBER)
    };
#undef CTW_MEMBER
};

/*
 * A table of rows of which a pass needs few, and which is larger than the rest of its layer: no
 * arena has it, and its rows are read from the files when they are needed.
 */
struct ctw_table {
    const struct ctw_tensor **part; /* [n], of one dtype and width */
    int64_t *row0;                  /* [n + 1]: the row with which each begins, and the end */
    int n;                          /* 0: the layer has no table */
};

/* A decoder layer: its branches, one after another or side by side. */
struct ctw_layer {
    int n_branches; /* the first of them may be of no kind */
    int leads;      /* the branch that comes before the others, which keep their order */
    struct ctw_branch branch[CTW_MAX_BRANCHES];
    struct ctw_residual residual; /* also the embedding's and the head's layers have it */
    /* The branches' stretches (recipe/parts.h). The embedding's and the head's layers have one. */
    struct ctw_norm_rule norm[CTW_N_NORMS];
    struct ctw_product product[CTW_LAYER_SLOTS];
    struct ctw_matrix matrix[CTW_N_MATRICES];
    const struct ctw_tensor *vector[CTW_N_VECTORS]; /* NULL: the layer has none */
    const struct ctw_tensor **more[CTW_N_VECTORS]; /* tensors that continue the vector, in order, up
                                                      to NULL; NULL: it is one tensor */
    struct ctw_table table;
    struct ctw_matrix *expert; /* [n_experts][CTW_N_EXPERT_MATRICES], of the layer's mixture */
    int n_experts;
    /* The layer's tensors in the order of the files, and the size of its arena
     * (worker/weights/arena.h). The arena begins with the tensors that operations may read at any
     * time: all but a decoder layer's matrices, the embedding or the head. A tied head has no
     * matrix; its parts are the embedding's. */
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

enum { CTW_MAX_ROPES = 4 };

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
    bool wide_head;                 /* the head is fp32, whatever the activations' dtype is */
    bool tied;                      /* the head is the embedding's matrix */
    float *alibi; /* [n_alibi]: the slopes of ALiBi for a layer's heads; NULL: none */
    int64_t n_alibi;
    float *rates; /* [n_rates]: lightning attention's, negative (recipe/lightning.h); NULL: none */
    int64_t n_rates;
    struct ctw_rotation *rotations; /* of activations; arrays in host memory */
    int n_rotations;
    const struct ctw_tensor **rotation_tensors; /* the tensors that these were read from */
    int64_t n_rotation_tensors;
    double q_factor_beta, q_factor_length; /* factor of queries at position p: 1 + beta ln(1 + */
    double q_factor_first;                 /* floor((p + first) / length)); beta 0: none */
    bool q_factor_smooth;                  /* instead: 1 + beta ln(max(1, (p + first) / length)) */
    int n_kept;                            /* keys and values that other layers use */
    bool shares_choices; /* sparse attention: layers use another layer's choice of keys */
    int ngram_before;    /* tokens before its own that a token's features depend on; 0: none */
    int32_t ngram_end;   /* the token that ends them, and stands before a sequence */
    int64_t input_dim;   /* of a layer's own input (Gemma 4); 0: none */
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
    const char *config_name;    /* NULL: "config.json"; see ctw_model_keys_read() */
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

/* The layer's i-th branch in the order of their computation. */
static inline int ctw_branch_at(const struct ctw_layer *l, int i)
{
    return i == 0 ? l->leads : i <= l->leads ? i - 1 : i;
}

/* Has the model tables, whose rows are read from the files in every pass? */
bool ctw_has_tables(const struct ctw_model *m);

/* The bytes of a vector that the layer has. */
size_t ctw_vector_bytes(const struct ctw_layer *l, int vector);

/*
 * All of a layer's matrices, in one count: those of the branches, which may be absent (name NULL),
 * then the experts'.
 */
static inline int ctw_layer_n_matrices(const struct ctw_layer *l)
{
    return CTW_N_MATRICES + l->n_experts * CTW_N_EXPERT_MATRICES;
}

static inline struct ctw_matrix *ctw_layer_matrix(struct ctw_layer *l, int i)
{
    return i < CTW_N_MATRICES ? &l->matrix[i] : &l->expert[i - CTW_N_MATRICES];
}

static inline const struct ctw_matrix *ctw_layer_matrix_of(const struct ctw_layer *l, int i)
{
    return i < CTW_N_MATRICES ? &l->matrix[i] : &l->expert[i - CTW_N_MATRICES];
}

/* Is this the matrix of a tied head, whose parts are the embedding's? */
static inline bool ctw_is_tied_head(const struct ctw_model *m, int layer, int matrix)
{
    return m->tied && layer == m->n_layers - 1 && matrix == CTW_M_HEAD;
}

/* Do the matrix's tensors, or the vector's, belong to an earlier layer, too? */
bool ctw_is_repeated_matrix(const struct ctw_model *m, int layer, int matrix);
bool ctw_is_repeated_vector(const struct ctw_model *m, int layer, int vector);

/* Is a matrix of this layer the embedding or the head? */
static inline bool ctw_is_vocabulary(const struct ctw_model *m, int layer, int matrix)
{
    return layer == 0 ? matrix == CTW_M_EMBED : layer == m->n_layers - 1 && matrix == CTW_M_HEAD;
}

/* Bytes from the beginning of a part's tensor to this matrix's; 0: the tensor is this matrix's
 * alone, or all of a stack share it. */
static inline size_t ctw_part_offset(const struct ctw_matrix *m, int part)
{
    size_t own = m->weight.part[part].bytes;
    return own == m->part[part]->bytes ? 0 : own * (size_t)m->at;
}

#endif
