/* NCCL, opened at run time. */
#include "kernels/cuda/collectives.h"

#include <stdio.h>

#include "kernels/base/library.h"

/* collectives.h speaks of NCCL without its header: the two must agree. */
#if defined(__has_include) && __has_include(<nccl.h>)
#include <nccl.h>
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 18, 0)
_Static_assert(offsetof(struct nccl_config, most_channels) == offsetof(ncclConfig_t, maxCTAs), "configuration");
_Static_assert(offsetof(struct nccl_config, split_share) == offsetof(ncclConfig_t, splitShare), "configuration");
_Static_assert(NCCL_UNSET == NCCL_CONFIG_UNDEF_INT && NCCL_BYTES == (int)ncclUint8, "numbers");
#endif
#endif

enum { LEAST_VERSION = 21800 };

bool dtx_cuda_nccl_load(struct dtx_nccl *out, char *why, size_t size)
{
    const struct dtx_symbol symbols[] = {{"ncclGetVersion", &out->version},
                                         {"ncclGetErrorString", &out->error_text},
                                         {"ncclGetUniqueId", &out->unique_id},
                                         {"ncclCommInitRankConfig", &out->init},
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
