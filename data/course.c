#include "data/course.h"

#include <string.h>

#include "data/order.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

/* Samples of one length over the course's files, or pieces, which cover the tails too. */
struct grid {
    int64_t length, n;
    int64_t *first; /* [files + 1]: the first of each file */
    struct dtx_order order;
};

/* What was consumed before, see struct dtx_course_layer. Files count as the course's. */
struct layer {
    bool rest;
    int64_t length, epoch, done, within;
    int64_t *first; /* [files]: the first of each file in its order; −1: out of its scope */
    int64_t *end;   /* [files]: of a rest, targets beyond which the epoch did not reach then */
    struct dtx_order order;
};

struct dtx_course {
    int n_files, n_layers;
    int64_t *targets; /* [files] */
    int64_t *end;     /* [files]: targets of the epoch with layers */
    struct grid samples, pieces;
    struct layer *layers;
};

static enum dtx_status make_order(struct dtx_ctx *ctx, struct dtx_order *order, uint64_t seed, int64_t number,
                                  int64_t n)
{
    return n > 0 ? dtx_order_init(ctx, order, seed, number, n) : DTX_OK;
}

static enum dtx_status make_grid(struct dtx_ctx *ctx, const struct dtx_course *c, uint64_t seed, int64_t number,
                                 int64_t length, bool up, struct grid *g)
{
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, (int64_t)c->n_files + 1, sizeof *g->first, &p));
    g->first = p;
    g->length = length;
    for (int f = 0; f < c->n_files; f++) {
        int64_t targets = c->targets[f], lost = DTX_MUTANT(stream_last_sample_lost) && targets >= length;
        g->first[f + 1] = g->first[f] + (up ? dtx_div_up(targets, length) : targets / length - lost);
    }
    g->n = g->first[c->n_files];
    return make_order(ctx, &g->order, seed, number, g->n);
}

static enum dtx_status make_layer(struct dtx_ctx *ctx, struct dtx_course *c, uint64_t seed,
                                  const struct dtx_data_ledger *ledger, const struct dtx_course_record *record,
                                  const struct dtx_course_layer *from)
{
    void *p;
    struct layer *to = &c->layers[c->n_layers++];
    int64_t n = 0;
    *to = (struct layer){
        .rest = from->rest, .length = from->length, .epoch = from->epoch, .done = from->done, .within = from->within};
    DTX_TRY(ctx, dtx_mem_alloc(ctx, c->n_files, sizeof *to->first, &p));
    to->first = p;
    for (int f = 0; f < c->n_files; f++)
        to->first[f] = -1;
    int f = 0; /* lists are in the same order, as a rule: what is searched for comes next */
    for (int i = 0, k = 0; i < from->grid.n; i++) {
        int64_t targets = ledger->files[from->grid.at[i]].targets;
        if (k < from->scope.n && from->scope.at[k] == from->grid.at[i]) {
            for (int tries = 0; record->files.at[f] != from->scope.at[k]; tries++) {
                if (tries == c->n_files)
                    return dtx_fail(ctx, DTX_E_FORMAT,
                                    "the ledger of the data: a layer counts in file %d, which its "
                                    "course does not have",
                                    from->scope.at[k]);
                f = (f + 1) % c->n_files;
            }
            to->first[f] = n;
            k++;
        }
        n += from->rest ? dtx_div_up(targets, from->length) : targets / from->length;
        if (i == from->grid.n - 1 && k < from->scope.n)
            return dtx_fail(ctx, DTX_E_FORMAT,
                            "the ledger of the data: a layer counts in file %d, of which it has none",
                            from->scope.at[k]);
    }
    DTX_TRY(ctx, dtx_mem_alloc(ctx, c->n_files, sizeof *to->end, &p));
    to->end = p;
    memcpy(to->end, c->end, (size_t)c->n_files * sizeof *to->end);
    for (f = 0; f < c->n_files && !from->rest; f++)
        if (to->first[f] >= 0)
            c->end[f] = dtx_max64(c->end[f], c->targets[f] / from->length * from->length);
    return make_order(ctx, &to->order, seed, from->number, n);
}

static enum dtx_status make_course(struct dtx_ctx *ctx, uint64_t seed, const struct dtx_data_ledger *ledger,
                                   const struct dtx_course_record *record, struct dtx_course *c)
{
    void *p;
    c->n_files = record->files.n;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 2 * (int64_t)c->n_files, sizeof *c->targets, &p));
    c->targets = p;
    c->end = c->targets + c->n_files;
    for (int f = 0; f < c->n_files; f++)
        c->targets[f] = ledger->files[record->files.at[f]].targets;
    DTX_TRY(ctx, make_grid(ctx, c, seed, record->number, record->length, false, &c->samples));
    if (record->n_layers == 0)
        return DTX_OK;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, record->n_layers, sizeof *c->layers, &p));
    c->layers = p;
    for (int i = 0; i < record->n_layers; i++)
        DTX_TRY(ctx, make_layer(ctx, c, seed, ledger, record, &record->layers[i]));
    for (int f = 0; f < c->n_files; f++)
        c->end[f] = dtx_max64(c->end[f], c->targets[f] / record->length * record->length);
    return make_grid(ctx, c, seed, record->number, dtx_course_piece_length(record), true, &c->pieces);
}

enum dtx_status dtx_course_open(struct dtx_ctx *ctx, uint64_t seed, const struct dtx_data_ledger *ledger,
                                const struct dtx_course_record *record, struct dtx_course **out,
                                struct dtx_cursor *start)
{
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 1, sizeof(struct dtx_course), &p));
    struct dtx_course *c = p;
    enum dtx_status status = make_course(ctx, seed, ledger, record, c);
    if (status != DTX_OK) {
        dtx_course_close(c);
        return status;
    }
    *start = (struct dtx_cursor){.fresh = c->n_layers == 0,
                                 .epoch = record->epoch,
                                 .done = record->done,
                                 .rest = record->rest,
                                 .unit = record->unit,
                                 .within = record->within};
    *out = c;
    return DTX_OK;
}

void dtx_course_close(struct dtx_course *c)
{
    if (!c)
        return;
    for (int i = 0; i < c->n_layers; i++) {
        dtx_mem_free(c->layers[i].first);
        dtx_mem_free(c->layers[i].end);
    }
    dtx_mem_free(c->layers);
    dtx_mem_free(c->samples.first);
    dtx_mem_free(c->pieces.first);
    dtx_mem_free(c->targets);
    dtx_mem_free(c);
}

int64_t dtx_course_samples(const struct dtx_course *c)
{
    return c->samples.n;
}

/* The file of element i of a grid. */
static int file_of(const struct dtx_course *c, const struct grid *g, int64_t i)
{
    int low = 0, high = c->n_files;
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (g->first[middle] <= i)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static bool overlaps(const struct dtx_course *c, int layers, int file, int64_t a, int64_t b);

/* Did layer k serve its element m of a file? Of samples those that touched an earlier layer were passed over. */
static bool is_taken(const struct dtx_course *c, int k, int file, int64_t m)
{
    const struct layer *l = &c->layers[k];
    if (dtx_order_find(&l->order, l->epoch, l->first[file] + m) >= l->done)
        return false;
    return !overlaps(c, k, file, m * l->length, (m + 1) * l->length) || DTX_MUTANT(course_passed_over_is_taken);
}

/* Has layer k consumed any of targets a … b − 1 of a file, of those before its end? */
static bool layer_overlaps(const struct dtx_course *c, int k, int file, int64_t a, int64_t b)
{
    const struct layer *l = &c->layers[k];
    int64_t end = l->rest ? l->end[file] : c->targets[file] / l->length * l->length;
    if (l->first[file] < 0)
        return false;
    b = dtx_min64(b, end);
    for (int64_t m = a / l->length; a < b && m * l->length < b; m++) {
        if (!l->rest) {
            if (is_taken(c, k, file, m))
                return true;
            continue;
        }
        int64_t at = dtx_order_find(&l->order, l->epoch, l->first[file] + m);
        if (at < l->done || (at == l->done && l->within > 0 && m * l->length + l->within > a))
            return true;
    }
    return false;
}

/* Has any of the first `layers` layers consumed any of targets a … b − 1? */
static bool overlaps(const struct dtx_course *c, int layers, int file, int64_t a, int64_t b)
{
    for (int k = 0; k < layers; k++)
        if (layer_overlaps(c, k, file, a, b))
            return true;
    return false;
}

/* From target a on, all up to *until (≤ b) are consumed, or none is: which? Layers and the present samples count. */
static bool consumed(const struct dtx_course *c, int file, int64_t a, int64_t b, int64_t *until)
{
    *until = b;
    for (int k = 0; k < c->n_layers; k++) {
        const struct layer *l = &c->layers[k];
        if (l->first[file] < 0 || a >= (l->rest ? l->end[file] : c->targets[file] / l->length * l->length))
            continue;
        int64_t m = a / l->length, edge = (m + 1) * l->length;
        if (l->rest && dtx_order_find(&l->order, l->epoch, l->first[file] + m) == l->done &&
            a < m * l->length + l->within)
            edge = m * l->length + l->within;
        if (l->rest)
            edge = dtx_min64(edge, l->end[file]);
        *until = dtx_min64(*until, edge);
        if (l->rest ? layer_overlaps(c, k, file, a, a + 1) : is_taken(c, k, file, m))
            return true;
    }
    /* when the rest begins, every sample of the present length has been served or passed over */
    int64_t length = c->samples.length, m = a / length;
    if (a >= c->targets[file] / length * length)
        return false;
    *until = dtx_min64(*until, (m + 1) * length);
    return !overlaps(c, c->n_layers, file, m * length, (m + 1) * length);
}

/* Adds up to `room` targets of the piece under the cursor that nothing consumed; moves the cursor. */
static int64_t take_piece(const struct dtx_course *c, struct dtx_cursor *cursor, int64_t room, struct dtx_piece *pieces,
                          int64_t *n)
{
    const struct grid *g = &c->pieces;
    int64_t element = dtx_order_at(&g->order, cursor->epoch, cursor->unit), taken = 0, until;
    int file = file_of(c, g, element);
    int64_t first = (element - g->first[file]) * g->length, end = dtx_min64(first + g->length, c->end[file]);
    bool joins = false; /* the piece before ends here */
    while (taken < room && first + cursor->within < end) {
        int64_t a = first + cursor->within;
        bool gone = consumed(c, file, a, end, &until);
        int64_t part = gone ? until - a : dtx_min64(until - a, room - taken);
        cursor->within += part;
        if (!gone) {
            taken += part;
            if (pieces && joins)
                pieces[*n - 1].n += part;
            else if (pieces)
                pieces[(*n)++] = (struct dtx_piece){file, a, part};
        }
        joins = !gone;
    }
    if (first + cursor->within >= end) {
        cursor->unit++;
        cursor->within = 0;
    }
    return taken;
}

/* The next sample of the rest; false: nothing is left. */
static bool next_rest(const struct dtx_course *c, struct dtx_cursor *cursor, struct dtx_piece *pieces, int64_t *n)
{
    int64_t taken = 0;
    while (taken < c->samples.length && cursor->unit < c->pieces.n && !DTX_MUTANT(course_rest_lost))
        taken += take_piece(c, cursor, c->samples.length - taken, pieces, n);
    return taken > 0;
}

static void begin_epoch(struct dtx_cursor *cursor)
{
    *cursor = (struct dtx_cursor){.fresh = true, .epoch = cursor->epoch + 1};
}

/* The next sample of the present length that is whole; false: there is none in this epoch. */
static bool next_sample(const struct dtx_course *c, struct dtx_cursor *cursor, struct dtx_piece *piece)
{
    const struct grid *g = &c->samples;
    while (cursor->done < g->n) {
        int64_t element = dtx_order_at(&g->order, cursor->epoch, cursor->done++);
        int file = file_of(c, g, element);
        int64_t first = (element - g->first[file]) * g->length;
        if (!cursor->fresh && overlaps(c, c->n_layers, file, first, first + g->length) &&
            !DTX_MUTANT(course_consumed_served_again))
            continue;
        *piece = (struct dtx_piece){file, first, g->length};
        return true;
    }
    return false;
}

void dtx_course_next(const struct dtx_course *c, struct dtx_cursor *cursor, struct dtx_piece *pieces, int64_t *n)
{
    struct dtx_piece piece;
    int64_t none = 0;
    if (!n)
        n = &none;
    *n = 0;
    for (;;) {
        if (!cursor->rest && next_sample(c, cursor, &piece)) {
            if (pieces)
                pieces[0] = piece;
            *n = 1;
            if (cursor->fresh && cursor->done == c->samples.n)
                begin_epoch(cursor);
            return;
        }
        cursor->rest = true;
        if (next_rest(c, cursor, pieces, n))
            return;
        begin_epoch(cursor);
    }
}

void dtx_course_advance(const struct dtx_course *c, struct dtx_cursor *cursor, int64_t count)
{
    while (count > 0 && !cursor->fresh) {
        dtx_course_next(c, cursor, NULL, NULL);
        count--;
    }
    if (count == 0)
        return;
    cursor->epoch += count / c->samples.n;
    cursor->done += count % c->samples.n;
    if (cursor->done >= c->samples.n) {
        cursor->done -= c->samples.n;
        cursor->epoch++;
    }
}

void dtx_course_in_order(const struct dtx_course *c, int64_t i, struct dtx_piece *piece)
{
    const struct grid *g = &c->samples;
    i %= g->n;
    int file = file_of(c, g, i);
    *piece = (struct dtx_piece){file, (i - g->first[file]) * g->length, g->length};
}

void dtx_course_note(const struct dtx_cursor *cursor, struct dtx_course_record *record)
{
    record->epoch = cursor->epoch;
    record->done = cursor->done;
    record->rest = cursor->rest;
    record->unit = cursor->unit;
    record->within = cursor->within;
    for (int i = 0; i < record->n_layers && cursor->fresh; i++) {
        dtx_mem_free(record->layers[i].grid.at);
        dtx_mem_free(record->layers[i].scope.at);
    }
    if (cursor->fresh)
        record->n_layers = 0;
}
