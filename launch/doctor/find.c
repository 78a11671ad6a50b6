#include "launch/doctor/find.h"

#include <dnnl.h>
#include <hdf5.h>
#include <mpi.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/backend.h"
#include "kernels/base/library.h"

void dtx_find_processor(struct dtx_report *report, const struct dtx_host *host, int isa)
{
    dtx_report_text(report, "processor", "model", "model", "%s", host->cpu_model[0] ? host->cpu_model : "unknown");
    dtx_report_text(report, "processor", "features", "features", "%s",
                    host->cpu_features[0] ? host->cpu_features : "none that dtx uses");
    dtx_report_text(report, "processor", "isa", "instruction set", "%s%s", dtx_isa_name(isa),
                    isa < dtx_isa_detect() ? " (asked for; more is there)" : "");
    dtx_report_number(report, "processor", "cores_online", "cores", host->cores_online, "%d", host->cores_online);
    dtx_report_number(report, "processor", "cores_affinity", "  by affinity", host->cores_affinity, "%d",
                      host->cores_affinity);
    if (host->cores_quota > 0)
        dtx_report_number(report, "processor", "cores_quota", "  by cgroup", host->cores_quota, "%.2f",
                          host->cores_quota);
    else
        dtx_report_text(report, "processor", "cores_quota", "  by cgroup", "no limit");
    dtx_report_number(report, "processor", "cores_allowed", "  usable here", host->cores_allowed, "%d",
                      host->cores_allowed);
}

void dtx_find_memory(struct dtx_report *report, const struct dtx_host *host)
{
    const double gib = 1 << 30;
    dtx_report_number(report, "memory", "total_bytes", "of the machine", (double)host->memory_bytes, "%.1f GiB",
                      (double)host->memory_bytes / gib);
    if (host->memory_limit_bytes > 0)
        dtx_report_number(report, "memory", "limit_bytes", "  by cgroup", (double)host->memory_limit_bytes, "%.1f GiB",
                          (double)host->memory_limit_bytes / gib);
    else
        dtx_report_text(report, "memory", "limit_bytes", "  by cgroup", "no limit");
}

void dtx_find_libraries(struct dtx_report *report)
{
    char mpi[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    unsigned major = 0, minor = 0, release = 0;
    MPI_Get_library_version(mpi, &length); /* allowed before MPI_Init */
    mpi[strcspn(mpi, ",\n")] = '\0';
    dtx_report_text(report, "libraries", "mpi", "MPI", "%s", mpi);
    H5get_libversion(&major, &minor, &release);
    dtx_report_text(report, "libraries", "hdf5", "HDF5", "%u.%u.%u", major, minor, release);
    const dnnl_version_t *dnnl = dnnl_version();
    dtx_report_text(report, "libraries", "onednn", "oneDNN", "%d.%d.%d", dnnl->major, dnnl->minor, dnnl->patch);
}

/* The few functions of the CUDA driver that are asked; the driver comes with the machine, not with dtx. */
struct driver {
    int (*init)(unsigned);
    int (*version)(int *);
    int (*count)(int *);
    int (*get)(int *, int);
    int (*name)(char *, int, int);
    int (*memory)(size_t *, int);
};

static void find_devices(struct dtx_report *report, const struct driver *driver)
{
    int error = driver->init(0), version = 0, count = 0;
    driver->version(&version);
    if (error == 0)
        error = driver->count(&count);
    if (error != 0) {
        dtx_report_text(report, "gpu", "found", "GPU", "none: the driver is there, but cuInit returned %d%s", error,
                        error == 100 ? " (no device)" : "");
        return;
    }
    dtx_report_number(report, "gpu", "count", "GPUs", count, "%d", count);
    dtx_report_text(report, "gpu", "driver_cuda", "driver", "for CUDA %d.%d", version / 1000, version % 1000 / 10);
    int device = 0;
    char name[128] = "";
    size_t bytes = 0;
    if (count > 0 && driver->get(&device, 0) == 0 && driver->name(name, sizeof name, device) == 0 &&
        driver->memory(&bytes, device) == 0)
        dtx_report_text(report, "gpu", "first", "first", "%s, %.1f GiB", name, (double)bytes / (1 << 30));
}

static void find_driver(struct dtx_report *report)
{
    char why[256];
    struct driver driver;
    const struct dtx_symbol symbols[] = {
        {"cuInit", &driver.init},     {"cuDriverGetVersion", &driver.version}, {"cuDeviceGetCount", &driver.count},
        {"cuDeviceGet", &driver.get}, {"cuDeviceGetName", &driver.name},       {"cuDeviceTotalMem_v2", &driver.memory}};
    void *library = dtx_library_open("libcuda.so.1", symbols, sizeof symbols / sizeof *symbols, why, sizeof why);
    if (library)
        find_devices(report, &driver);
    else
        dtx_report_text(report, "gpu", "found", "GPU", "none: no driver (%s)", why);
    dtx_library_close(library);
}

void dtx_find_gpu(struct dtx_report *report)
{
    char text[256];
    find_driver(report);
    dtx_backend_device(text, sizeof text);
    dtx_report_text(report, "gpu", "backend", "backend cuda", "%s", text);
}

/* The first executable file `name` in PATH. */
static bool on_path(const char *name, char *out, size_t size)
{
    const char *path = getenv("PATH");
    while (path && *path) {
        int length = (int)strcspn(path, ":");
        if (snprintf(out, size, "%.*s/%s", length, path, name) < (int)size && access(out, X_OK) == 0)
            return true;
        path += length + (path[length] == ':');
    }
    return false;
}

void dtx_find_slurm(struct dtx_report *report)
{
    static const char *const variables[] = {"SLURM_JOB_ID", "SLURM_JOB_NUM_NODES", "SLURM_NTASKS", "SLURM_JOB_NODELIST",
                                            "SLURM_RESTART_COUNT"};
    static const char *const commands[] = {"sinfo", "squeue", "sbatch"};
    char path[512], found[1024] = "", job[1024] = "";
    size_t used = 0;
    for (size_t i = 0; i < sizeof commands / sizeof *commands && used < sizeof found; i++)
        if (on_path(commands[i], path, sizeof path))
            used += (size_t)snprintf(found + used, sizeof found - used, "%s%s", used ? " " : "", path);
    dtx_report_text(report, "slurm", "commands", "commands", "%s", used ? found : "none on the PATH");
    used = 0;
    for (size_t i = 0; i < sizeof variables / sizeof *variables && used < sizeof job; i++)
        if (getenv(variables[i]))
            used += (size_t)snprintf(job + used, sizeof job - used, "%s%s=%s", used ? " " : "", variables[i],
                                     getenv(variables[i]));
    dtx_report_text(report, "slurm", "job", "job", "%s", used ? job : "not inside one");
    const char *nodes = getenv("SLURM_JOB_NUM_NODES"), *fence = getenv("SLURM_PMIX_FENCE");
    if (nodes && atoi(nodes) > 1 && (!fence || strcmp(fence, "ring") != 0)) /* launch/slurm/README.md */
        dtx_report_text(report, "slurm", "fence", "fence", "%s",
                        "SLURM_PMIX_FENCE=ring is not set: without it ranks that srun starts may crash in MPI_Init");
}
