/*
 * What this machine has and what this process may use of it: the scheduler's affinity mask and the limits of its
 * control group (v1 and v2, the tightest of the group and its parents). Not collective.
 */
#ifndef DTX_KERNELS_BASE_HOST_H
#define DTX_KERNELS_BASE_HOST_H

#include <stdint.h>

struct dtx_host {
    char cpu_model[96];
    char cpu_features[160];       /* those that matter for dtx, as the kernel names them */
    int cores_online;             /* of the machine */
    int cores_affinity;           /* this process may be scheduled on so many */
    double cores_quota;           /* CPU time per time that the control group grants; 0: no limit */
    int cores_allowed;            /* threads that can run at once under both limits, at least 1 */
    int64_t memory_bytes;         /* of the machine */
    int64_t memory_limit_bytes;   /* of the control group; 0: no limit */
    int64_t memory_allowed_bytes; /* the smaller one */
};

/* Unknown values are 0 or empty. `root` stands before /proc and /sys: "" for the machine itself, a folder for tests. */
void dtx_host_read(const char *root, struct dtx_host *host);
/* Threads for each of `ranks` processes on this machine: the allowed cores, divided when the ranks share them (a
 * launcher that binds gives each its own). At least 1. */
int dtx_host_threads(const struct dtx_host *host, int ranks);

#endif
