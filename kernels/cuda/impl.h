/*
 * What the kernels of the CUDA backend share: loads and stores of eight elements, groups of threads, the launch.
 *
 * Each .cu is compiled twice: by nvcc for the device (entry points dtx_cuda_<op>) and by g++ on the emulator of
 * kernels/simt (dtx_emu_<op>). A kernel reads everything that changes from step to step from the device's memory.
 */
#ifndef DTX_KERNELS_CUDA_IMPL_H
#define DTX_KERNELS_CUDA_IMPL_H

#include <cstdlib>

#include "kernels/device/block.h"
#include "kernels/device/launch.h"
#include "kernels/round.h"

extern "C" {
#include "kernels/base/mem.h"
}

/* PACK: elements that a thread takes at once, 16 bytes of bf16. THREADS: of a block, where nothing else is said. */
static const int PACK = 8, THREADS = 256, WARP = 32;

DTX_FN float dtx_exp(float x)
{
    return expf(x);
}
DTX_FN double dtx_exp(double x)
{
    return exp(x);
}
DTX_FN float dtx_sqrt(float x)
{
    return sqrtf(x);
}
DTX_FN double dtx_sqrt(double x)
{
    return sqrt(x);
}

/* What the device loads and stores at once. */
template <class T> struct alignas(16) dtx_chunk {
    T element[16 / sizeof(T)];
};

/* p[0 … PACK), of which `left` exist (the rest: 0). `aligned`: p is a multiple of 16 bytes. */
template <class T, class M> DTX_FN void load(const T *p, int64_t left, bool aligned, M (&out)[PACK])
{
    const int count = 16 / sizeof(T);
    if (aligned && left >= PACK) {
        DTX_UNROLL for (int c = 0; c < PACK / count; c++)
        {
            dtx_chunk<T> part = ((const dtx_chunk<T> *)p)[c];
            DTX_UNROLL for (int i = 0; i < count; i++) out[c * count + i] = dtx_load(&part.element[i]);
        }
        return;
    }
    DTX_UNROLL for (int i = 0; i < PACK; i++) out[i] = i < left ? (M)dtx_load(p + i) : (M)0;
}

template <class T, class M> DTX_FN void store(T *p, int64_t left, bool aligned, const M (&value)[PACK])
{
    const int count = 16 / sizeof(T);
    if (aligned && left >= PACK) {
        DTX_UNROLL for (int c = 0; c < PACK / count; c++)
        {
            dtx_chunk<T> part;
            DTX_UNROLL for (int i = 0; i < count; i++) dtx_store(&part.element[i], value[c * count + i]);
            ((dtx_chunk<T> *)p)[c] = part;
        }
        return;
    }
    DTX_UNROLL for (int i = 0; i < PACK; i++) if (i < left) dtx_store(p + i, value[i]);
}

/* The same at element i of memory that is bf16 or master, by a flag that is equal in all threads. */
template <class M> DTX_FN void load_at(const void *p, bool bf16, int64_t i, int64_t left, bool aligned, M (&out)[PACK])
{
    if (bf16)
        load((const dtx_bf16 *)p + i, left, aligned, out);
    else
        load((const M *)p + i, left, aligned, out);
}
DTX_FN void store_at(void *p, bool bf16, int64_t i, int64_t left, bool aligned, const float (&value)[PACK])
{
    if (bf16)
        store((dtx_bf16 *)p + i, left, aligned, value);
    else
        store((float *)p + i, left, aligned, value);
}
DTX_FN void store_at(void *p, bool, int64_t i, int64_t left, bool aligned, const double (&value)[PACK])
{
    store((double *)p + i, left, aligned, value);
}

/* Stochastically to bf16, in place. */
DTX_FN void round_all(float (&value)[PACK])
{
    DTX_UNROLL for (int i = 0; i < PACK; i++) value[i] = dtx_float_of(dtx_round_bits(dtx_bits_of(value[i])));
}
DTX_FN void round_all(double (&)[PACK])
{
}

/* The threads that work on one row: a warp, or the whole block of THREADS. */
template <bool WHOLE> struct group {
    static const int size = WHOLE ? THREADS : WARP, per_block = THREADS / size;
};
template <bool WHOLE> DTX_FN int group_lane()
{
    return (int)threadIdx.x % group<WHOLE>::size;
}
template <bool WHOLE> DTX_FN int64_t group_index()
{
    return (int64_t)blockIdx.x * group<WHOLE>::per_block + (int)threadIdx.x / group<WHOLE>::size;
}
/* A sum over the group, the same bits in every thread. scratch: WARP elements of shared memory. */
template <bool WHOLE, class M> DTX_FN M group_sum(M x, M *scratch)
{
    return WHOLE ? dtx_block_sum(x, scratch) : dtx_warp_sum(x);
}

/* The rest is host code. */

static inline bool is_aligned(const void *p)
{
    return ((uintptr_t)p & 15) == 0; /* also when absent */
}

/* Starts `blocks` blocks of a kernel on the queue. */
template <class... P, class... A>
static enum dtx_status launch(struct dtx_queue *queue, const char *op, void (*kernel)(P...), int64_t blocks,
                              int threads, size_t shared_bytes, A... args)
{
    if (blocks > INT32_MAX)
        return dtx_fail(queue->backend->ctx, DTX_E_RANGE, "%s: %lld blocks; a launch has at most %d", op,
                        (long long)blocks, INT32_MAX);
    int code = dtx_launch(DTX_DEVICE(stream)(queue), kernel, dim3((unsigned)blocks), dim3((unsigned)threads),
                          shared_bytes, args...);
    return DTX_DEVICE(launched)(queue, op, code);
}

/* call(T, M) for the dtype of activations. */
#define BY_ACT(dtype, call)                                                                                            \
    ((dtype) == DTX_F64 ? call(double, double) : (dtype) == DTX_F32 ? call(float, float) : call(dtx_bf16, float))

#endif
