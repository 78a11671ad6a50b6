/* What a run is, told when it begins: model, mesh, batch, data, memory, and where it goes on. By rank 0. */
#ifndef DTX_TRAINER_DESCRIBE_H
#define DTX_TRAINER_DESCRIBE_H

#include "trainer/session.h"

/* peak_flops: of all ranks, 0 unknown. */
void dtx_describe_run(const struct dtx_session *session, const struct dtx_stream *stream, double peak_flops);

#endif
