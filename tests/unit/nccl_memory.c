/* test: label=unit ranks=1 timeout=60 */
/* NCCL's own memory: worked out by hand from the sizes that its documentation and sources give, and by its variables.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "kernels/backend.h"
#include "parallel/comm_nccl.h"

enum { MIB = 1 << 20 };

static const char *const names[] = {"NCCL_BUFFSIZE", "NCCL_LL_BUFFSIZE",   "NCCL_LL128_BUFFSIZE",
                                    "NCCL_MAX_CTAS", "NCCL_MAX_NCHANNELS", "NCCL_MAX_P2P_NCHANNELS"};

static void forget(void)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unsetenv(names[i]);
}

/* MiB for a communicator of `ranks` with a variable set. */
static int64_t with(const struct dtx_backend *backend, const char *name, const char *value, int ranks)
{
    if (name)
        setenv(name, value, 1);
    size_t bytes = dtx_comm_nccl_own_bytes(backend, ranks);
    forget();
    assert_int_equal(bytes % MIB, 0);
    return (int64_t)(bytes / MIB);
}

static void sizes(void **state)
{
    struct dtx_ctx ctx;
    struct dtx_backend *emu, *cpu;
    (void)state;
    dtx_ctx_init(&ctx);
    forget();
    assert_int_equal(dtx_backend_open(&ctx, "emu", 1, 0, &emu), DTX_OK);
    assert_int_equal(dtx_backend_open(&ctx, "cpu", 1, 0, &cpu), DTX_OK);
    assert_int_equal(dtx_comm_nccl_own_bytes(emu, 1), 0);
    assert_int_equal(dtx_comm_nccl_own_bytes(cpu, 8), 0);
    /* A link takes 10 + 2 MiB, 16 MiB are shared, a rank of the ring's node has 2 MiB; 16 channels. */
    assert_int_equal(with(emu, NULL, NULL, 2), 16 * (12 + 16) + 16 * (12 + 4));
    assert_int_equal(with(emu, NULL, NULL, 8), 16 * (7 * 12 + 16) + 16 * (12 + 16));
    assert_int_equal(with(emu, NULL, NULL, 64), with(emu, NULL, NULL, 8)); /* those of other nodes share */
    assert_int_equal(with(emu, "NCCL_BUFFSIZE", "1048576", 2), 16 * (10 + 16) + 16 * (10 + 4));
    assert_int_equal(with(emu, "NCCL_LL128_BUFFSIZE", "122880", 2), 16 * (8 + 16) + 16 * (8 + 4));
    assert_int_equal(with(emu, "NCCL_LL_BUFFSIZE", "4194304", 2), 16 * (16 + 16) + 16 * (16 + 4));
    assert_int_equal(with(emu, "NCCL_MAX_CTAS", "3", 2),
                     4 * (12 + 16) + 3 * (12 + 4)); /* exchanges take a power of two */
    assert_int_equal(with(emu, "NCCL_MAX_CTAS", "32", 8), 32 * (7 * 12 + 16) + 32 * (12 + 16));
    assert_int_equal(with(emu, "NCCL_MAX_NCHANNELS", "8", 2), 8 * (12 + 16) + 8 * (12 + 4));
    assert_int_equal(with(emu, "NCCL_MAX_P2P_NCHANNELS", "4", 8), 4 * (7 * 12 + 16) + 16 * (12 + 16));
    assert_int_equal(with(emu, "NCCL_MAX_CTAS", "none", 2), with(emu, NULL, NULL, 2));
    dtx_backend_close(emu);
    dtx_backend_close(cpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sizes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
