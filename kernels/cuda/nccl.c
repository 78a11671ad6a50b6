/* NCCL, opened at run time. */
#include "kernels/cuda/collectives.h"

#include <stdio.h>

#include "kernels/base/library.h"

enum { LEAST_VERSION = 21800 };

bool dtx_cuda_nccl_load(struct dtx_nccl *out, char *why, size_t size)
{
    const struct dtx_symbol symbols[] = {{"ncclGetVersion", &out->version},
                                         {"ncclGetErrorString", &out->error_text},
                                         {"ncclGetUniqueId", &out->unique_id},
                                         {"ncclCommInitRank", &out->init},
                                         {"ncclCommDestroy", &out->destroy},
                                         {"ncclCommAbort", &out->abort},
                                         {"ncclCommGetAsyncError", &out->async_error},
                                         {"ncclGroupStart", &out->group_start},
                                         {"ncclGroupEnd", &out->group_end},
                                         {"ncclAllGather", &out->all_gather},
                                         {"ncclBroadcast", &out->broadcast},
                                         {"ncclSend", &out->send},
                                         {"ncclRecv", &out->receive}};
    void *library = dtx_library_open("libnccl.so.2", symbols, sizeof symbols / sizeof *symbols, why, size);
    if (!library)
        return false;
    int version = 0;
    if (out->version(&version) != 0 || version < LEAST_VERSION) {
        snprintf(why, size, "libnccl.so.2 is version %d.%d.%d; dtx needs 2.18", version / 10000, version % 10000 / 100,
                 version % 100);
        dtx_library_close(library);
        return false;
    }
    return true;
}
