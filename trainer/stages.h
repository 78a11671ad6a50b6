/*
 * Stages of a run (`train.stages`): from so many target tokens on, other values of options that may change, as a
 * curriculum of lengths wants: "3e11 train.length=65536 model.rope_theta=640000; 3.1e11 lr.peak=1e-5". A value with
 * blanks or semicolons stands in single quotes. A stage begins with the first step that has all tokens before it, from
 * a checkpoint: its options are those of a run resumed there with these flags. Not collective.
 */
#ifndef DTX_TRAINER_STAGES_H
#define DTX_TRAINER_STAGES_H

#include "kernels/base/opt.h"

/* Sets the values of all stages that begin at or before `tokens`; what is wrong in any stage becomes a fault of opt. */
void dtx_stages_apply(struct dtx_opt *opt, int64_t tokens);
/* Where the first stage behind `tokens` begins; INT64_MAX: there is none. */
int64_t dtx_stages_next(const struct dtx_opt *opt, int64_t tokens);

#endif
