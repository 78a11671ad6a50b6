/* For other stand-ins: work in the order of a stream of kernels/simt/runtime.cc. */
#ifndef DTX_KERNELS_SIMT_RUNTIME_H
#define DTX_KERNELS_SIMT_RUNTIME_H

#include <functional>
#include <vector>

/* What work returns that waits for another rank: the stream stays there, and it is called again. */
enum { DTX_EMU_PENDING = -1 };

/* Calls work() when the stream comes to it; returns 0 or the fault of earlier work. While the stream is recorded it is
 * called at each launch of the record, which uses the allocations that these addresses lie in. */
int dtx_emu_submit(void *stream, std::function<int()> work, const std::vector<const void *> &addresses);
bool dtx_emu_records(void *stream);
/* Records of this thread that were not freed. */
extern "C" int dtx_emu_graphs(void);

#endif
