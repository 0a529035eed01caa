#include "worker/engine/compare/exchange.h"

#include <string.h>

#include "base/mem.h"
#include "worker/engine/engine_state.h"
#include "worker/engine/pass/pass_state.h"

/* One of the matrices. */
struct place {
    int layer;
    int role; /* the layer's matrix, or CTW_N_MATRICES + a ctw_expert_role: of all experts */
};

/* What the engines' own passes had. */
struct lent {
    struct ctw_pass *pass; /* NULL: nothing is lent */
    struct ctw_provider *provider;
    struct ctw_seq *seqs;
    struct ctw_progress *progress;
};

struct ctw_exchange {
    struct ctw_engine *e, *reference;
    struct ctw_provider *provider; /* the reference's layers, with one matrix from e's */
    struct ctw_model model;        /* the reference's, with `layers` of its own */
    struct ctw_layer *layers;      /* [n_layers] */
    struct place *places;          /* [n] */
    int64_t n;
    void *x; /* device [n_tok, width]: the reference's residual stream before layer `reached` */
    /* Of a pass: */
    struct lent model_side, reference_side;
    struct ctw_pass *run, *final;      /* the exchanged models'; the reference's last layer */
    struct ctw_progress progress;      /* for the passes; nobody reads it */
    struct ctw_seq *seqs, *final_seqs; /* [n_seqs] */
    struct ctw_seq_divergence *divergence;
    float *columns; /* what the seqs point to */
    int64_t at;     /* the matrix of the present run */
    int reached;
    bool started;              /* the present run has its start */
    int64_t steps_done, steps; /* of all runs of a pass */
};

/* ---- which matrices ----------------------------------------------------------------------- */

/* All experts' matrices of one role are exchanged together: as the roles from CTW_N_MATRICES on. */
enum { N_ROLES = CTW_N_MATRICES + CTW_N_EXPERT_MATRICES };

/* How many matrices a role has in a layer. */
static int n_of(const struct ctw_layer *l, int role)
{
    return role < CTW_N_MATRICES ? 1 : l->n_experts;
}

static struct ctw_matrix *matrix_of(const struct ctw_layer *l, int role, int i)
{
    if (role < CTW_N_MATRICES)
        return (struct ctw_matrix *)&l->matrix[role];
    return &l->expert[i * CTW_N_EXPERT_MATRICES + role - CTW_N_MATRICES];
}

/* Is at least one of the matrices quantised? */
static bool is_place(const struct ctw_model *m, int layer, int role)
{
    const struct ctw_layer *l = &m->layers[layer];
    bool head = layer == m->n_layers - 1, quantised = false;
    for (int i = 0; i < n_of(l, role); i++)
        quantised |= matrix_of(l, role, i)->name != NULL &&
                     !ctw_weight_is_dense(&matrix_of(l, role, i)->weight);
    return quantised && !(head && m->tied);
}

static int64_t find_places(const struct ctw_model *m, struct place *out)
{
    int64_t n = 0;
    for (int l = 1; l < m->n_layers; l++) {
        for (int role = 0; role < N_ROLES; role++) {
            if (!is_place(m, l, role))
                continue;
            if (out != NULL)
                out[n] = (struct place){l, role};
            n++;
        }
    }
    return n;
}

const char *ctw_engine_matrix_name(const struct ctw_engine *e, int64_t i)
{
    const struct ctw_model *m = e->model;
    for (int l = 1; l < m->n_layers; l++)
        for (int role = 0; role < N_ROLES; role++)
            if (is_place(m, l, role) && i-- == 0)
                return matrix_of(&m->layers[l], role, 0)->name;
    return NULL;
}

static bool same_shape(const struct ctw_matrix *a, const struct ctw_matrix *b)
{
    return b->name != NULL && a->weight.n == b->weight.n && a->weight.k == b->weight.k;
}

static enum ctw_status check_matrices(const struct ctw_model *a, const struct ctw_model *b,
                                      struct ctw_err *err)
{
    if (a->n_rotations > 0 || b->n_rotations > 0)
        return ctw_fail(err, CTW_EINVAL,
                        "%s rotates activations (transform_config), and its matrices with them: "
                        "they cannot be exchanged",
                        a->n_rotations > 0 ? a->dir : b->dir);
    for (int l = 1; l < a->n_layers; l++) {
        const struct ctw_layer *mine = &a->layers[l], *other = &b->layers[l];
        for (int role = 0; role < N_ROLES; role++) {
            if (!is_place(a, l, role))
                continue;
            bool equal =
                n_of(mine, role) == n_of(other, role) && !(l == a->n_layers - 1 && b->tied);
            for (int i = 0; equal && i < n_of(mine, role); i++)
                equal = same_shape(matrix_of(mine, role, i), matrix_of(other, role, i));
            if (!equal)
                return ctw_fail(err, CTW_EINVAL,
                                "the reference has no matrix of the shape of %s at its place: "
                                "matrices cannot be exchanged",
                                matrix_of(mine, role, 0)->name);
        }
    }
    return CTW_OK;
}

enum ctw_status ctw_engines_exchangeable(const struct ctw_engine *e,
                                         const struct ctw_engine *reference, int64_t *n_matrices,
                                         struct ctw_err *err)
{
    const struct ctw_model *a = e->model, *b = reference->model;
    enum ctw_status st = ctw_engines_layers_comparable(e, reference, err);
    if (st != CTW_OK)
        return st;
    if (e->dtype != reference->dtype)
        return ctw_fail(err, CTW_EINVAL,
                        "the model computes in %s and the reference in %s: to exchange matrices, "
                        "load both in one dtype",
                        ctw_dtype_long_name(e->dtype), ctw_dtype_long_name(reference->dtype));
    if (a->vocab != b->vocab || a->embed_dim != b->embed_dim)
        return ctw_fail(err, CTW_EINVAL,
                        "the model's vocabulary is %lld of width %lld and the reference's %lld of "
                        "width %lld: matrices cannot be exchanged",
                        (long long)a->vocab, (long long)a->embed_dim, (long long)b->vocab,
                        (long long)b->embed_dim);
    *n_matrices = find_places(a, NULL);
    if (*n_matrices == 0)
        return ctw_fail(err, CTW_EINVAL, "the model has no quantised matrix to exchange");
    return check_matrices(a, b, err);
}

/* ---- memory ------------------------------------------------------------------------------- */

size_t ctw_exchange_bytes(const struct ctw_model *model, int64_t n_tok)
{
    return (size_t)(n_tok * ctw_residual_width(model)) * ctw_dtype_bytes(CTW_RESIDUAL);
}

/* The layers' descriptions are the reference's, but their experts' can be changed. *most: experts
 * of a layer. */
static enum ctw_status own_experts(struct ctw_exchange *x, const struct ctw_model *m, int *most,
                                   struct ctw_err *err)
{
    memcpy(x->layers, m->layers, (size_t)m->n_layers * sizeof(*x->layers));
    for (int i = 0; i < m->n_layers; i++)
        x->layers[i].expert = NULL;
    for (int i = 0; i < m->n_layers; i++) {
        const struct ctw_layer *from = &m->layers[i];
        size_t n = (size_t)from->n_experts * CTW_N_EXPERT_MATRICES;
        if (n == 0)
            continue;
        x->layers[i].expert = ctw_calloc(n, sizeof(*from->expert));
        if (x->layers[i].expert == NULL)
            return ctw_fail(err, CTW_ENOMEM, "out of memory");
        memcpy(x->layers[i].expert, from->expert, n * sizeof(*from->expert));
        *most = from->n_experts > *most ? from->n_experts : *most;
    }
    return CTW_OK;
}

enum ctw_status ctw_exchange_open(struct ctw_exchange **out, struct ctw_engine *e,
                                  struct ctw_engine *reference, int64_t n_tok, struct ctw_err *err)
{
    const struct ctw_model *m = reference->model;
    int n_experts = 0;
    struct ctw_exchange *x = ctw_calloc(1, sizeof(*x));
    if (x == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory");
    x->e = e;
    x->reference = reference;
    x->n = find_places(e->model, NULL);
    x->places = ctw_calloc((size_t)x->n, sizeof(*x->places));
    x->layers = ctw_calloc((size_t)m->n_layers, sizeof(*x->layers));
    enum ctw_status st = CTW_OK;
    if (x->places == NULL || x->layers == NULL)
        st = ctw_fail(err, CTW_ENOMEM, "out of memory");
    if (st == CTW_OK)
        st = own_experts(x, m, &n_experts, err);
    if (st == CTW_OK)
        st = ctw_provider_open_exchanged(&x->provider, reference->provider, e->provider, n_experts,
                                         err);
    if (st == CTW_OK)
        st = ctw_device_alloc(e->be, &x->x, ctw_exchange_bytes(m, n_tok), err);
    if (st != CTW_OK) {
        ctw_exchange_close(x);
        return st;
    }
    (void)find_places(e->model, x->places);
    x->steps = x->places[x->n - 1].layer; /* of the reference itself */
    for (int64_t i = 0; i < x->n; i++)
        x->steps += m->n_layers - x->places[i].layer;
    x->model = *m;
    x->model.layers = x->layers;
    *out = x;
    return CTW_OK;
}

static void lend(struct lent *l, struct ctw_pass *p, struct ctw_exchange *x, struct ctw_seq *seqs,
                 struct ctw_provider *provider, const struct ctw_model *model)
{
    *l = (struct lent){p, p->provider, p->seqs, p->progress};
    p->provider = provider;
    p->seqs = seqs;
    p->progress = &x->progress;
    p->f->model = model;
}

static void give_back(struct lent *l, const struct ctw_model *model)
{
    struct ctw_pass *p = l->pass;
    if (p == NULL)
        return;
    p->provider = l->provider;
    p->seqs = l->seqs;
    p->progress = l->progress;
    p->f->model = model;
    l->pass = NULL;
}

/* The passes are the engines' again. */
static void end_pass(struct ctw_exchange *x)
{
    give_back(&x->model_side, x->e->model);
    give_back(&x->reference_side, x->reference->model);
    ctw_free(x->seqs);
    ctw_free(x->final_seqs);
    ctw_free(x->divergence);
    ctw_free(x->columns);
    x->seqs = x->final_seqs = NULL;
    x->divergence = NULL;
    x->columns = NULL;
}

void ctw_exchange_close(struct ctw_exchange *x)
{
    if (x == NULL)
        return;
    end_pass(x);
    ctw_provider_close(x->provider);
    ctw_device_free(x->e->be, x->x);
    for (int i = 0; x->layers != NULL && i < x->reference->model->n_layers; i++)
        ctw_free(x->layers[i].expert);
    ctw_free(x->layers);
    ctw_free(x->places);
    ctw_free(x);
}

/* ---- a pass ------------------------------------------------------------------------------- */

/* Results of a run that nobody reads: nine columns of the size of a float. */
static enum ctw_status make_seqs(struct ctw_exchange *x, const struct ctw_pass *p,
                                 struct ctw_err *err)
{
    enum { COLUMNS = 9 };
    size_t n = (size_t)p->layout.n_seqs, n_rows = (size_t)p->layout.n_rows;
    x->seqs = ctw_calloc(n, sizeof(*x->seqs));
    x->final_seqs = ctw_calloc(n, sizeof(*x->final_seqs));
    x->divergence = ctw_calloc(n, sizeof(*x->divergence));
    x->columns = ctw_calloc(n_rows, COLUMNS * sizeof(*x->columns));
    if (x->seqs == NULL || x->final_seqs == NULL || x->divergence == NULL || x->columns == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for the matrices of a pass");
    float *at = x->columns;
    for (size_t i = 0; i < n; i++) {
        struct ctw_seq *s = &x->seqs[i];
        float *c[COLUMNS];
        *s = p->seqs[i];
        for (int k = 0; k < COLUMNS; k++) {
            c[k] = at;
            at += s->n_tok - s->first;
        }
        x->final_seqs[i] = *s;
        s->hidden = x->final_seqs[i].hidden = NULL;
        x->divergence[i] = (struct ctw_seq_divergence){.ref_logprob = c[0],
                                                       .ref_greedy = (int32_t *)(void *)c[1],
                                                       .ref_top = c[2],
                                                       .kl = c[3],
                                                       .kl_reverse = c[4],
                                                       .tv = c[5],
                                                       .overlap5 = (uint8_t *)(void *)c[6]};
        s->logprob = c[7];
        s->greedy = (int32_t *)(void *)c[8];
        s->divergence = &x->divergence[i];
        x->final_seqs[i].logprob = c[0];
        x->final_seqs[i].greedy = (int32_t *)(void *)c[1];
    }
    return CTW_OK;
}

static size_t residual_bytes(const struct ctw_exchange *x)
{
    return ctw_exchange_bytes(x->reference->model, x->run->layout.n_tok);
}

enum ctw_status ctw_exchange_begin(struct ctw_exchange *x, struct ctw_pass *model,
                                   struct ctw_pass *reference, struct ctw_err *err)
{
    enum ctw_status st = make_seqs(x, model, err);
    if (st != CTW_OK) {
        end_pass(x);
        return st;
    }
    x->run = reference;
    x->final = model;
    lend(&x->reference_side, reference, x, x->seqs, x->provider, &x->model);
    lend(&x->model_side, model, x, x->final_seqs, x->reference->provider, x->reference->model);
    ctw_provider_exchange(x->provider, -1, 0, false, 0);
    x->at = 0;
    x->reached = -1; /* not yet embedded */
    x->started = false;
    x->steps_done = 0;
    x->run->layer = 0;
    return ctw_device_copy(x->e->be, model->f->x, reference->f->x, residual_bytes(x), err);
}

bool ctw_exchange_is_running(const struct ctw_exchange *x)
{
    return x->model_side.pass != NULL;
}

double ctw_exchange_done(const struct ctw_exchange *x)
{
    double own = 2.0 * x->model.n_layers;
    double done = ctw_exchange_is_running(x) ? (double)x->steps_done : 0;
    return (own + done) / (own + (double)x->steps);
}

/* Runs the reference's own next layer on the residual stream before that layer. */
static enum ctw_status walk(struct ctw_exchange *x, struct ctw_err *err)
{
    bool done;
    enum ctw_status st = CTW_OK;
    x->run->layer = x->reached < 0 ? 0 : x->reached;
    if (x->reached >= 0)
        st = ctw_device_copy(x->e->be, x->run->f->x, x->x, residual_bytes(x), err);
    if (st == CTW_OK)
        st = ctw_pass_step(x->run, &done, err);
    if (st == CTW_OK)
        st = ctw_device_copy(x->e->be, x->x, x->run->f->x, residual_bytes(x), err);
    x->reached = x->run->layer;
    return st;
}

/* Puts the present run's matrix into the reference or, if `back`, restores the reference's own. */
static void exchange(struct ctw_exchange *x, bool back)
{
    const struct place *p = &x->places[x->at];
    const struct ctw_model *from = back ? x->reference->model : x->e->model;
    for (int i = 0; i < n_of(&x->layers[p->layer], p->role); i++)
        matrix_of(&x->layers[p->layer], p->role, i)->weight =
            matrix_of(&from->layers[p->layer], p->role, i)->weight;
    ctw_provider_exchange(x->provider, back ? -1 : p->layer, p->role,
                          p->layer == x->model.n_layers - 1, x->layers[p->layer].n_experts);
}

/* The results of the present run, of one of the model's sequences. */
static void take_seq(const struct ctw_exchange *x, const struct ctw_seq *run, struct ctw_seq *out)
{
    double kl = 0;
    for (int64_t t = 0; t < run->n_tok - run->first; t++)
        kl += (double)run->divergence->kl[t];
    if (out->divergence->matrices == NULL)
        return;
    out->divergence->matrices[x->at] = kl;
    if (out->bad_layer < 0)
        out->bad_layer = run->bad_layer;
}

static enum ctw_status end_run(struct ctw_exchange *x, struct ctw_compare *c, struct ctw_err *err)
{
    bool in_reference; /* both are the reference's */
    x->final->layer = x->model.n_layers - 1;
    enum ctw_status st = ctw_compare_heads(c, x->run, x->final, &in_reference, err);
    for (int64_t i = 0; st == CTW_OK && i < x->run->layout.n_seqs; i++)
        take_seq(x, &x->seqs[i], &x->model_side.seqs[i]);
    exchange(x, true);
    x->started = false;
    x->at++;
    return st;
}

static enum ctw_status step(struct ctw_exchange *x, struct ctw_compare *c, bool *done,
                            struct ctw_err *err)
{
    enum ctw_status st = CTW_OK;
    *done = false;
    x->steps_done++;
    if (x->reached < x->places[x->at].layer)
        return walk(x, err);
    if (!x->started) {
        exchange(x, false);
        x->started = true;
        x->run->layer = x->reached;
        st = ctw_device_copy(x->e->be, x->run->f->x, x->x, residual_bytes(x), err);
    }
    if (st != CTW_OK)
        return st;
    if (!ctw_pass_at_head(x->run))
        return ctw_pass_step(x->run, done, err);
    st = end_run(x, c, err);
    *done = st == CTW_OK && x->at == x->n;
    if (*done)
        end_pass(x);
    return st;
}

enum ctw_status ctw_exchange_step(struct ctw_exchange *x, struct ctw_compare *c, bool *done,
                                  bool *in_reference, struct ctw_err *err)
{
    enum ctw_status st = step(x, c, done, err);
    *in_reference = !ctw_provider_failed_in_other(x->provider);
    return st;
}
