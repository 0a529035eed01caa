/*
 * Reads the input of `ctworker score` in a separate thread, one block ahead of the block that is
 * scored, so that an input of any length takes the memory of a few blocks. A block holds the lines
 * of one pass. Lines from a pipe wait only briefly for further lines, then form a smaller block.
 */
#ifndef CTW_WORKER_SCORE_READER_H
#define CTW_WORKER_SCORE_READER_H

#include "worker/cli/score_lines.h"

struct ctw_score_input {
    int fd;
    int stop_fd; /* becomes readable when reading must stop */
    int64_t max_length, vocab;
    bool shares;         /* items share beginnings, which a pass computes once */
    int64_t pass_tokens; /* model inputs of a block, shared ones once; a longer item forms a block
                            by itself */
};

struct ctw_score_reader;

enum ctw_status ctw_score_reader_open(struct ctw_score_reader **out,
                                      const struct ctw_score_input *input,
                                      struct ctw_err *err) CTW_MUST_CHECK;
/*
 * Waits for the next block and passes its ownership to the caller. *out NULL: the input has ended,
 * or reading was stopped. A bad line is an error that names the line, returned after all lines
 * before it have been handed out; CTW_EIO: the input cannot be read.
 */
enum ctw_status ctw_score_reader_next(struct ctw_score_reader *r, struct ctw_score_block **out,
                                      struct ctw_err *err) CTW_MUST_CHECK;
/* Sets the pass_tokens of later blocks. */
void ctw_score_reader_set_pass(struct ctw_score_reader *r, int64_t pass_tokens);
/* Bytes from the start of reading to the end of a regular file; 0: unknown. */
int64_t ctw_score_reader_bytes(const struct ctw_score_reader *r);
/* stop_fd must be readable, or the input at its end. NULL is a no-op. */
void ctw_score_reader_close(struct ctw_score_reader *r);

#endif
