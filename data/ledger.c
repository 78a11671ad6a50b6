#include "data/ledger.h"

#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

int64_t dtx_course_piece_length(const struct dtx_course_record *course)
{
    int64_t length = course->length;
    for (int i = 0; i < course->n_layers; i++)
        length = course->layers[i].rest ? length : dtx_min64(length, course->layers[i].length);
    return length;
}

static void free_course(struct dtx_course_record *c)
{
    for (int i = 0; i < c->n_layers; i++) {
        dtx_mem_free(c->layers[i].grid.at);
        dtx_mem_free(c->layers[i].scope.at);
    }
    dtx_mem_free(c->layers);
    dtx_mem_free(c->files.at);
}

void dtx_data_ledger_free(struct dtx_data_ledger *ledger)
{
    for (int i = 0; i < ledger->n_files; i++)
        dtx_mem_free(ledger->files[i].name);
    for (int i = 0; i < ledger->n_courses; i++)
        free_course(&ledger->courses[i]);
    dtx_mem_free(ledger->files);
    dtx_mem_free(ledger->courses);
    dtx_mem_free(ledger->skips);
    *ledger = (struct dtx_data_ledger){0};
}

/* What arranging needs: where each old file is in the new table, and which course each new file had. */
struct arrange {
    struct dtx_ctx *ctx;
    const struct dtx_data_ledger *old;
    const struct dtx_data_ledger_plan *plan;
    struct dtx_data_ledger *out;
    int *to;    /* [old files]: place in the new table, −1 none yet */
    int *owner; /* [new files]: source that has it, −1 none */
    int *mark;  /* [new files]: scratch */
};

static enum dtx_status copy_list(struct dtx_ctx *ctx, const struct dtx_file_list *from, struct dtx_file_list *to)
{
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, from->n, sizeof(int), &p));
    to->at = p;
    to->n = from->n;
    memcpy(to->at, from->at, (size_t)from->n * sizeof(int));
    return DTX_OK;
}

static enum dtx_status add_file(struct arrange *a, const struct dtx_data_ledger_file *file)
{
    struct dtx_data_ledger_file *copy = &a->out->files[a->out->n_files];
    *copy = *file;
    copy->name = NULL;
    a->owner[a->out->n_files++] = -1;
    return dtx_mem_text(a->ctx, file->name ? file->name : "", &copy->name);
}

/* The plan's files stand first in the new table; an old file is the same as the first unmatched new one with its id. A
 * thousand files, each compared with a thousand, is a millisecond. */
static enum dtx_status match_files(struct arrange *a)
{
    for (int f = 0; f < a->plan->n_files; f++)
        DTX_TRY(a->ctx, add_file(a, &a->plan->files[f]));
    for (int s = 0; s < a->plan->n_sources; s++)
        for (int f = a->plan->first[s]; f < a->plan->first[s + 1]; f++)
            a->owner[f] = s;
    for (int i = 0; i < a->old->n_files; i++)
        a->to[i] = -1;
    int unmatched = 0; /* files in the old order, as a rule */
    for (int f = 0; f < a->plan->n_files; f++)
        for (int k = 0; k < a->old->n_files; k++) {
            int i = (unmatched + k) % a->old->n_files;
            const struct dtx_data_ledger_file *was = &a->old->files[i], *is = &a->plan->files[f];
            bool same = a->plan->same_files ? i == f : was->id == is->id && was->targets == is->targets;
            if (a->to[i] >= 0 || !same)
                continue;
            a->to[i] = f;
            unmatched = i + 1;
            break;
        }
    return DTX_OK;
}

/* A list of old files in the new table; those that are not in it yet are added. */
static enum dtx_status move_list(struct arrange *a, struct dtx_file_list *list)
{
    for (int i = 0; i < list->n; i++) {
        int old = list->at[i];
        if (a->to[old] < 0) {
            a->to[old] = a->out->n_files;
            DTX_TRY(a->ctx, add_file(a, &a->old->files[old]));
        }
        list->at[i] = a->to[old];
    }
    return DTX_OK;
}

/* Keeps of a list the files that source s has; s −1: that none has. */
static void keep_owned(const struct arrange *a, struct dtx_file_list *list, int s)
{
    int n = 0;
    for (int i = 0; i < list->n; i++)
        if (a->owner[list->at[i]] == s)
            list->at[n++] = list->at[i];
    list->n = n;
}

static enum dtx_status add_layer(struct arrange *a, struct dtx_course_record *c, int s,
                                 const struct dtx_course_layer *layer)
{
    struct dtx_course_layer copy = *layer;
    copy.grid = copy.scope = (struct dtx_file_list){0};
    enum dtx_status status = copy_list(a->ctx, &layer->grid, &copy.grid);
    if (status == DTX_OK)
        status = copy_list(a->ctx, &layer->scope, &copy.scope);
    if (status == DTX_OK)
        status = move_list(a, &copy.scope);
    if (status == DTX_OK)
        keep_owned(a, &copy.scope, s);
    bool counts = status == DTX_OK && copy.scope.n > 0;
    if (counts)
        status = move_list(a, &copy.grid);
    if (status != DTX_OK || !counts) {
        dtx_mem_free(copy.grid.at);
        dtx_mem_free(copy.scope.at);
        return status;
    }
    c->layers[c->n_layers++] = copy;
    return DTX_OK;
}

/* Adds to c what the old course w has consumed of source s's files. */
static enum dtx_status inherit(struct arrange *a, struct dtx_course_record *c, int s, const struct dtx_course_record *w)
{
    struct dtx_course_layer present = {.length = w->length,
                                       .number = w->number,
                                       .epoch = w->epoch,
                                       .done = w->done,
                                       .grid = w->files,
                                       .scope = w->files};
    struct dtx_course_layer rest = present;
    for (int i = 0; i < w->n_layers; i++)
        DTX_TRY(a->ctx, add_layer(a, c, s, &w->layers[i]));
    if (w->done > 0 && !DTX_MUTANT(ledger_forgets_last_layer))
        DTX_TRY(a->ctx, add_layer(a, c, s, &present));
    if (!w->rest || (w->unit == 0 && w->within == 0))
        return DTX_OK;
    rest.rest = true;
    rest.length = dtx_course_piece_length(w);
    rest.done = w->unit;
    rest.within = w->within;
    return add_layer(a, c, s, &rest);
}

static bool owns_any(const struct arrange *a, const struct dtx_course_record *w, int s)
{
    for (int i = 0; i < w->files.n; i++)
        if (a->to[w->files.at[i]] >= 0 && a->owner[a->to[w->files.at[i]]] == s)
            return true;
    return false;
}

static bool same_files(const struct arrange *a, const struct dtx_course_record *w, int first, int n)
{
    bool same = w->files.n == n;
    for (int i = 0; i < n && same; i++)
        same = a->to[w->files.at[i]] == first + i;
    return same;
}

/* Room for all layers of all old courses that source s inherits, and a rest and present one of each. */
static enum dtx_status make_room(struct arrange *a, struct dtx_course_record *c, int s)
{
    int64_t layers = 0;
    void *p;
    for (int i = 0; i < a->old->n_courses; i++)
        if (owns_any(a, &a->old->courses[i], s))
            layers += a->old->courses[i].n_layers + 2;
    DTX_TRY(a->ctx, dtx_mem_alloc(a->ctx, layers, sizeof *c->layers, &p));
    c->layers = p;
    return DTX_OK;
}

/* The same course, its files in the new table. */
static enum dtx_status keep_course(struct arrange *a, const struct dtx_course_record *w, int s)
{
    void *p;
    struct dtx_course_record *c = &a->out->courses[a->out->n_courses++];
    *c = *w;
    c->source = s;
    c->files = (struct dtx_file_list){0};
    c->n_layers = 0;
    c->layers = NULL;
    DTX_TRY(a->ctx, copy_list(a->ctx, &w->files, &c->files));
    DTX_TRY(a->ctx, move_list(a, &c->files));
    DTX_TRY(a->ctx, dtx_mem_alloc(a->ctx, w->n_layers, sizeof *c->layers, &p));
    c->layers = p;
    for (int i = 0; i < w->n_layers; i++)
        DTX_TRY(a->ctx, add_layer(a, c, s, &w->layers[i]));
    return DTX_OK;
}

/* The next number that no course had. */
static int64_t new_number(const struct arrange *a)
{
    int64_t number = 0;
    const struct dtx_data_ledger *all[] = {a->old, a->out};
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < all[k]->n_courses; i++)
            number = dtx_max64(number, all[k]->courses[i].number + 1);
    return number;
}

static enum dtx_status arrange_source(struct arrange *a, int s)
{
    int first = a->plan->first[s], n = a->plan->first[s + 1] - first;
    struct dtx_course_record *c;
    void *p;
    int64_t number = -1, epoch = 0;
    for (int i = 0; i < a->old->n_courses; i++) {
        const struct dtx_course_record *w = &a->old->courses[i];
        if (same_files(a, w, first, n) && w->length == a->plan->length)
            return keep_course(a, w, s);
        if (!owns_any(a, w, s))
            continue;
        number = number < 0 ? w->number : dtx_min64(number, w->number);
        epoch = dtx_max64(epoch, w->epoch);
    }
    if (number < 0)
        number = new_number(a);
    c = &a->out->courses[a->out->n_courses++];
    *c = (struct dtx_course_record){.source = s, .number = number, .epoch = epoch, .length = a->plan->length};
    DTX_TRY(a->ctx, dtx_mem_alloc(a->ctx, n, sizeof(int), &p));
    c->files = (struct dtx_file_list){n, p};
    for (int i = 0; i < n; i++)
        c->files.at[i] = first + i;
    DTX_TRY(a->ctx, make_room(a, c, s));
    for (int i = 0; i < a->old->n_courses; i++)
        if (owns_any(a, &a->old->courses[i], s))
            DTX_TRY(a->ctx, inherit(a, c, s, &a->old->courses[i]));
    return DTX_OK;
}

/* What an old course has of files that no source has now. */
static enum dtx_status put_by(struct arrange *a, const struct dtx_course_record *w)
{
    struct dtx_file_list files = {0};
    enum dtx_status status = copy_list(a->ctx, &w->files, &files);
    if (status == DTX_OK)
        status = move_list(a, &files);
    if (status == DTX_OK)
        keep_owned(a, &files, -1);
    if (status != DTX_OK || files.n == 0 || files.n == w->files.n) {
        int n = files.n;
        dtx_mem_free(files.at);
        return status != DTX_OK || n == 0 ? status : keep_course(a, w, -1);
    }
    void *p;
    struct dtx_course_record *c = &a->out->courses[a->out->n_courses++];
    *c = (struct dtx_course_record){
        .source = -1, .number = w->number, .epoch = w->epoch, .length = w->length, .files = files};
    DTX_TRY(a->ctx, dtx_mem_alloc(a->ctx, (int64_t)w->n_layers + 2, sizeof *c->layers, &p));
    c->layers = p;
    return inherit(a, c, -1, w);
}

static enum dtx_status arrange_all(struct arrange *a)
{
    void *p;
    int64_t files = (int64_t)a->plan->n_files + a->old->n_files;
    int64_t courses = (int64_t)a->plan->n_sources + a->old->n_courses;
    DTX_TRY(a->ctx, dtx_mem_alloc(a->ctx, a->old->n_files, sizeof(int), &p));
    a->to = p;
    DTX_TRY(a->ctx, dtx_mem_alloc(a->ctx, files, sizeof(int), &p));
    a->owner = p;
    DTX_TRY(a->ctx, dtx_mem_alloc(a->ctx, files, sizeof *a->out->files, &p));
    a->out->files = p;
    DTX_TRY(a->ctx, dtx_mem_alloc(a->ctx, courses, sizeof *a->out->courses, &p));
    a->out->courses = p;
    DTX_TRY(a->ctx, match_files(a));
    for (int s = 0; s < a->plan->n_sources; s++)
        DTX_TRY(a->ctx, arrange_source(a, s));
    for (int i = 0; i < a->old->n_courses; i++)
        DTX_TRY(a->ctx, put_by(a, &a->old->courses[i]));
    a->out->samples = a->old->samples;
    DTX_TRY(a->ctx, dtx_mem_alloc(a->ctx, a->old->n_skips, sizeof *a->out->skips, &p));
    a->out->skips = p;
    a->out->n_skips = a->old->n_skips;
    if (a->old->n_skips > 0)
        memcpy(a->out->skips, a->old->skips, (size_t)a->old->n_skips * sizeof *a->out->skips);
    return DTX_OK;
}

enum dtx_status dtx_data_ledger_arrange(struct dtx_ctx *ctx, const struct dtx_data_ledger *old,
                                        const struct dtx_data_ledger_plan *plan, struct dtx_data_ledger *out)
{
    struct dtx_data_ledger made = {0};
    struct arrange a = {.ctx = ctx, .old = old, .plan = plan, .out = &made};
    enum dtx_status status = arrange_all(&a);
    dtx_mem_free(a.to);
    dtx_mem_free(a.owner);
    if (status == DTX_OK)
        *out = made;
    else
        dtx_data_ledger_free(&made);
    return status;
}

enum dtx_status dtx_data_ledger_skip(struct dtx_ctx *ctx, struct dtx_data_ledger *ledger, int64_t first, int64_t end)
{
    void *p;
    if (first < 0 || end < first)
        return dtx_fail(ctx, DTX_E_RANGE, "samples %lld to %lld cannot be passed over", (long long)first,
                        (long long)end);
    if (first == end)
        return DTX_OK;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, (int64_t)ledger->n_skips + 1, sizeof *ledger->skips, &p));
    struct dtx_skip *skips = p, added = {first, end};
    int n = 0, i = 0;
    for (; i < ledger->n_skips && ledger->skips[i].end < first; i++)
        skips[n++] = ledger->skips[i];
    for (; i < ledger->n_skips && ledger->skips[i].first <= end; i++) { /* those that touch become one */
        added.first = dtx_min64(added.first, ledger->skips[i].first);
        added.end = dtx_max64(added.end, ledger->skips[i].end);
    }
    skips[n++] = added;
    for (; i < ledger->n_skips; i++)
        skips[n++] = ledger->skips[i];
    dtx_mem_free(ledger->skips);
    ledger->skips = skips;
    ledger->n_skips = n;
    return DTX_OK;
}

int64_t dtx_skips_pass(const struct dtx_skip *skips, int n_skips, int64_t first, int64_t n)
{
    for (int i = 0; i < n_skips && !DTX_MUTANT(ledger_skips_ignored); i++) {
        if (skips[i].end <= first)
            continue;
        if (skips[i].first > first) { /* so many samples before it */
            int64_t before = dtx_min64(n, skips[i].first - first);
            n -= before;
            first += before;
        }
        if (n == 0)
            break;
        first = skips[i].end;
    }
    return first + n;
}
