/* Models with layer norms. */
#include <stddef.h>
#include <stdint.h>

#include "worker/checkpoint/gguf/archs.h"
#include "worker/checkpoint/gguf/config_writer.h"

/* StarCoder2Model: no window, which the models of 7B and 15B have and llama.cpp does not. */
static const struct ctw_gguf_name starcoder2_layers[] = {
    {"ffn_up", "mlp.c_fc", 0},
    {"ffn_down", "mlp.c_proj", 0},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key starcoder2_keys[] = {
    {"norm_epsilon", "attention.layer_norm_epsilon", true},
    {NULL, NULL, false},
};

static void write_starcoder2(struct ctw_gguf_keys *k)
{
    ctw_json_write_key_bool(&k->writer, "use_bias", ctw_gguf_has(k, "ffn_up.bias"));
}

/* StableLMModel. */
static const struct ctw_gguf_key layer_norm_keys[] = {
    {"layer_norm_eps", "attention.layer_norm_epsilon", true},
    {"use_parallel_residual", "use_parallel_residual", false},
    {NULL, NULL, false},
};

static void write_stablelm(struct ctw_gguf_keys *k)
{
    ctw_json_write_key_bool(&k->writer, "use_qkv_bias", ctw_gguf_has(k, "attn_q.bias"));
    if (ctw_gguf_has(k, "attn_q_norm.weight"))
        ctw_gguf_refuse(k, "attention.head_count",
                        "norms of each head (blk.0.attn_q_norm.weight) are not supported in this "
                        "kind of file");
}

/* Phi2Model: feed_forward_length is 4 * hidden, whatever the model has. */
static const struct ctw_gguf_name phi2_layers[] = {
    {"attn_output", "self_attn.dense", 0},
    {"ffn_up", "mlp.fc1", 0},
    {"ffn_down", "mlp.fc2", 0},
    {"output_norm", "model.final_layernorm", 0},
    {NULL, NULL, 0},
};

static const struct ctw_gguf_key phi2_keys[] = {
    {"layer_norm_eps", "attention.layer_norm_epsilon", true},
    {"intermediate_size", NULL, false},
    {NULL, NULL, false},
};

static void write_phi2(struct ctw_gguf_keys *k)
{
    ctw_gguf_write_rows(k, "intermediate_size", ctw_gguf_layer_tensor(k, 0, "ffn_up"));
}

/* NemotronModel: adds 1 to the weights of norms. */
static const struct ctw_gguf_key nemotron_keys[] = {
    {"norm_eps", "attention.layer_norm_epsilon", true},
    {NULL, NULL, false},
};

static void write_nemotron(struct ctw_gguf_keys *k)
{
    ctw_gguf_write_qkv_bias(k);
    ctw_json_write_key_bool(&k->writer, "mlp_bias", ctw_gguf_has(k, "ffn_up.bias"));
}

/* Jais2Model. */
static const struct ctw_gguf_key jais2_keys[] = {
    {"layer_norm_eps", "attention.layer_norm_epsilon", true},
    {NULL, NULL, false},
};

static void write_jais2(struct ctw_gguf_keys *k)
{
    ctw_gguf_write_qkv_bias(k);
    ctw_json_write_key_bool(&k->writer, "mlp_bias", ctw_gguf_has(k, "ffn_up.bias"));
}

const struct ctw_gguf_arch ctw_gguf_archs_layer_norm[] = {
    {.name = "jais2",
     .model_type = "jais2",
     .class_name = "Jais2ForCausalLM",
     .keys = jais2_keys,
     .fixed = "\"hidden_act\":\"relu2\"",
     .more = write_jais2},
    {.name = "starcoder2",
     .model_type = "starcoder2",
     .class_name = "Starcoder2ForCausalLM",
     .layers = starcoder2_layers,
     .keys = starcoder2_keys,
     .more = write_starcoder2},
    {.name = "stablelm",
     .model_type = "stablelm",
     .class_name = "StableLmForCausalLM",
     .keys = layer_norm_keys,
     .partial_rope = true,
     .more = write_stablelm},
    {.name = "phi2",
     .model_type = "phi",
     .class_name = "PhiForCausalLM",
     .layers = phi2_layers,
     .keys = phi2_keys,
     .partial_rope = true,
     .more = write_phi2},
    {.name = "nemotron",
     .model_type = "nemotron",
     .class_name = "NemotronForCausalLM",
     .keys = nemotron_keys,
     .partial_rope = true,
     .norms_plus_one = true,
     .more = write_nemotron},
    {0},
};
