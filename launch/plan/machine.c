#include "launch/plan/machine.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/host.h"
#include "kernels/base/mem.h"
#include "kernels/peak.h"
#include "launch/doctor/measure.h"

#define GIB 1073741824.0

/* Memory as the driver reports it; NVLink and one network card a device, each way. fp32 without tensor cores. */
static const struct dtx_machine shipped[] = {
    {"a100", 8, 79.1 * GIB, 2.5 * GIB, 312e12, 19.5e12, 2.0e12, 300e9, 25e9, 1e-5, 3e-5, 0.5, false},
    {"h100", 8, 79.1 * GIB, 2.5 * GIB, 989e12, 67e12, 3.35e12, 450e9, 50e9, 1e-5, 3e-5, 0.5, false},
    {"h200", 8, 139.8 * GIB, 2.5 * GIB, 989e12, 67e12, 4.8e12, 450e9, 50e9, 1e-5, 3e-5, 0.5, false},
    {"b200", 8, 178.0 * GIB, 2.5 * GIB, 2250e12, 75e12, 7.7e12, 900e9, 50e9, 1e-5, 3e-5, 0.5, false},
};
enum { SHIPPED = sizeof shipped / sizeof *shipped };

const struct dtx_opt_row dtx_machine_options[] = {
    {"name", DTX_OPT_TEXT, "", NULL, DTX_OPT_FREE, "what the table calls it"},
    {"devices_per_node", DTX_OPT_INT, "8", "1..1000000", DTX_OPT_FREE, "GPUs of a node, one rank each"},
    {"memory_bytes", DTX_OPT_REAL, "0", "0..", DTX_OPT_FREE, "memory of a device"},
    {"overhead_bytes", DTX_OPT_REAL, "2684354560", "0..", DTX_OPT_FREE, "what driver, libraries and MPI take of it"},
    {"bf16_flops", DTX_OPT_REAL, "0", "0..", DTX_OPT_FREE, "dense bf16 FLOP/s of a device"},
    {"fp32_flops", DTX_OPT_REAL, "0", "0..", DTX_OPT_FREE, "fp32 FLOP/s of a device"},
    {"memory_speed", DTX_OPT_REAL, "1e12", "1..", DTX_OPT_FREE, "bytes a second of a device's memory"},
    {"node_link", DTX_OPT_REAL, "0", "0..", DTX_OPT_FREE, "bytes a second a device sends within its node"},
    {"network_link", DTX_OPT_REAL, "0", "0..", DTX_OPT_FREE, "bytes a second a device sends to other nodes"},
    {"node_latency", DTX_OPT_REAL, "1e-5", "0..1", DTX_OPT_FREE, "seconds of one message or collective in a node"},
    {"network_latency", DTX_OPT_REAL, "3e-5", "0..1", DTX_OPT_FREE, "seconds of one between nodes"},
    {"host_memory", DTX_OPT_BOOL, "false", NULL, DTX_OPT_FREE, "devices are CPUs: host memory counts too"},
    {"efficiency", DTX_OPT_REAL, "0.5", "0.001..1", DTX_OPT_FREE, "share of the FLOP/s that layers reach"},
    {NULL, 0, NULL, NULL, 0, NULL},
};

static enum dtx_status read_file(struct dtx_ctx *ctx, const char *path, struct dtx_machine *out)
{
    const struct dtx_opt_row *const tables[] = {dtx_machine_options};
    static const char *const needed[] = {"memory_bytes", "bf16_flops", "fp32_flops", "node_link", "network_link"};
    struct dtx_opt *opt;
    DTX_TRY(ctx, dtx_opt_create(ctx, tables, 1, &opt));
    enum dtx_status status = dtx_opt_load_file(ctx, opt, path, DTX_OPT_FILE);
    for (size_t i = 0; i < sizeof needed / sizeof *needed && status == DTX_OK; i++)
        if (dtx_opt_real(opt, needed[i]) <= 0)
            dtx_opt_fault(opt, "%s: a machine needs %s", path, needed[i]);
    if (status == DTX_OK)
        status = dtx_opt_check(ctx, opt);
    *out = (struct dtx_machine){.devices_per_node = dtx_opt_int(opt, "devices_per_node"),
                                .memory_bytes = dtx_opt_real(opt, "memory_bytes"),
                                .overhead_bytes = dtx_opt_real(opt, "overhead_bytes"),
                                .bf16_flops = dtx_opt_real(opt, "bf16_flops"),
                                .fp32_flops = dtx_opt_real(opt, "fp32_flops"),
                                .memory_speed = dtx_opt_real(opt, "memory_speed"),
                                .node_link = dtx_opt_real(opt, "node_link"),
                                .network_link = dtx_opt_real(opt, "network_link"),
                                .node_latency = dtx_opt_real(opt, "node_latency"),
                                .network_latency = dtx_opt_real(opt, "network_latency"),
                                .efficiency = dtx_opt_real(opt, "efficiency"),
                                .host_memory = dtx_opt_bool(opt, "host_memory")};
    const char *name = dtx_opt_text(opt, "name");
    snprintf(out->name, sizeof out->name, "%s", *name ? name : path);
    dtx_opt_free(opt);
    return status;
}

/* This machine, shared evenly by its ranks: what `dtx doctor` finds and measures. Links between processes are assumed,
 * since one process cannot measure them: a quarter of the memory's speed within the machine, 10 GbE beyond. */
static enum dtx_status read_host(struct dtx_ctx *ctx, int ranks, enum dtx_dtype dtype, struct dtx_backend *backend,
                                 struct dtx_machine *out)
{
    struct dtx_host host;
    double flops, triad;
    dtx_host_read("", &host);
    int per_node = ranks < host.cores_allowed ? ranks : host.cores_allowed;
    DTX_TRY(ctx, dtx_peak_measure(ctx, backend, dtype == DTX_BF16 ? DTX_BF16 : DTX_F32, 0.2, &flops));
    DTX_TRY(ctx, dtx_measure_triad(ctx, backend->threads, host.memory_allowed_bytes, 0.1, &triad));
    double share = flops * host.cores_allowed / backend->threads / per_node;
    *out = (struct dtx_machine){.devices_per_node = per_node,
                                .memory_bytes = (double)host.memory_allowed_bytes / per_node,
                                .overhead_bytes = 256 * 1048576.0,
                                .bf16_flops = share,
                                .fp32_flops = share,
                                .memory_speed = triad / per_node,
                                .node_link = triad / per_node / 4,
                                .network_link = 1.25e9,
                                .node_latency = 1e-5,
                                .network_latency = 5e-5,
                                .efficiency = 0.6,
                                .host_memory = true};
    snprintf(out->name, sizeof out->name, "cpu (%.80s)", host.cpu_model);
    return DTX_OK;
}

enum dtx_status dtx_machine_find(struct dtx_ctx *ctx, const char *which, int ranks, enum dtx_dtype dtype,
                                 struct dtx_backend *backend, struct dtx_machine *out)
{
    size_t length = strlen(which);
    if (strchr(which, '/') || (length > 5 && strcmp(which + length - 5, ".yaml") == 0))
        return read_file(ctx, which, out);
    if (strcmp(which, "cpu") == 0)
        return read_host(ctx, ranks, dtype, backend, out);
    for (int i = 0; i < SHIPPED; i++)
        if (strcmp(which, shipped[i].name) == 0) {
            *out = shipped[i];
            return DTX_OK;
        }
    char known[128] = "";
    for (int i = 0; i < SHIPPED; i++)
        snprintf(known + strlen(known), sizeof known - strlen(known), "%.16s, ", shipped[i].name);
    return dtx_fail(ctx, DTX_E_CONFIG, "machine: there is no '%s'; there are: %scpu, or a YAML file's path", which,
                    known);
}

double dtx_machine_flops(const struct dtx_machine *m, enum dtx_dtype dtype)
{
    return dtype == DTX_BF16 ? m->bf16_flops : dtype == DTX_F64 ? m->fp32_flops / 2 : m->fp32_flops;
}
