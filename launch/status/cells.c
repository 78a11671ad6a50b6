#include "launch/status/cells.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "kernels/base/meter.h"

void dtx_cell_number(double value, const char *format, char out[DTX_CELL])
{
    if (isnan(value))
        strcpy(out, "-");
    else
        snprintf(out, DTX_CELL, format, value);
}

void dtx_cell_duration(double seconds, char out[DTX_CELL])
{
    char text[16] = "-";
    if (!isnan(seconds))
        dtx_format_duration(seconds, text);
    strcpy(out, text);
}

static int width_of(const char *head, int column, int columns, char (*cells)[DTX_CELL], int rows)
{
    size_t width = strlen(head);
    for (int r = 0; r < rows; r++)
        width = strlen(cells[r * columns + column]) > width ? strlen(cells[r * columns + column]) : width;
    return (int)width;
}

static void print_cell(const char *text, int column, int columns, int width)
{
    printf("%s%-*s%s", column ? "  " : "", column == columns - 1 ? 0 : width, text, column == columns - 1 ? "\n" : "");
}

void dtx_cells_print(const char *const *heads, int columns, char (*cells)[DTX_CELL], int rows,
                     void (*below)(const void *self, int row), const void *self)
{
    int width[DTX_CELL_COLUMNS];
    for (int c = 0; c < columns; c++) {
        width[c] = width_of(heads[c], c, columns, cells, rows);
        print_cell(heads[c], c, columns, width[c]);
    }
    for (int r = 0; r < rows; r++) {
        for (int c = 0; c < columns; c++)
            print_cell(cells[r * columns + c], c, columns, width[c]);
        below(self, r);
    }
}
