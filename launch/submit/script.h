/* The batch script of a run: launch/slurm/train.sbatch with the lines of its head filled in. Not collective. */
#ifndef DTX_LAUNCH_SUBMIT_SCRIPT_H
#define DTX_LAUNCH_SUBMIT_SCRIPT_H

#include <stdio.h>

#include "kernels/base/status.h"

enum { DTX_SCRIPT_LINES = 48, DTX_SCRIPT_TEXT = 16384 };

/* Lines of the head, each "#SBATCH --nodes=2" or "run=/scratch/run". One that the template has replaces its value
 * there, keeping the comment behind it, or drops it ("#SBATCH --signal="); further #SBATCH lines follow the template's.
 */
struct dtx_script {
    struct dtx_ctx *ctx;
    char text[DTX_SCRIPT_TEXT]; /* the lines' texts */
    size_t used;
    const char *line[DTX_SCRIPT_LINES];
    int n;
    bool full; /* one did not fit */
};

void dtx_script_set(struct dtx_script *script, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Appends a word to the last line, quoted as bash needs it, behind a blank unless it is the first of a list. */
void dtx_script_word(struct dtx_script *script, const char *word);
void dtx_script_close_list(struct dtx_script *script); /* ends "options=(" */
enum dtx_status dtx_script_write(struct dtx_script *script, FILE *file);

#endif
