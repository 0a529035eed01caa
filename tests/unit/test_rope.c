/* Rotary frequencies against transformers, and how the two generations of files say them. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "capture.h"
#include "worker/model/rope/rope.h"

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

/* A document that stays open, since the factors of longrope are in it. */
struct opened {
    struct ctw_json *doc;
    struct ctw_rope_params p;
};

static void open_rules(struct opened *o, const char *text, const struct ctw_rope_rules *rules,
                       int64_t max_length)
{
    struct ctw_err err = {0};
    assert_int_equal(ctw_json_parse(&o->doc, "config.json", text, strlen(text), 65536, &err),
                     CTW_OK);
    if (ctw_rope_read(&o->p, ctw_json_root(o->doc), rules, max_length, &err) != CTW_OK)
        fail_msg("%s: %s", text, err.msg);
}

static void frequencies_equal_transformers(void **state)
{
    (void)state;
    for (size_t i = 0; i < CTW_COUNT(rope_cases); i++) {
        const struct rope_case *c = &rope_cases[i];
        struct opened o;
        float inv_freq[64];
        open_rules(&o, c->config, &whole, c->max_length);
        ctw_rope_frequencies(&o.p, c->head, inv_freq);
        for (int j = 0; j < c->head / 2; j++)
            if (bits(inv_freq[j]) != c->inv_freq[j])
                fail_msg("%s: inv_freq[%d] is 0x%08x, expected 0x%08x", c->name, j,
                         bits(inv_freq[j]), c->inv_freq[j]);
        assert_int_equal(bits((float)o.p.attention_factor), c->attention_factor);
        ctw_json_close(o.doc);
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
        assert_true(p.theta == 10000.0);
        assert_true(p.attention_factor == 1.0);
    }
    read_ok(&p,
            "{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2}, "
            "\"original_max_position_embeddings\": -1}",
            2048);
    assert_true(p.factor == 2);
    assert_true(p.original_length == 2048);
    /* The original length is the maximum one; a null factor is their ratio; 0 is as absent, and so
     * is null, but for truncate, which it makes false. */
    read_ok(&p, "{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4.0, \"beta_fast\": 0}}",
            2048);
    assert_true(p.original_length == 2048);
    assert_true(p.beta_fast == 32);
    assert_true(p.beta_slow == 1);
    assert_true(p.truncate);
    assert_true(fabs(p.attention_factor - (0.1 * log(4.0) + 1)) < 1e-15);
    read_ok(&p,
            "{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": null, "
            "\"original_max_position_embeddings\": 512}}",
            2048);
    assert_true(p.factor == 4.0);
    assert_true(p.truncate);
    read_ok(&p,
            "{\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4.0, \"truncate\": null, "
            "\"beta_slow\": null, \"mscale\": null, \"attention_factor\": null}}",
            2048);
    assert_true(!p.truncate);
    assert_true(p.beta_slow == 1);
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
        assert_true(p.type == CTW_ROPE_LINEAR);
        assert_true(p.factor == 2);
        assert_true(p.theta == 5e5);
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
        assert_true(p[0].theta == rows[i].full_theta);
        assert_true(p[0].factor == rows[i].full_factor);
        assert_true(p[1].theta == rows[i].sliding_theta);
        assert_true(p[1].factor == rows[i].sliding_factor);
        assert_int_equal(ctw_json_parse(&doc, "config.json", text, strlen(text), 65536, &err),
                         CTW_OK);
        const struct ctw_rope_readers both = {p, 2, NULL}, first = {p, 1, NULL};
        assert_int_equal(ctw_rope_list_unread(&both, ctw_json_root(doc), &unread, &err), CTW_OK);
        if (rows[i].unread == NULL)
            assert_null(unread.text);
        else
            assert_string_equal(unread.text, rows[i].unread);
        assert_true(ctw_rope_reads(&both, "rope_local_base_freq"));
        assert_false(ctw_rope_reads(&first, "rope_local_base_freq"));
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

/* ---- types of one family, or with a partial factor ---- */

static const struct ctw_rope_rules phi3 = {.head = 12,
                                           .theta = 10000.0,
                                           .partial_key = "partial_rotary_factor",
                                           .old_longrope = true,
                                           .original_length = 4096};
static const struct ctw_rope_rules neox = {.head = 64,
                                           .theta = 10000.0,
                                           .theta_key = "rotary_emb_base",
                                           .partial_key = "rotary_pct",
                                           .partial = 0.25};
static const struct ctw_rope_rules hunyuan = {.head = 64, .theta = 10000.0, .alpha = true};

static void expect_close(const char *what, double got, double want)
{
    if (fabs(got - want) > 2e-6 * fabs(want))
        fail_msg("%s: %.9g, expected %.9g", what, got, want);
}

#define SHORT_LONG "\"short_factor\": [1, 1.1, 1.3], \"long_factor\": [1.5, 2.5, 40]"

/* Two tables. The names and the place of the original length are as in published files. */
static void longrope(void **state)
{
    (void)state;
    static const struct {
        const char *config;
        double original_length, attention_factor; /* 0: by the two lengths */
    } rows[] = {
        {"{\"original_max_position_embeddings\": 512, \"partial_rotary_factor\": 0.5, "
         "\"rope_scaling\": {\"type\": \"longrope\", " SHORT_LONG "}}",
         512, 0},
        {"{\"original_max_position_embeddings\": 512, \"rope_scaling\": {\"type\": \"su\", "
         "\"partial_rotary_factor\": 0.5, " SHORT_LONG "}}",
         512, 0},
        {"{\"rope_scaling\": {\"type\": \"yarn\", \"partial_rotary_factor\": 0.5, " SHORT_LONG "}}",
         4096, 0},
        {"{\"original_max_position_embeddings\": 512, \"rope_parameters\": {\"rope_type\": "
         "\"longrope\", \"partial_rotary_factor\": 0.5, \"original_max_position_embeddings\": 512, "
         "\"attention_factor\": 1.25, \"factor\": 32, " SHORT_LONG "}}",
         512, 1.25},
        {"{\"original_max_position_embeddings\": 32768, \"partial_rotary_factor\": 0.5, "
         "\"rope_scaling\": {\"type\": \"longrope\", " SHORT_LONG "}}",
         32768, 1},
    };
    static const double factors[2][3] = {{1, 1.1, 1.3}, {1.5, 2.5, 40}};
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct opened o;
        float inv_freq[2][3];
        open_rules(&o, rows[i].config, &phi3, 8192);
        assert_int_equal(o.p.type, CTW_ROPE_LONGROPE);
        assert_int_equal(o.p.rot_dim, 6);
        assert_true(o.p.original_length == rows[i].original_length);
        double ratio = 8192 / rows[i].original_length;
        expect_close("attention factor", o.p.attention_factor,
                     rows[i].attention_factor != 0
                         ? rows[i].attention_factor
                         : sqrt(1 + log(ratio) / log(rows[i].original_length)));
        ctw_rope_frequencies(&o.p, 6, inv_freq[0]);
        ctw_rope_long_frequencies(&o.p, 6, inv_freq[1]);
        for (int j = 0; j < 3; j++)
            for (int t = 0; t < 2; t++)
                expect_close("frequency", inv_freq[t][j],
                             1 / (factors[t][j] * pow(10000, 2.0 * j / 6)));
        ctw_json_close(o.doc);
    }
}

static double yarn_frequency(int i, int rot_dim, double factor, double original)
{
    const double pi2 = 2 * acos(-1), scale = rot_dim / (2 * log(10000));
    double low = floor(scale * log(original / (32 * pi2))),
           high = ceil(scale * log(original / pi2));
    double ramp = fmin(1, fmax(0, (i - fmax(low, 0)) / (fmin(high, rot_dim - 1) - fmax(low, 0))));
    return pow(10000, -2.0 * i / rot_dim) * (1 - ramp + ramp / factor);
}

/* A partial factor makes the rotated part what a type computes with; the key's name and default
 * are the family's. */
static void parts_of_scaled_types(void **state)
{
    (void)state;
    static const struct {
        const char *config;
        int rot_dim;
        double factor; /* linear; 0: yarn of factor 4, 2048 inputs */
    } rows[] = {
        {"{}", 16, 1},
        {"{\"rotary_pct\": 0.5, \"rope_theta\": 7}", 32, 1},
        {"{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 3}}", 16, 3},
        {"{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 3, \"partial_rotary_factor\": "
         "0.5}}",
         32, 3},
        {"{\"rotary_pct\": 0.75, \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4}}", 48, 0},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct opened o;
        float inv_freq[24];
        open_rules(&o, rows[i].config, &neox, 2048);
        assert_int_equal(o.p.rot_dim, rows[i].rot_dim);
        ctw_rope_frequencies(&o.p, o.p.rot_dim, inv_freq);
        for (int j = 0; j < o.p.rot_dim / 2; j++)
            expect_close(rows[i].config, inv_freq[j],
                         rows[i].factor == 0 ? yarn_frequency(j, o.p.rot_dim, 4, 2048)
                                             : pow(10000, -2.0 * j / o.p.rot_dim) / rows[i].factor);
        const struct ctw_rope_readers readers = {&o.p, 1, NULL};
        assert_true(ctw_rope_reads(&readers, "rotary_emb_base"));
        assert_false(ctw_rope_reads(&readers, "rope_theta"));
        assert_true(ctw_rope_reads(&readers, "rotary_pct"));
        ctw_json_close(o.doc);
    }
}

/* Gemma 4's: the exponents are those of the whole head, and what follows the part stays. */
static void proportional(void **state)
{
    (void)state;
    static const struct ctw_rope_rules gemma4 = {
        .head = 20,
        .theta = 10000.0,
        .layer_type = "full_attention",
        .absent = "{\"rope_type\": \"proportional\", \"partial_rotary_factor\": 0.25, "
                  "\"rope_theta\": 1e6}"};
    static const struct {
        const char *config;
        int n;
        double theta, factor;
    } rows[] = {
        {"{}", 2, 1e6, 1},
        {"{\"rope_theta\": 5e5}", 2, 1e6, 1},
        {"{\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"proportional\", "
         "\"rope_theta\": 5e5, \"factor\": 8}}}",
         10, 5e5, 8},
        {"{\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"proportional\", "
         "\"partial_rotary_factor\": 0.5}}}",
         5, 1e4, 1},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct opened o;
        float inv_freq[10];
        open_rules(&o, rows[i].config, &gemma4, 2048);
        assert_int_equal(o.p.type, CTW_ROPE_PROPORTIONAL);
        assert_int_equal(o.p.rot_dim, 20);
        ctw_rope_frequencies(&o.p, 20, inv_freq);
        for (int j = 0; j < 10; j++)
            expect_close(rows[i].config, inv_freq[j],
                         j < rows[i].n ? pow(rows[i].theta, -2.0 * j / 20) / rows[i].factor : 0);
        ctw_json_close(o.doc);
    }
}

static void dynamic_with_alpha(void **state)
{
    (void)state;
    static const struct {
        const char *config;
        double alpha;
    } rows[] = {
        {"{\"rope_scaling\": {\"type\": \"dynamic\", \"alpha\": 1000, \"factor\": 1.0}}", 1000},
        {"{\"rope_parameters\": {\"rope_type\": \"dynamic\", \"alpha\": 0, \"factor\": 2}}", 1},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct opened o;
        float inv_freq[32];
        open_rules(&o, rows[i].config, &hunyuan, 2048);
        ctw_rope_frequencies(&o.p, 64, inv_freq);
        double theta = 10000 * pow(rows[i].alpha, 64.0 / 62);
        for (int j = 0; j < 32; j++)
            expect_close(rows[i].config, inv_freq[j], pow(theta, -2.0 * j / 64));
        ctw_json_close(o.doc);
    }
}

/* Phi-MoE's: cosines and sines have a factor for short sequences and one for long ones. */
static void longrope_with_two_factors(void **state)
{
    (void)state;
    static const struct ctw_rope_rules phimoe = {.head = 6, .theta = 10000.0, .mscales = true};
    struct opened o;
    open_rules(&o,
               "{\"rope_scaling\": {\"type\": \"longrope\", \"short_mscale\": 1.25, "
               "\"long_mscale\": 1.5, \"attention_factor\": 3, " SHORT_LONG "}}",
               &phimoe, 2048);
    assert_true(o.p.attention_factor == 1.25);
    assert_true(o.p.long_attention_factor == 1.5);
    ctw_json_close(o.doc);
}

/* Llama 4's: no wave is in between the two lengths. */
static void llama3_with_equal_factors(void **state)
{
    (void)state;
    static const struct ctw_rope_rules llama4 = {.head = 64, .theta = 500000.0};
    struct opened o;
    float inv_freq[32];
    open_rules(&o,
               "{\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 16, "
               "\"low_freq_factor\": 1, \"high_freq_factor\": 1, "
               "\"original_max_position_embeddings\": 256}}",
               &llama4, 2048);
    ctw_rope_frequencies(&o.p, 64, inv_freq);
    for (int i = 0; i < 32; i++) {
        double plain = pow(500000.0, -2.0 * i / 64);
        expect_close("frequency", inv_freq[i], 2 * M_PI / plain > 256 ? plain / 16 : plain);
    }
    ctw_json_close(o.doc);
}

/* Step's: an entry of each layer. */
static void lists_by_layer(void **state)
{
    (void)state;
    static const char config[] =
        "{\"rope_theta\": [1e6, 1e4], \"partial_rotary_factors\": [0.5, 1]}";
    for (int64_t layer = 0; layer < 3; layer++) {
        const struct ctw_rope_rules step = {.head = 64,
                                            .theta = 10000.0,
                                            .partial_key = "partial_rotary_factors",
                                            .lists = true,
                                            .layer = layer};
        struct ctw_rope_params p;
        struct ctw_err err = {0};
        enum ctw_status st = read_rules(&p, config, &step, 2048, &err);
        if (layer == 2) {
            assert_int_equal(st, CTW_EFORMAT);
            assert_non_null(strstr(err.msg, "rope_theta: has no entry for layer 2"));
            continue;
        }
        assert_int_equal(st, CTW_OK);
        assert_true(p.theta == (layer == 0 ? 1e6 : 1e4));
        assert_int_equal(p.rot_dim, layer == 0 ? 32 : 64);
    }
}

/* Qwen 2.5 VL's: text has three equal positions. As published, and as transformers 5 saves it
 * again. */
static void mrope_is_the_default(void **state)
{
    (void)state;
    static const struct ctw_rope_rules vl = {.head = 128, .theta = 1e6, .mrope = true};
    static const char *const configs[] = {
        "{\"rope_scaling\": {\"type\": \"mrope\", \"mrope_section\": [16, 24, 24]}}",
        "{\"rope_parameters\": {\"type\": \"mrope\", \"rope_type\": \"default\", \"rope_theta\": "
        "1e6}}",
    };
    for (size_t i = 0; i < CTW_COUNT(configs); i++) {
        struct opened o;
        open_rules(&o, configs[i], &vl, 2048);
        assert_int_equal(o.p.type, CTW_ROPE_DEFAULT);
        assert_true(o.p.theta == 1e6);
        ctw_json_close(o.doc);
    }
}

static void refusals_of_families(void **state)
{
    (void)state;
    static const struct {
        const struct ctw_rope_rules *rules;
        const char *config, *words;
    } rows[] = {
        {&phi3, "{\"rope_scaling\": {\"type\": \"longrope\", " SHORT_LONG "}}",
         "rope_scaling.short_factor: found 3 entries, expected 6, half of the 12 elements"},
        {&phi3,
         "{\"rope_scaling\": {\"type\": \"su\", \"partial_rotary_factor\": 0.5, "
         "\"short_factor\": [1, 1, 1], \"long_factor\": [1, 0, 1]}}",
         "rope_scaling.long_factor[1]: found 0, expected"},
        {&phi3,
         "{\"rope_parameters\": {\"rope_type\": \"longrope\", \"partial_rotary_factor\": 0.5, "
         "\"original_max_position_embeddings\": 512, " SHORT_LONG "}}",
         "original_max_position_embeddings: found 512, but transformers takes 4096"},
        {&phi3,
         "{\"partial_rotary_factor\": 0.5, \"rope_scaling\": {\"type\": \"longrope\", "
         "\"factor\": 0, " SHORT_LONG "}}",
         "factor: found 0"},
        {&whole, "{\"rope_scaling\": {\"type\": \"su\", " SHORT_LONG "}}",
         "RoPE type \"su\" is not supported"},
        {&neox, "{\"rotary_pct\": 0.3}", "rotary_pct: 0.3 of 64 elements is not an even number"},
        {&neox, "{\"rotary_pct\": 2}", "rotary_pct: found 2, expected more than 0"},
        {&hunyuan, "{\"rope_scaling\": {\"type\": \"dynamic\", \"alpha\": -1, \"factor\": 1}}",
         "alpha: found -1"},
        {&full,
         "{\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"proportional\", "
         "\"partial_rotary_factor\": 0}}}",
         "partial_rotary_factor: found 0"},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_rope_params p;
        struct ctw_err err = {0};
        assert_int_not_equal(read_rules(&p, rows[i].config, rows[i].rules, 2048, &err), CTW_OK);
        if (strstr(err.msg, rows[i].words) == NULL)
            fail_msg("%s: \"%s\" does not say \"%s\"", rows[i].config, err.msg, rows[i].words);
    }
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
        {"{\"rope_scaling\": {\"rope_type\": \"longrope\"}}", "short_factor\" is missing"},
        {"{\"rope_scaling\": {\"rope_type\": \"ntk\"}}", "\"ntk\" is not supported"},
        {"{\"rope_scaling\": {\"type\": \"mrope\", \"mrope_section\": [16, 24, 24]}}", "\"mrope\""},
        {"{\"rope_parameters\": {\"full_attention\": {\"rope_theta\": 1e6}}}",
         "rope_parameters.full_attention: separate RoPE parameters per layer type"},
        {"{\"rope_scaling\": {\"type\": \"linear\"}}", "factor"},
        {"{\"rope_scaling\": {\"type\": \"linear\", \"factor\": 0}}", "factor: found 0"},
        {"{\"rope_scaling\": {\"type\": \"linear\", \"factor\": \"2\"}}", "factor: expected a"},
        {"{\"rope_scaling\": {\"type\": \"linear\", \"rope_type\": \"yarn\", \"factor\": 8}}",
         "differ"},
        {"{\"rope_scaling\": {\"type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, "
         "\"high_freq_factor\": 3}}",
         "high_freq_factor: found 3, expected at least low_freq_factor, 4"},
        {"{\"rope_theta\": 1e4, \"rope_parameters\": {\"rope_theta\": 1e6}}",
         "rope_theta: found 10000, and 1e+06 in the RoPE parameters"},
        {"{\"rope_theta\": [1e4]}", "rope_theta: expected a"},
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
        cmocka_unit_test(longrope),
        cmocka_unit_test(parts_of_scaled_types),
        cmocka_unit_test(proportional),
        cmocka_unit_test(dynamic_with_alpha),
        cmocka_unit_test(longrope_with_two_factors),
        cmocka_unit_test(llama3_with_equal_factors),
        cmocka_unit_test(lists_by_layer),
        cmocka_unit_test(mrope_is_the_default),
        cmocka_unit_test(refusals_of_families),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
