/*
 * A job: the parts that a client sent, the sequences that they are split into, and the results.
 * Nothing here locks: the caller holds the queue's lock unless a comment says otherwise.
 *
 * Life: parts are added while the job is OPEN. Sealing makes it QUEUED. ctw_job_plan() makes its
 * sequences and allocates its results. Sequences are scored in any order. An item is final when its
 * last sequence is scored; the job is DONE when its last item is final.
 */
#ifndef CTW_WORKER_JOB_H
#define CTW_WORKER_JOB_H

#include <string.h>

#include "ipc/limits.h"
#include "ipc/messages.h"
#include "worker/engine/engine.h"
#include "worker/service/jobs/models.h"
#include "worker/service/jobs/windows.h"
#include "worker/store/store.h"

enum ctw_job_state {
    CTW_JOB_OPEN,
    CTW_JOB_QUEUED,
    CTW_JOB_RUNNING,
    CTW_JOB_DONE, /* this state and all later ones are final */
    CTW_JOB_FAILED,
    CTW_JOB_CANCELED
};

enum ctw_job_kind {
    CTW_JOB_LOGLIKELIHOOD,
    CTW_JOB_ROLLING,
    CTW_JOB_WINDOWS,
    CTW_JOB_DIVERGENCE,
    CTW_N_JOB_KINDS
};

enum {
    CTW_OWNER_MAX = 65,
    CTW_ADDRESS_MAX = 64,
    CTW_CLIENT_MAX = CTW_ADDRESS_MAX + CTW_OWNER_MAX + 16
};

/* The head of part 0, which describes the whole job; checked. */
struct ctw_job_head {
    enum ctw_job_kind kind;
    char model[CTW_MODEL_NAME_MAX];
    char reference[CTW_MODEL_NAME_MAX]; /* divergence; else "". Limits are the lower ones of both */
    int64_t max_length; /* of the model's input; the model's own if the client gave none */
    int64_t fit_length; /* the longest input for which there is memory */
    uint64_t memory_limit;
    size_t key_bytes; /* of a sequence's key; 0: no store */
    double pair_cost; /* attention of one query to one key, in units of ctw_sequence_cost() */
    int64_t vocab;    /* token ids are below it */
    int64_t limit;    /* probabilities over the first ids only; 0: over all of the model's */
    bool want_logprob, want_greedy;
    bool keep; /* orphan policy */
    int64_t ttl_ms;
    int32_t prefix_token;     /* rolling */
    int64_t context_length;   /* rolling */
    int64_t n_layers;         /* divergence: compared after so many layers; 0: not asked */
    int64_t n_matrices;       /* divergence: so many are exchanged; 0: not asked */
    struct ctw_cut_rule rule; /* windows, divergence */
};

struct ctw_item {
    const int32_t *tokens; /* owned by the part; rolling: the prefix token comes first */
    int32_t n_tok;         /* tokens left after truncation */
    int32_t n_targets;     /* of all its windows; without a rule: the last n_targets tokens */
    int32_t truncated;
    int32_t n_sequences, sequences_left;
    int64_t out;    /* index of its first target in logprob[] and greedy[] */
    int64_t window; /* index of its first sequence among those of all items, in their order */
    double sum;
    bool is_greedy;
};

/* The content of one submit. */
struct ctw_job_part {
    uint64_t digest;
    int32_t *tokens;
    struct ctw_item *items; /* NULL once planned; .out counts from the part's first target */
    int64_t n_items, n_targets, n_sequences;
    int64_t n_input;  /* tokens that the model will read */
    int64_t n_copied; /* tokens of sequences with a BOS of their own */
    size_t bytes;     /* memory of the part, its sequences and its results */
};

/* One sequence of an item. */
struct ctw_sequence {
    const int32_t *tokens; /* the item's own, or a copy with BOS in the plan */
    int32_t item;
    int32_t n_tok;
    int32_t first;  /* first target, from tokens */
    int32_t out;    /* index of its first target among the item's targets */
    int64_t window; /* index among the sequences of all items, in their order */
    int32_t shared; /* inputs in common with the sequence before it in the plan */
    int32_t added;  /* inputs that it added to the pass that took it, or so */
    bool scored;    /* its results are known */
};

/* The client's input. Only job.c changes it. */
struct ctw_job_input {
    struct ctw_job_part **parts;
    int64_t n_parts, cap_parts;
    int64_t n_items, n_targets, n_sequences;
    int64_t n_tok;    /* tokens that the model will read */
    int64_t n_copied; /* tokens of sequences with a BOS of their own */
    size_t bytes;     /* memory of the job, its plan and its results */
};

/* The sequences to score. Only job.c changes the plan. */
struct ctw_job_plan {
    bool made;
    struct ctw_item *items; /* [n_items] */
    struct ctw_sequence
        *sequences;             /* [n_sequences], in the order of base/order.h, longest first where
                                   nothing is shared; behind n_score those found in the store */
    int64_t n_score;            /* sequences for passes */
    struct ctw_store_key *keys; /* [n_score], of sequences; NULL: no store */
    int32_t *tokens;            /* [n_copied] */
    double cost;                /* of all sequences, see ctw_sequence_cost() */
    int64_t n_new;              /* inputs of all sequences, without what they share */
};

/* [n_targets] each; NULL if the kind is not divergence. */
struct ctw_job_divergence {
    float *ref_logprob, *ref_top, *kl, *kl_reverse, *tv;
    int32_t *ref_greedy;
    uint8_t *overlap5;
    struct ctw_difference_result
        *layers;      /* [n_sequences, n_layers], sequences in the order of items */
    double *matrices; /* [n_sequences, n_matrices], likewise */
};

/* The scores so far. Only job.c changes them; scorer_hidden.c counts n_ref_read. */
struct ctw_job_results {
    char *numerics;        /* of the model */
    char identity[65];     /* of the model; "" until the first item is final */
    char *ref_numerics;    /* of the reference; NULL: none */
    char ref_identity[65]; /* of the reference, like identity */
    char **matrix_names;   /* [n_matrices] */
    struct ctw_job_divergence divergence;
    int64_t n_ref_read; /* sequences whose reference's hidden states were read, not computed */
    float *logprob;     /* [n_targets] */
    int32_t *greedy;    /* [n_targets] */
    int32_t *order;     /* [n_items]: items as they became final */
    int64_t n_done;     /* items that are final */
    int64_t tok_done;   /* input tokens of scored sequences */
    int64_t tok_found; /* of these, tokens of sequences that were stored when the job was planned */
    int64_t tok_added; /* of these, tokens that were computed: shared ones count once a pass */
    double cost_done;
    bool news; /* results have come that polls have not reported yet */
};

/* The sequences that passes have taken, and the job's share of the running pass. Only job_share.c
 * changes it. */
struct ctw_job_share {
    int64_t next_sequence; /* the first sequence that no pass has taken */
    double served;         /* tokens times n_sharing, for fair shares */
    int n_sharing;         /* jobs of its client with work, itself included, that share a share */
    bool alone;            /* its next pass takes no other job, because a pass of several jobs
                              found no memory */
    int n_passes;          /* passes that took sequences, the running pass included */
    int64_t tok, tok_done; /* in the running pass, in input tokens; tok 0: not in it */
    double cost, cost_done;
};

/* The client. job_life.c alone changes it. */
struct ctw_job_contact {
    char owner[CTW_OWNER_MAX];     /* the name of its token; "": a client over ipc */
    uint32_t pipe;                 /* of the last contact */
    char address[CTW_ADDRESS_MAX]; /* likewise, for people; "": unknown */
    int64_t last_ms;               /* last contact; in the future while a poll waits */
    int64_t gone_ms;               /* when its connection was lost; 0: it was not */
};

/* The reason if the job FAILED or was CANCELED. Only job_life.c changes it. */
struct ctw_job_error {
    struct ctw_err err;
    int64_t item; /* -1: none */
    int layer;    /* -1: none */
};

struct ctw_job {
    uint8_t id[CTW_IPC_JOB_ID_BYTES]; /* with the owner, no other job has it */
    struct ctw_job_head head;
    enum ctw_job_state state;    /* job_life.c alone changes state and times */
    int64_t sealed_ms, ended_ms; /* 0: not yet */
    struct ctw_job_contact contact;
    struct ctw_job_error error;
    struct ctw_job_input input;
    struct ctw_job_plan plan;
    struct ctw_job_results results;
    struct ctw_job_share share;
    struct ctw_job *next; /* jobs.c alone changes this and the next two */
    int pins;             /* users outside the lock; freed when it has none and is removed */
    bool removed;
};

/* Who sends a request. */
struct ctw_contact {
    uint32_t pipe;
    int64_t now_ms;
    const char *owner;   /* the token's name; NULL or "": this user, over ipc */
    const char *address; /* for people; NULL: unknown */
    bool admin;          /* sees and may end all jobs */
};

const char *ctw_job_state_name(enum ctw_job_state state);
const char *ctw_job_kind_name(enum ctw_job_kind kind);
/* The client states how texts are cut: struct ctw_cut_rule. */
static inline bool ctw_job_kind_has_rule(enum ctw_job_kind kind)
{
    return kind == CTW_JOB_WINDOWS || kind == CTW_JOB_DIVERGENCE;
}
/* Items are texts that are cut into windows. */
static inline bool ctw_job_kind_has_texts(enum ctw_job_kind kind)
{
    return kind != CTW_JOB_LOGLIKELIHOOD;
}
/* The key that a waiting poll of the job is woken by; never 0. */
static inline uint64_t ctw_job_key(const uint8_t id[CTW_IPC_JOB_ID_BYTES])
{
    uint64_t key;
    memcpy(&key, id, sizeof(key));
    return key | 1;
}

/* Is this its model or its reference? */
static inline bool ctw_job_uses(const struct ctw_job *j, const char *model)
{
    return strcmp(j->head.model, model) == 0 || strcmp(j->head.reference, model) == 0;
}

static inline bool ctw_job_is_final(const struct ctw_job *j)
{
    return j->state >= CTW_JOB_DONE;
}

/* The bounds of jobs of one model, or of a model and its reference. */
struct ctw_model_limits {
    const char *name;
    const char *reference; /* NULL: none is given */
    int64_t max_length, fit_length, vocab;
    uint64_t memory_limit;
    int64_t n_layers;   /* after which hidden states can be compared */
    int64_t n_matrices; /* that can be exchanged */
    size_t key_bytes;
    double pair_cost;
};

/* ---- job_head.c, job_part.c: what a client sends ---- */

/* CTW_EINVAL, CTW_EUNSUP (kind, column). */
enum ctw_status ctw_job_read_head(struct ctw_job_head *out, const struct ctw_head_map *map,
                                  const struct ctw_model_limits *model,
                                  struct ctw_err *err) CTW_MUST_CHECK;

/* A digest that distinguishes parts. Not resistant to deliberate collisions. */
uint64_t ctw_job_part_digest(const struct ctw_submit *submit);

/*
 * Checks and copies the items of one submit. first_item is the number of items that the job already
 * has, for messages. *bad_item is the item of an error, or -1. CTW_ENOMEM with an item: the item's
 * input is too long for the memory limit.
 */
enum ctw_status ctw_job_part_create(struct ctw_job_part **out, const struct ctw_items_map *items,
                                    const struct ctw_job_head *head, int64_t first_item,
                                    int64_t *bad_item, struct ctw_err *err) CTW_MUST_CHECK;
void ctw_job_part_destroy(struct ctw_job_part *p); /* NULL is fine */

/* ---- job_cut.c: the windows of an item ---- */

/* Window i, 0 <= i < n_sequences; positions count in it->tokens. The targets of all windows, window
 * after window, are the item's targets. */
struct ctw_window ctw_item_window(const struct ctw_item *it, const struct ctw_job_head *head,
                                  int64_t i);
/* All windows together. */
struct ctw_cut {
    int64_t n_windows, n_targets;
    int64_t n_input, longest; /* tokens that the model reads: of all, and of the longest */
};
/* n_tok is set, and n_targets if the kind cuts no texts. */
struct ctw_cut ctw_item_cut(const struct ctw_item *it, const struct ctw_job_head *head);

/* ---- job.c: planning and scoring ---- */

/* Copies the name of matrix i of head.n_matrices. False: no memory. */
bool ctw_job_name_matrix(struct ctw_job *j, int64_t i, const char *name);

/* The job is in no list yet. NULL: no memory. */
struct ctw_job *ctw_job_create(const void *id, const struct ctw_job_head *head,
                               const char *numerics, const char *ref_numerics,
                               const struct ctw_contact *contact);
void ctw_job_destroy(struct ctw_job *j); /* NULL is fine */
/* The job owns the part afterwards. CTW_ENOMEM changes neither. */
enum ctw_status ctw_job_add_part(struct ctw_job *j, struct ctw_job_part *p,
                                 struct ctw_err *err) CTW_MUST_CHECK;

/*
 * Makes items and sequences, and allocates results. shares: passes compute shared beginnings once.
 * While the job is pinned and sealed, neither
 * this function nor ctw_job_find_stored() needs the lock. The caller then takes the lock and calls
 * ctw_job_planned() with *n_done, the number of items without targets, which are final at once.
 */
enum ctw_status ctw_job_plan(struct ctw_job *j, bool shares, int64_t *n_done,
                             struct ctw_err *err) CTW_MUST_CHECK;
void ctw_job_planned(struct ctw_job *j, int64_t n_done);
/* Makes the sequences' keys and fills in the results of stored sequences, so that no pass takes
 * them. store NULL: nothing is stored. *stop ends the search. */
enum ctw_status ctw_job_find_stored(struct ctw_job *j, struct ctw_store *store,
                                    const struct ctw_store_source *source, const atomic_bool *stop,
                                    struct ctw_err *err) CTW_MUST_CHECK;
/* Can the store hold all results of the job's sequences? The store keeps no `matrices`. */
static inline bool ctw_job_is_storable(const struct ctw_job *j)
{
    return j->head.n_matrices == 0;
}
/* The sequence's key, and its columns of results in the job. */
struct ctw_store_record ctw_job_record(const struct ctw_job *j, int64_t sequence);
/* The sequence as a sequence for the engine; results go into the job. */
struct ctw_seq ctw_job_seq(const struct ctw_job *j, int64_t sequence);
/* The comparison of the sequence, for kind divergence; results go into the job. */
struct ctw_seq_divergence ctw_job_seq_divergence(const struct ctw_job *j, int64_t sequence);
int64_t ctw_sequence_input(const struct ctw_sequence *u); /* tokens that the model reads */
/*
 * Time for the sequence, as a multiple of the time that one token takes in the linear layers.
 * Attention makes the tokens of long sequences slower, and the longest sequences come first. What
 * it shares with the sequence before it costs nothing. Used to estimate the time left; ignores
 * sliding windows.
 */
double ctw_sequence_cost(const struct ctw_job *j, const struct ctw_sequence *u);
/* Names the checkpoints of the results. Call this before the first item is final; the engines know
 * the identities by then. ref_identity NULL: there is no reference. A second call is a no-op. */
void ctw_job_name_source(struct ctw_job *j, const char *identity, const char *ref_identity);
/* Counts a sequence whose results are known; they are not final yet. */
void ctw_job_scored(struct ctw_job *j, struct ctw_sequence *u);
/* Are its log-probabilities finite? */
bool ctw_job_is_finite(const struct ctw_job *j, int64_t sequence);
/*
 * Adds a scored sequence. CTW_ENUMERIC: its numbers are not finite; error.item and error.layer are
 * set, and the item never becomes final. n_decoders belongs to the model of bad_layer.
 */
enum ctw_status ctw_job_take(struct ctw_job *j, int64_t sequence, int bad_layer, int n_decoders,
                             struct ctw_err *err) CTW_MUST_CHECK;

bool ctw_job_take_news(struct ctw_job *j); /* true once after new results */

/* ---- job_results.c ---- */

/* Bytes that the results of one target take in memory. */
int64_t ctw_job_target_bytes(const struct ctw_job_head *head);

/* Bytes of the item's columns in a reply to fetch. */
int64_t ctw_item_column_bytes(const struct ctw_item *it, const struct ctw_job_head *head);
/*
 * The columns of items order[first .. first+n-1], n as large as max_bytes allows, but at least 1
 * if there is an item. Reads only final items, those before n_done: needs no lock while the job is
 * pinned. The reply owns the memory.
 */
enum ctw_status ctw_job_columns(const struct ctw_job *j, int64_t first, int64_t n_done,
                                int64_t max_bytes, struct ctw_reply *reply, int64_t *n,
                                struct ctw_err *err) CTW_MUST_CHECK;

/* ---- job_life.c: state, contact, error ---- */

bool ctw_job_is_of(const struct ctw_job *j, const struct ctw_contact *contact); /* its owner asks */
/* Do both jobs belong to the same token, with last contact over the same connection? */
bool ctw_job_same_client(const struct ctw_job *a, const struct ctw_job *b);
/* "process 17", "10.0.0.7:41234 (token NAME)": the job's last contact, for the log. */
void ctw_job_client(const struct ctw_job *j, char out[CTW_CLIENT_MAX]);
void ctw_job_seal(struct ctw_job *j, int64_t now_ms); /* OPEN -> QUEUED */
void ctw_job_start(struct ctw_job *j);                /* -> RUNNING */
/* -> DONE, FAILED or CANCELED; err NULL: none. */
void ctw_job_end(struct ctw_job *j, enum ctw_job_state state, const struct ctw_err *err,
                 int64_t now_ms);
/* Where the error is; -1: unknown. */
void ctw_job_blame(struct ctw_job *j, int64_t item, int layer);
void ctw_job_touch(struct ctw_job *j, const struct ctw_contact *contact); /* a client asked */
void ctw_job_wait_until(struct ctw_job *j, int64_t until_ms); /* its client polls until then */
void ctw_job_peer_gone(struct ctw_job *j, int64_t now_ms);    /* its client's connection is lost */
/* The worker did not run for lost_ms, which do not count as silence. */
void ctw_job_forgive(struct ctw_job *j, int64_t lost_ms, int64_t now_ms);
/* The later of its end and its last contact. */
int64_t ctw_job_quiet_since(const struct ctw_job *j);
/* When its time without contact is over. */
int64_t ctw_job_deadline(const struct ctw_job *j);

/* ---- job_share.c: sequences and passes ---- */

void ctw_job_share_enter(struct ctw_job *j, double served); /* planned: takes part from now on */
bool ctw_job_has_sequence(const struct ctw_job *j);         /* a sequence that no pass has taken */
int64_t ctw_job_next_input(const struct ctw_job *j);        /* that the next sequence would add to
                                                               this pass */
int64_t ctw_job_next_targets(const struct ctw_job *j);
static inline bool ctw_job_in_pass(const struct ctw_job *j)
{
    return j->share.tok > 0;
}
/* Before a pass: its client's share of the pass is divided among n_sharing jobs. */
void ctw_job_share_divide(struct ctw_job *j, int n_sharing);
/* The pass takes the next sequence; returns the sequence. */
int64_t ctw_job_share_take(struct ctw_job *j);
void ctw_job_share_done(struct ctw_job *j, int64_t sequence); /* scored */
/* No memory was found: a pass without other jobs will take this sequence, and later ones that are
 * not scored. */
void ctw_job_share_return(struct ctw_job *j, int64_t sequence);
void ctw_job_share_found_memory(struct ctw_job *j); /* its next pass may take other jobs */
void ctw_job_share_end(struct ctw_job *j);          /* the pass is over */

#endif
