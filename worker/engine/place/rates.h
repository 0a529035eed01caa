/* The rates behind an estimate of a pass, each with its source. */
#ifndef CTW_WORKER_RATES_H
#define CTW_WORKER_RATES_H

#include <stdbool.h>
#include <stdint.h>

struct ctw_model;
struct ctw_placing;
struct ctw_placing_request;

struct ctw_rate {
    double value;       /* a second; 0: not needed */
    const char *source; /* "measured", "described", "assumed", .. */
};

struct ctw_rates {
    struct ctw_rate compute; /* floating-point operations of a device */
    struct ctw_rate read;    /* bytes of streamed weights, of each device */
    struct ctw_rate host;    /* bytes from host memory that holds weights, of each device */
    struct ctw_rate gather;  /* bytes from other devices, of each device */
    const char *read_from;   /* "the files", "the disk", "host memory" */
};

/* Finds the rates for a placement. A measurement takes about half a second; only the needed rates
 * are measured. */
void ctw_rates_find(struct ctw_rates *out, const struct ctw_placing_request *r,
                    const struct ctw_placing *p);
/* Are the links between the devices faster than those to the host? */
bool ctw_rates_peers_are_faster(const struct ctw_placing_request *r);
/* Seconds for these bytes; 0 if the rate is not known. */
double ctw_rates_seconds(const struct ctw_rate *rate, uint64_t bytes);

/* Floating-point operations per token of a window of the usual length, each token being scored. */
double ctw_rates_token_flops(const struct ctw_model *m);

#endif
