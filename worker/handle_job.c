#include "worker/handlers.h"

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
    return ctw_queue_poll(c->service->queue, &c->contact, &c->request->body.poll, c->wait, c->reply,
                          err);
}

enum ctw_status ctw_handle_fetch(struct ctw_handler_call *c, struct ctw_err *err)
{
    return ctw_queue_fetch(c->service->queue, &c->contact, &c->request->body.fetch, c->reply, err);
}

enum ctw_status ctw_handle_cancel(struct ctw_handler_call *c, struct ctw_err *err)
{
    return ctw_queue_cancel(c->service->queue, &c->contact, c->request->body.job.job,
                            &c->reply->body.state.state, err);
}

enum ctw_status ctw_handle_release(struct ctw_handler_call *c, struct ctw_err *err)
{
    return ctw_queue_release(c->service->queue, &c->contact, c->request->body.job.job,
                             &c->reply->body.state.state, err);
}
