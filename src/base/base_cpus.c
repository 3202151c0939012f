/* Lists of processors, and binding to them. */
#define _GNU_SOURCE
#include "base_cpus.h"
#include "base_internal.h"

#include <assert.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static_assert(sizeof(cpu_set_t) * 8 >= BASE_CPUS_MAX, "the system's set has room for all");
static_assert(sizeof(cpu_set_t) <= sizeof(((base_affinity *)NULL)->mask), "a mask can be kept");

static void cpus_of_set(const cpu_set_t *set, base_cpus *out)
{
    out->n = 0;
    for (uint32_t i = 0; i < BASE_CPUS_MAX; i++)
        if (CPU_ISSET(i, set)) out->index[out->n++] = (uint16_t)i;
}

const char *base_cpus_text(const base_cpus *cpus, char *buf, size_t size)
{
    size_t used = 0;
    if (size == 0) return buf;
    snprintf(buf, size, "%s", cpus->n == 0 ? "all" : "");
    for (uint32_t i = 0, end; i < cpus->n && used < size; i = end) {
        const char *comma = i != 0 ? "," : "";
        for (end = i + 1; end < cpus->n && cpus->index[end] == cpus->index[end - 1] + 1;) end++;
        if (end - i == 1)
            used += (size_t)snprintf(buf + used, size - used, "%s%u", comma, cpus->index[i]);
        else
            used += (size_t)snprintf(buf + used, size - used, "%s%u-%u", comma, cpus->index[i],
                                     cpus->index[end - 1]);
    }
    return buf;
}

/* A number below BASE_CPUS_MAX; moves *text behind it. */
static bool read_number(const char **text, uint32_t *out)
{
    const char *p = *text;
    *out = 0;
    if (*p < '0' || *p > '9') return false;
    for (; *p >= '0' && *p <= '9'; p++) {
        *out = *out * 10 + (uint32_t)(*p - '0');
        if (*out >= BASE_CPUS_MAX) return false;
    }
    *text = p;
    return true;
}

static bool read_list(const char *p, cpu_set_t *set)
{
    CPU_ZERO(set);
    for (;;) {
        uint32_t from, to;
        if (!read_number(&p, &from)) return false;
        to = from;
        if (*p == '-') {
            p++;
            if (!read_number(&p, &to) || to < from) return false;
        }
        for (uint32_t i = from; i <= to; i++) CPU_SET(i, set);
        if (*p == '\0') return true;
        if (*p++ != ',') return false;
    }
}

weir_status base_cpus_parse(const char *text, base_cpus *out, weir_error *err)
{
    cpu_set_t wanted, there;
    char list[160];
    out->n = 0;
    if (strcmp(text, "all") == 0) return WEIR_OK;
    if (!read_list(text, &wanted))
        return base_fail(
            err, WEIR_ERR_INVALID_ARGUMENT,
            "processors \"%.80s\": wanted is a list such as 0,2-3 of numbers below %u, or all (--cpus, "
            "setting compute.cpus)",
            text, BASE_CPUS_MAX);
    cpus_of_set(&wanted, out);
    if (sched_getaffinity(0, sizeof there, &there) != 0) return WEIR_OK; /* more than the set can name */
    for (uint32_t i = 0; i < out->n; i++) {
        base_cpus have;
        uint32_t missing = out->index[i];
        if (CPU_ISSET(missing, &there)) continue;
        cpus_of_set(&there, &have);
        out->n = 0;
        return base_fail(
            err, WEIR_ERR_INVALID_ARGUMENT,
            "processors \"%.80s\": this process may not use processor %u; it has %s (--cpus, setting "
            "compute.cpus)",
            text, missing, base_cpus_text(&have, list, sizeof list));
    }
    return WEIR_OK;
}

/* Each worker to a processor of its own, or all to the whole list where they outnumber it. */
static void set_of_worker(const base_cpus *cpus, uint32_t worker, uint32_t n_threads, cpu_set_t *set)
{
    CPU_ZERO(set);
    if (n_threads <= cpus->n)
        CPU_SET(cpus->index[worker], set);
    else
        for (uint32_t i = 0; i < cpus->n; i++) CPU_SET(cpus->index[i], set);
}

void base_affinity_read(base_affinity *out)
{
    cpu_set_t set;
    out->n_bytes = 0;
    if (sched_getaffinity(0, sizeof set, &set) != 0) return;
    out->n_bytes = sizeof set;
    memcpy(out->mask, &set, sizeof set);
}

void base_cpus_bind(const base_cpus *cpus, uint32_t worker, uint32_t n_threads, base_affinity *saved)
{
    cpu_set_t set;
    if (saved != NULL) saved->n_bytes = 0;
    if (cpus == NULL || cpus->n == 0) return;
    if (saved != NULL) base_affinity_read(saved);
    set_of_worker(cpus, worker, n_threads, &set);
    (void)sched_setaffinity(0, sizeof set, &set);
}

void base_cpus_bind_thread(pthread_t thread, const base_cpus *cpus, uint32_t worker, uint32_t n_threads,
                           const base_affinity *unbound)
{
    cpu_set_t set;
    if (cpus->n != 0) {
        set_of_worker(cpus, worker, n_threads, &set);
        (void)pthread_setaffinity_np(thread, sizeof set, &set);
    } else if (unbound->n_bytes != 0) {
        (void)pthread_setaffinity_np(thread, unbound->n_bytes,
                                     (const cpu_set_t *)(const void *)unbound->mask);
    }
}

void base_cpus_restore(const base_affinity *saved)
{
    if (saved->n_bytes != 0)
        (void)sched_setaffinity(0, saved->n_bytes, (const cpu_set_t *)(const void *)saved->mask);
}
