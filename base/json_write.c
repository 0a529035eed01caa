#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "base/mem.h"
#include "base/utf8.h"

static void put(struct ctw_json_writer *w, const char *text, size_t bytes)
{
    size_t need;
    if (w->status != CTW_OK)
        return;
    if (!ctw_size_add(w->bytes, bytes, &need) || !ctw_size_add(need, 1, &need)) {
        w->status = CTW_ENOMEM;
        return;
    }
    if (need > w->capacity) {
        size_t capacity = need > 256 ? need + need / 2 : 256;
        char *grown = ctw_realloc(w->text, capacity, 1);
        if (grown == NULL) {
            w->status = CTW_ENOMEM;
            return;
        }
        w->text = grown;
        w->capacity = capacity;
    }
    memcpy(w->text + w->bytes, text, bytes);
    w->bytes += bytes;
    w->text[w->bytes] = '\0';
}

static void begin_value(struct ctw_json_writer *w)
{
    if (w->comma)
        put(w, ",", 1);
    w->comma = true;
}

static void put_value(struct ctw_json_writer *w, const char *text)
{
    begin_value(w);
    put(w, text, strlen(text));
}

void ctw_json_write_open(struct ctw_json_writer *w, char bracket)
{
    begin_value(w);
    put(w, &bracket, 1);
    w->comma = false;
}

void ctw_json_write_close(struct ctw_json_writer *w, char bracket)
{
    put(w, &bracket, 1);
    w->comma = true;
}

void ctw_json_write_key(struct ctw_json_writer *w, const char *key)
{
    ctw_json_write_string(w, key);
    put(w, ":", 1);
    w->comma = false;
}

/* Writes one character of s and returns its length. */
static size_t put_char(struct ctw_json_writer *w, const unsigned char *s, size_t left)
{
    static const char escaped[] = "\"\\\b\f\n\r\t", letter[] = "\"\\bfnrt";
    const char *at = strchr(escaped, s[0]);
    char buf[8];
    if (at != NULL) {
        buf[0] = '\\';
        buf[1] = letter[at - escaped];
        put(w, buf, 2);
        return 1;
    }
    if (s[0] < 0x20 || s[0] == 0x7f) {
        put(w, buf, (size_t)snprintf(buf, sizeof(buf), "\\u%04x", s[0]));
        return 1;
    }
    size_t step = ctw_utf8_step(s, left);
    if (step == 0) {
        put(w, "\xef\xbf\xbd", 3);
        return 1;
    }
    put(w, (const char *)s, step);
    return step;
}

void ctw_json_write_string(struct ctw_json_writer *w, const char *s)
{
    if (s == NULL) {
        ctw_json_write_null(w);
        return;
    }
    begin_value(w);
    put(w, "\"", 1);
    for (size_t left = strlen(s), step; left > 0; left -= step, s += step)
        step = put_char(w, (const unsigned char *)s, left);
    put(w, "\"", 1);
}

void ctw_json_write_int(struct ctw_json_writer *w, int64_t v)
{
    char buf[32];
    (void)snprintf(buf, sizeof(buf), "%lld", (long long)v);
    put_value(w, buf);
}

void ctw_json_write_uint(struct ctw_json_writer *w, uint64_t v)
{
    char buf[32];
    (void)snprintf(buf, sizeof(buf), "%llu", (unsigned long long)v);
    put_value(w, buf);
}

static void put_real(struct ctw_json_writer *w, char *buf, size_t cap)
{
    if (strpbrk(buf, ".e") == NULL)
        (void)snprintf(buf + strlen(buf), cap - strlen(buf), ".0");
    put_value(w, buf);
}

void ctw_json_write_float(struct ctw_json_writer *w, float v)
{
    char buf[40];
    if (!isfinite(v)) {
        if (w->status == CTW_OK)
            w->status = CTW_ENUMERIC;
        return;
    }
    for (int digits = 6; digits <= 9; digits++) { /* 9 always suffice */
        (void)snprintf(buf, sizeof(buf), "%.*g", digits, (double)v);
        if (strtof(buf, NULL) == v)
            break;
    }
    put_real(w, buf, sizeof(buf));
}

void ctw_json_write_double(struct ctw_json_writer *w, double v)
{
    char buf[40];
    if (!isfinite(v)) {
        if (w->status == CTW_OK)
            w->status = CTW_ENUMERIC;
        return;
    }
    for (int digits = 15; digits <= 17; digits++) { /* 17 always suffice */
        (void)snprintf(buf, sizeof(buf), "%.*g", digits, v);
        if (strtod(buf, NULL) == v)
            break;
    }
    put_real(w, buf, sizeof(buf));
}

void ctw_json_write_bool(struct ctw_json_writer *w, bool v)
{
    put_value(w, v ? "true" : "false");
}

void ctw_json_write_null(struct ctw_json_writer *w)
{
    put_value(w, "null");
}

void ctw_json_write_key_string(struct ctw_json_writer *w, const char *key, const char *s)
{
    ctw_json_write_key(w, key);
    ctw_json_write_string(w, s);
}

void ctw_json_write_key_int(struct ctw_json_writer *w, const char *key, int64_t v)
{
    ctw_json_write_key(w, key);
    ctw_json_write_int(w, v);
}

void ctw_json_write_key_uint(struct ctw_json_writer *w, const char *key, uint64_t v)
{
    ctw_json_write_key(w, key);
    ctw_json_write_uint(w, v);
}

void ctw_json_write_key_double(struct ctw_json_writer *w, const char *key, double v)
{
    ctw_json_write_key(w, key);
    ctw_json_write_double(w, v);
}

void ctw_json_write_key_bool(struct ctw_json_writer *w, const char *key, bool v)
{
    ctw_json_write_key(w, key);
    ctw_json_write_bool(w, v);
}

void ctw_json_write_newline(struct ctw_json_writer *w)
{
    put(w, "\n", 1);
    w->comma = false;
}

void ctw_json_write_source(struct ctw_json_writer *w, const char *json, size_t bytes)
{
    begin_value(w);
    put(w, json, bytes);
}

enum ctw_status ctw_json_writer_text(const struct ctw_json_writer *w, const char **text,
                                     size_t *bytes, struct ctw_err *err)
{
    if (w->status == CTW_ENUMERIC)
        return ctw_fail(err, CTW_ENUMERIC, "a NaN or an infinity cannot be written as JSON");
    if (w->status != CTW_OK)
        return ctw_fail(err, w->status, "out of memory for %zu bytes of JSON", w->bytes);
    *text = w->text == NULL ? "" : w->text;
    *bytes = w->bytes;
    return CTW_OK;
}

void ctw_json_writer_reset(struct ctw_json_writer *w)
{
    w->bytes = 0;
    w->comma = false;
    w->status = CTW_OK;
    if (w->text != NULL)
        w->text[0] = '\0';
}

void ctw_json_writer_fini(struct ctw_json_writer *w)
{
    ctw_free(w->text);
    *w = (struct ctw_json_writer){0};
}
