#include "kernels/base/library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

void *dtx_library_open(const char *name, const struct dtx_symbol *symbols, size_t count, char *why, size_t size)
{
    void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(why, size, "%s", dlerror());
        return NULL;
    }
    for (size_t i = 0; i < count; i++) {
        void *function = dlsym(library, symbols[i].name);
        if (!function) {
            snprintf(why, size, "%s has no %s", name, symbols[i].name);
            dlclose(library);
            return NULL;
        }
        memcpy(symbols[i].slot, &function, sizeof function);
    }
    return library;
}

void dtx_library_close(void *library)
{
    if (library)
        dlclose(library);
}
