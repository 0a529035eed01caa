/*
 * A ctworker client in C that needs only nng and msgpack-c: docs/PROTOCOL.md as a program.
 *
 *   client URL CONTEXT CONTINUATION [CONTEXT CONTINUATION ...]
 *
 * Each CONTEXT and CONTINUATION is a list of token ids, "1,15,27". The program prints one line per
 * pair: the continuation's log-probability, whether greedy decoding would produce the continuation
 * ("greedy" or "-"), and the log-probability of each token. CONTEXT must not be empty: for a
 * text without a context, pass the model's BOS token.
 *
 *   cc client.c -o client -lnng -lmsgpackc     (Debian 13 and later, Ubuntu 24.04: -lmsgpack-c)
 *   ctworker serve --model DIR --listen ipc:///tmp/w.sock &
 *   ./client ipc:///tmp/w.sock 1,5,9 12,13  1,5,9 14
 *
 * A worker on tcp requires a token: set CTW_TOKEN.
 */
#include <errno.h>
#include <fcntl.h>
#include <msgpack.h>
#include <nng/nng.h>
#include <nng/protocol/reqrep0/req.h>
#include <nng/supplemental/util/platform.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

/* All numbers in `bin` fields are little-endian; this client copies them without conversion. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "this client needs a little-endian machine");

/* See "The client's socket" in docs/PROTOCOL.md. */
enum { MAX_PAIRS = 1000, MAX_TOKENS = 1 << 20, TIMEOUT_MS = 10000, MESSAGE_BYTES = 65 << 20 };

struct client {
    nng_socket socket;
    const char *token; /* for a worker on tcp; NULL: none */
    uint64_t next_id;
    uint8_t job[16];
};

/* The items to score, as columns in the form that `submit` takes. */
struct items {
    int32_t *tokens, n_context[MAX_PAIRS], n_continuation[MAX_PAIRS];
    uint32_t n_tokens, n;
};

/* A reply: its bytes, and the map that msgpack-c parsed from them (the map points into the bytes).
 */
struct reply {
    void *bytes;
    size_t size;
    msgpack_unpacked unpacked;
    msgpack_object_map map;
};

static void die(const char *what, const char *why)
{
    fprintf(stderr, "client: %s: %s\n", what, why);
    exit(1);
}

/* ---- reading maps ---- */

/* The value of a key; a value of type NIL if the key is absent. Unknown keys are ignored. */
static msgpack_object get(msgpack_object_map map, const char *key)
{
    for (uint32_t i = 0; i < map.size; i++) {
        msgpack_object k = map.ptr[i].key;
        if (k.type == MSGPACK_OBJECT_STR && k.via.str.size == strlen(key) &&
            memcmp(k.via.str.ptr, key, k.via.str.size) == 0)
            return map.ptr[i].val;
    }
    return (msgpack_object){.type = MSGPACK_OBJECT_NIL};
}

static uint64_t get_uint(msgpack_object_map map, const char *key)
{
    msgpack_object v = get(map, key);
    if (v.type != MSGPACK_OBJECT_POSITIVE_INTEGER)
        die(key, "missing from the reply");
    return v.via.u64;
}

static bool str_is(msgpack_object v, const char *text)
{
    return v.type == MSGPACK_OBJECT_STR && v.via.str.size == strlen(text) &&
           memcmp(v.via.str.ptr, text, v.via.str.size) == 0;
}

/* A column of `n` values of `size` bytes. */
static const char *get_column(msgpack_object_map map, const char *key, size_t n, size_t size)
{
    msgpack_object v = get(map, key);
    if (v.type != MSGPACK_OBJECT_BIN || v.via.bin.size != n * size)
        die(key, "missing from the result, or of the wrong length");
    return v.via.bin.ptr;
}

/* ---- one call ---- */

static void pack_str(msgpack_packer *pk, const char *text)
{
    msgpack_pack_str(pk, strlen(text));
    msgpack_pack_str_body(pk, text, strlen(text));
}

static void pack_bin(msgpack_packer *pk, const char *key, const void *data, size_t n)
{
    pack_str(pk, key);
    msgpack_pack_bin(pk, n);
    msgpack_pack_bin_body(pk, data, n);
}

/* Packs the envelope and `job`; the caller adds n_more pairs of key and value. */
static void begin(struct client *c, msgpack_sbuffer *buf, msgpack_packer *pk, const char *op,
                  uint32_t n_more)
{
    msgpack_sbuffer_init(buf);
    msgpack_packer_init(pk, buf, msgpack_sbuffer_write);
    msgpack_pack_map(pk, 4 + n_more + (c->token != NULL));
    pack_str(pk, "v");
    msgpack_pack_uint32(pk, 1);
    pack_str(pk, "op");
    pack_str(pk, op);
    pack_str(pk, "id");
    msgpack_pack_uint64(pk, ++c->next_id);
    if (c->token != NULL) {
        pack_str(pk, "token");
        pack_str(pk, c->token);
    }
    pack_bin(pk, "job", c->job, sizeof(c->job));
}

static void close_reply(struct reply *r)
{
    msgpack_unpacked_destroy(&r->unpacked);
    nng_free(r->bytes, r->size);
}

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

/*
 * Sends a request and receives its reply. Every request may be repeated without harm, so this
 * function repeats the request after a lost connection (nng dials again by itself), and up to three
 * times after a timeout. If the request cannot be sent at all, no worker is listening.
 */
static struct reply exchange(struct client *c, const msgpack_sbuffer *buf)
{
    struct reply r = {0};
    int rc = 0;
    for (int lost = 0, silent = 0; lost < 10 && silent < 3; sleep_ms(200)) {
        rc = nng_send(c->socket, buf->data, buf->size, 0);
        if (rc != 0)
            break;
        rc = nng_recv(c->socket, &r.bytes, &r.size, NNG_FLAG_ALLOC);
        if (rc != NNG_ECONNRESET && rc != NNG_ETIMEDOUT)
            break;
        lost += rc == NNG_ECONNRESET;
        silent += rc == NNG_ETIMEDOUT;
    }
    if (rc != 0)
        die("no answer from the worker", nng_strerror(rc));
    size_t at = 0;
    msgpack_unpacked_init(&r.unpacked);
    if (msgpack_unpack_next(&r.unpacked, r.bytes, r.size, &at) != MSGPACK_UNPACK_SUCCESS ||
        r.unpacked.data.type != MSGPACK_OBJECT_MAP)
        die("the reply", "is not a msgpack map");
    r.map = r.unpacked.data.via.map;
    return r;
}

/*
 * Returns the reply if it is `ok`. After an error with `retry_ms` (`busy`) the function waits and
 * repeats the request. Any other error ends the program with the worker's message.
 */
static struct reply call(struct client *c, msgpack_sbuffer *buf)
{
    for (;;) {
        struct reply r = exchange(c, buf);
        msgpack_object ok = get(r.map, "ok");
        if (ok.type == MSGPACK_OBJECT_BOOLEAN && ok.via.boolean) {
            /* An error's id is 0 if the worker could not read the request's id. */
            if (get_uint(r.map, "id") != c->next_id)
                die("the reply", "belongs to another request");
            msgpack_sbuffer_destroy(buf);
            return r;
        }
        msgpack_object error = get(r.map, "error");
        if (error.type != MSGPACK_OBJECT_MAP)
            die("the reply", "is neither ok nor an error");
        msgpack_object message = get(error.via.map, "message");
        msgpack_object retry = get(error.via.map, "retry_ms");
        if (retry.type != MSGPACK_OBJECT_POSITIVE_INTEGER) {
            fprintf(stderr, "client: %.*s\n", (int)message.via.str.size, message.via.str.ptr);
            exit(1);
        }
        sleep_ms((long)retry.via.u64);
        close_reply(&r);
    }
}

/* ---- a job, step by step ---- */

/* Sends part 0: the head, then the items. Larger jobs need more parts. */
static void submit(struct client *c, const struct items *items)
{
    msgpack_sbuffer buf;
    msgpack_packer pk;
    begin(c, &buf, &pk, "submit", 3);
    pack_str(&pk, "part");
    msgpack_pack_uint32(&pk, 0);

    pack_str(&pk, "head");
    msgpack_pack_map(&pk, 3);
    pack_str(&pk, "kind");
    pack_str(&pk, "loglikelihood");
    pack_str(&pk, "columns");
    msgpack_pack_array(&pk, 1);
    pack_str(&pk, "logprob");
    /* If this client dies, the worker need not finish the job. */
    pack_str(&pk, "orphan");
    msgpack_pack_map(&pk, 2);
    pack_str(&pk, "policy");
    pack_str(&pk, "cancel");
    pack_str(&pk, "ttl_s");
    msgpack_pack_uint32(&pk, 60);

    pack_str(&pk, "items");
    msgpack_pack_map(&pk, 3);
    pack_bin(&pk, "tokens", items->tokens, items->n_tokens * sizeof(int32_t));
    pack_bin(&pk, "n_context", items->n_context, items->n * sizeof(int32_t));
    pack_bin(&pk, "n_continuation", items->n_continuation, items->n * sizeof(int32_t));
    struct reply r = call(c, &buf);
    close_reply(&r);
}

/* Marks the job as complete; the worker starts scoring only now. */
static void seal(struct client *c)
{
    msgpack_sbuffer buf;
    msgpack_packer pk;
    begin(c, &buf, &pk, "seal", 1);
    pack_str(&pk, "parts");
    msgpack_pack_uint32(&pk, 1);
    struct reply r = call(c, &buf);
    close_reply(&r);
}

/*
 * Polls until the job is final. Each poll waits in the worker for at most a second, and its reply
 * says how long to wait before the next poll.
 */
static void wait_until_done(struct client *c)
{
    for (;;) {
        msgpack_sbuffer buf;
        msgpack_packer pk;
        begin(c, &buf, &pk, "poll", 1);
        pack_str(&pk, "wait_ms");
        msgpack_pack_uint32(&pk, 1000);
        struct reply r = call(c, &buf);
        msgpack_object state = get(r.map, "state"), error = get(r.map, "error");
        bool done = str_is(state, "done");
        if (error.type == MSGPACK_OBJECT_MAP) { /* failed, or cancelled */
            msgpack_object message = get(error.via.map, "message");
            fprintf(stderr, "client: %.*s\n", (int)message.via.str.size, message.via.str.ptr);
            exit(1);
        }
        if (!done)
            fprintf(stderr, "client: %llu of %u items\n",
                    (unsigned long long)get_uint(r.map, "items_done"),
                    (unsigned)get_uint(r.map, "items"));
        nng_msleep((nng_duration)get_uint(r.map, "again_ms"));
        close_reply(&r);
        if (done)
            return;
    }
}

/* Formats one line per item of the reply; returns the number of items. */
static uint64_t keep_lines(const struct reply *r, char **lines)
{
    msgpack_object result = get(r->map, "result");
    uint64_t n = get_uint(r->map, "n");
    size_t n_targets = 0;
    if (result.type != MSGPACK_OBJECT_MAP)
        die("result", "missing from the reply");
    const char *item = get_column(result.via.map, "item", n, 4);
    const char *sum = get_column(result.via.map, "sum", n, 8);
    const char *count = get_column(result.via.map, "count", n, 4);
    const char *is_greedy = get_column(result.via.map, "is_greedy", n, 1);
    for (uint64_t i = 0; i < n; i++) {
        int32_t targets;
        memcpy(&targets, count + 4 * i, 4); /* a bin may be unaligned: never cast its address */
        n_targets += (size_t)targets;
    }
    const char *logprob = get_column(result.via.map, "logprob", n_targets, 4);
    for (uint64_t i = 0; i < n; i++) {
        int32_t which, targets;
        double total;
        memcpy(&which, item + 4 * i, 4);
        memcpy(&targets, count + 4 * i, 4);
        memcpy(&total, sum + 8 * i, 8);
        size_t room = 64 + 20 * (size_t)targets, at;
        char *line = malloc(room);
        if (line == NULL || which < 0 || which >= MAX_PAIRS)
            die("fetch", "out of memory, or an item that was not requested");
        at = (size_t)snprintf(line, room, "%.17g %s", total, is_greedy[i] ? "greedy" : "-");
        for (int32_t t = 0; t < targets; t++, logprob += 4) {
            float value;
            memcpy(&value, logprob, 4);
            at += (size_t)snprintf(line + at, room - at, " %.9g", (double)value);
        }
        lines[which] = line;
    }
    return n;
}

/* Results come in the order in which they became final; `first` counts the results fetched so far.
 */
static void fetch_and_print(struct client *c, uint32_t n_items)
{
    char *lines[MAX_PAIRS] = {NULL};
    for (uint64_t first = 0; first < n_items;) {
        msgpack_sbuffer buf;
        msgpack_packer pk;
        begin(c, &buf, &pk, "fetch", 1);
        pack_str(&pk, "first");
        msgpack_pack_uint64(&pk, first);
        struct reply r = call(c, &buf);
        uint64_t n = keep_lines(&r, lines);
        close_reply(&r);
        if (n == 0)
            die("fetch", "the job is done, but results are missing");
        first += n;
    }
    for (uint32_t i = 0; i < n_items; i++) {
        puts(lines[i]);
        free(lines[i]);
    }
    if (fflush(stdout) != 0 || ferror(stdout))
        die("standard output", strerror(errno));
}

/* Tells the worker to forget the job. */
static void release(struct client *c)
{
    msgpack_sbuffer buf;
    msgpack_packer pk;
    begin(c, &buf, &pk, "release", 0);
    struct reply r = call(c, &buf);
    close_reply(&r);
}

/* ---- program ---- */

/*
 * Opens those of descriptors 0 to 2 that are closed, for reading only. Without this, the worker's
 * socket gets such a number, and what is printed is sent to the worker.
 */
static void open_standard_fds(void)
{
    int fd;
    do
        fd = open("/dev/null", O_RDONLY);
    while (fd >= 0 && fd <= STDERR_FILENO);
    if (fd < 0)
        die("/dev/null", strerror(errno));
    close(fd);
}

/* Parses "1,15,27" and appends the tokens; returns their number. */
static int32_t read_tokens(const char *text, struct items *items)
{
    int32_t n = 0;
    for (const char *at = text; *at != '\0'; n++) {
        char *end;
        errno = 0;
        long token = strtol(at, &end, 10);
        if (end == at || (*end != ',' && *end != '\0') || errno != 0 || token < 0 ||
            token > INT32_MAX || items->n_tokens == MAX_TOKENS)
            die(text, "expected token ids separated by commas");
        items->tokens[items->n_tokens++] = (int32_t)token;
        at = *end == ',' ? end + 1 : end;
    }
    return n;
}

static void connect_to(struct client *c, const char *url)
{
    int rc = nng_req0_open(&c->socket);
    /* No timed resend by nng: exchange() detects a lost connection and repeats the request. */
    if (rc == 0)
        rc = nng_socket_set_ms(c->socket, NNG_OPT_REQ_RESENDTIME, NNG_DURATION_INFINITE);
    if (rc == 0)
        rc = nng_socket_set_size(c->socket, NNG_OPT_RECVMAXSZ, MESSAGE_BYTES);
    if (rc == 0)
        rc = nng_socket_set_ms(c->socket, NNG_OPT_SENDTIMEO, TIMEOUT_MS);
    if (rc == 0)
        rc = nng_socket_set_ms(c->socket, NNG_OPT_RECVTIMEO, TIMEOUT_MS);
    if (rc == 0)
        rc = nng_dial(c->socket, url, NULL, NNG_FLAG_NONBLOCK);
    if (rc != 0)
        die(url, nng_strerror(rc));
    if (getrandom(c->job, sizeof(c->job), 0) != sizeof(c->job))
        die("a job id", strerror(errno));
}

int main(int argc, char **argv)
{
    static struct items items;
    struct client c = {0};
    open_standard_fds();
    if (argc < 4 || argc % 2 != 0 || argc / 2 - 1 > MAX_PAIRS) {
        fputs("usage: client URL CONTEXT CONTINUATION [CONTEXT CONTINUATION ...]\n"
              "CONTEXT and CONTINUATION are lists of token ids, for example 1,15,27\n",
              stderr);
        return 64;
    }
    items.tokens = calloc(MAX_TOKENS, sizeof(int32_t));
    if (items.tokens == NULL)
        die("tokens", "out of memory");
    for (int i = 2; i < argc; i += 2, items.n++) {
        items.n_context[items.n] = read_tokens(argv[i], &items);
        items.n_continuation[items.n] = read_tokens(argv[i + 1], &items);
    }
    c.token = getenv("CTW_TOKEN");
    connect_to(&c, argv[1]);
    submit(&c, &items);
    seal(&c);
    wait_until_done(&c);
    fetch_and_print(&c, items.n);
    release(&c);
    nng_close(c.socket);
    free(items.tokens);
    return 0;
}
