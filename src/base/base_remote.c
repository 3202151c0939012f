/* See base_remote.h. One request at a time; answers are checked in the header callback, before the first
 * byte of a body is kept. */
#define _GNU_SOURCE
#include "base_remote.h"

#include "base_internal.h"
#include "base_library.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define FIRST_BYTES     (UINT64_C(64) << 10)
#define MOST_BYTES      (UINT64_C(4) << 20)   /* of one request */
#define LIMIT_BYTES     (UINT64_C(256) << 20) /* headers longer than this are none */
#define MAX_REQUESTS    1024                  /* for one file */
#define MAX_REDIRECTS   5L
#define MAX_HEADER      (64u << 10) /* of all answers to one request */
#define MAX_URL         4096u
#define SLOW_BYTES      1024L /* a second; less than this for the whole timeout ends a request */
#define TIMEOUT_SECONDS 30    /* where the environment sets none */

/* libcurl's interface, as far as it is used: stable since 7.19 (curl/curl.h). */
typedef void curl_handle;
enum {
    CURL_GLOBAL_ALL_FLAGS = 3,
    OPT_LOW_SPEED_LIMIT = 19,
    OPT_LOW_SPEED_TIME = 20,
    OPT_FOLLOWLOCATION = 52,
    OPT_MAXREDIRS = 68,
    OPT_NOSIGNAL = 99,
    OPT_TIMEOUT_MS = 155,
    OPT_CONNECTTIMEOUT_MS = 156,
    OPT_PROTOCOLS = 181,
    OPT_REDIR_PROTOCOLS = 182,
    OPT_SUPPRESS_CONNECT_HEADERS = 265, /* libcurl 7.54; older ones refuse it */
    OPT_WRITEDATA = 10001,
    OPT_URL = 10002,
    OPT_RANGE = 10007,
    OPT_ERRORBUFFER = 10010,
    OPT_USERAGENT = 10018,
    OPT_HEADERDATA = 10029,
    OPT_CAINFO = 10065,
    OPT_WRITEFUNCTION = 20011,
    OPT_HEADERFUNCTION = 20079,
    PROTOCOL_HTTP = 1,
    PROTOCOL_HTTPS = 2,
    CODE_UNSUPPORTED_PROTOCOL = 1,
    CODE_OPERATION_TIMEDOUT = 28,
    CODE_TOO_MANY_REDIRECTS = 47,
    CODE_OTHER_HOST = 51, /* 60 since libcurl 7.62 */
    CODE_NOT_TRUSTED = 60,
    CODE_CERTIFICATES_UNREADABLE = 77,
    ERROR_BYTES = 256
};

typedef struct curl_calls {
    int (*global_init)(long flags);
    void (*global_cleanup)(void);
    curl_handle *(*easy_init)(void);
    int (*easy_setopt)(curl_handle *h, int option, ...);
    int (*easy_perform)(curl_handle *h);
    void (*easy_cleanup)(curl_handle *h);
    const char *(*easy_strerror)(int code);
} curl_calls;

/* One answer, as it comes in. */
typedef struct answer {
    long status;
    uint64_t first, last, total; /* of Content-Range */
    bool has_range, checked;
    size_t header_bytes;
    char tag[128];
    weir_error why; /* code OK: nothing was wrong with it */
} answer;

struct base_remote {
    base_env *env;
    char *url;
    base_library *library;
    curl_calls curl;
    curl_handle *handle;
    bool started; /* global_init succeeded */
    int fd;       /* -1: bytes go to text */
    bool sealed, ranged;
    uint64_t size, have; /* size 0: not known yet */
    uint32_t n_requests;
    char tag[128];
    char error[ERROR_BYTES];
    /* the request under way */
    answer a;
    uint64_t want_end, got;
    /* a whole file */
    char *text;
    size_t text_len, text_max;
};

bool base_path_is_url(const char *path)
{
    return path != NULL && (strncasecmp(path, "http://", 7) == 0 || strncasecmp(path, "https://", 8) == 0);
}

static weir_status check_url(const char *url, weir_error *err)
{
    size_t n = strlen(url);
    const char *host = strstr(url, "://") + 3;
    size_t authority = strcspn(host, "/?#");
    if (n > MAX_URL || authority == 0)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "%.80s...: an address without a server, or of more than %u bytes", url, MAX_URL);
    for (size_t i = 0; i < n; i++)
        if ((unsigned char)url[i] <= ' ' || (unsigned char)url[i] >= 0x7f)
            return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                             "an address with byte 0x%02x at %zu; write it as %%%02X", (unsigned char)url[i],
                             i, (unsigned char)url[i]);
    if (memchr(host, '@', authority) != NULL)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "an address with a name or password in it; those are not sent");
    return WEIR_OK;
}

/* ---- libcurl ---- */

static weir_status load_curl(base_remote *r, weir_error *err)
{
    static const char *const names[] = {"libcurl.so.4", "libcurl-gnutls.so.4", NULL};
    const struct {
        const char *name;
        void *to;
    } calls[] = {
        {"curl_global_init", &r->curl.global_init},     {"curl_global_cleanup", &r->curl.global_cleanup},
        {"curl_easy_init", &r->curl.easy_init},         {"curl_easy_setopt", &r->curl.easy_setopt},
        {"curl_easy_perform", &r->curl.easy_perform},   {"curl_easy_cleanup", &r->curl.easy_cleanup},
        {"curl_easy_strerror", &r->curl.easy_strerror},
    };
    weir_status status = base_library_open(r->env, names, &r->library, err);
    if (status == WEIR_ERR_NOT_FOUND)
        return base_fail(err, WEIR_ERR_UNSUPPORTED,
                         "%s: reading over the network needs libcurl.so.4, which is not installed (Debian: "
                         "libcurl4)",
                         r->url);
    if (status != WEIR_OK) return status;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        void *symbol = base_library_symbol(r->library, calls[i].name);
        if (symbol == NULL)
            return base_fail(err, WEIR_ERR_UNSUPPORTED, "%s: libcurl has no %s; install a newer one", r->url,
                             calls[i].name);
        memcpy(calls[i].to, &symbol, sizeof symbol);
    }
    r->started = r->curl.global_init(CURL_GLOBAL_ALL_FLAGS) == 0;
    if (r->started) r->handle = r->curl.easy_init();
    if (r->handle == NULL)
        return base_fail(err, WEIR_ERR_OUT_OF_MEMORY, "%s: libcurl could not be started", r->url);
    return WEIR_OK;
}

/* ---- the answer ---- */

/* Digits at *p; false where there are none or too many. */
static bool take_number(const char **p, uint64_t *out)
{
    const char *begin = *p;
    for (*out = 0; **p >= '0' && **p <= '9'; (*p)++) {
        if (*p - begin > 18) return false;
        *out = *out * 10 + (uint64_t)(**p - '0');
    }
    return *p > begin;
}

/* "bytes FIRST-LAST/TOTAL" */
static bool read_content_range(answer *a, const char *p)
{
    while (*p == ' ' || *p == '\t') p++;
    if (strncasecmp(p, "bytes ", 6) != 0) return false;
    p += 6;
    if (!take_number(&p, &a->first) || *p++ != '-') return false;
    if (!take_number(&p, &a->last) || *p++ != '/') return false;
    return take_number(&p, &a->total) && a->first <= a->last && a->last < a->total;
}

static weir_status check_status(const base_remote *r, long status, weir_error *err)
{
    if (status == 404 || status == 410)
        return base_fail(err, WEIR_ERR_NOT_FOUND, "%s: the server has no such file (status %ld)", r->url,
                         status);
    if (status == 401 || status == 403)
        return base_fail(err, WEIR_ERR_PERMISSION,
                         "%s: the server wants a login or refuses (status %ld); download the file with one",
                         r->url, status);
    if (status == 416)
        return base_fail(err, WEIR_ERR_FORMAT, "%s: the server has no bytes from %llu on (status 416)",
                         r->url, (unsigned long long)r->have);
    return base_fail(err, WEIR_ERR_IO, "%s: the server answered with status %ld", r->url, status);
}

/* Behind the last header of an answer that is no redirect: may its body be kept? */
static weir_status check_answer(base_remote *r, weir_error *err)
{
    answer *a = &r->a;
    a->checked = true;
    if (!r->ranged) return a->status == 200 ? WEIR_OK : check_status(r, a->status, err);
    if (a->status == 200)
        return base_fail(
            err, WEIR_ERR_UNSUPPORTED,
            "%s: the server gives whole files only (no ranges): the header alone cannot be read; "
            "download the file",
            r->url);
    if (a->status != 206) return check_status(r, a->status, err);
    if (!a->has_range || a->first != r->have || a->last >= r->want_end)
        return base_fail(err, WEIR_ERR_FORMAT,
                         "%s: asked for bytes %llu to %llu, the server answers with another range, or none "
                         "that can be read",
                         r->url, (unsigned long long)r->have, (unsigned long long)r->want_end - 1);
    if (r->size != 0 && (a->total != r->size || strcmp(a->tag, r->tag) != 0))
        return base_fail(err, WEIR_ERR_FILE_CHANGED,
                         "%s: the file changed between two requests (%llu bytes, then %llu); try again",
                         r->url, (unsigned long long)r->size, (unsigned long long)a->total);
    if (a->total > (UINT64_C(1) << 50))
        return base_fail(err, WEIR_ERR_FORMAT, "%s: a size of %llu bytes cannot be", r->url,
                         (unsigned long long)a->total);
    return WEIR_OK;
}

static size_t on_header(char *data, size_t size, size_t n, void *arg)
{
    base_remote *r = arg;
    answer *a = &r->a;
    char line[512];
    size_t len = size * n, kept = base_min(len, sizeof line - 1);
    a->header_bytes += len;
    if (a->header_bytes > MAX_HEADER) {
        base_fail(&a->why, WEIR_ERR_FORMAT, "%s: the server's headers are longer than %u bytes", r->url,
                  MAX_HEADER);
        return 0;
    }
    memcpy(line, data, kept);
    line[kept] = '\0';
    line[strcspn(line, "\r\n")] = '\0';
    if (strncasecmp(line, "HTTP/", 5) == 0) {
        const char *space = strchr(line, ' ');
        uint64_t status = 0;
        if (space != NULL) space++, take_number(&space, &status);
        a->status = (long)base_min(status, 999);
        a->has_range = a->checked = false;
        a->tag[0] = '\0';
    } else if (strncasecmp(line, "Content-Range:", 14) == 0) {
        a->has_range = read_content_range(a, line + 14);
    } else if (strncasecmp(line, "ETag:", 5) == 0) {
        snprintf(a->tag, sizeof a->tag, "%.*s", (int)sizeof a->tag - 1, line + 5);
    } else if (line[0] == '\0' && a->status >= 200 && (a->status < 300 || a->status >= 400)) {
        if (check_answer(r, &a->why) != WEIR_OK) return 0;
    }
    return len;
}

static bool keep_text(base_remote *r, const char *data, size_t len)
{
    if (len > r->text_max - r->text_len) {
        base_fail(&r->a.why, WEIR_ERR_FORMAT, "%s: more than the %zu bytes that such a file may have", r->url,
                  r->text_max);
        return false;
    }
    char *bigger = base_realloc(r->env, BASE_TAG_RUNTIME, r->text, r->text_len + len + 1, &r->a.why);
    if (bigger == NULL) return false;
    memcpy(bigger + r->text_len, data, len);
    r->text = bigger;
    r->text_len += len;
    r->text[r->text_len] = '\0';
    return true;
}

static size_t on_body(char *data, size_t size, size_t n, void *arg)
{
    base_remote *r = arg;
    size_t len = size * n;
    if (!r->a.checked) return len; /* of a redirect */
    if (!r->ranged) return keep_text(r, data, len) ? len : 0;
    if (len > r->a.last + 1 - r->a.first - r->got) {
        base_fail(&r->a.why, WEIR_ERR_FORMAT, "%s: the server sends more than the %llu bytes it announced",
                  r->url, (unsigned long long)(r->a.last + 1 - r->a.first));
        return 0;
    }
    for (size_t at = 0; at < len;) {
        ssize_t wrote = pwrite(r->fd, data + at, len - at, (off_t)(r->have + r->got + at));
        if (wrote < 0 && errno == EINTR) continue;
        if (wrote <= 0) {
            base_fail(&r->a.why, WEIR_ERR_OUT_OF_MEMORY, "%s: no memory to keep the header in", r->url);
            return 0;
        }
        at += (size_t)wrote;
    }
    r->got += len;
    return len;
}

/* ---- requests ---- */

static long timeout_ms(const base_remote *r)
{
    uint32_t s = r->env->remote_timeout_s != 0 ? r->env->remote_timeout_s : TIMEOUT_SECONDS;
    return (long)s * 1000;
}

static void set_options(base_remote *r)
{
    int (*set)(curl_handle *, int, ...) = r->curl.easy_setopt;
    long protocols = strncasecmp(r->url, "https:", 6) == 0 ? PROTOCOL_HTTPS : PROTOCOL_HTTP | PROTOCOL_HTTPS;
    set(r->handle, OPT_URL, r->url);
    set(r->handle, OPT_NOSIGNAL, 1L);
    set(r->handle, OPT_PROTOCOLS, protocols);
    set(r->handle, OPT_REDIR_PROTOCOLS, protocols); /* never from https to http */
    set(r->handle, OPT_FOLLOWLOCATION, 1L);
    set(r->handle, OPT_MAXREDIRS, MAX_REDIRECTS);
    set(r->handle, OPT_SUPPRESS_CONNECT_HEADERS, 1L); /* a proxy's answer is not the server's */
    set(r->handle, OPT_CONNECTTIMEOUT_MS, timeout_ms(r));
    set(r->handle, OPT_TIMEOUT_MS, 4 * timeout_ms(r));
    set(r->handle, OPT_LOW_SPEED_LIMIT, SLOW_BYTES);
    set(r->handle, OPT_LOW_SPEED_TIME, timeout_ms(r) / 1000);
    set(r->handle, OPT_USERAGENT, "weir");
    set(r->handle, OPT_ERRORBUFFER, r->error);
    if (r->env->remote_ca_file != NULL && r->env->remote_ca_file[0] != '\0')
        set(r->handle, OPT_CAINFO, r->env->remote_ca_file);
    set(r->handle, OPT_HEADERFUNCTION, on_header);
    set(r->handle, OPT_HEADERDATA, r);
    set(r->handle, OPT_WRITEFUNCTION, on_body);
    set(r->handle, OPT_WRITEDATA, r);
}

/* The transfer without SIGPIPE, which a TLS library below libcurl can raise when the server hangs up. Whether
 * the process ignores that signal is not for a library to decide, so this thread alone keeps it off. */
static int transfer(base_remote *r)
{
    sigset_t pipe, pending, old;
    const struct timespec now = {0};
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    sigpending(&pending);
    bool was_pending = sigismember(&pending, SIGPIPE) == 1;
    bool blocked = pthread_sigmask(SIG_BLOCK, &pipe, &old) == 0;
    int code = r->curl.easy_perform(r->handle);
    if (!blocked) return code;
    sigpending(&pending);
    if (!was_pending && sigismember(&pending, SIGPIPE) == 1) {
        while (sigtimedwait(&pipe, NULL, &now) < 0 && errno == EINTR) {
        }
    }
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return code;
}

/* Why libcurl gave up, other than by what our callbacks found. */
static weir_status check_code(const base_remote *r, int code, weir_error *err)
{
    const char *text = r->error[0] != '\0' ? r->error : r->curl.easy_strerror(code);
    const char *ca_file = r->env->remote_ca_file;
    if (ca_file == NULL || ca_file[0] == '\0') ca_file = "the system";
    if (code == CODE_TOO_MANY_REDIRECTS)
        return base_fail(err, WEIR_ERR_IO, "%s: the server redirects more than %ld times", r->url,
                         MAX_REDIRECTS);
    if (code == CODE_UNSUPPORTED_PROTOCOL && r->a.status >= 300 && r->a.status < 400)
        return base_fail(err, WEIR_ERR_IO,
                         "%s: the server redirects to an address that is not followed (from https only "
                         "https is): %.200s; give the address of the file itself",
                         r->url, text);
    if (code == CODE_OTHER_HOST || code == CODE_NOT_TRUSTED)
        return base_fail(
            err, WEIR_ERR_IO,
            "%s: the server's certificate is not trusted: %.200s; trusted are the certificates of %s "
            "(Debian: ca-certificates); setting io.ca_file names a file with others, such as "
            "those of a company's own servers",
            r->url, text, ca_file);
    if (code == CODE_CERTIFICATES_UNREADABLE)
        return base_fail(
            err, WEIR_ERR_IO,
            "%s: the certificates of %s cannot be read: %.200s; install them (Debian: ca-certificates) "
            "or name a file of them, in PEM form, in setting io.ca_file",
            r->url, ca_file, text);
    if (code == CODE_OPERATION_TIMEDOUT)
        return base_fail(err, WEIR_ERR_IO,
                         "%s: no answer, or one slower than %ld bytes a second, for too long (setting "
                         "io.remote_timeout, %ld s): %.200s",
                         r->url, SLOW_BYTES, timeout_ms(r) / 1000, r->error);
    return base_fail(err, WEIR_ERR_IO, "%s: the network failed: %.200s; check the address and the connection",
                     r->url, text);
}

static weir_status perform(base_remote *r, weir_error *err)
{
    r->a = (answer){.status = 0};
    r->got = 0;
    r->error[0] = '\0';
    int code = transfer(r);
    if (r->a.why.code != WEIR_OK) {
        *err = r->a.why;
        return err->code;
    }
    if (code != 0) return check_code(r, code, err);
    if (!r->a.checked) return check_status(r, r->a.status, err);
    return WEIR_OK;
}

/* [have, end) in one request; a server may give less of it. */
static weir_status fetch(base_remote *r, uint64_t end, weir_error *err)
{
    char range[64];
    if (++r->n_requests > MAX_REQUESTS)
        return base_fail(err, WEIR_ERR_FORMAT, "%s: the server gives the header in more than %d pieces",
                         r->url, MAX_REQUESTS);
    snprintf(range, sizeof range, "%llu-%llu", (unsigned long long)r->have, (unsigned long long)end - 1);
    r->want_end = end;
    r->curl.easy_setopt(r->handle, OPT_RANGE, range);
    weir_status status = perform(r, err);
    if (status != WEIR_OK) return status;
    if (r->got != r->a.last + 1 - r->a.first)
        return base_fail(err, WEIR_ERR_TRUNCATED, "%s: the server announced %llu bytes and sent %llu", r->url,
                         (unsigned long long)(r->a.last + 1 - r->a.first), (unsigned long long)r->got);
    if (r->size == 0) {
        r->size = r->a.total;
        memcpy(r->tag, r->a.tag, sizeof r->tag);
    }
    r->have += r->got;
    return WEIR_OK;
}

weir_status base_remote_ensure(base_remote *r, uint64_t end, weir_error *err)
{
    weir_error local;
    if (err == NULL) err = &local;
    if (end <= r->have) return WEIR_OK;
    if (r->sealed)
        return base_fail(err, WEIR_ERR_UNSUPPORTED,
                         "%s: only headers are read over the network; download the file to use its weights",
                         r->url);
    if (end > LIMIT_BYTES)
        return base_fail(err, WEIR_ERR_FORMAT,
                         "%s: the header goes on behind %llu MiB, which no model's does; nothing more is "
                         "fetched",
                         r->url, (unsigned long long)(LIMIT_BYTES >> 20));
    while (r->have < end) {
        uint64_t more = base_min(base_max(r->have, FIRST_BYTES), MOST_BYTES);
        uint64_t to = base_min(base_min(base_max(end, r->have + more), r->have + MOST_BYTES), r->size);
        weir_status status = fetch(r, to, err);
        if (status != WEIR_OK) return status;
    }
    return WEIR_OK;
}

/* ---- life ---- */

static weir_status create(base_env *env, const char *url, bool ranged, base_remote **out, weir_error *err)
{
    weir_status status = check_url(url, err);
    if (status != WEIR_OK) return status;
    base_remote *r = base_alloc(env, BASE_TAG_IO, sizeof *r, err);
    if (r == NULL) return err->code;
    *out = r;
    r->env = env;
    r->fd = -1;
    r->ranged = ranged;
    r->url = base_strdup(env, BASE_TAG_IO, url, err);
    if (r->url == NULL) return err->code;
    status = load_curl(r, err);
    if (status == WEIR_OK) set_options(r);
    return status;
}

weir_status base_remote_open(base_env *env, const char *url, base_remote **out, weir_error *err)
{
    weir_error local;
    base_remote *r = NULL;
    if (err == NULL) err = &local;
    weir_status status = create(env, url, true, &r, err);
    if (status == WEIR_OK && (r->fd = memfd_create("weir-header", MFD_CLOEXEC)) < 0)
        status = base_fail(err, WEIR_ERR_OUT_OF_MEMORY, "%s: no memory to keep the header in", url);
    if (status == WEIR_OK) status = fetch(r, FIRST_BYTES, err);
    if (status != WEIR_OK) {
        base_remote_close(r);
        return status;
    }
    *out = r;
    return WEIR_OK;
}

void base_remote_close(base_remote *r)
{
    if (r == NULL) return;
    if (r->handle != NULL) r->curl.easy_cleanup(r->handle);
    if (r->started) r->curl.global_cleanup();
    base_library_close(r->library);
    if (r->fd >= 0) close(r->fd);
    base_free(r->env, r->text);
    base_free(r->env, r->url);
    base_free(r->env, r);
}

uint64_t base_remote_size(const base_remote *r)
{
    return r->size;
}

int base_remote_fd(const base_remote *r)
{
    return r->fd;
}

void base_remote_seal(base_remote *r)
{
    r->sealed = true;
}

weir_status base_remote_slurp(base_env *env, const char *url, size_t max_bytes, char **out, size_t *len,
                              weir_error *err)
{
    weir_error local;
    base_remote *r = NULL;
    if (err == NULL) err = &local;
    weir_status status = create(env, url, false, &r, err);
    if (status == WEIR_OK) {
        r->text_max = max_bytes;
        if (!keep_text(r, "", 0)) status = (*err = r->a.why).code;
    }
    if (status == WEIR_OK) status = perform(r, err);
    if (status == WEIR_OK) {
        *out = r->text;
        if (len != NULL) *len = r->text_len;
        r->text = NULL;
    }
    base_remote_close(r);
    return status;
}
