/* Rows of a report about a machine, printed as a table or as JSON. */
#ifndef DTX_LAUNCH_DOCTOR_REPORT_H
#define DTX_LAUNCH_DOCTOR_REPORT_H

#include <stdbool.h>
#include <stdio.h>

enum { DTX_REPORT_ROWS = 64 };

struct dtx_report_row {
    const char *group, *key; /* JSON: {"group": {"key": value}}; static texts */
    const char *label;       /* of the table */
    char text[1024];         /* shown in the table, and in JSON when there is no number */
    double number;
    bool is_number;
};

struct dtx_report {
    struct dtx_report_row rows[DTX_REPORT_ROWS];
    int n;
};

/* Rows of one group must follow one another. */
void dtx_report_text(struct dtx_report *report, const char *group, const char *key, const char *label,
                     const char *format, ...) __attribute__((format(printf, 5, 6)));
void dtx_report_number(struct dtx_report *report, const char *group, const char *key, const char *label, double number,
                       const char *format, ...) __attribute__((format(printf, 6, 7)));
void dtx_report_print_table(const struct dtx_report *report, FILE *file);
/* false when memory ran out or the file could not be written. */
bool dtx_report_print_json(const struct dtx_report *report, FILE *file);
/* "1.23 G" and the like: value with a prefix of 1000, three digits. */
void dtx_report_scaled(double value, const char *unit, char out[32]);
/* "4.01 ms" and the like. */
void dtx_report_seconds(double seconds, char out[32]);

#endif
