/* The container's internals, private to container*.c. */
#ifndef CTW_WORKER_CONTAINER_INTERNAL_H
#define CTW_WORKER_CONTAINER_INTERNAL_H

#include <sys/stat.h>

#include "worker/checkpoint/container.h"
#include "worker/checkpoint/safetensors.h"

struct ctw_container_file {
    char *name;
    int fd; /* kept for ctw_container_check(); -1: not open */
    const char *map;
    int guard;        /* the map's guard */
    struct stat info; /* when opened or last accepted */
    struct stat seen; /* at the last check */
    struct ctw_safetensors header;
};

struct ctw_container {
    struct ctw_container_file *files;
    int n_files;
    struct ctw_tensor *tensors; /* of all files */
    int64_t n_tensors;
    uint32_t *slots; /* open addressing: index + 1 into tensors; 0: empty */
    uint32_t slot_mask;
    bool settled;       /* see ctw_container_settle() */
    bool headers_alone; /* see ctw_container_is_headers_alone() */
};

#endif
