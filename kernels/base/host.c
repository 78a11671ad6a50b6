#include "kernels/base/host.h"

#include <ctype.h>
#include <math.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/base/mutant.h"

enum { PATH_LENGTH = 4096, LINE_LENGTH = 8192 };

/* The first line of folder/name without its newline; false when it cannot be read. */
static bool read_line(const char *folder, const char *name, char *out, int size)
{
    char path[PATH_LENGTH];
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= PATH_LENGTH)
        return false;
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    bool good = fgets(out, size, file) != NULL;
    fclose(file);
    if (good)
        out[strcspn(out, "\n")] = '\0';
    return good;
}

/* Appends those of `flags` (words between spaces) that dtx or its libraries use. */
static void pick_features(const char *flags, char *out, size_t size)
{
    static const char *const wanted[] = {"sse4_2",   "avx2",     "fma",         "f16c",        "avx512f",  "avx512bw",
                                         "avx512vl", "avx512dq", "avx512_bf16", "avx512_vnni", "amx_tile", "amx_bf16"};
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        size_t length = strlen(wanted[i]);
        for (const char *p = flags; (p = strstr(p, wanted[i])); p += length)
            if ((p == flags || p[-1] == ' ') && (p[length] == ' ' || p[length] == '\0')) {
                int n = snprintf(out + used, size - used, "%s%s", used ? " " : "", wanted[i]);
                used += n > 0 && (size_t)n < size - used ? (size_t)n : 0;
                break;
            }
    }
}

static void read_cpuinfo(const char *root, struct dtx_host *host)
{
    char path[PATH_LENGTH], line[LINE_LENGTH];
    snprintf(path, sizeof path, "%s/proc/cpuinfo", root);
    FILE *file = fopen(path, "r");
    if (!file)
        return;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *colon = strchr(line, ':');
        const char *value = colon ? colon + 1 + strspn(colon + 1, " ") : "";
        if (strncmp(line, "processor", 9) == 0)
            host->cores_online++;
        else if (strncmp(line, "model name", 10) == 0 && !host->cpu_model[0])
            snprintf(host->cpu_model, sizeof host->cpu_model, "%.*s", (int)sizeof host->cpu_model - 1, value);
        else if (strncmp(line, "flags", 5) == 0 && !host->cpu_features[0])
            pick_features(value, host->cpu_features, sizeof host->cpu_features);
    }
    fclose(file);
}

static int64_t read_total_memory(const char *root)
{
    char path[PATH_LENGTH], line[256];
    long long kib = 0;
    snprintf(path, sizeof path, "%s/proc/meminfo", root);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "MemTotal: %lld kB", &kib) == 1)
            break;
    if (file)
        fclose(file);
    return kib * 1024;
}

/* The CPU quota of one group, in cores; 0: none. */
static double quota_of(const char *folder, bool v2)
{
    char text[128];
    double quota = 0, period = 0;
    if (!read_line(folder, v2 ? "cpu.max" : "cpu.cfs_quota_us", text, sizeof text))
        return 0;
    if (v2)
        return sscanf(text, "%lf %lf", &quota, &period) == 2 && quota > 0 && period > 0 ? quota / period : 0;
    quota = strtod(text, NULL);
    if (quota <= 0 || !read_line(folder, "cpu.cfs_period_us", text, sizeof text))
        return 0;
    period = strtod(text, NULL);
    return period > 0 ? quota / period : 0;
}

/* The memory limit of one group in bytes; 0: none. */
static int64_t limit_of(const char *folder, bool v2)
{
    char text[128];
    const char *name = v2 ? "memory.max" : "memory.limit_in_bytes";
    if (!read_line(folder, name, text, sizeof text) || !isdigit((unsigned char)text[0]))
        return 0;
    return strtoll(text, NULL, 10);
}

/* Takes the limits of the group `path` under `mount` and of all its parents over. */
static void apply_group(struct dtx_host *host, const char *mount, char *path, bool v2, bool cpu, bool memory)
{
    for (;;) {
        char folder[PATH_LENGTH];
        if (strcmp(path, "/") == 0)
            *path = '\0';
        if (snprintf(folder, sizeof folder, "%s%s", mount, path) >= PATH_LENGTH)
            return;
        double quota = cpu ? quota_of(folder, v2) : 0;
        int64_t limit = memory ? limit_of(folder, v2) : 0;
        if (quota > 0 && (host->cores_quota == 0 || quota < host->cores_quota))
            host->cores_quota = quota;
        if (limit > 0 && limit < host->memory_bytes &&
            (host->memory_limit_bytes == 0 || limit < host->memory_limit_bytes))
            host->memory_limit_bytes = limit;
        char *slash = strrchr(path, '/');
        if (!slash || DTX_MUTANT(host_parent_limits_ignored))
            return;
        *slash = '\0';
    }
}

/* Each line of /proc/self/cgroup is "hierarchy:controllers:path"; v2 has no controllers. */
static void read_groups(const char *root, struct dtx_host *host)
{
    char path[PATH_LENGTH], line[LINE_LENGTH], mount[PATH_LENGTH];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        char *controllers = strchr(line, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = '\0';
        controllers++;
        bool v2 = *controllers == '\0';
        bool cpu = v2 || strcmp(controllers, "cpu") == 0 || strncmp(controllers, "cpu,", 4) == 0;
        bool memory = v2 || strcmp(controllers, "memory") == 0;
        int n = snprintf(mount, sizeof mount, "%s/sys/fs/cgroup%s%s", root, v2 ? "" : "/", controllers);
        if ((cpu || memory) && n > 0 && n < PATH_LENGTH)
            apply_group(host, mount, group, v2, cpu, memory);
    }
    if (file)
        fclose(file);
}

static int count_affinity(void)
{
    /* Machines may have more processors than cpu_set_t holds. */
    for (int n = 1024; n <= 1 << 20; n *= 4) {
        cpu_set_t *set = CPU_ALLOC(n);
        if (!set)
            return 0;
        size_t bytes = CPU_ALLOC_SIZE(n);
        int count = sched_getaffinity(0, bytes, set) == 0 ? CPU_COUNT_S(bytes, set) : 0;
        CPU_FREE(set);
        if (count > 0)
            return count;
    }
    return 0;
}

void dtx_host_read(const char *root, struct dtx_host *host)
{
    memset(host, 0, sizeof *host);
    read_cpuinfo(root, host);
    host->memory_bytes = read_total_memory(root);
    host->cores_affinity = count_affinity();
    read_groups(root, host);
    host->cores_allowed = host->cores_affinity;
    if (host->cores_quota > 0 && host->cores_quota < host->cores_allowed)
        host->cores_allowed = (int)ceil(host->cores_quota - 1e-9);
    if (host->cores_allowed < 1)
        host->cores_allowed = 1;
    host->memory_allowed_bytes = host->memory_limit_bytes ? host->memory_limit_bytes : host->memory_bytes;
}

int dtx_host_threads(const struct dtx_host *host, int ranks)
{
    bool shared = (int64_t)host->cores_affinity * ranks > host->cores_online;
    int threads = shared ? host->cores_allowed / ranks : host->cores_allowed;
    return threads < 1 ? 1 : threads;
}
