/* The tensor-core kernels by width and number of maps. */
#include "kernels/cuda/attn_mma_bwd.h"
#include "kernels/cuda/attn_mma_fwd.h"

static const struct {
    int d, maps;
    int (*fwd)(void *stream, const attn_job &job);
    int (*bwd)(void *stream, const attn_job &job);
} kernels[] = {
#define ROW(d, maps)                                                                                                   \
    {                                                                                                                  \
        d, maps, attn_fwd_start<d, maps>, attn_bwd_start<d, maps>                                                      \
    }
    ROW(32, 1), ROW(64, 1), ROW(96, 1), ROW(128, 1), ROW(32, 2), ROW(64, 2), ROW(96, 2), ROW(128, 2),
#undef ROW
};
enum { KERNELS = sizeof kernels / sizeof *kernels };

/* Copies take 16 bytes at a time. */
static bool is_aligned(const attn_job &job)
{
    const void *const list[] = {job.q, job.k, job.v, job.do_, job.o, job.o2, job.dq, job.dk, job.dv, job.norm.y};
    for (const void *p : list)
        if ((uintptr_t)p & 15)
            return false;
    return true;
}

static int find(const attn_job &job)
{
    if (!is_aligned(job))
        return -1;
    for (int i = 0; i < KERNELS; i++)
        if (kernels[i].d == job.d && kernels[i].maps == job.maps && job.dv_width == job.d * job.maps)
            return i;
    return -1;
}

bool DTX_DEVICE(attn_mma_has)(const attn_job &job)
{
    return find(job) >= 0;
}

int DTX_DEVICE(attn_mma_fwd)(void *stream, const attn_job &job)
{
    return kernels[find(job)].fwd(stream, job);
}

int DTX_DEVICE(attn_mma_bwd)(void *stream, const attn_job &job)
{
    return kernels[find(job)].bwd(stream, job);
}
