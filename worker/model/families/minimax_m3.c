/*
 * MiniMax M3 and its text model inside a vision model: norms that multiply by 1 + weight, norms of
 * query and key heads, RoPE on a part of each head, clamped MLPs. A sigmoid router and a shared
 * expert in most layers, attention over chosen blocks of keys likewise. Defaults:
 * MiniMaxM3VLTextConfig.
 */
#include "worker/model/families/family.h"

enum { NO = CTW_NULL_REFUSED };

/* Of a key under its own name, or in the object of older files, which wins. */
static int64_t key_choice(struct ctw_config *c, const char *name, const char *older, int64_t absent,
                          int64_t least, int64_t most)
{
    return ctw_key_int(c, ctw_key_is_given(c, older) ? older : name, absent, NO, least, most);
}

static struct ctw_block_choice key_blocks(struct ctw_config *c, const struct ctw_sizes *s)
{
    const int64_t n_head = key_choice(c, "index_n_heads",
                                      "sparse_attention_config.sparse_num_index_heads", 4, 1, 4096);
    struct ctw_block_choice b = {
        .block = key_choice(c, "index_block_size", "sparse_attention_config.sparse_block_size", 128,
                            1, 1 << 20),
        .chosen = key_choice(c, "index_topk_blocks", "sparse_attention_config.sparse_topk_blocks",
                             16, 1, 1 << 20),
        .local = key_choice(c, "index_local_blocks", "sparse_attention_config.sparse_local_block",
                            1, 0, 1 << 20),
        .head = (int)key_choice(c, "index_head_dim", "sparse_attention_config.sparse_index_dim",
                                128, 1, CTW_MAX_HEAD)};
    if (n_head != s->n_kv)
        ctw_key_fail(c, "index_n_heads", CTW_EUNSUP,
                     "%lld heads choose blocks for %lld key heads; expected as many",
                     (long long)n_head, (long long)s->n_kv);
    if (b.local > b.chosen)
        ctw_key_fail(c, "index_local_blocks", CTW_EFORMAT,
                     "found %lld, expected at most index_topk_blocks (%lld)", (long long)b.local,
                     (long long)b.chosen);
    return b;
}

/* Files of the makers have rotary_dim, too. */
static int describe_rope(struct ctw_config *c, int64_t head)
{
    int64_t rotated = ctw_key_int(c, "rotary_dim", 0, 0, 2, head);
    double partial = rotated != 0 ? (double)rotated / (double)head : 1;
    return ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head,
                                                         .theta = 5000000.0,
                                                         .partial_key = "partial_rotary_factor",
                                                         .partial = partial});
}

struct minimax {
    struct ctw_mlp dense, shared;
    struct ctw_experts experts;
};

static struct ctw_mlp key_mlp(struct ctw_config *c, const char *inner, int64_t absent,
                              struct ctw_glu glu)
{
    return (struct ctw_mlp){.inner = ctw_key_int(c, inner, absent, NO, 1, 1 << 24), .glu = glu};
}

static void key_mlps(struct ctw_config *c, const struct ctw_sizes *s, struct minimax *m)
{
    const char *n = ctw_key_either(c, "num_local_experts", "num_experts");
    const struct ctw_glu glu = {.kind = CTW_GLU_OFFSET,
                                .limit = (float)ctw_key_number(c, "swiglu_limit", 7, NO, 1e-6, 1e6),
                                .alpha =
                                    (float)ctw_key_number(c, "swiglu_alpha", 1.702, NO, 1e-6, 1e6)};
    m->dense = key_mlp(c, "dense_intermediate_size", 12288, glu);
    m->shared = key_mlp(c, "shared_intermediate_size", 3072, glu);
    m->shared.gate = "block_sparse_moe.shared_experts.gate_proj";
    m->shared.up = "block_sparse_moe.shared_experts.up_proj";
    m->shared.down = "block_sparse_moe.shared_experts.down_proj";
    m->experts = (struct ctw_experts){
        .n = ctw_key_int(c, n, 128, NO, 1, CTW_MAX_EXPERTS),
        .chosen = ctw_key_int(c, "num_experts_per_tok", 4, NO, 1, CTW_MAX_CHOSEN),
        .inner = s->inner,
        .glu = glu,
        .module = "block_sparse_moe.experts",
        .gate = "w1",
        .up = "w3",
        .down = "w2",
        .router = {.module = "block_sparse_moe.gate",
                   .correction = "block_sparse_moe.e_score_correction_bias",
                   .score = CTW_SCORE_SIGMOID,
                   .normalised = true,
                   .scale = ctw_key_number(c, "routed_scaling_factor", 2, NO, 1e-6, 1e6)},
        .shared = &m->shared};
}

/* By names of layers, or in older files by numbers. NULL after an error. */
static const bool *key_layers(struct ctw_config *c, const char *name, const char *yes,
                              const char *no, const char *older, int64_t n, int64_t every)
{
    const bool *named = ctw_key_layers_called(c, name, n, yes, no);
    return named != NULL ? named : ctw_key_layers(c, older, n, every);
}

static void describe(struct ctw_config *c)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 200064,
                                                                    .hidden = 6144,
                                                                    .inner = 3072,
                                                                    .n_layers = 60,
                                                                    .n_head = 64,
                                                                    .n_kv = 4,
                                                                    .max_length = 524288});
    const int64_t head = ctw_key_head_dim(c, &s, 128, NO), n = s.n_layers;
    struct minimax m;
    struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6);
    norm.offset = 1;
    const struct ctw_qk_norms qk_norms = {.form = norm};
    const struct ctw_block_choice blocks = key_blocks(c, &s);
    key_mlps(c, &s, &m);
    const bool *sparse = key_layers(c, "layer_types", "minimax_m3_sparse", "full_attention",
                                    "sparse_attention_config.sparse_attention_freq", n, 1);
    const bool *mixtures =
        key_layers(c, "mlp_layer_types", "sparse", "dense", "moe_layer_freq", n, n + 1);
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    struct ctw_attention_rules attention = {
        .head = head, .rope = describe_rope(c, head), .norms = &qk_norms};
    if (c->status == CTW_OK && blocks.head < c->model->rope[attention.rope].rot_dim)
        ctw_key_fail(c, "index_head_dim", CTW_EFORMAT,
                     "found %d, expected at least the %d elements that RoPE rotates", blocks.head,
                     c->model->rope[attention.rope].rot_dim);
    for (int64_t i = 0; i < n && c->status == CTW_OK; i++) {
        attention.choice = sparse[i] ? blocks : (struct ctw_block_choice){0};
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(c, i, &attention);
        if (mixtures[i])
            ctw_describe_experts(c, i, &m.experts);
        else
            ctw_describe_mlp(c, i, &m.dense);
    }
}

const struct ctw_family ctw_family_minimax_m3 = {
    .model_type = "minimax_m3", .architecture = "MiniMaxM3ForCausalLM", .describe = describe};

const struct ctw_family ctw_family_minimax_m3_vl_text = {.model_type = "minimax_m3_vl_text",
                                                         .architecture = "MiniMaxM3VLForCausalLM",
                                                         .describe = describe};

const struct ctw_family ctw_family_minimax_m3_vl = {
    .model_type = "minimax_m3_vl",
    .architecture = "MiniMaxM3SparseForConditionalGeneration",
    .wrapper = &(const struct ctw_wrapper){.text_type = "minimax_m3_vl_text", .is_default = true},
    .spellings = ctw_wrapped_spellings,
    .describe = describe};
