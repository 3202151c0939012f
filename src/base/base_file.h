/* Files: the only place that opens and reads. A file remembers size, mtime and inode; when they change
 * while we run, reads report FILE_CHANGED instead of wrong weights. Mapping is another thing: base_map.h. */
#ifndef WEIR_BASE_FILE_H
#define WEIR_BASE_FILE_H

#include "base_env.h"

typedef struct base_file base_file;

/* Opens a regular file for reading, or the front of one on a server where path is an http or https address:
 * base_file_read then fetches what is missing, up to 256 MiB; nothing else reads such a file. Errors:
 * NOT_FOUND, PERMISSION, IO, FORMAT (a directory, an empty file), and those of base_remote.h. */
weir_status base_file_open(base_env *env, const char *path, base_file **out, weir_error *err);
void base_file_close(base_file *f); /* takes NULL */

/* Begins with http:// or https://. */
bool base_path_is_url(const char *path);
bool base_file_is_remote(const base_file *f);
/* All that is needed of a remote file was read: from now on nothing more is fetched. */
void base_file_seal(base_file *f);

const char *base_file_path(const base_file *f);
uint64_t base_file_size(const base_file *f);
/* Alignment of offset, length and address for direct reads, or 0 where the file system refuses them. */
uint32_t base_file_direct_align(const base_file *f);

/* Reads exactly len bytes through the page cache, or fails: TRUNCATED, IO, FILE_CHANGED. Thread-safe. */
weir_status base_file_read(base_file *f, uint64_t offset, void *buf, size_t len, weir_error *err);
/* FILE_CHANGED when size, mtime or inode differ from those at opening. */
weir_status base_file_check(const base_file *f, weir_error *err);
/* Tells the kernel that the cached pages of this range are not wanted any more. */
void base_file_drop_cache(base_file *f, uint64_t offset, uint64_t len);

/* Output files: written beside the target under a temporary name; commit renames, destroy without commit
 * removes. Sequential only. */
typedef struct base_writer base_writer;
weir_status base_writer_create(base_env *env, const char *path, base_writer **out, weir_error *err);
weir_status base_writer_write(base_writer *w, const void *data, size_t len, weir_error *err);
uint64_t base_writer_offset(const base_writer *w);
weir_status base_writer_commit(base_writer *w, weir_error *err);
void base_writer_destroy(base_writer *w); /* takes NULL */
/* Commit then fails (INVALID_ARGUMENT) where the target exists by that time, and leaves it alone. */
void base_writer_keep_existing(base_writer *w);
/* Bytes that a file of this name could get on its disk; UINT64_MAX where the system does not say. */
uint64_t base_disk_free(const char *path);

/* A whole small file (configuration, prompt) as a NUL-terminated string; refuses more than max_bytes. */
weir_status base_file_slurp(base_env *env, const char *path, size_t max_bytes, char **out, size_t *len,
                            weir_error *err);
bool base_file_exists(const char *path);
/* The same where path may be an address: one small request. */
bool base_file_exists_at(base_env *env, const char *path);
/* Whether a path names the file that is open, by whatever link. */
bool base_file_is_at(const base_file *f, const char *path);
/* Makes a folder where there is none yet. Errors: PERMISSION, IO (something else has the name, no parent). */
weir_status base_folder_make(const char *path, weir_error *err);

#endif
