/* What is on this machine: processor, limits, libraries, GPU, Slurm. Adds rows to the report; changes nothing. */
#ifndef DTX_LAUNCH_DOCTOR_FIND_H
#define DTX_LAUNCH_DOCTOR_FIND_H

#include "kernels/base/host.h"
#include "launch/doctor/report.h"

/* isa: that of the backend in use (enum dtx_isa). */
void dtx_find_processor(struct dtx_report *report, const struct dtx_host *host, int isa);
void dtx_find_memory(struct dtx_report *report, const struct dtx_host *host);
void dtx_find_libraries(struct dtx_report *report);
/* Loads the driver's library if there is one, and asks it. */
void dtx_find_gpu(struct dtx_report *report);
void dtx_find_slurm(struct dtx_report *report);

#endif
