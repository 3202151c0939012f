/* How far estimates of working memory were off, by engine and component (R9.3).
 *
 *   {"version": 2, "ratios": {"qwen3tts:talker": 1.32, ...}}
 *
 * The file only spares retries: whatever is wrong with it, one begins anew. */
#include "mgr_internal.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#define VERSION        2
#define FILE_MAX_BYTES ((size_t)64 << 10)
#define MOST           16.0

typedef struct mgr_ratio mgr_ratio;

static mgr_ratio *find(const mgr_tier *t, const char *key)
{
    for (uint32_t i = 0; i < t->n_ratios; i++)
        if (strcmp(t->ratios[i].key, key) == 0) return &t->ratios[i];
    return NULL;
}

static mgr_ratio *remember(mgr_tier *t, const char *key, double ratio)
{
    mgr_ratio *r = find(t, key);
    if (r == NULL) {
        if (t->n_ratios == MGR_MAX_RATIOS || strlen(key) >= sizeof r->key) return NULL;
        r = &t->ratios[t->n_ratios++];
        snprintf(r->key, sizeof r->key, "%s", key);
    }
    r->ratio = ratio;
    return r;
}

double mem_mgr_calibration(const mem_manager *m, const char *engine, const char *component)
{
    char key[2 * MEM_NAME_BYTES];
    snprintf(key, sizeof key, "%s:%s", engine, component);
    const mgr_ratio *r = find(m->tier, key);
    return r != NULL ? r->ratio : 1;
}

void mem_mgr_calibration_load(mem_manager *m)
{
    char *text;
    size_t len;
    const char *key;
    json_t *value;
    if (m->calibration_file[0] == '\0' || !base_file_exists(m->calibration_file)) return;
    if (base_file_slurp(m->env, m->calibration_file, FILE_MAX_BYTES, &text, &len, NULL) != WEIR_OK) return;
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
    base_free(m->env, text);
    base_lock_enter(m->tier->lock);
    if (json_integer_value(json_object_get(root, "version")) == VERSION) {
        json_object_foreach(json_object_get(root, "ratios"), key, value)
        {
            double ratio = json_number_value(value);
            if (ratio > 1 && ratio <= MOST) remember(m->tier, key, ratio);
        }
    }
    mem_mgr_leave(m->tier);
    json_decref(root);
}

/* The file's text, of jansson's memory; NULL: no memory. */
static char *text_of(const mgr_tier *t)
{
    json_t *root = json_object(), *ratios = json_object();
    char *text = NULL;
    int bad = root == NULL || ratios == NULL;
    for (uint32_t i = 0; i < t->n_ratios && !bad; i++)
        bad = json_object_set_new(ratios, t->ratios[i].key, json_real(t->ratios[i].ratio));
    bad = bad || json_object_set_new(root, "version", json_integer(VERSION)) != 0 ||
          json_object_set(root, "ratios", ratios) != 0;
    if (!bad) text = json_dumps(root, JSON_INDENT(1) | JSON_SORT_KEYS);
    json_decref(ratios);
    json_decref(root);
    return text;
}

static weir_status save(const mem_manager *m, const char *text, weir_error *err)
{
    base_writer *w;
    if (text == NULL) return base_fail(err, WEIR_ERR_OUT_OF_MEMORY, "no memory for the calibration file");
    weir_status status = base_writer_create(m->env, m->calibration_file, &w, err);
    if (status == WEIR_OK) {
        status = base_writer_write(w, text, strlen(text), err);
        if (status == WEIR_OK) status = base_writer_commit(w, err);
        base_writer_destroy(w);
    }
    return status;
}

void mem_mgr_calibration_save(mem_manager *m)
{
    mgr_tier *t = m->tier;
    weir_error err;
    json_free_t give_back;
    json_get_alloc_funcs(NULL, &give_back);
    base_lock_enter(t->lock);
    while (t->saving) base_lock_wait(t->lock, 1);
    t->saving = true;
    char *text = text_of(t);
    mem_mgr_leave(t);
    if (save(m, text, &err) != WEIR_OK)
        base_log(m->env, BASE_LOG_WARN, "what was measured is kept until the end only: %s", err.message);
    if (text != NULL) give_back(text);
    base_lock_enter(t->lock);
    t->saving = false;
    base_lock_wake(t->lock);
    mem_mgr_leave(t);
}

bool mem_mgr_calibrated(mem_handle *h, double ratio)
{
    mem_manager *m = h->m;
    char key[2 * MEM_NAME_BYTES];
    h->calibration = ratio;
    snprintf(key, sizeof key, "%s:%s", h->engine, h->component);
    return remember(m->tier, key, ratio) != NULL && m->calibration_file[0] != '\0';
}
