/* Families whose layers are nearly Llama's: defaults, what their keys change, what is refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "config_text.h"

/* Number of tensors of decoder layer 0 whose names, after the layer's own, begin and end so. */
static int count(const struct ctw_config *c, const char *begin, const char *end)
{
    const char *layer = "model.layers.0.";
    int n = 0;
    for (int64_t i = 0; i < c->n_wants; i++) {
        const char *name = c->wants[i].name;
        if (strncmp(name, layer, strlen(layer)) != 0)
            continue;
        name += strlen(layer);
        size_t length = strlen(name), tail = strlen(end);
        n += strncmp(name, begin, strlen(begin)) == 0 && length >= tail &&
             strcmp(name + length - tail, end) == 0;
    }
    return n;
}

#define OLMO "{\"architectures\": [\"OlmoForCausalLM\"], \"model_type\": \"olmo\""
#define OLMO3 "{\"architectures\": [\"Olmo3ForCausalLM\"], \"model_type\": \"olmo3\""
#define EXAONE4 "{\"architectures\": [\"Exaone4ForCausalLM\"], \"model_type\": \"exaone4\""
#define ERNIE "{\"architectures\": [\"Ernie4_5ForCausalLM\"], \"model_type\": \"ernie4_5\""
#define HUNYUAN                                                                                    \
    "{\"architectures\": [\"HunYuanDenseV1ForCausalLM\"], \"model_type\": \"hunyuan_v1_dense\""
#define CLOVA "{\"architectures\": [\"HyperCLOVAXForCausalLM\"], \"model_type\": \"hyperclovax\""
#define CWM "{\"architectures\": [\"CwmForCausalLM\"], \"model_type\": \"cwm\""
#define SEED_OSS "{\"architectures\": [\"SeedOssForCausalLM\"], \"model_type\": \"seed_oss\""
#define BITNET "{\"architectures\": [\"BitNetForCausalLM\"], \"model_type\": \"bitnet\""

/* What transformers' configuration classes have when a file says nothing. */
static void families_have_their_defaults(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t vocab, hidden, inner, length;
        int n_layers, n_head, n_kv, head;
        double theta, eps;
        bool tied;
        int n_biases;
    } rows[] = {
        {OLMO "}", 50304, 4096, 11008, 2048, 32, 32, 32, 128, 1e4, 1e-5, false, 0},
        {OLMO3 "}", 50304, 4096, 11008, 2048, 32, 32, 32, 128, 5e5, 1e-5, false, 0},
        {EXAONE4 "}", 102400, 4096, 16384, 2048, 32, 32, 32, 128, 1e4, 1e-5, false, 0},
        {ERNIE "}", 103424, 1024, 3072, 131072, 18, 16, 2, 128, 5e5, 1e-5, true, 0},
        {ERNIE ", \"head_dim\": null, \"use_bias\": null}", 103424, 1024, 3072, 131072, 18, 16, 2,
         64, 5e5, 1e-5, true, 0},
        {HUNYUAN "}", 290943, 4096, 11008, 2048, 32, 32, 32, 128, 1e4, 1e-5, false, 0},
        {CLOVA "}", 32000, 4096, 11008, 2048, 32, 32, 32, 128, 1e4, 1e-6, false, 0},
        {CWM "}", 128256, 6144, 21504, 131072, 64, 48, 8, 128, 1e6, 1e-5, false, 0},
        {SEED_OSS "}", 155136, 4096, 27648, 524288, 64, 80, 8, 128, 1e4, 1e-6, false, 3},
        {BITNET "}", 128256, 2560, 6912, 2048, 30, 20, 5, 128, 5e5, 1e-5, false, 0},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_config c;
        parse_ok(&c, rows[i].text);
        const struct ctw_model *m = c.model;
        const struct ctw_layer *l = &m->layers[1], *last = &m->layers[m->n_layers - 1];
        assert_true(m->vocab == rows[i].vocab);
        assert_true(m->hidden == rows[i].hidden);
        assert_true(m->max_length == rows[i].length);
        assert_true(l->branch[CTW_MLP].dense.inner == rows[i].inner);
        assert_int_equal(m->n_decoders, rows[i].n_layers);
        assert_true(l->branch[CTW_MIXER].attention.n_head == rows[i].n_head);
        assert_true(l->branch[CTW_MIXER].attention.n_kv == rows[i].n_kv);
        assert_int_equal(l->branch[CTW_MIXER].attention.head, rows[i].head);
        assert_true(c.rope[0].theta == rows[i].theta);
        assert_true(m->tied == rows[i].tied);
        assert_true(last->norm[CTW_AT_HEAD].eps == (float)rows[i].eps);
        assert_int_equal(count(&c, "", ".bias"), rows[i].n_biases);
        assert_null(c.unread.text);
        ctw_config_close(&c);
    }
}

static void biases(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int attention, mlp;
    } rows[] = {
        {OLMO ", \"attention_bias\": true}", 4, 0},
        {OLMO3 ", \"attention_bias\": true}", 4, 0},
        {ERNIE ", \"use_bias\": true}", 4, 3},
        {HUNYUAN ", \"attention_bias\": true}", 4, 0},
        {SEED_OSS ", \"attention_bias\": false}", 0, 0},
        {SEED_OSS ", \"attention_out_bias\": true, \"mlp_bias\": true}", 4, 3},
        {BITNET ", \"attention_bias\": true}", 4, 0},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_config c;
        parse_ok(&c, rows[i].text);
        assert_int_equal(count(&c, "self_attn.", ".bias"), rows[i].attention);
        assert_int_equal(count(&c, "mlp.", ".bias"), rows[i].mlp);
        ctw_config_close(&c);
    }
}

#define FOUR ", \"num_hidden_layers\": 4"
#define MIXED                                                                                      \
    ", \"layer_types\": [\"full_attention\", \"sliding_attention\", \"sliding_attention\", "       \
    "\"full_attention\"]"

/* The expected window and RoPE index of each layer; -1: no RoPE. */
static void windows_and_ropes(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t windows[4];
        int ropes[4];
    } rows[] = {
        {OLMO3 FOUR "}", {4096, 4096, 4096, 0}, {0, 0, 0, 0}},
        {OLMO3 FOUR MIXED ", \"sliding_window\": 48, \"rope_scaling\": {\"rope_type\": \"yarn\", "
                          "\"factor\": 8, \"original_max_position_embeddings\": 256}}",
         {0, 48, 48, 0},
         {0, 1, 1, 0}},
        {OLMO3 FOUR ", \"rope_parameters\": {\"full_attention\": {\"rope_type\": \"linear\", "
                    "\"factor\": 8, \"rope_theta\": 1e4}, \"sliding_attention\": "
                    "{\"rope_type\": \"default\", \"rope_theta\": 1e4}}}",
         {4096, 4096, 4096, 0},
         {0, 0, 0, 1}},
        {CWM FOUR "}", {0, 8192, 8192, 8192}, {0, 0, 0, 0}},
        {CWM FOUR MIXED ", \"sliding_window\": 48}", {0, 48, 48, 0}, {0, 0, 0, 0}},
        {CWM FOUR ", \"sliding_window\": null}", {0, 0, 0, 0}, {0, 0, 0, 0}},
        {EXAONE4 FOUR "}", {4096, 4096, 4096, 0}, {0, 0, 0, -1}},
        {EXAONE4 FOUR MIXED ", \"sliding_window_pattern\": null}",
         {0, 4096, 4096, 0},
         {-1, 0, 0, -1}},
        {EXAONE4 FOUR MIXED ", \"sliding_window_pattern\": \"LLLG\"}",
         {0, 4096, 4096, 0},
         {-1, 0, 0, -1}},
        {EXAONE4 FOUR ", \"sliding_window_pattern\": 2, \"sliding_window\": 8}",
         {8, 0, 8, 0},
         {0, -1, 0, -1}},
        {EXAONE4 FOUR ", \"sliding_window_pattern\": \"LGL\", \"sliding_window\": 8}",
         {8, 0, 8, 0},
         {0, -1, 0, -1}},
        {EXAONE4 FOUR ", \"sliding_window_pattern\": \"LLLG\", \"sliding_window\": null}",
         {0, 0, 0, 0},
         {0, 0, 0, 0}},
        {EXAONE4 FOUR ", \"sliding_window_pattern\": 0, \"sliding_window\": null, \"layer_types\": "
                      "[\"full_attention\", \"full_attention\", \"full_attention\", "
                      "\"full_attention\"]}",
         {0, 0, 0, 0},
         {0, 0, 0, 0}},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_config c;
        parse_ok(&c, rows[i].text);
        for (int l = 0; l < 4; l++) {
            assert_int_equal(c.model->layers[l + 1].branch[CTW_MIXER].attention.window,
                             rows[i].windows[l]);
            assert_int_equal(c.model->layers[l + 1].branch[CTW_MIXER].attention.rope,
                             rows[i].ropes[l]);
        }
        ctw_config_close(&c);
    }
}

/* Where each family differs from Llama. */
static void layers(void **state)
{
    (void)state;
    struct ctw_config c;
    const struct ctw_layer *l;

    parse_ok(&c, OLMO ", \"clip_qkv\": 8}");
    l = &c.model->layers[1];
    assert_true(l->norm[CTW_AT_MIXER].kind == CTW_NORM_LAYER);
    assert_true(l->branch[CTW_MIXER].attention.limit == 8.0f);
    assert_int_equal(count(&c, "", "norm.weight"), 0);
    ctw_config_close(&c);

    parse_ok(&c, ERNIE "}");
    assert_int_equal(c.model->rope[0].pairing, CTW_ROPE_INTERLEAVED);
    ctw_config_close(&c);

    parse_ok(&c, EXAONE4 "}");
    l = &c.model->layers[1];
    assert_true(!l->norm[CTW_AT_MIXER].present);
    assert_true(l->norm[CTW_AT_MIXER_OUT].present);
    assert_true(!l->norm[CTW_AT_MLP].present);
    assert_true(l->norm[CTW_AT_MLP_OUT].present);
    assert_true(l->norm[CTW_AT_Q].present);
    assert_true(l->branch[CTW_MIXER].attention.head_norms == CTW_HEADS_ALIKE);
    ctw_config_close(&c);

    parse_ok(&c, HUNYUAN ", \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 1.0, "
                         "\"alpha\": 1000.0}}");
    l = &c.model->layers[1];
    assert_true(l->branch[CTW_MIXER].attention.norms_after_rope);
    assert_true(count(&c, "self_attn.query_layernorm", "") == 1);
    double theta = 10000 * pow(1000, 128.0 / 126);
    assert_true(fabs(c.model->rope[0].inv_freq[32] * sqrt(theta) - 1) < 1e-6);
    assert_int_equal(c.model->length_limit, 2048);
    ctw_config_close(&c);

    parse_ok(&c, BITNET "}");
    l = &c.model->layers[1];
    assert_true(l->norm[CTW_AT_HEADS_OUT].present);
    assert_true(l->norm[ctw_norm_at(CTW_MLP, CTW_AT_INNER)].present);
    assert_true(l->branch[CTW_MLP].dense.gated);
    assert_true(l->branch[CTW_MLP].dense.act == CTW_ACT_RELU2);
    ctw_config_close(&c);
}

/* A file that says nothing of RoPE has that of the published model. */
static void absent_rope(void **state)
{
    (void)state;
    struct ctw_config c;
    parse_ok(&c, CWM "}");
    assert_int_equal(c.rope[0].type, CTW_ROPE_LLAMA3);
    assert_true(c.rope[0].factor == 16);
    assert_true(c.rope[0].original_length == 8192);
    ctw_config_close(&c);
    parse_ok(&c, CWM ", \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 5e5}}");
    assert_int_equal(c.rope[0].type, CTW_ROPE_DEFAULT);
    assert_true(c.rope[0].theta == 5e5);
    ctw_config_close(&c);
}

static void refusals(void **state)
{
    (void)state;
    static const struct refusal rows[] = {
        {OLMO ", \"clip_qkv\": 0}", "clip_qkv: found 0, expected 1e-06 to"},
        {OLMO3 ", \"sliding_window\": null}", "sliding_window: found null"},
        {OLMO3 ", \"rope_theta\": 10000}",
         "rope_theta: found 10000; transformers' versions differ"},
        {OLMO3 ", \"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 5e5}}",
         "rope_parameters: has no object for \"sliding_attention\""},
        {EXAONE4 ", \"sliding_window_pattern\": null}",
         "sliding_window_pattern: expected a number of at least 1, or letters L and G"},
        {EXAONE4 ", \"sliding_window_pattern\": \"\"}", "sliding_window_pattern: found \"\""},
        {EXAONE4 ", \"sliding_window_pattern\": \"LSG\"}", "found \"LSG\", expected a number, or"},
        {EXAONE4 ", \"sliding_window_pattern\": -1}", "sliding_window_pattern: expected a whole"},
        {EXAONE4 FOUR MIXED ", \"sliding_window\": null}",
         "layer_types[1]: found \"sliding_attention\", but"},
        {HUNYUAN ", \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 1.0, \"alpha\": -1}}",
         "alpha: found -1"},
        {ERNIE ", \"use_bias\": 1}", "use_bias: expected"},
        {CWM ", \"rope_scaling\": null}", "rope_scaling: found null, which is type llama3 with"},
        {BITNET ", \"quantization_config\": {\"quant_method\": \"bitnet\"}}", "format \""},
    };
    expect_refusals(rows, CTW_COUNT(rows));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(families_have_their_defaults),
        cmocka_unit_test(biases),
        cmocka_unit_test(windows_and_ropes),
        cmocka_unit_test(layers),
        cmocka_unit_test(absent_rope),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
