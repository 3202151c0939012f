/* Fault points. Ordinals count passages since the rule was armed, so that a failure replays. */
#define _GNU_SOURCE
#include "base_internal.h"
#include "base_lane.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RULES 16

typedef struct armed_rule {
    base_fault_rule rule;
    uint64_t start; /* the site's count when the rule was armed */
} armed_rule;

struct base_faults {
    pthread_mutex_t lock; /* held for all below; nothing else is locked under it */
    uint32_t n_rules;
    armed_rule rules[MAX_RULES];
    uint64_t counts[BASE_FAULT_COUNT];
};

static const char *const site_texts[BASE_FAULT_COUNT] = {
#define FAULT_TEXT(name, text) [BASE_FAULT_##name] = text,
    BASE_FAULT_MAP(FAULT_TEXT)
#undef FAULT_TEXT
};

const char *base_fault_text(base_fault_site site)
{
    return (unsigned)site < BASE_FAULT_COUNT ? site_texts[site] : "unknown";
}

weir_status base_fault_count_on(base_env *env, weir_error *err)
{
    if (env->faults != NULL) return WEIR_OK;
    /* Not through the ledger: it would be a passage of the very site that is counted. */
    base_faults *f = calloc(1, sizeof *f);
    if (f == NULL || pthread_mutex_init(&f->lock, NULL) != 0) {
        free(f);
        return base_fail(err, WEIR_ERR_OUT_OF_MEMORY, "the system refused %zu bytes for fault points",
                         sizeof *f);
    }
    env->faults = f;
    return WEIR_OK;
}

weir_status base_fault_arm(base_env *env, const base_fault_rule *rule, weir_error *err)
{
    if ((unsigned)rule->site >= BASE_FAULT_COUNT)
        return base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "fault site %d does not exist", (int)rule->site);
    weir_status status = base_fault_count_on(env, err);
    if (status != WEIR_OK) return status;
    base_faults *f = env->faults;
    pthread_mutex_lock(&f->lock);
    if (f->n_rules == MAX_RULES) {
        status = base_fail(err, WEIR_ERR_INVALID_ARGUMENT, "more than %d fault rules", MAX_RULES);
    } else {
        f->rules[f->n_rules++] = (armed_rule){.rule = *rule, .start = f->counts[rule->site]};
    }
    pthread_mutex_unlock(&f->lock);
    return status;
}

uint64_t base_fault_count(const base_env *env, base_fault_site site)
{
    if (env->faults == NULL || (unsigned)site >= BASE_FAULT_COUNT) return 0;
    pthread_mutex_lock(&env->faults->lock);
    uint64_t n = env->faults->counts[site];
    pthread_mutex_unlock(&env->faults->lock);
    return n;
}

void base_fault_clear(base_env *env)
{
    base_faults *f = env->faults;
    if (f == NULL) return;
    env->faults = NULL;
    pthread_mutex_destroy(&f->lock);
    free(f);
}

bool base_fault_slow(base_env *env, base_fault_site site, base_fault_rule *fired)
{
    base_faults *f = env->faults;
    bool fires = false;
    base_fault_rule rule = {0};
    pthread_mutex_lock(&f->lock);
    uint64_t ordinal = f->counts[site]++;
    for (uint32_t i = 0; i < f->n_rules && !fires; i++) {
        const armed_rule *a = &f->rules[i];
        if (a->rule.site != site || ordinal < a->start) continue;
        uint64_t since = ordinal - a->start;
        fires = a->rule.for_good ? since >= a->rule.after : since == a->rule.after;
        rule = a->rule;
    }
    pthread_mutex_unlock(&f->lock);
    if (!fires) return false;
    base_sleep(rule.delay_ms / 1000.0);
    if (rule.hold != NULL) rule.hold(rule.hold_arg);
    if (rule.passes) return false;
    if (fired != NULL) *fired = rule;
    return true;
}

/* Reads a decimal number that fills [p, end). */
static bool parse_number(const char *p, const char *end, uint64_t *out)
{
    uint64_t v = 0;
    if (p == end) return false;
    for (; p < end; p++) {
        if (*p < '0' || *p > '9') return false;
        if (!base_mul(v, 10, &v) || !base_add(v, (uint64_t)(*p - '0'), &v)) return false;
    }
    *out = v;
    return true;
}

static bool starts_with(const char *p, const char *end, const char *word)
{
    size_t n = strlen(word);
    return (size_t)(end - p) >= n && memcmp(p, word, n) == 0;
}

/* One field behind the site: the ordinal (index 1) or an option. */
static bool parse_field(base_fault_rule *rule, int index, const char *p, const char *end)
{
    uint64_t v;
    if (index == 1) return parse_number(p, end, &rule->after);
    if (starts_with(p, end, "for_good") && end - p == 8) {
        rule->for_good = true;
        return true;
    }
    if (starts_with(p, end, "errno=") && parse_number(p + 6, end, &v) && v <= 4095) {
        rule->error = (int)v;
        return true;
    }
    if (starts_with(p, end, "length=") && parse_number(p + 7, end, &v) && v <= INT64_MAX) {
        rule->length = (int64_t)v;
        return true;
    }
    if (starts_with(p, end, "missing=") && parse_number(p + 8, end, &v) && v > 0 && v <= INT64_MAX) {
        rule->missing = (int64_t)v;
        return true;
    }
    if (starts_with(p, end, "delay=") && parse_number(p + 6, end, &v) && v <= UINT32_MAX) {
        rule->delay_ms = (uint32_t)v;
        return true;
    }
    return false;
}

/* One rule in [p, end). */
static bool parse_rule(const char *p, const char *end, base_fault_rule *rule)
{
    *rule = (base_fault_rule){.length = -1, .site = BASE_FAULT_COUNT};
    int index = 0;
    for (;;) {
        const char *stop = memchr(p, ':', (size_t)(end - p));
        const char *field_end = stop != NULL ? stop : end;
        if (index == 0) {
            for (int s = 0; s < BASE_FAULT_COUNT; s++) {
                size_t n = strlen(site_texts[s]);
                if ((size_t)(field_end - p) == n && memcmp(p, site_texts[s], n) == 0) rule->site = s;
            }
            if (rule->site == BASE_FAULT_COUNT) return false;
        } else if (!parse_field(rule, index, p, field_end)) {
            return false;
        }
        index++;
        if (stop == NULL) return index >= 2;
        p = stop + 1;
    }
}

weir_status base_fault_parse(base_env *env, const char *text, weir_error *err)
{
    const char *p = text;
    while (*p != '\0') {
        const char *end = strchrnul(p, ',');
        base_fault_rule rule;
        if (!parse_rule(p, end, &rule))
            return base_fail(
                err, WEIR_ERR_INVALID_ARGUMENT,
                "fault rule \"%.*s\" is not site:after[:for_good][:errno=N][:length=N][:delay=MS]",
                (int)base_min((uint64_t)(end - p), 120), p);
        weir_status status = base_fault_arm(env, &rule, err);
        if (status != WEIR_OK) return status;
        p = *end == ',' ? end + 1 : end;
    }
    return WEIR_OK;
}
