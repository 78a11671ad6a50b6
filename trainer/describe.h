/* What a run is and what it runs on, found out and told when it begins. */
#ifndef DTX_TRAINER_DESCRIBE_H
#define DTX_TRAINER_DESCRIBE_H

#include "trainer/session.h"

/* Model, mesh, batch, data, memory, and where it goes on, by rank 0. peak_flops: of all ranks, 0 unknown. */
void dtx_describe_run(const struct dtx_session *session, const struct dtx_stream *stream, double peak_flops);
/* GEMM peak of all ranks together, measured at once on all (log.peak_seconds; 0: not); memory of the fullest rank.
 * Collective over the world. */
enum dtx_status dtx_describe_ranks(struct dtx_session *session, double *peak_flops, size_t *memory_bytes);

#endif
