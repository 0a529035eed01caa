/*
 * Rotary embeddings: the parameters, as written by transformers 4 (rope_theta, rope_scaling) and 5
 * (rope_parameters), and the frequencies, in fp32 and in transformers' own order of operations.
 */
#ifndef CTW_WORKER_ROPE_H
#define CTW_WORKER_ROPE_H

#include <stdint.h>

#include "kernels/operations.h"
#include "worker/checkpoint/config/unread.h"

enum ctw_rope_type {
    CTW_ROPE_DEFAULT,
    CTW_ROPE_LINEAR,
    /* Equal to default in sequences of up to max_position_embeddings tokens. In longer sequences
     * every frequency depends on the sequence's length, which is not supported. */
    CTW_ROPE_DYNAMIC,
    CTW_ROPE_LLAMA3,
    CTW_ROPE_YARN,
    /* One factor per frequency: short ones in sequences of up to original_length inputs, long ones
     * for every position of longer sequences. */
    CTW_ROPE_LONGROPE,
    /* Default over the whole head, with frequencies of 0 beyond the partial factor. */
    CTW_ROPE_PROPORTIONAL,
    CTW_ROPE_N_TYPES
};

/* How a family says one of its RoPEs. Strings are literals: they are not copied. */
struct ctw_rope_rules {
    int64_t head; /* elements of the heads that it rotates */
    enum ctw_rope_pairing pairing;
    double theta;            /* transformers' default */
    const char *theta_key;   /* at the top level; NULL: "rope_theta" */
    bool theta_at_top;       /* theta_key counts, not rope_parameters' rope_theta (MiMo V2) */
    double own_theta;        /* counts instead of any key's (Granite Swash); 0: none */
    const char *layer_type;  /* the layers' name in transformers 5's rope_parameters, which has an
                                object per layer type; NULL: one RoPE for all layers */
    bool unscaled;           /* transformers 4's rope_scaling is for another layer type */
    const char *partial_key; /* at the top level, the rotated share of each head; NULL: all of it */
    double partial;          /* transformers' default for it; 0: 1 */
    int64_t rotated;         /* elements of each head, if no key says a share; 0: partial's */
    const char *absent;      /* transformers' default of rope_parameters, or of its member for the
                                layer type, as JSON; NULL: {} */
    bool old_longrope;       /* "su", and "yarn" with short_factor, mean longrope (Phi 3) */
    double original_length;  /* default of original_max_position_embeddings at the top level, which
                                wins over rope_parameters' (Phi 3); 0: none */
    bool mrope;              /* type "mrope" is default: all three positions are equal in text */
    const char *yarn;        /* another name of type yarn (Sarvam); NULL: none */
    bool backwards;          /* heads turn the other way: angles are negative (nanochat) */
    bool alpha;              /* type dynamic has alpha (HunYuan) */
    bool mscales;            /* type longrope has short_mscale and long_mscale (Phi-MoE) */
    bool unscaled_yarn; /* without an object per layer type, type yarn's attention_factor is 1 by
                           default (DeepSeek V4) */
    bool lists;         /* theta and partial_key may be lists at the top level (Step), of which */
    int64_t layer;      /* this layer's entries are read */
};

struct ctw_rope_params {
    struct ctw_rope_rules rules;
    enum ctw_rope_type type;
    double theta;
    double factor; /* all types but default */
    /* llama3 */
    double low_freq_factor, high_freq_factor;
    /* llama3, yarn, longrope */
    double original_length;
    /* yarn */
    double beta_fast, beta_slow;
    bool truncate;
    /* yarn, longrope */
    double attention_factor;      /* factor of cosines and sines; 1 for the other types */
    double long_attention_factor; /* longrope's in longer sequences; equal but for mscales */
    /* longrope: [rot_dim / 2] numbers each, in the document */
    const struct ctw_json_node *short_factor, *long_factor;
    double partial_factor; /* the rotated share of each head */
    int rot_dim;           /* elements of a head that are rotated */
};

/*
 * Reads root's rope_scaling, rope_parameters, theta, and, if the type uses them, the partial factor
 * and original_max_position_embeddings. (Classes that rotate whole heads ignore
 * partial_rotary_factor for type default.) CTW_EUNSUP: the message names the type or key that is
 * not supported.
 */
enum ctw_status ctw_rope_read(struct ctw_rope_params *out, const struct ctw_json_node *root,
                              const struct ctw_rope_rules *rules, int64_t max_length,
                              struct ctw_err *err) CTW_MUST_CHECK;

/* Who reads RoPE's keys: n RoPEs, and the family itself, NULL-terminated (NULL: none). */
struct ctw_rope_readers {
    const struct ctw_rope_params *rope;
    int n;
    const char *const *keys;
};

/* Does one of them read `key` of root? */
bool ctw_rope_reads(const struct ctw_rope_readers *r, const char *key) CTW_MUST_CHECK;
/* Adds the members of rope_scaling and rope_parameters that none of them reads. */
enum ctw_status ctw_rope_list_unread(const struct ctw_rope_readers *r,
                                     const struct ctw_json_node *root, struct ctw_unread *unread,
                                     struct ctw_err *err) CTW_MUST_CHECK;

/* inv_freq[i], i = 0 .. rot_dim/2-1: the angle of position p is fl32(p * inv_freq[i]). */
void ctw_rope_frequencies(const struct ctw_rope_params *p, int rot_dim, float *inv_freq);
/* Those of longer sequences than original_length, for type longrope. */
void ctw_rope_long_frequencies(const struct ctw_rope_params *p, int rot_dim, float *inv_freq);

/*
 * Writes the cosines of a position's rot_dim / 2 angles, then their sines, each times scale. The
 * angle is fp32, as in transformers: for large positions it is coarse, and must be coarse in the
 * same way.
 */
void ctw_rope_row(const float *inv_freq, int rot_dim, float scale, int64_t position, float *row);

#endif
