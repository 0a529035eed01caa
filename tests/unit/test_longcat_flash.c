/* LongCat Flash: the halves of its layers, its mixture, its scales, and what it refuses. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "config_text.h"

#define LONGCAT                                                                                    \
    "{\"architectures\": [\"LongcatFlashForCausalLM\"], \"model_type\": \"longcat_flash\""
#define TWO LONGCAT ", \"num_layers\": 2"

static void tensors(void **state)
{
    (void)state;
    static const struct tensor_row rows[] = {
        {LONGCAT "}", "model.layers.0.self_attn.0.q_a_proj", 1536, 6144},
        {LONGCAT "}", "model.layers.27.self_attn.1.q_b_proj", 12288, 1536},
        {LONGCAT "}", "model.layers.28.self_attn.0.q_b_proj", 0, 0},
        {LONGCAT "}", "model.layers.27.self_attn.1.kv_a_layernorm.weight", 512, 0},
        {LONGCAT "}", "model.layers.27.input_layernorm.1.weight", 6144, 0},
        {LONGCAT "}", "model.layers.27.post_attention_layernorm.0.weight", 6144, 0},
        {LONGCAT "}", "model.layers.27.mlps.1.down_proj", 6144, 12288},
        {LONGCAT "}", "model.layers.27.mlp.experts.511.up_proj", 2048, 6144},
        {LONGCAT "}", "model.layers.27.mlp.experts.512.up_proj", 0, 0},
        {LONGCAT "}", "model.layers.27.mlp.router.classifier", 768, 6144},
        {LONGCAT "}", "model.layers.27.mlp.router.e_score_correction_bias", 768, 0},
        {LONGCAT ", \"zero_expert_num\": 0}", "model.layers.0.mlp.router.classifier", 512, 6144},
        {TWO "}", "model.layers.2.self_attn.0.q_a_proj", 0, 0},
        {TWO ", \"num_hidden_layers\": 4}", "model.layers.1.self_attn.1.o_proj", 6144, 8192},
        {LONGCAT ", \"num_hidden_layers\": 4}", "model.layers.2.mlps.0.up_proj", 0, 0},
        {TWO ", \"intermediate_size\": 64, \"moe_intermediate_size\": 32}",
         "model.layers.1.mlps.0.up_proj", 64, 6144},
        {TWO ", \"attention_bias\": true}", "model.layers.1.self_attn.1.o_proj.bias", 6144, 0},
    };
    expect_tensors(rows, CTW_COUNT(rows));
}

/* The mixture is beside the first half's MLP, and waits for the end of the second half. */
static void layers(void **state)
{
    (void)state;
    struct ctw_config c;
    parse_ok(&c, TWO ", \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4.0, "
                     "\"mscale_all_dim\": 1.0, \"original_max_position_embeddings\": 64}}");
    const struct ctw_model *m = c.model;
    assert_int_equal(m->n_decoders, 4);
    const double mscale = 0.1 * log(4) + 1;
    for (int i = 0; i < 4; i++) {
        const struct ctw_layer *l = &m->layers[i + 1];
        const struct ctw_latent *a = &l->branch[CTW_MIXER].latent;
        assert_int_equal(l->n_branches, i % 2 == 0 ? 3 : 2);
        assert_int_equal(l->branch[CTW_MLP].kind, CTW_KIND_dense);
        assert_int_equal(l->residual.kind, CTW_RESIDUAL_shortcut);
        assert_true(fabs(a->kv_factor - sqrt(12)) < 1e-6);
        assert_true(fabs(a->scale / (mscale * mscale * 2 / sqrt(192)) - 1) < 1e-6);
        for (int b = 0; b < 3; b++) {
            assert_int_equal(l->residual.shortcut.waits[b], i % 2 == 0 && b == 2);
            assert_int_equal(l->residual.shortcut.ends[b], i % 2 == 1 && b == CTW_MLP);
        }
        if (i % 2 != 0)
            continue;
        const struct ctw_mixture *x = &l->branch[2].mixture;
        assert_int_equal(l->branch[2].kind, CTW_KIND_mixture);
        assert_true(l->branch[2].beside);
        assert_int_equal(l->n_experts, 512);
        assert_int_equal(x->route.n_experts, 768);
        assert_int_equal(x->route.n_identity, 256);
        assert_int_equal(x->route.chosen, 12);
        assert_int_equal(x->route.score, CTW_SCORE_SOFTMAX);
        assert_false(x->route.normalised);
        assert_true(x->route.scale == 6);
    }
    ctw_config_close(&c);
}

static void refusals(void **state)
{
    (void)state;
    static const struct refusal rows[] = {
        {TWO ", \"num_hidden_layers\": 2}", "num_hidden_layers: found 2, expected twice"},
        {LONGCAT ", \"num_hidden_layers\": 3}", "num_hidden_layers: found 3, expected twice"},
        {LONGCAT ", \"num_layers\": 4000}", "num_layers: more than 2048 are not"},
        {LONGCAT ", \"zero_expert_num\": null}", "zero_expert_num: found null"},
        {LONGCAT ", \"mla_scale_q_lora\": false}", "mla_scale_q_lora: only true"},
        {LONGCAT ", \"mla_scale_kv_lora\": false}", "mla_scale_kv_lora: only true"},
        {LONGCAT ", \"router_bias\": true}", "router_bias: only false"},
        {LONGCAT ", \"norm_topk_prob\": true}", "norm_topk_prob: only false"},
        {LONGCAT ", \"zero_expert_type\": \"drop\"}", "zero_expert_type: only \"identity\""},
        {LONGCAT ", \"attention_method\": \"LSA\"}", "attention_method: only \"MLA\""},
        {LONGCAT ", \"ngram_vocab_size_ratio\": 78}", "n-gram embeddings are not supported"},
        {LONGCAT ", \"oe_vocab_size_ratio\": 78}", "n-gram embeddings are not supported"},
        {LONGCAT ", \"q_lora_rank\": null}", "q_lora_rank: null is not supported"},
        {LONGCAT ", \"head_dim\": 128}", "head_dim: expected qk_rope_head_dim (64)"},
        {LONGCAT ", \"qk_head_dim\": 128}", "qk_head_dim: expected"},
        {LONGCAT ", \"num_key_value_heads\": 8}", "num_key_value_heads: found 8"},
        {LONGCAT ", \"moe_topk\": 24, \"n_routed_experts\": 8, \"zero_expert_num\": 4}",
         "the experts that a token chooses: found 24"},
        {"{\"architectures\": [\"LongcatFlashNgramForCausalLM\"], \"model_type\": "
         "\"longcat_flash_ngram\"}",
         "model_type \"longcat_flash_ngram\""},
    };
    expect_refusals(rows, CTW_COUNT(rows));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors),
        cmocka_unit_test(layers),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
