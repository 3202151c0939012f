/* Opening and reading. One descriptor for the page cache, a second one for direct reads where they work. */
#define _GNU_SOURCE
#include "base_internal.h"
#include "base_remote.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PROBE_BYTES 4096

/* More than this in one call is cut by Linux anyway. */
#define MAX_READ_BYTES (UINT64_C(1) << 30)

struct base_file {
    base_env *env;
    char *path;
    int fd;
    int direct_fd;         /* -1: direct reads do not work here */
    uint32_t direct_align; /* 0 likewise */
    struct stat seen;      /* as it was at opening */
    base_remote *remote;   /* NULL: a local file. Else it owns fd */
};

static weir_status fail_errno(weir_error *err, int error, const char *what, const char *path)
{
    char text[128];
    const char *hint = "";
    weir_status code = base_errno_status(error);
    if (code == WEIR_ERR_NOT_FOUND) hint = "; check the path";
    if (code == WEIR_ERR_PERMISSION) hint = "; check the owner and mode of the file and its folders";
    if (error == EMFILE || error == ENFILE) hint = "; raise the limit of open files (ulimit -n)";
    if (error == ENOSPC) hint = "; free some space on that disk";
    return base_fail(err, code, "%s: %s failed: %s%s", path, what, base_errno_text(error, text), hint);
}

/* open() with fault point and retry; returns the descriptor or -errno. */
static int open_retry(base_env *env, const char *path, int flags, mode_t mode)
{
    base_fault_rule rule;
    if (base_fault(env, BASE_FAULT_OPEN, &rule)) return -(rule.error != 0 ? rule.error : EIO);
    for (int tries = 0;;) {
        int fd = open(path, flags | O_CLOEXEC, mode);
        if (fd >= 0) return fd;
        if (!base_errno_retry(errno, &tries)) return -errno;
    }
}

/* What the kernel says about direct reads: an alignment, 0 for "they do not work", or -1 for "no answer". */
static int64_t ask_direct_align(int fd)
{
#ifdef STATX_DIOALIGN
    struct statx x;
    memset(&x, 0, sizeof x);
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &x) == 0 && (x.stx_mask & STATX_DIOALIGN) != 0) {
        uint32_t align = x.stx_dio_offset_align;
        if (align != 0 && align < x.stx_dio_mem_align) align = x.stx_dio_mem_align;
        return align;
    }
#endif
    (void)fd;
    return -1;
}

static bool direct_read_works(int fd, void *buf, size_t bytes, off_t offset)
{
    ssize_t n;
    do {
        n = pread(fd, buf, bytes, offset);
    } while (n < 0 && errno == EINTR);
    return n >= 0;
}

/* Opens the second descriptor and finds the smallest alignment that a real read accepts. A file without
 * direct reads is no error. */
static weir_status open_direct(base_file *f, weir_error *err)
{
    if (base_fault(f->env, BASE_FAULT_DIRECT_IO, NULL)) return WEIR_OK;
    int fd = open(f->path, O_RDONLY | O_DIRECT | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return WEIR_OK;
    void *buf = NULL;
    weir_status status = WEIR_OK;
    struct stat st;
    /* The path may name another file by now. */
    if (fstat(fd, &st) != 0 || st.st_ino != f->seen.st_ino || st.st_dev != f->seen.st_dev) goto none;
    int64_t align = ask_direct_align(fd);
    if (align == 0) goto none;
    weir_error local = {0};
    buf = base_pages_alloc(f->env, BASE_TAG_IO, 2 * PROBE_BYTES, false, &local);
    if (buf == NULL) {
        status = local.code;
        if (err != NULL) *err = local;
        goto none;
    }
    if (align < 0) align = direct_read_works(fd, (char *)buf + 512, 512, 0) ? 512 : PROBE_BYTES;
    if (align > PROBE_BYTES || !direct_read_works(fd, buf, PROBE_BYTES, 0)) goto none;
    f->direct_fd = fd;
    f->direct_align = (uint32_t)base_max((uint64_t)align, 512);
    base_pages_free(f->env, BASE_TAG_IO, buf, 2 * PROBE_BYTES);
    return WEIR_OK;

none:
    base_pages_free(f->env, BASE_TAG_IO, buf, 2 * PROBE_BYTES);
    close(fd);
    return status;
}

static weir_status open_remote(base_file *f, weir_error *err)
{
    weir_status status = base_remote_open(f->env, f->path, &f->remote, err);
    if (status != WEIR_OK) return status;
    f->fd = base_remote_fd(f->remote);
    f->seen.st_size = (off_t)base_remote_size(f->remote);
    f->direct_align = 512; /* what plans are made for: the file on a usual disk */
    return WEIR_OK;
}

weir_status base_file_open(base_env *env, const char *path, base_file **out, weir_error *err)
{
    weir_error local = {0};
    base_file *f = base_alloc(env, BASE_TAG_IO, sizeof *f, &local);
    if (f == NULL) goto fail;
    f->env = env;
    f->fd = f->direct_fd = -1;
    f->path = base_strdup(env, BASE_TAG_IO, path, &local);
    if (f->path == NULL) goto fail;
    if (base_path_is_url(path)) {
        if (open_remote(f, &local) != WEIR_OK) goto fail;
        *out = f;
        return WEIR_OK;
    }
    /* Non-blocking, so that a named pipe cannot hold us up; regular files do not care. */
    int fd = open_retry(env, path, O_RDONLY | O_NONBLOCK, 0);
    if (fd < 0) {
        fail_errno(&local, -fd, "opening", path);
        goto fail;
    }
    f->fd = fd;
    if (fstat(fd, &f->seen) != 0) {
        fail_errno(&local, errno, "asking for the size", path);
        goto fail;
    }
    if (!S_ISREG(f->seen.st_mode)) {
        base_fail(&local, WEIR_ERR_FORMAT, "%s: %s, not a regular file; name the model file itself%s", path,
                  S_ISDIR(f->seen.st_mode) ? "a directory" : "a device, pipe or socket",
                  S_ISDIR(f->seen.st_mode) ? ", or a folder with config.json and safetensors" : "");
        goto fail;
    }
    if (f->seen.st_size <= 0) {
        base_fail(&local, WEIR_ERR_FORMAT, "%s: the file is empty; download or create it again", path);
        goto fail;
    }
    if (open_direct(f, &local) != WEIR_OK) goto fail;
    *out = f;
    return WEIR_OK;

fail:
    base_file_close(f);
    if (err != NULL) *err = local;
    return local.code;
}

void base_file_close(base_file *f)
{
    if (f == NULL) return;
    if (f->direct_fd >= 0) close(f->direct_fd);
    if (f->fd >= 0 && f->remote == NULL) close(f->fd);
    base_remote_close(f->remote);
    base_free(f->env, f->path);
    base_free(f->env, f);
}

const char *base_file_path(const base_file *f)
{
    return f->path;
}

uint64_t base_file_size(const base_file *f)
{
    return (uint64_t)f->seen.st_size;
}

uint32_t base_file_direct_align(const base_file *f)
{
    return f->direct_align;
}

bool base_file_is_remote(const base_file *f)
{
    return f->remote != NULL;
}

void base_file_seal(base_file *f)
{
    if (f->remote != NULL) base_remote_seal(f->remote);
}

/* Queued reads and mappings would find holes in a remote file. */
int base_file_fd(const base_file *f)
{
    return f->remote == NULL ? f->fd : -1;
}

int base_file_direct_fd(const base_file *f)
{
    return f->direct_fd;
}

static bool same_file(const struct stat *a, const struct stat *b)
{
    return a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec && a->st_ino == b->st_ino && a->st_dev == b->st_dev;
}

static weir_status fail_changed(const base_file *f, const struct stat *now, weir_error *err)
{
    if (now->st_ino != f->seen.st_ino || now->st_dev != f->seen.st_dev)
        return base_fail(err, WEIR_ERR_FILE_CHANGED,
                         "%s: another file took this name since it was opened; load the model again",
                         f->path);
    return base_fail(
        err, WEIR_ERR_FILE_CHANGED,
        "%s: the file was changed since it was opened (then %lld bytes, now %lld); load the model "
        "again",
        f->path, (long long)f->seen.st_size, (long long)now->st_size);
}

weir_status base_file_check_open(const base_file *f, weir_error *err)
{
    struct stat now;
    if (f->remote != NULL) return WEIR_OK; /* each request was checked */
    if (fstat(f->fd, &now) != 0) return fail_errno(err, errno, "asking for the size", f->path);
    return same_file(&f->seen, &now) ? WEIR_OK : fail_changed(f, &now, err);
}

weir_status base_file_check(const base_file *f, weir_error *err)
{
    weir_status status = base_file_check_open(f, err);
    if (status != WEIR_OK) return status;
    /* A name that is gone is no change: the open file still has its bytes. */
    struct stat now;
    if (f->remote != NULL || stat(f->path, &now) != 0 || same_file(&f->seen, &now)) return WEIR_OK;
    return fail_changed(f, &now, err);
}

weir_status base_file_fail_end(const base_file *f, uint64_t offset, uint64_t wanted, uint64_t got,
                               weir_error *err)
{
    weir_status status = base_file_check_open(f, err);
    if (status != WEIR_OK) {
        char said[WEIR_ERROR_MESSAGE_BYTES];
        memcpy(said, err != NULL ? err->message : "", err != NULL ? sizeof said : 1);
        return base_fail(err, status, "%s (wanted %llu bytes at offset %llu, got %llu)", said,
                         (unsigned long long)wanted, (unsigned long long)offset, (unsigned long long)got);
    }
    return base_fail(err, WEIR_ERR_TRUNCATED,
                     "%s: the file ends early: wanted %llu bytes at offset %llu, got %llu (file size %llu); "
                     "download it again",
                     f->path, (unsigned long long)wanted, (unsigned long long)offset, (unsigned long long)got,
                     (unsigned long long)base_file_size(f));
}

#define NO_OFFSET UINT64_MAX

/* pread() with fault point, or read() where offset is NO_OFFSET: bytes read, or -errno. */
static int64_t read_some(base_env *env, int fd, uint64_t offset, void *buf, uint64_t len)
{
    base_fault_rule rule;
    if (base_fault(env, BASE_FAULT_READ, &rule)) {
        if (rule.missing > 0)
            len -= base_min(len, (uint64_t)rule.missing);
        else if (rule.length < 0)
            return -(rule.error != 0 ? rule.error : EIO);
        else
            len = base_min(len, (uint64_t)rule.length);
    }
    if (len == 0) return 0;
    len = base_min(len, MAX_READ_BYTES);
    ssize_t n = offset == NO_OFFSET ? read(fd, buf, len) : pread(fd, buf, len, (off_t)offset);
    return n >= 0 ? n : -errno;
}

int64_t base_file_read_direct(const base_file *f, uint64_t offset, void *buf, uint64_t len)
{
    return read_some(f->env, f->direct_fd, offset, buf, len);
}

weir_status base_file_read(base_file *f, uint64_t offset, void *buf, size_t len, weir_error *err)
{
    size_t got = 0;
    int tries = 0;
    uint64_t end;
    if (!base_add(offset, len, &end) || end > INT64_MAX) return base_file_fail_end(f, offset, len, 0, err);
    if (f->remote != NULL) {
        if (end > base_file_size(f)) return base_file_fail_end(f, offset, len, 0, err);
        weir_status status = base_remote_ensure(f->remote, end, err);
        if (status != WEIR_OK) return status;
    }
    while (got < len) {
        int64_t n = read_some(f->env, f->fd, offset + got, (char *)buf + got, len - got);
        if (n == 0) return base_file_fail_end(f, offset, len, got, err);
        if (n > 0) {
            got += (size_t)n;
            tries = 0;
        } else if (!base_errno_retry((int)-n, &tries)) {
            char text[128];
            return base_fail(err, WEIR_ERR_IO,
                             "%s: reading %zu bytes at offset %llu failed after %zu: %s; check the disk",
                             f->path, len, (unsigned long long)offset, got, base_errno_text((int)-n, text));
        }
    }
    return base_file_check_open(f, err);
}

void base_file_drop_cache(base_file *f, uint64_t offset, uint64_t len)
{
    if (len == 0 || f->remote != NULL) return;
    /* Outward to whole pages: the kernel leaves pages alone that the range covers in part only. */
    uint64_t begin = base_align_down(offset, 4096);
    uint64_t end;
    if (!base_add(offset, len, &end) || end > INT64_MAX - 4096) end = INT64_MAX - 4096;
    end = base_align_up(end, 4096);
    if (begin < end) posix_fadvise(f->fd, (off_t)begin, (off_t)(end - begin), POSIX_FADV_DONTNEED);
}

/* Reads until the end of fd into a block that grows up to max_bytes + 1. */
static weir_status slurp_fd(base_env *env, int fd, const char *path, size_t max_bytes, char **out,
                            size_t *len, weir_error *err)
{
    size_t cap = 0, got = 0;
    char *data = NULL;
    int tries = 0;
    weir_status status;
    for (;;) {
        if (got + 1 >= cap) {
            cap = cap == 0 ? (size_t)base_min(4096, (uint64_t)max_bytes + 2) : cap * 2;
            weir_error local = {0};
            char *bigger = base_realloc(env, BASE_TAG_RUNTIME, data, cap, &local);
            if (bigger == NULL) {
                if (err != NULL) *err = local;
                status = local.code;
                goto fail;
            }
            data = bigger;
        }
        int64_t n = read_some(env, fd, NO_OFFSET, data + got, cap - 1 - got);
        if (n == 0) break;
        if (n < 0) {
            if (base_errno_retry((int)-n, &tries)) continue;
            status = fail_errno(err, (int)-n, "reading", path);
            goto fail;
        }
        got += (size_t)n;
        if (got > max_bytes) {
            status = base_fail(err, WEIR_ERR_FORMAT, "%s: more than the %zu bytes that such a file may have",
                               path, max_bytes);
            goto fail;
        }
    }
    data[got] = '\0';
    *out = data;
    if (len != NULL) *len = got;
    return WEIR_OK;

fail:
    base_free(env, data);
    return status;
}

weir_status base_file_slurp(base_env *env, const char *path, size_t max_bytes, char **out, size_t *len,
                            weir_error *err)
{
    if (max_bytes > SIZE_MAX / 4) max_bytes = SIZE_MAX / 4;
    if (base_path_is_url(path)) return base_remote_slurp(env, path, max_bytes, out, len, err);
    /* Non-blocking for the same reason as above. */
    int fd = open_retry(env, path, O_RDONLY | O_NONBLOCK, 0);
    if (fd < 0) return fail_errno(err, -fd, "opening", path);
    struct stat st;
    weir_status status;
    if (fstat(fd, &st) == 0 && (S_ISFIFO(st.st_mode) || S_ISSOCK(st.st_mode)))
        status = base_fail(err, WEIR_ERR_FORMAT, "%s: a pipe or socket, not a file; put a file in its place",
                           path);
    else
        status = slurp_fd(env, fd, path, max_bytes, out, len, err);
    close(fd);
    return status;
}

bool base_file_exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0;
}

bool base_file_exists_at(base_env *env, const char *path)
{
    base_remote *r;
    weir_error none;
    if (!base_path_is_url(path)) return base_file_exists(path);
    if (base_remote_open(env, path, &r, &none) != WEIR_OK) return false;
    base_remote_close(r);
    return true;
}

bool base_file_is_at(const base_file *f, const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && st.st_ino == f->seen.st_ino && st.st_dev == f->seen.st_dev;
}
