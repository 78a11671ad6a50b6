/* test: label=unit timeout=60 */
/* The limits of a process, read from made-up /proc and /sys trees and from the machine itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "kernels/base/host.h"

struct fixture {
    char root[32];
};

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof *f);
    strcpy(f->root, "/tmp/dtx_host_XXXXXX");
    *state = f;
    return mkdtemp(f->root) == NULL;
}

static void shell(const char *format, const char *root, const char *a, const char *b)
{
    char command[1024];
    snprintf(command, sizeof command, format, root, a, b);
    assert_int_equal(system(command), 0);
}

static int tear_down(void **state)
{
    struct fixture *f = *state;
    shell("rm -r %s%s%s", f->root, "", "");
    free(f);
    return 0;
}

static void put(struct fixture *f, const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof full, "%s%s", f->root, path);
    shell("mkdir -p \"$(dirname %s%s%s)\"", f->root, path, "");
    FILE *file = fopen(full, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
}

static void put_machine(struct fixture *f)
{
    put(f, "/proc/cpuinfo",
        "processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nflags\t\t: fpu avx avx2 fma avx512f xavx512bw\n\n"
        "processor\t: 1\nmodel name\t: Other\nflags\t\t: fpu\n\n");
    put(f, "/proc/meminfo", "MemTotal:       16000000 kB\nMemFree:        1 kB\n");
}

static void no_limits(void **state)
{
    struct fixture *f = *state;
    struct dtx_host host;
    put_machine(f);
    put(f, "/proc/self/cgroup", "0::/\n");
    put(f, "/sys/fs/cgroup/cpu.max", "max 100000\n");
    put(f, "/sys/fs/cgroup/memory.max", "max\n");
    dtx_host_read(f->root, &host);
    assert_string_equal(host.cpu_model, "Some CPU @ 2 GHz");
    assert_string_equal(host.cpu_features, "avx2 fma avx512f");
    assert_int_equal(host.cores_online, 2);
    assert_true(host.cores_quota == 0);
    assert_int_equal(host.cores_allowed, host.cores_affinity);
    assert_int_equal(host.memory_bytes, 16000000ll * 1024);
    assert_int_equal(host.memory_limit_bytes, 0);
    assert_int_equal(host.memory_allowed_bytes, host.memory_bytes);
}

/* The tightest of a group and its parents counts. */
static void groups_v2(void **state)
{
    struct fixture *f = *state;
    struct dtx_host host;
    put_machine(f);
    put(f, "/proc/self/cgroup", "0::/slurm/job_7/step_0\n");
    put(f, "/sys/fs/cgroup/slurm/job_7/step_0/cpu.max", "max 100000\n");
    put(f, "/sys/fs/cgroup/slurm/job_7/cpu.max", "50000 100000\n");
    put(f, "/sys/fs/cgroup/slurm/cpu.max", "400000 100000\n");
    put(f, "/sys/fs/cgroup/slurm/job_7/step_0/memory.max", "4294967296\n");
    put(f, "/sys/fs/cgroup/slurm/job_7/memory.max", "2147483648\n");
    dtx_host_read(f->root, &host);
    assert_true(host.cores_quota == 0.5);
    assert_int_equal(host.cores_allowed, 1);
    assert_int_equal(host.memory_limit_bytes, 2147483648ll);
    assert_int_equal(host.memory_allowed_bytes, 2147483648ll);
}

static void groups_v1(void **state)
{
    struct fixture *f = *state;
    struct dtx_host host;
    put_machine(f);
    put(f, "/proc/self/cgroup", "9:memory:/job\n4:cpu,cpuacct:/job\n3:cpuset:/job\n1:name=systemd:/x\n");
    put(f, "/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us", "100000\n");
    put(f, "/sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us", "100000\n");
    put(f, "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    put(f, "/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "1000000\n");
    put(f, "/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    dtx_host_read(f->root, &host);
    assert_true(host.cores_quota == 1);
    assert_int_equal(host.cores_allowed, 1);
    assert_int_equal(host.memory_limit_bytes, 1000000);
}

static void nothing_there(void **state)
{
    struct fixture *f = *state;
    struct dtx_host host;
    dtx_host_read(f->root, &host);
    assert_string_equal(host.cpu_model, "");
    assert_int_equal(host.cores_online, 0);
    assert_true(host.cores_allowed >= 1);
    assert_int_equal(host.memory_allowed_bytes, 0);
}

static void this_machine(void **state)
{
    (void)state;
    struct dtx_host host;
    cpu_set_t before, one;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    dtx_host_read("", &host);
    assert_int_equal(host.cores_affinity, CPU_COUNT(&before));
    assert_true(host.cores_allowed >= 1 && host.cores_allowed <= host.cores_affinity);
    assert_true(host.cores_online >= host.cores_affinity);
    assert_true(host.memory_allowed_bytes > 1 << 20 && host.memory_allowed_bytes <= host.memory_bytes);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE && CPU_COUNT(&one) == 0; i++)
        if (CPU_ISSET(i, &before))
            CPU_SET(i, &one);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    dtx_host_read("", &host);
    assert_int_equal(host.cores_affinity, 1);
    assert_int_equal(host.cores_allowed, 1);
    sched_setaffinity(0, sizeof before, &before);
}

static void threads(void **state)
{
    (void)state;
    struct dtx_host host = {.cores_online = 16, .cores_affinity = 16, .cores_allowed = 16};
    assert_int_equal(dtx_host_threads(&host, 1), 16);
    assert_int_equal(dtx_host_threads(&host, 4), 4);
    assert_int_equal(dtx_host_threads(&host, 5), 3);
    assert_int_equal(dtx_host_threads(&host, 64), 1);
    host.cores_allowed = 8; /* a quota of the control group that all share */
    assert_int_equal(dtx_host_threads(&host, 4), 2);
    host.cores_affinity = host.cores_allowed = 4; /* bound by the launcher */
    assert_int_equal(dtx_host_threads(&host, 4), 4);
    assert_int_equal(dtx_host_threads(&host, 8), 1);
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {TEST(no_limits),     TEST(groups_v2),    TEST(groups_v1),
                                       TEST(nothing_there), TEST(this_machine), cmocka_unit_test(threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
