/* Which checkpoint this is. Used by model.c only. */
#ifndef CTW_WORKER_IDENTITY_H
#define CTW_WORKER_IDENTITY_H

#include "base/json.h"
#include "worker/checkpoint/container.h"

/*
 * SHA-256, hex, over config.json's text, every tensor's name, dtype, shape and place, and a sample
 * of its data: 16 places of 64 bytes, so that two quantisations of one model differ though their
 * layouts are the same. Reads a few MB, whatever the checkpoint's size.
 */
void ctw_identify(char hex[65], const struct ctw_json *config, const struct ctw_container *c);

#endif
