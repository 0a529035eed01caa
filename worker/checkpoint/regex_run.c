/* Runs a pattern's program over a name, with all threads in lockstep. */
#include "base/mem.h"
#include "worker/checkpoint/regex_program.h"

/* The instructions that threads are at, unordered, each at most once. */
struct threads {
    int n;
    int *at;   /* [n_code] */
    int *mark; /* [n_code]: the step in which it was last added */
};

static bool is_word(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
}

static bool holds(enum regex_op op, const char *name, size_t i)
{
    bool edge = (i > 0 && is_word(name[i - 1])) != is_word(name[i]);
    switch (op) {
    case OP_START:
        return i == 0;
    case OP_END:
        return name[i] == '\0' || (name[i] == '\n' && name[i + 1] == '\0');
    case OP_WORD_EDGE:
        return edge;
    default:
        return !edge;
    }
}

/* Adds a thread at pc and all that it reaches without a character. true: it reaches OP_MATCH. */
static bool add(const struct ctw_regex *re, struct threads *t, int *stack, int pc, int step,
                const char *name, size_t i)
{
    int depth = 0;
    stack[depth++] = pc;
    while (depth > 0) {
        pc = stack[--depth];
        if (t->mark[pc] == step)
            continue;
        t->mark[pc] = step;
        const struct regex_instr *in = &re->code[pc];
        switch (in->op) {
        case OP_MATCH:
            return true;
        case OP_SET:
            t->at[t->n++] = pc;
            break;
        case OP_SPLIT:
            stack[depth++] = pc + in->y;
            stack[depth++] = pc + in->x;
            break;
        case OP_JUMP:
            stack[depth++] = pc + in->x;
            break;
        default:
            if (holds(in->op, name, i))
                stack[depth++] = pc + 1;
        }
    }
    return false;
}

enum ctw_status ctw_regex_match(const struct ctw_regex *re, const char *name, bool *out,
                                struct ctw_err *err)
{
    size_t n = (size_t)re->n_code;
    /* Each instruction is pushed at most twice per step, by its two predecessors' kinds. */
    int *memory = ctw_calloc(5 * n + 2, sizeof(*memory));
    if (memory == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for a regular expression");
    int *stack = memory + 3 * n;
    struct threads now = {0, memory, memory + 2 * n}, next = {0, memory + n, memory + 2 * n};
    bool matched = add(re, &now, stack, 0, 1, name, 0);
    for (size_t i = 0; !matched && now.n > 0 && name[i] != '\0'; i++) {
        next.n = 0;
        for (int t = 0; t < now.n && !matched; t++)
            if (regex_set_has(re->code[now.at[t]].set, (unsigned char)name[i]))
                matched = add(re, &next, stack, now.at[t] + 1, (int)i + 2, name, i + 1);
        struct threads swap = now;
        now = next;
        next = swap;
    }
    ctw_free(memory);
    *out = matched;
    return CTW_OK;
}
