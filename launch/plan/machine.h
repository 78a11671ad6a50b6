/*
 * What a cluster is made of, as far as the planner needs it: nodes of equal devices, their memory and speed, links
 * inside a node and between nodes. Shipped: a100, h100, h200, b200 (data sheets, dense figures) and cpu (this machine,
 * measured). Any other comes from a YAML file. Not collective.
 */
#ifndef DTX_LAUNCH_PLAN_MACHINE_H
#define DTX_LAUNCH_PLAN_MACHINE_H

#include "kernels/backend.h"
#include "kernels/base/opt.h"

struct dtx_machine {
    char name[96];
    int64_t devices_per_node;
    double memory_bytes, overhead_bytes;  /* of a device; what MPI, libraries and the driver take of it */
    double bf16_flops, fp32_flops;        /* a second, dense, of a device */
    double memory_speed;                  /* bytes a second of a device's own memory */
    double node_link, network_link;       /* bytes a second that one device sends, each way */
    double node_latency, network_latency; /* seconds of one collective or message */
    double efficiency;                    /* share of the FLOP/s that layers reach */
    bool host_memory;                     /* tensors lie in the host's memory: what the host needs besides counts too */
};

extern const struct dtx_opt_row dtx_machine_options[]; /* the keys of a machine's YAML file */

/* which: a shipped name, or a path of a YAML file (with a '/' or ending in .yaml). cpu: `ranks` processes share this
 * machine; the peak of `dtype` is measured on backend. */
enum dtx_status dtx_machine_find(struct dtx_ctx *ctx, const char *which, int ranks, enum dtx_dtype dtype,
                                 struct dtx_backend *backend, struct dtx_machine *out);
double dtx_machine_flops(const struct dtx_machine *machine, enum dtx_dtype dtype);

#endif
