/* GLM 4 and its mixtures. The converter changes no values of text models. */
#include <stddef.h>
#include <stdint.h>

#include "worker/checkpoint/gguf/archs.h"
#include "worker/checkpoint/gguf/config_writer.h"

static const struct ctw_gguf_name glm4_layers[] = {
    {"ffn_norm", "post_attention_layernorm", 0},
    {"post_attention_norm", "post_self_attn_layernorm", 0},
    {"post_ffw_norm", "post_mlp_layernorm", 0},
    {"ffn_up", "mlp.gate_up_proj", 0},
    {NULL, NULL, 0},
};

/* Files of GLM-4.1V have q and k in another order, for RoPE in sections. */
static void write_glm4(struct ctw_gguf_keys *k)
{
    if (ctw_gguf_meta(k, "rope.dimension_sections") != NULL)
        ctw_gguf_refuse(k, "rope.dimension_sections",
                        "the text model of a vision model is not supported for this architecture");
    ctw_gguf_write_qkv_bias(k);
}

static const struct ctw_gguf_name glm4moe_layers[] = {
    {"post_attention_norm", "post_attention_layernorm", 0},
    CTW_GGUF_ROUTED_NAMES,
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key glm4moe_keys[] = {
    CTW_GGUF_ROUTED_KEYS,
    {"num_nextn_predict_layers", "nextn_predict_layers", false},
    {NULL, NULL, false},
};

static void write_glm4moe(struct ctw_gguf_keys *k)
{
    ctw_gguf_write_qkv_bias(k);
    ctw_json_write_key_bool(&k->writer, "use_qk_norm", ctw_gguf_has(k, "attn_q_norm.weight"));
    if (ctw_gguf_meta(k, "leading_dense_block_count") == NULL)
        ctw_json_write_key_int(&k->writer, "first_k_dense_replace", 0);
}

/* ChatGLMModel: ChatGLM 2 and 3, GLM 4 in its first files and under transformers' names, all with
 * GLM's numbers; the bias is that of q, k and v. */
static const struct ctw_gguf_name chatglm_layers[] = {
    {"ffn_up", "mlp.gate_up_proj", 0},
    {NULL, NULL, 0},
};

static void write_chatglm(struct ctw_gguf_keys *k)
{
    ctw_json_write_key_int(&k->writer, "head_dim", ctw_gguf_head(k));
    ctw_gguf_write_qkv_bias(k);
}

static const struct ctw_gguf_key chatglm_keys[] = {
    {"head_dim", NULL, false},
    {NULL, NULL, false},
};

const struct ctw_gguf_arch ctw_gguf_archs_glm[] = {
    {.name = "glm4",
     .model_type = "glm4",
     .class_name = "Glm4ForCausalLM",
     .layers = glm4_layers,
     .partial_rope = true,
     .more = write_glm4},
    {.name = "chatglm",
     .model_type = "glm",
     .class_name = "GlmForCausalLM",
     .layers = chatglm_layers,
     .keys = chatglm_keys,
     .partial_rope = true,
     .more = write_chatglm},
    /* Glm4MoeModel; also Solar Open, whose heads are rotated whole. */
    {.name = "glm4moe",
     .model_type = "glm4_moe",
     .class_name = "Glm4MoeForCausalLM",
     .layers = glm4moe_layers,
     .keys = glm4moe_keys,
     .partial_rope = true,
     .gating = CTW_GGUF_SIGMOID,
     .more = write_glm4moe},
    {0},
};
