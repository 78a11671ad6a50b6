#include "data/textfile.h"

#include <string.h>

#include "data/buffer.h"
#include "data/inflow.h"
#include "data/pretokenize.h"
#include "kernels/base/mem.h"

enum { PART_BYTES = 16 << 20, LEAST_READ_BYTES = 64 << 10, MOST_READ_BYTES = 4 << 20 };

struct dtx_textfile {
    struct dtx_inflow *in;
    enum dtx_split split;
    int64_t part_bytes,
        limit; /* part_bytes < 0: never cut; limit: bytes without a document's end from which a part is cut */
    struct dtx_bytes buffer;
    int64_t start, scanned;   /* first byte not handed out; no document ends before `scanned` */
    int64_t position, lines;  /* handed out; lines that have ended */
    bool at_end, inside, any; /* file read; a part of the document was handed out; a document was */
};

enum dtx_status dtx_textfile_open(struct dtx_ctx *ctx, const char *path, enum dtx_split split, int64_t part_bytes,
                                  struct dtx_textfile **out)
{
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_textfile), &p));
    struct dtx_textfile *f = p;
    f->split = split;
    f->part_bytes = part_bytes == 0 ? PART_BYTES : part_bytes;
    f->limit = f->part_bytes > 0 ? f->part_bytes : INT64_MAX;
    enum dtx_status status = dtx_inflow_open(ctx, path, &f->in);
    if (status == DTX_OK)
        *out = f;
    else
        dtx_textfile_close(f);
    return status;
}

enum dtx_status dtx_textfile_skip(struct dtx_ctx *ctx, struct dtx_textfile *f, int64_t bytes, int64_t lines)
{
    DTX_TRY(ctx, dtx_inflow_skip(ctx, f->in, bytes));
    f->position = bytes;
    f->lines = lines;
    f->any = true;
    return DTX_OK;
}

void dtx_textfile_close(struct dtx_textfile *f)
{
    if (!f)
        return;
    dtx_inflow_close(f->in);
    dtx_bytes_free(&f->buffer);
    dtx_mem_free(f);
}

int64_t dtx_textfile_position(const struct dtx_textfile *f)
{
    return f->position;
}

int64_t dtx_textfile_consumed(const struct dtx_textfile *f)
{
    return dtx_inflow_consumed(f->in);
}

static enum dtx_status fill(struct dtx_ctx *ctx, struct dtx_textfile *f)
{
    struct dtx_bytes *b = &f->buffer;
    if (f->start > 0) {
        memmove(b->data, b->data + f->start, (size_t)(b->n - f->start));
        b->n -= f->start;
        f->scanned -= f->start;
        f->start = 0;
    }
    /* Small files cost little, long documents are not copied often. */
    int64_t got, bytes = dtx_min64(MOST_READ_BYTES, dtx_max64(LEAST_READ_BYTES, b->n));
    if (f->part_bytes > 0)
        bytes = dtx_min64(bytes, f->part_bytes);
    DTX_TRY(ctx, dtx_bytes_reserve(ctx, b, bytes));
    DTX_TRY(ctx, dtx_inflow_read(ctx, f->in, b->data + b->n, (size_t)bytes, &got));
    b->n += got;
    f->at_end = got == 0;
    return DTX_OK;
}

static bool line_end(char c)
{
    return c == '\n' || c == '\r';
}

/* The document's end at the separator found at `at`, if it is one: [start, *end) is the text, *next the start of what
 * follows. Two bytes behind `at` are there unless the file ends. */
static bool ends_at(const struct dtx_textfile *f, int64_t at, int64_t *end, int64_t *next)
{
    const char *text = f->buffer.data;
    int64_t n = f->buffer.n;
    *end = at;
    *next = at + 1;
    switch (f->split) {
    case DTX_SPLIT_LINE:
        *end -= at > f->start && text[at - 1] == '\r';
        return true;
    case DTX_SPLIT_BLANK_LINE:
        *end = at + 1;
        return at + 1 < n && (text[at + 1] == '\n' || (text[at + 1] == '\r' && at + 2 < n && text[at + 2] == '\n'));
    case DTX_SPLIT_ENTRY:
        *end = at + 1;
        return at + 1 < n && !line_end(text[at + 1]) && text[at + 1] != ' ' && text[at + 1] != '\t';
    default:
        return true;
    }
}

static bool find_end(struct dtx_textfile *f, int64_t *end, int64_t *next)
{
    const char *text = f->buffer.data;
    int64_t last = f->buffer.n - (f->at_end ? 0 : 2); /* separators before `last` can be judged */
    int separator = f->split == DTX_SPLIT_FORM_FEED ? '\f' : '\n';
    if (f->split == DTX_SPLIT_NONE)
        return false;
    while (f->scanned < last) {
        const char *found = memchr(text + f->scanned, separator, (size_t)(last - f->scanned));
        if (!found) {
            f->scanned = last;
            return false;
        }
        f->scanned = found - text + 1;
        if (ends_at(f, found - text, end, next))
            return true;
    }
    return false;
}

static void hand_out(struct dtx_textfile *f, struct dtx_text_part *part, int64_t end, int64_t next, bool ends)
{
    *part = (struct dtx_text_part){f->buffer.data + f->start, end - f->start, ends, f->lines + 1};
    f->lines += ends;
    f->position += next - f->start;
    f->start = next;
    f->scanned = dtx_max64(f->scanned, next);
    f->inside = !ends;
    f->any = true;
    f->limit = f->part_bytes > 0 ? f->part_bytes : INT64_MAX;
}

/* Line ends before a document of the two modes that take them as separators. */
static void skip_blank(struct dtx_textfile *f)
{
    if (f->inside || (f->split != DTX_SPLIT_BLANK_LINE && f->split != DTX_SPLIT_ENTRY))
        return;
    while (f->start < f->buffer.n && line_end(f->buffer.data[f->start])) {
        f->start++;
        f->position++;
    }
    f->scanned = dtx_max64(f->scanned, f->start);
}

enum dtx_status dtx_textfile_next(struct dtx_ctx *ctx, struct dtx_textfile *f, struct dtx_text_part *part, bool *more)
{
    *more = true;
    for (;;) {
        int64_t end, next;
        skip_blank(f);
        if (find_end(f, &end, &next)) {
            bool rest_of_long = f->inside;
            hand_out(f, part, end, next, true);
            if (part->n > 0 || rest_of_long)
                return DTX_OK;
            continue;
        }
        int64_t rest = f->buffer.n - f->start;
        if (f->at_end) {
            *more = rest > 0 || f->inside || (f->split == DTX_SPLIT_NONE && !f->any);
            if (*more)
                hand_out(f, part, f->buffer.n, f->buffer.n, true);
            return DTX_OK;
        }
        int64_t cut = rest >= f->limit ? dtx_split_point(f->buffer.data + f->start, rest) : 0;
        if (cut > 0) {
            hand_out(f, part, f->start + cut, f->start + cut, false);
            return DTX_OK;
        }
        if (rest >= f->limit)
            f->limit = 2 * rest; /* so that a text without cuts is not searched again at every read */
        DTX_TRY(ctx, fill(ctx, f));
    }
}
