/*
 * A table of text with a header: RFC 4180 (quoted cells, "" for a quote, CRLF), separated by commas, semicolons or
 * tabs, whichever the header has most of. Empty lines and lines that begin with # are passed over. Every row must have
 * as many cells as the header; faults name file and line.
 */
#ifndef DTX_LAUNCH_SWEEP_CSV_H
#define DTX_LAUNCH_SWEEP_CSV_H

#include <stdio.h>

#include "kernels/base/status.h"

struct dtx_csv {
    int columns;
    int64_t rows;
    char **header; /* [columns] */
    char **cells;  /* [rows][columns], without quotes and blanks around; never NULL */
    int64_t *line; /* [rows], from 1 */
    char *text;    /* owns all of them */
};

enum dtx_status dtx_csv_read(struct dtx_ctx *ctx, const char *path, struct dtx_csv *out);
/* The same from bytes, which are copied. */
enum dtx_status dtx_csv_parse(struct dtx_ctx *ctx, const char *name, const char *bytes, size_t n, struct dtx_csv *out);
void dtx_csv_free(struct dtx_csv *csv);

static inline const char *dtx_csv_cell(const struct dtx_csv *csv, int64_t row, int column)
{
    return csv->cells[row * csv->columns + column];
}

/* Writes one cell, in quotes where it needs them. */
void dtx_csv_put(FILE *file, const char *cell);

#endif
