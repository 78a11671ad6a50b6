/*
 * The backend `emu`: host memory, and the operations of the CUDA backend run in the emulator. Test builds only.
 * DTX_EMU_ORDER (fifo, lifo or random) in the environment says in which order threads run; fifo when it is absent.
 */
#ifndef DTX_KERNELS_SIMT_EMU_H
#define DTX_KERNELS_SIMT_EMU_H

#ifdef __cplusplus
extern "C" {
#endif

#include "kernels/backend.h"

enum dtx_status dtx_emu_open(struct dtx_ctx *ctx, int threads, int isa, struct dtx_backend **out);
void dtx_emu_close(struct dtx_backend *backend);

#ifdef __cplusplus
}
#endif

#endif
