/* Status texts, filling of weir_error, and sizes as text. */
#define _GNU_SOURCE
#include "base_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

/* The library is built with hidden symbols; these two belong to its public face. */
#define EXPORTED __attribute__((visibility("default")))

EXPORTED const char *weir_status_name(weir_status code)
{
    switch (code) {
#define STATUS_NAME(name, text)                                                                              \
    case WEIR_ERR_##name: return #name;
        WEIR_STATUS_MAP(STATUS_NAME)
#undef STATUS_NAME
    case WEIR_STATUS_COUNT: break;
    }
    return "UNKNOWN";
}

EXPORTED const char *weir_status_text(weir_status code)
{
    switch (code) {
#define STATUS_TEXT(name, text)                                                                              \
    case WEIR_ERR_##name: return text;
        WEIR_STATUS_MAP(STATUS_TEXT)
#undef STATUS_TEXT
    case WEIR_STATUS_COUNT: break;
    }
    return "not a status code of this version";
}

/* Ends a text that did not fit with "..." so that nobody takes it for whole. */
static void mark_cut(char *text, size_t cap, int wanted)
{
    if (wanted >= 0 && (size_t)wanted >= cap) memcpy(text + cap - 4, "...", 4);
}

weir_status base_fail(weir_error *err, weir_status code, const char *format, ...)
{
    if (err == NULL) return code;
    /* The arguments may point into err->message, hence the detour. */
    char text[WEIR_ERROR_MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n < 0) text[0] = '\0';
    mark_cut(text, sizeof text, n);
    memcpy(err->message, text, strlen(text) + 1);
    err->code = code;
    return code;
}

weir_status base_fail_context(weir_error *err, weir_status code, const char *format, ...)
{
    if (err == NULL) return code;
    char text[WEIR_ERROR_MESSAGE_BYTES], whole[WEIR_ERROR_MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (n < 0) text[0] = '\0';
    if (err->code == WEIR_OK) { /* nobody filled it */
        err->code = code;
        snprintf(err->message, sizeof err->message, "%s", weir_status_text(code));
    }
    n = snprintf(whole, sizeof whole, "%s: %s", text, err->message);
    mark_cut(whole, sizeof whole, n);
    memcpy(err->message, whole, strlen(whole) + 1);
    return err->code;
}

const char *base_errno_text(int error, char *buf)
{
    return strerror_r(error, buf, 128);
}

weir_status base_errno_status(int error)
{
    switch (error) {
    case ENOENT:
    case ENOTDIR: return WEIR_ERR_NOT_FOUND;
    case EACCES:
    case EPERM:
    case EROFS: return WEIR_ERR_PERMISSION;
    case ENOMEM: return WEIR_ERR_OUT_OF_MEMORY;
    default: return WEIR_ERR_IO;
    }
}

bool base_errno_retry(int error, int *tries)
{
    if (error != EINTR && error != EAGAIN && error != EBUSY) return false;
    if (*tries >= BASE_RETRIES) return false;
    ++*tries;
    if (error != EINTR) {
        struct timespec pause = {.tv_nsec = 200000};
        nanosleep(&pause, NULL);
    }
    return true;
}

const char *base_size_text(uint64_t bytes, char *buf)
{
    static const char *const units[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    if (bytes < 1024) {
        snprintf(buf, 32, bytes == 1 ? "%" PRIu64 " byte" : "%" PRIu64 " bytes", bytes);
        return buf;
    }
    double value = (double)bytes / 1024.0;
    size_t unit = 0;
    /* 1023.95 would print as 1024.0 of the smaller unit. */
    while (value >= 1023.95 && unit + 1 < sizeof units / sizeof *units) {
        value /= 1024.0;
        unit++;
    }
    char number[24];
    snprintf(number, sizeof number, "%.1f", value);
    size_t n = strlen(number);
    if (n > 2 && strcmp(number + n - 2, ".0") == 0) number[n - 2] = '\0';
    snprintf(buf, 32, "%s %s", number, units[unit]);
    return buf;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static weir_status refuse_size(weir_error *err, const char *text, const char *why)
{
    return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                     "size \"%.64s\" %s: write a number and a unit, such as 800MB or 1.5GiB "
                     "(decimal: KB, MB, GB, TB; binary: KiB, MiB, GiB, TiB; bytes: B)",
                     text, why);
}

weir_status base_size_parse(const char *text, uint64_t *bytes, weir_error *err)
{
    static const struct {
        const char *name;
        uint64_t factor;
    } units[] = {
        {"B", 1},
        {"KB", UINT64_C(1000)},
        {"MB", UINT64_C(1000000)},
        {"GB", UINT64_C(1000000000)},
        {"TB", UINT64_C(1000000000000)},
        {"KiB", UINT64_C(1) << 10},
        {"MiB", UINT64_C(1) << 20},
        {"GiB", UINT64_C(1) << 30},
        {"TiB", UINT64_C(1) << 40},
    };
    if (text == NULL) return refuse_size(err, "", "is missing");
    const char *p = text;
    if (*p == '-') return refuse_size(err, text, "is negative");
    if (!is_digit(*p)) return refuse_size(err, text, "does not begin with a number");
    uint64_t whole = 0;
    bool fits = true;
    for (; is_digit(*p); p++) {
        fits = fits && base_mul(whole, 10, &whole) && base_add(whole, (uint64_t)(*p - '0'), &whole);
    }
    const char *fraction = NULL, *fraction_end = NULL;
    if (*p == '.') {
        fraction = ++p;
        while (is_digit(*p)) p++;
        fraction_end = p;
        if (fraction == fraction_end) return refuse_size(err, text, "has no digit after the point");
    }
    while (*p == ' ') p++;
    if (*p == '\0') return refuse_size(err, text, "has no unit");
    uint64_t factor = 0;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        if (strcasecmp(p, units[i].name) == 0) factor = units[i].factor;
    }
    if (factor == 0) return refuse_size(err, text, "has an unknown unit");
    if (factor == 1 && fraction != NULL) return refuse_size(err, text, "is a fraction of a byte");
    /* The fraction from its last digit to its first, rounded down; no step exceeds 10 x factor. */
    uint64_t part = 0;
    for (const char *q = fraction_end; q != fraction; q--) {
        part = ((uint64_t)(q[-1] - '0') * factor + part) / 10;
    }
    if (!fits || !base_mul(whole, factor, &whole) || !base_add(whole, part, &whole))
        return refuse_size(err, text, "is too large");
    *bytes = whole;
    return WEIR_OK;
}
