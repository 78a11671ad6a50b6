/* A table on a terminal: texts, and what stands where a number is not known. Not collective. */
#ifndef DTX_LAUNCH_STATUS_CELLS_H
#define DTX_LAUNCH_STATUS_CELLS_H

#include <stdio.h>

enum { DTX_CELL = 256, DTX_CELL_COLUMNS = 16 /* of a table, at most */ };

/* "-" for NaN. */
void dtx_cell_number(double value, const char *format, char out[DTX_CELL]);
void dtx_cell_duration(double seconds, char out[DTX_CELL]);

/* Rows under their heads, each column as wide as its widest text. cells: [rows, columns]. after: prints what belongs
 * under a row, from self. */
void dtx_cells_print(const char *const *heads, int columns, const char (*cells)[DTX_CELL], int rows,
                     void (*after)(const void *self, int row), const void *self);

#endif
