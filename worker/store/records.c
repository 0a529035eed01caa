/* Finds and keeps records: see worker/store/store.h. */
#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/digest.h"
#include "base/log.h"
#include "base/sha256.h"
#include "worker/store/database.h"

/* ---- keys ---- */

struct ctw_store_key ctw_store_key_of(const int32_t *tokens, int64_t n_tok, int64_t first,
                                      int64_t n_layers)
{
    struct ctw_store_key key;
    struct ctw_sha256 hash;
    const int64_t numbers[] = {n_tok, first, n_layers};
    ctw_sha256_init(&hash);
    ctw_sha256_update(&hash, numbers, sizeof(numbers));
    ctw_sha256_update(&hash, tokens, (size_t)n_tok * sizeof(*tokens));
    ctw_sha256_final(&hash, key.bytes);
    return key;
}

/* The state of a hash over the source, from which its records' keys are made. */
static struct ctw_sha256 hash_of(const struct ctw_store_source *source)
{
    static const char what[] = "ctworker result 1";
    const char *const parts[] = {what, source->model.identity, source->model.numerics,
                                 source->reference.identity, source->reference.numerics};
    struct ctw_sha256 hash;
    ctw_sha256_init(&hash);
    for (size_t i = 0; i < CTW_COUNT(parts); i++) /* each with its end */
        ctw_sha256_update(&hash, parts[i], strlen(parts[i]) + 1);
    return hash;
}

static struct ctw_store_key whole_key(const struct ctw_sha256 *source,
                                      const struct ctw_store_key *sequence)
{
    struct ctw_store_key key;
    struct ctw_sha256 hash = *source;
    ctw_sha256_update(&hash, sequence->bytes, sizeof(sequence->bytes));
    ctw_sha256_final(&hash, key.bytes);
    return key;
}

/* ---- values ---- */

void ctw_store_add_column(struct ctw_store_record *r, void *data, size_t bytes)
{
    r->columns[r->n_columns].data = data;
    r->columns[r->n_columns++].bytes = bytes;
}

static size_t payload_bytes(const struct ctw_store_record *r)
{
    size_t bytes = 0;
    for (int i = 0; i < r->n_columns; i++)
        bytes += r->columns[i].bytes;
    return bytes;
}

/* The value of the record in the buffer; NULL: no memory. */
static const unsigned char *encode(struct ctw_store *s, const struct ctw_store_key *key,
                                   const struct ctw_store_record *r, size_t *bytes)
{
    size_t payload = payload_bytes(r);
    *bytes = payload + CTW_STORE_DIGEST_BYTES;
    unsigned char *start = ctw_store_buffer(s, *bytes), *to = start;
    if (start == NULL)
        return NULL;
    for (int i = 0; i < r->n_columns; i++) {
        memcpy(to, r->columns[i].data, r->columns[i].bytes);
        to += r->columns[i].bytes;
    }
    struct ctw_digest digest = ctw_digest_of_pair(key->bytes, CTW_STORE_KEY_BYTES, start, payload);
    memcpy(to, digest.bytes, CTW_STORE_DIGEST_BYTES);
    return start;
}

bool ctw_store_value_ok(const void *key, const void *value, int bytes)
{
    if (value == NULL || bytes < CTW_STORE_DIGEST_BYTES)
        return false;
    size_t payload = (size_t)bytes - CTW_STORE_DIGEST_BYTES;
    struct ctw_digest digest = ctw_digest_of_pair(key, CTW_STORE_KEY_BYTES, value, payload);
    return memcmp(digest.bytes, (const unsigned char *)value + payload, sizeof(digest.bytes)) == 0;
}

static bool decode(const struct ctw_store_key *key, struct ctw_store_record *r, sqlite3_stmt *q)
{
    const unsigned char *value = sqlite3_column_blob(q, 0);
    int bytes = sqlite3_column_bytes(q, 0);
    if ((size_t)bytes != payload_bytes(r) + CTW_STORE_DIGEST_BYTES ||
        !ctw_store_value_ok(key->bytes, value, bytes))
        return false;
    for (int i = 0; i < r->n_columns; i++) {
        memcpy(r->columns[i].data, value, r->columns[i].bytes);
        value += r->columns[i].bytes;
    }
    return true;
}

/* ---- finding ---- */

static int find_one(struct ctw_store *s, const struct ctw_sha256 *source,
                    struct ctw_store_record *r)
{
    sqlite3_stmt *q = s->statements[CTW_STORE_FIND];
    const struct ctw_store_key key = whole_key(source, &r->key);
    sqlite3_bind_blob(q, 1, key.bytes, CTW_STORE_KEY_BYTES, SQLITE_STATIC);
    int rc = sqlite3_step(q);
    if (rc == SQLITE_ROW)
        r->found = decode(&key, r, q);
    int end = sqlite3_reset(q);
    return rc == SQLITE_ROW || rc == SQLITE_DONE ? SQLITE_OK : end;
}

static void tell_read_failed(struct ctw_store *s, int rc)
{
    struct ctw_err err;
    (void)ctw_store_fail(s, rc, "cannot read results", &err);
    if (!s->read_failed)
        ctw_warn("%s. Scoring goes on; what cannot be read is computed again", err.msg);
    s->read_failed = true;
}

bool ctw_store_may_have(struct ctw_store *s, const struct ctw_store_source *source)
{
    int64_t n[2] = {0};
    pthread_mutex_lock(&s->lock);
    if (!ctw_store_ready(s)) {
        pthread_mutex_unlock(&s->lock);
        return false;
    }
    sqlite3_stmt *q = s->statements[CTW_STORE_OUTLINE];
    sqlite3_bind_text(q, 1, source->model.numerics, -1, SQLITE_STATIC);
    sqlite3_bind_text(q, 2, source->reference.numerics, -1, SQLITE_STATIC);
    sqlite3_bind_text(q, 3, source->model.outline, -1, SQLITE_STATIC);
    sqlite3_bind_text(q, 4, source->reference.outline, -1, SQLITE_STATIC);
    int rc = ctw_store_run(s, CTW_STORE_OUTLINE, n);
    pthread_mutex_unlock(&s->lock);
    return rc != SQLITE_OK || n[0] > 0; /* after a failure, finding says more */
}

int64_t ctw_store_find(struct ctw_store *s, const struct ctw_store_source *source,
                       struct ctw_store_record *records, int64_t n)
{
    const struct ctw_sha256 hash = hash_of(source);
    int64_t n_found = 0;
    for (int64_t i = 0; i < n; i++)
        records[i].found = false;
    pthread_mutex_lock(&s->lock);
    if (!ctw_store_ready(s)) {
        pthread_mutex_unlock(&s->lock);
        return 0;
    }
    int rc = ctw_store_run(s, CTW_STORE_BEGIN_READ, NULL);
    for (int64_t i = 0; rc == SQLITE_OK && i < n; i++) {
        rc = find_one(s, &hash, &records[i]);
        n_found += records[i].found;
    }
    (void)ctw_store_run(s, CTW_STORE_COMMIT, NULL);
    if (rc != SQLITE_OK)
        tell_read_failed(s, rc);
    pthread_mutex_unlock(&s->lock);
    pthread_mutex_lock(&s->stats_lock);
    s->stats.hits += (uint64_t)n_found;
    pthread_mutex_unlock(&s->stats_lock);
    return n_found;
}

/* ---- keeping ---- */

static int put_one(struct ctw_store *s, int64_t source, const struct ctw_sha256 *hash,
                   const struct ctw_store_record *r)
{
    size_t bytes;
    const struct ctw_store_key key = whole_key(hash, &r->key);
    const unsigned char *value = encode(s, &key, r, &bytes);
    sqlite3_stmt *q = s->statements[CTW_STORE_PUT];
    if (value == NULL)
        return SQLITE_NOMEM;
    sqlite3_bind_int64(q, 1, source);
    sqlite3_bind_int64(q, 2, r->n);
    sqlite3_bind_blob(q, 3, key.bytes, CTW_STORE_KEY_BYTES, SQLITE_STATIC);
    sqlite3_bind_blob64(q, 4, value, bytes, SQLITE_STATIC);
    return ctw_store_run(s, CTW_STORE_PUT, NULL);
}

/* Writes the source's row, or the time of the row that is there. id[0]: the row. */
static int put_source(struct ctw_store *s, const struct ctw_store_source *source, int64_t id[2])
{
    enum { KEYS = 4 };
    sqlite3_stmt *put = s->statements[CTW_STORE_PUT_SOURCE],
                 *find = s->statements[CTW_STORE_SOURCE];
    const char *const texts[] = {source->model.identity,     source->model.numerics,
                                 source->reference.identity, source->reference.numerics,
                                 source->model.outline,      source->reference.outline};
    for (size_t i = 0; i < CTW_COUNT(texts); i++)
        sqlite3_bind_text(put, (int)i + 1, texts[i], -1, SQLITE_STATIC);
    sqlite3_bind_int64(put, (int)CTW_COUNT(texts) + 1, (int64_t)time(NULL));
    int rc = ctw_store_run(s, CTW_STORE_PUT_SOURCE, NULL);
    for (int i = 0; i < KEYS; i++)
        sqlite3_bind_text(find, i + 1, texts[i], -1, SQLITE_STATIC);
    return rc == SQLITE_OK ? ctw_store_run(s, CTW_STORE_SOURCE, id) : rc;
}

static int put_all(struct ctw_store *s, const struct ctw_store_source *source,
                   const struct ctw_store_record *records, int64_t n)
{
    enum { LEAST_STEP = 64 };
    int64_t id[2] = {0};
    const struct ctw_sha256 hash = hash_of(source);
    int rc = put_source(s, source, id);
    for (int64_t i = 0; rc == SQLITE_OK && i < n; i++)
        rc = put_one(s, id[0], &hash, &records[i]);
    if (rc == SQLITE_OK)
        rc = ctw_store_evict(s, n < LEAST_STEP ? LEAST_STEP : n);
    return rc;
}

static int put_in_transaction(struct ctw_store *s, const struct ctw_store_source *source,
                              const struct ctw_store_record *records, int64_t n)
{
    int rc = ctw_store_run(s, CTW_STORE_BEGIN_WRITE, NULL);
    if (rc != SQLITE_OK)
        return rc;
    rc = put_all(s, source, records, n);
    if (rc == SQLITE_OK && ctw_store_files_hit(s->files))
        rc = SQLITE_IOERR_SHMMAP;
    if (rc == SQLITE_OK)
        rc = ctw_store_run(s, CTW_STORE_COMMIT, NULL);
    if (rc != SQLITE_OK && sqlite3_get_autocommit(s->db) == 0)
        (void)ctw_store_run(s, CTW_STORE_ROLLBACK, NULL);
    return rc;
}

/* If the files changed meanwhile, the records are in files that nobody finds: they are written once
 * more, into those that are opened anew. */
static int put(struct ctw_store *s, const struct ctw_store_source *source,
               const struct ctw_store_record *records, int64_t n)
{
    const char *end;
    int rc = SQLITE_CANTOPEN;
    for (int i = 0; i < 2 && ctw_store_ready(s); i++) {
        rc = put_in_transaction(s, source, records, n);
        if (ctw_store_files_changed(s->files, s->db, s->path, &end) == NULL)
            return rc;
        rc = SQLITE_CANTOPEN;
    }
    return rc;
}

/* Says once that writing fails, and once that it works again. */
static void tell_outcome(struct ctw_store *s, int rc, int64_t n)
{
    struct ctw_err err;
    if (rc != SQLITE_OK) {
        (void)ctw_store_fail(s, rc, "cannot keep results", &err);
        if (s->write_failed_ms == 0)
            ctw_warn("%s. Scoring goes on without keeping them", err.msg);
        s->write_failed_ms = ctw_now_ms();
        s->lost += (uint64_t)n;
        return;
    }
    if (s->write_failed_ms != 0)
        ctw_info("%s: results are kept again; those of %" PRIu64 " sequences were not", s->path,
                 s->lost);
    s->write_failed_ms = 0;
    s->lost = 0;
}

bool ctw_store_put(struct ctw_store *s, const struct ctw_store_source *source,
                   const struct ctw_store_record *records, int64_t n)
{
    if (n == 0)
        return true;
    pthread_mutex_lock(&s->lock);
    bool kept = false;
    if (s->write_failed_ms != 0 && ctw_now_ms() - s->write_failed_ms < CTW_STORE_RETRY_MS) {
        s->lost += (uint64_t)n;
    } else {
        int rc = put(s, source, records, n);
        tell_outcome(s, rc, n);
        kept = rc == SQLITE_OK;
        if (kept)
            (void)ctw_store_count(s);
    }
    pthread_mutex_unlock(&s->lock);
    pthread_mutex_lock(&s->stats_lock);
    *(kept ? &s->stats.kept : &s->stats.lost) += (uint64_t)n;
    pthread_mutex_unlock(&s->stats_lock);
    return kept;
}
