/*
 * MPT: layer norms without biases, ALiBi, one projection for q, k and v, which are clamped, a plain
 * MLP of four times the width. Defaults: MptConfig and MptAttentionConfig.
 */
#include "worker/model/families/family.h"

/* transformers does not read these; the models' own code does. */
static void refuse_variants(struct ctw_config *c)
{
    if (!ctw_key_bool(c, "attn_config.alibi", true))
        ctw_key_fail(c, "attn_config.alibi", CTW_EUNSUP, "false is not supported");
    if (ctw_key_is_true(c, "attn_config.qk_ln"))
        ctw_key_fail(c, "attn_config.qk_ln", CTW_EUNSUP, "true is not supported");
    if (ctw_key_is_true(c, "attn_config.prefix_lm"))
        ctw_key_fail(c, "attn_config.prefix_lm", CTW_EUNSUP,
                     "attention to later tokens is not supported");
    if (ctw_key_is_given(c, "logit_scale"))
        ctw_key_fail(c, "logit_scale", CTW_EUNSUP, "expected null: a factor is not supported");
}

static void describe(struct ctw_config *c)
{
    struct ctw_sizes s = ctw_key_sizes_as(
        c,
        &(struct ctw_sizes){
            .vocab = 50368, .hidden = 2048, .n_layers = 24, .n_head = 16, .max_length = 2048},
        &(struct ctw_size_keys){.hidden = ctw_key_either(c, "d_model", "hidden_size"),
                                .inner = "",
                                .n_layers = ctw_key_either(c, "n_layers", "num_hidden_layers"),
                                .n_head = ctw_key_either(c, "n_heads", "num_attention_heads"),
                                .n_kv = "",
                                .max_length = "max_seq_len"});
    s.inner = 4 * s.hidden;
    int64_t head = ctw_head_of(c, &s);
    struct ctw_norm_form norm = ctw_key_layer_norm(c, "layer_norm_epsilon", 1e-5);
    norm.bias = false;
    double limit = ctw_key_number(c, "attn_config.clip_qkv", 0, 0, 0, 1e9);
    double scale = ctw_key_number(c, "attn_config.softmax_scale", 0, 0, 1e-9, 1e9);
    /* transformers takes 8 even for the one model with 16, which its own code computes with. */
    double max_bias = ctw_key_number(c, "attn_config.alibi_bias_max", 8, CTW_NULL_REFUSED, 0, 1e3);
    refuse_variants(c);
    ctw_describe_model(c, &s,
                       &(struct ctw_model_rules){.layers = "transformer.blocks",
                                                 .embed = "transformer.wte",
                                                 .final_norm = "transformer.norm_f",
                                                 .norm = norm,
                                                 .tied = true});
    ctw_describe_alibi(c, s.n_head, max_bias, 1);
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norm(c, i, CTW_AT_MIXER, &norm, "norm_1", 0);
        ctw_describe_norm(c, i, CTW_AT_MLP, &norm, "norm_2", 0);
        ctw_describe_attention(c, i,
                               &(struct ctw_attention_rules){.head = head,
                                                             .rope = -1,
                                                             .scale = scale,
                                                             .limit = limit,
                                                             .order = CTW_QKV_IN_ORDER,
                                                             .qkv = "attn.Wqkv",
                                                             .o = "attn.out_proj"});
        ctw_describe_mlp(c, i,
                         &(struct ctw_mlp){.inner = s.inner,
                                           .act = CTW_ACT_GELU,
                                           .plain = true,
                                           .up = "ffn.up_proj",
                                           .down = "ffn.down_proj"});
    }
}

const struct ctw_family ctw_family_mpt = {.model_type = "mpt",
                                          .architecture = "MptForCausalLM",
                                          .old_architecture = "MPTForCausalLM",
                                          .prefix = "transformer.",
                                          .spellings = ctw_transformer_spellings,
                                          .describe = describe};
