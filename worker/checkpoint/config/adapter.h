/*
 * Adapters (LoRA ...) of peft: adapter_config.json, and adapter_model.* with the weights. An
 * adapter changes the scores of its base model, so an adapter is never ignored silently.
 */
#ifndef CTW_WORKER_ADAPTER_H
#define CTW_WORKER_ADAPTER_H

#include "base/status.h"

/* CTW_EUNSUP, with the base model and the remedy, if the folder without config.json is an
 * adapter's. */
enum ctw_status ctw_adapter_refuse(const char *dir, struct ctw_err *err) CTW_MUST_CHECK;
/* Warns if an adapter lies beside a model's weights, which are scored without it. */
void ctw_adapter_warn(const char *dir);

#endif
