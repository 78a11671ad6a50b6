/* A fit for people, for programs, for tables. */
#ifndef DTX_LAUNCH_SWEEP_FIT_PRINT_H
#define DTX_LAUNCH_SWEEP_FIT_PRINT_H

#include <jansson.h>
#include <stdio.h>

#include "launch/sweep/figures.h"

void dtx_fit_print_table(const struct dtx_fit *fit, const struct dtx_figures *figures, FILE *file);
/* variant,method,quantity,at,unit,value,se,low,high,note; numbers that do not exist are empty. */
void dtx_fit_print_csv(const struct dtx_figures *figures, FILE *file);
/* A new reference; NULL without memory. argv: the words behind "dtx sweep fit". */
json_t *dtx_fit_json(const struct dtx_fit *fit, const struct dtx_figures *figures, int argc, char **argv);

/* What was not made of a variant's points, and why: calls `show` for each, laws first. */
void dtx_fit_each_missing(const struct dtx_fit *fit,
                          void (*show)(void *data, const char *variant, const char *what, const char *why), void *data);

#endif
