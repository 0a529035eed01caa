/*
 * ipc/ and worker/service/jobs/job_part.c: any message that decodes encodes to bytes that decode to
 * the same message; any part that is accepted is planned into sequences that obey the engine's
 * rules.
 */
#include <string.h>

#include "fuzz.h"
#include "worker/service/jobs/job.h"

enum { VOCAB = 100, MAX_LENGTH = 8, MAX_UNITS = 1 << 16, LAYERS = 3, MATRICES = 5 };

/* ---- jobs ---- */

/* A sequence's results have room, and are not part of another's. */
static void check_divergence(const struct ctw_job *j, int64_t unit, int64_t n)
{
    struct ctw_seq_divergence d = ctw_job_seq_divergence(j, unit);
    float *const columns[] = {d.ref_logprob, d.ref_top, d.kl, d.kl_reverse, d.tv};
    for (int64_t t = 0; t < n; t++) {
        for (size_t c = 0; c < CTW_COUNT(columns); c++) {
            fuzz_check(columns[c][t] == 0.0f);
            columns[c][t] = 0.5f;
        }
        fuzz_check(d.ref_greedy[t] == 0 && d.overlap5[t] == 0);
        d.ref_greedy[t] = 1;
        d.overlap5[t] = 5;
    }
    fuzz_check((d.layers != NULL) == (j->head.n_layers > 0));
    for (int64_t l = 0; l < j->head.n_layers; l++) {
        fuzz_check(d.layers[l].reference == 0);
        d.layers[l].reference = 1;
    }
    fuzz_check((d.matrices != NULL) == (j->head.n_matrices > 0));
    for (int64_t m = 0; m < j->head.n_matrices; m++) {
        fuzz_check(d.matrices[m] == 0);
        d.matrices[m] = 1;
    }
}

static void check_units(struct ctw_job *j)
{
    int64_t n_input = 0, n_targets = 0, last = INT64_MAX;
    for (int64_t i = 0; i < j->input.n_sequences; i++) {
        struct ctw_seq s = ctw_job_seq(j, i);
        fuzz_check(s.first >= 1 && s.first < s.n_tok && s.n_tok - 1 <= j->head.max_length);
        fuzz_check(s.n_tok <= last);
        fuzz_check(s.logprob >= j->results.logprob &&
                   s.logprob + (s.n_tok - s.first) <= j->results.logprob + j->input.n_targets);
        for (int64_t t = 0; t < s.n_tok; t++)
            fuzz_check(s.tokens[t] >= 0 && s.tokens[t] < VOCAB);
        for (int64_t t = s.first; t < s.n_tok; t++) {
            fuzz_check(s.logprob[t - s.first] == 0.0f); /* not part of another sequence */
            s.logprob[t - s.first] = -1.0f;
        }
        if (j->head.kind == CTW_JOB_DIVERGENCE)
            check_divergence(j, i, s.n_tok - s.first);
        last = s.n_tok;
        n_input += s.n_tok - 1;
        n_targets += s.n_tok - s.first;
    }
    fuzz_check(n_input == j->input.n_tok && n_targets == j->input.n_targets);
}

static void finish(struct ctw_job *j)
{
    struct ctw_err err;
    struct ctw_reply reply = {.op = CTW_OP_FETCH};
    int64_t n;
    for (int64_t i = 0; i < j->input.n_sequences; i++) {
        ctw_job_scored(j, &j->plan.sequences[i]);
        fuzz_check(ctw_job_take(j, i, -1, 4, &err) == CTW_OK);
    }
    fuzz_check(j->results.n_done == j->input.n_items && j->results.tok_done == j->input.n_tok);
    if (ctw_job_columns(j, 0, j->results.n_done, 1 << 20, &reply, &n, &err) == CTW_OK)
        fuzz_check(n >= (j->input.n_items > 0) && reply.body.fetch.result.item.n == 4 * (size_t)n);
    ctw_reply_close(&reply);
}

static void check_job(const struct ctw_submit *submit)
{
    const struct ctw_model_limits limits = {.name = "m",
                                            .reference = submit->head.has.reference ? "r" : NULL,
                                            .max_length = MAX_LENGTH,
                                            .fit_length = MAX_LENGTH,
                                            .n_layers = LAYERS,
                                            .n_matrices = MATRICES,
                                            .vocab = VOCAB};
    const struct ctw_contact contact = {.pipe = 1};
    struct ctw_job_head head;
    struct ctw_job_part *part = NULL;
    struct ctw_err err = {0};
    int64_t bad_item, n_done;
    uint8_t id[CTW_IPC_JOB_ID_BYTES] = {0};
    (void)ctw_job_part_digest(submit);
    if (ctw_job_read_head(&head, &submit->head, &limits, &err) != CTW_OK) {
        fuzz_check(err.msg[0] != '\0');
        return;
    }
    if (ctw_job_part_create(&part, &submit->items, &head, 0, &bad_item, &err) != CTW_OK) {
        fuzz_check(err.msg[0] != '\0');
        return;
    }
    struct ctw_job *j = ctw_job_create(
        id, &head, "numerics", head.kind == CTW_JOB_DIVERGENCE ? "reference's" : NULL, &contact);
    if (j == NULL || part->n_sequences > MAX_UNITS || ctw_job_add_part(j, part, &err) != CTW_OK) {
        ctw_job_part_destroy(part);
    } else if (ctw_job_plan(j, true, &n_done, &err) == CTW_OK) {
        ctw_job_planned(j, n_done);
        check_units(j);
        finish(j);
    }
    ctw_job_destroy(j);
}

/* ---- messages ---- */

static void check_request(const uint8_t *data, size_t bytes)
{
    struct ctw_request request, again;
    struct ctw_writer w = {0}, w2 = {0};
    struct ctw_err err = {0};
    enum ctw_status st = ctw_request_decode(&request, data, bytes, &err);
    if (st != CTW_OK) {
        fuzz_check((st == CTW_EFORMAT || st == CTW_EUNSUP || st == CTW_ENOMEM) &&
                   err.msg[0] != '\0');
        ctw_request_close(&request);
        return;
    }
    if (ctw_request_encode(&request, &w, &err) == CTW_OK) {
        st = ctw_request_decode(&again, w.data, w.n, &err);
        fuzz_check(st == CTW_ENOMEM ||
                   (st == CTW_OK && again.op == request.op && again.id == request.id));
        if (st == CTW_OK && ctw_request_encode(&again, &w2, &err) == CTW_OK)
            fuzz_check(w.n == w2.n && memcmp(w.data, w2.data, w.n) == 0);
        ctw_request_close(&again);
    }
    if (request.op == CTW_OP_SUBMIT)
        check_job(&request.body.submit);
    ctw_writer_fini(&w);
    ctw_writer_fini(&w2);
    ctw_request_close(&request);
}

static void check_reply(enum ctw_op op, const uint8_t *data, size_t bytes)
{
    struct ctw_reply reply, again;
    struct ctw_writer w = {0};
    struct ctw_err err = {0};
    if (ctw_reply_decode(&reply, op, data, bytes, &err) == CTW_OK &&
        ctw_reply_encode(&reply, &w, &err) == CTW_OK) {
        enum ctw_status st = ctw_reply_decode(&again, op, w.data, w.n, &err);
        fuzz_check(st == CTW_ENOMEM ||
                   (st == CTW_OK && again.ok == reply.ok && again.id == reply.id));
        ctw_reply_close(&again);
    }
    ctw_writer_fini(&w);
    ctw_reply_close(&reply);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    check_request(data, bytes);
    check_reply((enum ctw_op)(bytes % CTW_N_OPS), data, bytes);
    return 0;
}

#define ENVELOPE(op) "\xa1v\x01\xa2op" op "\xa2id\x07"
#define JOB                                                                                        \
    "\xa3job\xc4\x10"                                                                              \
    "0123456789abcdef"
#define I32(n) n "\0\0\0"

const struct fuzz_seed fuzz_seeds[] = {
    FUZZ_SEED("\x83" ENVELOPE("\xa4info")),
    FUZZ_SEED("\x83" ENVELOPE("\xa6health")),
    FUZZ_SEED("\x87" ENVELOPE("\xa6submit") JOB
              "\xa4part\x00\xa4head\x83\xa4kind\xadloglikelihood"
              "\xa7"
              "columns\x92\xa7logprob\xa6greedy\xa6orphan\x82\xa6policy\xa4keep\xa5ttl_s\x0a"
              "\xa5items\x83\xa6tokens\xc4\x14" I32("\x01") I32("\x02") I32("\x03") I32("\x04")
                  I32("\x05") "\xa9n_context\xc4\x08" I32("\x01")
                      I32("\x02") "\xaen_continuation\xc4\x08" I32("\x01") I32("\x01")),
    FUZZ_SEED("\x87" ENVELOPE("\xa6submit") JOB
              "\xa4part\x00\xa4head\x84\xa4kind\xb5"
              "loglikelihood_rolling\xacprefix_token\x03\xaamax_length\x02\xae"
              "context_length\x02\xa5items\x82\xa6tokens\xc4\x14" I32("\x01") I32("\x02")
                  I32("\x03") I32("\x04") I32("\x05") "\xa8n_tokens\xc4\x08" I32("\x05") I32("\0")),
    FUZZ_SEED("\x87" ENVELOPE("\xa6submit") JOB
              "\xa4part\x00\xa4head\x8a\xa4kind\xb5"
              "loglikelihood_windows\xa6window\x04\xa6stride\x02\xa5"
              "first\x00\xa4rows\x03\xa3new\xc3\xa4tail\xc3\xa3"
              "bos\x09\xa8"
              "bos_mode\xa6prefix\xa7"
              "columns\x91\xa7logprob\xa5items\x82\xa6tokens\xc4\x14" I32("\x01") I32("\x02")
                  I32("\x03") I32("\x04") I32("\x05") "\xa8n_tokens\xc4\x08" I32("\x05") I32("\0")),
    FUZZ_SEED("\x87" ENVELOPE("\xa6submit") JOB
              "\xa4part\x00\xa4head\x84\xa4kind\xb5"
              "loglikelihood_windows\xa6window\x02\xa3"
              "bos\x09\xa8"
              "bos_mode\xa7replace\xa5items\x82\xa6tokens\xc4\x14" I32("\x01") I32("\x02")
                  I32("\x03") I32("\x04") I32("\x05") "\xa8n_tokens\xc4\x08" I32("\x05") I32("\0")),
    FUZZ_SEED("\x87" ENVELOPE("\xa6submit") JOB
              "\xa4part\x00\xa4head\x85\xa4kind\xaa"
              "divergence\xa9reference\xa1r\xa6window\x03\xa6stride\x02\xa4tail\xc3\xa5items\x82"
              "\xa6tokens\xc4\x14" I32("\x01") I32("\x02") I32("\x03") I32("\x04")
                  I32("\x05") "\xa8n_tokens\xc4\x08" I32("\x05") I32("\0")),
    FUZZ_SEED(
        "\x87" ENVELOPE("\xa6submit") JOB
        "\xa4part\x00\xa4head\x85\xa4kind\xaa"
        "divergence\xa9reference\xa1r\xa6layers\xc3\xa8matrices\xc3\xa6window\x03\xa5items\x82"
        "\xa6tokens\xc4\x14" I32("\x01") I32("\x02") I32("\x03") I32("\x04")
            I32("\x05") "\xa8n_tokens\xc4\x08" I32("\x05") I32("\0")),
    FUZZ_SEED("\x85" ENVELOPE("\xa4seal") JOB "\xa5parts\x01"),
    FUZZ_SEED("\x86" ENVELOPE("\xa4poll") JOB "\xa7wait_ms\xcd\x03\xe8\xa4seen\x00"),
    FUZZ_SEED("\x86" ENVELOPE("\xa5"
                              "fetch") JOB "\xa5"
                                           "first\x00\xa9max_bytes\xce\x00\x10\x00\x00"),
    FUZZ_SEED("\x84" ENVELOPE("\xa6"
                              "cancel") JOB),
    FUZZ_SEED("\x85" ENVELOPE("\xa4load") "\xa4path\xa2/m\xa5model\xa1m"),
    FUZZ_SEED("\x84" ENVELOPE("\xa5"
                              "drain") "\xa4mode\xa6"
                                       "finish"),
    FUZZ_SEED("\x84\xa1v\x01\xa2id\x07\xa2ok\xc2\xa5"
              "error\x83\xa4"
              "code\xa4"
              "busy\xa7message\xa4wait\xa8retry_ms\x64"),
    FUZZ_SEED("\x84\xa1v\x01\xa2id\x07\xa2ok\xc3\xa5state\xa8released"),
    FUZZ_SEED("\xdd\xff\xff\xff\xff"),
    FUZZ_SEED("\x91\x91\x91\x91\x91\x91\x91\x91\x91\xc0"),
    {NULL, 0},
};

const char *const fuzz_words[] = {"\xa1v",
                                  "\xa2op",
                                  "\xa2id",
                                  "\xa3job",
                                  "\xa4part",
                                  "\xa4head",
                                  "\xa5items",
                                  "\xa6tokens",
                                  "\xa8n_tokens",
                                  "\xa9n_context",
                                  "\xaen_continuation",
                                  "\xaamax_length",
                                  "\xacprefix_token",
                                  "\xae"
                                  "context_length",
                                  "loglikelihood_windows",
                                  "\xaa"
                                  "divergence",
                                  "\xa9reference",
                                  "\xa6layers",
                                  "\xa8matrices",
                                  "\xa6window",
                                  "\xa6stride",
                                  "\xa5"
                                  "first",
                                  "\xa4rows",
                                  "\xa3new",
                                  "\xa4tail",
                                  "\xa3"
                                  "bos",
                                  "\xa8"
                                  "bos_mode",
                                  "replace",
                                  "prefix",
                                  "\xa6orphan",
                                  "\xa6policy",
                                  "\xa5ttl_s",
                                  "\xa7"
                                  "columns",
                                  "\xc4",
                                  "\xdd",
                                  "\xdf",
                                  "\xcf",
                                  "\x81",
                                  "\x91",
                                  "\xc6\x7f",
                                  "\xff",
                                  NULL};
