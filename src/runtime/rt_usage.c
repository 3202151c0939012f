/* What programs that measure others need: the kernel's accounts, and files named by their bytes. */
#include "rt_internal.h"

#include <string.h>

_Static_assert(sizeof(((weir_usage *)0)->cgroup_path) == sizeof(((base_usage *)0)->cgroup_path), "one path");

weir_status weir_usage_read(weir_context *c, int64_t pid, weir_usage *out, weir_error *err)
{
    weir_error local;
    err = rt_error(err, &local);
    base_usage u;
    if (pid <= 0) return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "%lld is no process", (long long)pid);
    base_usage_read(base_settings_get(c->settings, "proc_root"),
                    base_settings_get(c->settings, "cgroup_root"), pid, &u);
    *out = (weir_usage){
        .struct_size = sizeof *out,
        .rss_bytes = u.rss_bytes,
        .peak_rss_bytes = u.peak_rss_bytes,
        .pss_bytes = u.pss_bytes,
        .pss_anon_bytes = u.pss_anon_bytes,
        .pss_file_bytes = u.pss_file_bytes,
        .private_bytes = u.private_bytes,
        .swap_bytes = u.swap_bytes,
        .minor_faults = u.minor_faults,
        .major_faults = u.major_faults,
        .total_bytes = u.total_bytes,
        .available_bytes = u.available_bytes,
        .free_bytes = u.free_bytes,
        .cached_bytes = u.cached_bytes,
        .swap_total_bytes = u.swap_total_bytes,
        .swap_free_bytes = u.swap_free_bytes,
        .cgroup_version = u.cgroup_version,
        .cgroup_bytes = u.cgroup_bytes,
        .cgroup_peak_bytes = u.cgroup_peak_bytes,
        .cgroup_limit_bytes = u.cgroup_limit_bytes,
        .cgroup_anon_bytes = u.cgroup_anon_bytes,
        .cgroup_file_bytes = u.cgroup_file_bytes,
        .cgroup_inactive_file_bytes = u.cgroup_inactive_file_bytes,
        .cgroup_kernel_bytes = u.cgroup_kernel_bytes,
        .cgroup_kills = u.cgroup_kills,
        .some_stall_us = u.some_stall_us,
        .full_stall_us = u.full_stall_us,
    };
    memcpy(out->cgroup_path, u.cgroup_path, sizeof out->cgroup_path);
    return WEIR_OK;
}

weir_status weir_file_sha256(weir_context *c, const char *path,
                             bool (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes),
                             void *arg, char text[65], weir_error *err)
{
    enum { STEP_BYTES = 1 << 20 };
    weir_error local;
    err = rt_error(err, &local);
    base_file *file;
    if (base_path_is_url(path))
        return base_fail(err, WEIR_ERR_UNSUPPORTED, "%.200s: no hash without the whole file; download it",
                         path);
    weir_status s = base_file_open(c->env, path, &file, err);
    if (s != WEIR_OK) return s;
    void *buf = base_alloc(c->env, BASE_TAG_IO, STEP_BYTES, err);
    s = buf != NULL ? WEIR_OK : err->code;
    uint64_t size = base_file_size(file), at = 0;
    base_sha256 hash;
    base_sha256_init(&hash);
    while (s == WEIR_OK && at < size) {
        size_t n = (size_t)base_min(STEP_BYTES, size - at);
        s = base_file_read(file, at, buf, n, err);
        if (s != WEIR_OK) break;
        base_sha256_add(&hash, buf, n);
        base_file_drop_cache(file, at, n);
        at += n;
        if (progress != NULL && !progress(arg, at, size))
            s = base_fail(err, WEIR_ERR_CANCELLED, "%s: the caller stopped the hash", path);
    }
    if (s == WEIR_OK) s = base_file_check(file, err);
    if (s == WEIR_OK) base_sha256_text(&hash, text);
    base_free(c->env, buf);
    base_file_close(file);
    return s;
}
