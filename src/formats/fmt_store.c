/* Arena, hash index and the two lists of a model descriptor: see fmt_store.h. */
#include "fmt_store.h"

#include <inttypes.h>
#include <string.h>

#define CHUNK_BYTES 8192u

struct fmt_arena_chunk {
    fmt_arena_chunk *next;
    size_t cap;
    char data[];
};

char *fmt_arena_copy(base_env *env, fmt_arena *a, const void *data, size_t len, weir_error *err)
{
    if (len >= FMT_MAX_TEXT - a->total) {
        base_fail(err, WEIR_ERR_UNSUPPORTED, "names and strings of more than %u MiB", FMT_MAX_TEXT >> 20);
        return NULL;
    }
    if (a->head == NULL || a->head->cap - a->used <= len) {
        size_t cap = len + 1 > CHUNK_BYTES / 4 ? len + 1 : CHUNK_BYTES - sizeof(fmt_arena_chunk);
        fmt_arena_chunk *c = base_alloc(env, BASE_TAG_METADATA, sizeof *c + cap, err);
        if (c == NULL) return NULL;
        c->cap = cap;
        if (a->head != NULL && a->head->cap - a->used > cap - (len + 1)) {
            /* The new chunk will be full at once; the present one stays open for short names. */
            c->next = a->head->next;
            a->head->next = c;
            memcpy(c->data, data, len);
            a->total += len + 1;
            return c->data;
        }
        c->next = a->head;
        a->head = c;
        a->used = 0;
    }
    char *p = a->head->data + a->used;
    memcpy(p, data, len);
    p[len] = '\0';
    a->used += len + 1;
    a->total += len + 1;
    return p;
}

void fmt_arena_finish(base_env *env, fmt_arena *a)
{
    for (fmt_arena_chunk *c = a->head, *next; c != NULL; c = next) {
        next = c->next;
        base_free(env, c);
    }
    *a = (fmt_arena){0};
}

/* FNV-1a keeps the low bits of names that differ only at the front apart too little; the finish is the
 * 64-bit mixer of MurmurHash3 (A. Appleby, public domain). */
static uint64_t name_hash(uint64_t seed, const char *name)
{
    uint64_t h = base_hash(BASE_HASH_SEED ^ seed, name, strlen(name));
    h ^= h >> 33;
    h *= UINT64_C(0xff51afd7ed558ccd);
    h ^= h >> 33;
    h *= UINT64_C(0xc4ceb9fe1a85ec53);
    return h ^ h >> 33;
}

static const char *item_name(const void *items, size_t stride, uint32_t i)
{
    const char *name;
    memcpy(&name, (const char *)items + stride * i, sizeof name);
    return name;
}

/* The slot that holds the name, or the free one where it belongs. */
static uint64_t index_slot(const fmt_index *x, const void *items, size_t stride, const char *name)
{
    uint64_t i = name_hash(x->seed, name) & (x->n_slots - 1);
    while (x->slots[i] != 0 && strcmp(item_name(items, stride, x->slots[i] - 1), name) != 0)
        i = (i + 1) & (x->n_slots - 1);
    return i;
}

/* Keeps at least half of the slots free for n items. */
static weir_status index_reserve(base_env *env, fmt_index *x, const void *items, size_t stride, uint32_t n,
                                 weir_error *err)
{
    if (x->n_slots >= 2 * (uint64_t)n) return WEIR_OK;
    fmt_index y = {.n_slots = x->n_slots == 0 ? 64 : x->n_slots * 2};
    y.slots = base_alloc_array(env, BASE_TAG_METADATA, y.n_slots, sizeof *y.slots, err);
    if (y.slots == NULL) return WEIR_ERR_OUT_OF_MEMORY;
    /* The address space's randomness and the clock are enough: the seed never shows in any result. */
    double now = base_now(env);
    memcpy(&y.seed, &now, sizeof now);
    y.seed ^= (uint64_t)(uintptr_t)y.slots;
    for (uint64_t i = 0; i < x->n_slots; i++) {
        if (x->slots[i] == 0) continue;
        const char *name = item_name(items, stride, x->slots[i] - 1);
        y.slots[index_slot(&y, items, stride, name)] = x->slots[i];
    }
    base_free(env, x->slots);
    *x = y;
    return WEIR_OK;
}

/* Room for one more item and its index entry; *slot is where the name goes. FORMAT for a name that is there.
 */
static weir_status list_reserve(base_env *env, void **items, size_t stride, uint32_t n, uint32_t *cap,
                                fmt_index *x, const char *name, uint64_t *slot, weir_error *err)
{
    if (n >= FMT_MAX_ITEMS)
        return base_fail(err, WEIR_ERR_UNSUPPORTED, "more than %u entries", FMT_MAX_ITEMS);
    if (n == *cap) {
        uint32_t more = *cap == 0 ? 32 : *cap + *cap / 2;
        uint64_t bytes;
        if (!base_mul(more, stride, &bytes)) return base_fail(err, WEIR_ERR_INTERNAL, "table size overflow");
        void *p = base_realloc(env, BASE_TAG_METADATA, *items, (size_t)bytes, err);
        if (p == NULL) return err != NULL ? err->code : WEIR_ERR_OUT_OF_MEMORY;
        *items = p;
        *cap = more;
    }
    weir_status s = index_reserve(env, x, *items, stride, n + 1, err);
    if (s != WEIR_OK) return err != NULL ? err->code : s;
    *slot = index_slot(x, *items, stride, name);
    if (x->slots[*slot] != 0)
        return base_fail(err, WEIR_ERR_FORMAT, "\"%.200s\" appears twice: the file is not valid", name);
    return WEIR_OK;
}

static uint32_t index_find(const fmt_index *x, const void *items, size_t stride, const char *name)
{
    return x->n_slots == 0 ? 0 : x->slots[index_slot(x, items, stride, name)];
}

const fmt_value *fmt_values_find(const fmt_values *l, const char *key)
{
    uint32_t i = index_find(&l->index, l->items, sizeof *l->items, key);
    return i == 0 ? NULL : &l->items[i - 1];
}

weir_status fmt_values_add(base_env *env, fmt_values *l, const fmt_value *v, const char *path,
                           weir_error *err)
{
    uint64_t slot;
    void *items = l->items;
    weir_status s = list_reserve(env, &items, sizeof *l->items, l->n, &l->cap, &l->index, v->key, &slot, err);
    l->items = items;
    if (s != WEIR_OK) return base_fail_context(err, s, "%s: metadata key", path);
    l->items[l->n++] = *v;
    l->index.slots[slot] = l->n;
    return WEIR_OK;
}

void fmt_values_finish(base_env *env, fmt_values *l)
{
    base_free(env, l->items);
    base_free(env, l->index.slots);
    *l = (fmt_values){0};
}

const fmt_tensor *fmt_tensors_find(const fmt_tensors *l, const char *name)
{
    uint32_t i = index_find(&l->index, l->items, sizeof *l->items, name);
    return i == 0 ? NULL : &l->items[i - 1];
}

weir_status fmt_tensors_add(base_env *env, fmt_tensors *l, const fmt_tensor *t, const char *path,
                            weir_error *err)
{
    uint64_t slot;
    void *items = l->items;
    weir_status s =
        list_reserve(env, &items, sizeof *l->items, l->n, &l->cap, &l->index, t->name, &slot, err);
    l->items = items;
    if (s != WEIR_OK) return base_fail_context(err, s, "%s: tensor", path);
    l->items[l->n++] = *t;
    l->index.slots[slot] = l->n;
    return WEIR_OK;
}

void fmt_tensors_finish(base_env *env, fmt_tensors *l)
{
    base_free(env, l->items);
    base_free(env, l->index.slots);
    *l = (fmt_tensors){0};
}

bool fmt_name_is_clean(const char *name, size_t len)
{
    for (size_t i = 0; i < len; i++)
        if ((unsigned char)name[i] < 0x20 || name[i] == 0x7f) return false;
    return true;
}

uint32_t fmt_type_bytes(uint32_t type)
{
    static const uint8_t bytes[] = {
        [FMT_U8] = 1,  [FMT_I8] = 1,   [FMT_U16] = 2, [FMT_I16] = 2, [FMT_U32] = 4, [FMT_I32] = 4,
        [FMT_F32] = 4, [FMT_BOOL] = 1, [FMT_U64] = 8, [FMT_I64] = 8, [FMT_F64] = 8};
    return type < sizeof bytes ? bytes[type] : 0;
}

const char *fmt_type_name(uint32_t type)
{
    static const char *const names[] = {
        [FMT_U8] = "u8",         [FMT_I8] = "i8",       [FMT_U16] = "u16", [FMT_I16] = "i16",
        [FMT_U32] = "u32",       [FMT_I32] = "i32",     [FMT_F32] = "f32", [FMT_BOOL] = "bool",
        [FMT_STRING] = "string", [FMT_ARRAY] = "array", [FMT_U64] = "u64", [FMT_I64] = "i64",
        [FMT_F64] = "f64"};
    return type < sizeof names / sizeof names[0] ? names[type] : "unknown type";
}

char *fmt_path_join(base_env *env, const char *dir, const char *name, weir_error *err)
{
    base_buf b;
    base_buf_init(&b, env, BASE_TAG_METADATA);
    size_t n = strlen(dir);
    const char *slash = n > 0 && dir[n - 1] == '/' ? "" : "/";
    if (base_buf_printf(&b, err, "%s%s%s", dir, slash, name) != WEIR_OK) {
        base_buf_finish(&b);
        return NULL;
    }
    return b.data;
}

char *fmt_path_dir(base_env *env, const char *path, weir_error *err)
{
    const char *slash = strrchr(path, '/');
    if (slash == NULL) return base_strdup(env, BASE_TAG_METADATA, ".", err);
    size_t len = slash == path ? 1 : (size_t)(slash - path);
    return base_strndup(env, BASE_TAG_METADATA, path, len, err);
}

bool fmt_path_ends(const char *path, const char *suffix)
{
    size_t n = strlen(path), k = strlen(suffix);
    return n >= k && memcmp(path + n - k, suffix, k) == 0;
}
