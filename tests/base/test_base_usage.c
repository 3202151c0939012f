/* The kernel's accounts, from copies of its files for both versions of control groups, and from our own
 * process (R14.5); SHA-256 against the standard's vectors. */
#include "base_test.h"

#include "base/base.h"

#include <sys/stat.h>
#include <unistd.h>

static char root[256];

static void put(const char *name, const char *text)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *p = path + strlen(root) + 1; (p = strchr(p, '/')) != NULL; p++) {
        *p = '\0';
        mkdir(path, 0700);
        *p = '/';
    }
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static int make_root(void **state)
{
    (void)state;
    snprintf(root, sizeof root, "/tmp/weir-usage-XXXXXX");
    if (mkdtemp(root) == NULL) return -1;
    put("proc/77/status", "Name:\tx\nVmHWM:\t    3000 kB\nVmRSS:\t    2000 kB\nVmSwap:\t       8 kB\n");
    put("proc/77/smaps_rollup",
        "55d0-7ffc ---p 00000000 00:00 0 [rollup]\nRss:  2000 kB\nPss:  1500 kB\nPss_Anon:  1000 kB\n"
        "Pss_File:  500 kB\nPrivate_Clean:  100 kB\nPrivate_Dirty:  900 kB\n");
    put("proc/77/stat", "77 (a) b) c) R 1 2 3 4 5 6 1234 8 56 10 11 12\n");
    put("proc/meminfo", "MemTotal: 2000000 kB\nMemFree: 10 kB\nMemAvailable: 1000 kB\nCached: 900 kB\n"
                        "SwapTotal: 64 kB\nSwapFree: 32 kB\n");
    put("proc/pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=700\n"
                                "full avg10=0.00 avg60=0.00 avg300=0.00 total=300\n");
    return 0;
}

static int drop_root(void **state)
{
    (void)state;
    char command[300];
    snprintf(command, sizeof command, "rm -rf %s", root);
    return system(command);
}

static void read_usage(base_usage *u, int64_t pid)
{
    char proc[300], group[300];
    snprintf(proc, sizeof proc, "%s/proc", root);
    snprintf(group, sizeof group, "%s/cg", root);
    base_usage_read(proc, group, pid, u);
}

static void test_process_and_machine(void **state)
{
    (void)state;
    base_usage u;
    read_usage(&u, 77);
    assert_int_equal(u.rss_bytes, 2000 << 10);
    assert_int_equal(u.peak_rss_bytes, 3000 << 10);
    assert_int_equal(u.swap_bytes, 8 << 10);
    assert_int_equal(u.pss_bytes, 1500 << 10);
    assert_int_equal(u.pss_anon_bytes, 1000 << 10);
    assert_int_equal(u.pss_file_bytes, 500 << 10);
    assert_int_equal(u.private_bytes, 1000 << 10);
    assert_int_equal(u.minor_faults, 1234);
    assert_int_equal(u.major_faults, 56);
    assert_int_equal(u.total_bytes, UINT64_C(2000000) << 10);
    assert_int_equal(u.available_bytes, 1000 << 10);
    assert_int_equal(u.free_bytes, 10 << 10);
    assert_int_equal(u.swap_total_bytes, 64 << 10);
    assert_int_equal(u.some_stall_us, 700);
    assert_int_equal(u.full_stall_us, 300);
    assert_int_equal(u.cgroup_version, 0);
    assert_true(u.cgroup_bytes == BASE_UNKNOWN);
    read_usage(&u, 78); /* a process that has ended */
    assert_true(u.rss_bytes == BASE_UNKNOWN && u.pss_bytes == BASE_UNKNOWN && u.major_faults == BASE_UNKNOWN);
    assert_int_equal(u.available_bytes, 1000 << 10);
}

static void test_version_2(void **state)
{
    (void)state;
    base_usage u;
    put("proc/self/cgroup", "0::/box\n");
    put("cg/cgroup.controllers", "memory\n");
    put("cg/box/memory.current", "5000\n");
    put("cg/box/memory.peak", "6000\n");
    put("cg/box/memory.max", "max\n");
    put("cg/box/memory.stat", "anon 3000\nfile 1500\nkernel 400\ninactive_file 700\nactive_file 800\n");
    put("cg/box/memory.events", "low 0\nhigh 0\nmax 3\noom 2\noom_kill 1\n");
    put("cg/box/memory.pressure", "some avg10=0.00 avg60=0.00 avg300=0.00 total=90\n"
                                  "full avg10=0.00 avg60=0.00 avg300=0.00 total=40\n");
    read_usage(&u, 77);
    assert_int_equal(u.cgroup_version, 2);
    assert_int_equal(u.cgroup_bytes, 5000);
    assert_int_equal(u.cgroup_peak_bytes, 6000);
    assert_true(u.cgroup_limit_bytes == BASE_UNKNOWN);
    assert_int_equal(u.cgroup_anon_bytes, 3000);
    assert_int_equal(u.cgroup_file_bytes, 1500);
    assert_int_equal(u.cgroup_inactive_file_bytes, 700);
    assert_int_equal(u.cgroup_kernel_bytes, 400);
    assert_int_equal(u.cgroup_kills, 1);
    assert_int_equal(u.some_stall_us, 90); /* the group's, not the machine's */
    assert_int_equal(u.full_stall_us, 40);
    put("cg/box/memory.max", "123456\n");
    read_usage(&u, 77);
    assert_int_equal(u.cgroup_limit_bytes, 123456);
    /* A group whose parent keeps the controller for itself is charged to that one. */
    put("proc/self/cgroup", "0::/box/in/deep\n");
    put("cg/box/in/deep/cgroup.controllers", "\n");
    read_usage(&u, 77);
    assert_int_equal(u.cgroup_version, 2);
    assert_int_equal(u.cgroup_bytes, 5000);
    assert_int_equal(u.cgroup_kills, 1);
    assert_int_equal(strcmp(u.cgroup_path + strlen(u.cgroup_path) - 7, "/cg/box"), 0);
}

static void test_version_1(void **state)
{
    (void)state;
    base_usage u;
    put("proc/self/cgroup", "4:memory:/box\n0::/\n");
    put("cg/memory/box/memory.usage_in_bytes", "5000\n");
    put("cg/memory/box/memory.max_usage_in_bytes", "7000\n");
    put("cg/memory/box/memory.limit_in_bytes", "9223372036854771712\n");
    put("cg/memory/box/memory.stat",
        "rss 1\ncache 2\ntotal_rss 3000\ntotal_cache 1500\ntotal_inactive_file 700\n");
    put("cg/memory/box/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n");
    read_usage(&u, 77);
    assert_int_equal(u.cgroup_version, 1);
    assert_int_equal(u.cgroup_bytes, 5000);
    assert_int_equal(u.cgroup_peak_bytes, 7000);
    assert_true(u.cgroup_limit_bytes == BASE_UNKNOWN);
    assert_int_equal(u.cgroup_anon_bytes, 3000);
    assert_int_equal(u.cgroup_file_bytes, 1500);
    assert_int_equal(u.cgroup_inactive_file_bytes, 700);
    assert_true(u.cgroup_kernel_bytes == BASE_UNKNOWN);
    assert_int_equal(u.cgroup_kills, 4);
    assert_int_equal(u.some_stall_us, 700);
}

static void test_ourselves(void **state)
{
    (void)state;
    base_usage u;
    base_usage_read("/proc", "/sys/fs/cgroup", getpid(), &u);
    assert_true(u.rss_bytes != BASE_UNKNOWN && u.rss_bytes > 100000 && u.peak_rss_bytes >= u.rss_bytes / 2);
    assert_true(u.minor_faults != BASE_UNKNOWN && u.minor_faults > 0);
    assert_true(u.total_bytes > u.available_bytes);
}

static void check_hash(const char *text, size_t repeat, size_t piece, const char *want)
{
    base_sha256 h;
    char got[65];
    size_t n = strlen(text);
    base_sha256_init(&h);
    for (size_t i = 0; i < repeat; i++)
        for (size_t at = 0; at < n; at += piece)
            base_sha256_add(&h, text + at, n - at < piece ? n - at : piece);
    base_sha256_text(&h, got);
    assert_string_equal(got, want);
}

/* FIPS 180-4's examples, in one piece and byte by byte, and lengths around the padding's edge. */
static void test_sha256(void **state)
{
    (void)state;
    static const char *const two = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    check_hash("", 1, 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    for (size_t piece = 1; piece <= 64; piece++) {
        check_hash("abc", 1, piece, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
        check_hash(two, 1, piece, "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    }
    static const char *const a50 = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    check_hash(a50, 20000, 50, "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_process_and_machine, make_root, drop_root),
        cmocka_unit_test_setup_teardown(test_version_2, make_root, drop_root),
        cmocka_unit_test_setup_teardown(test_version_1, make_root, drop_root),
        cmocka_unit_test(test_ourselves),
        cmocka_unit_test(test_sha256),
    };
    return cmocka_run_group_tests_name("base_usage", tests, NULL, NULL);
}
