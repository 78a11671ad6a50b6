/* test: label=unit timeout=60 */
/* A rank takes the device of its number on its node; the peak that its speed is a share of is measured on that device;
 * where host memory cannot be pinned it is ordinary memory. With the code of the CUDA backend on the emulator. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cuda/cuda.h"
#include "kernels/peak.h"

/* Only the variables named are set. */
static void takes(const char *open_mpi, const char *slurm, const char *devices, const char *want)
{
    const char *const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "SLURM_LOCALID", "DTX_EMU_DEVICES"};
    const char *const values[] = {open_mpi, slurm, devices};
    for (int i = 0; i < 3; i++)
        if (values[i])
            setenv(names[i], values[i], 1);
        else
            unsetenv(names[i]);
    char why[256] = "", text[256] = "";
    if (!dtx_emu_available(why, sizeof why, text, sizeof text))
        fail_msg("%s", why);
    if (strncmp(text, want, strlen(want)) != 0)
        fail_msg("local rank %s, %s of %s devices: '%s', must be %s", open_mpi ? open_mpi : "-", slurm ? slurm : "-",
                 devices ? devices : "-", text, want);
}

static void local_ranks(void **state)
{
    (void)state;
    takes(NULL, NULL, NULL, "GPU 0:");
    takes(NULL, NULL, "8", "GPU 0:");
    takes("3", NULL, "8", "GPU 3:");
    takes(NULL, "7", "8", "GPU 7:");
    takes("2", "5", "8", "GPU 2:");
    takes("6", NULL, "4", "GPU 2:"); /* more ranks than devices share them */
    takes("1", NULL, "1", "GPU 0:");
}

static void peak(void **state)
{
    (void)state;
    struct dtx_ctx ctx;
    struct dtx_backend *backend;
    double flops = 0;
    setenv("DTX_EMU_STREAMS", "late", 1); /* nothing runs before it is waited for: who does not wait measures nothing */
    dtx_ctx_init(&ctx);
    if (dtx_backend_open(&ctx, "emu", 1, DTX_ISA_PLAIN, &backend) != DTX_OK ||
        dtx_peak_measure(&ctx, backend, DTX_BF16, 0.01, &flops) != DTX_OK)
        fail_msg("%s", ctx.error.text);
    assert_true(flops > 0 && flops < 1e12);
    dtx_backend_close(backend);
}

/* What is copied in, through the device and out again. */
static void host_memory(void **state)
{
    enum { N = 1000 };
    (void)state;
    static const char *const pinned[] = {"1", "0"};
    for (int i = 0; i < 2; i++) {
        struct dtx_ctx ctx;
        struct dtx_backend *b;
        struct dtx_queue *queue;
        void *memory, *device;
        unsigned char got[N];
        setenv("DTX_EMU_PINNED", pinned[i], 1);
        dtx_ctx_init(&ctx);
        if (dtx_backend_open(&ctx, "emu", 1, DTX_ISA_PLAIN, &b) != DTX_OK || b->queues->create(b, &queue) != DTX_OK ||
            b->memory->alloc(b, N, &device) != DTX_OK || b->memory->host_alloc(b, N, &memory) != DTX_OK)
            fail_msg("%s", ctx.error.text);
        for (int k = 0; k < N; k++)
            assert_int_equal(((unsigned char *)memory)[k], 0);
        memset(memory, 7, N);
        assert_int_equal(b->memory->copy_in(queue, device, memory, N), DTX_OK);
        assert_int_equal(b->memory->copy_out(queue, got, device, N), DTX_OK);
        assert_memory_equal(got, memory, N);
        b->memory->host_free(b, memory);
        b->memory->free(b, device);
        b->queues->free(queue);
        dtx_backend_close(b);
    }
    unsetenv("DTX_EMU_PINNED");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(local_ranks), cmocka_unit_test(peak),
                                       cmocka_unit_test(host_memory)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
