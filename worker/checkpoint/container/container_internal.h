/*
 * The container's internals, private to container*.c, and what its kinds (safetensors) have to say:
 * one file a kind, which adds the files of a folder and yields the records of each file's header.
 */
#ifndef CTW_WORKER_CONTAINER_INTERNAL_H
#define CTW_WORKER_CONTAINER_INTERNAL_H

#include <sys/stat.h>

#include "worker/checkpoint/container/container.h"

/* The tensors of one file, sorted by offset, then length (empty tensors share an offset), then
 * name. */
struct ctw_records {
    struct ctw_tensor *tensors; /* [n_tensors]; their `file` is 0 */
    int64_t n_tensors;
    char *names;       /* the tensors' names, in one block */
    bool header_alone; /* the file is a copy of the header, without the data */
    struct ctw_metadata metadata;
};

/* Reads the header of an open file, and nothing beyond; `what` names the file in messages. */
typedef enum ctw_status ctw_records_read(struct ctw_records *out, const char *what, int fd,
                                         uint64_t file_bytes, struct ctw_err *err);
void ctw_records_free(struct ctw_records *r); /* zeroed is fine */

/* A kind of container. The table of all is in container.c. */
struct ctw_container_kind {
    const char *suffix;        /* of its files' names */
    const char *method;        /* see ctw_container_method() */
    bool (*is_in)(int dir_fd); /* has the folder files of this kind? */
    /* Adds the folder's files, and collects their records. `only`: a file of the model that is
     * meant; NULL: the folder's. */
    enum ctw_status (*open)(struct ctw_container *c, const char *dir, int dir_fd, const char *only,
                            struct ctw_err *err);
    /* Are both names those of files of one model? NULL: a model is a folder, not a file. */
    bool (*is_same_model)(const char *file, const char *name);
};
extern const struct ctw_container_kind ctw_container_safetensors, ctw_container_gguf;

struct ctw_container_file {
    char *name;
    int fd; /* kept for ctw_container_check(); -1: not open */
    const char *map;
    int guard;        /* the map's guard */
    struct stat info; /* when opened or last accepted */
    struct stat seen; /* at the last check */
    struct ctw_records records;
};

struct ctw_container {
    struct ctw_container_file *files;
    int n_files;
    struct ctw_tensor *tensors; /* of all files */
    char *names;                /* of tensors that ctw_container_rename() made; NULL: none */
    int64_t n_tensors;
    uint32_t *slots; /* open addressing: index + 1 into tensors; 0: empty */
    uint32_t slot_mask;
    const char *list_name; /* the file that lists the others; NULL: none does */
    const char *method;    /* see ctw_container_method() */
    bool settled;          /* see ctw_container_settle() */
    bool headers_alone;    /* see ctw_container_is_headers_alone() */
};

/* ---- files (container_files.c) ------------------------------------------------------------ */

/* Makes room for n files. */
enum ctw_status ctw_container_reserve(struct ctw_container *c, int n,
                                      struct ctw_err *err) CTW_MUST_CHECK;
/* CTW_ENOTFOUND: no such file. Anything but a regular file is refused. */
enum ctw_status ctw_container_open_file(int *fd, struct stat *info, int dir_fd, const char *name,
                                        struct ctw_err *err) CTW_MUST_CHECK;
/* Opens and maps a file of the folder, and reads its records. CTW_ENOTFOUND: no such file. */
enum ctw_status ctw_container_add_file(struct ctw_container *c, int dir_fd, const char *name,
                                       ctw_records_read *read, struct ctw_err *err) CTW_MUST_CHECK;

/* ---- names (container_names.c) ------------------------------------------------------------ */

/* Joins the files' tensors into one array and one table of names. */
enum ctw_status ctw_container_collect(struct ctw_container *c, struct ctw_err *err) CTW_MUST_CHECK;

/* Tensors that are odd in one way. */
struct ctw_odd {
    int64_t n;
    const char *tensor, *other; /* the first tensor, and the shard of a copy, or in the index */
    const char *shard;          /* the shard that the tensor is read from */
};

void ctw_odd_count(struct ctw_odd *odd, const char *tensor, const char *other, const char *shard);
/* " (and 3 more tensors)", or nothing. */
const char *ctw_odd_more(const struct ctw_odd *odd, char buf[48]);

#endif
