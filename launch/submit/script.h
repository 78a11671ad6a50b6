/* A batch script: a template of launch/slurm with the lines of its head filled in. Not collective. */
#ifndef DTX_LAUNCH_SUBMIT_SCRIPT_H
#define DTX_LAUNCH_SUBMIT_SCRIPT_H

#include <stdio.h>

#include "kernels/base/opt.h"
#include "kernels/base/status.h"

enum { DTX_SCRIPT_LINES = 48, DTX_SCRIPT_TEXT = 16384 };

/* Lines of the head, each "#SBATCH --nodes=2" or "run=/scratch/run". One that the template has replaces its value
 * there, keeping the comment behind it, or drops it ("#SBATCH --signal="); further #SBATCH lines follow the template's.
 */
struct dtx_script {
    struct dtx_ctx *ctx;
    const char *template;       /* "train.sbatch" */
    char text[DTX_SCRIPT_TEXT]; /* the lines' texts */
    size_t used;
    const char *line[DTX_SCRIPT_LINES];
    int n;
    bool full; /* one did not fit */
};

void dtx_script_set(struct dtx_script *script, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Appends a word to the last line, quoted as bash needs it, behind a blank unless it is the first of a list. */
void dtx_script_word(struct dtx_script *script, const char *word);
/* Lines for the options time, partition, account and sbatch of whoever submits. */
void dtx_script_ask(struct dtx_script *script, const struct dtx_opt *opt);
void dtx_script_close_list(struct dtx_script *script); /* ends "options=(" */
enum dtx_status dtx_script_write(struct dtx_script *script, FILE *file);
/* Seconds of a limit as Slurm writes them: minutes, minutes:seconds, hours:minutes:seconds,
 * days-hours[:minutes[:seconds]]; 0 for other texts. */
double dtx_script_limit(const char *text);
/* The absolute path of this very program, for scripts; "dtx" where it is not known. */
void dtx_script_program(char *path, size_t bytes);
/* sbatch [option] path; waits for its answer, which it prints. option: "" for none. */
enum dtx_status dtx_script_submit(struct dtx_ctx *ctx, const char *path, const char *option);

#endif
