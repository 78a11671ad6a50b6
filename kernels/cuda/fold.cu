/* Sums and maxima over rows in their order, for communicators. */
#include "kernels/cuda/impl.h"
#include "kernels/cuda/collectives.h"

/* A thread: an element. */
template <class T> DTX_KERNEL(THREADS, 1) fold_kernel(const T *from, T *to, int rows, int64_t count, bool maximum)
{
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count)
        return;
    T result = from[i];
    for (int r = 1; r < rows; r++) {
        T value = from[(int64_t)r * count + i];
        if (!maximum)
            result = result + value;
        else if (value > result || value != value)
            result = value;
    }
    to[i] = result;
}

template <class T>
static enum dtx_status fold(struct dtx_queue *queue, bool maximum, int rows, int64_t count, const void *from, void *to)
{
    return launch(queue, "fold", fold_kernel<T>, dtx_div_up(count, THREADS), THREADS, 0, (const T *)from, (T *)to, rows,
                  count, maximum);
}

enum dtx_status DTX_DEVICE(fold)(struct dtx_queue *queue, bool maximum, enum dtx_dtype dtype, int rows, int64_t count,
                                 const void *from, void *to)
{
    if (dtype == DTX_F64)
        return fold<double>(queue, maximum, rows, count, from, to);
    if (dtype == DTX_F32)
        return fold<float>(queue, maximum, rows, count, from, to);
    return maximum ? fold<int64_t>(queue, true, rows, count, from, to)
                   : fold<uint64_t>(queue, false, rows, count, from, to); /* sums wrap */
}
