/*
 * Sarvam's mixtures. The 30B: GLM 4.5's layers under other names, with one projection for q, k and
 * v, and RoPE on whole heads. The 105B: DeepSeek V3's layers, without groups of experts. Defaults:
 * SarvamMoEConfig, SarvamMLAConfig.
 */
#include "worker/model/families/latent_keys.h"
#include "worker/model/families/routed.h"

static void describe(struct ctw_config *c)
{
    static const struct routed_absent absent = {.n = 128,
                                                .chosen = 6,
                                                .inner = 1024,
                                                .n_shared = 1,
                                                .normalised = true,
                                                .scale = 2.5,
                                                .n_key = "num_experts",
                                                .n_shared_key = "num_shared_experts"};
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 262144,
                                                                    .hidden = 4096,
                                                                    .inner = 8192,
                                                                    .n_layers = 19,
                                                                    .n_head = 64,
                                                                    .n_kv = 4,
                                                                    .max_length = 131072});
    const int64_t head = ctw_key_head_dim(c, &s, 64, 0);
    const bool bias = ctw_key_bool(c, ctw_key_either(c, "attention_bias", "use_qkv_bias"), false);
    const bool has_norms = ctw_key_bool(c, "use_qk_norm", true);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6);
    const struct ctw_qk_norms qk_norms = {
        .form = norm, .q = "attention.query_layernorm", .k = "attention.key_layernorm"};
    const struct ctw_mlp mlp = {.inner = s.inner,
                                .act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU)};
    struct routed mixture = routed_keys(c, &absent, mlp.act);
    routed_key_shared(c, &absent, &mixture);
    mixture.experts.router.correction = "mlp.gate.expert_bias";
    const int64_t dense = ctw_key_int(c, "first_k_dense_replace", 1, CTW_NULL_REFUSED, 0, 1 << 20);
    const char *drafts = ctw_key_either(c, "num_nextn_predict_layers", "num_mtp_layers");
    ctw_describe_model(c, &s,
                       &(struct ctw_model_rules){.embed = "model.word_embeddings", .norm = norm});
    ctw_describe_drafts(c, ctw_key_int(c, drafts, 0, 0, 0, 64));
    const struct ctw_rope_rules rope = {
        .head = head, .theta = 8000000.0, .partial_key = "partial_rotary_factor"};
    const struct ctw_attention_rules attention = {.head = head,
                                                  .rope = ctw_describe_rope(c, &rope),
                                                  .order = CTW_QKV_IN_ORDER,
                                                  .qkv = "attention.query_key_value",
                                                  .o = "attention.dense",
                                                  .qkv_bias = bias,
                                                  .norms = has_norms ? &qk_norms : NULL};
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(c, i, &attention);
        if (i < dense)
            ctw_describe_mlp(c, i, &mlp);
        else
            routed_describe(c, i, &mixture);
    }
}

static void describe_mla(struct ctw_config *c)
{
    struct latent_absent absent = latent_deepseek_v3();
    absent.q_rank = 0;
    absent.n = 128;
    absent.n_groups = absent.kept_groups = 1;
    absent.n_key = "num_experts";
    absent.n_shared_key = "num_shared_experts";
    absent.rope_rules.yarn = "deepseek_yarn";
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = 262144,
                                                                    .hidden = 4096,
                                                                    .inner = 16384,
                                                                    .n_layers = 32,
                                                                    .n_head = 64,
                                                                    .n_kv = 0,
                                                                    .max_length = 4096});
    latent_describe_v3(c, &s, &absent, 1, 0);
}

const struct ctw_family ctw_family_sarvam_moe = {.model_type = "sarvam_moe",
                                                 .architecture = "SarvamMoEForCausalLM",
                                                 /* that of the class in transformers 5 */
                                                 .old_architecture = "Glm4MoeForCausalLM",
                                                 .describe = describe};

const struct ctw_family ctw_family_sarvam_mla = {.model_type = "sarvam_mla",
                                                 .architecture = "SarvamMLAForCausalLM",
                                                 .old_architecture = "DeepseekV3ForCausalLM",
                                                 .describe = describe_mla};
