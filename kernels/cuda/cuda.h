/*
 * The backend `cuda`: one GPU of compute capability 8.0 or higher, memory on it, a stream for each queue. The same
 * source is the backend `emu` of test builds: there the runtime and the device are emulated (kernels/simt).
 *
 * With several ranks on a node each takes the GPU of its number on the node (as MPI or Slurm gave it), modulo the
 * GPUs that it sees.
 */
#ifndef DTX_KERNELS_CUDA_CUDA_H
#define DTX_KERNELS_CUDA_CUDA_H

#include "kernels/backend.h"

/* Whether there is a device to open; else the reason in `why`. text (may be NULL): what would be opened, in words. */
bool dtx_cuda_available(char *why, size_t size, char *text, size_t text_size);
int dtx_cuda_count(void); /* devices, usable or not; 0 without a driver */
enum dtx_status dtx_cuda_open(struct dtx_ctx *ctx, int threads, int isa, struct dtx_backend **out);
void dtx_cuda_close(struct dtx_backend *backend);

extern const struct dtx_ranges dtx_cuda_ranges; /* NVTX (nvtx.c) */

bool dtx_emu_available(char *why, size_t size, char *text, size_t text_size);
int dtx_emu_count(void);
enum dtx_status dtx_emu_open(struct dtx_ctx *ctx, int threads, int isa, struct dtx_backend **out);
void dtx_emu_close(struct dtx_backend *backend);

#endif
