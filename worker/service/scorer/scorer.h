/*
 * The thread that owns the engines: opens and closes models, plans jobs, and scores one pass after
 * another. A pass takes sequences of all jobs of one model (or of one model and one reference), one
 * sequence at a time from the job that has been served the fewest tokens so far, until the engine's
 * pass is full. Tokens that sequences of the pass share count only once.
 * So no job waits for another job to end, and small jobs ride along. A sequence's
 * score does not depend on the other sequences in its pass.
 *
 * Whether a sequence is too long for the memory may be known only when its pass is prepared. If
 * memory runs out, each job of that pass gets a pass of its own, and only a job whose own pass runs
 * out of memory fails.
 */
#ifndef CTW_WORKER_SCORER_H
#define CTW_WORKER_SCORER_H

#include "base/log.h"
#include "worker/service/jobs/queue.h"
#include "worker/store/hidden.h"

struct ctw_pass_entry {
    struct ctw_job *job;
    int64_t sequence;
    bool taken;   /* its results are going to the client */
    bool stored;  /* found in the store when the pass was about to begin */
    int64_t twin; /* an earlier sequence of the pass with the same key; -1: none */
};

/* A pass's findings about a sequence, and the identities of its models. */
struct ctw_scored {
    int64_t sequence;
    int bad_layer;
    bool bad_reference; /* bad_layer is of the reference */
    int n_decoders;     /* of the model that bad_layer is of */
    const char *identity;
    const char *ref_identity; /* NULL: no reference */
};

/* Passes on their way through the store; see scorer_settle.c. */
struct ctw_settling {
    pthread_t thread;
    bool started, ending;
    pthread_cond_t work, settled;
    struct ctw_settle_batch *first, *last;
    int n;
};

enum { CTW_SCORER_NOTES = 16, CTW_SCORER_NOTE_MAX = 512 };

struct ctw_scorer_note {
    enum ctw_log_level level;
    char text[CTW_SCORER_NOTE_MAX];
};

struct ctw_scorer {
    struct ctw_queue *queue;
    struct ctw_engine_options options; /* model_dir comes from the model's slot */
    struct ctw_store *store;           /* NULL: none */
    struct ctw_hidden_dir *hidden;     /* NULL: none */
    /* the pass being made or run */
    struct ctw_seq *seqs;
    struct ctw_pass_entry *entries;
    struct ctw_seq_divergence *divergences; /* of the sequences, if the pass has a reference */
    int64_t n, cap;
    struct ctw_seq next; /* n_tok > 0: what comes first in a later pass, with tokens of its own: */
    int32_t *next_tokens;
    int64_t next_cap;
    int64_t n_score; /* the first n_score sequences are scored; the results of the others are
                        known */
    double pass_cost;
    struct ctw_settling settling;
    int n_decoders, ref_decoders;
    size_t ref_row_bytes;               /* of a final hidden state of the reference */
    const struct ctw_engine *engine;    /* of the last pass */
    const struct ctw_engine *reference; /* of the last pass; NULL: none */
    int64_t shown_ms;
    /* Lines for the log, written when the lock is not held: standard error may be a full pipe. */
    struct ctw_scorer_note notes[CTW_SCORER_NOTES];
    int n_notes;
};

/* Runs until ctw_queue_stop(), which cancels all jobs. */
void ctw_scorer_run(struct ctw_scorer *s);
void ctw_scorer_fini(struct ctw_scorer *s);

/*
 * ---- between the files scorer*.c. The lock is held unless a comment says otherwise; "lock
 * released meanwhile" means that the function releases it and takes it again. ----
 */

/* A line for the log, written later. When all lines are used, further ones are dropped. */
void ctw_scorer_note(struct ctw_scorer *s, enum ctw_log_level level, const char *fmt, ...)
    CTW_PRINTF(3, 4);
void ctw_scorer_write_notes(struct ctw_scorer *s); /* lock not held; any thread */

/* scorer_models.c: opens or closes one model; false: nothing to do. Lock released meanwhile. */
bool ctw_scorer_tend_models(struct ctw_scorer *s);
/* Several engines may each plan for all memory, so only the engine in use holds buffers, and the
 * engine that it is compared with (NULL: none). */
void ctw_scorer_trim_others(struct ctw_queue *q, const struct ctw_engine *in_use,
                            const struct ctw_engine *also);
/*
 * Fails a model whose files are no longer the files that were opened, so that none of its jobs can
 * succeed. The model stays in the table with the reason; `load` under its name opens it again. Lock
 * released meanwhile.
 */
void ctw_scorer_fail_model(struct ctw_scorer *s, struct ctw_model_slot *m,
                           const struct ctw_err *err);

/* scorer_pass.c: plans one job; false: nothing to do. Lock released meanwhile. */
bool ctw_scorer_plan_next(struct ctw_scorer *s);
/* The models of a pass. */
struct ctw_pass_models {
    struct ctw_model_slot *model;     /* NULL: none */
    struct ctw_model_slot *reference; /* NULL: nothing is compared */
};
/* Fills the pass; returns its models, none when there is nothing to do. */
struct ctw_pass_models ctw_scorer_make_pass(struct ctw_scorer *s);

/*
 * scorer_store.c, lock not held: excludes the stored sequences of a planned job from passes. Waits
 * for the checkpoint's identity if the store may have results of the checkpoint.
 */
enum ctw_status ctw_scorer_find_stored(struct ctw_scorer *s, struct ctw_job *j,
                                       struct ctw_engine *engine, struct ctw_engine *reference,
                                       struct ctw_err *err) CTW_MUST_CHECK;
/*
 * Moves sequences that were stored since, and duplicates within the pass, behind the first n_score
 * sequences of the pass. Lock not held.
 */
void ctw_scorer_skip_known(struct ctw_scorer *s);
/* Copies results to the duplicates behind the first n_score sequences. */
void ctw_scorer_copy_twins(struct ctw_scorer *s);

/* scorer_settle.c. Without a store, start and stop do nothing. Lock not held. */
void ctw_settle_start(struct ctw_scorer *s);
void ctw_settle_stop(struct ctw_scorer *s); /* after all passes are settled */
/* Passes the results of seqs[first .. first+n-1] to their jobs, at once or when they are stored.
 * Lock held; released meanwhile if too many passes wait. */
void ctw_settle_results(struct ctw_scorer *s, int64_t first, int64_t n);
/* If the results of a wanted key are going to the store, waits until all results are stored. Lock
 * not held. */
void ctw_settle_wait_for(struct ctw_scorer *s,
                         bool (*is_wanted)(const void *arg, const struct ctw_store_key *key),
                         const void *arg);

/*
 * scorer_hidden.c, lock not held: hooks of comparing, see struct ctw_hooks. The reference's
 * identity is known.
 */
bool ctw_scorer_load_hidden(void *scorer, int64_t first, int64_t n, void *rows);
void ctw_scorer_keep_hidden(void *scorer, int64_t first, int64_t n, const void *rows);

/* scorer_order.c: puts the sequences of several jobs into the order in which they share beginnings.
 */
void ctw_scorer_order_pass(struct ctw_scorer *s);

/* scorer_results.c. Logs that the job is done. */
void ctw_scorer_note_end(struct ctw_scorer *s, const struct ctw_job *j);
/* The pass's findings about its i-th sequence. The strings live as long as the engines. */
struct ctw_scored ctw_scorer_scored(const struct ctw_scorer *s, int64_t i);
/* Adds a scored sequence to its job. */
void ctw_scorer_take(struct ctw_scorer *s, struct ctw_job *j, const struct ctw_scored *u);
/* scorer_run.c. Scores the pass, and passes its results or its failure on. Lock released meanwhile.
 */
void ctw_scorer_run_pass(struct ctw_scorer *s, struct ctw_pass_models m);

#endif
