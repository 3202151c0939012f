/* Lists of processors, "0,2-3", and threads bound to them. */
#ifndef WEIR_BASE_CPUS_H
#define WEIR_BASE_CPUS_H

#include "base_env.h"

#define BASE_CPUS_MAX 1024u /* what the system's fixed set can name */

/* Which processors a pool may use; n = 0: all that the process may, and nobody is bound. */
typedef struct base_cpus {
    uint32_t n;
    uint16_t index[BASE_CPUS_MAX]; /* ascending, each once */
} base_cpus;

/* What a thread was bound to before; n_bytes = 0: it was left alone. */
typedef struct base_affinity {
    size_t n_bytes;
    _Alignas(8) unsigned char mask[BASE_CPUS_MAX / 8];
} base_affinity;

/* "all", or numbers and ranges with commas between; each of them must be one that the calling thread may use
 * (affinity mask, and with it the cpuset of a control group). INVALID_ARGUMENT with the list that there is.
 */
weir_status base_cpus_parse(const char *text, base_cpus *out, weir_error *err);
/* As base_cpus_parse reads it, cut to size. Returns buf. */
const char *base_cpus_text(const base_cpus *cpus, char *buf, size_t size);
/* Binds the calling thread as worker `worker` of n_threads: each to a processor of its own, or all to the
 * whole set where threads outnumber processors. saved (may be NULL) takes what was before. A refusal by the
 * system is passed over: binding changes speed, not results. */
void base_cpus_bind(const base_cpus *cpus, uint32_t worker, uint32_t n_threads, base_affinity *saved);
/* Undoes base_cpus_bind on the same thread. */
void base_cpus_restore(const base_affinity *saved);

#endif
