/* What the manager tells is kept until its lock is given back, so that who hears of it may ask the manager.
 */
#include "mgr_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void mem_mgr_log(mgr_tier *t, base_log_level level, const char *format, ...)
{
    va_list args;
    if (t->env->log_fn == NULL) return;
    if (t->n_lines == MGR_LINES) {
        t->n_lost++;
        return;
    }
    mgr_line *line = &t->lines[(t->first_line + t->n_lines++) % MGR_LINES];
    line->level = level;
    va_start(args, format);
    vsnprintf(line->text, sizeof line->text, format, args);
    va_end(args);
}

/* Lines come out in their order, one at a time: while one is told, others may take the lock. */
static bool take_line(mgr_tier *t, mgr_line *out)
{
    if (t->n_lines != 0) {
        *out = t->lines[t->first_line];
        t->first_line = (t->first_line + 1) % MGR_LINES;
        t->n_lines--;
        return true;
    }
    if (t->n_lost == 0) return false;
    out->level = BASE_LOG_WARN;
    snprintf(out->text, sizeof out->text, "%u more lines of the memory manager found no room", t->n_lost);
    t->n_lost = 0;
    return true;
}

void mem_mgr_tell(mgr_tier *t)
{
    mgr_line line;
    while (t->n_lines + t->n_lost != 0 && take_line(t, &line)) {
        base_lock_leave(t->lock);
        base_log(t->env, line.level, "%s", line.text);
        base_lock_enter(t->lock);
    }
}

void mem_mgr_leave(mgr_tier *t)
{
    mem_mgr_tell(t);
    base_lock_leave(t->lock);
}
