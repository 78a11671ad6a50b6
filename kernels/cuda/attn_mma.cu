/* The mma.sync kernels by width and number of maps. */
#include "kernels/cuda/attn_mma_bwd.h"
#include "kernels/cuda/attn_mma_fwd.h"

template <int D, int MAPS> int DTX_DEVICE(attn_mma)<D, MAPS>::fwd(void *stream, const attn_job &job)
{
    return attn_fwd_start<D, MAPS>(stream, job);
}

template <int D, int MAPS> int DTX_DEVICE(attn_mma)<D, MAPS>::bwd(void *stream, const attn_job &job)
{
    return attn_bwd_start<D, MAPS>(stream, job);
}

template struct DTX_DEVICE(attn_mma)<32, 1>;
template struct DTX_DEVICE(attn_mma)<64, 1>;
template struct DTX_DEVICE(attn_mma)<96, 1>;
template struct DTX_DEVICE(attn_mma)<128, 1>;
template struct DTX_DEVICE(attn_mma)<32, 2>;
template struct DTX_DEVICE(attn_mma)<64, 2>;
template struct DTX_DEVICE(attn_mma)<96, 2>;
template struct DTX_DEVICE(attn_mma)<128, 2>;
