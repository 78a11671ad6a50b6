#include "kernels/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cuda/collectives.h"
#include "kernels/cuda/cuda.h"

static const char *const isa_names[] = {"plain", "avx2", "avx512", "avx512_bf16"};

const char *dtx_isa_name(int isa)
{
    return isa_names[isa];
}

bool dtx_isa_parse(const char *name, int *out)
{
    for (int i = 0; i < (int)(sizeof isa_names / sizeof *isa_names); i++)
        if (strcmp(name, isa_names[i]) == 0) {
            *out = i;
            return true;
        }
    return false;
}

int dtx_isa_detect(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (avx512 && __builtin_cpu_supports("avx512bf16"))
        return DTX_ISA_AVX512_BF16;
    if (avx512)
        return DTX_ISA_AVX512;
    if (avx2)
        return DTX_ISA_AVX2;
#endif
    return DTX_ISA_PLAIN;
}

void dtx_isa_limit_libraries(struct dtx_ctx *ctx, int isa)
{
    dtx_cpu_limit_libraries(ctx, isa);
}

#ifdef DTX_WITH_EMU
extern const struct dtx_collectives dtx_emu_collectives;
#endif

/* One row per backend, the best first. available: NULL for always; else whether it can be opened here, or why not. */
static const struct {
    const char *name;
    bool (*available)(char *why, size_t size, char *text, size_t text_size);
    enum dtx_status (*open)(struct dtx_ctx *, int threads, int isa, struct dtx_backend **);
    void (*close)(struct dtx_backend *);
    const struct dtx_collectives *collectives;
} backends[] = {
#ifdef DTX_WITH_CUDA
    {"cuda", dtx_cuda_available, dtx_cuda_open, dtx_cuda_close, &dtx_cuda_collectives},
#endif
    {"cpu", NULL, dtx_cpu_open, dtx_cpu_close, NULL},
#ifdef DTX_WITH_EMU
    {"emu", dtx_emu_available, dtx_emu_open, dtx_emu_close, &dtx_emu_collectives},
#endif
};

enum { BACKENDS = sizeof backends / sizeof *backends, WHY = 256 };

bool dtx_backend_device(char *text, size_t size)
{
#ifdef DTX_WITH_CUDA
    char why[WHY];
    bool available = dtx_cuda_available(why, sizeof why, text, size);
    if (!available)
        snprintf(text, size, "not usable: %s", why);
    return available;
#else
    snprintf(text, size, "this build has none (configure with -DDTX_CUDA=ON)");
    return false;
#endif
}

int dtx_backend_device_count(void)
{
#ifdef DTX_WITH_CUDA
    return dtx_cuda_count();
#else
    return 0;
#endif
}

const struct dtx_ranges *dtx_backend_ranges(void)
{
#ifdef DTX_WITH_CUDA
    return getenv("NVTX_INJECTION64_PATH") ? &dtx_cuda_ranges : NULL; /* set by the profiler */
#else
    return NULL;
#endif
}

static enum dtx_status refuse_name(struct dtx_ctx *ctx, const char *name)
{
    char names[64] = "auto";
    for (int i = 0; i < BACKENDS; i++) {
        strcat(names, ", ");
        strcat(names, backends[i].name);
    }
    return dtx_fail(ctx, DTX_E_CONFIG, "device: no backend '%s' in this build (there is: %s)%s", name, names,
                    strcmp(name, "cuda") == 0 ? "; configure with -DDTX_CUDA=ON where nvcc is" : "");
}

enum dtx_status dtx_backend_open(struct dtx_ctx *ctx, const char *name, int threads, int isa, struct dtx_backend **out)
{
    char why[WHY];
    if (threads < 1 || isa < DTX_ISA_PLAIN || isa > dtx_isa_detect())
        return dtx_fail(ctx, DTX_E_RANGE, "backend %s: %d threads, instruction set %d (this processor has up to %s)",
                        name, threads, isa, dtx_isa_name(dtx_isa_detect()));
    bool automatic = strcmp(name, "auto") == 0;
    for (int i = 0; i < BACKENDS; i++) {
        if (!automatic && strcmp(name, backends[i].name) != 0)
            continue;
        if (automatic && backends[i].available && !backends[i].available(why, sizeof why, NULL, 0)) {
            if (ctx->rank == 0)
                dtx_log(ctx, DTX_LOG_INFO, "device: computing on the CPU: %s", why);
            continue;
        }
        return backends[i].open(ctx, threads, isa, out);
    }
    return refuse_name(ctx, name);
}

void dtx_backend_close(struct dtx_backend *backend)
{
    if (!backend)
        return;
    for (int i = 0; i < BACKENDS; i++)
        if (strcmp(backend->name, backends[i].name) == 0) {
            backends[i].close(backend);
            return; /* it is no more */
        }
}

const struct dtx_collectives *dtx_backend_collectives(const struct dtx_backend *backend)
{
    for (int i = 0; i < BACKENDS; i++)
        if (strcmp(backend->name, backends[i].name) == 0)
            return backends[i].collectives;
    return NULL;
}

enum dtx_status dtx_tensor_alloc(struct dtx_backend *backend, struct dtx_tensor *t)
{
    void *data;
    DTX_TRY(backend->ctx, backend->memory->alloc(backend, dtx_tensor_bytes(t), &data));
    t->data = data;
    return DTX_OK;
}

size_t dtx_tensor_alloc_bytes(const struct dtx_tensor *t)
{
    return dtx_piece_bytes(dtx_tensor_bytes(t));
}

void dtx_tensor_free(struct dtx_backend *backend, struct dtx_tensor *t)
{
    if (t->data)
        backend->memory->free(backend, t->data);
    t->data = NULL;
}

enum dtx_status dtx_tensor_set(struct dtx_queue *queue, const struct dtx_tensor *t, const void *host)
{
    return queue->backend->memory->copy_in(queue, t->data, host, dtx_tensor_bytes(t));
}

enum dtx_status dtx_tensor_get(struct dtx_queue *queue, const struct dtx_tensor *t, void *host)
{
    return queue->backend->memory->copy_out(queue, host, t->data, dtx_tensor_bytes(t));
}

enum dtx_status dtx_tensor_zero(struct dtx_queue *queue, const struct dtx_tensor *t)
{
    return queue->backend->memory->zero(queue, t->data, dtx_tensor_bytes(t));
}
