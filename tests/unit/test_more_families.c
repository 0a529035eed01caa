/* Families before transformers' modern ones, or with code of their own: keys, layers, refusals. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "config_text.h"
#include "worker/model/names/names.h"

#define BIGCODE "{\"architectures\": [\"GPTBigCodeForCausalLM\"], \"model_type\": \"gpt_bigcode\""
#define GPTJ "{\"architectures\": [\"GPTJForCausalLM\"], \"model_type\": \"gptj\""
#define QWEN "{\"architectures\": [\"QWenLMHeadModel\"], \"model_type\": \"qwen\""
#define CHATGLM "{\"architectures\": [\"ChatGLMModel\"], \"model_type\": \"chatglm\""
#define MINICPM "{\"architectures\": [\"MiniCPMForCausalLM\"], \"model_type\": \"minicpm\""
#define BAICHUAN "{\"architectures\": [\"BaichuanForCausalLM\"], \"model_type\": \"baichuan\""
#define ROTATED ", \"max_position_embeddings\": 2048"
#define MIMO "{\"architectures\": [\"MiMoForCausalLM\"], \"model_type\": \"mimo\""
#define HYBRID                                                                                     \
    "{\"architectures\": [\"GraniteMoeHybridForCausalLM\"], \"model_type\": "                      \
    "\"granitemoehybrid\", \"num_hidden_layers\": 2"
#define DENSE ", \"num_local_experts\": 0, \"layer_types\": [\"attention\", \"full_attention\"]"
#define NAS                                                                                        \
    "{\"architectures\": [\"DeciLMForCausalLM\"], \"model_type\": \"nemotron-nas\", "              \
    "\"num_hidden_layers\": 2, \"block_configs\": "
#define ATTENTION "\"attention\": {\"n_heads_in_group\": 8}"
#define MLP "\"ffn\": {\"ffn_mult\": 1.3125}"
#define CODEGEN "{\"architectures\": [\"CodeGenForCausalLM\"], \"model_type\": \"codegen\""
#define MOLMO "{\"architectures\": [\"MolmoForCausalLM\"], \"model_type\": \"molmo\""
#define PANGU                                                                                      \
    "{\"architectures\": [\"PanguEmbeddedForCausalLM\"], \"model_type\": \"PanguEmbedded\""
#define LFM2 "{\"architectures\": [\"Lfm2ForCausalLM\"], \"model_type\": \"lfm2\""
#define NEO "{\"architectures\": [\"GPTNeoForCausalLM\"], \"model_type\": \"gpt_neo\""
#define EXAONE "{\"architectures\": [\"ExaoneForCausalLM\"], \"model_type\": \"exaone\""
#define INTERN "{\"architectures\": [\"InternLM3ForCausalLM\"], \"model_type\": \"internlm3\""
#define MINICPM3 "{\"architectures\": [\"MiniCPM3ForCausalLM\"], \"model_type\": \"minicpm3\""
#define MAMBA "{\"architectures\": [\"MambaForCausalLM\"], \"model_type\": \"mamba\""
#define PERSIMMON "{\"architectures\": [\"PersimmonForCausalLM\"], \"model_type\": \"persimmon\""
#define JAIS "{\"architectures\": [\"Jais2ForCausalLM\"], \"model_type\": \"jais2\""
#define CLOVA "{\"architectures\": [\"HyperCLOVAXForCausalLM\"], \"model_type\": \"hyperclovax\""
#define YOUTU "{\"architectures\": [\"YoutuForCausalLM\"], \"model_type\": \"youtu\""
#define BIOGPT "{\"architectures\": [\"BioGptForCausalLM\"], \"model_type\": \"biogpt\""
#define PHI4                                                                                       \
    "{\"architectures\": [\"Phi4MultimodalForCausalLM\"], \"model_type\": \"phi4_multimodal\""
#define PHI4MM "{\"architectures\": [\"Phi4MMForCausalLM\"], \"model_type\": \"phi4mm\""
#define OLDER_QWEN QWEN ", \"n_embd\": 4096"

/* What the families' own classes have when a file says nothing. */
static void families_have_their_defaults(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t vocab, hidden, inner, length, limit;
        int n_layers, n_head, n_kv, head, rot_dim; /* rot_dim 0: no RoPE */
        bool tied, parallel;
    } rows[] = {
        {BIGCODE "}", 50257, 768, 3072, 1024, 1024, 12, 12, 1, 64, 0, true, false},
        {BIGCODE ", \"multi_query\": false, \"n_inner\": 2048}", 50257, 768, 2048, 1024, 1024, 12,
         12, 12, 64, 0, true, false},
        {GPTJ "}", 50400, 4096, 16384, 2048, 2048, 28, 16, 16, 256, 64, false, true},
        {CODEGEN "}", 50400, 4096, 16384, 2048, 2048, 28, 16, 16, 256, 64, false, true},
        {QWEN ", \"seq_length\": 2048}", 151936, 4096, 11008, 2048, 2048, 32, 32, 32, 128, 128,
         false, false},
        {QWEN ", \"use_dynamic_ntk\": false, \"use_logn_attn\": false}", 151936, 4096, 11008, 8192,
         0, 32, 32, 32, 128, 128, false, false},
        {OLDER_QWEN "}", 151851, 4096, 11008, 1024, 0, 32, 32, 32, 128, 128, false, false},
        {OLDER_QWEN ", \"seq_length\": 512, \"use_logn_attn\": true}", 151851, 4096, 11008, 512,
         512, 32, 32, 32, 128, 128, false, false},
        {CHATGLM "}", 65024, 4096, 13696, 2048, 0, 28, 32, 32, 128, 64, false, false},
        {CHATGLM ", \"multi_query_attention\": true, \"multi_query_group_num\": 2}", 65024, 4096,
         13696, 2048, 0, 28, 32, 2, 128, 64, false, false},
        {MINICPM "}", 32000, 4096, 11008, 2048, 0, 32, 32, 32, 128, 128, true, false},
        {BAICHUAN "}", 64000, 5120, 13696, 4096, 0, 40, 40, 40, 128, 0, false, false},
        {BAICHUAN ROTATED "}", 64000, 4096, 11008, 2048, 0, 32, 32, 32, 128, 128, false, false},
        {HYBRID DENSE "}", 32000, 4096, 1024, 2048, 0, 2, 32, 32, 128, 0, false, false},
        {HYBRID DENSE ", \"position_embedding_type\": \"rope\", \"shared_intermediate_size\": 512}",
         32000, 4096, 512, 2048, 0, 2, 32, 32, 128, 128, false, false},
        {NAS "[{" ATTENTION ", " MLP "}, {" ATTENTION ", " MLP "}]}", 32000, 4096, 3584, 2048, 0, 2,
         32, 4, 128, 128, false, false},
        {MOLMO ", \"embedding_size\": 50432}", 50432, 4096, 5504, 2048, 0, 32, 32, 32, 128, 128,
         false, false},
        {PANGU "}", 153376, 4096, 12800, 32768, 0, 34, 32, 8, 128, 128, false, false},
        {MIMO "}", 151936, 4096, 22016, 32768, 0, 32, 32, 32, 128, 128, false, false},
        {NEO "}", 50257, 2048, 8192, 2048, 2048, 24, 16, 16, 128, 0, true, false},
        {EXAONE "}", 102400, 4096, 14336, 4096, 0, 32, 32, 8, 128, 128, false, false},
        {INTERN "}", 128512, 4096, 10240, 32768, 0, 48, 32, 2, 128, 128, false, false},
        {PERSIMMON "}", 262144, 4096, 16384, 16384, 0, 36, 64, 64, 64, 32, false, false},
        {BIOGPT "}", 42384, 1024, 4096, 1024, 1024, 24, 16, 16, 64, 0, true, false},
        {JAIS "}", 150272, 3328, 26624, 8192, 0, 32, 26, 26, 128, 128, false, false},
        {PHI4 "}", 200064, 3072, 8192, 131072, 0, 32, 32, 8, 96, 96, false, false},
        {PHI4MM ", \"partial_rotary_factor\": 0.75, \"num_key_value_heads\": null}", 200064, 3072,
         8192, 131072, 0, 32, 32, 32, 96, 72, false, false},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_config c;
        parse_ok(&c, rows[i].text);
        const struct ctw_model *m = c.model;
        const struct ctw_layer *l = &m->layers[1];
        assert_true(m->vocab == rows[i].vocab);
        assert_true(m->hidden == rows[i].hidden);
        assert_true(m->max_length == rows[i].length);
        assert_true(l->branch[CTW_MLP].dense.inner == rows[i].inner);
        assert_int_equal(m->length_limit, rows[i].limit);
        assert_int_equal(m->n_decoders, rows[i].n_layers);
        assert_true(l->branch[CTW_MIXER].attention.n_head == rows[i].n_head);
        assert_true(l->branch[CTW_MIXER].attention.n_kv == rows[i].n_kv);
        assert_int_equal(l->branch[CTW_MIXER].attention.head, rows[i].head);
        assert_int_equal(m->n_ropes == 0 ? 0 : m->rope[0].rot_dim, rows[i].rot_dim);
        assert_true(m->tied == rows[i].tied);
        assert_true(l->branch[CTW_MLP].beside == rows[i].parallel);
        assert_null(c.unread.text);
        ctw_config_close(&c);
    }
}

static void tensors(void **state)
{
    (void)state;
    static const struct tensor_row rows[] = {
        {BIGCODE "}", "transformer.h.0.attn.c_attn", 768 + 2 * 64, 768},
        {BIGCODE "}", "transformer.h.11.mlp.c_fc.bias", 3072, 0},
        {BIGCODE "}", "transformer.wpe", 1024, 768},
        {GPTJ "}", "transformer.h.0.attn.out_proj", 4096, 4096},
        {GPTJ "}", "transformer.h.0.attn.out_proj.bias", 0, 0},
        {GPTJ "}", "transformer.h.0.ln_2.weight", 0, 0},
        {GPTJ "}", "lm_head.bias", 50400, 0},
        {CODEGEN "}", "transformer.h.0.attn.qkv_proj", 3 * 4096, 4096},
        {CODEGEN "}", "transformer.h.0.attn.qkv_proj.bias", 0, 0},
        {OLDER_QWEN "}", "transformer.h.0.attn.c_attn.bias", 3 * 4096, 0},
        {OLDER_QWEN "}", "transformer.h.0.mlp.w1", 11008, 4096},
        {OLDER_QWEN "}", "transformer.h.0.mlp.w1.bias", 0, 0},
        {OLDER_QWEN ", \"no_bias\": false}", "transformer.h.0.mlp.w1.bias", 11008, 0},
        {PANGU "}", "model.layers.33.self_attn.o_proj.bias", 4096, 0},
        {PANGU ", \"bias\": false}", "model.layers.0.self_attn.k_proj.bias", 0, 0},
        {PANGU "}", "model.layers.0.mlp.up_proj.bias", 0, 0},
        {CHATGLM ", \"add_qkv_bias\": true}",
         "transformer.encoder.layers.0.self_attention.query_key_value.bias", 3 * 4096, 0},
        {CHATGLM "}", "transformer.encoder.layers.27.mlp.dense_h_to_4h", 2 * 13696, 4096},
        {CHATGLM "}", "transformer.encoder.final_layernorm.weight", 4096, 0},
        {CHATGLM ", \"post_layer_norm\": false}", "transformer.encoder.final_layernorm.weight", 0,
         0},
        {CHATGLM "}", "transformer.output_layer", 65024, 4096},
        {MINICPM ", \"attention_bias\": true}", "model.layers.0.self_attn.o_proj.bias", 4096, 0},
        {BAICHUAN "}", "model.layers.39.self_attn.W_pack", 3 * 5120, 5120},
        {BAICHUAN ROTATED "}", "lm_head", 64000, 4096},
        {MOLMO "}", "model.transformer.wte.embedding", 50304, 4096},
        {NEO "}", "transformer.h.23.attn.attention.out_proj.bias", 2048, 0},
        {NEO "}", "transformer.h.0.attn.attention.q_proj.bias", 0, 0},
        {EXAONE ", \"num_layers\": 2}", "transformer.h.1.mlp.c_fc_1", 14336, 4096},
        {EXAONE "}", "transformer.h.31.attn.attention.k_proj", 1024, 4096},
        {INTERN ", \"qkv_bias\": true, \"bias\": true}", "model.layers.0.mlp.up_proj.bias", 10240,
         0},
        {MINICPM3 "}", "model.layers.61.self_attn.kv_b_proj", 40 * 128, 256},
        {MINICPM3 ", \"v_head_dim\": 32}", "model.layers.0.self_attn.o_proj", 2560, 40 * 32},
        {PERSIMMON "}", "model.layers.35.self_attn.query_key_value.bias", 3 * 4096, 0},
        {PERSIMMON "}", "model.layers.0.self_attn.q_layernorm.bias", 64, 0},
        {PERSIMMON ", \"qk_layernorm\": false}", "model.layers.0.self_attn.q_layernorm.bias", 0, 0},
        {BIOGPT "}", "biogpt.embed_positions", 1026, 1024},
        {BIOGPT ", \"tie_word_embeddings\": false}", "output_projection", 42384, 1024},
        {PHI4 "}", "model.layers.31.self_attn.qkv_proj", 48 * 96, 3072},
        {PHI4MM "}", "model.layers.0.mlp.gate_up_proj", 2 * 8192, 3072},
        {MAMBA "}", "backbone.layers.31.mixer.x_proj", 48 + 32, 1536},
        {MAMBA "}", "backbone.layers.0.mixer.in_proj.bias", 0, 0},
        {MOLMO ", \"qkv_bias\": true}", "model.transformer.blocks.0.att_proj.bias", 3 * 4096, 0},
        {MIMO ", \"attention_bias\": false}", "model.layers.0.self_attn.q_proj.bias", 4096, 0},
        {LFM2 "}", "model.layers.0.self_attn.out_proj", 2560, 2560},
        {LFM2 "}", "model.layers.0.self_attn.q_layernorm.weight", 80, 0},
        {LFM2 "}", "model.layers.31.feed_forward.w1", 8192, 2560},
        {LFM2 ", \"block_ff_dim\": 100, \"block_multiple_of\": 32}",
         "model.layers.0.feed_forward.w2", 2560, 96},
        {LFM2 ", \"block_ff_dim\": 100, \"block_auto_adjust_ff_dim\": false}",
         "model.layers.0.feed_forward.w2", 2560, 100},
        {LFM2 ", \"block_ff_dim\": 900, \"block_ffn_dim_multiplier\": 0.5}",
         "model.layers.0.feed_forward.w3", 512, 2560},
        {LFM2 ", \"full_attn_idxs\": [2]}", "model.layers.0.conv.conv.weight", 2560, 3},
        {LFM2 ", \"full_attn_idxs\": [2]}", "model.layers.2.conv.conv.weight", 0, 0},
        {LFM2 ", \"full_attn_idxs\": [2], \"conv_L_cache\": 4, \"conv_bias\": true}",
         "model.layers.1.conv.conv.weight", 2560, 4},
        {LFM2 ", \"full_attn_idxs\": [2], \"conv_bias\": true}", "model.layers.1.conv.in_proj.bias",
         3 * 2560, 0},
        {LFM2 ", \"num_hidden_layers\": 2, \"layer_types\": [\"full_attention\", \"conv\"]}",
         "model.layers.1.conv.out_proj", 2560, 2560},
    };
    expect_tensors(rows, CTW_COUNT(rows));
}

static void layers_of_small_families(void **state)
{
    (void)state;
    struct ctw_config c;

    parse_ok(&c, MINICPM3 ", \"scale_depth\": null}");
    assert_true(c.model->embed_scale == 12.0f);
    assert_true(c.model->head_scale == 0.1f);
    assert_true(c.model->layers[1].branch[CTW_MIXER].factor == 1);
    assert_int_equal(c.model->rope[0].pairing, CTW_ROPE_HALVES);
    ctw_config_close(&c);

    parse_ok(&c, NEO ", \"num_layers\": 6, \"attention_types\": [[[\"local\", \"global\", "
                     "\"global\"], 2]]}");
    assert_int_equal(c.model->layers[1].branch[CTW_MIXER].attention.window, 256);
    assert_int_equal(c.model->layers[3].branch[CTW_MIXER].attention.window, 0);
    assert_int_equal(c.model->layers[4].branch[CTW_MIXER].attention.window, 256);
    assert_true(c.model->layers[1].branch[CTW_MIXER].attention.scale == 1);
    ctw_config_close(&c);

    /* As transformers 5 writes them. */
    parse_ok(&c, "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"exaone\"}");
    assert_non_null(find(&c, "transformer.wte"));
    ctw_config_close(&c);
    parse_ok(&c, "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"internlm3\"}");
    assert_true(c.model->layers[1].branch[CTW_MIXER].attention.n_kv == 2);
    ctw_config_close(&c);

    parse_ok(&c, PERSIMMON ", \"layer_norm_eps\": 1e-6}");
    assert_true(c.model->layers[1].norm[ctw_norm_at(CTW_MIXER, CTW_AT_Q)].eps == 1e-6f);
    assert_int_equal(c.model->layers[1].branch[CTW_MLP].dense.act, CTW_ACT_RELU2);
    ctw_config_close(&c);

    /* The class has norms of torch's own eps. */
    parse_ok(&c, BIOGPT ", \"layer_norm_eps\": 1e-12}");
    assert_true(c.model->layers[1].norm[CTW_AT_MIXER].eps == 1e-5f);
    assert_true(c.model->embed_scale == 32);
    assert_int_equal(c.model->layers[1].branch[CTW_MLP].dense.act, CTW_ACT_GELU);
    ctw_config_close(&c);

    parse_ok(&c, PHI4MM ", \"sliding_window\": 4096}");
    assert_true(c.model->layers[1].branch[CTW_MIXER].attention.window == 4096);
    assert_true(ctw_name_is_apart(&c, "model.layers.0.mlp.down_proj.lora_A.speech.weight"));
    assert_true(ctw_name_is_apart(&c, "model.embed_tokens_extend.image_embed.glb_GN"));
    assert_false(ctw_name_is_apart(&c, "model.layers.0.mlp.down_proj.base_layer.weight"));
    ctw_config_close(&c);

    /* An adapter beside another family's weights would count. */
    parse_ok(&c, EXAONE "}");
    assert_false(ctw_name_is_apart(&c, "transformer.h.0.mlp.c_proj.lora_A.speech.weight"));
    ctw_config_close(&c);

    parse_ok(&c, MAMBA "}");
    assert_true(c.model->layers[1].branch[CTW_MIXER].state_space.selects);
    assert_false(c.model->layers[1].norm[ctw_norm_at(CTW_MIXER, CTW_AT_SSM_DT)].present);
    assert_true(c.model->tied);
    ctw_config_close(&c);
}

/* HyperCLOVA X, Jais 2 and Youtu LLM. */
static void families_like_others(void **state)
{
    (void)state;
    struct ctw_config c;

    parse_ok(&c, CLOVA ", \"logits_scaling\": 0.25, \"embedding_multiplier\": 10, "
                       "\"attention_multiplier\": null, \"residual_multiplier\": 0.5}");
    assert_true(c.model->head_scale == 0.25f);
    assert_true(c.model->embed_scale == 10);
    assert_true(c.model->layers[1].branch[CTW_MIXER].attention.scale == (float)sqrt(1.0 / 128));
    assert_true(c.model->layers[1].branch[CTW_MLP].factor == 0.5f);
    assert_non_null(find(&c, "model.layers.0.post_norm2.weight"));
    ctw_config_close(&c);

    parse_ok(&c, CLOVA ", \"use_post_norm\": false}");
    assert_null(find(&c, "model.layers.0.post_norm1.weight"));
    ctw_config_close(&c);

    parse_ok(&c, JAIS "}");
    assert_int_equal(c.model->layers[1].branch[CTW_MLP].dense.act, CTW_ACT_RELU2);
    assert_non_null(find(&c, "model.layers.0.mlp.down_proj.bias"));
    assert_non_null(find(&c, "model.layers.31.self_attn.o_proj.bias"));
    assert_non_null(find(&c, "model.norm.bias"));
    ctw_config_close(&c);

    parse_ok(&c, YOUTU "}");
    assert_true(c.model->vocab == 128256);
    assert_true(c.model->hidden == 2048);
    assert_true(c.model->tied);
    assert_true(c.model->max_length == 131072);
    assert_int_equal(c.model->n_decoders, 32);
    assert_true(find(&c, "model.layers.31.mlp.up_proj")->n == 6144);
    assert_true(find(&c, "model.layers.0.self_attn.q_b_proj")->n == 16 * 192);
    assert_true(find(&c, "model.layers.0.self_attn.q_b_proj")->k == 1536);
    assert_int_equal(c.model->rope[0].pairing, CTW_ROPE_INTERLEAVED);
    assert_null(c.unread.text);
    ctw_config_close(&c);
}

static void factors(void **state)
{
    (void)state;
    struct ctw_config c;

    parse_ok(&c, MINICPM ", \"scale_emb\": 12, \"scale_depth\": 1.4, \"dim_model_base\": 256}");
    const struct ctw_layer *l = &c.model->layers[1];
    assert_true(c.model->embed_scale == 12.0f);
    assert_true(c.model->head_scale == 0.0625f);
    assert_true(l->branch[CTW_MIXER].factor == (float)(1.4 / sqrt(32)));
    assert_true(l->branch[CTW_MLP].factor == l->branch[CTW_MIXER].factor);
    ctw_config_close(&c);

    /* Heads 31 and 32 of 40 have the slopes of 32 heads, and of 64: 2^-8 and 2^-(1/8). */
    parse_ok(&c, BAICHUAN ", \"vocab_size\": 125696, \"model_max_length\": 8192}");
    assert_true(c.model->alibi[31] == 0x1p-8f);
    assert_true(c.model->alibi[32] == (float)pow(2, -0.125));
    assert_true(c.model->unit_head);
    assert_true(c.model->max_length == 8192);
    ctw_config_close(&c);
    parse_ok(&c, BAICHUAN ROTATED ", \"z_loss_weight\": 0, \"vocab_size\": 70000}");
    assert_true(c.model->unit_head);
    assert_true(c.model->alibi == NULL);
    ctw_config_close(&c);
    parse_ok(&c, "{\"architectures\": [\"BaiChuanForCausalLM\"]" ROTATED "}");
    assert_true(!c.model->unit_head);
    assert_true(c.model->alibi == NULL);
    ctw_config_close(&c);

    parse_ok(&c, CHATGLM ", \"rope_ratio\": 500, \"padded_vocab_size\": 151552}");
    assert_true(c.rope[0].theta == 5e6);
    assert_true(c.model->rope[0].pairing == CTW_ROPE_INTERLEAVED);
    ctw_config_close(&c);

    /* The second block's queries; the first block's keys, which are behind its values. */
    parse_ok(&c, CODEGEN "}");
    const struct ctw_product *qkv = &c.model->layers[1].product[CTW_P_QKV];
    assert_true(qkv->n_shards == 12);
    assert_true(qkv->shard[1].row0 == 3 * 1024);
    assert_true(qkv->shard[4].row0 == 2 * 1024);
    assert_true(qkv->shard[8].row0 == 1024);
    ctw_config_close(&c);

    parse_ok(&c, MOLMO "}");
    const struct ctw_rows *gate =
        &c.model->layers[1].product[ctw_product_at(CTW_MLP, CTW_P_GATE_UP)].shard[0];
    assert_true(gate[0].row0 == 5504);
    assert_true(gate[1].row0 == 0);
    assert_true(ctw_name_is_apart(&c, "model.vision_backbone.image_vit.patch_embedding.weight"));
    ctw_config_close(&c);

    parse_ok(&c, MIMO "}");
    assert_true(ctw_name_is_apart(&c, "model.mtp_layers.0.input_proj.weight"));
    assert_false(ctw_name_is_apart(&c, "model.layers.0.mlp.up_proj.weight"));
    ctw_config_close(&c);
}

/* A layer may lack attention, or the MLP. */
static void layers_without_a_half(void **state)
{
    (void)state;
    struct ctw_config c;
    parse_ok(&c,
             NAS "[{" ATTENTION ", \"ffn\": {\"no_op\": true, \"ffn_mult\": null}}, "
                 "{\"attention\": {\"no_op\": true, \"replace_with_linear\": false}, " MLP "}]}");
    const struct ctw_layer *first = &c.model->layers[1], *second = &c.model->layers[2];
    assert_true(first->branch[CTW_MIXER].attention.n_head == 32);
    assert_true(first->branch[CTW_MIXER].attention.n_kv == 4);
    assert_true(first->branch[CTW_MLP].dense.inner == 0);
    assert_true(second->branch[CTW_MIXER].kind == CTW_KIND_none);
    assert_true(second->branch[CTW_MLP].dense.inner == 3584);
    assert_null(find(&c, "model.layers.0.post_attention_layernorm.weight"));
    assert_null(find(&c, "model.layers.1.input_layernorm.weight"));
    assert_null(find(&c, "model.layers.1.self_attn.q_proj"));
    ctw_config_close(&c);
}

static void refusals(void **state)
{
    (void)state;
    static const struct refusal rows[] = {
        {LFM2 ", \"tie_embedding\": false}", "tie_embedding: false is not supported"},
        {BIGCODE ", \"add_cross_attention\": true}", "add_cross_attention: attention to an enc"},
        {GPTJ ", \"rotary_dim\": null}", "rotary_dim: found null"},
        {GPTJ ", \"rotary_dim\": 63}", "RoPE rotates 63 elements of each head, expected an even"},
        {GPTJ ", \"rotary_dim\": 512}", "rotary_dim: expected a whole number from 2"},
        {CODEGEN ", \"n_head\": 14, \"n_embd\": 896}",
         "n_head: found 14, expected a multiple of 4"},
        {QWEN "}", "seq_length: expected, as use_dynamic_ntk or use_logn_attn refers to it"},
        {OLDER_QWEN ", \"apply_residual_connection_post_layernorm\": true}",
         "apply_residual_connection_post_layernorm: residuals of"},
        {CHATGLM ", \"rope_ratio\": 16}", "rope_ratio: found 16, which is a factor of theta in"},
        {CHATGLM ", \"rmsnorm\": false}", "rmsnorm: this value is not supported"},
        {CHATGLM ", \"add_bias_linear\": true}", "add_bias_linear: this value"},
        {CHATGLM ", \"quantization_bit\": 4}", "quantization_bit: quantised files are not"},
        {CHATGLM ", \"pre_seq_len\": 128}", "pre_seq_len: learned prefixes are not"},
        {CHATGLM ", \"multi_query_attention\": true, \"multi_query_group_num\": 3}",
         "multi_query_group_num: is not a divisor"},
        {NEO ", \"num_layers\": 2, \"attention_types\": [[[\"global\", \"wide\"], 1]]}",
         "attention_types: \"wide\" is not supported; supported: global, local"},
        {NEO ", \"attention_types\": [[[\"global\"], 2]]}",
         "attention_types: found 1 types 2 times, expected 24 layers"},
        {NEO ", \"attention_types\": [[]]}", "attention_types: expected [[[TYPE, ..], TIMES]]"},
        {INTERN ", \"qkv_bias\": true}", "qkv_bias: expected false, as the bias of the other"},
        {NAS "[]}", "block_configs: found 0 entries, expected 2"},
        {NAS "null}", "block_configs: expected an array"},
        {NAS "[1, 2]}", "block_configs[0]: expected an object, found"},
        {NAS "[{" ATTENTION "}, {}]}", "block_configs[0]: \"ffn\" is missing"},
        {NAS "[{\"attention\": {\"n_heads_in_group\": 3}, " MLP "}, {}]}",
         "block_configs[0].attention.n_heads_in_group: is not a divisor"},
        {NAS "[{\"attention\": {\"replace_with_linear\": true}, " MLP "}, {}]}",
         "attention.replace_with_linear: a linear layer in its place"},
        {NAS "[{\"attention\": {\"n_heads_in_group\": 8, \"window_length\": 512}, " MLP "}, {}]}",
         "attention.window_length: is not supported, expected null"},
        {NAS "[{" ATTENTION ", \"ffn\": {\"ffn_mult\": -1}}, {}]}", "ffn_mult: found -1, expected"},
        {NAS "[{" ATTENTION ", \"ffn\": {\"moe\": {}}}, {}]}", "ffn.moe: is not supported"},
        {MOLMO ", \"norm_after\": true}", "norm_after: norms after"},
        {MOLMO ", \"attention_layer_norm\": true}", "attention_layer_norm: norms of heads"},
        {MOLMO ", \"weight_tying\": true}", "weight_tying: a tied head"},
        {"{\"model_type\": \"molmo\", \"layer_norm_type\": \"default\"}",
         "layer_norm_type: expected \"rms\""},
        {BAICHUAN ROTATED ", \"hidden_size\": 5120}",
         "max_position_embeddings: models of hidden_size 4096 (7B) have this key and RoPE, those "
         "of "
         "5120 (13B) have neither, but ALiBi: with hidden_size 5120, it is not known"},
        {BAICHUAN ", \"hidden_size\": 4096}",
         "max_position_embeddings: models of hidden_size 4096"},
        {BAICHUAN ", \"vocab_size\": 70000}",
         "vocab_size: Baichuan 1 has 64000, Baichuan 2, whose head differs, 125696"},
        {MINICPM ", \"num_experts\": 8}", "num_experts: mixtures of experts"},
        {MINICPM ", \"sparse_config\": {\"kernel_size\": 32}}", "sparse_config: sparse attention"},
        {MINICPM ", \"hidden_size\": 128, \"rope_scaling\": {\"type\": \"longrope\", "
                 "\"short_factor\": [1, 1], \"long_factor\": [1, 1], "
                 "\"original_max_position_embeddings\": 1024}}",
         "rope_scaling: original_max_position_embeddings is 1024, but"},
    };
    expect_refusals(rows, CTW_COUNT(rows));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_have_their_defaults),
        cmocka_unit_test(tensors),
        cmocka_unit_test(factors),
        cmocka_unit_test(layers_of_small_families),
        cmocka_unit_test(families_like_others),
        cmocka_unit_test(layers_without_a_half),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
