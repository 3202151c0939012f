/* Helpers of the tests of base: an environment that must end empty, temporary folders, files with known
 * bytes. */
#ifndef WEIR_BASE_TEST_H
#define WEIR_BASE_TEST_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/base.h"

#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* What a test gets in *state. */
typedef struct fixture {
    base_env *env;
    weir_error err;
    char folder[128]; /* temporary, emptied and removed afterwards */
} fixture;

/* A path in the fixture's folder. Two may be in use at a time. */
static inline const char *path_in(const fixture *f, const char *name)
{
    static char paths[2][512];
    static int turn;
    turn = 1 - turn;
    snprintf(paths[turn], sizeof paths[turn], "%s/%s", f->folder, name);
    return paths[turn];
}

static inline int fixture_setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    if (f == NULL) return -1;
    const char *base = getenv("TMPDIR");
    snprintf(f->folder, sizeof f->folder, "%s/weir-test-XXXXXX", base != NULL ? base : "/tmp");
    if (mkdtemp(f->folder) == NULL || base_env_create(&f->env, &f->err) != WEIR_OK) return -1;
    *state = f;
    return 0;
}

static inline int remove_entry(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st;
    (void)type;
    (void)at;
    return remove(path);
}

static inline void remove_tree(const char *folder)
{
    nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

static inline int fixture_teardown(void **state)
{
    fixture *f = *state;
    base_ledger_view v;
    base_ledger_read(f->env, &v);
    base_env_destroy(f->env);
    remove_tree(f->folder);
    free(f);
    if (v.bytes != 0) print_error("%llu bytes still booked at the end\n", (unsigned long long)v.bytes);
    return v.bytes == 0 ? 0 : -1;
}

static inline uint64_t booked(base_env *env)
{
    base_ledger_view v;
    base_ledger_read(env, &v);
    return v.bytes;
}

/* Writes a file, with its folders. */
static inline void write_file(const char *path, const void *data, size_t len)
{
    char folder[1024];
    snprintf(folder, sizeof folder, "%s", path);
    for (char *p = folder + 1; *p != '\0'; p++) {
        if (*p != '/') continue;
        *p = '\0';
        mkdir(folder, 0755);
        *p = '/';
    }
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    assert_true(fd >= 0);
    for (size_t done = 0; done < len;) {
        ssize_t n = write(fd, (const char *)data + done, len - done);
        assert_true(n > 0);
        done += (size_t)n;
    }
    assert_int_equal(close(fd), 0);
}

static inline void write_text(const char *path, const char *text)
{
    write_file(path, text, strlen(text));
}

/* len bytes that differ at every offset, so that a read from the wrong place shows. */
static inline unsigned char *pattern(size_t len)
{
    unsigned char *data = malloc(len + 1);
    assert_non_null(data);
    base_rng rng;
    base_rng_seed(&rng, 20240229, 7);
    for (size_t i = 0; i < len; i++) data[i] = (unsigned char)(base_rng_u32(&rng) >> 11);
    return data;
}

static inline base_fault_rule rule_of(base_fault_site site, uint64_t after, bool for_good)
{
    return (base_fault_rule){.site = site, .after = after, .for_good = for_good, .length = -1};
}

#define assert_status(call, wanted)                                                                          \
    do {                                                                                                     \
        weir_status status_ = (call);                                                                        \
        if (status_ != (wanted)) print_error("%s: %s\n", weir_status_name(status_), fix->err.message);       \
        assert_int_equal(status_, (wanted));                                                                 \
    } while (0)

#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)

#endif
