/* Models with latent attention, as the converter's DeepseekV2Model writes it: the matrix from
 * latents to keys and values is two tensors, whose keys are transposed
 * (kernels/formats/ggml_heads); in older files it is attn_kv_b. */
#include <inttypes.h>
#include <stddef.h>

#include "worker/checkpoint/gguf/archs.h"
#include "worker/checkpoint/gguf/config_writer.h"
#include "worker/checkpoint/gguf/latent_names.h"

static const struct ctw_gguf_name latent_layers[] = {
    CTW_GGUF_LATENT_Q("self_attn"),
    CTW_GGUF_LATENT_KV("self_attn"),
    {"attn_kv_b", "self_attn.kv_b_proj", 0},
    CTW_GGUF_ROUTED_NAMES,
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key latent_keys[] = {
    {"num_key_value_heads", NULL, false},
    {"head_dim", NULL, false},
    {"kv_lora_rank", "attention.kv_lora_rank", true},
    CTW_GGUF_ROUTED_KEYS,
    {NULL, NULL, false},
};

static const struct ctw_gguf_key dense_keys[] = {
    {"num_key_value_heads", NULL, false},
    {"head_dim", NULL, false},
    {"kv_lora_rank", "attention.kv_lora_rank", true},
    {NULL, NULL, false},
};

/* Keys of heads without "_mla" are those of the latents, but in older files. */
void ctw_gguf_write_latent(struct ctw_gguf_keys *k, bool turns)
{
    static const char turning[] = "rope.dimension_count";
    bool old = ctw_gguf_meta(k, "attention.key_length_mla") == NULL;
    const char *key = old ? "attention.key_length" : "attention.key_length_mla";
    const char *value = old ? "attention.value_length" : "attention.value_length_mla";
    int64_t rope = ctw_gguf_int(k, turning, 0), head = ctw_gguf_int(k, key, 0);
    if (rope < (turns ? 1 : 0) || head <= rope)
        ctw_gguf_refuse(k, turning, "found %" PRId64 " of the %" PRId64 " elements of a head", rope,
                        head);
    if (k->st != CTW_OK)
        return;
    ctw_json_write_key_int(&k->writer, "qk_rope_head_dim", rope);
    ctw_json_write_key_int(&k->writer, "qk_nope_head_dim", head - rope);
    ctw_gguf_write(k, "v_head_dim", value, true);
    ctw_json_write_key_int(&k->writer, "num_key_value_heads",
                           ctw_gguf_int(k, "attention.head_count", 0));
    if (ctw_gguf_meta(k, "attention.q_lora_rank") != NULL) {
        ctw_gguf_write(k, "q_lora_rank", "attention.q_lora_rank", true);
    } else {
        ctw_json_write_key(&k->writer, "q_lora_rank");
        ctw_json_write_null(&k->writer);
    }
}

static void write_deepseek(struct ctw_gguf_keys *k)
{
    ctw_gguf_write_latent(k, true);
    if (ctw_gguf_meta(k, "attention.temperature_scale") != NULL)
        ctw_gguf_refuse(k, "attention.temperature_scale",
                        "queries that grow with their position are not supported for this "
                        "architecture");
}

static void write_deepseek_v2(struct ctw_gguf_keys *k)
{
    write_deepseek(k);
    ctw_json_write_key_bool(&k->writer, "mlp_bias", ctw_gguf_has(k, "ffn_down.bias"));
    if (ctw_gguf_int(k, "expert_group_count", 1) > 1)
        ctw_json_write_key_string(&k->writer, "topk_method", "group_limited_greedy");
}

/* ---- with an indexer: DeepseekV32Model, GlmMoeDsaModel ---- */

static const struct ctw_gguf_name indexed_layers[] = {
    CTW_GGUF_LATENT_Q("self_attn"),
    CTW_GGUF_LATENT_KV("self_attn"),
    {"indexer.attn_q_b", "self_attn.indexer.wq_b", 0},
    {"indexer.attn_k", "self_attn.indexer.wk", 0},
    {"indexer.k_norm", "self_attn.indexer.k_norm", 0},
    {"indexer.proj", "self_attn.indexer.weights_proj", 0},
    CTW_GGUF_ROUTED_NAMES,
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key indexed_keys[] = {
    {"num_key_value_heads", NULL, false},
    {"head_dim", NULL, false},
    {"kv_lora_rank", "attention.kv_lora_rank", true},
    {"index_n_heads", "attention.indexer.head_count", true},
    {"index_head_dim", "attention.indexer.key_length", true},
    {"index_topk", "attention.indexer.top_k", true},
    {"num_nextn_predict_layers", "nextn_predict_layers", false},
    CTW_GGUF_ROUTED_KEYS,
    {NULL, NULL, false},
};

static void write_indexed(struct ctw_gguf_keys *k)
{
    write_deepseek(k);
    ctw_gguf_write_layers(k, "indexer_types", "attention.indexer.types", "shared", "full");
}

/* ---- MiniCPM 3 ---- */

/* MiniCPM3Model; minicpm3.cpp has the factors that are the family's defaults. */
static const struct ctw_gguf_key minicpm3_keys[] = {
    {"num_key_value_heads", NULL, false},
    {"head_dim", NULL, false},
    {"q_lora_rank", "attention.q_lora_rank", true},
    {"kv_lora_rank", "attention.kv_lora_rank", true},
    {"qk_rope_head_dim", "rope.dimension_count", true},
    {NULL, NULL, false},
};

static void write_minicpm3(struct ctw_gguf_keys *k)
{
    ctw_json_write_key_int(&k->writer, "num_key_value_heads",
                           ctw_gguf_int(k, "attention.head_count", 0));
    ctw_json_write_key_int(&k->writer, "qk_nope_head_dim",
                           ctw_gguf_head(k) - ctw_gguf_int(k, "rope.dimension_count", 0));
}

const struct ctw_gguf_arch ctw_gguf_archs_latent[] = {
    {.name = "deepseek32",
     .model_type = "deepseek_v32",
     .class_name = "DeepseekV32ForCausalLM",
     .layers = indexed_layers,
     .keys = indexed_keys,
     .gating = CTW_GGUF_SIGMOID,
     .yarn_mscale = true,
     .rope = ctw_gguf_write_rope_of_count,
     .more = write_indexed},
    /* GLM 5. */
    {.name = "glm-dsa",
     .model_type = "glm_moe_dsa",
     .class_name = "GlmMoeDsaForCausalLM",
     .layers = indexed_layers,
     .keys = indexed_keys,
     .gating = CTW_GGUF_SIGMOID,
     .rope = ctw_gguf_write_rope_of_count,
     .more = write_indexed},
    {.name = "minicpm3",
     .model_type = "minicpm3",
     .class_name = "MiniCPM3ForCausalLM",
     .layers = latent_layers,
     .keys = minicpm3_keys,
     .longrope = true,
     .rope = ctw_gguf_write_rope_of_count,
     .more = write_minicpm3},
    /* DeepSeek V3 and R1, Kimi K2, GLM 4.7 Flash, which have a correction of the choice. */
    {.name = "deepseek2",
     .model_type = "deepseek_v3",
     .class_name = "DeepseekV3ForCausalLM",
     .only_with_tensor = "exp_probs_b.bias",
     .layers = latent_layers,
     .keys = latent_keys,
     .gating = CTW_GGUF_SIGMOID,
     .yarn_mscale = true,
     .rope = ctw_gguf_write_rope_of_count,
     .more = write_deepseek},
    {.name = "deepseek2",
     .model_type = "deepseek_v2",
     .class_name = "DeepseekV2ForCausalLM",
     .only_with = "expert_count",
     .layers = latent_layers,
     .keys = latent_keys,
     .gating = CTW_GGUF_SOFTMAX,
     .yarn_mscale = true,
     .rope = ctw_gguf_write_rope_of_count,
     .more = write_deepseek_v2},
    /* Youtu, which has V3's attention and no experts. */
    {.name = "deepseek2",
     .model_type = "youtu",
     .class_name = "YoutuForCausalLM",
     .layers = latent_layers,
     .keys = dense_keys,
     .yarn_mscale = true,
     .rope = ctw_gguf_write_rope_of_count,
     .more = write_deepseek},
    /* Mistral4Model keeps no llama_4_scaling_beta. */
    {.name = "mistral4",
     .model_type = "mistral4",
     .class_name = "Mistral4ForCausalLM",
     .layers = latent_layers,
     .keys = latent_keys,
     .gating = CTW_GGUF_SOFTMAX,
     .yarn = "\"llama_4_scaling_beta\":0",
     .yarn_mscale = true,
     .rope = ctw_gguf_write_rope_of_count,
     .more = write_deepseek},
    {0},
};
