/* Text models inside other models: their keys, their tensors' names, and what is beside them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/mem.h"
#include "config_parse.h"
#include "small_checkpoint.h"

/* ---- config.json ---- */

#define MISTRAL3                                                                                   \
    "{\"architectures\": [\"Mistral3ForConditionalGeneration\"], \"model_type\": \"mistral3\""
#define QWEN2_VL                                                                                   \
    "{\"architectures\": [\"Qwen2VLForConditionalGeneration\"], \"model_type\": \"qwen2_vl\""
#define QWEN2_5_VL                                                                                 \
    "{\"architectures\": [\"Qwen2_5_VLForConditionalGeneration\"], \"model_type\": \"qwen2_5_vl\""
#define LLAVA "{\"architectures\": [\"LlavaForConditionalGeneration\"], \"model_type\": \"llava\""
#define INTERNVL                                                                                   \
    "{\"architectures\": [\"InternVLForConditionalGeneration\"], \"model_type\": \"internvl\""
#define GLM4V "{\"architectures\": [\"Glm4vForConditionalGeneration\"], \"model_type\": \"glm4v\""
#define GLM4V_MOE                                                                                  \
    "{\"architectures\": [\"Glm4vMoeForConditionalGeneration\"], \"model_type\": \"glm4v_moe\""
#define GLM46V                                                                                     \
    "{\"architectures\": [\"Glm46VForConditionalGeneration\"], \"model_type\": \"glm46v\""
#define GLMGA "{\"architectures\": [\"Glm46VForConditionalGeneration\"], \"model_type\": \"glmga\""
#define LFM3_VL                                                                                    \
    "{\"architectures\": [\"Lfm3VlForConditionalGeneration\"], \"model_type\": \"lfm3_vl\""
#define APERTUS                                                                                    \
    "{\"architectures\": [\"Apertus1p5ForConditionalGeneration\"], \"model_type\": \"apertus1p5\""
#define QWEN3_VL                                                                                   \
    "{\"architectures\": [\"Qwen3VLForConditionalGeneration\"], \"model_type\": \"qwen3_vl\""

/* transformers' defaults are those of the wrapper's own text model. */
static void defaults_of_the_text_model(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t vocab, hidden, length;
        int n_layers, n_head, n_kv;
        double theta;
        bool tied;
    } rows[] = {
        {MISTRAL3 ", \"text_config\": {}}", 32000, 4096, 131072, 32, 32, 8, 1e4, true},
        {MISTRAL3 ", \"text_config\": {\"model_type\": \"mistral\", \"hidden_size\": 2048}}", 32000,
         2048, 131072, 32, 32, 8, 1e4, true},
        {QWEN2_5_VL ", \"text_config\": {\"model_type\": \"qwen2_5_vl_text\"}}", 152064, 8192,
         32768, 80, 64, 8, 1e6, false},
        {QWEN2_5_VL ", \"rope_scaling\": {\"type\": \"mrope\", \"mrope_section\": [16, 24, 24]}, "
                    "\"hidden_size\": 4096}",
         152064, 4096, 32768, 80, 64, 8, 1e6, false},
        {QWEN2_VL ", \"hidden_size\": 4096}", 152064, 4096, 32768, 80, 64, 8, 1e6, false},
        {GLM4V ", \"text_config\": {\"model_type\": \"glm4v_text\"}}", 151552, 4096, 32768, 40, 32,
         2, 1e4, false},
        {GLM4V ", \"hidden_size\": 2048, \"num_attention_heads\": 16, \"vision_config\": {}}",
         151552, 2048, 32768, 40, 16, 2, 1e4, false},
        {GLM4V_MOE ", \"head_dim\": 128, \"hidden_size\": 2048, \"vision_config\": {}}", 151424,
         2048, 65536, 46, 96, 8, 1e4, false},
        {GLM4V_MOE ", \"text_config\": {\"head_dim\": 128}}", 151424, 4096, 65536, 46, 96, 8, 1e4,
         false},
        {GLM46V ", \"text_config\": {}}", 151552, 4096, 32768, 40, 32, 2, 1e4, false},
        {GLM46V ", \"text_config\": {\"model_type\": \"glm4v_text\"}}", 151552, 4096, 32768, 40, 32,
         2, 1e4, false},
        {GLM46V ", \"text_config\": {\"model_type\": \"glm4v_moe_text\", \"head_dim\": 128}}",
         151424, 4096, 65536, 46, 96, 8, 1e4, false},
        {GLMGA ", \"text_config\": {}}", 151552, 4096, 32768, 40, 32, 2, 1e4, false},
        {GLMGA ", \"text_config\": {\"model_type\": \"glm4v_moe_text\", \"head_dim\": 128}}",
         151424, 4096, 65536, 46, 96, 8, 1e4, false},
        {LFM3_VL ", \"text_config\": {\"layer_types\": [\"full_attention\"], "
                 "\"num_hidden_layers\": 1}}",
         128000, 2048, 128000, 1, 16, 4, 1e6, true},
        {APERTUS ", \"text_config\": {\"output_vocab_size\": 131272}}", 131272, 4096, 65536, 32, 32,
         32, 12e6, false},
        {QWEN3_VL ", \"text_config\": {\"num_hidden_layers\": 2}}", 151936, 4096, 128000, 2, 32, 32,
         5e5, false},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_config c;
        parse_ok(&c, rows[i].text);
        const struct ctw_model *m = c.model;
        assert_true(m->vocab == rows[i].vocab);
        assert_true(m->hidden == rows[i].hidden);
        assert_true(m->max_length == rows[i].length);
        assert_true(m->n_decoders == rows[i].n_layers);
        assert_true(m->layers[1].branch[CTW_MIXER].attention.n_head == rows[i].n_head);
        assert_true(m->layers[1].branch[CTW_MIXER].attention.n_kv == rows[i].n_kv);
        assert_true(c.rope[0].theta == rows[i].theta);
        assert_true(m->tied == rows[i].tied);
        ctw_config_close(&c);
    }
}

/* What GLM-4.1V and 4.5V do not share with GLM 4 and 4.5. */
static void glm_text_models(void **state)
{
    (void)state;
    struct ctw_config c;
    parse_ok(&c, GLM4V ", \"text_config\": {\"rope_scaling\": {\"rope_type\": \"default\", "
                       "\"mrope_section\": [8, 12, 12]}}}");
    const struct ctw_layer *l = &c.model->layers[1];
    assert_true(l->norm[CTW_AT_MIXER_OUT].present);
    assert_true(l->norm[CTW_AT_MLP_OUT].present);
    assert_true(l->norm[CTW_AT_MLP].eps == 1e-5f);
    assert_true(c.rope[0].rot_dim == 128);
    assert_true(l->product[CTW_P_QKV].shard[0].bias >= 0);
    ctw_config_close(&c);
    parse_ok(&c, GLM4V ", \"text_config\": {\"partial_rotary_factor\": 0.5, \"attention_bias\": "
                       "false}}");
    l = &c.model->layers[1];
    assert_true(c.rope[0].rot_dim == 64);
    assert_true(l->product[CTW_P_QKV].shard[0].bias >= 0);
    assert_string_equal(c.unread.text, "text_config.attention_bias");
    ctw_config_close(&c);
    parse_ok(&c, GLM4V_MOE ", \"text_config\": {\"head_dim\": 128, \"use_qk_norm\": true}}");
    l = &c.model->layers[2];
    assert_true(l->n_experts == 128);
    assert_true(l->branch[CTW_MLP].mixture.route.normalised);
    assert_true(c.rope[0].rot_dim == 64);
    assert_true(!l->norm[CTW_AT_Q].present);
    assert_true(l->product[CTW_P_QKV].shard[0].bias >= 0);
    assert_true(c.n_drafts == 0);
    assert_string_equal(c.unread.text, "text_config.use_qk_norm");
    ctw_config_close(&c);
}

/* The outer object comes first, but for an older tie_word_embeddings inside. */
static void keys_of_both_levels(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool tied, by_default, has_dtype;
        enum ctw_dtype dtype;
        const char *unread;
    } rows[] = {
        {QWEN3_VL ", \"text_config\": {\"torch_dtype\": \"float16\"}}", false, true, true, CTW_F16,
         NULL},
        {QWEN3_VL ", \"dtype\": \"bfloat16\", \"text_config\": {\"dtype\": \"float32\"}}", false,
         true, true, CTW_BF16, NULL},
        {QWEN3_VL ", \"text_config\": {\"tie_word_embeddings\": true}}", true, false, false,
         CTW_BF16, NULL},
        {QWEN3_VL ", \"tie_word_embeddings\": false, \"text_config\": {\"tie_word_embeddings\": "
                  "true}}",
         true, true, false, CTW_BF16, NULL},
        {MISTRAL3 ", \"tie_word_embeddings\": false, \"text_config\": {\"pad_token_id\": 1, "
                  "\"rope_parameters\": {\"factor\": 2}}, \"vision_config\": {\"a\": 1}}",
         false, false, false, CTW_BF16,
         "vision_config, text_config.pad_token_id, text_config.rope_parameters.factor"},
        {MISTRAL3 ", \"hidden_size\": 7, \"text_config\": {\"tie_word_embeddings\": false, "
                  "\"quantization_config\": {\"quant_method\": \"compressed-tensors\", "
                  "\"config_groups\": {}, \"provider\": \"x\"}}}",
         false, false, false, CTW_BF16, "hidden_size, text_config.quantization_config.provider"},
        {QWEN2_5_VL ", \"tie_word_embeddings\": true, \"vision_config\": {}}", true, false, false,
         CTW_BF16, "vision_config"},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_config c;
        parse_ok(&c, rows[i].text);
        assert_true(c.model->tied == rows[i].tied);
        assert_true(c.tied_by_default == rows[i].by_default);
        assert_int_equal(c.has_dtype, rows[i].has_dtype);
        if (c.has_dtype)
            assert_int_equal(c.dtype, rows[i].dtype);
        assert_int_equal(c.quant.present, strstr(rows[i].text, "config_groups") != NULL);
        if (rows[i].unread == NULL)
            assert_null(c.unread.text);
        else
            assert_string_equal(c.unread.text, rows[i].unread);
        ctw_config_close(&c);
    }
}

/* Models that take several families' text models: each is described as in its own files. */
static void text_models_of_several_families(void **state)
{
    (void)state;
    static const char *const hosts[][4] = {
        {"deepseek_vl", "DeepseekVLForConditionalGeneration", "text_config", "llama"},
        {"deepseek_vl_hybrid", "DeepseekVLHybridForConditionalGeneration", "text_config", "llama"},
        {"fast_vlm", "FastVlmForConditionalGeneration", "text_config", "qwen2"},
        {"fuyu", "FuyuForCausalLM", "text_config", "persimmon"},
        {"got_ocr2", "GotOcr2ForConditionalGeneration", "text_config", "qwen2"},
        {"idefics2", "Idefics2ForConditionalGeneration", "text_config", "mistral"},
        {"idefics3", "Idefics3ForConditionalGeneration", "text_config", "llama"},
        {"internvl", "InternVLForConditionalGeneration", "text_config", "qwen2"},
        {"internvl_chat", "InternVLChatModel", "llm_config", "qwen2"},
        {"janus", "JanusForConditionalGeneration", "text_config", "llama"},
        {"kimi_vl", "KimiVLForConditionalGeneration", "text_config", "deepseek_v3"},
        {"lighton_ocr", "LightOnOcrForConditionalGeneration", "text_config", "qwen3"},
        {"llava", "LlavaForConditionalGeneration", "text_config", "llama"},
        {"llava_next", "LlavaNextForConditionalGeneration", "text_config", "llama"},
        {"llava_next_video", "LlavaNextVideoForConditionalGeneration", "text_config", "llama"},
        {"llava_onevision", "LlavaOnevisionForConditionalGeneration", "text_config", "qwen2"},
        {"ovis2", "Ovis2ForConditionalGeneration", "text_config", "qwen2"},
        {"perception_lm", "PerceptionLMForConditionalGeneration", "text_config", "llama"},
        {"qianfan_ocr", "QianfanOCRForConditionalGeneration", "text_config", "qwen3"},
        {"qwen2_audio", "Qwen2AudioForConditionalGeneration", "text_config", "qwen2"},
        {"smolvlm", "SmolVLMForConditionalGeneration", "text_config", "llama"},
        {"video_llama_3", "VideoLlama3ForConditionalGeneration", "text_config", "qwen2"},
        {"video_llava", "VideoLlavaForConditionalGeneration", "text_config", "llama"},
        {"vipllava", "VipLlavaForConditionalGeneration", "text_config", "llama"},
    };
    static const char *const types[] = {"",     "deepseek_v3", "llama", "mistral",  "persimmon",
                                        "phi3", "qwen2",       "qwen3", "qwen3_moe"};
    for (size_t i = 0; i < CTW_COUNT(hosts) * CTW_COUNT(types); i++) {
        const char *const *host = hosts[i / CTW_COUNT(types)];
        const char *given = types[i % CTW_COUNT(types)], *type = *given ? given : host[3];
        const char *keys = "\"rope_theta\": 5e5, \"num_hidden_layers\": 2, "
                           "\"tie_word_embeddings\": true";
        char text[512], alone[512];
        struct ctw_config in, out;
        (void)snprintf(text, sizeof(text),
                       "{\"architectures\": [\"%s\"], \"model_type\": \"%s\", \"%s\": {%s%s%s%s}}",
                       host[1], host[0], host[2], *given ? "\"model_type\": \"" : "", given,
                       *given ? "\", " : "", keys);
        (void)snprintf(alone, sizeof(alone), "{\"model_type\": \"%s\", %s}", type, keys);
        parse_ok(&in, text);
        parse_ok(&out, alone);
        assert_string_equal(in.family->model_type, host[0]);
        assert_null(in.unread.text);
        assert_true(in.model->tied);
        assert_true(out.model->tied);
        assert_true(in.n_wants == out.n_wants);
        assert_true(in.rope[0].theta == 5e5);
        assert_true(in.model->max_length == out.model->max_length);
        for (int64_t j = 0; j < in.n_wants; j++) {
            const struct ctw_want *a = &in.wants[j], *b = &out.wants[j];
            assert_string_equal(a->name, b->name);
            assert_true(a->kind == b->kind);
            assert_true(a->role == b->role);
            assert_true(a->n == b->n);
            assert_true(a->k == b->k);
        }
        ctw_config_close(&in);
        ctw_config_close(&out);
    }
}

/* MiniCPM-V's keys are those of another family's text model, which its version names. */
static void versions_of_minicpmv(void **state)
{
    (void)state;
    static const struct {
        const char *version, *type; /* NULL: refused */
    } rows[] = {
        {"2.0", NULL}, {"2.5", "llama"}, {"2.6", "qwen2"}, {"4.0", "llama"}, {"4.5", "qwen3"},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        char text[256], alone[256];
        struct ctw_config in, out;
        struct ctw_err err = {0};
        (void)snprintf(text, sizeof(text),
                       "{\"architectures\": [\"MiniCPMV\"], \"model_type\": \"minicpmv\", "
                       "\"version\": %s, \"num_hidden_layers\": 2}",
                       rows[i].version);
        if (rows[i].type == NULL) {
            assert_int_equal(parse(&in, text, &err), CTW_EUNSUP);
            assert_non_null(strstr(err.msg, "version: found 2; supported: 2.5, 2.6, 4.0, 4.5"));
            ctw_config_close(&in);
            continue;
        }
        (void)snprintf(alone, sizeof(alone), "{\"model_type\": \"%s\", \"num_hidden_layers\": 2}",
                       rows[i].type);
        parse_ok(&in, text);
        parse_ok(&out, alone);
        assert_true(in.n_wants == out.n_wants);
        assert_true(in.model->max_length == out.model->max_length);
        for (int64_t j = 0; j < in.n_wants; j++) {
            assert_string_equal(in.wants[j].name, out.wants[j].name);
            assert_true(in.wants[j].n == out.wants[j].n);
            assert_true(in.wants[j].k == out.wants[j].k);
        }
        ctw_config_close(&in);
        ctw_config_close(&out);
    }
}

/* Whether the head is tied is the host's, as in transformers, or as in older files the text's. */
static void heads_of_hosts(void **state)
{
    (void)state;
    static const struct {
        const char *keys;
        bool tied, by_default;
    } rows[] = {
        {LLAVA ", \"text_config\": {}}", false, true},
        {LLAVA ", \"tie_word_embeddings\": true, \"text_config\": {}}", true, false},
        {INTERNVL ", \"text_config\": {}}", true, true},
        {INTERNVL ", \"text_config\": {\"tie_word_embeddings\": false}}", false, false},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_config c;
        parse_ok(&c, rows[i].keys);
        assert_true(c.model->tied == rows[i].tied);
        assert_true(c.tied_by_default == rows[i].by_default);
        ctw_config_close(&c);
    }
}

static void refusals(void **state)
{
    (void)state;
    static const struct refusal rows[] = {
        {MISTRAL3 "}", "config.json: text_config is missing"},
        {MISTRAL3 ", \"text_config\": 1}", "text_config: expected an object"},
        {MISTRAL3 ", \"text_config\": {\"hidden_size\": 0}}",
         "config.json: text_config.hidden_size"},
        {MISTRAL3 ", \"text_config\": {\"hidden_size\": 100, \"num_attention_heads\": 3, "
                  "\"num_key_value_heads\": 3}}",
         "text_config: hidden_size 100 is not a multiple of num_attention_heads 3"},
        {MISTRAL3 ", \"text_config\": {\"model_type\": \"phi3\"}}",
         "model_type \"mistral3\" (architecture \"Mistral3ForConditionalGeneration\") with "
         "text_config.model_type \"phi3\" is not supported"},
        {LLAVA "}", "config.json: text_config is missing"},
        {"{\"model_type\": \"internvl_chat\"}", "config.json: \"llm_config\" is missing"},
        {"{\"model_type\": \"internvl_chat\", \"llm_config\": {\"model_type\": \"internlm2\"}}",
         "with llm_config.model_type \"internlm2\" is not supported"},
        {LLAVA ", \"text_config\": {\"model_type\": \"gemma2\"}}",
         "with text_config.model_type \"gemma2\" is not supported"},
        {"{\"architectures\": [\"LlavaForCausalLM\"], \"model_type\": \"llava\", \"text_config\": "
         "{}}",
         "architecture \"LlavaForCausalLM\""},
        {MISTRAL3 ", \"text_config\": {\"per_layer_config\": {\"0\": {}}}}",
         "text_config.per_layer_config: found an object of 1 keys, which requests"},
        {MISTRAL3 ", \"text_config\": {\"rope_scaling\": {\"type\": \"mrope\"}}}",
         "text_config.rope_scaling: RoPE type \"mrope\" is not supported"},
        {MISTRAL3 ", \"decoder\": {\"a\": 1}, \"text_config\": {}}", "decoder: found an object"},
        {QWEN3_VL ", \"tie_word_embeddings\": 1, \"text_config\": {}}",
         "tie_word_embeddings: expected"},
        {"{\"architectures\": [\"MistralForCausalLM\"], \"model_type\": \"mistral\", "
         "\"text_config\": {\"hidden_size\": 8}}",
         "requests a text model inside another model"},
    };
    expect_refusals(rows, CTW_COUNT(rows));
}

/* ---- checkpoints ---- */

#define WRAPPED                                                                                    \
    "\"architectures\": [\"Mistral3ForConditionalGeneration\"], \"model_type\": \"mistral3\", "    \
    "\"text_config\": {\"model_type\": \"mistral\", \"sliding_window\": null" CONFIG "}"

struct spelling {
    const char *model, *head;
};

static const struct spelling spellings[] = {{"model.language_model.", "lm_head"},
                                            {"language_model.model.", "language_model.lm_head"},
                                            {"model.", "lm_head"}};

#define VL_LAYER "model.language_model.layers.0."

/* Renames the tensors, of which names begin with "model." or are lm_head's. */
static void respell(struct checkpoint *c, struct spelling to)
{
    static char names[CTW_COUNT(dense)][96];
    c->family = WRAPPED;
    memcpy(c->tensors, dense, sizeof(dense));
    c->n = (int)CTW_COUNT(dense);
    for (size_t i = 0; i < CTW_COUNT(dense); i++) {
        const char *name = dense[i].name;
        bool head = strncmp(name, "lm_head", 7) == 0;
        (void)snprintf(names[i], sizeof(names[i]), "%s%s", head ? to.head : to.model,
                       name + (head ? 7 : 6));
        c->tensors[i].name = names[i];
    }
}

/* The names in messages and in `inspect` are those of the files. */
static void names_are_spelled_as_the_file_has_them(void **state)
{
    struct checkpoint *c = *state;
    char name[96];
    for (size_t i = 0; i < CTW_COUNT(spellings); i++) {
        respell(c, spellings[i]);
        struct ctw_model *m = open_ok(c);
        (void)snprintf(name, sizeof(name), "%slayers.0.mlp.up_proj", spellings[i].model);
        assert_string_equal(m->layers[1].matrix[ctw_matrix_at(CTW_MLP, CTW_M_UP)].name, name);
        assert_string_equal(m->layers[2].matrix[CTW_M_HEAD].name, spellings[i].head);
        assert_false(m->tied);
        ctw_model_close(m);
        (void)snprintf(name, sizeof(name), "%snorm.weight", spellings[i].model);
        drop(c, name);
        expect_refusal(c, name);
    }
    respell(c, (struct spelling){"text.", "lm_head"});
    expect_refusal(c, "no tensor model.language_model.embed_tokens.weight");
}

static void a_host_opens(void **state)
{
    struct checkpoint *c = *state;
    respell(c, (struct spelling){"model.text_model.", "lm_head"});
    c->family = "\"architectures\": [\"SmolVLMForConditionalGeneration\"], \"model_type\": "
                "\"smolvlm\", \"text_config\": {\"model_type\": \"llama\"" CONFIG "}";
    struct ctw_model *m = open_ok(c);
    assert_string_equal(m->layers[1].matrix[ctw_matrix_at(CTW_MLP, CTW_M_UP)].name,
                        "model.text_model.layers.0.mlp.up_proj");
    ctw_model_close(m);
}

/* Towers and drafts do not count, and change no identity; other tensors are refused as ever. */
static void other_models_are_apart(void **state)
{
    struct checkpoint *c = *state;
    respell(c, spellings[1]);
    struct ctw_model *m = open_ok(c);
    int64_t n_params = m->n_params;
    assert_int_equal(m->n_apart, 0);
    ctw_model_close(m);
    add(c, "vision_tower.patch_conv.weight", "F32", "2, 3", 24, NULL);
    add(c, "multi_modal_projector.linear_1.weight", "BF16", "2, 3", 12, NULL);
    add(c, "model.visual.blocks.0.weight", "BF16", "2, 3", 12, NULL);
    add(c, "mtp.layers.0.weight", "BF16", "2", 4, NULL);
    m = open_ok(c);
    assert_true(m->n_apart == 4);
    assert_true(m->apart_bytes == 52);
    assert_true(m->n_params == n_params);
    ctw_model_close(m);
    c->config = ""; /* no dtype: that of the text model's tensors */
    m = open_ok(c);
    assert_int_equal(m->dtype, CTW_BF16);
    ctw_model_close(m);
    add(c, "model.connector.modality_projection.proj.weight", "BF16", "2", 4, NULL);
    m = open_ok(c);
    assert_int_equal(m->n_apart, 5);
    ctw_model_close(m);
    add(c, "language_model.model.layers.0.other.weight", "BF16", "2", 4, NULL);
    expect_refusal(c, "language_model.model.layers.0.other.weight (BF16 [2]) has no use");
}

/* Only drafts are apart in a model that is no wrapper. */
static void other_models_beside_a_plain_model(void **state)
{
    struct checkpoint *c = *state;
    add(c, "mtp.layers.0.weight", "BF16", "2", 4, NULL);
    struct ctw_model *m = open_ok(c);
    assert_int_equal(m->n_apart, 1);
    ctw_model_close(m);
    add(c, "visual.blocks.0.weight", "BF16", "2", 4, NULL);
    expect_refusal(c, "visual.blocks.0.weight (BF16 [2]) has no use");
}

/* Where nothing says whether the head is tied, the tensors show it. */
static void heads_that_are_tied_by_default(void **state)
{
    struct checkpoint *c = *state;
    char other[1024] = {1};
    respell(c, spellings[1]);
    find(c, "language_model.lm_head.weight")->data = other;
    struct ctw_model *m = open_ok(c);
    assert_false(m->tied);
    ctw_model_close(m);
    c->config = BF16_CONFIG ", \"tie_word_embeddings\": true";
    expect_refusal(c, "language_model.lm_head.weight differs from the embedding");
    c->config = BF16_CONFIG;
    drop(c, "language_model.lm_head.weight");
    m = open_ok(c);
    assert_true(m->tied);
    assert_string_equal(m->layers[2].matrix[CTW_M_HEAD].name, "language_model.lm_head");
    ctw_model_close(m);
    c->config = BF16_CONFIG ", \"tie_word_embeddings\": false";
    expect_refusal(c, "no tensor language_model.lm_head.weight");
}

/* targets and ignore may have the module's name in another spelling than the file. */
static void quantised_modules_in_any_spelling(void **state)
{
    struct checkpoint *c = *state;
    respell(c, spellings[1]);
    pack(c, "language_model.model.layers.0.mlp.up_proj",
         "language_model.model.layers.0.mlp.up_proj.weight_packed",
         "language_model.model.layers.0.mlp.up_proj.weight_scale", 64);
    static const char *const good[] = {
        PACK("\"Linear\"", "\"re:.*self_attn.*\", \"re:.*(gate|down)_proj\", \"re:.*lm_head\""),
        PACK("\"model.language_model.layers.0.mlp.up_proj\"", ""),
        PACK("\"language_model.model.layers.0.mlp.up_proj\"", ""),
        PACK("\"re:model[.]language_model.*(mlp|self_attn)\"",
             "\"re:model[.]language_model.*self_attn\", "
             "\"model.language_model.layers.0.mlp.gate_proj\", "
             "\"language_model.model.layers.0.mlp.down_proj\""),
    };
    for (size_t i = 0; i < CTW_COUNT(good); i++) {
        c->config = good[i];
        struct ctw_model *m = open_ok(c);
        assert_int_equal(m->layers[1].matrix[ctw_matrix_at(CTW_MLP, CTW_M_UP)].weight.format->id,
                         CTW_FORMAT_pack_quantized);
        ctw_model_close(m);
    }
    c->config = PACK("\"model.layers.0.mlp.gate_proj\"", "");
    expect_refusal(c, "language_model.model.layers.0.mlp.gate_proj: weight is stored dense");
}

/* The makers' stacks of experts are [n, inputs, outputs], those of transformers 5 the reverse. */
static void stacks_of_either_order(void **state)
{
    struct checkpoint *c = *state;
    static const struct {
        const char *inner, *gate_up, *down;
        bool transposed;
    } rows[] = {{"48", "2, 32, 96", "2, 48, 32", true}, {"48", "2, 96, 32", "2, 32, 48", false},
                {"16", "2, 32, 32", "2, 16, 32", true}, {"16", "2, 32, 32", "2, 32, 16", false},
                {"32", "2, 32, 64", "2, 32, 32", true}, {"32", "2, 64, 32", "2, 32, 32", false}};
    static char family[512];
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        respell(c, spellings[0]);
        (void)snprintf(
            family, sizeof(family),
            "\"architectures\": [\"Qwen3VLMoeForConditionalGeneration\"], \"model_type\": "
            "\"qwen3_vl_moe\", \"text_config\": {\"num_experts\": 2, "
            "\"num_experts_per_tok\": 1, \"moe_intermediate_size\": %s" CONFIG "}",
            rows[i].inner);
        c->family = family;
        drop(c, "model.language_model.layers.0.mlp.gate_proj.weight");
        drop(c, "model.language_model.layers.0.mlp.up_proj.weight");
        drop(c, "model.language_model.layers.0.mlp.down_proj.weight");
        size_t bytes = 2 * 2 * 32 * (size_t)atoi(rows[i].inner);
        add(c, VL_LAYER "mlp.experts.gate_up_proj", "BF16", rows[i].gate_up, 2 * bytes, NULL);
        add(c, VL_LAYER "mlp.experts.down_proj", "BF16", rows[i].down, bytes, NULL);
        add(c, VL_LAYER "mlp.gate.weight", "BF16", "2, 32", 128, NULL);
        add(c, VL_LAYER "self_attn.q_norm.weight", "BF16", "8", 16, NULL);
        add(c, VL_LAYER "self_attn.k_norm.weight", "BF16", "8", 16, NULL);
        struct ctw_model *m = open_ok(c);
        const struct ctw_weight *w = &m->layers[1].expert[CTW_X_DOWN].weight;
        assert_int_equal(w->format->id == CTW_FORMAT_dense_transposed, rows[i].transposed);
        ctw_model_close(m);
    }
    /* Codes are [n, outputs, inputs], also where nothing says what a dense stack would be. */
    drop(c, VL_LAYER "mlp.experts.gate_up_proj");
    drop(c, VL_LAYER "mlp.experts.down_proj");
    add(c, VL_LAYER "mlp.experts.gate_up_proj_packed", "I32", "2, 64, 4", 2048, NULL);
    add(c, VL_LAYER "mlp.experts.gate_up_proj_scale", "BF16", "2, 64, 2", 512, NULL);
    add(c, VL_LAYER "mlp.experts.down_proj_packed", "I32", "2, 32, 4", 1024, NULL);
    add(c, VL_LAYER "mlp.experts.down_proj_scale", "BF16", "2, 32, 2", 256, NULL);
    c->config = PACK("\"Linear\"", "\"re:.*self_attn.*\", \"re:.*gate$\", \"lm_head\"");
    struct ctw_model *m = open_ok(c);
    const struct ctw_weight *w = &m->layers[1].expert[CTW_X_DOWN].weight;
    assert_int_equal(w->format->id, CTW_FORMAT_pack_quantized);
    ctw_model_close(m);
    find(c, VL_LAYER "mlp.experts.gate_up_proj_packed")->shape = "2, 32, 8";
    expect_refusal(c, "experts.gate_up_proj: _packed: found I32 [32, 8], expected I32");
}

static void out_of_memory_is_an_error(void **state)
{
    struct checkpoint *c = *state;
    struct ctw_model *m = NULL;
    struct ctw_err err;
    respell(c, spellings[1]);
    c->config = PACK("\"re:model[.]language_model.*up_proj\"", "");
    int64_t n = 0;
    pack(c, "language_model.model.layers.0.mlp.up_proj",
         "language_model.model.layers.0.mlp.up_proj.weight_packed",
         "language_model.model.layers.0.mlp.up_proj.weight_scale", 64);
    write_it(c);
    for (enum ctw_status st = CTW_ENOMEM; st != CTW_OK; n++) {
        ctw_mem_fail_at(n + 1);
        st = ctw_model_open(&m, c->dir, NULL, &err);
        ctw_mem_fail_at(0);
        if (st != CTW_OK && st != CTW_ENOMEM)
            fail_msg("allocation %d: %s", (int)n + 1, err.msg);
        assert_true((st == CTW_OK) == (m != NULL));
    }
    assert_true(n > 60);
    ctw_model_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_of_the_text_model),
        cmocka_unit_test(glm_text_models),
        cmocka_unit_test(keys_of_both_levels),
        cmocka_unit_test(text_models_of_several_families),
        cmocka_unit_test(versions_of_minicpmv),
        cmocka_unit_test(heads_of_hosts),
        cmocka_unit_test(refusals),
        cmocka_unit_test_setup_teardown(names_are_spelled_as_the_file_has_them, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_host_opens, set_up, tear_down),
        cmocka_unit_test_setup_teardown(other_models_are_apart, set_up, tear_down),
        cmocka_unit_test_setup_teardown(other_models_beside_a_plain_model, set_up, tear_down),
        cmocka_unit_test_setup_teardown(heads_that_are_tied_by_default, set_up, tear_down),
        cmocka_unit_test_setup_teardown(quantised_modules_in_any_spelling, set_up, tear_down),
        cmocka_unit_test_setup_teardown(stacks_of_either_order, set_up, tear_down),
        cmocka_unit_test_setup_teardown(out_of_memory_is_an_error, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
