/* Checkpoints, written by the test, as models: what they become and why they are refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/mem.h"
#include "capture.h"
#include "small_checkpoint.h"
#include "worker/checkpoint/identity.h"
#include "worker/model/model.h"

/* ---- tests ---- */

static void a_dense_model(void **state)
{
    struct checkpoint *c = *state;
    struct ctw_model *m = open_ok(c);
    assert_string_equal(m->architecture, "LlamaForCausalLM");
    assert_int_equal(m->n_layers, 3);
    assert_int_equal(m->n_decoders, 1);
    assert_true(m->dtype == CTW_BF16);
    assert_true(m->hidden == 32);
    assert_true(m->vocab == 16);
    assert_true(!m->tied);
    assert_true(m->max_length == 128);
    assert_true(m->activations == NULL);
    assert_true(m->weight_bits == 0);
    /* 2 embeddings, q, o, k, v, 3 of the MLP, 3 norms */
    assert_int_equal(m->n_params, 2 * 512 + 2 * 1024 + 2 * 512 + 3 * 2048 + 3 * 32);
    const struct ctw_layer *l = &m->layers[1];
    assert_true(l->branch[CTW_MIXER].attention.n_head == 4);
    assert_true(l->branch[CTW_MIXER].attention.n_kv == 2);
    assert_true(l->branch[CTW_MIXER].attention.head == 8);
    assert_true(l->branch[CTW_MIXER].attention.window == 0);
    assert_true(l->branch[CTW_MIXER].attention.rope == 0);
    assert_true(l->branch[CTW_MIXER].attention.scale == (float)(1 / sqrt(8.0)));
    assert_true(l->branch[CTW_MLP].dense.inner == 64);
    assert_string_equal(l->matrix[CTW_M_K].name, LAYER "self_attn.k_proj");
    assert_true(l->matrix[CTW_M_K].weight.n == 16);
    assert_true(l->matrix[CTW_M_K].weight.k == 32);
    assert_true(l->matrix[CTW_M_QKV].name == NULL);
    assert_true(l->vector[CTW_V_Q_BIAS] == NULL);
    assert_non_null(l->vector[ctw_norm_weight(CTW_AT_MLP)]);
    assert_non_null(m->layers[2].vector[ctw_norm_weight(CTW_AT_HEAD)]);
    assert_int_equal(m->rope[0].rot_dim, 8);
    assert_string_equal(ctw_identity_text(m->identity), ""); /* nothing has been read */
    ctw_model_close(m);
}

static void biases(void **state)
{
    struct checkpoint *c = *state;
    c->config = BF16_CONFIG ", \"attention_bias\": true";
    expect_refusal(c, "no tensor " LAYER "self_attn.q_proj.bias, which config.json needs as [32]");
    add(c, LAYER "self_attn.q_proj.bias", "BF16", "32", 64, NULL);
    add(c, LAYER "self_attn.k_proj.bias", "F32", "16", 64, NULL);
    add(c, LAYER "self_attn.v_proj.bias", "BF16", "16", 32, NULL);
    add(c, LAYER "self_attn.o_proj.bias", "BF16", "32", 64, NULL);
    ctw_model_close(open_ok(c));
    c->config = BF16_CONFIG;
    expect_refusal(c, "model.safetensors: " LAYER "self_attn.q_proj.bias (BF16 [32]) and 3 more "
                      "tensors have no use");
}

static void tied_heads(void **state)
{
    struct checkpoint *c = *state;
    char other[1024] = {1};
    c->config = BF16_CONFIG ", \"tie_word_embeddings\": true";
    struct ctw_model *m = open_ok(c); /* stored twice, equal */
    ctw_model_close(m);
    find(c, "lm_head.weight")->data = other;
    expect_refusal(c, "model.safetensors: lm_head.weight differs from the embedding");
    drop(c, "lm_head.weight");
    m = open_ok(c);
    const struct ctw_matrix *head = &m->layers[2].matrix[CTW_M_HEAD];
    assert_true(m->tied);
    assert_true(head->part[CTW_PART_VALUES] ==
                m->layers[0].matrix[CTW_M_EMBED].part[CTW_PART_VALUES]);
    assert_string_equal(head->name, "lm_head");
    assert_int_equal(m->n_params, 512 + 2 * 1024 + 2 * 512 + 3 * 2048 + 3 * 32);
    ctw_model_close(m);
    add(c, "lm_head.weight_packed", "I32", "16, 4", 256, NULL);
    expect_refusal(c, "lm_head.weight_packed (I32 [16, 4])");
    drop(c, "lm_head.weight_packed");
    c->config = BF16_CONFIG;
    expect_refusal(c, "no tensor lm_head.weight (or .weight_packed), which config.json needs as a "
                      "[16, 32] matrix; if the head is the embedding, set tie_word_embeddings to "
                      "true in config.json");
}

/* What the embedding reads are no numbers: its scheme for inputs is not its head's. */
static void a_tied_head_has_inputs_of_its_own(void **state)
{
    struct checkpoint *c = *state;
#define SCHEME(targets)                                                                            \
    BF16_CONFIG                                                                                    \
    ", \"tie_word_embeddings\": true, \"quantization_config\": {\"format\": "                      \
    "\"float-quantized\", \"quant_method\": \"compressed-tensors\", \"config_groups\": "           \
    "{\"g\": {\"targets\": [" targets "], \"weights\": {\"num_bits\": 8, \"type\": "               \
    "\"float\", \"strategy\": \"channel\"}, \"input_activations\": {\"num_bits\": 8, "             \
    "\"type\": \"float\", \"strategy\": \"token\", \"dynamic\": true}}}}"
    static const struct {
        const char *config;
        bool quantised;
    } rows[] = {{SCHEME("\"Embedding\""), false}, {SCHEME("\"Embedding\", \"lm_head\""), true}};
    drop(c, "lm_head.weight");
    *find(c, "model.embed_tokens.weight") =
        (struct tensor){"model.embed_tokens.weight", "F8_E4M3", "16, 32", 512, NULL};
    add(c, "model.embed_tokens.weight_scale", "BF16", "16, 1", 32, NULL);
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        const struct ctw_model_options options = {.quantises_activations = true};
        struct ctw_model *m;
        struct ctw_err err = {0};
        c->config = rows[i].config;
        write_it(c);
        if (ctw_model_open(&m, c->dir, &options, &err) != CTW_OK)
            fail_msg("%s", err.msg);
        const struct ctw_matrix *head = &m->layers[2].matrix[CTW_M_HEAD];
        assert_true((head->input.codes != CTW_CODES_NONE) == rows[i].quantised);
        ctw_model_close(m);
    }
}

#define WITHOUT_WEIGHTS(target, ignore)                                                            \
    BF16_CONFIG ", \"quantization_config\": {\"quant_method\": \"compressed-tensors\", "           \
                "\"config_groups\": {\"a\": {\"targets\": [\"" target "\"], \"weights\": null, "   \
                "\"input_activations\": {\"num_bits\": 8, \"type\": \"float\", \"strategy\": "     \
                "\"tensor\"}}}, \"ignore\": [\"" ignore "\"]}"

static void groups_of_ignored_modules_say_nothing(void **state)
{
    struct checkpoint *c = *state;
    static const struct {
        const char *config, *refusal;
    } rows[] = {
        {WITHOUT_WEIGHTS("re:.*self_attn$", "re:.*self_attn"), NULL},
        {WITHOUT_WEIGHTS("LlamaAttention", "model.layers.0.self_attn"), NULL},
        {WITHOUT_WEIGHTS("re:.*proj", "re:.*(attn|mlp).*"), NULL},
        {WITHOUT_WEIGHTS("model.norm", "model.norm"), NULL},
        {WITHOUT_WEIGHTS("model.norm", "lm_head"), "no linear layers and no attention"},
        {WITHOUT_WEIGHTS("model.norm\", \"model.layers.0.input_layernorm", "model.norm"),
         "no linear layers and no attention"},
        {WITHOUT_WEIGHTS("re:.*(norm|q_proj)", "re:.*q_proj"), "no linear layers and no attention"},
        {WITHOUT_WEIGHTS("LlamaRMSNorm\", \"LlamaAttention", "LlamaAttention"),
         "no linear layers and no attention"},
        {WITHOUT_WEIGHTS("LlamaAttention", "lm_head"), "self_attn.k_scale"},
        {WITHOUT_WEIGHTS("re:.*proj", "re:.*attn.*"), "mlp.gate_proj.input_scale"},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        struct ctw_model *m;
        struct ctw_err err = {0};
        c->config = rows[i].config;
        m = open_ok(c);
        assert_true((m->activations == NULL) == (rows[i].refusal == NULL));
        ctw_model_close(m);
        const struct ctw_model_options options = {.quantises_activations = true};
        bool ok = ctw_model_open(&m, c->dir, &options, &err) == CTW_OK;
        if (ok != (rows[i].refusal == NULL) || (!ok && strstr(err.msg, rows[i].refusal) == NULL))
            fail_msg("row %zu: \"%s\"", i, err.msg);
        ctw_model_close(m);
    }
}

static void tensors_must_fit_the_config(void **state)
{
    struct checkpoint *c = *state;
    struct tensor *k = find(c, LAYER "self_attn.k_proj.weight"), was = *k;
    k->shape = "32, 16";
    expect_refusal(c, "model.safetensors: " LAYER "self_attn.k_proj: weight: found BF16 [32, 16], "
                      "expected [16, 32] according to config.json");
    *k = was;
    k->dtype = "I16";
    expect_refusal(c, LAYER "self_attn.k_proj: its tensors look like");
    *k = was;
    drop(c, LAYER "mlp.up_proj.weight");
    expect_refusal(c, "no tensor " LAYER "mlp.up_proj.weight (or .weight_packed), which "
                      "config.json needs as a [64, 32] matrix");
    add(c, LAYER "mlp.up_proj.weight", "BF16", "64, 32", 4096, NULL);
    find(c, "model.norm.weight")->dtype = "U16";
    expect_refusal(c, "model.norm.weight: found U16 [32], expected BF16, F16 or F32 [32]");
    find(c, "model.norm.weight")->dtype = "BF16";
    add(c, "model.layers.1.input_layernorm.weight", "BF16", "32", 64, NULL);
    expect_refusal(c,
                   "model.layers.1.input_layernorm.weight (BF16 [32]) has no use in a llama model");
}

static void harmless_leftovers(void **state)
{
    struct checkpoint *c = *state;
    add(c, LAYER "self_attn.rotary_emb.inv_freq", "F32", "4", 16, NULL);
    struct ctw_model *m = open_ok(c);
    assert_null(m->activations);
    ctw_model_close(m);
    add(c, LAYER "self_attn.k_scale", "BF16", "1", 2, NULL);
    add(c, LAYER "self_attn.v_scale", "BF16", "1", 2, NULL);
    m = open_ok(c);
    assert_string_equal(m->activations, "K/V cache scales");
    ctw_model_close(m);
}

/* Kept for `inspect`; another folder's keys are its own. */
static void unread_keys_are_kept(void **state)
{
    struct checkpoint *c = *state;
    struct ctw_model *m = open_ok(c);
    assert_null(m->unread);
    assert_int_equal(m->length_limit, 0);
    ctw_model_close(m);
    c->config = BF16_CONFIG ", \"sliding_window\": 64, \"rope_scaling\": {\"type\": \"dynamic\", "
                            "\"factor\": 2.0, \"alpha\": 8}";
    m = open_ok(c);
    assert_string_equal(m->unread, "sliding_window, rope_scaling.alpha");
    assert_int_equal(m->layers[1].branch[CTW_MIXER].attention.window, 0);
    assert_int_equal(m->length_limit, 128);
    ctw_model_close(m);
}

static void quantised_matrices(void **state)
{
    struct checkpoint *c = *state;
    /* A dense head that only a class targets */
    c->config = PACK("\"re:.*lm_head\"", "");
    expect_refusal(c, "lm_head: weight is stored dense (BF16), but");
    c->config = PACK("\"Linear\"", "\"re:.*layers.*\"");
    ctw_model_close(open_ok(c));
    c->config = PACK("\"re:.*[qk]_proj\"", "\"re:.*k_proj\"");
    PACK_MATRIX(c, LAYER "self_attn.q_proj", 32);
    struct ctw_model *m = open_ok(c);
    const struct ctw_weight *w = &m->layers[1].matrix[CTW_M_Q].weight;
    assert_true(w->format->id == CTW_FORMAT_pack_quantized);
    assert_true(w->bits == 4);
    assert_true(w->group_size == 16);
    assert_string_equal(m->activations, "int8 token dynamic");
    assert_true(m->weight_bits == 5.0); /* 4 + 16 / 16 */
    ctw_model_close(m);
    c->config = PACK("\"Linear\"", "\"re:.*\"");
    expect_refusal(c, LAYER "self_attn.q_proj: its tensors are pack-quantized, but "
                            "quantization_config has no config group");
    c->config = PACK("\"re:.*[qk]_proj\"", "");
    expect_refusal(c, LAYER "self_attn.k_proj: weight is stored dense (BF16), but");
    add(c, LAYER "self_attn.q_proj.weight", "BF16", "32, 32", 2048, NULL);
    expect_refusal(c, "q_proj has both weight_packed and weight");
}

/* "frozen": the stored tensors decide. */
static void frozen_checkpoints(void **state)
{
    struct checkpoint *c = *state;
    c->config = FROZEN("pack-quantized", "");
    PACK_MATRIX(c, LAYER "self_attn.q_proj", 32);
    ctw_model_close(open_ok(c));
    drop(c, LAYER "self_attn.q_proj.weight_packed");
    add(c, LAYER "self_attn.q_proj.weight", "BF16", "32, 32", 2048, NULL);
    /* With scales, as of 2026, and without, as of 2024. */
    expect_refusal(c, LAYER "self_attn.q_proj: weight is stored dense (BF16), but "
                            "quantization_config quantises it and says quantization_status");
    drop(c, LAYER "self_attn.q_proj.weight_scale");
    expect_refusal(c, LAYER "self_attn.q_proj: weight is stored dense (BF16), but "
                            "quantization_config quantises it and says quantization_status");
    c->config = FROZEN("dense", "");
    expect_refusal(c, LAYER "self_attn.q_proj: weight is stored dense (BF16), but "
                            "quantization_config quantises it and says quantization_status");
}

/* Told once, not for every matrix. */
static void parts_that_were_left_out_are_told(void **state)
{
    struct checkpoint *c = *state;
    struct capture log;
    c->config = FROZEN("pack-quantized", ", \"actorder\": \"group\", \"symmetric\": false");
    PACK_MATRIX(c, LAYER "self_attn.q_proj", 32);
    write_it(c);
    capture_start(&log, CTW_LOG_INFO);
    ctw_model_close(open_ok(c));
    capture_stop(&log);
    capture_expect(&log, "1 matrix (the first is " LAYER "self_attn.q_proj) has no weight_g_idx");
    capture_expect(&log,
                   "1 matrix (the first is " LAYER "self_attn.q_proj) has no weight_zero_point");
    assert_true(strstr(strstr(log.text, "weight_g_idx") + 1, "weight_g_idx") == NULL);
}

static void norms_of_queries_and_keys_have_any_dtypes(void **state)
{
    struct checkpoint *c = *state;
    c->config = ", \"dtype\": \"bfloat16\", \"head_dim\": 8";
    c->family = QWEN3;
    add(c, LAYER "self_attn.q_norm.weight", "BF16", "8", 16, NULL);
    add(c, LAYER "self_attn.k_norm.weight", "BF16", "8", 16, NULL);
    ctw_model_close(open_ok(c));
    drop(c, LAYER "self_attn.k_norm.weight");
    add(c, LAYER "self_attn.k_norm.weight", "F32", "8", 32, NULL);
    ctw_model_close(open_ok(c));
    drop(c, LAYER "self_attn.k_norm.weight");
    expect_refusal(c, "no tensor " LAYER "self_attn.k_norm.weight");
}

/* Zero points of a symmetric weight: none, if all are 0; else a contradiction. */
static void stray_zero_points(void **state)
{
    struct checkpoint *c = *state;
    static const char zeros[64] = {0}, last[64] = {[63] = 1};
    static const char refusal[] = "weight_zero_point: found I8 [32, 2], expected none";
    c->config = PACK("\"re:.*q_proj\"", "");
    PACK_MATRIX(c, LAYER "self_attn.q_proj", 32);
    add(c, LAYER "self_attn.q_proj.weight_zero_point", "I8", "32, 2", 64, zeros);
    struct ctw_model *m = open_ok(c);
    assert_null(m->layers[1].matrix[CTW_M_Q].part[CTW_PART_ZERO_POINT]);
    assert_true(m->layers[1].matrix[CTW_M_Q].weight.symmetric);
    ctw_model_close(m);
    c->tensors[c->n - 1].data = last;
    expect_refusal(c, refusal);
    c->tensors[c->n - 1] =
        (struct tensor){LAYER "self_attn.q_proj.weight_zero_point", "I32", "4, 2", 32, zeros};
    expect_refusal(c, "weight_zero_point: found I32 [4, 2], expected none");
    c->tensors[c->n - 1] =
        (struct tensor){LAYER "mlp.up_proj.weight_zero_point", "I8", "64, 2", 128, NULL};
    expect_refusal(c, LAYER "mlp.up_proj: weight_zero_point: found I8 [64, 2]");
}

/* Of embeddings, and of heads. */
#define TWO_SCHEMES                                                                                \
    BF16_CONFIG                                                                                    \
    ", \"quantization_config\": {\"quant_method\": \"compressed-tensors\", "                       \
    "\"format\": \"pack-quantized\", \"config_groups\": {\"a\": {\"targets\": "                    \
    "[\"Embedding\"], \"weights\": {\"num_bits\": 4, \"group_size\": 16}}, "                       \
    "\"b\": {\"targets\": [\"lm_head\"], \"weights\": {\"num_bits\": 8, \"group_size\": 16}}}}"

static void quantised_embeddings_and_heads(void **state)
{
    struct checkpoint *c = *state;
    c->config = PACK("\"lm_head\"", "");
    PACK_MATRIX(c, "lm_head", 16);
    ctw_model_close(open_ok(c));
    PACK_MATRIX(c, "model.embed_tokens", 16);
    expect_refusal(c, "model.embed_tokens: its tensors are pack-quantized, but");
    c->config = PACK("\"lm_head\", \"Embedding\"", "");
    ctw_model_close(open_ok(c));
    /* Tied: the head is the quantised embedding. */
    drop(c, "lm_head.weight_packed");
    drop(c, "lm_head.weight_scale");
    c->config = PACK("\"Embedding\"", "") ", \"tie_word_embeddings\": true";
    struct ctw_model *m = open_ok(c);
    assert_true(m->layers[2].matrix[CTW_M_HEAD].weight.format->id == CTW_FORMAT_pack_quantized);
    ctw_model_close(m);
    c->config = PACK("\"lm_head\", \"Embedding\"", "") ", \"tie_word_embeddings\": true";
    ctw_model_close(open_ok(c));
    c->config = TWO_SCHEMES ", \"tie_word_embeddings\": true";
    expect_refusal(c, "lm_head: weight_packed: found I32 [16, 4], expected I32 [16, 8]");
    drop(c, "model.embed_tokens.weight_packed");
    drop(c, "model.embed_tokens.weight_scale");
    add(c, "model.embed_tokens.weight", "BF16", "16, 32", 1024, NULL);
    c->config = PACK("\"lm_head\"", "") ", \"tie_word_embeddings\": true";
    expect_refusal(c, "config.json: quantization_config quantises lm_head, but");
}

static void a_missing_dtype_is_that_of_the_tensors(void **state)
{
    struct checkpoint *c = *state;
    c->config = "";
    struct ctw_model *m = open_ok(c);
    assert_int_equal(m->dtype, CTW_BF16);
    ctw_model_close(m);
    find(c, "model.norm.weight")->dtype = "F16";
    expect_refusal(c, "no dtype is given, and the tensors have several");
}

/* Tensors of other tools in a folder whose config.json does not say so. */
static void tensors_of_other_formats_are_named(void **state)
{
    struct checkpoint *c = *state;
    add(c, LAYER "self_attn.q_proj.qweight", "I32", "4, 32", 512, NULL);
    drop(c, LAYER "self_attn.q_proj.weight");
    expect_refusal(c, "model.safetensors: " LAYER
                      "self_attn.q_proj.qweight is a tensor of format \"GPTQ or AWQ\", but the "
                      "configuration does not say quant_method \"gptq\"");
    find(c, LAYER "self_attn.q_proj.qweight")->name = LAYER "self_attn.q_proj.trellis";
    expect_refusal(c, "self_attn.q_proj.trellis is a tensor of format \"EXL3\", but the "
                      "configuration does not say quant_method \"exl3\"");
    find(c, LAYER "self_attn.q_proj.trellis")->name = LAYER "self_attn.q_proj.weight_scale_2";
    add(c, LAYER "self_attn.q_proj.weight", "U8", "32, 16", 512, NULL);
    expect_refusal(c,
                   "self_attn.q_proj.weight_scale_2 is a tensor of format \"ModelOpt NVFP4\", but "
                   "the configuration does not say quant_method \"modelopt\"");
}

/* An empty file is refused as such, whether its path is given or its folder's. */
static void an_empty_gguf(void **state)
{
    struct checkpoint *c = *state;
    struct ctw_model *m;
    struct ctw_err err = {0};
    char path[128];
    path_of(c, "Model-Q4_K_M.gguf", path);
    FILE *to = fopen(path, "wb");
    assert_non_null(to);
    assert_int_equal(fclose(to), 0);
    const char *const paths[] = {c->dir, path};
    for (size_t i = 0; i < CTW_COUNT(paths); i++) {
        assert_int_equal(ctw_model_open(&m, paths[i], NULL, &err), CTW_EFORMAT);
        assert_string_equal(err.msg, "Model-Q4_K_M.gguf: the file is empty: a download failed; "
                                     "fetch it again");
    }
    assert_int_equal(remove(path), 0);
}

/* Wrappers rename what they wrap; the names say which, and each has its remedy. */
static void names_of_wrappers(void **state)
{
    struct checkpoint *c = *state;
    static const struct {
        const char *before, *after, *remedy;
    } rows[] = {
        {"_orig_mod.", "model.embed_tokens.weight", "which torch.compile adds: save"},
        {"model._orig_mod.", "embed_tokens.weight", "which torch.compile adds: save"},
        {"base_model.model.", "model.embed_tokens.weight", "which peft adds: save the merged"},
        {"model.embed_tokens.", "base_layer.weight", "which peft adds: save the merged"},
        {"model.embed_tokens.", "lora_A.default.weight", "that is not merged: save the merged"},
        {"module.", "model.embed_tokens.weight", "(model.module.save_pretrained)"},
        {"_fsdp_wrapped_module.", "model.embed_tokens.weight", "which FSDP adds"},
        {"_forward_module.", "model.embed_tokens.weight", "which a trainer adds"},
        {"model._checkpoint_wrapped_module.", "embed_tokens.weight", "of activations adds"},
    };
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        char name[128];
        (void)snprintf(name, sizeof(name), "%s%s", rows[i].before, rows[i].after);
        find(c, i == 0 ? "model.embed_tokens.weight" : "renamed")->name = name;
        expect_refusal(c, "no tensor model.embed_tokens.weight");
        expect_refusal(c, rows[i].remedy);
        find(c, name)->name = "renamed";
    }
    find(c, "renamed")->name = "model.my_module.weight"; /* no component "module." */
    write_it(c);
    struct ctw_model *m;
    struct ctw_err err = {0};
    assert_int_equal(ctw_model_open(&m, c->dir, NULL, &err), CTW_EFORMAT);
    assert_non_null(strstr(err.msg, "[16, 32] matrix"));
    assert_null(strstr(err.msg, "; "));
    find(c, "model.my_module.weight")->name = "model.embed_tokens.weight";
    find(c, "model.norm.weight")->name = "_orig_mod.model.norm.weight"; /* a vector is missing */
    expect_refusal(c, "no tensor model.norm.weight, which config.json needs as [32]; the names");
}

static void write_text(const struct checkpoint *c, const char *file, const char *text)
{
    char path[128];
    path_of(c, file, path);
    FILE *to = fopen(path, "wb");
    assert_non_null(to);
    assert_true(fputs(text, to) >= 0);
    assert_int_equal(fclose(to), 0);
}

static void adapters(void **state)
{
    struct checkpoint *c = *state;
    struct ctw_model *m;
    struct ctw_err err = {0};
    struct capture log;
    char path[128];
    write_text(c, "adapter_config.json", "{\"base_model_name_or_path\": \"owner/base\"}");
    assert_int_equal(ctw_model_open(&m, c->dir, NULL, &err), CTW_EUNSUP);
    assert_non_null(strstr(err.msg, "adapter_config.json: the folder holds an adapter (LoRA) of "
                                    "owner/base, not a model; merge it into its base model"));
    capture_start(&log, CTW_LOG_WARN);
    ctw_model_close(open_ok(c));
    capture_stop(&log);
    assert_non_null(strstr(log.text, "adapter_config.json: an adapter (LoRA) of owner/base lies "
                                     "beside the weights, which are scored without it"));
    write_text(c, "adapter_config.json", "{");
    path_of(c, "config.json", path);
    assert_int_equal(remove(path), 0);
    assert_int_equal(ctw_model_open(&m, c->dir, NULL, &err), CTW_EUNSUP);
    assert_non_null(strstr(err.msg, "holds an adapter (LoRA), not a model"));
    path_of(c, "adapter_config.json", path);
    assert_int_equal(remove(path), 0);
    capture_start(&log, CTW_LOG_WARN);
    ctw_model_close(open_ok(c));
    capture_stop(&log);
    assert_null(strstr(log.text, "adapter"));
}

static void a_wrong_folder(void **state)
{
    struct checkpoint *c = *state;
    struct ctw_model *m;
    struct ctw_err err = {0};
    assert_int_equal(ctw_model_open(&m, c->dir, NULL, &err), CTW_ENOTFOUND);
    assert_non_null(strstr(err.msg, "the folder has no config.json"));
    assert_null(strstr(err.msg, c->dir)); /* it goes over the wire */
    assert_int_equal(ctw_model_open(&m, "/tmp/ctw-no-such-folder", NULL, &err), CTW_ENOTFOUND);
    assert_non_null(strstr(err.msg, "no such folder"));
    write_config(c);
    assert_int_equal(ctw_model_open(&m, c->dir, NULL, &err), CTW_ENOTFOUND);
    assert_int_equal(
        ctw_model_open(&m, c->dir, &(struct ctw_model_options){.config_name = "other.json"}, &err),
        CTW_ENOTFOUND);
    assert_non_null(strstr(err.msg, "no other.json"));
    char path[128];
    path_of(c, "config.json", path);
    assert_int_equal(ctw_model_open(&m, path, NULL, &err), CTW_ENOTFOUND);
    assert_non_null(strstr(err.msg, "a file, not a folder"));
    assert_null(m);
}

/* Every allocation fails once, and all after it: an error each time, and nothing leaks. */
static void out_of_memory_is_an_error(void **state)
{
    struct checkpoint *c = *state;
    struct ctw_model *m = NULL;
    struct ctw_err err;
    c->config = PACK("\"re:.*q_proj\"", "");
    PACK_MATRIX(c, LAYER "self_attn.q_proj", 32);
    write_it(c);
    int64_t n = 0;
    for (enum ctw_status st = CTW_ENOMEM; st != CTW_OK; n++) {
        ctw_mem_fail_at(n + 1);
        st = ctw_model_open(&m, c->dir, NULL, &err);
        ctw_mem_fail_at(0);
        if (st != CTW_OK && st != CTW_ENOMEM)
            fail_msg("allocation %d: %s", (int)n + 1, err.msg);
        assert_true((st == CTW_OK) == (m != NULL));
    }
    assert_true(n > 30);
    ctw_model_close(m);
    ctw_model_close(NULL);
}

/* Gemma 4's last layer, whose values are keys. */
static void a_layer_whose_values_are_keys(void **state)
{
    struct checkpoint *c = *state;
    c->family = "\"architectures\": [\"Gemma4ForCausalLM\"], \"model_type\": \"gemma4_text\"";
    c->config = BF16_CONFIG ", \"head_dim\": 8, \"global_head_dim\": 8, \"attention_k_eq_v\": "
                            "true, \"hidden_size_per_layer_input\": 0";
    drop(c, LAYER "self_attn.v_proj.weight");
    drop(c, "lm_head.weight");
    add(c, LAYER "pre_feedforward_layernorm.weight", "BF16", "32", 64, NULL);
    add(c, LAYER "post_feedforward_layernorm.weight", "BF16", "32", 64, NULL);
    add(c, LAYER "self_attn.q_norm.weight", "BF16", "8", 16, NULL);
    add(c, LAYER "self_attn.k_norm.weight", "BF16", "8", 16, NULL);
    add(c, LAYER "layer_scalar", "BF16", "1", 2, NULL);
    struct ctw_model *m = open_ok(c);
    assert_true(m->layers[1].branch[CTW_MLP].scalar == 0);
    ctw_model_close(m);
    find(c, LAYER "layer_scalar")->data = "\x00\x3f";
    m = open_ok(c);
    assert_true(m->layers[1].branch[CTW_MLP].scalar == 0.5f);
    ctw_model_close(m);
    struct tensor *norm = find(c, LAYER "self_attn.q_norm.weight");
    norm->dtype = "F32";
    norm->bytes = 32;
    expect_refusal(c, "q_norm.weight is F32 and " LAYER "self_attn.k_norm.weight is BF16");
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_dense_model),
        TEST(a_layer_whose_values_are_keys),
        TEST(biases),
        TEST(tied_heads),
        TEST(a_tied_head_has_inputs_of_its_own),
        TEST(groups_of_ignored_modules_say_nothing),
        TEST(tensors_must_fit_the_config),
        TEST(harmless_leftovers),
        TEST(unread_keys_are_kept),
        TEST(quantised_matrices),
        TEST(frozen_checkpoints),
        TEST(parts_that_were_left_out_are_told),
        TEST(norms_of_queries_and_keys_have_any_dtypes),
        TEST(stray_zero_points),
        TEST(quantised_embeddings_and_heads),
        TEST(a_missing_dtype_is_that_of_the_tensors),
        TEST(tensors_of_other_formats_are_named),
        TEST(an_empty_gguf),
        TEST(names_of_wrappers),
        TEST(adapters),
        TEST(a_wrong_folder),
        TEST(out_of_memory_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
