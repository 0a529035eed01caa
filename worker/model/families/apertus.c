/*
 * Apertus: norms of query and key heads, a plain MLP with xIELU, whose numbers are tensors of each
 * layer. Apertus 1.5: ids of pictures and sounds behind those of text, which the head may lack.
 * Defaults: ApertusConfig, Apertus1p5TextConfig.
 */
#include <stdio.h>

#include "worker/model/families/family.h"

/* transformers' RoPE for a file without one. */
static const char absent_rope[] =
    "{\"rope_type\": \"llama3\", \"rope_theta\": 12000000.0, \"factor\": 8.0, "
    "\"original_max_position_embeddings\": 8192, \"low_freq_factor\": 1.0, "
    "\"high_freq_factor\": 4.0}";

static void check_rope_scaling(struct ctw_config *c)
{
    const struct ctw_json_node *node = ctw_json_get(c->text, "rope_scaling");
    if (node != NULL && ctw_json_is_null(node) && !ctw_key_is_given(c, "rope_parameters"))
        ctw_key_fail(c, "rope_scaling", CTW_EFORMAT,
                     "found null, which is type default in transformers 4, and type llama3 with "
                     "factor 8, as if it were absent, in transformers 5: give the type");
}

static void describe_mlp(struct ctw_config *c, int64_t i, const struct ctw_mlp *mlp)
{
    static const char *const numbers[] = {"alpha_p", "alpha_n", "beta", "eps"};
    ctw_describe_mlp(c, i, mlp);
    for (size_t k = 0; mlp->act == CTW_ACT_XIELU && k < CTW_COUNT(numbers); k++) {
        char name[32];
        (void)snprintf(name, sizeof(name), "mlp.act_fn.%s", numbers[k]);
        ctw_describe_vector(c, i, ctw_vector_at(CTW_MLP, CTW_V_ACT) + (int)k, name, 1);
    }
}

static void describe_with(struct ctw_config *c, int64_t vocab, bool prunes)
{
    const struct ctw_sizes s = ctw_key_sizes(c, &(struct ctw_sizes){.vocab = vocab,
                                                                    .hidden = 4096,
                                                                    .inner = 14336,
                                                                    .n_layers = 32,
                                                                    .n_head = 32,
                                                                    .n_kv = 0,
                                                                    .max_length = 65536});
    /* head_dim is not a field of the class, but is read if present. */
    int64_t head = ctw_key_head_dim(c, &s, 0, CTW_NULL_REFUSED);
    bool bias = ctw_key_bool(c, "attention_bias", false);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-5);
    const struct ctw_qk_norms qk_norms = {.form = norm, .heads = CTW_HEADS_ALIKE};
    const struct ctw_mlp mlp = {
        .inner = s.inner, .act = ctw_key_activation(c, "hidden_act", CTW_ACT_XIELU), .plain = true};
    const int64_t head_rows =
        prunes ? ctw_key_int(c, "output_vocab_size", s.vocab, s.vocab, 1, s.vocab) : s.vocab;
    ctw_describe_model(c, &s, &(struct ctw_model_rules){.norm = norm, .head_rows = head_rows});
    if (c->model->tied && head_rows != s.vocab)
        ctw_key_fail(c, "output_vocab_size", CTW_EFORMAT,
                     "a head of fewer rows than the embedding with tie_word_embeddings");
    check_rope_scaling(c);
    int rope = ctw_describe_rope(
        c, &(struct ctw_rope_rules){.head = head, .theta = 12000000.0, .absent = absent_rope});
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norm(c, i, CTW_AT_MIXER, &norm, "attention_layernorm", 0);
        ctw_describe_norm(c, i, CTW_AT_MLP, &norm, "feedforward_layernorm", 0);
        ctw_describe_attention(
            c, i,
            &(struct ctw_attention_rules){
                .head = head, .rope = rope, .qkv_bias = bias, .o_bias = bias, .norms = &qk_norms});
        describe_mlp(c, i, &mlp);
    }
}

static void describe(struct ctw_config *c)
{
    describe_with(c, 131072, false);
}

static void describe1p5(struct ctw_config *c)
{
    describe_with(c, 266752, true);
}

const struct ctw_family ctw_family_apertus1p5_text = {.model_type = "apertus1p5_text",
                                                      .architecture = "Apertus1p5TextForCausalLM",
                                                      .spellings = ctw_wrapped_spellings,
                                                      .describe = describe1p5};

const struct ctw_family ctw_family_apertus1p5 = {
    .model_type = "apertus1p5",
    .architecture = "Apertus1p5ForConditionalGeneration",
    .wrapper = &(const struct ctw_wrapper){.text_type = "apertus1p5_text", .is_default = true},
    .spellings = ctw_wrapped_spellings,
    .describe = describe1p5};

const struct ctw_family ctw_family_apertus = {
    .model_type = "apertus", .architecture = "ApertusForCausalLM", .describe = describe};
