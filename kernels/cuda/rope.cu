/* rope. */
#include "kernels/cuda/impl.h"

template <class T> struct rope_job {
    typedef typename dtx_wide<T>::type M;
    const T *x;
    T *y;
    const M *table;
    const int32_t *positions;
    int64_t t, first, table_rows;
    int heads, d;
    M sign;
    bool aligned;
};

/* A block: a row (b, t). A position outside the table gives NaN: the device cannot refuse it. */
template <class T, class M> DTX_KERNEL(THREADS, 1) rope_kernel(DTX_ARGUMENT(struct rope_job<T>) job)
{
    int64_t row = blockIdx.x;
    int64_t position =
        job.positions ? job.positions[row]
                      : job.first + row % job.t + (DTX_MUTANT(cuda_rope_position_off_by_one) && job.first ? -1 : 0);
    bool inside = position >= 0 && position < job.table_rows;
    const M *table = job.table + (inside ? position : 0) * job.d;
    int packs = (job.d + PACK - 1) / PACK;
    for (int unit = threadIdx.x; unit < job.heads * packs; unit += THREADS) {
        int i = unit % packs * PACK, left = job.d - i;
        int64_t at = (row * job.heads + unit / packs) * job.d + i;
        M v[PACK], angle[PACK], out[PACK];
        load(job.x + at, left, job.aligned, v);
        load(table + i, left, job.aligned, angle);
        for (int e = 0; e < PACK; e += 2) {
            M c = inside ? angle[e] : (M)NAN, s = angle[e + 1] * job.sign;
            out[e] = v[e] * c - v[e + 1] * s;
            out[e + 1] = v[e + 1] * c + v[e] * s;
        }
        store(job.y + at, left, job.aligned, out);
    }
}

template <class T, class M> static enum dtx_status rope(struct dtx_queue *queue, const struct dtx_rope_args *args)
{
    const int64_t *dim = args->x.dim;
    rope_job<T> job = {.x = (const T *)args->x.data,
                       .y = (T *)args->y.data,
                       .table = (const M *)args->table.data,
                       .positions = (const int32_t *)args->positions.data,
                       .t = dim[1],
                       .first = args->first,
                       .table_rows = args->table.dim[0],
                       .sign = args->inverse ? (M)-1 : (M)1};
    DTX_TRY(queue->backend->ctx, dtx_narrow_int(queue->backend->ctx, dim[2], "heads of rope", &job.heads));
    DTX_TRY(queue->backend->ctx, dtx_narrow_int(queue->backend->ctx, dim[3], "head width of rope", &job.d));
    job.aligned = job.d % PACK == 0 && is_aligned(job.x) && is_aligned(job.y) && is_aligned(job.table);
    return launch(queue, "rope", rope_kernel<T, M>, dim[0] * dim[1], THREADS, 0, job);
}

enum dtx_status DTX_DEVICE(rope)(struct dtx_queue *queue, const struct dtx_rope_args *args)
{
#define CALL(T, M) rope<T, M>(queue, args)
    return BY_ACT(args->x.dtype, CALL);
#undef CALL
}
