/* What the files of base share among themselves and nobody else sees. */
#ifndef WEIR_BASE_INTERNAL_H
#define WEIR_BASE_INTERNAL_H

#include "base_alloc.h"
#include "base_cpus.h"
#include "base_fault.h"
#include "base_file.h"
#include "base_probe.h"

#include <pthread.h>

/* How often an interrupted or refused call is tried again before it counts as failed. */
#define BASE_RETRIES 64

/* The ledger's own life; base_env owns it. NULL when the system refuses. */
base_ledger *base_ledger_create(void);
void base_ledger_destroy(base_ledger *ledger);

/* The text of an errno, safe with threads. buf holds at least 128 bytes; returns buf or a constant. */
const char *base_errno_text(int error, char *buf);
/* The status that fits an errno of opening, reading or writing. */
weir_status base_errno_status(int error);
/* True for EINTR, EAGAIN and EBUSY while *tries is below BASE_RETRIES; counts, and waits a little when it is
 * not a mere interruption. */
bool base_errno_retry(int error, int *tries);

/* Starts a thread with all signals blocked but those that it raises itself, and a stack of stack_bytes, which
 * are booked under PROCESS. Errors: THREAD, BUDGET. Join with base_thread_join and the same stack_bytes.
 * Fault site: "thread_create".
 */
weir_status base_thread_start(base_env *env, void *(*main)(void *), void *arg, const char *name,
                              size_t stack_bytes, pthread_t *out, weir_error *err);
void base_thread_join(base_env *env, pthread_t thread, size_t stack_bytes);

/* As base_cpus_bind, for another thread; where there is no list, to what `unbound` holds. */
void base_cpus_bind_thread(pthread_t thread, const base_cpus *cpus, uint32_t worker, uint32_t n_threads,
                           const base_affinity *unbound);
/* What the calling thread may use. */
void base_affinity_read(base_affinity *out);

/* Descriptors for queued reads: direct is -1 where direct reads do not work. */
int base_file_fd(const base_file *f);
int base_file_direct_fd(const base_file *f);
/* As base_file_check, but asks the open descriptor only and not the path: cheap enough for every read. */
weir_status base_file_check_open(const base_file *f, weir_error *err);
/* One pread past the page cache, where base_file_direct_align is not 0: bytes, or -errno. Offset, length and
 * address are multiples of it. */
int64_t base_file_read_direct(const base_file *f, uint64_t offset, void *buf, uint64_t len);
/* The error of a read that met the end of the file: FILE_CHANGED when the file shrank since, else TRUNCATED.
 */
weir_status base_file_fail_end(const base_file *f, uint64_t offset, uint64_t wanted, uint64_t got,
                               weir_error *err);

/* Fills what a measurement is remembered under, and zeroes the rest. by_threads: what the queue really is. */
weir_status base_storage_identify(const base_file *file, const base_aio_options *aio, bool by_threads,
                                  base_storage *s, weir_error *err);

/* Processors that the CPU quotas of all control groups above this process allow, rounded; UINT32_MAX: no
 * quota. */
uint32_t base_cgroup_cpus(const char *proc_root, const char *cgroup_root);

#endif
