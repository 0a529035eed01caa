/* config.json: defaults of each family, keys of both generations, and what is refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/mem.h"
#include "config_parse.h"

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

static int64_t n_biases(const struct ctw_config *c)
{
    int64_t n = 0;
    for (int64_t i = 0; i < c->n_wants; i++)
        n += ends_with(c->wants[i].name, ".bias");
    return n;
}

static bool wants(const struct ctw_config *c, const char *end)
{
    for (int64_t i = 0; i < c->n_wants; i++)
        if (ends_with(c->wants[i].name, end))
            return true;
    return false;
}

#define LLAMA "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\""
#define MISTRAL "{\"architectures\": [\"MistralForCausalLM\"], \"model_type\": \"mistral\""
#define PHI3 "{\"architectures\": [\"Phi3ForCausalLM\"], \"model_type\": \"phi3\""
#define QWEN2 "{\"architectures\": [\"Qwen2ForCausalLM\"], \"model_type\": \"qwen2\""
#define QWEN3 "{\"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": \"qwen3\""

/* What transformers' configuration classes have when a file says nothing. */
static void families_have_their_defaults(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t vocab, hidden, inner, layers, heads, kv, head, length, window;
    } rows[] = {
        {LLAMA "}", 32000, 4096, 11008, 32, 32, 32, 128, 2048, 0},
        {MISTRAL "}", 32000, 4096, 14336, 32, 32, 8, 128, 131072, 4096},
        {QWEN2 "}", 151936, 4096, 22016, 32, 32, 32, 128, 32768, 0},
        {PHI3 "}", 32064, 3072, 8192, 32, 32, 32, 96, 4096, 0},
        {PHI3 ", \"num_key_value_heads\": 8, \"sliding_window\": 2047}", 32064, 3072, 8192, 32, 32,
         8, 96, 4096, 2047},
        {QWEN3 ", \"hidden_size\": 2048, \"num_attention_heads\": 8, \"num_key_value_heads\": "
               "null}",
         151936, 2048, 22016, 32, 8, 8, 128, 32768, 0},
        {LLAMA ", \"num_attention_heads\": 64, \"num_key_value_heads\": 8, \"head_dim\": null}",
         32000, 4096, 11008, 32, 64, 8, 64, 2048, 0},
        {"{\"model_type\": \"mistral\", \"sliding_window\": null, \"num_key_value_heads\": null}",
         32000, 4096, 14336, 32, 32, 32, 128, 131072, 0},
        {"{\"architectures\": [\"Qwen2ForCausalLM\"], \"head_dim\": 64}", 151936, 4096, 22016, 32,
         32, 32, 64, 32768, 0},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_config c;
        parse_ok(&c, rows[i].text);
        const struct ctw_model *m = c.model;
        assert_int_equal(m->vocab, rows[i].vocab);
        assert_int_equal(m->hidden, rows[i].hidden);
        assert_int_equal(m->n_decoders, rows[i].layers);
        assert_int_equal(m->max_length, rows[i].length);
        for (int l = 1; l <= m->n_decoders; l++) {
            assert_int_equal(m->layers[l].branch[CTW_MLP].dense.inner, rows[i].inner);
            assert_int_equal(m->layers[l].branch[CTW_MIXER].attention.n_head, rows[i].heads);
            assert_int_equal(m->layers[l].branch[CTW_MIXER].attention.n_kv, rows[i].kv);
            assert_int_equal(m->layers[l].branch[CTW_MIXER].attention.head, rows[i].head);
            assert_int_equal(m->layers[l].branch[CTW_MIXER].attention.window, rows[i].window);
        }
        assert_int_equal(n_biases(&c),
                         strcmp(c.family->model_type, "qwen2") == 0 ? 3 * m->n_decoders : 0);
        bool phi3 = strcmp(c.family->model_type, "phi3") == 0;
        const struct ctw_layer *first = &m->layers[1], *last = &m->layers[m->n_layers - 1];
        float eps = phi3 ? 1e-5f : 1e-6f;
        assert_true(first->norm[CTW_AT_MIXER].eps == eps);
        assert_true(last->norm[CTW_AT_HEAD].eps == eps);
        assert_true(first->branch[CTW_MLP].dense.act == CTW_ACT_SILU);
        assert_true(!m->tied);
        assert_true(!c.has_dtype);
        assert_true(c.rope[0].theta == 10000.0);
        ctw_config_close(&c);
    }
}

static void windows_by_layer(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t windows[4];
    } rows[] = {
        {QWEN2 ", \"num_hidden_layers\": 4, \"use_sliding_window\": true, \"sliding_window\": 64, "
               "\"max_window_layers\": 2}",
         {0, 0, 64, 64}},
        {QWEN2 ", \"num_hidden_layers\": 4, \"use_sliding_window\": false, \"sliding_window\": 64, "
               "\"max_window_layers\": 2}",
         {0, 0, 0, 0}},
        {QWEN3
         ", \"num_hidden_layers\": 4, \"use_sliding_window\": true, \"sliding_window\": null, "
         "\"max_window_layers\": 2}",
         {0, 0, 0, 0}},
        {QWEN3 ", \"num_hidden_layers\": 4, \"use_sliding_window\": true, \"sliding_window\": 8, "
               "\"max_window_layers\": 2, \"layer_types\": [\"sliding_attention\", "
               "\"full_attention\", \"full_attention\", \"sliding_attention\"]}",
         {8, 0, 0, 8}},
        {MISTRAL ", \"num_hidden_layers\": 4, \"sliding_window\": 48}", {48, 48, 48, 48}},
        {MISTRAL ", \"num_hidden_layers\": 4, \"sliding_window\": 48, \"layer_types\": null}",
         {48, 48, 48, 48}},
        {MISTRAL ", \"num_hidden_layers\": 4, \"sliding_window\": 48, \"layer_types\": "
                 "[\"full_attention\", \"sliding_attention\", \"full_attention\", "
                 "\"sliding_attention\"]}",
         {0, 48, 0, 48}},
        {LLAMA ", \"num_hidden_layers\": 4, \"sliding_window\": null, \"layer_types\": "
               "[\"full_attention\", \"full_attention\", \"full_attention\", \"full_attention\"]}",
         {0, 0, 0, 0}},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_config c;
        parse_ok(&c, rows[i].text);
        for (int l = 0; l < 4; l++)
            assert_int_equal(c.model->layers[l + 1].branch[CTW_MIXER].attention.window,
                             rows[i].windows[l]);
        ctw_config_close(&c);
    }
}

/* Phi rotates the first part of each head; classes of other families ignore the key. */
static void a_part_of_each_head_is_rotated(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int rot_dim;
    } rows[] = {
        {PHI3 "}", 96},
        {PHI3 ", \"partial_rotary_factor\": 0.75}", 72},
        {PHI3 ", \"rope_scaling\": null, \"partial_rotary_factor\": 0.5}", 48},
        {PHI3
         ", \"rope_parameters\": {\"rope_type\": \"default\", \"partial_rotary_factor\": 0.75}}",
         72},
        {LLAMA ", \"partial_rotary_factor\": 0.75}", 128},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_config c;
        parse_ok(&c, rows[i].text);
        const struct ctw_rope *r = &c.model->rope[0];
        double last = pow(10000.0, -(rows[i].rot_dim - 2.0) / rows[i].rot_dim);
        assert_int_equal(r->rot_dim, rows[i].rot_dim);
        assert_true(r->inv_freq[0] == 1);
        assert_true(fabs(r->inv_freq[r->rot_dim / 2 - 1] / last - 1) < 1e-6);
        assert_true((c.unread.text != NULL) == (c.model->rope[0].rot_dim == 128));
        ctw_config_close(&c);
    }
}

/* The model's tables for short and long sequences, and any failure to allocate them. */
static void longrope_has_two_tables(void **state)
{
    (void)state;
    static const char text[] = PHI3
        ", \"hidden_size\": 16, \"num_attention_heads\": 4, \"max_position_embeddings\": 4096, "
        "\"original_max_position_embeddings\": 256, \"rope_scaling\": {\"type\": \"longrope\", "
        "\"short_factor\": [1, 2], \"long_factor\": [4, 8]}}";
    struct ctw_config c;
    struct ctw_err err;
    enum ctw_status st = CTW_ENOMEM;
    for (int n = 1; st != CTW_OK; n++) {
        ctw_mem_fail_at(n);
        st = parse(&c, text, &err);
        ctw_mem_fail_at(0);
        assert_true(st == CTW_OK || st == CTW_ENOMEM);
        if (st != CTW_OK)
            ctw_config_close(&c);
    }
    const struct ctw_rope *r = &c.model->rope[0];
    assert_true(c.model->n_ropes == 1);
    assert_true(r->rot_dim == 4);
    assert_true(r->long_from == 256);
    assert_true(r->inv_freq[0] == 1);
    assert_true(r->long_inv_freq[0] == 0.25f);
    assert_true(fabs(r->inv_freq[1] - 0.005) < 1e-8);
    assert_true(fabs(r->long_inv_freq[1] - 0.00125) < 1e-8);
    assert_true(fabs(r->scale - sqrt(1.5)) < 1e-6); /* 1 + ln 16 / ln 256 */
    assert_null(c.unread.text);
    ctw_config_close(&c);
    parse_ok(&c, PHI3 ", \"hidden_size\": 16, \"num_attention_heads\": 4, "
                      "\"max_position_embeddings\": 8192, \"rope_scaling\": {\"type\": \"su\", "
                      "\"short_factor\": [1, 2], \"long_factor\": [4, 8]}}");
    assert_true(c.model->rope[0].long_from == 4096); /* the class's default */
    ctw_config_close(&c);
}

/* Equal RoPEs are one; a family's own numbers are beside them. */
static void ropes_of_a_family(void **state)
{
    (void)state;
    struct ctw_config c;
    const struct ctw_rope_rules same = {.head = 128, .theta = 10000.0, .layer_type = "a"};
    const struct ctw_rope_rules other = {.head = 64, .theta = 10000.0};
    const struct ctw_rope_rules interleaved = {
        .head = 64, .theta = 10000.0, .pairing = CTW_ROPE_INTERLEAVED};
    const struct ctw_rope_rules fifth = {.head = 32, .theta = 10000.0};
    parse_ok(&c, LLAMA ", \"beta\": 7, \"rope_scaling\": {\"beta\": 0.5, \"type\": \"default\"}}");
    assert_int_equal(ctw_describe_rope(&c, &same), 0);
    assert_int_equal(ctw_describe_rope(&c, &other), 1);
    assert_int_equal(ctw_describe_rope(&c, &interleaved), 2);
    assert_int_equal(ctw_describe_rope(&c, &same), 0);
    assert_int_equal(c.model->n_ropes, 3);
    assert_true(c.model->rope[2].pairing == CTW_ROPE_INTERLEAVED);
    assert_true(c.model->rope[2].rot_dim == 64);
    assert_true(ctw_key_rope_number(&c, "beta", 1) == 0.5);
    assert_true(ctw_key_rope_number(&c, "gamma", 1) == 1);
    assert_int_equal(c.status, CTW_OK);
    (void)ctw_describe_rope(&c, &fifth); /* more than CTW_MAX_ROPES */
    assert_int_equal(c.status, CTW_EUNSUP);
    ctw_config_close(&c);
}

/* A published file as transformers 4 wrote it. */
static void a_file_of_transformers_4(void **state)
{
    (void)state;
    struct ctw_config c;
    parse_ok(&c, "{\"architectures\": [\"LlamaForCausalLM\"], \"attention_bias\": false, "
                 "\"attention_dropout\": 0.0, \"bos_token_id\": 0, \"eos_token_id\": 0, "
                 "\"hidden_act\": \"silu\", \"hidden_size\": 576, \"initializer_range\": "
                 "0.041666666666666664, \"intermediate_size\": 1536, \"is_llama_config\": true, "
                 "\"max_position_embeddings\": 8192, \"mlp_bias\": false, \"model_type\": "
                 "\"llama\", \"num_attention_heads\": 9, \"num_hidden_layers\": 30, "
                 "\"num_key_value_heads\": 3, \"pretraining_tp\": 1, \"rms_norm_eps\": 1e-05, "
                 "\"rope_interleaved\": false, \"rope_scaling\": null, \"rope_theta\": 100000, "
                 "\"tie_word_embeddings\": true, \"torch_dtype\": \"bfloat16\", "
                 "\"transformers_version\": \"4.40.1\", \"use_cache\": true, \"vocab_size\": "
                 "49152, \"eos_token_id_\": null, \"is_causal\": true, \"transformers.js_config\": "
                 "{\"kv_cache\": 1}}");
    assert_true(c.model->tied);
    assert_true(c.has_dtype);
    assert_true(c.dtype == CTW_BF16);
    assert_int_equal(c.model->layers[1].branch[CTW_MIXER].attention.head, 64);
    assert_true(c.rope[0].theta == 100000.0);
    assert_true(c.model->layers[1].norm[CTW_AT_MLP].eps == 1e-05f);
    ctw_config_close(&c);
}

#define GPT_LEFTOVERS                                                                              \
    ", \"hidden_dropout_prob\": 0.0, \"internal_version\": 3, \"seq_length\": 2048, "              \
    "\"rotary_emb_base\": 10000, \"end_token_id\": 2"

/*
 * A key that the family's class in transformers (5.23) does not read changes nothing and is listed;
 * a key that the class reads is not listed.
 */
static void unread_keys_change_nothing(void **state)
{
    (void)state;
    static const struct {
        const char *text, *unread;
    } rows[] = {
        {LLAMA "}", NULL},
        {LLAMA
         ", \"head_dim\": null, \"attention_bias\": false, \"mlp_bias\": false, \"is_causal\": "
         "true, \"dtype\": null, \"torch_dtype\": null, \"rope_theta\": 1e4, \"rope_scaling\": "
         "null, \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 1e4}, "
         "\"per_layer_config\": {}, \"text_config\": null, \"quantization_config\": null}",
         NULL},
        {LLAMA GPT_LEFTOVERS
         ", \"sliding_window\": 4096, \"layer_types\": [\"no_such_attention\"], "
         "\"_model_name_or_path\": \"x\", \"classifier_dropout\": null, \"loss_reduction\": "
         "\"mean\", "
         "\"use_sliding_window\": true, \"max_window_layers\": 1, \"num_local_experts\": 8, "
         "\"rope_interleaved\": true, \"logits_scaling\": 0, \"partial_rotary_factor\": 0.5, "
         "\"original_max_position_embeddings\": 0}",
         "hidden_dropout_prob, internal_version, seq_length, rotary_emb_base, end_token_id, "
         "sliding_window, layer_types, _model_name_or_path, classifier_dropout, loss_reduction, "
         "use_sliding_window, max_window_layers, num_local_experts, rope_interleaved, "
         "logits_scaling, "
         "partial_rotary_factor, original_max_position_embeddings"},
        {"{\"architectures\": [\"LLaMAForCausalLM\"], \"model_type\": \"llama\"}", NULL},
        {MISTRAL ", \"sliding_window\": 4096, \"attention_bias\": true, \"mlp_bias\": true, "
                 "\"layer_types\": null, \"use_sliding_window\": false}",
         "attention_bias, mlp_bias, use_sliding_window"},
        {QWEN2
         ", \"sliding_window\": -1, \"use_sliding_window\": false, \"max_window_layers\": 21, "
         "\"layer_types\": null, \"head_dim\": 128, \"attention_bias\": false, "
         "\"dual_chunk_attention_config\": {\"chunk_size\": 262144}, \"mlp_bias\": true}",
         "attention_bias, dual_chunk_attention_config, mlp_bias"},
        {QWEN3 ", \"query_pre_attn_scalar\": 256, \"attention_bias\": false, \"mlp_bias\": true, "
               "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0, \"attn_factor\": 1, "
               "\"original_max_position_embeddings\": 8192, \"low_freq_factor\": 1}}",
         "query_pre_attn_scalar, mlp_bias, rope_scaling.attn_factor, rope_scaling.low_freq_factor"},
        {LLAMA ", \"original_max_position_embeddings\": 8192, \"partial_rotary_factor\": 1, "
               "\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0}, "
               "\"quantization_config\": {\"quant_method\": \"compressed-tensors\", \"format\": "
               "\"dense\", \"quantization_status\": \"compressed\", \"config_groups\": {}, "
               "\"ignore\": [], \"kv_cache_scheme\": null, \"sparsity_config\": {}, "
               "\"transform_config\": {}}}",
         NULL},
        {LLAMA ", \"rope_scaling\": {\"type\": \"default\", \"mrope_section\": [16, 24, 24], "
               "\"factor\": \"8\"}, \"quantization_config\": {\"quant_method\": "
               "\"compressed-tensors\", \"quantization_status\": \"compressed\", \"provider\": "
               "\"auto-round\", \"version\": \"0.19\"}}",
         "rope_scaling.mrope_section, rope_scaling.factor, quantization_config.provider, "
         "quantization_config.version"},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_config c;
        parse_ok(&c, rows[i].text);
        if (rows[i].unread == NULL && c.unread.text != NULL)
            fail_msg("%s: \"%s\"", rows[i].text, c.unread.text);
        if (rows[i].unread != NULL)
            assert_string_equal(c.unread.text, rows[i].unread);
        bool mistral = strcmp(c.family->model_type, "mistral") == 0;
        assert_true(!wants(&c, "mlp.gate_proj.bias"));
        assert_true(c.rope[0].theta == 10000.0);
        for (int l = 1; l <= c.model->n_decoders; l++)
            assert_int_equal(c.model->layers[l].branch[CTW_MIXER].attention.window,
                             mistral ? 4096 : 0);
        ctw_config_close(&c);
    }
}

/* A family's function that does so has a mistake, which no file would show. */
static void a_key_is_read_once(void **state)
{
    (void)state;
    struct ctw_config c;
    parse_ok(&c, LLAMA ", \"vocab_size\": 7}");
    assert_int_equal(ctw_key_int(&c, "vocab_size", 5, CTW_NULL_REFUSED, 1, 9), 5);
    assert_int_equal(c.status, CTW_EINTERNAL);
    assert_non_null(strstr(c.err.msg, "the family llama reads vocab_size twice"));
    /* The first error stays, and the calls after it do nothing. */
    ctw_key_fail(&c, "hidden_size", CTW_EFORMAT, "no such hidden_size");
    assert_int_equal(ctw_key_int(&c, "seq_length", 5, CTW_NULL_REFUSED, 1, 9), 5);
    assert_int_equal(c.status, CTW_EINTERNAL);
    ctw_config_close(&c);
}

/* Thousands of keys are not a list that anyone reads. */
static void the_list_of_unread_keys_is_bounded(void **state)
{
    (void)state;
    enum { N_KEYS = 2000 };
    static char text[N_KEYS * 12 + 256];
    struct ctw_config c;
    size_t at = (size_t)snprintf(text, sizeof(text), "%s", LLAMA);
    for (int i = 0; i < N_KEYS; i++)
        at += (size_t)snprintf(text + at, sizeof(text) - at, ", \"k%d\": 1", i);
    (void)snprintf(text + at, sizeof(text) - at, "}");
    parse_ok(&c, text);
    assert_true(strlen(c.unread.text) < 2048);
    assert_string_equal(c.unread.text + strlen(c.unread.text) - 9, "k255, ...");
    ctw_config_close(&c);
}

/* Keys of transformers' base class that ask for something that no family has here. */
static void keys_of_the_base_class(void **state)
{
    (void)state;
    static const struct refusal rows[] = {
        {LLAMA ", \"per_layer_config\": {\"0\": {\"head_dim\": 64}}}",
         "per_layer_config: found an object of 1 keys, which requests separate settings for "
         "some "
         "layers: not supported; expected null, or no such key"},
        {QWEN2 ", \"text_config\": {\"hidden_size\": 64}}", "requests a text model inside another"},
        {QWEN2 ", \"decoder\": {\"hidden_size\": 64}}", "requests a text model inside another"},
        {QWEN2 ", \"generator\": {\"hidden_size\": 64}}", "requests a text model inside another"},
        {LLAMA ", \"attribute_map\": {\"rms_norm_eps\": \"eps\"}}",
         "requests keys under other names"},
        {LLAMA ", \"configuration_files\": [\"config.5.0.0.json\"]}",
         "configuration_files: found an array of 1, which requests another configuration file"},
        {LLAMA ", \"transformers_weights\": \"other.safetensors\"}",
         "transformers_weights: found the string \"other.safetensors\", which requests a weights "
         "file"},
        {LLAMA ", \"is_causal\": false}", "is_causal: found false, which requests"},
        {LLAMA ", \"is_causal\": null}", "is_causal: found null, which requests"},
        {QWEN3 ", \"is_causal\": 0}", "is_causal: found the number 0, which requests"},
    };
    expect_refusals(rows, CTW_COUNT(rows));
}

static void refusals(void **state)
{
    (void)state;
    static const struct refusal rows[] = {
        {"{\"architectures\": [\"RwkvForCausalLM\"], \"model_type\": \"rwkv\"}",
         "model_type \"rwkv\" (architecture \"RwkvForCausalLM\") is not supported; "
         "supported: "},
        {"{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"mistral\"}",
         "model_type \"mistral\" (architecture \"LlamaForCausalLM\") is not supported; expected "
         "architecture \"MistralForCausalLM\""},
        {"{}", "model_type \"(none)\""},
        {"{\"architectures\": [\"LLaMAForCausalLM\"], \"model_type\": \"qwen2\"}",
         "model_type \"qwen2\" (architecture \"LLaMAForCausalLM\") is not supported"},
        {"[]", "expected an object"},
        {QWEN2 ", \"use_sliding_window\": true, \"sliding_window\": 0}",
         "sliding_window: found 0, expected at least 1"},
        {MISTRAL ", \"sliding_window\": 0}", "sliding_window: expected"},
        {QWEN3 ", \"attention_bias\": 1}", "attention_bias: expected"},
        {LLAMA ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}, "
               "\"partial_rotary_factor\": 0.5}",
         "partial_rotary_factor: found 0.5, expected 1"},
        {PHI3 ", \"partial_rotary_factor\": 0}", "partial_rotary_factor: found 0, expected more"},
        {PHI3
         ", \"rope_parameters\": {\"rope_type\": \"default\", \"partial_rotary_factor\": 1.5}}",
         "partial_rotary_factor: found 1.5, expected more than 0 and at most 1"},
        {PHI3 ", \"partial_rotary_factor\": 0.58}", "0.58 of 96 elements is not an even number"},
        {PHI3 ", \"rope_scaling\": {\"type\": \"longrope\", \"long_factor\": [1], "
              "\"short_factor\": [1]}}",
         "rope_scaling.short_factor: found 1 entries, expected 48"},
        {LLAMA ", \"hidden_size\": 0}", "hidden_size: expected a whole number from 1"},
        {LLAMA ", \"hidden_size\": 1e30}", "hidden_size: expected a whole number from 1"},
        {LLAMA ", \"hidden_size\": \"4096\"}", "hidden_size: expected"},
        {LLAMA ", \"hidden_size\": null}", "hidden_size: found null"},
        {LLAMA ", \"num_hidden_layers\": 5000}", "num_hidden_layers: expected a whole number"},
        {LLAMA ", \"hidden_size\": 100, \"num_attention_heads\": 3}",
         "hidden_size 100 is not a multiple of num_attention_heads 3"},
        {LLAMA ", \"num_attention_heads\": 32, \"num_key_value_heads\": 5}",
         "num_attention_heads 32 is not a multiple of num_key_value_heads 5"},
        {LLAMA ", \"head_dim\": 33}", "head_dim: found 33, expected an even number, 2 to 512"},
        {LLAMA ", \"head_dim\": 514}", "head_dim: found 514, expected an even number, 2 to 512"},
        {QWEN3 ", \"head_dim\": 2048}", "head_dim: found 2048, expected an even"},
        {LLAMA ", \"num_attention_heads\": 4}",
         "head_dim (hidden_size / num_attention_heads): found 1024, expected an even"},
        {QWEN3 ", \"head_dim\": null}", "head_dim: found null"},
        {LLAMA ", \"hidden_act\": \"tanh\"}", "hidden_act: \"tanh\" is not supported"},
        {LLAMA ", \"rms_norm_eps\": -1}", "rms_norm_eps: found -1"},
        {LLAMA ", \"torch_dtype\": \"float8_e4m3fn\"}", "torch_dtype: \"float8_e4m3fn\""},
        {LLAMA ", \"torch_dtype\": \"float16\", \"dtype\": \"bfloat16\"}",
         "torch_dtype: differs from dtype"},
        {QWEN2 ", \"num_hidden_layers\": 1, \"layer_types\": [\"linear_attention\"]}",
         "layer_types[0]: \"linear_attention\" is not supported"},
        {QWEN2 ", \"num_hidden_layers\": 1, \"layer_types\": [\"sliding_attention\"]}",
         "layer_types[0]: found \"sliding_attention\", but"},
        {MISTRAL ", \"num_hidden_layers\": 1, \"sliding_window\": null, \"layer_types\": "
                 "[\"sliding_attention\"]}",
         "layer_types[0]: found \"sliding_attention\", but"},
        {QWEN2 ", \"num_hidden_layers\": 2, \"layer_types\": [\"full_attention\"]}",
         "layer_types: found 1 entries, expected num_hidden_layers = 2"},
        {LLAMA ", \"quantization_config\": {\"quant_method\": \"aqlm\"}}", "format \"AQLM\""},
        {LLAMA ", \"tie_word_embeddings\": \"yes\"}", "tie_word_embeddings: expected"},
        {"{\"architectures\": [\"LlamaForCausalLM\", \"X\"]}", "found 2 entries"},
    };
    expect_refusals(rows, CTW_COUNT(rows));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_have_their_defaults),
        cmocka_unit_test(windows_by_layer),
        cmocka_unit_test(a_part_of_each_head_is_rotated),
        cmocka_unit_test(longrope_has_two_tables),
        cmocka_unit_test(ropes_of_a_family),
        cmocka_unit_test(a_file_of_transformers_4),
        cmocka_unit_test(unread_keys_change_nothing),
        cmocka_unit_test(a_key_is_read_once),
        cmocka_unit_test(the_list_of_unread_keys_is_bounded),
        cmocka_unit_test(keys_of_the_base_class),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
