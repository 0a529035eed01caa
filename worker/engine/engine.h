/*
 * An engine is a model opened on one or several devices, ready to score. This header is the only
 * interface between the numeric code and the commands and job queue. An engine is not thread-safe.
 * Several engines may be open; engines with the same table of devices share the devices and are
 * used by one thread.
 *
 * An engine with several devices deals sequences to the devices (deal.h), each of which has a
 * thread while the engine scores. The devices are of one kind, so that all have the same numerics
 * id.
 */
#ifndef CTW_WORKER_ENGINE_H
#define CTW_WORKER_ENGINE_H

#include <stdatomic.h>

#include "base/text.h"
#include "worker/model/model.h"

struct ctw_devices; /* worker/engine/open/devices.h */
struct ctw_machine; /* worker/engine/place/machine.h */
struct ctw_engine;

enum { CTW_MAX_DEVICES = 16 };

struct ctw_engine_options {
    const char *model_dir;
    const char *name;           /* what reports call it, or NULL; outlives the engine */
    const char *config_name;    /* NULL: config.json */
    struct ctw_model *model;    /* an open model, which the engine takes over even if opening
                                   fails; or NULL */
    const char *backend;        /* NULL: auto */
    const char *variant;        /* CPU backend's variant; NULL: best */
    const char *cuda_variant;   /* CUDA backend's; NULL: best */
    const char *dtype;          /* NULL or "auto", "bfloat16", "float16", "float32" */
    bool quantises_activations; /* as the checkpoint declares */
    int n_threads;              /* 0: all CPUs */
    int device;
    const char *device_list;        /* "all", "0,1", "0-3", in place of `device`; or NULL */
    struct ctw_devices *devices;    /* lends the device and outlives the engine; NULL: the engine
                                       opens its own devices */
    struct ctw_amount device_limit; /* of each device's memory, for weights and passes together;
                                       of the machine's, on the CPU */
    uint64_t memory_limit;          /* bytes beyond the weights, on each device; 0: the default */
    const char *place;      /* NULL or "auto", "mapped", "resident", "sharded", "streamed" */
    uint64_t weights_limit; /* bytes of each device's memory for the weights; 0: what there is */
    uint64_t host_limit;    /* bytes of host memory for weights that GPUs do not hold; 0: none */
    int64_t max_length;     /* 0: the model's maximum */
    int64_t vocab;          /* probabilities over the first ids only; 0: over all */
    int64_t chunk_tokens;   /* 0: planned. For tests and tuning; never changes a score */
    int64_t pass_tokens;    /* 0: planned. For tests and tuning; never changes a score */
    bool no_share;          /* every sequence is computed whole. Never changes a score */
    bool plan_only;         /* open for ctw_engine_get_info() only: no weights are read */
    const struct ctw_machine *machine; /* the machine to plan for, with plan_only; else NULL.
                                          Outlives the engine */
    const atomic_bool *stop; /* set by another thread; opening then returns CTW_ECANCELED. NULL:
                                none */
};

/* The results that comparing with a reference adds to a sequence: [n_tok - first] each, all out,
 * all but `overlap5` defined as in struct ctw_divergence_result. */
struct ctw_seq_divergence {
    float *ref_logprob;
    int32_t *ref_greedy; /* the reference's most probable id, */
    float *ref_top;      /* and its log-probability */
    float *kl, *kl_reverse, *tv;
    uint8_t *overlap5;
    /* out [n_decoders + 1], or NULL: how the model's hidden states differ from the reference's,
     * over all tokens that the models read; after the embedding, and after each decoder layer */
    struct ctw_difference_result *layers;
    /* out [n_matrices], or NULL: the sum of KL(reference || exchanged) over the targets, where
     * `exchanged` is the reference with one matrix from the model; see ctw_engines_exchangeable()
     */
    double *matrices;
    bool bad_reference; /* out: bad_layer is of the reference */
};

/*
 * One sequence to score. The model reads tokens[0 .. n_tok-2]; targets are
 * tokens[first .. n_tok-1], each given all tokens before it. 1 <= first <= n_tok-1, and
 * n_tok-1 <= the engine's max_length. Token ids are within the vocabulary, the sequence's own if it
 * has one.
 */
struct ctw_seq {
    const int32_t *tokens;
    int64_t n_tok;
    int64_t first;
    int64_t vocab;   /* probabilities over the first ids only; 0: over all of the engine's */
    float *logprob;  /* out [n_tok - first], natural log */
    int32_t *greedy; /* out [n_tok - first], the most probable id (the lowest on a tie) */
    void *hidden;    /* out [n_tok - first, hidden] of the engine's dtype, or NULL: the
                        normalised final hidden states that the targets were scored from */
    int bad_layer;   /* out: -1, or the decoder layer (n_decoders: the head) after which the
                        sequence's numbers were not finite; the results are then invalid */
    struct ctw_seq_divergence *divergence; /* out, with ctw_scoring_begin_comparing() only;
                                              `hidden` and `vocab` are then unused */
};

struct ctw_progress {
    int64_t tok_done, tok_total; /* tokens through all layers; a partial pass counts in part */
    int64_t tok_computed;        /* of tok_done: tokens that sequences share count once */
    int pass, n_passes;
    int layer, n_layers;
};

struct ctw_hooks {
    void *arg;
    void (*progress)(void *arg, const struct ctw_progress *p); /* called often; may be NULL */
    bool (*cancelled)(void *arg);                              /* polled every chunk; may be NULL */
    /* The results of seqs[first .. first+n-1] are final. May be NULL. With several devices, in any
     * order. */
    void (*done)(void *arg, int64_t first, int64_t n);
    /* What the caller is about to score after these sequences, or NULL: what it has in common with
     * one of these need not be computed again. Its tokens and `first` are read. */
    const struct ctw_seq *next;
    /*
     * For comparing without layers and matrices; set both hooks or neither. The caller keeps the
     * reference's final hidden states, which the reference's head reads. `rows` holds the states of
     * the targets of seqs[first .. first+n-1], sequence after sequence, [targets, embed_dim] of the
     * reference's dtype. load_hidden() is called once a pass, before the reference's layers. If
     * load_hidden() returns true, all rows are filled in, and these sequences go through the
     * reference's head only. Otherwise keep_hidden() is called when the pass's results are final,
     * before done().
     */
    bool (*load_hidden)(void *arg, int64_t first, int64_t n, void *rows);
    void (*keep_hidden)(void *arg, int64_t first, int64_t n, const void *rows);
};

/* How the engine will run, for users and result records. Strings live as long as the engine. */
struct ctw_engine_info {
    struct ctw_backend_info backend;
    enum ctw_dtype dtype;
    int64_t max_length;
    double pair_cost; /* attention of one query to one key, as a multiple of a token's other work */
    /* The longest input that fits the memory limit, at most max_length. A GPU's default limit is
     * measured again for each pass, so fit_length then equals max_length. */
    int64_t fit_length;
    int64_t vocab;
    int64_t chunk_tokens, pass_tokens;
    int n_devices;
    int64_t call_tokens; /* input tokens of a call that keep all devices busy to the end; with
                            one device, a pass */
    uint64_t memory_planned, memory_limit; /* bytes beyond the weights */
    const char *place;                     /* "mapped", "resident", "sharded", "streamed" */
    /* Bytes: in all; of memory that they take. Of all bytes, in every pass each device copies so
     * many from the memory of all devices or of the host, or they are read; it keeps the rest. */
    uint64_t weights_bytes, weights_memory;
    uint64_t weights_gathered, weights_hosted, weights_streamed;
    const char *place_note; /* what that costs, in words */
    const char *numerics;   /* backend, variant, dtype, version: equal ids give equal bits */
    const struct ctw_model *model;
};

/* How ctw_engine_open() opens the model. */
struct ctw_model_options ctw_engine_model_options(const struct ctw_engine_options *opt);

enum ctw_status ctw_engine_open(struct ctw_engine **out, const struct ctw_engine_options *opt,
                                struct ctw_err *err) CTW_MUST_CHECK;
void ctw_engine_close(struct ctw_engine *e); /* NULL is fine */
/* Frees the memory that scoring allocated; the next scoring allocates it again. The device's
 * scratch memory is freed once no engine on the device needs it. With several engines, only the
 * engine in use need hold such memory. Do not call this while the engine is scoring. */
void ctw_engine_trim(struct ctw_engine *e);
void ctw_engine_get_info(const struct ctw_engine *e, struct ctw_engine_info *out);
/* The numerics id of sequences with this `vocab`. */
enum { CTW_NUMERICS_MAX = 160 };
void ctw_engine_numerics(const struct ctw_engine *e, int64_t vocab, char out[CTW_NUMERICS_MAX]);
/* Identifies the checkpoint: 64 hex digits over every byte that the model reads. "" while the
 * weights for a GPU are still being read; known before any sequence is final. Thread-safe. The
 * string lives as long as the engine. */
const char *ctw_engine_identity(const struct ctw_engine *e);
/* The part of the identity that is known at once: checkpoints of equal identity have equal
 * outlines. The string lives as long as the engine. */
const char *ctw_engine_outline(const struct ctw_engine *e);
/* Waits until the identity is known. If reading the weights fails, returns that failure. */
enum ctw_status ctw_engine_wait_identity(struct ctw_engine *e, struct ctw_err *err) CTW_MUST_CHECK;
/* The device's choices of algorithms for matrix products, for all its engines, one line per choice
 * in the order of first use. "" if the backend has no choice. Truncated to `cap`. */
void ctw_engine_describe(const struct ctw_engine *e, char *buf, size_t cap);

/*
 * The only rule that makes passes of sequences: a pass takes sequences in their order until the
 * next sequence does not fit. A sequence longer than pass_tokens is a pass of its own. Returns true
 * if a sequence of n_more input tokens still fits a pass of n_seqs sequences with n_tok input
 * tokens.
 */
static inline bool ctw_pass_fits(int64_t n_seqs, int64_t n_tok, int64_t n_more, int64_t pass_tokens)
{
    return n_seqs == 0 || n_tok + n_more <= pass_tokens;
}

/* The input tokens and the scored rows that scoring these sequences alone would compute now, about;
 * what they share, also with sequences that the engine scored before, counts once. */
void ctw_engine_count(const struct ctw_engine *e, const struct ctw_seq *seqs, int64_t n_seqs,
                      int64_t *n_tok, int64_t *n_rows);

/*
 * Scores seqs in passes. CTW_EINVAL: a sequence breaks the rules above (the message says which) and
 * nothing was scored. CTW_ECANCELED: hooks->cancelled returned true; sequences already reported to
 * done() are final. A sequence's numbers do not depend on the other sequences, their order, or the
 * engine's devices, chunk, pass, memory or thread settings. If one of several devices fails
 * (CTW_EDEVICE) or runs out of memory for now (CTW_ENOMEM), the other devices score its sequences.
 */
enum ctw_status ctw_engine_score(struct ctw_engine *e, struct ctw_seq *seqs, int64_t n_seqs,
                                 const struct ctw_hooks *hooks, struct ctw_err *err) CTW_MUST_CHECK;

/* Compares in the same way: see ctw_scoring_begin_comparing(). *in_reference (or NULL): a failure
 * is the reference's. */
enum ctw_status ctw_engine_compare(struct ctw_engine *e, struct ctw_engine *reference,
                                   struct ctw_seq *seqs, int64_t n_seqs,
                                   const struct ctw_hooks *hooks, bool *in_reference,
                                   struct ctw_err *err) CTW_MUST_CHECK;

/*
 * ctw_engine_score() in steps, so that a thread can take turns between engines: begin, step until
 * *done or an error, end. A step is one layer of one pass. An engine scores one set of sequences at
 * a time, and is neither trimmed nor closed before the end. What `seqs` and `hooks` point to must
 * live until then; `hooks` itself is copied.
 */
struct ctw_scoring;
enum ctw_status ctw_scoring_begin(struct ctw_scoring **out, struct ctw_engine *e,
                                  struct ctw_seq *seqs, int64_t n_seqs,
                                  const struct ctw_hooks *hooks,
                                  struct ctw_err *err) CTW_MUST_CHECK;
/*
 * The same for two models, which go through the same passes layer by layer; every sequence has
 * `divergence`. logprob and greedy are the model's. Both models' scores have the bits that scoring
 * each model alone gives. Both engines are on one device (CTW_EINVAL if not), share its memory, and
 * are in use until the end. Their vocabularies are equal up to padding; see
 * ctw_engines_comparable(). Progress counts a token once it is through both models.
 */
enum ctw_status ctw_scoring_begin_comparing(struct ctw_scoring **out, struct ctw_engine *e,
                                            struct ctw_engine *reference, struct ctw_seq *seqs,
                                            int64_t n_seqs, const struct ctw_hooks *hooks,
                                            struct ctw_err *err) CTW_MUST_CHECK;
/* CTW_EINVAL: the engines cannot be compared; the message states the reason. *pass_tokens (or
 * NULL): about the tokens of a pass. */
enum ctw_status ctw_engines_comparable(const struct ctw_engine *e,
                                       const struct ctw_engine *reference, int64_t *pass_tokens,
                                       struct ctw_err *err) CTW_MUST_CHECK;
/* CTW_EINVAL: their sequences cannot have `layers`; the message says why. */
enum ctw_status ctw_engines_layers_comparable(const struct ctw_engine *e,
                                              const struct ctw_engine *reference,
                                              struct ctw_err *err) CTW_MUST_CHECK;
/*
 * CTW_EINVAL: their sequences cannot have `matrices`; the message says why. *n_matrices: the
 * model's quantised matrices in its decoder layers and in a head of its own, in the order of the
 * layers.
 */
enum ctw_status ctw_engines_exchangeable(const struct ctw_engine *e,
                                         const struct ctw_engine *reference, int64_t *n_matrices,
                                         struct ctw_err *err) CTW_MUST_CHECK;
/* "model.layers.0.self_attn.q_proj". Experts' matrices are exchanged together under the first
 * expert's name. The string lives as long as the engine. */
const char *ctw_engine_matrix_name(const struct ctw_engine *e, int64_t i);
enum ctw_status ctw_scoring_step(struct ctw_scoring *s, bool *done,
                                 struct ctw_err *err) CTW_MUST_CHECK;
void ctw_scoring_end(struct ctw_scoring *s); /* NULL is fine */

#endif
