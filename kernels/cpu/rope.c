/* rope. */
#include "kernels/cpu/impl.h"

enum dtx_status dtx_cpu_rope(struct dtx_queue *queue, const struct dtx_rope_args *args)
{
    const int32_t *positions = args->positions.data;
    int64_t rows = args->x.dim[0] * args->x.dim[1];
    for (int64_t r = 0; positions && r < rows; r++)
        if (positions[r] < 0 || positions[r] >= args->table.dim[0])
            return dtx_fail(queue->backend->ctx, DTX_E_RANGE,
                            "rope: row %lld has position %d, but the table has %lld rows", (long long)r, positions[r],
                            (long long)args->table.dim[0]);
    dtx_cpu_parallel(queue, dtx_cpu_of(queue)->loops->rope[args->x.dtype], args, rows, 16);
    return DTX_OK;
}
