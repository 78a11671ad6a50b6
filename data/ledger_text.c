/* The ledger as text (README.md has it byte for byte). */
#include <ctype.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "data/buffer.h"
#include "data/ledger.h"
#include "kernels/base/mem.h"

static const char first_line[] = "dtx ledger 1";
/* Bounds that keep every sum of counts below 2^62. */
static const int64_t MOST = INT64_C(1) << 62;

static enum dtx_status put(struct dtx_ctx *ctx, struct dtx_bytes *b, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static enum dtx_status put(struct dtx_ctx *ctx, struct dtx_bytes *b, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return dtx_bytes_append(ctx, b, text, (int64_t)strlen(text));
}

/* " 0-3,7,5"; an empty list is " -". */
static enum dtx_status put_list(struct dtx_ctx *ctx, struct dtx_bytes *b, const struct dtx_file_list *list)
{
    if (list->n == 0)
        return put(ctx, b, " -");
    for (int i = 0, end; i < list->n; i = end) {
        for (end = i + 1; end < list->n && list->at[end] == list->at[end - 1] + 1;)
            end++;
        DTX_TRY(ctx, put(ctx, b, "%s%d", i ? "," : " ", list->at[i]));
        if (end - i > 1)
            DTX_TRY(ctx, put(ctx, b, "-%d", list->at[end - 1]));
    }
    return DTX_OK;
}

static enum dtx_status put_course(struct dtx_ctx *ctx, struct dtx_bytes *b, const struct dtx_course_record *c)
{
    DTX_TRY(ctx, put(ctx, b, "course %d %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %d %" PRId64 " %" PRId64,
                     c->source, c->number, c->epoch, c->length, c->done, c->rest, c->unit, c->within));
    DTX_TRY(ctx, put_list(ctx, b, &c->files));
    for (int i = 0; i < c->n_layers; i++) {
        const struct dtx_course_layer *l = &c->layers[i];
        DTX_TRY(ctx, put(ctx, b, "\nlayer %d %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64, l->rest,
                         l->length, l->number, l->epoch, l->done, l->within));
        DTX_TRY(ctx, put_list(ctx, b, &l->grid));
        DTX_TRY(ctx, put_list(ctx, b, &l->scope));
    }
    return put(ctx, b, "\n");
}

static enum dtx_status put_file(struct dtx_ctx *ctx, struct dtx_bytes *b, const struct dtx_data_ledger_file *f)
{
    DTX_TRY(ctx, put(ctx, b, "file %016" PRIx64 " %" PRId64 " ", f->id, f->targets));
    for (const char *c = f->name; *c; c++) {
        char shown = *c == '\n' ? '?' : *c;
        DTX_TRY(ctx, dtx_bytes_append(ctx, b, &shown, 1));
    }
    return put(ctx, b, "\n");
}

static enum dtx_status put_all(struct dtx_ctx *ctx, struct dtx_bytes *b, const struct dtx_data_ledger *ledger)
{
    DTX_TRY(ctx, put(ctx, b, "%s\nsamples %" PRId64 "\n", first_line, ledger->samples));
    for (int i = 0; i < ledger->n_files; i++)
        DTX_TRY(ctx, put_file(ctx, b, &ledger->files[i]));
    for (int i = 0; i < ledger->n_courses; i++)
        DTX_TRY(ctx, put_course(ctx, b, &ledger->courses[i]));
    for (int i = 0; i < ledger->n_skips; i++)
        DTX_TRY(ctx, put(ctx, b, "skip %" PRId64 " %" PRId64 "\n", ledger->skips[i].first, ledger->skips[i].end));
    DTX_TRY(ctx, put(ctx, b, "end\n"));
    return dtx_bytes_append(ctx, b, "", 1);
}

enum dtx_status dtx_data_ledger_write(struct dtx_ctx *ctx, const struct dtx_data_ledger *ledger, char **text)
{
    struct dtx_bytes b = {0};
    enum dtx_status status = put_all(ctx, &b, ledger);
    if (status == DTX_OK)
        status = dtx_mem_text(ctx, b.data, text);
    dtx_bytes_free(&b);
    return status;
}

struct reader {
    struct dtx_ctx *ctx;
    const char *at; /* where the present line goes on */
    int line;
    struct dtx_data_ledger *out;
    int64_t targets;   /* of all files so far */
    int *marks, lists; /* [2 · files]: scratch of lists; how many were read */
};

static enum dtx_status refuse(const struct reader *r, const char *what)
{
    return dtx_fail(r->ctx, DTX_E_FORMAT, "the ledger of the data, line %d: %s", r->line, what);
}

/* A number from lowest to highest behind one blank. */
static bool number(struct reader *r, int64_t lowest, int64_t highest, int64_t *out)
{
    char *end;
    if (r->at[0] != ' ' || !(isdigit((unsigned char)r->at[1]) || r->at[1] == '-'))
        return false;
    *out = strtoll(r->at + 1, &end, 10);
    r->at = end;
    return *out >= lowest && *out <= highest;
}

static bool take_int(struct reader *r, int lowest, int highest, int *out)
{
    int64_t wide = 0;
    bool good = number(r, lowest, highest, &wide);
    *out = (int)wide;
    return good;
}

/* "a" or "a-b" */
static bool take_range(const char **at, int limit, int *first, int *last)
{
    char *end;
    if (!isdigit((unsigned char)**at))
        return false;
    long a = strtol(*at, &end, 10), b = a;
    if (*end == '-') {
        if (!isdigit((unsigned char)end[1]))
            return false;
        b = strtol(end + 1, &end, 10);
    }
    *at = end;
    *first = (int)a;
    *last = (int)b;
    return a <= b && b < limit;
}

/* Indices of files, none of them twice. All files stand above the first list. */
static enum dtx_status take_list(struct reader *r, struct dtx_file_list *list)
{
    void *p;
    int limit = r->out->n_files, first, last, n = 0;
    if (!r->marks) {
        DTX_TRY(r->ctx, dtx_mem_alloc(r->ctx, 2 * (int64_t)limit, sizeof(int), &p));
        r->marks = p;
    }
    int *mark = r->marks, *found = r->marks + limit;
    r->lists++;
    if (*r->at++ != ' ')
        return refuse(r, "a list of files is missing");
    if (*r->at == '-') {
        r->at++;
        return DTX_OK;
    }
    do {
        if (!take_range(&r->at, limit, &first, &last))
            return refuse(r, "a list of files is none");
        for (int f = first; f <= last; f++) {
            if (mark[f] == r->lists)
                return refuse(r, "a list names a file twice");
            mark[f] = r->lists;
            found[n++] = f;
        }
    } while (*r->at == ',' && r->at++);
    DTX_TRY(r->ctx, dtx_mem_alloc(r->ctx, n, sizeof(int), &p));
    memcpy(p, found, (size_t)n * sizeof(int));
    *list = (struct dtx_file_list){n, p};
    return DTX_OK;
}

/* Samples, or pieces, of the files of a list. */
static int64_t count(const struct dtx_data_ledger *ledger, const struct dtx_file_list *files, int64_t length, bool up)
{
    int64_t n = 0;
    for (int i = 0; i < files->n; i++) {
        int64_t targets = ledger->files[files->at[i]].targets;
        n += up ? dtx_div_up(targets, length) : targets / length;
    }
    return n;
}

static enum dtx_status grow(struct reader *r, void **array, int n, size_t size)
{
    void *p;
    if (n & (n - 1)) /* room doubles: it is full at powers of two */
        return DTX_OK;
    DTX_TRY(r->ctx, dtx_mem_alloc(r->ctx, n == 0 ? 1 : 2 * (int64_t)n, size, &p));
    if (n > 0)
        memcpy(p, *array, (size_t)n * size);
    dtx_mem_free(*array);
    *array = p;
    return DTX_OK;
}

static enum dtx_status read_file(struct reader *r)
{
    struct dtx_data_ledger *out = r->out;
    void *array = out->files;
    char *end, *name;
    DTX_TRY(r->ctx, grow(r, &array, out->n_files, sizeof *out->files));
    out->files = array;
    struct dtx_data_ledger_file file = {0};
    if (r->marks)
        return refuse(r, "a file stands below a course");
    if (*r->at != ' ' || !isxdigit((unsigned char)r->at[1]))
        return refuse(r, "a file has no id");
    file.id = strtoull(r->at + 1, &end, 16);
    r->at = end;
    if (!number(r, 0, MOST, &file.targets) || *r->at++ != ' ' || file.targets > MOST - r->targets)
        return refuse(r, "a file's targets are no number, or too many");
    r->targets += file.targets;
    size_t bytes = strcspn(r->at, "\n");
    void *p;
    DTX_TRY(r->ctx, dtx_mem_alloc(r->ctx, (int64_t)bytes + 1, 1, &p));
    name = p;
    memcpy(name, r->at, bytes);
    r->at += bytes;
    file.name = name;
    out->files[out->n_files++] = file;
    return DTX_OK;
}

static enum dtx_status read_course(struct reader *r)
{
    struct dtx_data_ledger *out = r->out;
    void *array = out->courses;
    int rest = 0;
    DTX_TRY(r->ctx, grow(r, &array, out->n_courses, sizeof *out->courses));
    out->courses = array;
    struct dtx_course_record *c = &out->courses[out->n_courses++];
    *c = (struct dtx_course_record){0};
    if (!take_int(r, -1, INT_MAX, &c->source) || !number(r, 0, INT_MAX, &c->number) || !number(r, 0, MOST, &c->epoch) ||
        !number(r, 1, INT_MAX, &c->length) || !number(r, 0, MOST, &c->done) || !take_int(r, 0, 1, &rest) ||
        !number(r, 0, MOST, &c->unit) || !number(r, 0, INT_MAX, &c->within))
        return refuse(r, "a course is not what it should be");
    c->rest = rest;
    DTX_TRY(r->ctx, take_list(r, &c->files));
    if (c->done > count(out, &c->files, c->length, false))
        return refuse(r, "a course is further than its files go");
    return DTX_OK;
}

static enum dtx_status read_layer(struct reader *r)
{
    if (r->out->n_courses == 0)
        return refuse(r, "a layer belongs to no course");
    struct dtx_course_record *c = &r->out->courses[r->out->n_courses - 1];
    void *array = c->layers;
    int rest = 0;
    DTX_TRY(r->ctx, grow(r, &array, c->n_layers, sizeof *c->layers));
    c->layers = array;
    struct dtx_course_layer *l = &c->layers[c->n_layers++];
    *l = (struct dtx_course_layer){0};
    if (!take_int(r, 0, 1, &rest) || !number(r, 1, INT_MAX, &l->length) || !number(r, 0, INT_MAX, &l->number) ||
        !number(r, 0, MOST, &l->epoch) || !number(r, 0, MOST, &l->done) || !number(r, 0, INT_MAX, &l->within))
        return refuse(r, "a layer is not what it should be");
    l->rest = rest;
    DTX_TRY(r->ctx, take_list(r, &l->grid));
    DTX_TRY(r->ctx, take_list(r, &l->scope));
    if (l->done > count(r->out, &l->grid, l->length, l->rest) || l->within > l->length)
        return refuse(r, "a layer is further than its files go");
    return DTX_OK;
}

static enum dtx_status read_skip(struct reader *r)
{
    int64_t first = 0, end = 0;
    if (!number(r, 0, MOST, &first) || !number(r, first, MOST, &end))
        return refuse(r, "no interval of samples");
    return dtx_data_ledger_skip(r->ctx, r->out, first, end);
}

static enum dtx_status read_samples(struct reader *r)
{
    return number(r, 0, MOST, &r->out->samples) ? DTX_OK : refuse(r, "no count of samples");
}

static const struct kind {
    const char *word;
    enum dtx_status (*read)(struct reader *r);
} kinds[] = {{"samples", read_samples},
             {"file", read_file},
             {"course", read_course},
             {"layer", read_layer},
             {"skip", read_skip}};

static enum dtx_status read_line(struct reader *r)
{
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        size_t n = strlen(kinds[k].word);
        if (strncmp(r->at, kinds[k].word, n) != 0 || r->at[n] != ' ')
            continue;
        r->at += n;
        DTX_TRY(r->ctx, kinds[k].read(r));
        return *r->at++ == '\n' ? DTX_OK : refuse(r, "more than there should be");
    }
    return refuse(r, "it begins with none of samples, file, course, layer, skip, end");
}

/* What lines alone do not show: sources numbered in order, files of one course each, a rest has layers below it. */
static enum dtx_status check_whole(struct reader *r)
{
    struct dtx_data_ledger *out = r->out;
    void *p;
    int present = 0;
    DTX_TRY(r->ctx, dtx_mem_alloc(r->ctx, out->n_files, 1, &p));
    char *owned = p;
    const char *wrong = NULL;
    for (int i = 0; i < out->n_courses && !wrong; i++) {
        const struct dtx_course_record *c = &out->courses[i];
        int64_t piece = dtx_course_piece_length(c);
        if (c->source >= 0 && (c->source != present++ || c->source != i))
            wrong = "the sources are not in order";
        if (c->rest && (c->n_layers == 0 || c->unit > count(out, &c->files, piece, true) || c->within > piece))
            wrong = "a rest is further than its files go";
        for (int k = 0; k < c->files.n; k++)
            if (owned[c->files.at[k]]++)
                wrong = "a file belongs to two courses";
    }
    dtx_mem_free(p);
    return wrong ? refuse(r, wrong) : DTX_OK;
}

static enum dtx_status read_all(struct reader *r)
{
    size_t n = sizeof first_line - 1;
    r->line = 1;
    if (strncmp(r->at, first_line, n) != 0 || r->at[n] != '\n')
        return refuse(r, "it does not begin with 'dtx ledger 1': it was written by a newer dtx, or is damaged");
    r->at += n + 1;
    for (r->line = 2; strcmp(r->at, "end\n") != 0; r->line++) {
        if (*r->at == '\0')
            return refuse(r, "it is cut off");
        DTX_TRY(r->ctx, read_line(r));
    }
    return check_whole(r);
}

enum dtx_status dtx_data_ledger_read(struct dtx_ctx *ctx, const char *text, struct dtx_data_ledger *out)
{
    struct dtx_data_ledger made = {0};
    struct reader r = {.ctx = ctx, .at = text, .out = &made};
    enum dtx_status status = read_all(&r);
    dtx_mem_free(r.marks);
    if (status == DTX_OK)
        *out = made;
    else
        dtx_data_ledger_free(&made);
    return status;
}
