/* The CUDA runtime behind runtime.h. The driver is looked for first: without it the runtime only says that it is old.
 */
#include "kernels/cuda/runtime.h"

#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <stdio.h>

/* Who called is told; the runtime must not tell whoever asks for its last error next, a launch
 * (kernels/device/launch.h), once more. What has broken the device shows again all the same. */
static int told(cudaError_t code)
{
    if (code != cudaSuccess)
        cudaGetLastError();
    return (int)code;
}

static const char *error_text(int code)
{
    return cudaGetErrorString((cudaError_t)code);
}

static int device_count(int *out)
{
    *out = 0;
    return told(cudaGetDeviceCount(out));
}

static int device_describe(int device, struct dtx_cuda_device *out)
{
    struct cudaDeviceProp p;
    cudaError_t code = cudaGetDeviceProperties(&p, device);
    if (code != cudaSuccess)
        return told(code);
    *out = (struct dtx_cuda_device){
        .major = p.major, .minor = p.minor, .processors = p.multiProcessorCount, .memory_bytes = p.totalGlobalMem};
    snprintf(out->name, sizeof out->name, "%.*s", (int)sizeof out->name - 1, p.name);
    return 0;
}

static int device_choose(int device)
{
    return told(cudaSetDevice(device));
}

static int alloc_memory(void **out, size_t bytes)
{
    return told(cudaMalloc(out, bytes));
}

static int free_memory(void *p)
{
    return told(cudaFree(p));
}

static int copy(void *to, const void *from, size_t bytes, void *stream)
{
    return told(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
}

static int zero(void *to, size_t bytes, void *stream)
{
    return told(cudaMemsetAsync(to, 0, bytes, stream));
}

static int memory_left(size_t *free_bytes, size_t *total)
{
    return told(cudaMemGetInfo(free_bytes, total));
}

static int host_alloc(void **out, size_t bytes)
{
    return told(cudaHostAlloc(out, bytes, cudaHostAllocDefault));
}

static int host_free(void *p)
{
    return told(cudaFreeHost(p));
}

static int stream_create(void **out, bool urgent)
{
    int least = 0, greatest = 0;
    cudaError_t code = cudaDeviceGetStreamPriorityRange(&least, &greatest);
    if (code != cudaSuccess)
        return told(code);
    return told(cudaStreamCreateWithPriority((cudaStream_t *)out, cudaStreamNonBlocking, urgent ? greatest : least));
}

static int stream_free(void *stream)
{
    return told(cudaStreamDestroy(stream));
}

static int stream_wait(void *stream)
{
    return told(cudaStreamSynchronize(stream));
}

static int event_create(void **out, bool timed)
{
    return told(cudaEventCreateWithFlags((cudaEvent_t *)out, timed ? cudaEventDefault : cudaEventDisableTiming));
}

static int event_free(void *event)
{
    return told(cudaEventDestroy(event));
}

static int event_record(void *event, void *stream)
{
    return told(cudaEventRecord(event, stream));
}

static int event_await(void *stream, void *event)
{
    return told(cudaStreamWaitEvent(stream, event, 0));
}

static int event_happened(void *event, bool *out)
{
    cudaError_t code = cudaEventQuery(event);
    told(code); /* "not ready", too, is kept as an error */
    *out = code == cudaSuccess;
    return code == cudaErrorNotReady ? 0 : (int)code;
}

static int event_seconds(void *from, void *to, double *out)
{
    float milliseconds = 0;
    cudaError_t code = cudaEventElapsedTime(&milliseconds, from, to);
    *out = 1e-3 * (double)milliseconds;
    return told(code);
}

static int capture_begin(void *stream)
{
    return told(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
}

static int capture_end(void *stream, void **graph)
{
    cudaGraph_t recorded = NULL;
    *graph = NULL;
    cudaError_t code = cudaStreamEndCapture(stream, &recorded);
    if (code != cudaSuccess)
        return told(code);
    code = cudaGraphInstantiate((cudaGraphExec_t *)graph, recorded, 0);
    cudaGraphDestroy(recorded);
    return told(code);
}

static int graph_launch(void *graph, void *stream)
{
    return told(cudaGraphLaunch(graph, stream));
}

static int graph_free(void *graph)
{
    return told(cudaGraphExecDestroy(graph));
}

static void *piece_cut(void *arena, size_t offset, size_t bytes)
{
    (void)bytes;
    return (char *)arena + offset;
}

static void piece_join(void *arena, void *piece)
{
    (void)arena;
    (void)piece;
}

static int wait_all(void)
{
    return told(cudaDeviceSynchronize());
}

static const struct dtx_cuda_runtime table = {.error_text = error_text,
                                              .device_count = device_count,
                                              .device_describe = device_describe,
                                              .device_choose = device_choose,
                                              .alloc = alloc_memory,
                                              .free = free_memory,
                                              .copy = copy,
                                              .zero = zero,
                                              .memory_left = memory_left,
                                              .host_alloc = host_alloc,
                                              .host_free = host_free,
                                              .stream_create = stream_create,
                                              .stream_free = stream_free,
                                              .stream_wait = stream_wait,
                                              .event_create = event_create,
                                              .event_free = event_free,
                                              .event_record = event_record,
                                              .event_await = event_await,
                                              .event_happened = event_happened,
                                              .event_seconds = event_seconds,
                                              .capture_begin = capture_begin,
                                              .capture_end = capture_end,
                                              .graph_launch = graph_launch,
                                              .graph_free = graph_free,
                                              .arena_alloc = alloc_memory,
                                              .arena_free = free_memory,
                                              .piece_cut = piece_cut,
                                              .piece_join = piece_join,
                                              .wait = wait_all};

const struct dtx_cuda_runtime *dtx_cuda_runtime(char *why, size_t size)
{
    /* Kept open: the runtime uses it. */
    if (!dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL)) {
        snprintf(why, size, "no NVIDIA driver (%s)", dlerror());
        return NULL;
    }
    int count, driver = 0;
    cudaError_t code = cudaGetDeviceCount(&count);
    cudaDriverGetVersion(&driver);
    if (code == cudaErrorInsufficientDriver)
        snprintf(why, size, "the NVIDIA driver supports CUDA %d.%d, but this build needs %d.%d: update the driver",
                 driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    else if (code == cudaErrorStubLibrary)
        snprintf(why, size, "libcuda.so.1 is the toolkit's stub, not a driver: take it out of LD_LIBRARY_PATH");
    else if (code == cudaErrorNoDevice || (code == cudaSuccess && count == 0))
        snprintf(why, size, "the driver is there but shows no GPU (CUDA_VISIBLE_DEVICES, or the job asked for none)");
    else if (code != cudaSuccess)
        snprintf(why, size, "the CUDA runtime fails: %s (%d)", cudaGetErrorString(code), (int)code);
    return code == cudaSuccess && count > 0 ? &table : NULL;
}
