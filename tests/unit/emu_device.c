/* test: label=unit timeout=60 */
/* A rank takes the device of its number on its node; the peak that its speed is a share of is measured on that device.
 * With the code of the CUDA backend on the emulator. */
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

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(local_ranks), cmocka_unit_test(peak)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
