/* Vectors of several tensors, and heads with another name than lm_head. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/mem.h"
#include "small_checkpoint.h"
#include "worker/weights/provider.h"

#define STABLELM "\"architectures\": [\"StableLmForCausalLM\"], \"model_type\": \"stablelm\""
#define NEOX "\"architectures\": [\"GPTNeoXForCausalLM\"], \"model_type\": \"gpt_neox\""
#define Q LAYER "self_attn.q_layernorm.norms."
#define K LAYER "self_attn.k_layernorm.norms."

enum { HEAD_BYTES = 16 }; /* 8 elements in bf16 */

/* 4 query heads' weights, of which the file has the last first. */
static const char *const q_weights[] = {"query head 0....", "query head 1....", "query head 2....",
                                        "query head 3...."};

static int set_up_heads(void **state)
{
    if (set_up(state) != 0)
        return -1;
    struct checkpoint *c = *state;
    static const char *const q[] = {Q "0.weight", Q "1.weight", Q "2.weight", Q "3.weight"};
    c->family = STABLELM;
    c->config = BF16_CONFIG ", \"qk_layernorm\": true";
    add(c, LAYER "input_layernorm.bias", "BF16", "32", 64, NULL);
    add(c, LAYER "post_attention_layernorm.bias", "BF16", "32", 64, NULL);
    add(c, "model.norm.bias", "BF16", "32", 64, NULL);
    for (int h = 3; h >= 0; h--)
        add(c, q[h], "BF16", "8", HEAD_BYTES, q_weights[h]);
    add(c, K "0.weight", "BF16", "8", HEAD_BYTES, "key head 0......");
    add(c, K "1.weight", "BF16", "8", HEAD_BYTES, "key head 1......");
    return 0;
}

/* Either provider has the tensors of a vector side by side, in the order of the heads. */
static void the_heads_are_side_by_side(void **state)
{
    struct ctw_model *m = open_ok(*state);
    struct ctw_provider *provider[2];
    struct ctw_backend *be;
    struct ctw_err err;
    const int q = CTW_V_WEIGHT + CTW_AT_Q, k = CTW_V_WEIGHT + CTW_AT_K;
    assert_true(ctw_vector_bytes(&m->layers[1], q) == 4 * (size_t)HEAD_BYTES);
    assert_true(ctw_vector_bytes(&m->layers[1], k) == 2 * (size_t)HEAD_BYTES);
    assert_int_equal(ctw_vector_bytes(&m->layers[2], CTW_V_WEIGHT + CTW_AT_HEAD), 64);
    assert_int_equal(ctw_backend_open(&be, "cpu", NULL, &err), CTW_OK);
    assert_int_equal(ctw_provider_open_mapped(&provider[0], m, &err), CTW_OK);
    assert_int_equal(ctw_provider_open_resident(&provider[1], m, be, &err), CTW_OK);
    for (int i = 0; i < 2; i++) {
        const struct ctw_layer_data *data;
        assert_int_equal(ctw_provider_acquire(provider[i], 1, &data, &err), CTW_OK);
        for (size_t h = 0; h < CTW_COUNT(q_weights); h++)
            assert_memory_equal((const char *)data->vector[q] + h * HEAD_BYTES, q_weights[h],
                                HEAD_BYTES);
        assert_memory_equal(data->vector[k], "key head 0......key head 1......", 32);
        ctw_provider_release(provider[i], 1);
        ctw_provider_close(provider[i]);
    }
    ctw_backend_close(be);
    ctw_model_close(m);
}

static void heads_that_do_not_fit_are_refused(void **state)
{
    struct checkpoint *c = *state;
    c->config = BF16_CONFIG;
    expect_refusal(c, "and 5 more tensors have no use in a stablelm model");
    c->config = BF16_CONFIG ", \"qk_layernorm\": true";
    find(c, Q "2.weight")->dtype = "F16";
    expect_refusal(c, Q "2.weight: found F16, but " Q "0.weight is BF16");
    find(c, Q "2.weight")->dtype = "BF16";
    find(c, Q "2.weight")->shape = "4, 2";
    expect_refusal(c, "found BF16 [4, 2], expected BF16, F16 or F32 [8]");
    drop(c, Q "2.weight");
    expect_refusal(c, "has no tensor " Q "2.weight");
}

static void out_of_memory_is_an_error(void **state)
{
    struct checkpoint *c = *state;
    struct ctw_model *m = NULL;
    struct ctw_provider *mapped;
    struct ctw_err err;
    write_it(c);
    int64_t n = 0;
    for (enum ctw_status st = CTW_ENOMEM; st != CTW_OK; n++) {
        ctw_mem_fail_at(n + 1);
        st = ctw_model_open(&m, c->dir, NULL, &err);
        if (st == CTW_OK) {
            st = ctw_provider_open_mapped(&mapped, m, &err);
            if (st == CTW_OK)
                ctw_provider_close(mapped);
            ctw_model_close(m);
        }
        ctw_mem_fail_at(0);
        if (st != CTW_OK && st != CTW_ENOMEM)
            fail_msg("allocation %d: %s", (int)n + 1, err.msg);
    }
    assert_true(n > 60);
}

static void add_neox(struct checkpoint *c, const char *head)
{
#define NEOX_LAYER "gpt_neox.layers.0."
    static const struct tensor tensors[] = {
        {"gpt_neox.embed_in.weight", "BF16", "16, 32", 1024, NULL},
        {"gpt_neox.final_layer_norm.weight", "BF16", "32", 64, NULL},
        {"gpt_neox.final_layer_norm.bias", "BF16", "32", 64, NULL},
        {NEOX_LAYER "input_layernorm.weight", "BF16", "32", 64, NULL},
        {NEOX_LAYER "input_layernorm.bias", "BF16", "32", 64, NULL},
        {NEOX_LAYER "post_attention_layernorm.weight", "BF16", "32", 64, NULL},
        {NEOX_LAYER "post_attention_layernorm.bias", "BF16", "32", 64, NULL},
        {NEOX_LAYER "attention.query_key_value.weight", "BF16", "96, 32", 6144, NULL},
        {NEOX_LAYER "attention.dense.weight", "BF16", "32, 32", 2048, NULL},
        {NEOX_LAYER "attention.masked_bias", "F32", "", 4, NULL},
        {NEOX_LAYER "attention.bias", "U8", "1, 1, 8, 8", 64, NULL},
        {NEOX_LAYER "mlp.dense_h_to_4h.weight", "BF16", "64, 32", 4096, NULL},
        {NEOX_LAYER "mlp.dense_h_to_4h.bias", "BF16", "64", 128, NULL},
        {NEOX_LAYER "mlp.dense_4h_to_h.weight", "BF16", "32, 64", 4096, NULL},
        {NEOX_LAYER "mlp.dense_4h_to_h.bias", "BF16", "32", 64, NULL},
    };
    c->family = NEOX;
    memcpy(c->tensors, tensors, sizeof(tensors));
    c->n = (int)CTW_COUNT(tensors);
    add(c, head, "BF16", "16, 32", 1024, NULL);
}

/* The embedding alone does not say which spelling a file has. */
static void the_heads_name(void **state)
{
    struct checkpoint *c = *state;
    static const char *const heads[] = {"embed_out.weight", "lm_head.weight"};
    static char zeros[6144];
    c->config = BF16_CONFIG ", \"attention_bias\": false";
    for (size_t i = 0; i < CTW_COUNT(heads); i++) {
        add_neox(c, heads[i]);
        find(c, "gpt_neox.layers.0.attention.query_key_value.weight")->data = zeros;
        struct ctw_model *m = open_ok(c);
        const char *name = m->layers[2].matrix[CTW_M_HEAD].name;
        assert_int_equal(strncmp(name, heads[i], strlen(name)), 0);
        assert_false(m->tied);
        ctw_model_close(m);
    }
    drop(c, "lm_head.weight");
    expect_refusal(c, "has no tensor embed_out.weight");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_heads_are_side_by_side, set_up_heads, tear_down),
        cmocka_unit_test_setup_teardown(heads_that_do_not_fit_are_refused, set_up_heads, tear_down),
        cmocka_unit_test_setup_teardown(out_of_memory_is_an_error, set_up_heads, tear_down),
        cmocka_unit_test_setup_teardown(the_heads_name, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
