/*
 * HunYuan's models: Llama's layers, with norms of query and key heads after RoPE, whose theta may
 * be scaled by alpha. In the mixtures, experts stand beside the MLP, which every token takes.
 * Defaults: HunYuanDenseV1Config and HunYuanMoEV1Config, which are equal.
 */
#include "worker/model/families/family.h"

/* Experts without the number that a token chooses, which may differ by layer. */
static struct ctw_experts key_experts(struct ctw_config *c, const struct ctw_mlp *mlp)
{
    const char *n = ctw_key_either(c, "num_experts", "num_local_experts");
    return (struct ctw_experts){
        .n = ctw_key_int(c, n, 1, CTW_NULL_REFUSED, 1, CTW_MAX_EXPERTS),
        .inner = mlp->inner,
        .act = mlp->act,
        .router = {.module = "mlp.gate.wg", .score = CTW_SCORE_SOFTMAX, .normalised = true},
        .shared = mlp};
}

static void describe_with(struct ctw_config *c, bool mixture)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 290943,
                                                                    .hidden = 4096,
                                                                    .inner = 11008,
                                                                    .n_layers = 32,
                                                                    .n_head = 32,
                                                                    .n_kv = 0,
                                                                    .max_length = 2048});
    int64_t head = ctw_key_head_dim(c, &s, 0, 0);
    bool bias = ctw_key_bool(c, "attention_bias", false);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5);
    const struct ctw_qk_norms qk_norms = {.form = norm,
                                          .heads = CTW_HEADS_ALIKE,
                                          .after_rope = true,
                                          .q = "self_attn.query_layernorm",
                                          .k = "self_attn.key_layernorm"};
    enum ctw_activation act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    struct ctw_mlp mlp = {.inner = s.inner, .act = act};
    struct ctw_experts experts = {0};
    const double *chosen = NULL;
    if (mixture) {
        mlp.gate = "mlp.shared_mlp.gate_proj";
        mlp.up = "mlp.shared_mlp.up_proj";
        mlp.down = "mlp.shared_mlp.down_proj";
        experts = key_experts(c, &mlp);
        chosen = ctw_key_layer_numbers(c, ctw_key_either(c, "moe_topk", "num_experts_per_tok"),
                                       s.n_layers, 1, CTW_MAX_CHOSEN);
    }
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm});
    int rope = ctw_describe_rope(
        c, &(struct ctw_rope_rules){.head = head, .theta = 10000.0, .alpha = true});
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(
            c, i,
            &(struct ctw_attention_rules){
                .head = head, .rope = rope, .qkv_bias = bias, .o_bias = bias, .norms = &qk_norms});
        experts.chosen = chosen != NULL ? (int64_t)chosen[i] : 1;
        if (mixture)
            ctw_describe_experts(c, i, &experts);
        else
            ctw_describe_mlp(c, i, &mlp);
    }
}

static void describe(struct ctw_config *c)
{
    describe_with(c, false);
}

static void describe_mixture(struct ctw_config *c)
{
    describe_with(c, true);
}

const struct ctw_family ctw_family_hunyuan_v1_dense = {.model_type = "hunyuan_v1_dense",
                                                       .architecture = "HunYuanDenseV1ForCausalLM",
                                                       .describe = describe};

const struct ctw_family ctw_family_hunyuan_v1_moe = {.model_type = "hunyuan_v1_moe",
                                                     .architecture = "HunYuanMoEV1ForCausalLM",
                                                     .describe = describe_mixture};
