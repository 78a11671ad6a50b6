/* NCCL, opened at run time. */
#include "kernels/cuda/collectives.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum { LEAST_VERSION = 21800 };

bool dtx_cuda_nccl_load(struct dtx_nccl *out, char *why, size_t size)
{
    void *library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(why, size, "%s", dlerror());
        return false;
    }
    const struct {
        void *slot;
        const char *name;
    } list[] = {{&out->version, "ncclGetVersion"},
                {&out->error_text, "ncclGetErrorString"},
                {&out->unique_id, "ncclGetUniqueId"},
                {&out->init, "ncclCommInitRank"},
                {&out->destroy, "ncclCommDestroy"},
                {&out->abort, "ncclCommAbort"},
                {&out->group_start, "ncclGroupStart"},
                {&out->group_end, "ncclGroupEnd"},
                {&out->all_gather, "ncclAllGather"},
                {&out->broadcast, "ncclBroadcast"},
                {&out->send, "ncclSend"},
                {&out->receive, "ncclRecv"}};
    for (size_t i = 0; i < sizeof list / sizeof *list; i++) {
        void *function = dlsym(library, list[i].name);
        if (!function) {
            snprintf(why, size, "libnccl.so.2 has no %s", list[i].name);
            dlclose(library);
            return false;
        }
        memcpy(list[i].slot, &function, sizeof function);
    }
    int version = 0;
    if (out->version(&version) != 0 || version < LEAST_VERSION) {
        snprintf(why, size, "libnccl.so.2 is version %d.%d.%d; dtx needs 2.18", version / 10000, version % 10000 / 100,
                 version % 100);
        dlclose(library);
        return false;
    }
    return true;
}
