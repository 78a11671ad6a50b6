#include "launch/doctor/report.h"

#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

static struct dtx_report_row *add_row(struct dtx_report *report, const char *group, const char *key, const char *label,
                                      const char *format, va_list ap)
{
    struct dtx_report_row *row = &report->rows[report->n < DTX_REPORT_ROWS ? report->n++ : DTX_REPORT_ROWS - 1];
    *row = (struct dtx_report_row){.group = group, .key = key, .label = label};
    vsnprintf(row->text, sizeof row->text, format, ap);
    return row;
}

void dtx_report_text(struct dtx_report *report, const char *group, const char *key, const char *label,
                     const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    add_row(report, group, key, label, format, ap);
    va_end(ap);
}

void dtx_report_number(struct dtx_report *report, const char *group, const char *key, const char *label, double number,
                       const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    struct dtx_report_row *row = add_row(report, group, key, label, format, ap);
    va_end(ap);
    row->number = number;
    row->is_number = isfinite(number);
}

void dtx_report_print_table(const struct dtx_report *report, FILE *file)
{
    for (int i = 0; i < report->n; i++) {
        const struct dtx_report_row *row = &report->rows[i];
        if (i == 0 || strcmp(row->group, row[-1].group) != 0)
            fprintf(file, "%s%s\n", i ? "\n" : "", row->group);
        fprintf(file, "  %-18s %s\n", row->label, row->text);
    }
}

bool dtx_report_print_json(const struct dtx_report *report, FILE *file)
{
    json_t *root = json_object();
    bool good = root != NULL;
    for (int i = 0; i < report->n; i++) {
        const struct dtx_report_row *row = &report->rows[i];
        json_t *group = json_object_get(root, row->group);
        if (!group)
            good = json_object_set_new(root, row->group, group = json_object()) == 0 && good;
        json_t *value = !row->is_number ? json_string(row->text)
                        : row->number == floor(row->number) && fabs(row->number) < 0x1p53
                            ? json_integer((json_int_t)row->number)
                            : json_real(row->number);
        good = json_object_set_new(group, row->key, value) == 0 && good;
    }
    good = good && json_dumpf(root, file, JSON_INDENT(2)) == 0 && fputc('\n', file) != EOF;
    json_decref(root);
    return good;
}

void dtx_report_scaled(double value, const char *unit, char out[32])
{
    static const char *const prefixes[] = {"", "k", "M", "G", "T", "P", "E"};
    int i = 0;
    for (; fabs(value) >= 999.5 && i < 6; i++)
        value /= 1000;
    int digits = fabs(value) >= 99.95 ? 0 : fabs(value) >= 9.995 ? 1 : 2;
    snprintf(out, 32, "%.*f %s%s", digits, value, prefixes[i], unit);
}

void dtx_report_seconds(double seconds, char out[32])
{
    if (seconds >= 0.9995)
        dtx_report_scaled(seconds, "s", out);
    else if (seconds >= 0.9995e-3)
        dtx_report_scaled(1e3 * seconds, "ms", out);
    else
        dtx_report_scaled(1e6 * seconds, "µs", out);
}
