/* config.json: defaults of each family, keys of both generations, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "worker/arch/arch.h"

static enum ctw_status parse(struct ctw_config *c, const char *text, struct ctw_err *err)
{
    return ctw_config_parse(c, text, strlen(text), "config.json", err);
}

static void parse_ok(struct ctw_config *c, const char *text)
{
    struct ctw_err err = {0};
    if (parse(c, text, &err) != CTW_OK)
        fail_msg("%s", err.msg);
}

#define LLAMA "{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\""
#define MISTRAL "{\"architectures\": [\"MistralForCausalLM\"], \"model_type\": \"mistral\""
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
        assert_int_equal(c.vocab, rows[i].vocab);
        assert_int_equal(c.hidden, rows[i].hidden);
        assert_int_equal(c.inner, rows[i].inner);
        assert_int_equal(c.n_decoders, rows[i].layers);
        assert_int_equal(c.n_head, rows[i].heads);
        assert_int_equal(c.n_kv, rows[i].kv);
        assert_int_equal(c.head, rows[i].head);
        assert_int_equal(c.max_length, rows[i].length);
        for (int64_t l = 0; l < c.n_decoders; l++)
            assert_int_equal(c.windows[l], rows[i].window);
        assert_true(c.norm_eps == 1e-6 && !c.tied && !c.attention_bias && !c.mlp_bias);
        assert_true(c.act == CTW_ACT_SILU && !c.has_dtype && c.rope.theta == 10000.0);
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
        {LLAMA ", \"num_hidden_layers\": 4, \"sliding_window\": null, \"layer_types\": "
               "[\"full_attention\", \"full_attention\", \"full_attention\", \"full_attention\"]}",
         {0, 0, 0, 0}},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_config c;
        parse_ok(&c, rows[i].text);
        assert_memory_equal(c.windows, rows[i].windows, sizeof(rows[i].windows));
        ctw_config_close(&c);
    }
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
    assert_true(c.tied && c.has_dtype && c.dtype == CTW_BF16 && c.head == 64);
    assert_true(c.rope.theta == 100000.0 && c.norm_eps == 1e-05);
    ctw_config_close(&c);
}

static void refusals(void **state)
{
    (void)state;
    static const struct {
        const char *text, *words;
    } rows[] = {
        {"{\"architectures\": [\"Gemma2ForCausalLM\"], \"model_type\": \"gemma2\"}",
         "architecture \"Gemma2ForCausalLM\" (model_type \"gemma2\") is not supported; supported: "
         "LlamaForCausalLM, MistralForCausalLM, Qwen2ForCausalLM, Qwen3ForCausalLM"},
        {"{\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"mistral\"}",
         "(model_type \"mistral\") is not supported"},
        {"{}", "architecture \"not said\""},
        {"[]", "expected an object"},
        {LLAMA ", \"num_local_experts\": 8}",
         "num_local_experts: found the number 8, but this key is not known for model_type "
         "\"llama\""},
        {LLAMA ", \"rope_interleaved\": true}", "rope_interleaved: found"},
        {LLAMA ", \"sliding_window\": 4096}", "sliding_window: found the number 4096"},
        {LLAMA ", \"logits_scaling\": 0}", "logits_scaling"},
        {MISTRAL ", \"mlp_bias\": true}", "mlp_bias"},
        {LLAMA ", \"hidden_size\": 0}", "hidden_size"},
        {LLAMA ", \"hidden_size\": 1e30}", "hidden_size"},
        {LLAMA ", \"hidden_size\": \"4096\"}", "hidden_size: expected"},
        {LLAMA ", \"hidden_size\": null}", "hidden_size: found null"},
        {LLAMA ", \"num_hidden_layers\": 5000}", "num_hidden_layers"},
        {LLAMA ", \"hidden_size\": 100, \"num_attention_heads\": 3}",
         "hidden_size 100 is not a multiple of num_attention_heads 3"},
        {LLAMA ", \"num_attention_heads\": 32, \"num_key_value_heads\": 5}",
         "num_attention_heads 32 is not a multiple of num_key_value_heads 5"},
        {LLAMA ", \"head_dim\": 33}", "head_dim: found 33, expected an even number, 2 to 256"},
        {LLAMA ", \"head_dim\": 258}", "head_dim: found 258, expected an even number, 2 to 256"},
        {QWEN3 ", \"head_dim\": 2048}", "head_dim: found 2048, expected an even"},
        {LLAMA ", \"num_attention_heads\": 8}",
         "head_dim (hidden_size / num_attention_heads): found 512, expected an even"},
        {LLAMA ", \"is_causal\": false}", "is_causal: found false, expected true"},
        {LLAMA ", \"is_causal\": null}", "is_causal: found null, expected true"},
        {QWEN3 ", \"is_causal\": 0}", "is_causal: found the number 0, expected true"},
        {QWEN3 ", \"head_dim\": null}", "head_dim: found null"},
        {LLAMA ", \"hidden_act\": \"relu\"}", "hidden_act: \"relu\" is not supported"},
        {LLAMA ", \"rms_norm_eps\": -1}", "rms_norm_eps: found -1"},
        {LLAMA ", \"torch_dtype\": \"float8_e4m3fn\"}", "torch_dtype: \"float8_e4m3fn\""},
        {LLAMA ", \"torch_dtype\": \"float16\", \"dtype\": \"bfloat16\"}",
         "torch_dtype: differs from dtype"},
        {QWEN2 ", \"num_hidden_layers\": 1, \"layer_types\": [\"linear_attention\"]}",
         "layer_types[0]: \"linear_attention\" is not supported"},
        {QWEN2 ", \"num_hidden_layers\": 1, \"layer_types\": [\"sliding_attention\"]}",
         "layer_types[0]: found \"sliding_attention\", but"},
        {MISTRAL ", \"num_hidden_layers\": 1, \"layer_types\": [\"full_attention\"]}",
         "layer_types[0]: found \"full_attention\", but"},
        {QWEN2 ", \"num_hidden_layers\": 2, \"layer_types\": [\"full_attention\"]}",
         "layer_types: found 1 entries, expected num_hidden_layers = 2"},
        {LLAMA ", \"quantization_config\": {\"quant_method\": \"awq\"}}", "\"awq\""},
        {LLAMA ", \"tie_word_embeddings\": \"yes\"}", "tie_word_embeddings: expected"},
        {"{\"architectures\": [\"LlamaForCausalLM\", \"X\"]}", "found 2 entries"},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_config c;
        struct ctw_err err = {0};
        assert_int_not_equal(parse(&c, rows[i].text, &err), CTW_OK);
        if (strstr(err.msg, rows[i].words) == NULL || strncmp(err.msg, "config.json: ", 13) != 0)
            fail_msg("%s: \"%s\" does not say \"%s\"", rows[i].text, err.msg, rows[i].words);
        ctw_config_close(&c);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_have_their_defaults),
        cmocka_unit_test(windows_by_layer),
        cmocka_unit_test(a_file_of_transformers_4),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
