/* test: label=unit timeout=120 */
/* cuDNN itself, where it is installed, makes plans for a Hopper GPU that is not here of the graphs that `dtx bench
 * attention --peer cudnn` runs. */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "launch/bench/cudnn.h"

/* An H200 as cuDNN's own descriptor of a device has it. */
static const char h200[] =
    "{\"deviceName\":\"NVIDIA H200\",\"deviceVer\":900,\"driverVer\":13000,\"cudaDeviceId\":0,\"pciDeviceId\":0,"
    "\"maxGridSize\":[2147483647,65535,65535],\"maxBlockSize\":[1024,1024,64],\"regsPerBlock\":65536,"
    "\"multiProcessorCount\":132,\"warpSize\":32,\"maxSharedMemoryPerBlock\":49152,"
    "\"maxSharedMemoryPerBlockOptin\":232448,\"reservedSharedMemoryPerBlock\":1024,\"maxRegistersPerSM\":65536,"
    "\"maxCtasPerSM\":32,\"maxThreadsPerBlock\":1024,\"maxThreadsPerSM\":2048,\"isTccDriver\":0,"
    "\"supportCoopLaunch\":1,\"totalGlobalMem\":150000000000,\"smClockRateKHz\":1980000,"
    "\"memClockRateKHz\":3201000,\"l2CacheSize\":62914560,"
    "\"oversizedSharedMemoryPerBlock\":0,\"memoryBusWidth\":6144,\"smCountOrigin\":0}"; /* these since 9.20 to 9.28 */

enum { LENGTH = 4096, HEADS = 16 };

struct form {
    const char *name;
    int64_t heads, shared, d, dv; /* of q and k; of v */
    int64_t beside;               /* sub-heads of another call between two of this one */
};

static struct dtx_cudnn_tensor tensor(int64_t heads, int64_t width, int64_t beside)
{
    int64_t step = width * beside;
    return (struct dtx_cudnn_tensor){NULL, heads, width, LENGTH * heads * step, step, heads * step};
}

static void make(const struct dtx_cudnn *cudnn, const struct form *f, bool backward)
{
    static struct dtx_cudnn_plan plan;
    struct dtx_cudnn_attention a = {.batch = 1, .length = LENGTH, .scale = 0.125F};
    for (int i = 0; i < DTX_CUDNN_ROLES; i++) {
        bool v = i == DTX_CUDNN_V || i == DTX_CUDNN_DV, wide = i == DTX_CUDNN_O || i == DTX_CUDNN_DO;
        a.tensor[i] = tensor(v ? f->shared : f->heads, v || wide ? f->dv : f->d, v ? 1 : f->beside);
    }
    a.tensor[DTX_CUDNN_STATS] = (struct dtx_cudnn_tensor){NULL, f->heads, 1, f->heads * LENGTH, LENGTH, 1};
    bool made = dtx_cudnn_plan_make(cudnn, &a, backward, &plan);
    printf("cuDNN %s, sm_90, t %d: %s %s: %s engine %lld, workspace %zu\n", cudnn->version, LENGTH, f->name,
           backward ? "backward" : "forward", made ? "made," : plan.why, (long long)plan.engine,
           dtx_cudnn_work_bytes(&plan));
    assert_true(made);
    dtx_cudnn_plan_free(&plan);
}

static void plans(void **state)
{
    static const struct form forms[] = {{"two calls d 64/128", HEADS, HEADS, 64, 128, 2},
                                        {"one call d 128/256", 2 * HEADS, HEADS, 128, 256, 1}};
    for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
        make(*state, &forms[i], false);
        make(*state, &forms[i], true);
    }
}

/* With cuDNN's own attempt to open the driver answered by a stand-in. False: it is missing, too old, or so new that it
 * wants to know more of a device. */
static bool possible(struct dtx_cudnn *cudnn)
{
    char driver[4096], why[512] = "";
    const char *build = getenv("DTX_BUILD");
#ifdef __SANITIZE_ADDRESS__
    printf("cuDNN's own leaks would be reported\n");
    return false;
#endif
    snprintf(driver, sizeof driver, "%s/tests/cudnn/libcuda.so.1", build ? build : "build");
    bool good = dlopen("libcudnn.so.9", RTLD_NOW) && dlopen(driver, RTLD_NOW | RTLD_GLOBAL) &&
                dtx_cudnn_open(cudnn, NULL, h200, why, sizeof why);
    if (!good)
        printf("%s\n", why[0] ? why : dlerror());
    return good;
}

/* Argument --possible: is that so? */
int main(int argc, char **argv)
{
    struct dtx_cudnn cudnn;
    bool good = possible(&cudnn);
    if (argc > 1 && strcmp(argv[1], "--possible") == 0)
        return !good;
    if (!good)
        return 77;
    const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(plans, &cudnn)};
    int failures = cmocka_run_group_tests(tests, NULL, NULL);
    dtx_cudnn_close(&cudnn);
    return failures;
}
