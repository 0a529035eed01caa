/* Rotary frequencies against transformers, and how the two generations of files say them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "capture.h"
#include "worker/model/rope.h"

struct rope_case {
    const char *name;
    int head;
    int64_t max_length;
    const char *config;
    uint32_t attention_factor;
    uint32_t inv_freq[64]; /* [head / 2] */
};

#include "rope_vectors.h"

static uint32_t bits(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof(u));
    return u;
}

static const struct ctw_rope_rules whole = {.head = 128, .theta = 10000.0};

static enum ctw_status read_rules(struct ctw_rope_params *p, const char *text,
                                  const struct ctw_rope_rules *rules, int64_t max_length,
                                  struct ctw_err *err)
{
    struct ctw_json *doc;
    enum ctw_status st = ctw_json_parse(&doc, "config.json", text, strlen(text), 65536, err);
    assert_int_equal(st, CTW_OK);
    st = ctw_rope_read(p, ctw_json_root(doc), rules, max_length, err);
    ctw_json_close(doc);
    return st;
}

static enum ctw_status read_text(struct ctw_rope_params *p, const char *text, int64_t max_length,
                                 struct ctw_err *err)
{
    return read_rules(p, text, &whole, max_length, err);
}

static void read_ok(struct ctw_rope_params *p, const char *text, int64_t max_length)
{
    struct ctw_err err = {0};
    if (read_text(p, text, max_length, &err) != CTW_OK)
        fail_msg("%s", err.msg);
}

static void frequencies_equal_transformers(void **state)
{
    (void)state;
    for (size_t i = 0; i < CTW_COUNT(rope_cases); i++) {
        const struct rope_case *c = &rope_cases[i];
        struct ctw_rope_params p;
        float inv_freq[64];
        read_ok(&p, c->config, c->max_length);
        ctw_rope_frequencies(&p, c->head, inv_freq);
        for (int j = 0; j < c->head / 2; j++)
            if (bits(inv_freq[j]) != c->inv_freq[j])
                fail_msg("%s: inv_freq[%d] is 0x%08x, expected 0x%08x", c->name, j,
                         bits(inv_freq[j]), c->inv_freq[j]);
        assert_int_equal(bits((float)p.attention_factor), c->attention_factor);
    }
}

/* transformers 4 has the same at other places. */
static void both_generations_agree(void **state)
{
    (void)state;
    static const char *const same[] = {
        "{\"rope_parameters\": {\"rope_type\": \"llama3\", \"rope_theta\": 500000.0, \"factor\": 8,"
        " \"low_freq_factor\": 1, \"high_freq_factor\": 4, "
        "\"original_max_position_embeddings\": 8192}}",
        "{\"rope_theta\": 500000.0, \"rope_scaling\": {\"type\": \"llama3\", \"factor\": 8.0, "
        "\"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "
        "\"original_max_position_embeddings\": 8192}}",
        "{\"rope_theta\": 500000, \"original_max_position_embeddings\": 8192, \"rope_scaling\": "
        "{\"rope_type\": \"llama3\", \"type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": "
        "1.0, \"high_freq_factor\": 4.0}, \"rope_parameters\": null}",
    };
    float want[64], got[64];
    struct ctw_rope_params p;
    read_ok(&p, same[0], 131072);
    ctw_rope_frequencies(&p, 128, want);
    for (size_t i = 1; i < CTW_COUNT(same); i++) {
        read_ok(&p, same[i], 131072);
        ctw_rope_frequencies(&p, 128, got);
        assert_memory_equal(got, want, sizeof(want));
    }
}

static void defaults(void **state)
{
    (void)state;
    static const char *const plain[] = {
        "{}", "{\"rope_scaling\": null, \"rope_theta\": 10000.0}", "{\"rope_scaling\": {}}",
        "{\"rope_parameters\": {\"rope_type\": \"default\"}, \"partial_rotary_factor\": 1.0}",
        /* What transformers' function for the type does not read */
        "{\"rope_scaling\": {\"type\": \"default\", \"mrope_section\": [16, 24, 24], \"factor\": "
        "8}}",
        "{\"partial_rotary_factor\": 0.5, \"original_max_position_embeddings\": -1}"};
    struct ctw_rope_params p;
    for (size_t i = 0; i < CTW_COUNT(plain); i++) {
        read_ok(&p, plain[i], 2048);
        assert_int_equal(p.type, CTW_ROPE_DEFAULT);
        assert_true(p.theta == 10000.0 && p.attention_factor == 1.0);
    }
    read_ok(&p,
            "{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}, "
            "\"original_max_position_embeddings\": -1}",
            2048);
    assert_true(p.factor == 2 && p.original_length == 2048);
    /* The original length is the maximum one; a null factor is their ratio; 0 is as absent, and so
     * is null, but for truncate, which it makes false. */
    read_ok(&p, "{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4.0, \"beta_fast\": 0}}",
            2048);
    assert_true(p.original_length == 2048 && p.beta_fast == 32 && p.beta_slow == 1 && p.truncate);
    assert_true(fabs(p.attention_factor - (0.1 * log(4.0) + 1)) < 1e-15);
    read_ok(&p,
            "{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": null, "
            "\"original_max_position_embeddings\": 512}}",
            2048);
    assert_true(p.factor == 4.0 && p.truncate);
    read_ok(&p,
            "{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4.0, \"truncate\": null, "
            "\"beta_slow\": null, \"mscale\": null, \"attention_factor\": null}}",
            2048);
    assert_true(!p.truncate && p.beta_slow == 1);
    assert_true(fabs(p.attention_factor - (0.1 * log(4.0) + 1)) < 1e-15);
}

/* Within the length that it was trained for, which is all that is supported. */
static void dynamic_is_the_default(void **state)
{
    (void)state;
    struct ctw_rope_params p;
    float want[64], got[64];
    read_ok(&p, "{\"rope_theta\": 5e5}", 2048);
    ctw_rope_frequencies(&p, 128, want);
    read_ok(&p, "{\"rope_theta\": 5e5, \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 8.0}}",
            2048);
    assert_int_equal(p.type, CTW_ROPE_DYNAMIC);
    assert_true(p.attention_factor == 1.0);
    ctw_rope_frequencies(&p, 128, got);
    assert_memory_equal(got, want, sizeof(want));
}

/* Files that say it twice, for both generations. */
static void both_objects(void **state)
{
    (void)state;
    static const char *const rows[] = {
        "{\"rope_scaling\": {}, \"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 2, "
        "\"rope_theta\": 5e5}}",
        "{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}, \"rope_theta\": 5e5, "
        "\"rope_parameters\": {}}",
        "{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}, \"rope_theta\": 5e5, "
        "\"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 2.0, \"rope_theta\": "
        "500000}}",
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_rope_params p;
        read_ok(&p, rows[i], 2048);
        assert_true(p.type == CTW_ROPE_LINEAR && p.factor == 2 && p.theta == 5e5);
    }
}

/* What is read as transformers reads it, though others read it otherwise. */
static void warnings(void **state)
{
    (void)state;
    static const struct {
        const char *config, *words;
        double factor, attention_factor;
    } rows[] = {
        /* DeepSeek-R1-0528-Qwen3-8B */
        {"{\"rope_scaling\": {\"attn_factor\": 0.8782488562869419, \"factor\": 4.0, "
         "\"original_max_position_embeddings\": 32768, \"rope_type\": \"yarn\"}}",
         "config.json: rope_scaling.attn_factor: found 0.878249, ignored as in transformers: "
         "cosines and sines are scaled by 1.13863, not by 1",
         4, 1.138629436},
        {"{\"rope_scaling\": {\"attn_factor\": 1, \"factor\": 4.0, \"rope_type\": \"yarn\"}}", "",
         4, 1.138629436},
        {"{\"rope_scaling\": {\"finetuned\": true, \"factor\": 4.0, \"type\": \"yarn\"}}",
         "rope_scaling.finetuned: ignored as in transformers", 4, 1.138629436},
        {"{\"rope_parameters\": {\"factor\": 16, \"original_max_position_embeddings\": 32768, "
         "\"rope_type\": \"yarn\"}}",
         "config.json: rope_parameters.factor: 16 is used, although max_position_embeddings / "
         "original_max_position_embeddings is 4",
         16, 1.2772588722},
        {"{\"rope_scaling\": {\"factor\": 4, \"original_max_position_embeddings\": 131072, "
         "\"type\": "
         "\"yarn\"}}",
         "original_max_position_embeddings is 1", 4, 1.138629436},
        {"{\"rope_scaling\": {\"factor\": 4, \"type\": \"yarn\"}}", "", 4, 1.138629436},
        {"{\"rope_scaling\": {\"factor\": 4, \"original_max_position_embeddings\": 32768, "
         "\"type\": "
         "\"yarn\"}}",
         "", 4, 1.138629436},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_rope_params p;
        struct capture c;
        struct ctw_err err = {0};
        capture_start(&c, CTW_LOG_WARN);
        enum ctw_status st = read_text(&p, rows[i].config, 131072, &err);
        capture_stop(&c);
        if (st != CTW_OK)
            fail_msg("%s", err.msg);
        capture_expect(&c, rows[i].words);
        assert_true(p.factor == rows[i].factor);
        assert_true(fabs(p.attention_factor - rows[i].attention_factor) < 1e-9);
    }
}

/* Gemma 3's: transformers 4 has flat keys, and 5 an object per layer type, whose own keys win. */
static const struct ctw_rope_rules full = {
    .head = 128, .theta = 1e6, .layer_type = "full_attention"};
static const struct ctw_rope_rules sliding = {.head = 128,
                                              .theta = 10000.0,
                                              .theta_key = "rope_local_base_freq",
                                              .layer_type = "sliding_attention",
                                              .unscaled = true};

static void several_ropes(void **state)
{
    (void)state;
    static const struct {
        const char *config;
        double full_theta, full_factor, sliding_theta, sliding_factor;
        const char *unread;
    } rows[] = {
        {"{}", 1e6, 1, 1e4, 1, NULL},
        {"{\"rope_theta\": 5e5, \"rope_local_base_freq\": 2e4, \"rope_scaling\": {\"type\": "
         "\"linear\", \"factor\": 8, \"mscale\": 1}}",
         5e5, 8, 2e4, 1, "rope_scaling.mscale"},
        {"{\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"linear\", \"factor\": 8, "
         "\"rope_theta\": 5e5}, \"sliding_attention\": {\"rope_type\": \"default\", "
         "\"rope_theta\": 2e4, \"factor\": 8}}}",
         5e5, 8, 2e4, 1, "rope_parameters.sliding_attention.factor"},
        {"{\"rope_theta\": 3e5, \"rope_parameters\": {\"full_attention\": {\"rope_theta\": 5e5}, "
         "\"sliding_attention\": null, \"other_attention\": {\"rope_theta\": 7}, \"rope_theta\": "
         "9}}",
         5e5, 1, 1e4, 1, "rope_parameters.other_attention, rope_parameters.rope_theta"},
        {"{\"rope_theta\": 3e5, \"rope_scaling\": null, \"rope_parameters\": "
         "{\"sliding_attention\": {\"type\": \"linear\", \"factor\": 2}}}",
         3e5, 1, 1e4, 2, NULL},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_rope_params p[2];
        struct ctw_unread unread = {0};
        struct ctw_err err = {0};
        struct ctw_json *doc;
        const char *text = rows[i].config;
        assert_int_equal(read_rules(&p[0], text, &full, 2048, &err), CTW_OK);
        assert_int_equal(read_rules(&p[1], text, &sliding, 2048, &err), CTW_OK);
        assert_true(p[0].theta == rows[i].full_theta && p[0].factor == rows[i].full_factor);
        assert_true(p[1].theta == rows[i].sliding_theta && p[1].factor == rows[i].sliding_factor);
        assert_int_equal(ctw_json_parse(&doc, "config.json", text, strlen(text), 65536, &err),
                         CTW_OK);
        assert_int_equal(ctw_rope_list_unread(p, 2, ctw_json_root(doc), &unread, &err), CTW_OK);
        if (rows[i].unread == NULL)
            assert_null(unread.text);
        else
            assert_string_equal(unread.text, rows[i].unread);
        assert_true(ctw_rope_reads(p, 2, "rope_local_base_freq"));
        assert_false(ctw_rope_reads(p, 1, "rope_local_base_freq"));
        ctw_unread_close(&unread);
        ctw_json_close(doc);
    }
}

/* An object for all layers is nothing that transformers writes for such a family. */
static void several_ropes_need_an_object_each(void **state)
{
    (void)state;
    struct ctw_rope_params p;
    struct ctw_err err = {0};
    assert_int_equal(
        read_rules(&p, "{\"rope_parameters\": {\"rope_theta\": 5e5}}", &full, 2048, &err),
        CTW_EFORMAT);
    assert_non_null(strstr(err.msg, "rope_parameters: has no object for \"full_attention\""));
}

static void refusals(void **state)
{
    (void)state;
    static const struct {
        const char *config, *words;
    } rows[] = {
        {"{\"rope_scaling\": {\"type\": \"dynamic\"}}", "factor"},
        {"{\"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}, \"partial_rotary_factor\": "
         "0.5}",
         "partial_rotary_factor: found 0.5"},
        {"{\"rope_scaling\": {\"rope_type\": \"longrope\"}}", "\"longrope\" is not supported"},
        {"{\"rope_scaling\": {\"type\": \"mrope\", \"mrope_section\": [16, 24, 24]}}", "\"mrope\""},
        {"{\"rope_parameters\": {\"full_attention\": {\"rope_theta\": 1e6}}}",
         "rope_parameters.full_attention: separate RoPE parameters per layer type"},
        {"{\"rope_scaling\": {\"type\": \"linear\"}}", "factor"},
        {"{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 0}}", "factor: found 0"},
        {"{\"rope_scaling\": {\"type\": \"linear\", \"factor\": \"2\"}}", "factor: expected a"},
        {"{\"rope_scaling\": {\"type\": \"linear\", \"rope_type\": \"yarn\", \"factor\": 8}}",
         "differ"},
        {"{\"rope_scaling\": {\"type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, "
         "\"high_freq_factor\": 4}}",
         "high_freq_factor: found 4, expected a number above 4"},
        {"{\"rope_theta\": 1e4, \"rope_parameters\": {\"rope_theta\": 1e6}}",
         "rope_theta: found 10000, and 1e+06 in the RoPE parameters"},
        {"{\"rope_theta\": 1}", "rope_theta: found 1, expected a number above 1"},
        {"{\"rope_parameters\": {\"rope_type\": \"yarn\", \"factor\": 2, "
         "\"partial_rotary_factor\": 0.5}}",
         "partial_rotary_factor: found 0.5"},
        {"{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}, \"rope_parameters\": "
         "{\"rope_type\": \"default\"}}",
         "rope_scaling: found in addition to rope_parameters, and the two differ"},
        {"{\"rope_scaling\": {\"rope_type\": \"default\"}, \"rope_parameters\": "
         "{\"rope_theta\": 500000}}",
         "the two differ"},
        {"{\"rope_scaling\": {\"type\": \"linear\"}, \"rope_parameters\": {\"rope_type\": "
         "\"linear\", \"factor\": 2}}",
         "rope_scaling"},
        {"{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 2, \"attn_factor\": \"1\"}}",
         "attn_factor: expected a"},
        {"{\"rope_scaling\": \"linear\"}", "rope_scaling: expected an object"},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_rope_params p;
        struct ctw_err err = {0};
        assert_int_not_equal(read_text(&p, rows[i].config, 2048, &err), CTW_OK);
        if (strstr(err.msg, rows[i].words) == NULL)
            fail_msg("%s: \"%s\" does not say \"%s\"", rows[i].config, err.msg, rows[i].words);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frequencies_equal_transformers),
        cmocka_unit_test(both_generations_agree),
        cmocka_unit_test(defaults),
        cmocka_unit_test(dynamic_is_the_default),
        cmocka_unit_test(both_objects),
        cmocka_unit_test(warnings),
        cmocka_unit_test(several_ropes),
        cmocka_unit_test(several_ropes_need_an_object_each),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
