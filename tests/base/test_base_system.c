/* Memory and processor limits: on made-up proc and cgroup trees, and on this machine. */
#include "base_test.h"
#include "base/base_internal.h"

#include <sched.h>
#include <sys/mman.h>

#define MIB ((uint64_t)1 << 20)

#define MEMINFO                                                                                              \
    "MemTotal:        8000000 kB\nMemFree:          100000 kB\nMemAvailable:    6000000 kB\n"                \
    "Buffers:           1000 kB\nCached:          500000 kB\nSwapTotal:      9999999 kB\nSwapFree: 9999999 " \
    "kB\n"

/* Writes <folder>/<name> below the tree; group files get folder "cg/...". */
static void put(fixture *fix, const char *name, const char *text)
{
    write_text(path_in(fix, name), text);
}

static void put_number(fixture *fix, const char *folder, const char *name, uint64_t value)
{
    char path[256], text[32];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    snprintf(text, sizeof text, "%llu\n", (unsigned long long)value);
    put(fix, path, text);
}

static void put_v2(fixture *fix, const char *folder, const char *max, uint64_t current, uint64_t inactive,
                   uint64_t active)
{
    char path[256], text[256];
    snprintf(path, sizeof path, "%s/memory.max", folder);
    put(fix, path, max);
    put_number(fix, folder, "memory.current", current);
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    snprintf(
        text, sizeof text,
        "anon 1000\nfile 99999999\nshmem 5000000\ninactive_anon 7\ninactive_file %llu\nactive_file %llu\n"
        "workingset_refault_file 123456789\n",
        (unsigned long long)inactive, (unsigned long long)active);
    put(fix, path, text);
}

static void put_v1(fixture *fix, const char *folder, uint64_t limit, uint64_t usage, uint64_t inactive,
                   uint64_t active)
{
    char path[256], text[256];
    put_number(fix, folder, "memory.limit_in_bytes", limit);
    put_number(fix, folder, "memory.usage_in_bytes", usage);
    put_number(fix, folder, "memory.use_hierarchy", 1);
    snprintf(path, sizeof path, "%s/memory.stat", folder);
    snprintf(
        text, sizeof text,
        "cache 1\ninactive_file 11\nactive_file 12\nhierarchical_memory_limit 5\ntotal_inactive_file %llu\n"
        "total_active_file %llu\ntotal_unevictable 77\n",
        (unsigned long long)inactive, (unsigned long long)active);
    put(fix, path, text);
}

static base_memory_limits read_limits(fixture *fix)
{
    base_memory_limits m;
    char proc[200], cg[200];
    snprintf(proc, sizeof proc, "%s/proc", fix->folder);
    snprintf(cg, sizeof cg, "%s/cg", fix->folder);
    assert_status(base_memory_limits_read(fix->env, proc, cg, &m, &fix->err), WEIR_OK);
    return m;
}

static void assert_group(fixture *fix, const base_memory_limits *m, int version, const char *folder,
                         uint64_t limit, uint64_t usage, uint64_t free_bytes)
{
    if (strcmp(m->cgroup_path, path_in(fix, folder)) != 0)
        print_error("group %s, expected %s\n", m->cgroup_path, path_in(fix, folder));
    assert_string_equal(m->cgroup_path, path_in(fix, folder));
    assert_int_equal(m->cgroup_version, version);
    assert_true(m->cgroup_limit_bytes == limit);
    assert_true(m->cgroup_usage_bytes == usage);
    assert_true(m->cgroup_free_bytes == free_bytes);
}

static void assert_unlimited(const base_memory_limits *m)
{
    assert_int_equal(m->cgroup_version, 0);
    assert_true(m->cgroup_limit_bytes == UINT64_MAX);
    assert_true(m->cgroup_free_bytes == UINT64_MAX);
    assert_string_equal(m->cgroup_path, "");
}

static void the_machine_without_groups(void **state)
{
    fixture *fix = *state;
    put(fix, "proc/meminfo", MEMINFO);
    base_memory_limits m = read_limits(fix);
    assert_true(m.total_bytes == UINT64_C(8000000) * 1024);
    assert_true(m.available_bytes == UINT64_C(6000000) * 1024); /* no swap in it */
    assert_unlimited(&m);
    put(fix, "proc/meminfo", "MemTotal: 1000 kB\nMemFree: 100 kB\nCached: 200 kB\n");
    m = read_limits(fix);
    assert_int_equal(m.available_bytes, 300 * 1024);
    put(fix, "proc/meminfo", "MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 0 kB\nCached: 200 kB\n");
    m = read_limits(fix);
    assert_int_equal(m.available_bytes, 0);
}

static void without_meminfo_it_fails(void **state)
{
    fixture *fix = *state;
    base_memory_limits m;
    assert_int_equal(base_memory_limits_read(fix->env, fix->folder, fix->folder, &m, &fix->err), WEIR_ERR_IO);
    assert_non_null(strstr(fix->err.message, "meminfo"));
    put(fix, "meminfo", "nothing of use\n");
    assert_int_equal(base_memory_limits_read(fix->env, fix->folder, fix->folder, &m, &fix->err), WEIR_ERR_IO);
    base_fault_rule rule = rule_of(BASE_FAULT_HOST_ALLOC, 0, false);
    assert_status(base_fault_arm(fix->env, &rule, &fix->err), WEIR_OK);
    assert_int_equal(base_memory_limits_read(fix->env, "/proc", "/sys/fs/cgroup", &m, &fix->err),
                     WEIR_ERR_OUT_OF_MEMORY);
}

static void v2_takes_the_tightest_ancestor(void **state)
{
    fixture *fix = *state;
    put(fix, "proc/meminfo", MEMINFO);
    put(fix, "proc/self/cgroup", "0::/user.slice/app/inner\n");
    put(fix, "proc/self/mountinfo",
        "22 27 0:21 / /proc rw,relatime - proc proc rw\n"
        "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:9 master:2 - cgroup2 cgroup2 rw,nsdelegate\n");
    put(fix, "cg/cgroup.controllers", "cpu memory\n");
    put_v2(fix, "cg/user.slice", "1000000000\n", 900000000, 100000000, 50000000); /* free 250 MB */
    put_v2(fix, "cg/user.slice/app", "600000000\n", 100000000, 10, 20);           /* free 500 MB */
    put_v2(fix, "cg/user.slice/app/inner", "max\n", 90000000, 0, 0);
    base_memory_limits m = read_limits(fix);
    /* The tightest limit and the tightest free bytes come from different groups here. */
    assert_group(fix, &m, 2, "cg/user.slice", 600000000, 900000000, 250000000);

    put(fix, "cg/user.slice/app/inner/memory.high", "200000000\n");
    m = read_limits(fix);
    assert_group(fix, &m, 2, "cg/user.slice/app/inner", 200000000, 90000000, 110000000);

    put(fix, "cg/user.slice/app/inner/memory.max", "50000000\n"); /* below what it holds */
    m = read_limits(fix);
    assert_group(fix, &m, 2, "cg/user.slice/app/inner", 50000000, 90000000, 0);
}

static void v1_takes_the_tightest_ancestor(void **state)
{
    fixture *fix = *state;
    put(fix, "proc/meminfo", MEMINFO);
    put(fix, "proc/self/cgroup",
        "9:name=systemd:/\n5:cpu,cpuacct:/else\n4:hugetlb,memory:/batch/job\n3:memoryless:/no\n0::/\n");
    put(fix, "proc/self/mountinfo",
        "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n"
        "34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset\n"
        "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory,hugetlb\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n");
    put(fix, "cg/unified/cgroup.controllers", "\n");
    uint64_t none = UINT64_C(9223372036854771712);
    put_v1(fix, "cg/memory", none, 5000 * MIB, 0, 0);
    put_v1(fix, "cg/memory/batch", 2000 * MIB, 1500 * MIB, 100 * MIB, 100 * MIB);
    put_v1(fix, "cg/memory/batch/job", none, 400 * MIB, 0, 0);
    base_memory_limits m = read_limits(fix);
    assert_group(fix, &m, 1, "cg/memory/batch", 2000 * MIB, 1500 * MIB, 700 * MIB);
    put_v1(fix, "cg/memory/batch/job", 500 * MIB, 400 * MIB, 30 * MIB, 0);
    m = read_limits(fix);
    assert_group(fix, &m, 1, "cg/memory/batch/job", 500 * MIB, 400 * MIB, 130 * MIB);

    /* Without hierarchy a group above does not bind those below. */
    put_v1(fix, "cg/memory/batch", 10 * MIB, 10 * MIB, 0, 0);
    put(fix, "cg/memory/batch/memory.use_hierarchy", "0\n");
    m = read_limits(fix);
    assert_group(fix, &m, 1, "cg/memory/batch/job", 500 * MIB, 400 * MIB, 130 * MIB);
}

static void both_versions_at_once(void **state)
{
    fixture *fix = *state;
    put(fix, "proc/meminfo", MEMINFO);
    put(fix, "proc/self/cgroup", "4:memory:/a\n0::/b\n");
    /* No mountinfo: the usual places. */
    put_v1(fix, "cg/memory/a", 300 * MIB, 100 * MIB, 0, 0);
    put_v2(fix, "cg/unified/b", "209715200\n", 50 * MIB, 0, 0);
    base_memory_limits m = read_limits(fix);
    assert_group(fix, &m, 2, "cg/unified/b", 200 * MIB, 50 * MIB, 150 * MIB);
    put_v1(fix, "cg/memory/a", 120 * MIB, 100 * MIB, 0, 0);
    m = read_limits(fix);
    assert_group(fix, &m, 1, "cg/memory/a", 120 * MIB, 100 * MIB, 20 * MIB);
}

static void v2_without_mountinfo(void **state)
{
    fixture *fix = *state;
    put(fix, "proc/meminfo", MEMINFO);
    put(fix, "proc/self/cgroup", "0::/b/c\n");
    put(fix, "cg/cgroup.controllers", "memory\n");
    put_v2(fix, "cg/b/c", "209715200\n", 50 * MIB, 0, 0);
    base_memory_limits m = read_limits(fix);
    assert_group(fix, &m, 2, "cg/b/c", 200 * MIB, 50 * MIB, 150 * MIB);
}

/* In a container the name may be the host's while the mount shows the container's group as its root. */
static void containers_see_their_group_as_the_mount(void **state)
{
    fixture *fix = *state;
    static const struct {
        const char *group; /* in /proc/self/cgroup */
        const char *root;  /* field 4 of mountinfo */
        const char *found; /* the limited folder */
    } cases[] = {
        {"/docker/abc", "/docker/abc", "cg"},         /* host's name, mount shows the group */
        {"/docker/abc/sub", "/docker/abc", "cg/sub"}, /* and a group below it */
        {"/docker/abc", "/docker/abcdef", "cg"},      /* a prefix of letters is no prefix of folders */
        {"/", "/docker/abc", "cg"},                   /* namespace of its own, mount made outside of it */
        {"/../other", "/", "cg"},                     /* moved out of its namespace */
        {"/sub", "/../..", "cg"},                     /* mount made in another namespace */
        {"/docker/gone", "/", "cg"},                  /* the name is not visible here */
        {"/sub/gone/deeper", "/", "cg/sub"},          /* only its ancestor is */
    };
    put(fix, "proc/meminfo", MEMINFO);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[512], folder[200];
        snprintf(text, sizeof text, "0::%s\n", cases[i].group);
        put(fix, "proc/self/cgroup", text);
        snprintf(text, sizeof text, "30 24 0:26 %s /sys/fs/cgroup ro - cgroup2 cgroup rw\n", cases[i].root);
        put(fix, "proc/self/mountinfo", text);
        put(fix, "cg/cgroup.controllers", "memory\n");
        put_v2(fix, "cg/sub", "max\n", 0, 0, 0);
        put_v2(fix, cases[i].found, "104857600\n", 40 * MIB, 0, 0);
        base_memory_limits m = read_limits(fix);
        assert_group(fix, &m, 2, cases[i].found, 100 * MIB, 40 * MIB, 60 * MIB);
        snprintf(folder, sizeof folder, "%s/cg", fix->folder);
        remove_tree(folder);
    }
}

static void odd_mount_points(void **state)
{
    fixture *fix = *state;
    char text[1024];
    put(fix, "proc/meminfo", MEMINFO);
    put(fix, "proc/self/cgroup", "7:memory:/x/y\n");
    /* A path with a space, a first mount that shows another group, and a mount that is not below the usual
     * place. */
    snprintf(text, sizeof text,
             "30 24 0:26 /other /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
             "31 24 0:26 /x %s/my\\040groups rw shared:1 - cgroup cgroup rw,memory\n",
             fix->folder);
    put(fix, "proc/self/mountinfo", text);
    put_v1(fix, "cg/memory", 1 * MIB, 1 * MIB, 0, 0);
    put_v1(fix, "my groups/y", 100 * MIB, 40 * MIB, 0, 0);
    base_memory_limits m = read_limits(fix);
    assert_group(fix, &m, 1, "my groups/y", 100 * MIB, 40 * MIB, 60 * MIB);
}

static void damaged_trees_limit_nothing(void **state)
{
    fixture *fix = *state;
    put(fix, "proc/meminfo", MEMINFO);
    put(fix, "proc/self/cgroup", "garbage\n::\n4:memory\n\n0::\n");
    put(fix, "proc/self/mountinfo",
        "\n1 2\n30 24 0:26 / /sys/fs/cgroup rw\n30 24 0:26 / /sys/fs/cgroup rw - cgroup2\n");
    base_memory_limits m = read_limits(fix);
    assert_unlimited(&m);
    put(fix, "proc/self/cgroup", "0::/a\n");
    put(fix, "proc/self/mountinfo", "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 c rw\n");
    put_v2(fix, "cg/a", "no number\n", 5, 0, 0);
    m = read_limits(fix);
    assert_unlimited(&m);
    put(fix, "cg/a/memory.max", "");
    m = read_limits(fix);
    assert_unlimited(&m);
    put(fix, "cg/a/memory.max", "1000\n");
    put(fix, "cg/a/memory.stat", "inactive_file\nactive_file nine\n\n");
    m = read_limits(fix);
    assert_group(fix, &m, 2, "cg/a", 1000, 5, 995);
}

static uint32_t cpus(fixture *fix)
{
    char proc[200], cg[200];
    snprintf(proc, sizeof proc, "%s/proc", fix->folder);
    snprintf(cg, sizeof cg, "%s/cg", fix->folder);
    return base_cgroup_cpus(proc, cg);
}

static void processor_quotas(void **state)
{
    fixture *fix = *state;
    assert_true(cpus(fix) == UINT32_MAX);
    put(fix, "proc/self/cgroup", "3:cpu,cpuacct:/a/b\n0::/c\n");
    put(fix, "cg/cpu/a/b/cpu.cfs_quota_us", "-1\n");
    put(fix, "cg/cpu/a/b/cpu.cfs_period_us", "100000\n");
    assert_true(cpus(fix) == UINT32_MAX);
    put(fix, "cg/cpu/a/cpu.cfs_quota_us", "260000\n");
    put(fix, "cg/cpu/a/cpu.cfs_period_us", "100000\n");
    assert_int_equal(cpus(fix), 3);
    put(fix, "cg/unified/c/cpu.max", "max 100000\n");
    assert_int_equal(cpus(fix), 3);
    put(fix, "cg/unified/c/cpu.max", "150000 100000\n");
    assert_int_equal(cpus(fix), 2);
    put(fix, "cg/unified/c/cpu.max", "10000 100000\n");
    assert_int_equal(cpus(fix), 1);
    put(fix, "cg/unified/c/cpu.max", "10000 0\n");
    assert_int_equal(cpus(fix), 3);
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    assert_in_range(base_cpu_count(), 1, CPU_COUNT(&set));
}

static void this_machine(void **state)
{
    fixture *fix = *state;
    base_memory_limits m;
    assert_status(base_memory_limits_read(fix->env, "/proc", "/sys/fs/cgroup", &m, &fix->err), WEIR_OK);
    assert_true(m.total_bytes > 64 * MIB);
    assert_true(m.available_bytes > 0 && m.available_bytes <= m.total_bytes);
    if (m.cgroup_version == 0)
        assert_unlimited(&m);
    else
        assert_true(m.cgroup_free_bytes <= m.cgroup_limit_bytes);
}

/* Writes a text to a control file; false where that is not allowed. */
static bool control(const char *folder, const char *name, const char *text)
{
    char path[600];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_WRONLY);
    if (fd < 0) return false;
    ssize_t n = write(fd, text, strlen(text));
    close(fd);
    return n == (ssize_t)strlen(text);
}

/* The v1 memory folder of this process, or "". */
static void own_v1_group(char *out, size_t cap)
{
    char line[512];
    out[0] = '\0';
    FILE *f = fopen("/proc/self/cgroup", "r");
    while (f != NULL && fgets(line, sizeof line, f) != NULL) {
        char *name = strstr(line, ":memory:");
        if (name == NULL) continue;
        line[strcspn(line, "\n")] = '\0';
        snprintf(out, cap, "/sys/fs/cgroup/memory%s", name + strlen(":memory:"));
    }
    if (f != NULL) fclose(f);
}

static void a_real_group_limits_us(void **state)
{
    fixture *fix = *state;
    static const char root[] = "/sys/fs/cgroup/memory/weir-test-base",
                      inner[] = "/sys/fs/cgroup/memory/weir-test-base/in";
    char home[512], pid[32];
    own_v1_group(home, sizeof home);
    if (home[0] == '\0' || (mkdir(root, 0755) != 0 && !base_file_exists(root)) || mkdir(inner, 0755) != 0)
        skip();
    snprintf(pid, sizeof pid, "%d\n", (int)getpid());
    bool inside =
        control(root, "memory.limit_in_bytes", "268435456\n") && control(inner, "cgroup.procs", pid);
    base_memory_limits m = {0};
    weir_status status = WEIR_OK;
    if (inside) {
        void *p =
            mmap(NULL, 32 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
        status = base_memory_limits_read(fix->env, "/proc", "/sys/fs/cgroup", &m, &fix->err);
        munmap(p, 32 * MIB);
        assert_true(control(home, "cgroup.procs", pid));
    }
    rmdir(inner);
    rmdir(root);
    if (!inside) skip();
    assert_status(status, WEIR_OK);
    assert_int_equal(m.cgroup_version, 1);
    assert_string_equal(m.cgroup_path, root);
    assert_int_equal(m.cgroup_limit_bytes, 256 * MIB);
    assert_true(m.cgroup_usage_bytes >= 32 * MIB && m.cgroup_usage_bytes < 80 * MIB);
    assert_true(m.cgroup_free_bytes > 150 * MIB && m.cgroup_free_bytes <= 224 * MIB);
}

static void memory_of_this_process(void **state)
{
    fixture *fix = *state;
    base_process_memory before, with, after;
    assert_status(base_process_memory_read(&before, &fix->err), WEIR_OK);
    assert_true(before.rss_bytes > 100000 && before.peak_rss_bytes >= before.rss_bytes);
    assert_true(before.page_table_bytes > 0);
    void *p = base_pages_alloc(fix->env, BASE_TAG_KV, 48 * MIB, false, &fix->err);
    assert_non_null(p);
    memset(p, 1, 48 * MIB);
    assert_status(base_process_memory_read(&with, &fix->err), WEIR_OK);
    assert_true(with.anon_bytes >= before.anon_bytes + 40 * MIB);
    uint64_t pss = base_process_pss();
    assert_true(pss == 0 || pss >= 40 * MIB);
    base_pages_free(fix->env, BASE_TAG_KV, p, 48 * MIB);
    assert_status(base_process_memory_read(&after, &fix->err), WEIR_OK);
    assert_true(after.rss_bytes + 40 * MIB <= with.rss_bytes); /* pages go back at once */
    assert_true(after.peak_rss_bytes >= with.rss_bytes - MIB);
    if (!base_process_peak_reset()) skip();
    assert_status(base_process_memory_read(&after, &fix->err), WEIR_OK);
    assert_true(after.peak_rss_bytes < with.rss_bytes - 20 * MIB);
}

static void use_and_free(fixture *fix, uint64_t bytes)
{
    void *p = base_pages_alloc(fix->env, BASE_TAG_KV, bytes, false, &fix->err);
    assert_non_null(p);
    memset(p, 1, bytes);
    base_pages_free(fix->env, BASE_TAG_KV, p, bytes);
}

static uint64_t own_peak(fixture *fix)
{
    base_process_memory m;
    assert_status(base_process_memory_read(&m, &fix->err), WEIR_OK);
    assert_true(m.own_peak_bytes + m.shmem_bytes >= m.rss_bytes);
    return m.own_peak_bytes;
}

/* What a simulated device holds is not in the process's own peak, however it comes and goes; what the process
 * held meanwhile is (X2). */
static void own_peak_beside_a_device(void **state)
{
    fixture *fix = *state;
    base_protect *p;
    if (!base_process_peak_reset()) skip();
    uint64_t before = own_peak(fix);
    assert_true(before > 100000);
    assert_status(base_protect_create(fix->env, 256 * MIB, true, &p, &fix->err), WEIR_OK);
    use_and_free(fix, 12 * MIB); /* while the device holds nothing */
    for (int i = 0; i < 3; i++) {
        assert_status(base_protect_commit(p, 0, 96 * MIB, &fix->err), WEIR_OK);
        memset(base_protect_back(p), 1, 96 * MIB);
        uint64_t least = 12 * MIB + (uint64_t)i * 8 * MIB;
        assert_true(own_peak(fix) >= before + least - 2 * MIB && own_peak(fix) <= before + least + 4 * MIB);
        base_protect_drop(p, 16 * MIB, 80 * MIB);
        assert_true(own_peak(fix) >= before + least - 2 * MIB && own_peak(fix) <= before + least + 4 * MIB);
        use_and_free(fix, least + 8 * MIB); /* with 96 MiB, VmHWM was higher */
        least += 8 * MIB;
        assert_true(own_peak(fix) >= before + least - 2 * MIB && own_peak(fix) <= before + least + 4 * MIB);
        base_protect_drop(p, 0, 16 * MIB);
    }
    assert_status(base_protect_commit(p, 0, 96 * MIB, &fix->err), WEIR_OK);
    memset(base_protect_back(p), 1, 96 * MIB);
    base_protect_destroy(p);
    assert_true(own_peak(fix) >= before + 34 * MIB && own_peak(fix) <= before + 40 * MIB);
    assert_true(base_process_peak_reset());
    assert_true(own_peak(fix) <= before + 4 * MIB);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_machine_without_groups),
        TEST(without_meminfo_it_fails),
        TEST(v2_takes_the_tightest_ancestor),
        TEST(v1_takes_the_tightest_ancestor),
        TEST(both_versions_at_once),
        TEST(v2_without_mountinfo),
        TEST(containers_see_their_group_as_the_mount),
        TEST(odd_mount_points),
        TEST(damaged_trees_limit_nothing),
        TEST(processor_quotas),
        TEST(this_machine),
        TEST(a_real_group_limits_us),
        TEST(memory_of_this_process),
        TEST(own_peak_beside_a_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
