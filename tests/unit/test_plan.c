#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/text.h"
#include "worker/engine/pass/forward.h"

enum { N_DECODERS = 30 };

/* SmolLM2-135M's shape: enough of a description for the planner. */
struct fixture {
    struct ctw_model model;
    struct ctw_layer layers[N_DECODERS + 2];
    struct ctw_backend *be;
};

/* A matrix that is a whole product. */
static void add_matrix(struct ctw_layer *l, int product, int matrix, int64_t n, int64_t k)
{
    static char name[] = "m";
    l->product[product] = (struct ctw_product){1, {{matrix, 0, n, -1, 1}}};
    l->matrix[matrix].name = name;
    l->matrix[matrix].weight.n = n;
    l->matrix[matrix].weight.k = k;
}

static const int gate_up = CTW_MLP * CTW_BRANCH_PRODUCTS + CTW_P_GATE_UP;
static const int down = CTW_MLP * CTW_BRANCH_PRODUCTS + CTW_P_DOWN;
static const int gate = CTW_MLP * CTW_BRANCH_MATRICES + CTW_M_GATE;

static int setup(void **state)
{
    static struct fixture f;
    struct ctw_err err;
    f.model = (struct ctw_model){.hidden = 576,
                                 .embed_dim = 576,
                                 .vocab = 49152,
                                 .n_ropes = 1,
                                 .n_decoders = N_DECODERS,
                                 .n_layers = N_DECODERS + 2,
                                 .layers = f.layers};
    f.model.rope[0].rot_dim = 64;
    for (int i = 1; i <= N_DECODERS; i++) {
        struct ctw_layer *l = &f.layers[i];
        *l = (struct ctw_layer){.n_branches = 2};
        l->branch[CTW_MIXER] = (struct ctw_branch){
            .kind = CTW_KIND_attention,
            .factor = 1,
            .attention = {.n_head = 9, .n_kv = 3, .head = 64, .head_v = 64, .keeps_kv = -1}};
        l->branch[CTW_MLP] =
            (struct ctw_branch){.kind = CTW_KIND_dense, .factor = 1, .dense = {.inner = 1536}};
        add_matrix(l, CTW_P_QKV, CTW_M_QKV, 960, 576);
        add_matrix(l, gate_up, gate, 1536, 576);
    }
    const struct ctw_backend_options opt = {.n_threads = 2};
    *state = &f;
    return ctw_backend_open(&f.be, "cpu", &opt, &err) == CTW_OK ? 0 : -1;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    ctw_backend_close(f->be);
    return 0;
}

static struct ctw_plan_request request(const struct fixture *f)
{
    return (struct ctw_plan_request){.model = &f->model,
                                     .backend = f->be,
                                     .dtype = CTW_BF16,
                                     .memory_limit = 1ull << 30,
                                     .longest = 2048,
                                     .total = INT64_MAX};
}

static void whole_set_stays_below_the_promise(void **state)
{
    struct ctw_plan_request r = request(*state);
    struct ctw_plan plan;
    struct ctw_err err;
    assert_int_equal(ctw_plan_make(&plan, &r, &err), CTW_OK);
    assert_true(plan.total <= 220ull << 20); /* README: 250 MB with the process itself */
    /* Seconds of work, so that few results are lost if the worker is stopped. */
    assert_int_equal(plan.pass_tokens, 4096);
    assert_true(plan.chunk_tokens >= 2048);
    assert_int_equal(plan.total,
                     plan.residual + plan.activations + plan.carried + plan.tables + plan.scratch);
    assert_int_equal(plan.inputs, 0);
    assert_int_equal(plan.carried, (size_t)plan.carry_rows * 2 * 3 * 64 * 2);
    assert_int_equal(plan.residual, (size_t)plan.pass_tokens * 576 * 4);
    const struct ctw_reserve reserve = ctw_plan_reserve(r.model, r.dtype, &plan);
    assert_true(reserve.n_tok == plan.chunk_tokens);
    assert_true(reserve.n_vocab == 49152);
    assert_true(reserve.head_k == 576);
    assert_true(reserve.max_k == 1536);
    assert_true(reserve.max_head == 64);
    assert_true(reserve.max_group == 3);
}

static void limit_is_kept_by_smaller_passes_then_chunks(void **state)
{
    struct ctw_plan_request r = request(*state);
    struct ctw_plan plan, before;
    struct ctw_err err;
    assert_int_equal(ctw_plan_make(&before, &r, &err), CTW_OK);
    int n_ok = 0;
    for (r.memory_limit = before.total - 1; r.memory_limit > 1 << 20; r.memory_limit /= 2) {
        enum ctw_status st = ctw_plan_make(&plan, &r, &err);
        if (st != CTW_OK)
            break;
        n_ok++;
        assert_true(plan.total <= r.memory_limit);
        assert_true(plan.pass_tokens >= r.longest);
        assert_true(plan.pass_tokens < before.pass_tokens ||
                    plan.chunk_tokens < before.chunk_tokens);
        before = plan;
    }
    assert_true(n_ok >= 2);
    assert_int_equal(ctw_plan_make(&plan, &r, &err), CTW_ENOMEM);
    assert_non_null(strstr(err.msg, "2048 tokens"));
    assert_non_null(strstr(err.msg, "--memory-limit"));
    /* What it says would fit does, and one token more does not. */
    const char *enough = strstr(err.msg, "enough for ");
    assert_non_null(enough);
    r.longest = r.total = atoll(enough + strlen("enough for "));
    assert_true(r.longest > 0);
    assert_true(r.longest < 2048);
    assert_int_equal(ctw_plan_make(&plan, &r, &err), CTW_OK);
    r.longest++;
    r.total++;
    assert_int_equal(ctw_plan_make(&plan, &r, &err), CTW_ENOMEM);
    /* If no sequence fits, shorter sequences are no remedy. */
    r.memory_limit = 1;
    assert_int_equal(ctw_plan_make(&plan, &r, &err), CTW_ENOMEM);
    assert_non_null(strstr(err.msg, "the memory limit is 1 B: raise --memory-limit"));
    assert_null(strstr(err.msg, "lower"));
}

/* A trunk is kept only of memory that passes, chunks and the carry within a pass do not need, and
 * only if passes follow one another; in part, if that is what there is room for. */
static void a_trunk_takes_what_is_left(void **state)
{
    struct ctw_plan_request r = request(*state);
    struct ctw_plan with, without;
    struct ctw_err err;
    const size_t row = (size_t)2 * 3 * 64 * 2; /* the layers have one layer's keys */
    int64_t before = INT64_MAX, n_sizes = 0;
    r.shares = true;
    for (r.memory_limit = 1 << 30;; r.memory_limit -= r.memory_limit / 64) {
        r.trunk = 0;
        if (ctw_plan_make(&without, &r, &err) != CTW_OK)
            break;
        r.trunk = 1800;
        assert_int_equal(ctw_plan_make(&with, &r, &err), CTW_OK);
        assert_int_equal(with.pass_tokens, without.pass_tokens);
        assert_int_equal(with.chunk_tokens, without.chunk_tokens);
        assert_true(with.total <= r.memory_limit);
        assert_int_equal(with.total, with.residual + with.activations + with.carried + with.trunk +
                                         with.tables + with.scratch);
        assert_int_equal(with.trunk, (size_t)with.trunk_tokens * row);
        assert_true(with.trunk_tokens == 0 || with.trunk_from == CTW_BRANCH_TOKENS);
        n_sizes += with.trunk_tokens != before && with.trunk_tokens < before;
        before = with.trunk_tokens;
    }
    assert_true(n_sizes > 2);
    r.memory_limit = 1 << 30;
    r.trunk = 1800;
    r.total = 3000; /* one pass */
    assert_int_equal(ctw_plan_make(&with, &r, &err), CTW_OK);
    assert_int_equal(with.trunk_tokens, 0);
    r.follows = true;
    assert_int_equal(ctw_plan_make(&with, &r, &err), CTW_OK);
    assert_int_equal(with.trunk_tokens, 1800);
    r.trunk = CTW_BRANCH_TOKENS - 1;
    assert_int_equal(ctw_plan_make(&with, &r, &err), CTW_OK);
    assert_int_equal(with.trunk_tokens, 0);
}

/* Of chunks that are no power of 2: whole tiles of rows, and never fewer than 64. */
static void chunks_are_halved_to_whole_tiles(void **state)
{
    struct fixture *f = *state;
    const struct ctw_backend_ops *const ops = f->be->ops;
    struct ctw_backend_ops odd = *ops;
    struct ctw_plan_request r = request(f);
    struct ctw_plan plan;
    struct ctw_err err;
    odd.traits.chunk_tokens = 33 * 256;
    odd.traits.mixture_pass_tokens = 8 * 33 * 256;
    f->be->ops = &odd;
    r.longest = 64;
    static const int64_t want[] = {8448, 4096, 2048, 1024, 512, 256, 128, 64};
    size_t at = 0;
    for (r.memory_limit = 1 << 30; ctw_plan_make(&plan, &r, &err) == CTW_OK;
         r.memory_limit = plan.total - 1) {
        if (plan.chunk_tokens != want[at])
            at++;
        assert_true(at < CTW_COUNT(want));
        assert_int_equal(plan.chunk_tokens, want[at]);
    }
    f->be->ops = ops;
    assert_int_equal(at, CTW_COUNT(want) - 1);
}

/* Of any chunk and layer: they begin behind q, k and v, and behind attention's output, which may be
 * wider, aligned, and end within `wide`. */
static void queries_have_their_place(void **state)
{
    struct fixture *f = *state;
    struct ctw_plan_request r = request(f);
    struct ctw_plan plan;
    struct ctw_err err;
    struct ctw_layer *odd = &f->layers[2];
    const struct ctw_layer before = *odd;
    struct ctw_attention *wide = &odd->branch[CTW_MIXER].attention;
    wide->n_head = 37; /* wider than the MLP */
    wide->n_kv = 1;
    wide->head = 43;
    wide->head_v = 200;
    odd->product[CTW_P_QKV].shard[0].n = (37 + 1) * 43 + 200;
    for (r.chunk_tokens = 1; r.chunk_tokens <= 301; r.chunk_tokens += 50) {
        assert_int_equal(ctw_plan_make(&plan, &r, &err), CTW_OK);
        assert_int_equal(plan.chunk_tokens, r.chunk_tokens);
        assert_true(plan.activations > plan.wide);
        for (int i = 1; i <= N_DECODERS; i++) {
            const struct ctw_attention *l = &f->layers[i].branch[CTW_MIXER].attention;
            int64_t q = (int64_t)l->n_head * l->head, out = (int64_t)l->n_head * l->head_v;
            int64_t kv = (int64_t)l->n_kv * (l->head + l->head_v),
                    most = q + kv > out ? q + kv : out;
            int64_t at = (plan.chunk_tokens * most + 127) / 128 * 128;
            assert_true((size_t)(at + plan.chunk_tokens * q) * 2 <= plan.wide);
            assert_true((size_t)(plan.chunk_tokens * f->layers[i].branch[CTW_MLP].dense.inner) *
                            2 <=
                        plan.wide);
        }
    }
    *odd = before;
}

static void small_work_takes_little(void **state)
{
    struct ctw_plan_request r = request(*state);
    struct ctw_plan plan;
    struct ctw_err err;
    r.longest = 20;
    r.total = 100;
    assert_int_equal(ctw_plan_make(&plan, &r, &err), CTW_OK);
    assert_int_equal(plan.pass_tokens, 100);
    assert_int_equal(plan.chunk_tokens, 100);
    assert_int_equal(plan.carry_rows, 100);
}

static void what_was_asked_for_is_kept(void **state)
{
    struct ctw_plan_request r = request(*state);
    struct ctw_plan plan;
    struct ctw_err err;
    r.chunk_tokens = 7;
    r.pass_tokens = 100; /* less than the longest sequence, which must still fit */
    assert_int_equal(ctw_plan_make(&plan, &r, &err), CTW_OK);
    assert_int_equal(plan.chunk_tokens, 7);
    assert_int_equal(plan.pass_tokens, 2048);
    r.pass_tokens = 5000;
    assert_int_equal(ctw_plan_make(&plan, &r, &err), CTW_OK);
    assert_int_equal(plan.pass_tokens, 5000);
}

static void sizes_read_well(void **state)
{
    (void)state;
    char buf[32];
    assert_string_equal(ctw_format_bytes(buf, sizeof(buf), 512), "512 B");
    assert_string_equal(ctw_format_bytes(buf, sizeof(buf), 1536), "1.5 KiB");
    assert_string_equal(ctw_format_bytes(buf, sizeof(buf), 3.5 * 1024 * 1024 * 1024), "3.5 GiB");
}

/* A backend reserves for the largest product of each slot over all layers, by its shards' rows. */
static void what_is_reserved_follows_the_products(void **state)
{
    struct fixture *f = *state;
    const struct ctw_plan plan = {.chunk_tokens = 64};
    struct ctw_product *fused = &f->layers[5].product[CTW_P_QKV];
    const struct ctw_product before = *fused;
    struct ctw_reserve r = ctw_plan_reserve(&f->model, CTW_BF16, &plan);
    assert_int_equal(r.n_tok, 64);
    assert_int_equal(r.max_n, 1536);
    assert_int_equal(r.slot_elems[CTW_P_QKV], 960 * 576);
    assert_int_equal(r.slot_elems[gate_up], 1536 * 576);
    assert_int_equal(r.slot_elems[down], 0);
    *fused = (struct ctw_product){2, {{CTW_M_QKV, 0, 500, -1, 1}, {gate, 36, 1500, -1, 1}}};
    r = ctw_plan_reserve(&f->model, CTW_BF16, &plan);
    assert_int_equal(r.max_n, 2000);
    assert_int_equal(r.slot_elems[CTW_P_QKV], 2000 * 576);
    *fused = before;
}

static size_t allocated;
static enum ctw_status (*real_alloc)(struct ctw_backend *be, void **out, size_t bytes,
                                     struct ctw_err *err);

static enum ctw_status counting_alloc(struct ctw_backend *be, void **out, size_t bytes,
                                      struct ctw_err *err)
{
    allocated += bytes;
    return real_alloc(be, out, bytes, err);
}

/* The bytes of all buffers of a pass, which the plan must have foreseen. */
static void expect_planned(struct fixture *f)
{
    const struct ctw_backend_ops *const ops = f->be->ops;
    struct ctw_backend_ops counting = *ops;
    struct ctw_plan_request r = request(f);
    struct ctw_forward *forward;
    struct ctw_plan plan;
    struct ctw_err err = {0};
    assert_int_equal(ctw_plan_make(&plan, &r, &err), CTW_OK);
    allocated = 0;
    real_alloc = ops->alloc;
    counting.alloc = counting_alloc;
    f->be->ops = &counting;
    if (ctw_forward_open(&forward, r.model, f->be, r.dtype, &plan, 1, &err) != CTW_OK)
        fail_msg("%s", err.msg);
    ctw_forward_close(forward);
    f->be->ops = ops;
    assert_int_equal(allocated, plan.total - plan.scratch);
}

static void every_buffer_is_planned(void **state)
{
    struct fixture *f = *state;
    const struct ctw_model before = f->model;
    float frequencies[32] = {1}, slopes[9] = {1};
    f->model.rope[0].inv_freq = frequencies;
    expect_planned(f);
    f->model.alibi = slopes;
    f->model.n_alibi = 9;
    f->model.q_factor_beta = 0.1;
    f->model.q_factor_length = 64;
    expect_planned(f);
    f->model.q_factor_beta = 0;
    f->model.rope[1] = f->model.rope[0];
    f->model.rope[1].rot_dim = 22;
    f->model.rope[1].long_inv_freq = frequencies;
    f->model.rope[1].long_from = 100;
    f->model.n_ropes = 2;
    f->model.embed_dim = 600;
    f->model.input_dim = 2000; /* wider than everything else */
    f->layers[2].branch[CTW_MIXER].attention.keeps_kv = 0;
    f->layers[3].branch[CTW_MIXER].attention.keeps_kv = 1;
    expect_planned(f);
    /* Every product's inputs are reserved for. */
    const struct ctw_plan plan = {.chunk_tokens = 64};
    assert_int_equal(ctw_plan_reserve(&f->model, CTW_BF16, &plan).max_k, 2000);
    f->model = before;
}

/* Two of the layers are mixtures: of 6 experts, of which a token has 2, and of 4, of which it
 * has 3. */
enum { MOST = 6, INNER = 2000 };

static void put_mixtures(struct ctw_layer *const l[2], struct ctw_matrix *matrices)
{
    for (int e = 0; e < MOST; e++) {
        static char name[] = "e";
        struct ctw_matrix *m = &matrices[e * CTW_N_EXPERT_MATRICES];
        m[CTW_X_GATE].name = m[CTW_X_UP].name = m[CTW_X_DOWN].name = name;
        m[CTW_X_GATE].weight = m[CTW_X_UP].weight = (struct ctw_weight){.n = INNER, .k = 576};
        m[CTW_X_DOWN].weight = (struct ctw_weight){.n = 576, .k = INNER};
    }
    for (int i = 0; i < 2; i++) {
        struct ctw_mixture *x = &l[i]->branch[CTW_MLP].mixture;
        l[i]->branch[CTW_MLP].kind = CTW_KIND_mixture;
        *x = (struct ctw_mixture){.width = 576, .inner = INNER, .gated = true};
        l[i]->expert = matrices;
        l[i]->n_experts = x->route.n_experts = i == 0 ? 6 : 4;
        x->route.chosen = i == 0 ? 2 : 3;
        x->up =
            (struct ctw_product){2, {{CTW_X_GATE, 0, INNER, -1, 1}, {CTW_X_UP, 0, INNER, -1, 1}}};
        x->down = (struct ctw_product){1, {{CTW_X_DOWN, 0, 576, -1, 1}}};
    }
}

/* A pass takes a short last one with it, up to an eighth of its length. */
static void passes_of_a_mixture_stretch(struct ctw_plan_request r)
{
    struct ctw_plan plan;
    struct ctw_err err;
    r.memory_limit = 1ull << 40;
    assert_int_equal(ctw_plan_make(&plan, &r, &err), CTW_OK);
    const int64_t usual = plan.pass_tokens;
    r.total = 2 * usual + usual / 10;
    assert_int_equal(ctw_plan_make(&plan, &r, &err), CTW_OK);
    assert_int_equal(plan.pass_tokens, r.total / 2 + r.longest);
    r.total = 2 * usual + usual / 3;
    assert_int_equal(ctw_plan_make(&plan, &r, &err), CTW_OK);
    assert_int_equal(plan.pass_tokens, usual);
}

/* On a GPU an expert's parts are longer than a chunk; their inner activations are in `wide`, twice.
 */
static void parts_of_experts_fit(struct ctw_plan_request r)
{
    struct ctw_backend *gpu;
    struct ctw_plan plan;
    struct ctw_err err;
    assert_int_equal(ctw_backend_open_planned(&gpu, 80ull << 30, &err), CTW_OK);
    r.backend = gpu;
    r.memory_limit = 8ull << 30;
    for (r.chunk_tokens = 512; r.chunk_tokens <= 8192; r.chunk_tokens *= 2) {
        assert_int_equal(ctw_plan_make(&plan, &r, &err), CTW_OK);
        assert_true(plan.expert_rows >= plan.chunk_tokens);
        assert_true(plan.expert_rows <= plan.pass_tokens);
        assert_true((size_t)(2 * plan.expert_rows * INNER) * ctw_dtype_bytes(r.dtype) <= plan.wide);
        const struct ctw_reserve reserve = ctw_plan_reserve(r.model, r.dtype, &plan);
        assert_int_equal(reserve.n_rows, plan.expert_rows);
    }
    ctw_backend_close(gpu);
}

static void a_mixture(void **state)
{
    struct fixture *f = *state;
    struct ctw_matrix matrices[MOST * CTW_N_EXPERT_MATRICES] = {0};
    struct ctw_layer *l[2] = {&f->layers[3], &f->layers[7]};
    const struct ctw_layer before[2] = {*l[0], *l[1]};
    put_mixtures(l, matrices);
    float frequencies[32] = {1};
    f->model.rope[0].inv_freq = frequencies;
    expect_planned(f);

    const struct ctw_plan_request r = request(f);
    struct ctw_plan plan;
    struct ctw_err err;
    assert_int_equal(ctw_plan_make(&plan, &r, &err), CTW_OK);
    const size_t pass = (size_t)plan.pass_tokens, chunk = (size_t)plan.chunk_tokens;
    assert_int_equal(plan.mixed, pass * 576 * 2);
    assert_int_equal(plan.sum, 0);
    assert_int_equal(plan.logits, chunk * 6 * 4);
    assert_int_equal(plan.factor, chunk * 4);
    assert_int_equal(plan.choices, pass * 3 * 4);
    assert_int_equal(plan.starts, 7 * 4);
    assert_true(plan.wide >= chunk * 2 * INNER * 2);
    const struct ctw_reserve reserve = ctw_plan_reserve(r.model, r.dtype, &plan);
    assert_int_equal(reserve.n_experts, 6);
    assert_int_equal(reserve.chosen, 3);
    assert_int_equal(reserve.n_grouped, plan.pass_tokens);
    assert_int_equal(reserve.max_n, 2 * INNER);
    assert_int_equal(reserve.max_k, INNER);
    for (int64_t i = 0; i < CTW_EXPERTS_IN_FLIGHT; i++) {
        assert_int_equal(reserve.slot_elems[ctw_expert_slot(i, false)], 2 * INNER * 576);
        assert_int_equal(reserve.slot_elems[ctw_expert_slot(i, true)], 576 * INNER);
    }
    passes_of_a_mixture_stretch(r);
    parts_of_experts_fit(r);
    /* Only the experts that a token has count as work. */
    const double flops = ctw_plan_layer_flops(&f->model);
    l[0]->branch[CTW_MLP].mixture.route.chosen = 6;
    assert_true(ctw_plan_layer_flops(&f->model) > flops);
    l[0]->branch[CTW_MLP].mixture.route.chosen = 2;
    l[0]->n_experts = 5;
    assert_true(ctw_plan_layer_flops(&f->model) == flops);

    /* Outputs of experts that are scaled or normed are added up apart from the residual. */
    l[0]->norm[ctw_norm_at(CTW_MLP, CTW_AT_EXPERTS_OUT)].present = true;
    assert_int_equal(ctw_plan_make(&plan, &r, &err), CTW_OK);
    assert_int_equal(plan.sum, (size_t)plan.pass_tokens * 576 * 4);
    *l[0] = before[0];
    *l[1] = before[1];
}

/* Of layers that do nothing, as an architecture search may leave them. */
static void a_model_without_products(void **state)
{
    struct fixture f = *(struct fixture *)*state;
    struct ctw_plan plan;
    struct ctw_err err;
    for (int i = 1; i <= N_DECODERS; i++)
        f.layers[i] = (struct ctw_layer){.n_branches = 2};
    f.model.layers = f.layers;
    const struct ctw_plan_request r = request(&f);
    assert_int_equal(ctw_plan_make(&plan, &r, &err), CTW_OK);
    assert_int_equal(plan.pass_tokens, ctw_backend_traits(f.be)->pass_tokens);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_set_stays_below_the_promise),
        cmocka_unit_test(limit_is_kept_by_smaller_passes_then_chunks),
        cmocka_unit_test(a_trunk_takes_what_is_left),
        cmocka_unit_test(chunks_are_halved_to_whole_tiles),
        cmocka_unit_test(queries_have_their_place),
        cmocka_unit_test(small_work_takes_little),
        cmocka_unit_test(what_was_asked_for_is_kept),
        cmocka_unit_test(sizes_read_well),
        cmocka_unit_test(what_is_reserved_follows_the_products),
        cmocka_unit_test(a_model_without_products),
        cmocka_unit_test(every_buffer_is_planned),
        cmocka_unit_test(a_mixture),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
