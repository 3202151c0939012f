/* Which safetensors files make a model: one file, the shards of an index, or what a Hugging Face folder
 * holds. The index is hostile like everything else: its file names must be plain names in its own folder, and
 * every tensor must be where it says. */
#include "fmt_safetensors.h"

#include "fmt_json.h"

#include <inttypes.h>
#include <string.h>

#define INDEX_NAME      "model.safetensors.index.json"
#define SINGLE_NAME     "model.safetensors"
#define MAX_INDEX_BYTES 100000000u
#define MAX_FILE_NAME   255u

typedef struct shards {
    fmt_model *m;
    base_file *index;
    const char *path;
    fmt_hf_arch arch;
    fmt_tensors names; /* the shards' file names, in order of appearance, as items of a list with an index */
    fmt_arena arena;
} shards;

typedef weir_status (*entry_fn)(shards *x, const char *tensor, const char *file, weir_error *err);

static bool is_plain_name(const char *name, size_t len)
{
    return len > 0 && strlen(name) == len && fmt_name_is_clean(name, len) && strpbrk(name, "/\\") == NULL &&
           strcmp(name, ".") != 0 && strcmp(name, "..") != 0;
}

/* Calls fn for every pair of the object "weight_map". */
static weir_status walk_map(shards *x, fmt_reader *r, entry_fn fn, weir_error *err)
{
    char tensor[FMT_MAX_NAME + 1], file[MAX_FILE_NAME + 1];
    size_t tensor_len, file_len;
    bool first = true, more;
    weir_status s = fmt_json_expect(r, '{', "weight_map", err);
    for (;;) {
        if (s != WEIR_OK || (s = fmt_json_more(r, '}', &first, &more, err)) != WEIR_OK || !more) return s;
        uint64_t at = fmt_reader_pos(r);
        if ((s = fmt_json_string(r, tensor, sizeof tensor, &tensor_len, err)) != WEIR_OK) return s;
        if ((s = fmt_json_expect(r, ':', "behind a tensor's name", err)) != WEIR_OK) return s;
        if ((s = fmt_json_string(r, file, sizeof file, &file_len, err)) != WEIR_OK) return s;
        if (!fmt_name_is_clean(tensor, tensor_len) || strlen(tensor) != tensor_len)
            return base_fail(err, WEIR_ERR_FORMAT,
                             "%s: a tensor's name at offset %" PRIu64 " has control characters", x->path, at);
        if (!is_plain_name(file, file_len))
            return base_fail(err, WEIR_ERR_FORMAT,
                             "%s: weight_map at offset %" PRIu64
                             ": the shard of \"%.200s\" is no plain file name: refused",
                             x->path, at, tensor);
        s = fn(x, tensor, file, err);
    }
}

static weir_status walk_index(shards *x, entry_fn fn, weir_error *err)
{
    fmt_reader r;
    bool first = true, more = true, found = false;
    weir_status s =
        fmt_reader_init(&r, x->m->env, x->index, 0, base_file_size(x->index), FMT_READER_BYTES, err);
    if (s != WEIR_OK) return s;
    s = fmt_json_expect(&r, '{', "the index", err);
    while (s == WEIR_OK) {
        char key[64];
        size_t len;
        s = fmt_json_more(&r, '}', &first, &more, err);
        if (s != WEIR_OK || !more) break;
        s = fmt_json_string(&r, key, sizeof key, &len, err);
        if (s == WEIR_OK) s = fmt_json_expect(&r, ':', "behind a member's name", err);
        if (s != WEIR_OK) break;
        if (strcmp(key, "weight_map") == 0 && !found) {
            found = true;
            s = walk_map(x, &r, fn, err);
        } else {
            s = fmt_json_skip(&r, 0, err);
        }
    }
    if (s == WEIR_OK) s = fmt_json_end(&r, err);
    if (s == WEIR_OK && !found)
        s = base_fail(err, WEIR_ERR_FORMAT, "%s: there is no \"weight_map\"", x->path);
    fmt_reader_finish(&r);
    return s;
}

static weir_status collect_shard(shards *x, const char *tensor, const char *file, weir_error *err)
{
    (void)tensor;
    if (fmt_tensors_find(&x->names, file) != NULL) return WEIR_OK;
    fmt_tensor t = {.file = x->names.n};
    t.name = fmt_arena_copy(x->m->env, &x->arena, file, strlen(file), err);
    if (t.name == NULL) return err->code;
    return fmt_tensors_add(x->m->env, &x->names, &t, x->path, err);
}

/* The tensor must have come from the shard that the index names. */
static weir_status check_tensor(shards *x, const char *tensor, const char *file, weir_error *err)
{
    char name[FMT_MAX_NAME + 1];
    const char *known = fmt_hf_tensor_name(x->arch, tensor, name, sizeof name) ? name : tensor;
    const fmt_tensor *t = fmt_tensors_find(&x->m->tensors, known), *shard = fmt_tensors_find(&x->names, file);
    if (t != NULL && shard != NULL && t->file == shard->file && strcmp(t->file_name, tensor) == 0)
        return WEIR_OK;
    return base_fail(err, WEIR_ERR_FORMAT,
                     "%s: tensor \"%.200s\" is not in \"%.255s\", where the index says it is: the shards do "
                     "not belong together",
                     x->path, tensor, file);
}

static weir_status open_shards(shards *x, weir_error *err)
{
    fmt_model *m = x->m;
    weir_status s = walk_index(x, collect_shard, err);
    if (s == WEIR_OK && x->names.n == 0)
        s = base_fail(err, WEIR_ERR_FORMAT, "%s: weight_map is empty", x->path);
    for (uint32_t i = 0; s == WEIR_OK && i < x->names.n; i++) {
        char *path = fmt_path_join(m->env, m->dir, x->names.items[i].name, err);
        s = path == NULL ? err->code : fmt_model_add_file(m, path, err);
        if (s != WEIR_OK && path != NULL) s = base_fail_context(err, s, "shard %u of %u", i + 1, x->names.n);
        base_free(m->env, path);
        if (s == WEIR_OK) s = fmt_safetensors_file(m, i, x->arch, err);
    }
    return s == WEIR_OK ? walk_index(x, check_tensor, err) : s;
}

weir_status fmt_shards_open(fmt_model *m, const char *path, weir_error *err)
{
    shards x = {.m = m, .path = path};
    m->format = "safetensors";
    m->dir = fmt_path_dir(m->env, path, err);
    if (m->dir == NULL) return err->code;
    weir_status s = base_file_open(m->env, path, &x.index, err);
    if (s != WEIR_OK) return s;
    if (base_file_size(x.index) > MAX_INDEX_BYTES)
        s = base_fail(err, WEIR_ERR_UNSUPPORTED,
                      "%s: an index of %" PRIu64 " bytes, at most %u are supported", path,
                      base_file_size(x.index), MAX_INDEX_BYTES);
    if (s == WEIR_OK) s = fmt_hf_load(m, &x.arch, err);
    if (s == WEIR_OK) s = open_shards(&x, err);
    fmt_tensors_finish(m->env, &x.names);
    fmt_arena_finish(m->env, &x.arena);
    base_file_close(x.index);
    return s;
}

/* "NAME-00002-of-00005.safetensors" with more than one part: *prefix is the length of NAME. */
static bool is_shard_name(const char *path, size_t *prefix)
{
    static const char pattern[] = "-#####-of-#####.safetensors";
    size_t n = strlen(path), k = sizeof pattern - 1;
    if (n <= k) return false;
    const char *p = path + n - k;
    for (size_t i = 0; i < k; i++)
        if (pattern[i] == '#' ? p[i] < '0' || p[i] > '9' : p[i] != pattern[i]) return false;
    *prefix = n - k;
    return memcmp(p + 10, "00001", 5) != 0;
}

static weir_status open_shard_by_name(fmt_model *m, const char *path, size_t prefix, weir_error *err)
{
    base_buf index;
    base_buf_init(&index, m->env, BASE_TAG_METADATA);
    weir_status s = base_buf_printf(&index, err, "%.*s.safetensors.index.json", (int)prefix, path);
    if (s == WEIR_OK && !base_file_exists_at(m->env, index.data))
        s = base_fail(err, WEIR_ERR_NOT_FOUND,
                      "%s: one shard of a model, but its index, %s, is missing; get the whole folder", path,
                      index.data);
    if (s == WEIR_OK) {
        base_file_close(m->files[0]);
        m->n_files = 0;
        s = fmt_shards_open(m, index.data, err);
    }
    base_buf_finish(&index);
    return s;
}

weir_status fmt_safetensors_open(fmt_model *m, const char *path, weir_error *err)
{
    size_t prefix;
    fmt_hf_arch arch;
    if (is_shard_name(path, &prefix)) return open_shard_by_name(m, path, prefix, err);
    m->format = "safetensors";
    m->dir = fmt_path_dir(m->env, path, err);
    if (m->dir == NULL) return err->code;
    weir_status s = fmt_hf_load(m, &arch, err);
    return s == WEIR_OK ? fmt_safetensors_file(m, 0, arch, err) : s;
}

weir_status fmt_folder_open(fmt_model *m, const char *path, bool *is_folder, weir_error *err)
{
    weir_status s = WEIR_OK;
    char *index = fmt_path_join(m->env, path, INDEX_NAME, err);
    char *single = index == NULL ? NULL : fmt_path_join(m->env, path, SINGLE_NAME, err);
    char *config = single == NULL ? NULL : fmt_path_join(m->env, path, "config.json", err);
    *is_folder = true;
    if (config == NULL) {
        s = err->code;
    } else if (base_file_exists_at(m->env, index)) {
        s = fmt_shards_open(m, index, err);
    } else if (base_file_exists_at(m->env, single)) {
        s = fmt_model_add_file(m, single, err);
        if (s == WEIR_OK) s = fmt_safetensors_open(m, single, err);
    } else if (base_file_exists_at(m->env, config)) {
        s = base_fail(err, WEIR_ERR_NOT_FOUND,
                      "%s: a folder with config.json, but without " SINGLE_NAME " or " INDEX_NAME
                      "; weights in other forms (.bin) are not supported",
                      path);
    } else {
        *is_folder = false;
    }
    base_free(m->env, index);
    base_free(m->env, single);
    base_free(m->env, config);
    return s;
}
