#include "launch/status/cells.h"

#include <math.h>
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

static int width_of(const char *head, int column, int columns, const char (*cells)[DTX_CELL], int rows)
{
    size_t width = strlen(head);
    for (int r = 0; r < rows; r++) {
        size_t length = strlen(cells[r * columns + column]);
        width = length > width ? length : width;
    }
    return (int)width;
}

void dtx_cells_print(const char *const *heads, int columns, const char (*cells)[DTX_CELL], int rows,
                     void (*after)(const void *self, int row), const void *self)
{
    int width[DTX_CELL_COLUMNS] = {0}; /* the last column's end stays open */
    for (int i = 0; i < columns - 1; i++)
        width[i] = width_of(heads[i], i, columns, cells, rows);
    for (int r = -1; r < rows; r++) {
        for (int i = 0; i < columns; i++)
            printf("%s%-*s", i ? "  " : "", width[i], r < 0 ? heads[i] : cells[r * columns + i]);
        printf("\n");
        if (r >= 0)
            after(self, r);
    }
}
