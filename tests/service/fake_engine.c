#include "fake_engine.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"
#include "base/order.h"
#include "worker/engine/open/activity.h"

struct ctw_engine {
    struct ctw_model model;
    int64_t max_length, pass_tokens;
    char dir[256];
    atomic_bool identity_known;
    enum ctw_dtype dtype;
};

struct fake_engine_options fake_engine = {
    .nan_token = -1, .inf_token = -1, .device_token = -1, .memory_token = -1, .io_token = -1};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int64_t calls, sequences, most, scored_tokens;
static int64_t fail_after = -1; /* -1: no call fails */
static int n_open, n_waits;

static void sleep_us(int64_t us)
{
    struct timespec ts = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
    nanosleep(&ts, NULL);
}

static int from_env(const char *name, int value)
{
    const char *text = getenv(name);
    return text == NULL ? value : atoi(text);
}

static void read_env(void)
{
    fake_engine.us_per_token = from_env("CTW_FAKE_US_PER_TOKEN", fake_engine.us_per_token);
    fake_engine.open_ms = from_env("CTW_FAKE_OPEN_MS", fake_engine.open_ms);
    fake_engine.nan_token = from_env("CTW_FAKE_NAN_TOKEN", fake_engine.nan_token);
    fake_engine.device_token = from_env("CTW_FAKE_DEVICE_TOKEN", fake_engine.device_token);
    fake_engine.memory_token = from_env("CTW_FAKE_MEMORY_TOKEN", fake_engine.memory_token);
    fake_engine.io_token = from_env("CTW_FAKE_IO_TOKEN", fake_engine.io_token);
    fake_engine.late_identity = from_env("CTW_FAKE_LATE_IDENTITY", fake_engine.late_identity);
    fake_engine.pass_tokens = from_env("CTW_FAKE_PASS_TOKENS", fake_engine.pass_tokens);
    fake_engine.fit_length = from_env("CTW_FAKE_FIT_LENGTH", fake_engine.fit_length);
}

static uint64_t hash(const int32_t *tokens, int64_t n)
{
    uint64_t h = 0x9e3779b97f4a7c15u;
    for (int64_t i = 0; i < n; i++) {
        h = (h ^ (uint64_t)(uint32_t)tokens[i]) * 0xbf58476d1ce4e5b9u;
        h ^= h >> 31;
    }
    return h;
}

float fake_logprob(const int32_t *tokens, int64_t at)
{
    uint64_t h = hash(tokens, at + 1);
    return -(float)(h >> 40) / 1048576.0f - 0.001f; /* -16.001 .. -0.001 */
}

int32_t fake_greedy(const int32_t *tokens, int64_t at)
{
    uint64_t h = hash(tokens, at + 1);
    return h % 3 != 0 ? tokens[at] : (tokens[at] + 1) % FAKE_VOCAB;
}

enum ctw_status ctw_engine_open(struct ctw_engine **out, const struct ctw_engine_options *opt,
                                struct ctw_err *err)
{
    read_env();
    sleep_us((int64_t)fake_engine.open_ms * 1000);
    if (strstr(opt->model_dir, "broken") != NULL)
        return ctw_fail(err, CTW_EFORMAT, "%s/config.json: it is broken", opt->model_dir);
    struct ctw_engine *e = ctw_calloc(1, sizeof(*e));
    if (e == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory");
    snprintf(e->dir, sizeof(e->dir), "%s", opt->model_dir);
    bool bf16 = opt->dtype != NULL && strcmp(opt->dtype, "bfloat16") == 0;
    e->dtype = bf16 ? CTW_BF16 : CTW_F32;
    e->model = (struct ctw_model){.dir = e->dir,
                                  .architecture = (char *)(uintptr_t) "FakeForCausalLM",
                                  .model_type = (char *)(uintptr_t) "fake",
                                  .n_decoders = FAKE_DECODERS,
                                  .n_layers = FAKE_DECODERS + 2,
                                  .n_params = 12345,
                                  .weight_bits = 4.25};
    atomic_store(&e->identity_known, fake_engine.late_identity == 0);
    e->max_length = opt->max_length != 0 ? opt->max_length : FAKE_MAX_LENGTH;
    e->pass_tokens = fake_engine.pass_tokens != 0 ? fake_engine.pass_tokens : 256;
    e->pass_tokens = opt->pass_tokens != 0 ? opt->pass_tokens : e->pass_tokens;
    pthread_mutex_lock(&lock);
    n_open++;
    pthread_mutex_unlock(&lock);
    *out = e;
    return CTW_OK;
}

void ctw_engine_close(struct ctw_engine *e)
{
    if (e == NULL)
        return;
    pthread_mutex_lock(&lock);
    n_open--;
    pthread_mutex_unlock(&lock);
    ctw_free(e);
}

const char *ctw_engine_identity(const struct ctw_engine *e)
{
    return atomic_load(&e->identity_known)
               ? "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
               : "";
}

const char *ctw_engine_outline(const struct ctw_engine *e)
{
    return strstr(e->dir, "other") != NULL ? "other" : "outline";
}

enum ctw_status ctw_engine_wait_identity(struct ctw_engine *e, struct ctw_err *err)
{
    (void)err;
    pthread_mutex_lock(&lock);
    n_waits++;
    pthread_mutex_unlock(&lock);
    atomic_store(&e->identity_known, true);
    return CTW_OK;
}

void ctw_engine_describe(const struct ctw_engine *e, char *buf, size_t cap)
{
    (void)e;
    if (cap > 0)
        buf[0] = '\0';
}

void ctw_engine_trim(struct ctw_engine *e)
{
    (void)e;
}

void ctw_engine_get_info(const struct ctw_engine *e, struct ctw_engine_info *out)
{
    *out = (struct ctw_engine_info){
        .backend = {.backend = "fake", .variant = "c", .device = "none", .n_threads = 1},
        .dtype = e->dtype,
        .max_length = e->max_length,
        .fit_length = fake_engine.fit_length != 0 ? fake_engine.fit_length : e->max_length,
        .vocab = FAKE_VOCAB,
        .chunk_tokens = 16,
        .pass_tokens = e->pass_tokens,
        .n_devices = 1,
        .call_tokens = e->pass_tokens,
        .memory_planned = 1000,
        .memory_limit = 2000,
        .place = "resident",
        .weights_bytes = 500,
        .weights_memory = 500,
        .place_note = "resident, 500 B",
        .numerics = "fake-c/float32/1",
        .model = &e->model,
    };
}

int ctw_devices_report(const struct ctw_devices *all, struct ctw_device_report *out, int room)
{
    (void)all;
    *out = (struct ctw_device_report){
        .number = 0,
        .info = {.backend = "fake", .variant = "c", .device = "none", .n_threads = 1},
        .memory_total = 8000,
        .memory_free = 6000,
        .memory_used = 1500,
        .weights = 500,
        .passes_planned = 1000,
        .state = "idle",
        .model = "fake",
        .weights_read = 1,
    };
    pthread_mutex_lock(&lock);
    out->tokens_done = scored_tokens;
    bool open = n_open > 0;
    pthread_mutex_unlock(&lock);
    return open && room > 0 ? 1 : 0;
}

void ctw_engine_numerics(const struct ctw_engine *e, int64_t vocab, char out[CTW_NUMERICS_MAX])
{
    struct ctw_engine_info info;
    ctw_engine_get_info(e, &info);
    if (vocab != 0)
        snprintf(out, CTW_NUMERICS_MAX, "%s/vocabulary-%lld", info.numerics, (long long)vocab);
    else
        snprintf(out, CTW_NUMERICS_MAX, "%s", info.numerics);
}

static bool contains(const struct ctw_seq *s, int token)
{
    for (int64_t i = 0; i < s->n_tok; i++) {
        if (s->tokens[i] == token)
            return true;
    }
    return false;
}

static void score_one(struct ctw_seq *s)
{
    for (int64_t i = s->first; i < s->n_tok; i++) {
        s->logprob[i - s->first] =
            s->tokens[i] == fake_engine.inf_token ? -INFINITY : fake_logprob(s->tokens, i);
        s->greedy[i - s->first] = fake_greedy(s->tokens, i);
        if (s->vocab != 0)
            s->logprob[i - s->first] /= 2;
    }
    s->bad_layer = contains(s, fake_engine.nan_token) ? 2 : -1;
}

static enum ctw_status check(const struct ctw_engine *e, const struct ctw_seq *seqs, int64_t n,
                             int64_t *n_tok, struct ctw_err *err)
{
    *n_tok = 0;
    for (int64_t i = 0; i < n; i++) {
        const struct ctw_seq *s = &seqs[i];
        if (s->first < 1 || s->first >= s->n_tok || s->n_tok - 1 > e->max_length)
            return ctw_fail(err, CTW_EINVAL, "sequence %lld breaks the engine's rules",
                            (long long)i);
        if (s->vocab != seqs[0].vocab) /* the scorer's rule, which results in one numerics id */
            return ctw_fail(err, CTW_EINVAL, "sequence %lld has another vocabulary", (long long)i);
        for (int64_t k = 0; k < s->n_tok; k++) {
            if (s->tokens[k] < 0 || s->tokens[k] >= FAKE_VOCAB)
                return ctw_fail(err, CTW_EINVAL, "sequence %lld: token out of range", (long long)i);
        }
        if (contains(s, fake_engine.device_token))
            return ctw_fail(err, CTW_EDEVICE, "the device fell off the bus");
        if (contains(s, fake_engine.memory_token))
            return ctw_fail(err, CTW_ENOMEM, "no memory for this pass");
        if (contains(s, fake_engine.io_token))
            return ctw_fail(err, CTW_EIO, "%s/model.safetensors was changed", e->dir);
        *n_tok += s->n_tok - 1;
    }
    return CTW_OK;
}

static int64_t take_pass(const struct ctw_engine *e, const struct ctw_seq *seqs, int64_t n_seqs)
{
    int64_t n = 0, n_tok = 0;
    while (n < n_seqs && ctw_pass_fits(n, n_tok, seqs[n].n_tok - 1, e->pass_tokens))
        n_tok += seqs[n++].n_tok - 1;
    return n;
}

static enum ctw_status run_pass(struct ctw_engine *e, struct ctw_seq *seqs, int64_t first,
                                int64_t n, struct ctw_progress *p, const struct ctw_hooks *hooks,
                                struct ctw_err *err)
{
    int64_t before = p->tok_done, n_tok = 0;
    for (int64_t i = first; i < first + n; i++)
        n_tok += seqs[i].n_tok - 1;
    for (p->layer = 0; p->layer < p->n_layers; p->layer++) {
        if (hooks->cancelled != NULL && hooks->cancelled(hooks->arg))
            return ctw_fail(err, CTW_ECANCELED, "cancelled");
        sleep_us(n_tok * fake_engine.us_per_token / p->n_layers);
        p->tok_done = before + n_tok * (p->layer + 1) / p->n_layers;
        hooks->progress(hooks->arg, p);
    }
    for (int64_t i = first; i < first + n; i++)
        score_one(&seqs[i]);
    pthread_mutex_lock(&lock);
    scored_tokens += n_tok;
    pthread_mutex_unlock(&lock);
    atomic_store(&e->identity_known, true);
    hooks->done(hooks->arg, first, n);
    return CTW_OK;
}

/* What comparing adds is made from the model's numbers. */
static void compare_one(struct ctw_seq *s)
{
    struct ctw_seq_divergence *d = s->divergence;
    for (int64_t i = 0; i < s->n_tok - s->first; i++) {
        float logprob = fake_logprob(s->tokens, s->first + i);
        d->ref_logprob[i] = 2 * logprob;
        d->ref_greedy[i] = s->tokens[s->first + i];
        d->ref_top[i] = logprob / 2;
        d->kl[i] = -logprob;
        d->kl_reverse[i] = -logprob / 2;
        d->tv[i] = -logprob / 4;
        d->overlap5[i] = (uint8_t)(s->tokens[s->first + i] % 6);
    }
    for (int64_t l = 0; d->layers != NULL && l <= FAKE_DECODERS; l++) {
        double v = (double)(s->tokens[0] + s->n_tok + 1000 * l);
        d->layers[l] = (struct ctw_difference_result){v, v / 2, v / 4, v / 8, v / 16, l};
    }
    for (int64_t i = 0; d->matrices != NULL && i < FAKE_MATRICES; i++)
        d->matrices[i] = (double)(s->tokens[0] + s->n_tok) + (double)i / 4;
    d->bad_reference = contains(s, fake_engine.nan_token);
}

enum ctw_status ctw_engines_comparable(const struct ctw_engine *e,
                                       const struct ctw_engine *reference, int64_t *pass_tokens,
                                       struct ctw_err *err)
{
    if (e == reference)
        return ctw_fail(err, CTW_EINVAL, "the model and its reference are the same loaded model");
    if (pass_tokens != NULL)
        *pass_tokens = e->pass_tokens / 2;
    return CTW_OK;
}

enum ctw_status ctw_engines_layers_comparable(const struct ctw_engine *e,
                                              const struct ctw_engine *reference,
                                              struct ctw_err *err)
{
    if (strstr(e->dir, "deeper") == NULL && strstr(reference->dir, "deeper") == NULL)
        return CTW_OK;
    return ctw_fail(err, CTW_EINVAL, "the model has more layers than the reference");
}

enum ctw_status ctw_engines_exchangeable(const struct ctw_engine *e,
                                         const struct ctw_engine *reference, int64_t *n_matrices,
                                         struct ctw_err *err)
{
    *n_matrices = FAKE_MATRICES;
    return ctw_engines_layers_comparable(e, reference, err);
}

const char *ctw_engine_matrix_name(const struct ctw_engine *e, int64_t i)
{
    static const char *const names[FAKE_MATRICES] = {"layers.0.q", "layers.0.down", "head"};
    (void)e;
    return names[i];
}

enum ctw_status ctw_engine_compare(struct ctw_engine *e, struct ctw_engine *reference,
                                   struct ctw_seq *seqs, int64_t n_seqs,
                                   const struct ctw_hooks *hooks, bool *in_reference,
                                   struct ctw_err *err)
{
    if (hooks->load_hidden != NULL && !atomic_load(&reference->identity_known))
        return ctw_fail(err, CTW_EINVAL, "hidden states are kept by the reference's identity");
    for (int64_t i = 0; i < n_seqs; i++)
        compare_one(&seqs[i]);
    enum ctw_status st = ctw_engine_score(e, seqs, n_seqs, hooks, err);
    *in_reference = st == CTW_EIO;
    atomic_store(&reference->identity_known, true);
    return st;
}

void ctw_engine_count(const struct ctw_engine *e, const struct ctw_seq *seqs, int64_t n_seqs,
                      int64_t *n_tok, int64_t *n_rows)
{
    (void)e;
    *n_tok = *n_rows = 0;
    for (int64_t i = 0; i < n_seqs; i++) {
        const struct ctw_seq *s = &seqs[i], *before = i > 0 ? &seqs[i - 1] : NULL;
        *n_tok += s->n_tok - 1;
        if (before != NULL)
            *n_tok -= ctw_shared_tokens(before->tokens, before->n_tok, s->tokens, s->n_tok - 1);
        *n_rows += s->n_tok - s->first;
    }
}

enum ctw_status ctw_engine_score(struct ctw_engine *e, struct ctw_seq *seqs, int64_t n_seqs,
                                 const struct ctw_hooks *hooks, struct ctw_err *err)
{
    struct ctw_progress p = {.n_passes = 1, .n_layers = e->model.n_layers};
    enum ctw_status st = check(e, seqs, n_seqs, &p.tok_total, err);
    if (st != CTW_OK)
        return st;
    int64_t end = n_seqs, n_tok, n_rows;
    ctw_engine_count(e, seqs, n_seqs, &n_tok, &n_rows);
    pthread_mutex_lock(&lock);
    calls++;
    sequences += n_seqs;
    most = n_tok > most ? n_tok : most;
    if (fail_after >= 0 && fail_after < n_seqs) {
        end = fail_after;
        fail_after = -1;
    }
    pthread_mutex_unlock(&lock);
    for (int64_t first = 0, n; first < end && st == CTW_OK; first += n) {
        n = take_pass(e, seqs + first, end - first);
        st = run_pass(e, seqs, first, n, &p, hooks, err);
        p.pass++;
    }
    return st != CTW_OK || end == n_seqs
               ? st
               : ctw_fail(err, CTW_ENOMEM, "no memory for the rest of the pass");
}

void fake_engine_counts(int64_t *n_calls, int64_t *n_seqs, int64_t *most_tokens)
{
    pthread_mutex_lock(&lock);
    *n_calls = calls;
    *n_seqs = sequences;
    *most_tokens = most;
    pthread_mutex_unlock(&lock);
}

void fake_engine_reset_counts(void)
{
    pthread_mutex_lock(&lock);
    calls = 0;
    sequences = 0;
    most = 0;
    pthread_mutex_unlock(&lock);
}

void fake_engine_fail_after(int64_t n)
{
    pthread_mutex_lock(&lock);
    fail_after = n;
    pthread_mutex_unlock(&lock);
}

int fake_engine_n_waits(void)
{
    pthread_mutex_lock(&lock);
    int n = n_waits;
    n_waits = 0;
    pthread_mutex_unlock(&lock);
    return n;
}

int fake_engine_n_open(void)
{
    pthread_mutex_lock(&lock);
    int n = n_open;
    pthread_mutex_unlock(&lock);
    return n;
}
