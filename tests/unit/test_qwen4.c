/* Qwen 4: tensors of streams, of the choice of keys and of n-grams, tables of n-grams, refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "config_text.h"

#define QWEN "{\"architectures\": [\"Qwen4ExpForCausalLM\"], \"model_type\": \"qwen4_exp_text\""
#define INDEXER(dim, budget)                                                                       \
    ", \"indexer_n_heads\": 4, \"indexer_kv_heads\": 1, \"indexer_compress_ratio\": 16, "          \
    "\"indexer_head_dim\": " #dim ", \"indexer_budget\": " #budget
#define NGRAMS                                                                                     \
    ", \"num_hidden_layers\": 5, \"vocab_size\": 288, \"ngram_vocab_size_base\": 61, "             \
    "\"heads_per_ngram\": 2, \"make_ngram_vocab_size_divisible_by\": 16, \"ple_embed_dim\": 32, "  \
    "\"split_ngram_parts\": 4, \"eos_token_id\": [7, 9]"

static void tensors(void **state)
{
    (void)state;
    static const struct tensor_row rows[] = {
        {QWEN INDEXER(64, 128) "}", "model.layers.0.attn_hyper_connection.input_mix_weight_down",
         320, 8192},
        {QWEN INDEXER(64, 128) ", \"hc_count\": 3}",
         "model.layers.3.mlp_hyper_connection.block_inject_weight", 3, 6144},
        {QWEN INDEXER(64, 128) "}", "model.layers.3.mlp_hyper_connection.hc_norm.weight", 8192, 0},
        {QWEN INDEXER(64, 128) "}", "model.hyper_connection_mixer.input_mix_weight_up", 8192, 320},
        {QWEN INDEXER(64, 128) "}", "model.hyper_connection_mixer.block_inject_weight", 0, 0},
        {QWEN INDEXER(64, 128) "}", "model.norm.weight", 0, 0},
        {QWEN INDEXER(64, 128) "}", "model.layers.0.input_layernorm.weight", 0, 0},
        {QWEN INDEXER(64, 128) "}", "model.layers.3.self_attn.indexer.index_qk_proj", 320, 2048},
        {QWEN INDEXER(64, 128) "}", "model.layers.3.self_attn.indexer.k_layernorm.weight", 64, 0},
        {QWEN INDEXER(64, 128) "}", "model.layers.3.self_attn.q_proj", 8192, 2048},
        {QWEN INDEXER(64, 128) ", \"ple_layer_ids\": [1], \"eos_token_id\": 5}",
         "model.layers.0.ple.key_proj", 8192, 2048},
        {QWEN INDEXER(64, 128) NGRAMS ", \"ple_layer_ids\": [3, 2]}",
         "model.layers.2.ple.value_proj", 2048, 32},
        {QWEN INDEXER(64, 128) NGRAMS ", \"ple_layer_ids\": [3, 2]}",
         "model.layers.1.ple.conv1d.weight", 8192, 4},
        {QWEN INDEXER(64, 128) NGRAMS ", \"ple_layer_ids\": [3, 2]}", "model.layers.0.ple.key_proj",
         0, 0},
    };
    expect_tensors(rows, CTW_COUNT(rows));
}

/* Numbers of a checkpoint that transformers made. */
static void tables_of_n_grams(void **state)
{
    (void)state;
    static const uint64_t multipliers[][3] = {
        {UINT64_C(291959220988793), UINT64_C(27448217319671349), UINT64_C(23288516139689575)},
        {UINT64_C(13234545997647741), UINT64_C(26638966734424739), UINT64_C(17092436359747961)}};
    static const int64_t sizes[][4] = {{61, 67, 71, 73}, {79, 83, 89, 97}};
    static const int64_t first[][4] = {{0, 61, 128, 199}, {0, 79, 162, 251}};
    struct ctw_config c;
    parse_ok(&c, QWEN INDEXER(64, 128) NGRAMS
             ", \"ple_layer_ids\": [4, 2, 2], \"layer_types\": [\"linear_attention\", "
             "\"linear_attention\", \"indexed_attention\", \"linear_attention\", "
             "\"indexed_attention\"]}");
    for (int i = 0; i < 2; i++) {
        const struct ctw_layer *l = &c.model->layers[2 + 2 * i];
        const struct ctw_ngram *g = &l->branch[CTW_NGRAM].ngram;
        assert_int_equal(ctw_branch_at(l, 0), CTW_NGRAM);
        assert_int_equal(ctw_branch_at(l, 1), CTW_MIXER);
        assert_int_equal(ctw_branch_at(l, 2), CTW_MLP);
        assert_memory_equal(g->multiplier, multipliers[i], sizeof(multipliers[i]));
        assert_memory_equal(g->size, sizes[i], sizeof(sizes[i]));
        assert_memory_equal(g->first, first[i], sizeof(first[i]));
        assert_int_equal(g->n_rows, i == 0 ? 272 : 352);
        assert_int_equal(g->dim, 8);
        assert_int_equal(g->taps, 4);
    }
    assert_int_equal(c.model->layers[1].n_branches, 2);
    assert_int_equal(ctw_branch_at(&c.model->layers[1], 0), CTW_MIXER);
    assert_int_equal(c.model->ngram_before, 2);
    assert_int_equal(c.model->ngram_end, 7);
    const struct ctw_attention *a = &c.model->layers[3].branch[CTW_MIXER].attention;
    assert_int_equal(a->pools.chosen, 128);
    assert_int_equal(a->pools.pool, 16);
    assert_int_equal(a->pools.n_head, 4);
    assert_int_equal(a->pools.head, 64);
    assert_true(c.model->layers[3].norm[CTW_AT_BLOCK_K].offset == 1);
    assert_true(c.model->layers[3].norm[CTW_AT_IN].offset == 1);
    ctw_config_close(&c);
}

static void refusals(void **state)
{
    (void)state;
    static const struct refusal rows[] = {
        {QWEN "}", "indexer_n_heads: layers of attention need an indexer"},
        {QWEN INDEXER(64, 100) "}",
         "indexer_budget: found 100, expected a multiple of indexer_compress_ratio (16)"},
        {QWEN INDEXER(32, 128) "}",
         "indexer_head_dim: found 32, expected at least the 64 elements that RoPE rotates"},
        {QWEN INDEXER(64, 128) ", \"hc_count\": 1}", "hc_count: expected a whole number from 2"},
        {QWEN INDEXER(64, 128) ", \"output_gate_type\": \"tanh\"}",
         "output_gate_type: \"tanh\" is not supported"},
        {QWEN INDEXER(64, 128) ", \"ple_layer_ids\": [1]}",
         "eos_token_id: n-grams need the token that ends them"},
        {QWEN INDEXER(64, 128) ", \"ple_layer_ids\": [4], \"eos_token_id\": 5}",
         "ple_layer_ids: layer 4 is no layer of linear_attention"},
        {QWEN INDEXER(64, 128) ", \"ple_layer_ids\": [0], \"eos_token_id\": 5}",
         "ple_layer_ids: found 0, expected 1 to 40"},
        {QWEN INDEXER(64, 128) ", \"ple_layer_ids\": [41], \"eos_token_id\": 5}",
         "ple_layer_ids: found 41, expected 1 to 40"},
        {QWEN INDEXER(64, 128) ", \"heads_per_ngram\": 17}",
         "heads_per_ngram: 34 heads of n-grams; supported: up to 32"},
        {QWEN INDEXER(64, 128) ", \"ple_embed_dim\": 100}",
         "ple_embed_dim: found 100, expected a multiple of the 16 heads of n-grams"},
    };
    expect_refusals(rows, CTW_COUNT(rows));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensors),
        cmocka_unit_test(tables_of_n_grams),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
