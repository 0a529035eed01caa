/*
 * OPT: layer norms, learned positions, a plain MLP. The 350M model normalises the residual itself,
 * after each branch, and its embedding is narrower than the model. Defaults: OPTConfig.
 */
#include "worker/model/families/family.h"

struct opt {
    struct ctw_sizes sizes;
    int64_t head, width; /* width: of the embedding */
    bool norm_before, bias;
    struct ctw_norm_form norm;
    enum ctw_activation act;
};

/* Of the embedding and of the head. */
static void describe_width(struct ctw_config *c, const struct opt *o)
{
    if (o->width == o->sizes.hidden)
        return;
    int64_t hidden = o->sizes.hidden;
    ctw_describe_linear(c, CTW_EMBEDDING, 0,
                        &(struct ctw_linear_rules){CTW_P_WIDTH, CTW_M_EMBED_PROJ, 0,
                                                   "model.decoder.project_in", hidden, o->width});
    ctw_describe_linear(c, o->sizes.n_layers, 0,
                        &(struct ctw_linear_rules){CTW_P_WIDTH, CTW_M_EMBED_PROJ, 0,
                                                   "model.decoder.project_out", o->width, hidden});
}

static void describe_layer(struct ctw_config *c, int64_t i, const struct opt *o)
{
    ctw_describe_norm(c, i, o->norm_before ? CTW_AT_MIXER : CTW_AT_MIXER_SUM, &o->norm,
                      "self_attn_layer_norm", 0);
    ctw_describe_norm(c, i, o->norm_before ? CTW_AT_MLP : CTW_AT_MLP_SUM, &o->norm,
                      "final_layer_norm", 0);
    ctw_describe_attention(c, i,
                           &(struct ctw_attention_rules){.n_head = o->sizes.n_head,
                                                         .n_kv = o->sizes.n_head,
                                                         .head = o->head,
                                                         .rope = -1,
                                                         .o = "self_attn.out_proj",
                                                         .qkv_bias = o->bias,
                                                         .o_bias = o->bias});
    ctw_describe_mlp(c, i,
                     &(struct ctw_mlp){.inner = o->sizes.inner,
                                       .act = o->act,
                                       .plain = true,
                                       .bias = o->bias,
                                       .up = "fc1",
                                       .down = "fc2"});
}

static void describe(struct ctw_config *c)
{
    enum { POSITION0 = 2 }; /* the table's first two rows have no use */
    struct opt o = {.sizes =
                        ctw_key_sizes_as(c,
                                         &(struct ctw_sizes){.vocab = 50272,
                                                             .hidden = 768,
                                                             .inner = 3072,
                                                             .n_layers = 12,
                                                             .n_head = 12,
                                                             .max_length = 2048},
                                         &(struct ctw_size_keys){.inner = "ffn_dim", .n_kv = ""})};
    int64_t hidden = o.sizes.hidden;
    o.head = ctw_head_of(c, &o.sizes);
    o.width = ctw_key_int(c, "word_embed_proj_dim", hidden, hidden, 1, 1 << 18);
    o.norm_before = ctw_key_bool(c, "do_layer_norm_before", true);
    o.bias = ctw_key_bool(c, "enable_bias", true);
    o.norm = (struct ctw_norm_form){.kind = CTW_NORM_LAYER, .eps = 1e-5, .bias = true};
    o.norm.weightless = !ctw_key_bool(c, "layer_norm_elementwise_affine", true);
    o.act = ctw_key_activation(c, "activation_function", CTW_ACT_RELU);
    bool ends = !ctw_key_bool(c, "_remove_final_layer_norm", false) && o.norm_before;
    ctw_describe_model(
        c, &o.sizes,
        &(struct ctw_model_rules){.layers = "model.decoder.layers",
                                  .embed = "model.decoder.embed_tokens",
                                  .final_norm = ends ? "model.decoder.final_layer_norm" : "",
                                  .norm = o.norm,
                                  .tied = true,
                                  .embed_dim = o.width});
    ctw_describe_positions(c, "model.decoder.embed_positions", POSITION0);
    describe_width(c, &o);
    for (int64_t i = 0; i < o.sizes.n_layers; i++)
        describe_layer(c, i, &o);
}

/* Some of the hub's files have no prefix. */
static const struct ctw_spelling spellings[] = {{"model.", "lm_head"}, {"", "lm_head"}, {0}};

const struct ctw_family ctw_family_opt = {.model_type = "opt",
                                          .architecture = "OPTForCausalLM",
                                          .spellings = spellings,
                                          .describe = describe};
