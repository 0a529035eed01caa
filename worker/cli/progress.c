#include "worker/cli/progress.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/text.h"

static const char *format_time(char *buf, size_t cap, double seconds)
{
    long s = (long)(seconds + 0.5);
    if (s >= 3600)
        snprintf(buf, cap, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
    else
        snprintf(buf, cap, "%ld:%02ld", s / 60, s % 60);
    return buf;
}

void ctw_progress_line_start(struct ctw_progress_line *line)
{
    *line = (struct ctw_progress_line){.started_s = ctw_now_s()};
}

void ctw_progress_line_show(struct ctw_progress_line *line, const struct ctw_progress *p)
{
    double now = ctw_now_s();
    if (now - line->shown_s < 0.2)
        return;
    line->shown_s = now;
    double elapsed = now - line->started_s;
    double rate = elapsed > 0 ? (double)p->tok_done / elapsed : 0;
    char of[32] = "", share[16] = "", left[48] = "", time[32] = "?";
    if (p->tok_total > 0) {
        snprintf(of, sizeof(of), " of about %lld", (long long)p->tok_total);
        snprintf(share, sizeof(share), " (%.0f %%)",
                 100.0 * (double)p->tok_done / (double)p->tok_total);
        if (rate > 0)
            format_time(time, sizeof(time), (double)(p->tok_total - p->tok_done) / rate);
        snprintf(left, sizeof(left), ", %s left", time);
    }
    ctw_log_progress("%lld%s tokens%s, %.0f tokens/s%s, pass %d, layer %d of %d",
                     (long long)p->tok_done, of, share, rate, left, p->pass + 1, p->layer,
                     p->n_layers - 1);
}

void ctw_progress_line_end(struct ctw_progress_line *line, const struct ctw_progress *p)
{
    ctw_log_progress("%s", "");
    double elapsed = ctw_now_s() - line->started_s;
    if (p->tok_done > 0)
        ctw_info("%lld tokens in %.1f s: %.0f tokens/s", (long long)p->tok_done, elapsed,
                 (double)p->tok_done / elapsed);
    if (p->tok_computed > 0 && p->tok_computed < p->tok_done)
        ctw_info("%lld tokens were computed, %.1f times fewer: shared beginnings are computed once",
                 (long long)p->tok_computed, (double)p->tok_done / (double)p->tok_computed);
}

void ctw_progress_announce(const struct ctw_engine_info *info)
{
    char planned[32], limit[32];
    ctw_info("%s: %s, %lld parameters, activations %s", info->model->dir, info->model->architecture,
             (long long)info->model->n_params, ctw_dtype_name(info->dtype));
    if (info->backend.n_threads > 0)
        ctw_info("%s-%s on %s, %d threads (%s)", info->backend.backend, info->backend.variant,
                 info->backend.device, info->backend.n_threads, info->backend.reason);
    else
        ctw_info("%s-%s on %s (%s)", info->backend.backend, info->backend.variant,
                 info->backend.device, info->backend.reason);
    if (info->n_devices > 1)
        ctw_info("%d devices of this kind share the work", info->n_devices);
    ctw_info(
        "maximum length %lld, passes of up to %lld tokens in chunks of %lld, memory beyond the "
        "weights %s (limit %s)",
        (long long)info->max_length, (long long)info->pass_tokens, (long long)info->chunk_tokens,
        ctw_format_bytes(planned, sizeof(planned), (double)info->memory_planned),
        ctw_format_bytes(limit, sizeof(limit), (double)info->memory_limit));
    ctw_log_lines(CTW_LOG_INFO, "weights: ", info->place_note);
    if (info->model->activations != NULL)
        ctw_info("the checkpoint declares activation quantisation (%s), which is %s",
                 info->model->activations,
                 info->model->quantises_activations
                     ? "simulated (--activations=checkpoint)"
                     : "not simulated: only weights are quantised, as in weight-only serving");
}
