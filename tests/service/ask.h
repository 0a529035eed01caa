/* The handlers as functions of what a request says, as a client over ipc calls them. */
#ifndef CTW_TESTS_ASK_H
#define CTW_TESTS_ASK_H

#include "worker/service/requests/handlers.h"

#define ASK __attribute__((unused)) static enum ctw_status

static const struct ctw_peer ask_peer = {.pipe = 1, .local = true, .address = "a test"};

static struct ctw_handler_call ask_call(struct ctw_service *service, struct ctw_queue *q,
                                        const struct ctw_contact *contact,
                                        const struct ctw_request *request, struct ctw_reply *reply)
{
    *service = (struct ctw_service){.queue = q};
    return (struct ctw_handler_call){.service = service,
                                     .peer = &ask_peer,
                                     .contact = *contact,
                                     .request = request,
                                     .reply = reply,
                                     .bad_item = -1};
}

ASK ask_submit(struct ctw_queue *q, const struct ctw_contact *contact,
               const struct ctw_submit *submit, struct ctw_submit_reply *out, int64_t *bad_item,
               int *retry_ms, struct ctw_err *err)
{
    struct ctw_service service;
    struct ctw_request request = {.op = CTW_OP_SUBMIT, .body = {.submit = *submit}};
    struct ctw_reply reply = {.op = CTW_OP_SUBMIT};
    struct ctw_handler_call c = ask_call(&service, q, contact, &request, &reply);
    enum ctw_status st = ctw_handle_submit(&c, err);
    *out = reply.body.submit;
    *bad_item = c.bad_item;
    *retry_ms = c.retry_ms;
    ctw_reply_close(&reply);
    return st;
}

ASK ask_seal(struct ctw_queue *q, const struct ctw_contact *contact, const struct ctw_seal *seal,
             struct ctw_seal_reply *out, struct ctw_err *err)
{
    struct ctw_service service;
    struct ctw_request request = {.op = CTW_OP_SEAL, .body = {.seal = *seal}};
    struct ctw_reply reply = {.op = CTW_OP_SEAL};
    struct ctw_handler_call c = ask_call(&service, q, contact, &request, &reply);
    enum ctw_status st = ctw_handle_seal(&c, err);
    *out = reply.body.seal;
    ctw_reply_close(&reply);
    return st;
}

ASK ask_poll(struct ctw_queue *q, const struct ctw_contact *contact, const struct ctw_poll *poll,
             struct ctw_wait *wait, struct ctw_reply *reply, struct ctw_err *err)
{
    struct ctw_service service;
    struct ctw_request request = {.op = CTW_OP_POLL, .body = {.poll = *poll}};
    struct ctw_handler_call c = ask_call(&service, q, contact, &request, reply);
    c.wait = wait;
    return ctw_handle_poll(&c, err);
}

ASK ask_fetch(struct ctw_queue *q, const struct ctw_contact *contact, const struct ctw_fetch *fetch,
              struct ctw_reply *reply, struct ctw_err *err)
{
    struct ctw_service service;
    struct ctw_request request = {.op = CTW_OP_FETCH, .body = {.fetch = *fetch}};
    struct ctw_handler_call c = ask_call(&service, q, contact, &request, reply);
    return ctw_handle_fetch(&c, err);
}

/* cancel or release */
ASK ask_job(ctw_handler_fn *handle, struct ctw_queue *q, const struct ctw_contact *contact,
            struct ctw_span id, struct ctw_err *err)
{
    struct ctw_service service;
    struct ctw_request request = {.body = {.job = {.job = id}}};
    struct ctw_reply reply = {.op = CTW_OP_CANCEL};
    struct ctw_handler_call c = ask_call(&service, q, contact, &request, &reply);
    enum ctw_status st = handle(&c, err);
    ctw_reply_close(&reply);
    return st;
}

#endif
