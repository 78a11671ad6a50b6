/*
 * The training loop on the ranks of a test, which may put faults into the configuration: what dtx_session_open makes,
 * without a command line, with a world that several runs share. The model is a small one of fixed size. All functions
 * are collective; what goes wrong ends all ranks.
 */
#ifndef DTX_TESTS_HARNESS_LOOP_RUN_H
#define DTX_TESTS_HARNESS_LOOP_RUN_H

#include "trainer/session.h"

/* A folder in TMPDIR with a token file `data`; its path on all ranks. */
void loop_folder_make(struct dtx_comm *world, char *folder, size_t bytes);
void loop_folder_remove(struct dtx_comm *world, const char *folder);

/* Options and configuration of run `name` in the folder; options [n]: keys and values besides those of the model. */
void loop_configure(struct dtx_comm *world, const char *folder, const char *name, const char *const (*options)[2],
                    size_t n, struct dtx_session *s);
/* Backend and engine of the configuration as it is now. */
void loop_open(struct dtx_session *s);
void loop_close(struct dtx_session *s);
/* dtx_loop_run; text: what this rank wrote to standard error meanwhile. */
enum dtx_status loop_run(struct dtx_session *s, char *text, size_t bytes);
int loop_count(const char *text, const char *word);

#endif
