/*
 * Progress of work that is counted in bytes, for people: on a terminal one live line with share, speed and time left,
 * redrawn at most five times a second; elsewhere a plain line every half minute. And the formats that all progress
 * uses. Plain data, no memory, not thread-safe; one process prints.
 */
#ifndef DTX_KERNELS_BASE_METER_H
#define DTX_KERNELS_BASE_METER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct dtx_meter {
    FILE *file;
    const char *what; /* "export"; belongs to the caller */
    bool live, drawn;
    int64_t done, total;
    double start, last;
};

/* total 0: not known. Time runs from here. */
void dtx_meter_start(struct dtx_meter *meter, FILE *file, const char *what, int64_t total);
/* `bytes` more are done. Accepts NULL. */
void dtx_meter_add(struct dtx_meter *meter, int64_t bytes);
/* Wipes the live line, so that something can be printed; the next add draws it again. */
void dtx_meter_clear(struct dtx_meter *meter);

/* A terminal that can redraw a line; its width (the variable COLUMNS, else 80, where it cannot be asked). */
bool dtx_terminal_live(FILE *file);
int dtx_terminal_width(FILE *file);

/* "7s", "3m05s", "2h07m", "3d04h"; "?" for NaN. */
void dtx_format_duration(double seconds, char out[16]);
/* Three digits and a decimal unit: "987", "12.3k", "4.56M"; "?" for NaN. */
void dtx_format_count(double value, char out[16]);

#endif
