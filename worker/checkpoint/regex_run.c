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

struct run {
    const struct ctw_regex *re;
    const char *name;
    int *stack;
    enum ctw_status status; /* of what look-ahead needed */
    struct ctw_err *err;
};

static enum ctw_status run(const struct ctw_regex *re, int pc, const char *name, size_t from,
                           bool *out, struct ctw_err *err);

/* Does the look-ahead at pc hold at character i? */
static bool look(struct run *r, int pc, size_t i)
{
    bool matched = false;
    if (r->status == CTW_OK)
        r->status = run(r->re, pc + 1, r->name, i, &matched, r->err);
    return matched == (r->re->code[pc].y != 0);
}

/* Adds a thread at pc and all that it reaches without a character. true: it reaches OP_MATCH. */
static bool add(struct run *r, struct threads *t, int pc, int step, size_t i)
{
    int depth = 0;
    r->stack[depth++] = pc;
    while (depth > 0) {
        pc = r->stack[--depth];
        if (t->mark[pc] == step)
            continue;
        t->mark[pc] = step;
        const struct regex_instr *in = &r->re->code[pc];
        switch (in->op) {
        case OP_MATCH:
            return true;
        case OP_SET:
            t->at[t->n++] = pc;
            break;
        case OP_SPLIT:
            r->stack[depth++] = pc + in->y;
            r->stack[depth++] = pc + in->x;
            break;
        case OP_JUMP:
            r->stack[depth++] = pc + in->x;
            break;
        case OP_LOOK:
            if (look(r, pc, i))
                r->stack[depth++] = pc + in->x;
            break;
        default:
            if (holds(in->op, r->name, i))
                r->stack[depth++] = pc + 1;
        }
    }
    return false;
}

/* Does a match of the program that begins at pc begin at character `from`? */
static enum ctw_status run(const struct ctw_regex *re, int pc, const char *name, size_t from,
                           bool *out, struct ctw_err *err)
{
    size_t n = (size_t)re->n_code;
    /* Each instruction is pushed at most twice per step, by its two predecessors' kinds. */
    int *memory = ctw_calloc(5 * n + 2, sizeof(*memory));
    if (memory == NULL)
        return ctw_fail(err, CTW_ENOMEM, "out of memory for a regular expression");
    struct run r = {.re = re, .name = name, .stack = memory + 3 * n, .err = err};
    struct threads now = {0, memory, memory + 2 * n}, next = {0, memory + n, memory + 2 * n};
    bool matched = add(&r, &now, pc, 1, from);
    for (size_t i = from; !matched && now.n > 0 && name[i] != '\0'; i++) {
        next.n = 0;
        for (int t = 0; t < now.n && !matched; t++)
            if (regex_set_has(re->code[now.at[t]].set, (unsigned char)name[i]))
                matched = add(&r, &next, now.at[t] + 1, (int)(i - from) + 2, i + 1);
        struct threads swap = now;
        now = next;
        next = swap;
    }
    ctw_free(memory);
    *out = matched;
    return r.status;
}

enum ctw_status ctw_regex_match(const struct ctw_regex *re, const char *name, bool *out,
                                struct ctw_err *err)
{
    return run(re, 0, name, 0, out, err);
}
