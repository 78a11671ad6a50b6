#include "launch/sweep/csv.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "kernels/base/mem.h"

enum { COLUMNS_LIMIT = 4096 };

static const int64_t bytes_limit = (int64_t)1 << 32;

/* What is read: cells are cut out in place, each ended by a zero. */
struct scan {
    struct dtx_ctx *ctx;
    const char *name;
    char *at, *end; /* *end is 0 */
    char separator;
    int64_t line;
};

static bool at_line_end(const struct scan *s)
{
    return s->at == s->end || *s->at == '\n' || (*s->at == '\r' && s->at[1] == '\n');
}

static char *trim(char *begin, char *end)
{
    while (begin < end && (*begin == ' ' || *begin == '\t'))
        begin++;
    while (end > begin && (end[-1] == ' ' || end[-1] == '\t'))
        end--;
    *end = '\0';
    return begin;
}

/* A cell in quotes; leaves `at` behind the closing one. */
static enum dtx_status take_quoted(struct scan *s, char **cell)
{
    int64_t line = s->line;
    char *to = ++s->at;
    *cell = to;
    for (; s->at < s->end; s->at++) {
        if (*s->at == '"') {
            if (s->at[1] != '"')
                break;
            s->at++;
        }
        s->line += *s->at == '\n';
        *to++ = *s->at;
    }
    if (s->at == s->end)
        return dtx_fail(s->ctx, DTX_E_FORMAT, "%s:%lld: a quoted cell does not end", s->name, (long long)line);
    s->at++;
    while (*s->at == ' ' && s->separator != ' ')
        s->at++;
    if (!at_line_end(s) && *s->at != s->separator)
        return dtx_fail(s->ctx, DTX_E_FORMAT, "%s:%lld: text behind a quoted cell", s->name, (long long)line);
    *to = '\0'; /* at most over the closing quote */
    return DTX_OK;
}

/* Takes the next cell; *last: it ends the line. */
static enum dtx_status take_cell(struct scan *s, char **cell, bool *last)
{
    while (*s->at == ' ')
        s->at++;
    if (*s->at == '"') {
        DTX_TRY(s->ctx, take_quoted(s, cell));
    } else {
        *cell = s->at;
        while (!at_line_end(s) && *s->at != s->separator)
            s->at++;
    }
    char *end = s->at;
    *last = at_line_end(s);
    s->at += s->at == s->end ? 0 : *s->at == '\r' ? 2 : 1;
    if (*cell <= end && memchr(*cell, '\0', (size_t)(end - *cell)) == NULL)
        *cell = trim(*cell, end);
    return DTX_OK;
}

/* Passes over empty lines and comments; false at the end. */
static bool find_row(struct scan *s)
{
    for (; s->at < s->end; s->line++) {
        char *p = s->at;
        while (*p == ' ' || *p == '\t' || *p == '\r')
            p++;
        if (*p != '\n' && *p != '#' && p != s->end)
            return true;
        char *next = memchr(s->at, '\n', (size_t)(s->end - s->at));
        s->at = next ? next + 1 : s->end;
    }
    return false;
}

static char find_separator(const char *at)
{
    static const char separators[] = ",;\t";
    int best = 0, counts[3] = {0};
    for (; *at && *at != '\n'; at++)
        for (int i = 0; i < 3; i++)
            counts[i] += *at == separators[i];
    for (int i = 1; i < 3; i++)
        best = counts[i] > counts[best] ? i : best;
    return separators[best];
}

/* Room for as many cells as there are separators and line ends, which is at least as many as there are cells. */
static enum dtx_status make_room(struct scan *s, struct dtx_csv *csv)
{
    int64_t cells = 2, lines = 2;
    void *memory;
    for (const char *p = s->at; p < s->end; p++) {
        cells += *p == s->separator || *p == '\n';
        lines += *p == '\n';
    }
    DTX_TRY(s->ctx, dtx_mem_alloc(s->ctx, cells, sizeof *csv->header, &memory));
    csv->header = memory;
    DTX_TRY(s->ctx, dtx_mem_alloc(s->ctx, lines, sizeof *csv->line, &memory));
    csv->line = memory;
    return DTX_OK;
}

static enum dtx_status take_header(struct scan *s, struct dtx_csv *csv)
{
    for (bool last = false; !last; csv->columns++) {
        if (csv->columns == COLUMNS_LIMIT)
            return dtx_fail(s->ctx, DTX_E_FORMAT, "%s: more than %d columns", s->name, (int)COLUMNS_LIMIT);
        DTX_TRY(s->ctx, take_cell(s, &csv->header[csv->columns], &last));
    }
    s->line++;
    csv->cells = csv->header + csv->columns;
    for (int i = 0; i < csv->columns; i++)
        for (int j = 0; j < i; j++)
            if (*csv->header[i] && strcasecmp(csv->header[i], csv->header[j]) == 0)
                return dtx_fail(s->ctx, DTX_E_FORMAT, "%s: columns %d and %d are both named '%s'", s->name, j + 1,
                                i + 1, csv->header[i]);
    return DTX_OK;
}

static enum dtx_status take_rows(struct scan *s, struct dtx_csv *csv)
{
    while (find_row(s)) {
        char **row = csv->cells + csv->rows * csv->columns, *beyond;
        int64_t line = s->line;
        int n = 0;
        for (bool last = false; !last; n++)
            DTX_TRY(s->ctx, take_cell(s, n < csv->columns ? &row[n] : &beyond, &last));
        s->line++;
        if (n != csv->columns)
            return dtx_fail(s->ctx, DTX_E_FORMAT, "%s:%lld: %d cells, but the header has %d", s->name, (long long)line,
                            n, csv->columns);
        csv->line[csv->rows++] = line;
    }
    return DTX_OK;
}

/* Takes csv->text [n], which it cuts up. */
static enum dtx_status parse(struct dtx_ctx *ctx, const char *name, size_t n, struct dtx_csv *csv)
{
    struct scan s = {ctx, name, csv->text, csv->text + n, ',', 1};
    if (memchr(csv->text, '\0', n))
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: zero bytes in it: this is no table of text", name);
    if (n >= 3 && memcmp(s.at, "\xEF\xBB\xBF", 3) == 0)
        s.at += 3;
    if (!find_row(&s))
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: the file is empty; expected a header line and rows", name);
    s.separator = find_separator(s.at);
    DTX_TRY(ctx, make_room(&s, csv));
    DTX_TRY(ctx, take_header(&s, csv));
    return take_rows(&s, csv);
}

enum dtx_status dtx_csv_parse(struct dtx_ctx *ctx, const char *name, const char *bytes, size_t n, struct dtx_csv *out)
{
    struct dtx_csv csv = {0};
    void *memory;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, (int64_t)n + 2, 1, &memory));
    csv.text = memory;
    memcpy(csv.text, bytes, n);
    enum dtx_status status = parse(ctx, name, n, &csv);
    if (status == DTX_OK)
        *out = csv;
    else
        dtx_csv_free(&csv);
    return status;
}

static enum dtx_status read_bytes(struct dtx_ctx *ctx, FILE *file, const char *path, char **out, size_t *out_n)
{
    void *memory;
    if (fseeko(file, 0, SEEK_END) != 0)
        return dtx_fail(ctx, DTX_E_IO, "%s: cannot be sought in: %s", path, strerror(errno));
    int64_t n = ftello(file);
    rewind(file);
    if (n < 0 || n > bytes_limit)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: not a file of at most 4 GiB", path);
    DTX_TRY(ctx, dtx_mem_alloc(ctx, n + 1, 1, &memory));
    *out = memory;
    *out_n = fread(memory, 1, (size_t)n, file);
    if (ferror(file))
        return dtx_fail(ctx, DTX_E_IO, "%s: cannot read: %s", path, strerror(errno));
    return DTX_OK;
}

enum dtx_status dtx_csv_read(struct dtx_ctx *ctx, const char *path, struct dtx_csv *out)
{
    char *bytes = NULL;
    size_t n = 0;
    FILE *file = fopen(path, "rb");
    if (!file)
        return dtx_fail(ctx, dtx_status_of_path(errno), "%s: cannot open: %s", path, strerror(errno));
    enum dtx_status status = read_bytes(ctx, file, path, &bytes, &n);
    fclose(file);
    if (status == DTX_OK)
        status = dtx_csv_parse(ctx, path, bytes, n, out);
    dtx_mem_free(bytes);
    return status;
}

void dtx_csv_free(struct dtx_csv *csv)
{
    dtx_mem_free(csv->header);
    dtx_mem_free(csv->line);
    dtx_mem_free(csv->text);
    *csv = (struct dtx_csv){0};
}

void dtx_csv_put(FILE *file, const char *cell)
{
    if (!strpbrk(cell, ",\"\r\n")) {
        fputs(cell, file);
        return;
    }
    fputc('"', file);
    for (; *cell; cell++) {
        if (*cell == '"')
            fputc('"', file);
        fputc(*cell, file);
    }
    fputc('"', file);
}
