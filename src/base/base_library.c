/* Opening libraries at run time. */
#include "base_library.h"
#include "base_alloc.h"

#include <dlfcn.h>

struct base_library {
    base_env *env;
    void *handle;
};

weir_status base_library_open(base_env *env, const char *const *names, base_library **out, weir_error *err)
{
    base_library *l = base_alloc(env, BASE_TAG_RUNTIME, sizeof(*l), err);
    const char *why;

    if (l == NULL) return err != NULL ? err->code : WEIR_ERR_OUT_OF_MEMORY;
    l->env = env;
    for (size_t i = 0; names[i] != NULL && l->handle == NULL; i++)
        l->handle = dlopen(names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (l->handle != NULL) {
        *out = l;
        return WEIR_OK;
    }
    why = dlerror();
    base_free(env, l);
    return base_fail(err, WEIR_ERR_NOT_FOUND, "library %s cannot be opened: %s", names[0],
                     why != NULL ? why : "no reason given");
}

void base_library_close(base_library *l)
{
    if (l == NULL) return;
    dlclose(l->handle);
    base_free(l->env, l);
}

void *base_library_symbol(const base_library *l, const char *name)
{
    return dlsym(l->handle, name);
}
