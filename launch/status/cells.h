/* Tables of runs and trials for people: cells as text, each column as wide as its longest. Not collective. */
#ifndef DTX_LAUNCH_STATUS_CELLS_H
#define DTX_LAUNCH_STATUS_CELLS_H

enum { DTX_CELL = 256, DTX_CELL_COLUMNS = 16 }; /* bytes of a cell, most columns */

void dtx_cell_number(double value, const char *format, char out[DTX_CELL]); /* NaN: "-" */
void dtx_cell_duration(double seconds, char out[DTX_CELL]);                 /* NaN: "-" */
/* On standard output. cells [rows·columns]; below: prints whole lines that belong under a row. */
void dtx_cells_print(const char *const *heads, int columns, char (*cells)[DTX_CELL], int rows,
                     void (*below)(const void *self, int row), const void *self);

#endif
