/*
 * worker/model/config: any config.json either is refused with a message or yields a valid
 * configuration.
 */
#include <math.h>
#include <string.h>

#include "fuzz.h"
#include "worker/model/families/family.h"
#include "worker/model/recipe/kinds.h"

enum { MAX_BYTES = 4096 };

/* NULL: the layer has another mixer, or none. */
static const struct ctw_attention *attention_of(const struct ctw_model *m, int layer)
{
    const struct ctw_branch *b = &m->layers[layer].branch[CTW_MIXER];
    return b->kind == CTW_KIND_attention ? &b->attention : NULL;
}

static void check_config(const struct ctw_config *c)
{
    static const char *const names[] = {"lm_head", "model.layers.0.self_attn.q_proj",
                                        "model.layers.11.mlp.down_proj"};
    const struct ctw_model *m = c->model;
    fuzz_check(c->family != NULL && m->vocab >= 1 && m->hidden >= 1 && m->max_length >= 1);
    fuzz_check(m->n_decoders >= 1 && m->n_decoders <= CTW_MAX_DECODERS);
    for (int i = 1; i <= m->n_decoders; i++) {
        const struct ctw_facts facts = ctw_layer_facts(&m->layers[i]);
        const struct ctw_attention *l = attention_of(m, i);
        fuzz_check(facts.n_head == 0 || (facts.n_kv >= 1 && facts.n_head % facts.n_kv == 0));
        fuzz_check(facts.n_head == 0 ||
                   (facts.head >= 2 && facts.head <= CTW_MAX_HEAD && facts.head % 2 == 0));
        fuzz_check(facts.inner >= 0 && facts.window >= 0);
        if (l == NULL)
            continue;
        fuzz_check(l->rope < m->n_ropes && l->keeps_kv < m->n_kept && l->uses_kv < m->n_kept);
        fuzz_check(l->uses_kv < 0 || l->keeps_kv < 0);
        for (int j = 1; j < i; j++) {
            const struct ctw_attention *keeper = attention_of(m, j);
            fuzz_check(keeper == NULL || l->uses_kv < 0 || keeper->keeps_kv != l->uses_kv ||
                       (keeper->n_kv == l->n_kv && keeper->head == l->head));
        }
    }
    for (int64_t i = 0; i < c->n_wants; i++)
        fuzz_check((c->wants[i].n >= 1 || c->wants[i].kind == CTW_WANT_UNUSED) &&
                   c->wants[i].layer < m->n_layers);
    for (int i = 0; i < m->n_ropes; i++)
        for (int j = 0; j < i; j++)
            fuzz_check(m->rope[i].long_inv_freq == NULL || m->rope[j].long_inv_freq == NULL ||
                       m->rope[i].long_from == m->rope[j].long_from);
    for (int i = 0; i < c->n_ropes; i++)
        fuzz_check(isfinite(c->rope[i].attention_factor) && c->rope[i].attention_factor > 0);
    fuzz_check(c->unread.text == NULL || strlen(c->unread.text) == c->unread.bytes);
    fuzz_check(c->quant.names != NULL);
    for (size_t i = 0; i < CTW_COUNT(names); i++) {
        const struct ctw_quant_group *g = NULL;
        const struct ctw_module module = {.names = &names[i], .n_names = 1, .class_name = "Linear"};
        enum ctw_status st = ctw_quant_config_find(&c->quant, &module, &g, NULL);
        fuzz_check(st == CTW_OK || st == CTW_ENOMEM);
        fuzz_check(g == NULL || (g->quantised && g->args.present));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct ctw_config c;
    struct ctw_err err = {0};
    if (bytes > MAX_BYTES)
        return 0;
    enum ctw_status st = ctw_config_parse(&c, (const char *)data, bytes, "config.json", &err);
    if (st == CTW_OK)
        check_config(&c);
    else
        fuzz_check((st == CTW_EFORMAT || st == CTW_EUNSUP || st == CTW_ENOMEM) &&
                   err.msg[0] != '\0');
    ctw_config_close(&c);
    return 0;
}

#define HEAD                                                                                       \
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"num_hidden_layers\":2,"  \
    "\"torch_dtype\":\"bfloat16\""
#define SCHEME(group, ignore)                                                                      \
    ",\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"quantization_status\":"   \
    "\"compressed\",\"config_groups\":{" group "},\"ignore\":[" ignore "],\"sparsity_config\":{}," \
    "\"kv_cache_scheme\":null}}"

const struct fuzz_seed fuzz_seeds[] = {
    FUZZ_SEED(HEAD "}"),
    FUZZ_SEED(HEAD ",\"rope_theta\":500000.0,\"rope_scaling\":{\"rope_type\":\"llama3\","
                   "\"factor\":8.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"
                   "\"original_max_position_embeddings\":8192}}"),
    FUZZ_SEED(HEAD ",\"rope_parameters\":{\"rope_type\":\"yarn\",\"rope_theta\":1e4,\"factor\":4,"
                   "\"original_max_position_embeddings\":64,\"beta_fast\":32,\"truncate\":false}}"),
    FUZZ_SEED("{\"model_type\":\"qwen2\",\"num_hidden_layers\":3,\"use_sliding_window\":true,"
              "\"sliding_window\":48,\"layer_types\":[\"full_attention\",\"sliding_attention\","
              "\"full_attention\"],\"dtype\":\"float16\",\"head_dim\":64}"),
    FUZZ_SEED(HEAD ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":2.0,\"alpha\":1},"
                   "\"partial_rotary_factor\":1.0,\"seq_length\":2048,\"is_causal\":true,"
                   "\"per_layer_config\":{}}"),
    FUZZ_SEED(HEAD ",\"quantization_config\":{\"quant_method\":\"fp8\",\"weight_block_size\":"
                   "[128,128],\"fmt\":\"e4m3\",\"modules_to_not_convert\":[\"lm_head\",\"model."
                   "layers.*.mlp\"],\"activation_scheme\":\"static\"}}"),
    FUZZ_SEED(HEAD ",\"quantization_config\":{\"quant_algo\":\"MIXED_PRECISION\","
                   "\"quantized_layers\":{\"lm_head\":{\"quant_algo\":\"NVFP4\",\"group_size\":"
                   "16},\"model.layers.0.*\":{\"quant_algo\":\"FP8_PB_WO\"}},\"kv_cache_scheme\":"
                   "\"FP8\",\"ignore\":[\"*proj\",\"mtp.[0-9]\"]}}"),
    FUZZ_SEED(HEAD ",\"quantization_config\":{\"bits\":4,\"group_size\":64}}"),
    FUZZ_SEED(HEAD
              ",\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4,\"sym\":false,"
              "\"group_size\":-1,\"desc_act\":true,\"checkpoint_format\":\"gptq_v2\",\"dynamic\":"
              "{\"+:.*\\\\.18\\\\..*\":{\"bits\":8},\"-:lm_head\":{}}}}"),
    FUZZ_SEED(HEAD ",\"quantization_config\":{\"quant_method\":\"auto-round\",\"bits\":2,"
                   "\"packing_format\":\"auto_round:auto_awq\",\"extra_config\":{\".*up_proj\":"
                   "{\"bits\":16},\"lm_head\":{\"group_size\":32}}}}"),
    FUZZ_SEED(HEAD ",\"quantization_config\":{\"w_bit\":4,\"q_group_size\":128,\"zero_point\":true,"
                   "\"version\":\"GEMM\"}}"),
    FUZZ_SEED("{\"model_type\":\"mistral\",\"num_hidden_layers\":2,\"sliding_window\":null}"),
    FUZZ_SEED("{\"model_type\":\"mistral3\",\"tie_word_embeddings\":true,\"text_config\":{"
              "\"model_type\":\"mistral\",\"num_hidden_layers\":2,\"dtype\":\"float16\","
              "\"tie_word_embeddings\":false,\"quantization_config\":{}}}"),
    FUZZ_SEED("{\"model_type\":\"qwen2_5_vl\",\"num_hidden_layers\":2,\"rope_scaling\":{\"type\":"
              "\"mrope\",\"mrope_section\":[16,24,24]}}"),
    FUZZ_SEED("{\"model_type\":\"phi3\",\"num_hidden_layers\":2,\"hidden_size\":16,"
              "\"num_attention_heads\":4,\"original_max_position_embeddings\":256,"
              "\"rope_scaling\":{\"type\":\"su\",\"short_factor\":[1,2],\"long_factor\":[4,8],"
              "\"factor\":2}}"),
    FUZZ_SEED("{\"model_type\":\"gemma\",\"num_hidden_layers\":2,\"hidden_act\":\"gelu\"}"),
    FUZZ_SEED("{\"model_type\":\"gemma2\",\"num_hidden_layers\":3,\"sliding_window\":8,"
              "\"query_pre_attn_scalar\":144,\"attn_logit_softcapping\":50.0,"
              "\"final_logit_softcapping\":null,\"hidden_activation\":\"gelu_pytorch_tanh\"}"),
    FUZZ_SEED(
        "{\"model_type\":\"gemma3\",\"text_config\":{\"model_type\":\"gemma3_text\","
        "\"num_hidden_layers\":6,\"sliding_window_pattern\":6,\"rope_local_base_freq\":1e4,"
        "\"head_dim\":4,\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"longrope\","
        "\"short_factor\":[1,2],\"long_factor\":[4,8],\"original_max_position_embeddings\":9},"
        "\"sliding_attention\":{\"rope_type\":\"default\",\"rope_theta\":1e4}}}}"),
    FUZZ_SEED("{\"model_type\":\"gemma4_text\",\"num_hidden_layers\":8,\"num_kv_shared_layers\":2,"
              "\"use_double_wide_mlp\":true,\"attention_k_eq_v\":true,\"global_head_dim\":128,"
              "\"num_global_key_value_heads\":2,\"hidden_size_per_layer_input\":256,"
              "\"vocab_size_per_layer_input\":300000,\"per_layer_config\":{\"5\":{\"head_dim\":64,"
              "\"num_key_value_heads\":2},\"7\":{\"head_dim\":64,\"num_key_value_heads\":2}}}"),
    FUZZ_SEED("{\"model_type\":\"gpt2\",\"n_layer\":2,\"n_embd\":64,\"n_head\":4,\"n_inner\":null,"
              "\"n_positions\":32,\"scale_attn_by_inverse_layer_idx\":true,"
              "\"activation_function\":\"gelu_new\",\"hidden_size\":64}"),
    FUZZ_SEED("{\"model_type\":\"olmo2\",\"num_hidden_layers\":2,\"num_key_value_heads\":4,"
              "\"rms_norm_eps\":1e-6,\"attention_bias\":true}"),
    FUZZ_SEED("{\"model_type\":\"cohere2\",\"num_hidden_layers\":4,\"sliding_window\":8,"
              "\"sliding_window_pattern\":2,\"logit_scale\":0.25}"),
    FUZZ_SEED("{\"model_type\":\"exaone4\",\"num_hidden_layers\":5,\"sliding_window\":8,"
              "\"sliding_window_pattern\":\"LLG\"}"),
    FUZZ_SEED("{\"model_type\":\"granite\",\"num_hidden_layers\":2,\"embedding_multiplier\":12,"
              "\"attention_multiplier\":0.5,\"logits_scaling\":16,\"residual_multiplier\":0.2}"),
    FUZZ_SEED("{\"model_type\":\"falcon\",\"num_hidden_layers\":2,\"num_attention_heads\":64,"
              "\"hidden_size\":4096,\"new_decoder_architecture\":true,"
              "\"num_kv_heads\":8,\"num_ln_in_parallel_attn\":1,\"alibi\":false,\"bias\":true}"),
    FUZZ_SEED("{\"model_type\":\"mpt\",\"n_layers\":2,\"attn_config\":{\"alibi\":true,"
              "\"alibi_bias_max\":8,\"clip_qkv\":1.5}}"),
    FUZZ_SEED("{\"model_type\":\"opt\",\"num_hidden_layers\":2,\"word_embed_proj_dim\":512,"
              "\"do_layer_norm_before\":false,\"max_position_embeddings\":64}"),
    FUZZ_SEED("{\"model_type\":\"smollm3\",\"num_hidden_layers\":4,\"no_rope_layers\":[1,1,0,1],"
              "\"no_rope_layer_interval\":4}"),
    FUZZ_SEED("{\"model_type\":\"ministral3\",\"num_hidden_layers\":2,\"rope_parameters\":{"
              "\"rope_type\":\"yarn\",\"factor\":16,\"llama_4_scaling_beta\":0.1,"
              "\"original_max_position_embeddings\":64,\"mscale\":1,\"mscale_all_dim\":1}}"),
    FUZZ_SEED("{\"model_type\":\"nemotron-nas\",\"num_hidden_layers\":2,\"block_configs\":["
              "{\"attention\":{\"no_op\":true},\"ffn\":{\"ffn_mult\":1.5}},"
              "{\"attention\":{\"n_heads_in_group\":4},\"ffn\":{\"no_op\":true}}]}"),
    FUZZ_SEED(HEAD SCHEME(
        "\"g\":{\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":4,\"group_size\":128,\"type\":"
        "\"int\",\"strategy\":\"group\",\"symmetric\":false,\"actorder\":\"group\"},"
        "\"input_activations\":{\"dynamic\":\"local\",\"strategy\":\"tensor_group\","
        "\"group_size\":16},\"format\":\"pack-quantized\"}",
        "\"lm_head\",\"re:.*layers\\\\.(0|1\\\\d?)\\\\.[a-z_]+$\"")),
    FUZZ_SEED(HEAD SCHEME(
        "\"g\":{\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":8,\"type\":\"float\","
        "\"strategy\":\"block\",\"block_structure\":[128,64]},\"format\":\"float-quantized\"},"
        "\"h\":{\"targets\":[\"re:.*o_proj\"],\"weights\":{\"strategy\":\"block\","
        "\"block_structure\":\"128x128\"},\"format\":\"naive-quantized\"}",
        "")),
    FUZZ_SEED(HEAD SCHEME("\"NVFP4\":[\"re:model.*(q|k){1,2}_proj\",\"lm_head\"]", "")),
    {NULL, 0},
};

const char *const fuzz_words[] = {"\"head_dim\":",
                                  "\"layer_types\":",
                                  "\"rope_scaling\":",
                                  "\"rope_parameters\":",
                                  "\"type\":\"linear\"",
                                  "\"factor\":",
                                  "\"text_config\":{",
                                  "\"type\":\"proportional\"",
                                  "\"partial_rotary_factor\":",
                                  "\"quantization_config\":",
                                  "\"targets\":",
                                  "\"weights\":",
                                  "\"quant_method\":\"mxfp4\"",
                                  "\"quant_algo\":\"FP8\"",
                                  "\"quant_method\":\"awq\"",
                                  "\"dynamic\":{\"-:",
                                  "\"re:",
                                  "(?:",
                                  "{2,9}",
                                  "{255}",
                                  "[^a]",
                                  "\\\\d",
                                  "|",
                                  "*",
                                  "null",
                                  "true",
                                  "1e400",
                                  "-1",
                                  "\"group_size\":",
                                  "\"strategy\":\"channel\"",
                                  "\"block_structure\":",
                                  "\"num_hidden_layers\":4096",
                                  "\"num_kv_shared_layers\":",
                                  "\"per_layer_config\":{\"1\":{",
                                  "\"num_key_value_heads\":",
                                  "\"sliding_window\":",
                                  "\"sliding_window_pattern\":",
                                  "\"full_attention\":{",
                                  "\"max_position_embeddings\":",
                                  NULL};
