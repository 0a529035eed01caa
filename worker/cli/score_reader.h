/*
 * Reads the input of `ctworker score` in a thread of its own, one block ahead of the block that is
 * scored, so that an input of any length takes the memory of a few blocks. A block is the lines of
 * one pass. Lines from a pipe wait for more of them for a short time only, then they make a block
 * that is smaller.
 */
#ifndef CTW_WORKER_SCORE_READER_H
#define CTW_WORKER_SCORE_READER_H

#include "worker/cli/score_lines.h"

struct ctw_score_input {
    int fd;
    int stop_fd; /* becomes readable when reading is to stop */
    int64_t max_length, vocab;
    int64_t pass_tokens; /* model inputs of a block; one longer item makes a block alone */
};

struct ctw_score_reader;

enum ctw_status ctw_score_reader_open(struct ctw_score_reader **out,
                                      const struct ctw_score_input *input,
                                      struct ctw_err *err) CTW_MUST_CHECK;
/*
 * Waits for the next block, which is the caller's then. *out NULL: the input has ended, or reading
 * was stopped. A line that is bad is an error that names it, after all lines before it have been
 * handed out; CTW_EIO: the input cannot be read.
 */
enum ctw_status ctw_score_reader_next(struct ctw_score_reader *r, struct ctw_score_block **out,
                                      struct ctw_err *err) CTW_MUST_CHECK;
/* For blocks to come. */
void ctw_score_reader_set_pass(struct ctw_score_reader *r, int64_t pass_tokens);
/* Bytes from where reading began to the end of a regular file; 0: not known. */
int64_t ctw_score_reader_bytes(const struct ctw_score_reader *r);
/* Needs stop_fd readable, or the input at its end. NULL is fine. */
void ctw_score_reader_close(struct ctw_score_reader *r);

#endif
