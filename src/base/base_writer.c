/* Output files: a temporary name beside the target until commit, so that nobody ever sees half a file. */
#define _GNU_SOURCE
#include "base_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define WRITER_BUFFER_BYTES (64 << 10)
#define NAME_ATTEMPTS       64
/* So much is on its way to the disk while as much is written behind it; what has arrived leaves the page
 * cache, where a large file would push out everything else. */
#define WINDOW_BYTES (UINT64_C(8) << 20)

struct base_writer {
    base_env *env;
    char *path;
    char *temporary;
    int fd;
    bool failed; /* a write failed: commit must not succeed */
    bool keep_existing;
    uint64_t in_file; /* bytes handed to the system */
    uint64_t started; /* of them, told to go to the disk */
    uint64_t offset;
    size_t held; /* bytes in buffer */
    char buffer[WRITER_BUFFER_BYTES];
};

static weir_status fail_write(base_writer *w, int error, const char *what, weir_error *err)
{
    char text[128];
    w->failed = true;
    weir_status code = base_errno_status(error);
    if (code == WEIR_ERR_OUT_OF_MEMORY) code = WEIR_ERR_IO;
    return base_fail(err, code,
                     "%s: %s failed at offset %llu: %s; check the folder, its owner and the free space",
                     w->path, what, (unsigned long long)w->offset, base_errno_text(error, text));
}

/* Creates the temporary file under a name that nobody has. */
static weir_status open_temporary(base_writer *w, size_t cap, weir_error *err)
{
    base_fault_rule rule;
    if (base_fault(w->env, BASE_FAULT_OPEN, &rule))
        return fail_write(w, rule.error != 0 ? rule.error : EIO, "creating", err);
    int error = EEXIST;
    for (int i = 0; i < NAME_ATTEMPTS && error == EEXIST; i++) {
        snprintf(w->temporary, cap, "%s.partial-%ld-%d", w->path, (long)getpid(), i);
        w->fd = open(w->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (w->fd >= 0) return WEIR_OK;
        error = errno;
    }
    w->temporary[0] = '\0'; /* not ours: destroy must not remove it */
    return fail_write(w, error, "creating", err);
}

/* The rename would put a file in the place of a device or pipe, and fail on a folder only when all is
 * written. */
static weir_status check_target(const char *path, weir_error *err)
{
    struct stat st;
    if (stat(path, &st) != 0 || S_ISREG(st.st_mode)) return WEIR_OK;
    return base_fail(err, WEIR_ERR_IO, "%s: %s, not a regular file; name a file to write the output to", path,
                     S_ISDIR(st.st_mode) ? "a directory" : "a device, pipe or socket");
}

weir_status base_writer_create(base_env *env, const char *path, base_writer **out, weir_error *err)
{
    weir_error local = {0};
    base_writer *w = base_alloc(env, BASE_TAG_IO, sizeof *w, &local);
    if (w == NULL) goto fail;
    w->env = env;
    w->fd = -1;
    w->path = base_strdup(env, BASE_TAG_IO, path, &local);
    if (w->path == NULL) goto fail;
    size_t cap = strlen(path) + 48;
    w->temporary = base_alloc(env, BASE_TAG_IO, cap, &local);
    if (w->temporary == NULL) goto fail;
    if (check_target(path, &local) != WEIR_OK) goto fail;
    if (open_temporary(w, cap, &local) != WEIR_OK) goto fail;
    *out = w;
    return WEIR_OK;

fail:
    base_writer_destroy(w);
    if (err != NULL) *err = local;
    return local.code;
}

/* A hint: errors show in the next write or when the file is committed. */
static void write_behind(base_writer *w, uint64_t written)
{
    w->in_file += written;
    if (w->in_file - w->started < WINDOW_BYTES) return;
    off_t begin = (off_t)w->started, len = (off_t)(w->in_file - w->started);
    sync_file_range(w->fd, begin, len, SYNC_FILE_RANGE_WRITE);
    if (w->started >= WINDOW_BYTES) {
        sync_file_range(w->fd, 0, begin,
                        SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
        posix_fadvise(w->fd, 0, begin, POSIX_FADV_DONTNEED);
    }
    w->started = w->in_file;
}

static weir_status write_all(base_writer *w, const char *data, size_t len, weir_error *err)
{
    int tries = 0;
    while (len != 0) {
        ssize_t n = write(w->fd, data, base_min(len, UINT64_C(1) << 30));
        if (n > 0) {
            data += n;
            len -= (size_t)n;
            write_behind(w, (uint64_t)n);
            tries = 0;
            continue;
        }
        int error = n == 0 ? EIO : errno;
        if (!base_errno_retry(error, &tries)) return fail_write(w, error, "writing", err);
    }
    return WEIR_OK;
}

static weir_status flush(base_writer *w, weir_error *err)
{
    size_t held = w->held;
    w->held = 0;
    return write_all(w, w->buffer, held, err);
}

weir_status base_writer_write(base_writer *w, const void *data, size_t len, weir_error *err)
{
    if (w->failed)
        return base_fail(err, WEIR_ERR_IO, "%s: an earlier write failed; create the file again", w->path);
    weir_status status = WEIR_OK;
    if (len > WRITER_BUFFER_BYTES - w->held) status = flush(w, err);
    if (status == WEIR_OK && len >= WRITER_BUFFER_BYTES) {
        status = write_all(w, data, len, err);
    } else if (status == WEIR_OK && len != 0) {
        memcpy(w->buffer + w->held, data, len);
        w->held += len;
    }
    if (status == WEIR_OK) w->offset += len;
    return status;
}

uint64_t base_writer_offset(const base_writer *w)
{
    return w->offset;
}

/* The temporary file gets its name; what had it before is replaced, unless it is to be kept. */
static int put_in_place(base_writer *w)
{
    int rc = w->keep_existing ? renameat2(AT_FDCWD, w->temporary, AT_FDCWD, w->path, RENAME_NOREPLACE)
                              : rename(w->temporary, w->path);
    /* Some file systems cannot do that in one step. */
    if (rc != 0 && w->keep_existing && (errno == EINVAL || errno == ENOSYS)) {
        if (base_file_exists(w->path)) {
            errno = EEXIST;
            return -1;
        }
        rc = rename(w->temporary, w->path);
    }
    if (rc == 0) w->temporary[0] = '\0';
    return rc;
}

weir_status base_writer_commit(base_writer *w, weir_error *err)
{
    if (w->failed || w->fd < 0)
        return base_fail(err, WEIR_ERR_IO, "%s: an earlier write failed or the file is committed already",
                         w->path);
    weir_status status = flush(w, err);
    if (status != WEIR_OK) return status;
    /* The data before the name: after a power cut there is the old file or the whole new one. */
    if (fsync(w->fd) != 0 && errno != EINVAL) return fail_write(w, errno, "writing to the disk", err);
    if (close(w->fd) != 0 && errno != EINTR) {
        w->fd = -1;
        return fail_write(w, errno, "closing", err);
    }
    w->fd = -1;
    if (put_in_place(w) != 0 && w->keep_existing && errno == EEXIST) {
        w->failed = true;
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT,
                         "%s: there is a file of this name by now; it was left alone", w->path);
    }
    if (w->temporary[0] != '\0') return fail_write(w, errno, "renaming", err);
    return WEIR_OK;
}

void base_writer_keep_existing(base_writer *w)
{
    w->keep_existing = true;
}

uint64_t base_disk_free(const char *path)
{
    const char *slash = strrchr(path, '/');
    char folder[4096];
    struct statvfs v;
    int n = slash == NULL ? snprintf(folder, sizeof folder, ".")
                          : snprintf(folder, sizeof folder, "%.*s/", (int)(slash - path), path);
    if (n < 0 || (size_t)n >= sizeof folder || statvfs(folder, &v) != 0) return UINT64_MAX;
    uint64_t bytes;
    return base_mul(v.f_bavail, v.f_frsize, &bytes) ? bytes : UINT64_MAX;
}

void base_writer_destroy(base_writer *w)
{
    if (w == NULL) return;
    if (w->fd >= 0) close(w->fd);
    if (w->temporary != NULL && w->temporary[0] != '\0') unlink(w->temporary);
    base_free(w->env, w->temporary);
    base_free(w->env, w->path);
    base_free(w->env, w);
}

weir_status base_folder_make(const char *path, weir_error *err)
{
    struct stat st;
    if (mkdir(path, 0777) == 0) return WEIR_OK;
    int error = errno;
    if (error == EEXIST && stat(path, &st) == 0 && S_ISDIR(st.st_mode)) return WEIR_OK;
    return base_fail(err, error == EACCES || error == EPERM ? WEIR_ERR_PERMISSION : WEIR_ERR_IO,
                     "%s: the folder cannot be made: %s", path, strerror(error));
}
