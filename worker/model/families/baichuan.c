/*
 * Baichuan 1 and 2: Llama's layers, with one projection for q, k and v. Models of 7B have RoPE,
 * those of 13B ALiBi; version 2 has a head whose rows have unit length. Defaults: the files' own
 * configuration_baichuan.py, one of each kind.
 */
#include <inttypes.h>

#include "worker/model/families/family.h"

/* The code of the two kinds comes with their files, and all have the same model_type: only 7B's
 * class has max_position_embeddings. */
static bool has_rope(struct ctw_config *c)
{
    return ctw_key_is_given(c, "max_position_embeddings");
}

static struct ctw_sizes key_sizes(struct ctw_config *c, bool rope)
{
    const struct ctw_sizes small = {.vocab = 64000,
                                    .hidden = 4096,
                                    .inner = 11008,
                                    .n_layers = 32,
                                    .n_head = 32,
                                    .max_length = 4096};
    const struct ctw_sizes large = {.vocab = 64000,
                                    .hidden = 5120,
                                    .inner = 13696,
                                    .n_layers = 40,
                                    .n_head = 40,
                                    .max_length = 4096};
    struct ctw_sizes s = ctw_key_sizes_as(
        c, rope ? &small : &large,
        &(struct ctw_size_keys){.n_kv = "", .max_length = rope ? NULL : "model_max_length"});
    if (s.hidden == (rope ? large.hidden : small.hidden))
        ctw_key_fail(c, "max_position_embeddings", CTW_EUNSUP,
                     "models of hidden_size 4096 (7B) have this key and RoPE, those of 5120 (13B) "
                     "have neither, but ALiBi: with hidden_size %" PRId64
                     ", it is not known which this is",
                     s.hidden);
    return s;
}

/* Version 2's class has z_loss_weight, which files from elsewhere write; its vocabulary is 125696,
 * that of version 1 64000. */
static bool has_unit_head(struct ctw_config *c, int64_t vocab)
{
    enum { VOCAB_1 = 65536, VOCAB_2 = 125696 };
    bool given = ctw_key_number(c, "z_loss_weight", -1, -1, 0, 1e6) >= 0;
    if (!given && vocab > VOCAB_1 && vocab < VOCAB_2)
        ctw_key_fail(c, "vocab_size", CTW_EUNSUP,
                     "Baichuan 1 has 64000, Baichuan 2, whose head differs, 125696: it is not "
                     "known which this is. If it is Baichuan 2, add \"z_loss_weight\": 0");
    return given || vocab >= VOCAB_2;
}

static void describe(struct ctw_config *c)
{
    bool rotates = has_rope(c);
    const struct ctw_sizes s = key_sizes(c, rotates);
    int64_t head = ctw_head_of(c, &s);
    const struct ctw_norm_form norm = ctw_key_rms_norm(c, "rms_norm_eps", 1e-6);
    enum ctw_activation act = ctw_key_activation(c, "hidden_act", CTW_ACT_SILU);
    ctw_describe_model(
        c, &s, &(struct ctw_model_rules){.norm = norm, .unit_head = has_unit_head(c, s.vocab)});
    int rope = -1;
    if (rotates)
        rope = ctw_describe_rope(c, &(struct ctw_rope_rules){.head = head, .theta = 10000.0});
    else
        ctw_describe_alibi(c, s.n_head, 8, 1);
    for (int64_t i = 0; i < s.n_layers; i++) {
        ctw_describe_norms(c, i, &norm);
        ctw_describe_attention(
            c, i,
            &(struct ctw_attention_rules){
                .head = head, .rope = rope, .order = CTW_QKV_IN_ORDER, .qkv = "self_attn.W_pack"});
        ctw_describe_mlp(c, i, &(struct ctw_mlp){.inner = s.inner, .act = act});
    }
}

const struct ctw_family ctw_family_baichuan = {.model_type = "baichuan",
                                               .architecture = "BaichuanForCausalLM",
                                               .old_architecture = "BaiChuanForCausalLM",
                                               .describe = describe};
