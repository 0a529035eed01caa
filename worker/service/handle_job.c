#include "base/log.h"
#include "worker/service/handlers.h"

enum ctw_status ctw_handle_submit(struct ctw_handler_call *c, struct ctw_err *err)
{
    return ctw_queue_submit(c->service->queue, &c->contact, &c->request->body.submit,
                            &c->reply->body.submit, &c->bad_item, &c->retry_ms, err);
}

enum ctw_status ctw_handle_seal(struct ctw_handler_call *c, struct ctw_err *err)
{
    return ctw_queue_seal(c->service->queue, &c->contact, &c->request->body.seal,
                          &c->reply->body.seal, err);
}

enum ctw_status ctw_handle_poll(struct ctw_handler_call *c, struct ctw_err *err)
{
    struct ctw_queue *q = c->service->queue;
    enum ctw_status st =
        ctw_queue_poll(q, &c->contact, &c->request->body.poll, c->wait, c->reply, err);
    struct ctw_poll_reply *r = &c->reply->body.poll;
    if (st != CTW_OK || c->peer->local || c->wait->until_ms != 0 ||
        !(r->has >> CTW_POLL_REPLY_ERROR & 1))
        return st;
    pthread_mutex_lock(&q->lock);
    bool copied = ctw_copy_message(c, r->error.message.data, &r->error.message);
    pthread_mutex_unlock(&q->lock);
    return copied ? CTW_OK : ctw_fail(err, CTW_ENOMEM, "poll: out of memory");
}

enum ctw_status ctw_handle_fetch(struct ctw_handler_call *c, struct ctw_err *err)
{
    return ctw_queue_fetch(c->service->queue, &c->contact, &c->request->body.fetch, c->reply, err);
}

enum ctw_status ctw_handle_cancel(struct ctw_handler_call *c, struct ctw_err *err)
{
    char caller[CTW_CALLER_MAX];
    struct ctw_foreign foreign = {0};
    c->contact.foreign = &foreign;
    enum ctw_status st = ctw_queue_cancel(c->service->queue, &c->contact, c->request->body.job.job,
                                          &c->reply->body.state.state, err);
    if (st == CTW_OK && foreign.is)
        ctw_info("%s cancelled a job of %s%s", ctw_caller_name(c, caller),
                 foreign.owner[0] == '\0' ? "this user" : "token ", foreign.owner);
    return st;
}

enum ctw_status ctw_handle_release(struct ctw_handler_call *c, struct ctw_err *err)
{
    return ctw_queue_release(c->service->queue, &c->contact, c->request->body.job.job,
                             &c->reply->body.state.state, err);
}
