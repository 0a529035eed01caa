/* A checkpoint with a mixture of experts: what it becomes, why it is refused, and that no score
 * depends on where its tokens go, nor with whom. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/mem.h"
#include "kernels/dtype.h"
#include "small_checkpoint.h"
#include "worker/engine/engine.h"

enum { N_EXPERTS = 4, INNER = 16, MATRIX = INNER * 32, N_SEQS = 5, MOST = 41 };

#define QWEN "\"architectures\": [\"Qwen3MoeForCausalLM\"], \"model_type\": \"qwen3_moe\""
#define MIXTURE                                                                                    \
    ", \"num_experts\": 4, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 16, "            \
    "\"head_dim\": 8, \"norm_topk_prob\": true"
#define EXPERT(e, name) LAYER "mlp.experts." e "." name ".weight"

static uint16_t values[64][2048]; /* of the tensors, in their order */
static uint16_t router[N_EXPERTS * 32];

/* Numbers around 0, the same in every run. */
static void fill(uint16_t *to, size_t n, uint32_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        ctw_store_float(to, CTW_BF16, (int64_t)i, ((float)(seed >> 16) / 65536 - 0.5f) * 0.6f);
    }
}

/* Makes the dense checkpoint of set_up() a mixture. */
static int set_up_mixture(void **state)
{
    static const char *const names[N_EXPERTS][3] = {
        {EXPERT("0", "gate_proj"), EXPERT("0", "up_proj"), EXPERT("0", "down_proj")},
        {EXPERT("1", "gate_proj"), EXPERT("1", "up_proj"), EXPERT("1", "down_proj")},
        {EXPERT("2", "gate_proj"), EXPERT("2", "up_proj"), EXPERT("2", "down_proj")},
        {EXPERT("3", "gate_proj"), EXPERT("3", "up_proj"), EXPERT("3", "down_proj")}};
    if (set_up(state) != 0)
        return -1;
    struct checkpoint *c = *state;
    c->family = QWEN;
    c->config = BF16_CONFIG MIXTURE;
    drop(c, LAYER "mlp.gate_proj.weight");
    drop(c, LAYER "mlp.up_proj.weight");
    drop(c, LAYER "mlp.down_proj.weight");
    add(c, LAYER "self_attn.q_norm.weight", "BF16", "8", 16, NULL);
    add(c, LAYER "self_attn.k_norm.weight", "BF16", "8", 16, NULL);
    for (int e = 0; e < N_EXPERTS; e++)
        for (int i = 0; i < 3; i++)
            add(c, names[e][i], "BF16", i == 2 ? "32, 16" : "16, 32", 2 * MATRIX, NULL);
    for (int i = 0; i < c->n; i++) {
        fill(values[i], c->tensors[i].bytes / 2, (uint32_t)i + 1);
        c->tensors[i].data = (const char *)values[i];
    }
    fill(router, N_EXPERTS * 32, 99);
    add(c, LAYER "mlp.gate.weight", "BF16", "4, 32", sizeof(router), (const char *)router);
    return 0;
}

/* ---- opening ------------------------------------------------------------------------------ */

static void a_mixture(void **state)
{
    struct checkpoint *c = *state;
    struct ctw_model *m = open_ok(c);
    const struct ctw_mixture *x = &m->layers[1].branch[CTW_MLP].mixture;
    assert_int_equal(x->route.n_experts, N_EXPERTS);
    assert_true(x->route.chosen == 2);
    assert_true(x->route.normalised);
    assert_true(x->inner == INNER);
    assert_true(x->gated);
    assert_int_equal(x->route.score, CTW_SCORE_SOFTMAX);
    const struct ctw_matrix *down = &m->layers[1].expert[3 * CTW_N_EXPERT_MATRICES + CTW_X_DOWN];
    assert_string_equal(down->name, LAYER "mlp.experts.3.down_proj");
    assert_true(down->weight.n == 32);
    assert_true(down->weight.k == INNER);
    assert_true(!x->has_shared);
    assert_int_equal(m->n_params, 2 * 512 + 2 * 1024 + 2 * 512 + 12 * MATRIX + 128 + 3 * 32 + 16);
    ctw_model_close(m);
}

static void experts_that_are_missing_wrong_or_too_many_are_named(void **state)
{
    struct checkpoint *c = *state;
    drop(c, EXPERT("2", "up_proj"));
    expect_refusal(c, "the checkpoint has no tensor " LAYER "mlp.experts.2.up_proj.weight");
    add(c, EXPERT("2", "up_proj"), "BF16", "32, 16", 2 * MATRIX, NULL);
    expect_refusal(c, LAYER "mlp.experts.2.up_proj: weight: found BF16 [32, 16], expected");
    find(c, EXPERT("2", "up_proj"))->shape = "16, 32";
    ctw_model_close(open_ok(c));
    add(c, EXPERT("4", "up_proj"), "BF16", "16, 32", 2 * MATRIX, NULL);
    expect_refusal(c, LAYER "mlp.experts.4.up_proj.weight (BF16 [16, 32]) has no use");
    drop(c, EXPERT("4", "up_proj"));
    drop(c, LAYER "mlp.gate.weight");
    expect_refusal(c, "the checkpoint has no tensor " LAYER "mlp.gate.weight");
}

static void each_expert_has_its_own_format(void **state)
{
    struct checkpoint *c = *state;
    drop(c, EXPERT("1", "up_proj"));
    add(c, LAYER "mlp.experts.1.up_proj.weight_packed", "I32", "16, 4", 256, NULL);
    add(c, LAYER "mlp.experts.1.up_proj.weight_scale", "BF16", "16, 2", 64, NULL);
    c->config = MIXTURE PACK("\"re:.*experts.1.up_proj\"", "");
    struct ctw_model *m = open_ok(c);
    const struct ctw_matrix *matrix = m->layers[1].expert;
    const int at = CTW_N_EXPERT_MATRICES + CTW_X_UP;
    assert_int_equal(matrix[at].weight.format->id, CTW_FORMAT_pack_quantized);
    assert_int_equal(matrix[CTW_X_UP].weight.format->id, CTW_FORMAT_dense);
    ctw_model_close(m);
    c->config = MIXTURE PACK("\"Qwen3MoeExperts\"", ""); /* of the stack that the tool quantised */
    ctw_model_close(open_ok(c));
    c->config = MIXTURE PACK("\"re:.*experts.2.up_proj\"", "");
    expect_refusal(c, LAYER "mlp.experts.1.up_proj: ");
}

#define GATE_UP LAYER "mlp.experts.gate_up_proj"
#define DOWN LAYER "mlp.experts.down_proj"
#define FP8(targets, strategy)                                                                     \
    "{\"targets\": [" targets "], \"weights\": {\"num_bits\": 8, \"type\": \"float\", "            \
    "\"strategy\": \"" strategy "\"}}"
#define GROUPS(groups, ignore)                                                                     \
    MIXTURE BF16_CONFIG ", \"quantization_config\": {\"quant_method\": \"compressed-tensors\", "   \
                        "\"config_groups\": {" groups                                              \
                        "}, \"ignore\": [\"lm_head\", \"re:.*mlp.gate$\", "                        \
                        "\"re:.*self_attn.*\"" ignore "]}"
#define STACKS(targets, ignore) GROUPS("\"g\": " FP8(targets, "channel"), ignore)

static void drop_experts(struct checkpoint *c)
{
    for (int i = c->n - 1; i >= 0; i--)
        if (strstr(c->tensors[i].name, ".experts.") != NULL)
            c->tensors[i] = c->tensors[--c->n];
}

/* Targets that mean the stacks: a class of the stack's own, in any version and tool, the module, or
 * Linear if the stack is stored quantised. */
static void stacks_are_targeted_by_class_or_module(void **state)
{
    struct checkpoint *c = *state;
    static const struct {
        const char *config;
        bool opens;
    } rows[] = {
        {STACKS("\"Linear\"", ""), true},
        {STACKS("\"Qwen3MoeExperts\"", ""), true},
        {STACKS("\"Linear\", \"GraniteMoeHybridParallelExpertsLinear\"", ""), true},
        {STACKS("\"GraniteMoeParallelExperts\"", ""), true},
        {STACKS("\"MoELinear\"", ""), true},
        {STACKS("\"re:.*mlp[.]experts$\"", ""), true},
        {STACKS("\"" LAYER "mlp.experts\"", ""), true},
        {STACKS("\"Qwen3MoeSparseMoeBlock\"", ""), false},
        {STACKS("\"" LAYER "mlp\"", ""), false},
        {STACKS("\"Linear\"", ", \"re:.*experts\""), false},
        {STACKS("\"Linear\"", ", \"Qwen3MoeExperts\""), false},
        /* The stack's own class counts first. */
        {GROUPS("\"a\": " FP8("\"Linear\"", "tensor") ", \"b\": " FP8("\"Qwen3MoeExperts\"",
                                                                      "channel"),
                ""),
         true},
        {GROUPS("\"a\": " FP8("\"Linear\"", "channel") ", \"b\": " FP8("\"Qwen3MoeExperts\"",
                                                                       "tensor"),
                ""),
         false},
    };
    drop_experts(c);
    add(c, GATE_UP ".weight", "F8_E4M3", "4, 32, 32", 4096, NULL);
    add(c, GATE_UP ".weight_scale", "BF16", "4, 32, 1", 256, NULL);
    add(c, DOWN ".weight", "F8_E4M3", "4, 32, 16", 2048, NULL);
    add(c, DOWN ".weight_scale", "BF16", "4, 32, 1", 256, NULL);
    for (size_t i = 0; i < CTW_COUNT(rows); i++) {
        c->config = rows[i].config;
        if (rows[i].opens)
            ctw_model_close(open_ok(c));
        else
            expect_refusal(c, GATE_UP);
    }
}

#define INT4                                                                                       \
    "\"g\": {\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 4, \"group_size\": 16, "       \
    "\"symmetric\": true}}"
#define NVFP4                                                                                      \
    "\"g\": {\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 4, \"type\": \"float\", "      \
    "\"group_size\": 16, \"strategy\": \"tensor_group\"}}"

static const struct ctw_matrix *last_of(const struct ctw_model *m, enum ctw_expert_role role)
{
    return &m->layers[1].expert[(N_EXPERTS - 1) * CTW_N_EXPERT_MATRICES + role];
}

/* As llm-compressor saves stacks from memory: "gate_up_proj_packed" beside "gate_up_proj_scale". */
static void packed_stacks(void **state)
{
    struct checkpoint *c = *state;
    static int64_t shapes[8] = {32, 32, 32, 32, 32, 32, 32, 32}, whole[3] = {4, 32, 16};
    static float global[4] = {1, 2, 3, 4};
    drop_experts(c);
    c->config = GROUPS(INT4, "");
    add(c, GATE_UP "_packed", "I32", "4, 32, 4", 2048, NULL);
    add(c, GATE_UP "_scale", "BF16", "4, 32, 2", 512, NULL);
    add(c, DOWN "_packed", "I32", "4, 32, 2", 1024, NULL);
    add(c, DOWN "_scale", "BF16", "4, 32, 1", 256, NULL);
    struct ctw_model *m = open_ok(c);
    const struct ctw_matrix *last = last_of(m, CTW_X_GATE_UP);
    assert_int_equal(last->weight.format->id, CTW_FORMAT_pack_quantized);
    assert_true(ctw_part_offset(last, CTW_PART_VALUES) == 1536);
    assert_true(last->weight.bits == 4);
    assert_true(ctw_part_offset(last, CTW_PART_SCALE) == 384);
    ctw_model_close(m);

    /* Zero points of 0 say nothing. A shape for each matrix, for all, and of the stack. */
    add(c, DOWN "_zero_point", "I8", "4, 32, 1", 128, NULL);
    add(c, GATE_UP "_shape", "I64", "4, 2", sizeof(shapes), (const char *)shapes);
    add(c, DOWN "_shape", "I64", "3", sizeof(whole), (const char *)whole);
    ctw_model_close(open_ok(c));
    shapes[5] = 64;
    expect_refusal(c, GATE_UP ": weight_shape: found (32, 64) for matrix 2 of the stack, expected "
                              "(32, 32), as for matrix 0");
    find(c, GATE_UP "_shape")->shape = "8";
    expect_refusal(c, "weight_shape: found I64 [8], expected I64 [2], [3] or [4, 2]");
    *find(c, GATE_UP "_shape") =
        (struct tensor){GATE_UP "_shape", "I64", "2", 16, (const char *)shapes};
    ctw_model_close(open_ok(c));
    whole[0] = 5;
    expect_refusal(c, DOWN ": weight_shape: found a stack of 5 matrices, expected 4");
    drop(c, DOWN "_shape");
    drop(c, DOWN "_packed");
    expect_refusal(c, "no tensor " DOWN ".weight (or .weight_packed, _packed), which");

    /* A global scale for each matrix, and for all. */
    drop(c, DOWN "_zero_point");
    drop(c, GATE_UP "_shape");
    c->config = GROUPS(NVFP4, "");
    find(c, GATE_UP "_packed")->shape = "4, 32, 16";
    find(c, GATE_UP "_packed")->dtype = "U8";
    find(c, GATE_UP "_scale")->shape = "4, 32, 2";
    find(c, GATE_UP "_scale")->dtype = "F8_E4M3";
    find(c, GATE_UP "_scale")->bytes = 256;
    add(c, DOWN "_packed", "U8", "4, 32, 8", 1024, NULL);
    find(c, DOWN "_scale")->dtype = "F8_E4M3";
    find(c, DOWN "_scale")->bytes = 128;
    add(c, GATE_UP "_global_scale", "F32", "4, 1, 1", 16, (const char *)global);
    add(c, DOWN "_global_scale", "F32", "1", 4, (const char *)global);
    m = open_ok(c);
    assert_int_equal(last_of(m, CTW_X_DOWN)->weight.format->id, CTW_FORMAT_nvfp4);
    assert_int_equal(ctw_part_offset(last_of(m, CTW_X_GATE_UP), CTW_PART_GLOBAL_SCALE), 12);
    assert_int_equal(ctw_part_offset(last_of(m, CTW_X_DOWN), CTW_PART_GLOBAL_SCALE), 0);
    ctw_model_close(m);
}

static void dense_stacks_are_not_linear(void **state)
{
    struct checkpoint *c = *state;
    drop_experts(c);
    add(c, GATE_UP, "BF16", "4, 32, 32", 8192, NULL);
    add(c, DOWN, "BF16", "4, 32, 16", 4096, NULL);
    c->config = STACKS("\"Linear\"", "");
    ctw_model_close(open_ok(c));
    c->config = STACKS("\"Qwen3MoeExperts\"", "");
    expect_refusal(c, GATE_UP ": weight is stored dense");
}

static void numbers_that_fit_no_mixture_are_refused(void **state)
{
    struct checkpoint *c = *state;
    c->config = BF16_CONFIG ", \"num_experts\": 4, \"num_experts_per_tok\": 5, "
                            "\"moe_intermediate_size\": 16, \"head_dim\": 8";
    expect_refusal(c, "the experts that a token chooses: found 5, expected 1 to 4");
    c->config = BF16_CONFIG MIXTURE ", \"mlp_only_layers\": [0]";
    expect_refusal(c, LAYER "mlp.gate_proj.weight");
}

/* ---- scoring ------------------------------------------------------------------------------ */

struct scores {
    struct ctw_seq seqs[N_SEQS];
    int32_t tokens[N_SEQS][MOST], greedy[N_SEQS][MOST];
    float logprob[N_SEQS][MOST];
};

static struct ctw_engine *engine(const struct checkpoint *c, struct ctw_engine_options opt)
{
    struct ctw_engine *e;
    struct ctw_err err;
    opt.model_dir = c->dir;
    opt.backend = "cpu";
    if (ctw_engine_open(&e, &opt, &err) != CTW_OK)
        fail_msg("%s", err.msg);
    return e;
}

/* All together, or one by one from the last to the first. */
static void score(const struct checkpoint *c, struct ctw_engine_options opt, bool alone,
                  struct scores *s)
{
    struct ctw_err err = {0};
    struct ctw_engine *e = engine(c, opt);
    memset(s, 0, sizeof(*s));
    for (int i = 0; i < N_SEQS; i++) {
        s->seqs[i] = (struct ctw_seq){.tokens = s->tokens[i],
                                      .n_tok = MOST - 7 * i,
                                      .first = 1,
                                      .logprob = s->logprob[i],
                                      .greedy = s->greedy[i]};
        for (int t = 0; t < MOST; t++)
            s->tokens[i][t] = (5 * t + 3 * i + t * t) % 16;
    }
    for (int i = N_SEQS - 1; alone && i >= 0; i--)
        assert_int_equal(ctw_engine_score(e, &s->seqs[i], 1, NULL, &err), CTW_OK);
    if (!alone)
        assert_int_equal(ctw_engine_score(e, s->seqs, N_SEQS, NULL, &err), CTW_OK);
    for (int i = 0; i < N_SEQS; i++)
        assert_int_equal(s->seqs[i].bad_layer, -1);
    ctw_engine_close(e);
}

/* The same bits, however the work is cut, and whether weights are mapped or streamed. */
static void nothing_but_the_checkpoint_counts(const struct checkpoint *c, struct scores *want)
{
    static const struct ctw_engine_options cuts[] = {
        {.n_threads = 1, .chunk_tokens = 1},
        {.n_threads = 3, .chunk_tokens = 5, .pass_tokens = 50},
        {.n_threads = 2, .chunk_tokens = 64, .pass_tokens = 1},
        {.n_threads = 2, .place = "streamed"},
        {.n_threads = 1, .place = "resident", .chunk_tokens = 7},
    };
    static struct scores got;
    score(c, (struct ctw_engine_options){.n_threads = 2}, false, want);
    for (size_t i = 0; i < 2 * CTW_COUNT(cuts); i++) {
        score(c, cuts[i / 2], i % 2 == 0, &got);
        assert_memory_equal(got.logprob, want->logprob, sizeof(got.logprob));
        assert_memory_equal(got.greedy, want->greedy, sizeof(got.greedy));
    }
}

static void scores_are_the_checkpoints(void **state)
{
    struct checkpoint *c = *state;
    static struct scores s, rest;
    write_it(c);
    nothing_but_the_checkpoint_counts(c, &s);
    memset(router, 0, sizeof(router)); /* ties everywhere: experts 0 and 1 */
    write_it(c);
    nothing_but_the_checkpoint_counts(c, &rest);
    assert_memory_not_equal(s.logprob, rest.logprob, sizeof(s.logprob));
    /* The others are not read: nothing there counts. */
    memset(values[find(c, EXPERT("3", "up_proj")) - c->tensors], 0xff, 2 * MATRIX);
    memset(values[find(c, EXPERT("2", "down_proj")) - c->tensors], 0xff, 2 * MATRIX);
    write_it(c);
    nothing_but_the_checkpoint_counts(c, &s);
    assert_memory_equal(s.logprob, rest.logprob, sizeof(s.logprob));
}

/* A token whose expert has a NaN fails its sequence, and no other. */
static void a_bad_expert_is_reported(void **state)
{
    struct checkpoint *c = *state;
    struct ctw_err err;
    float logprob[8];
    int32_t greedy[8], tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    memset(router, 0, sizeof(router));
    memset(values[find(c, EXPERT("1", "up_proj")) - c->tensors], 0xff, 2 * MATRIX);
    write_it(c);
    struct ctw_engine *e = engine(c, (struct ctw_engine_options){.n_threads = 1});
    struct ctw_seq seq = {
        .tokens = tokens, .n_tok = 8, .first = 1, .logprob = logprob, .greedy = greedy};
    assert_int_equal(ctw_engine_score(e, &seq, 1, NULL, &err), CTW_OK);
    assert_int_equal(seq.bad_layer, 0);
    ctw_engine_close(e);
}

#define MIXTURE_TEST(f) cmocka_unit_test_setup_teardown(f, set_up_mixture, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        MIXTURE_TEST(a_mixture),
        MIXTURE_TEST(experts_that_are_missing_wrong_or_too_many_are_named),
        MIXTURE_TEST(each_expert_has_its_own_format),
        MIXTURE_TEST(stacks_are_targeted_by_class_or_module),
        MIXTURE_TEST(packed_stacks),
        MIXTURE_TEST(dense_stacks_are_not_linear),
        MIXTURE_TEST(numbers_that_fit_no_mixture_are_refused),
        MIXTURE_TEST(scores_are_the_checkpoints),
        MIXTURE_TEST(a_bad_expert_is_reported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
