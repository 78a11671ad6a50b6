#include "tests/ref/stream_model.h"

#include <stdlib.h>
#include <string.h>

#include "data/order.h"

static int64_t elements(const struct model *m, const struct model_course *c, int64_t length, bool up)
{
    int64_t n = 0;
    for (int i = 0; i < c->n_files; i++)
        n += (m->files[c->file[i]].targets + (up ? length - 1 : 0)) / length;
    return n;
}

/* Element `at` of the order of all samples (or pieces) of a length: its file and first target. */
static void element(const struct model *m, const struct model_course *c, int64_t length, bool up, int64_t at, int *file,
                    int64_t *first)
{
    struct dtx_ctx ctx;
    struct dtx_order order;
    dtx_ctx_init(&ctx);
    if (dtx_order_init(&ctx, &order, m->seed, c->number, elements(m, c, length, up)) != DTX_OK)
        abort();
    int64_t x = dtx_order_at(&order, c->epoch, at);
    for (int i = 0; i < c->n_files; i++) {
        int64_t n = (m->files[c->file[i]].targets + (up ? length - 1 : 0)) / length;
        *file = c->file[i];
        *first = x * length;
        if (x < n)
            return;
        x -= n;
    }
    abort();
}

static bool owns(const struct model_course *c, int file)
{
    for (int i = 0; i < c->n_files; i++)
        if (c->file[i] == file)
            return true;
    return false;
}

/* What a course consumed stays with its files. */
static void leave(struct model *m, struct model_course *c)
{
    for (int i = 0; i < c->n_files && c->done > 0; i++) {
        struct model_file *f = &m->files[c->file[i]];
        int64_t end = f->targets / c->length * c->length;
        f->end = f->end > end ? f->end : end;
        f->shortest = f->shortest && f->shortest < c->length ? f->shortest : c->length;
    }
    c->done = 0;
    c->resting = c->rest_begun = false;
}

void model_change(struct model *m, int n_sources, const int *first, const int *file, int64_t length)
{
    struct model_course was[MODEL_COURSES];
    bool used[MODEL_COURSES] = {false};
    int n_was = m->n_courses, n = 0;
    int64_t number = 0;
    memcpy(was, m->courses, sizeof was);
    for (int k = 0; k < n_was; k++)
        number = was[k].number >= number ? was[k].number + 1 : number;
    for (int s = 0; s < n_sources; s++) {
        struct model_course c = {.n_files = first[s + 1] - first[s], .number = -1, .length = length};
        int same = -1;
        memcpy(c.file, file + first[s], (size_t)c.n_files * sizeof *c.file);
        for (int k = 0; k < n_was && same < 0; k++) {
            bool any = false;
            for (int i = 0; i < c.n_files; i++)
                any |= owns(&was[k], c.file[i]);
            if (was[k].n_files == c.n_files && was[k].length == length &&
                memcmp(was[k].file, c.file, (size_t)c.n_files * sizeof *c.file) == 0)
                same = k;
            if (!any)
                continue;
            c.number = c.number < 0 || was[k].number < c.number ? was[k].number : c.number;
            c.epoch = was[k].epoch > c.epoch ? was[k].epoch : c.epoch;
        }
        if (same >= 0) {
            c = was[same];
            used[same] = true;
        }
        if (c.number < 0)
            c.number = number++;
        m->courses[n++] = c;
    }
    for (int k = 0; k < n_was; k++) {
        struct model_course c = was[k];
        int kept = 0;
        for (int i = 0; i < was[k].n_files; i++) {
            bool taken = false;
            for (int s = 0; s < n_sources; s++)
                taken |= owns(&m->courses[s], was[k].file[i]);
            if (!taken)
                c.file[kept++] = was[k].file[i];
        }
        if (!used[k] && kept < was[k].n_files)
            leave(m, &was[k]);
        if (kept > 0 && kept < was[k].n_files) { /* its cursor went with the other files */
            c.done = 0;
            c.resting = c.rest_begun = false;
        }
        c.n_files = kept;
        if (kept > 0)
            m->courses[n++] = c;
    }
    m->n_courses = n;
    m->n_sources = n_sources;
}

static bool changed(const struct model *m, const struct model_course *c)
{
    for (int i = 0; i < c->n_files; i++)
        if (m->files[c->file[i]].shortest)
            return true;
    return false;
}

static void take(struct model *m, int file, int64_t first, int64_t n, struct model_sample *out)
{
    struct model_file *f = &m->files[file];
    for (int64_t q = first; q < first + n; q++) {
        if (f->taken[q])
            abort();
        f->taken[q] = true;
    }
    f->served += n;
    out->piece[out->n].file = file;
    out->piece[out->n].first = first;
    out->piece[out->n++].n = n;
}

/* Everything of the epoch was consumed, and what no sample reaches is less than a sample. */
static void end_epoch(struct model *m, struct model_course *c)
{
    for (int i = 0; i < c->n_files; i++) {
        struct model_file *f = &m->files[c->file[i]];
        int64_t end = f->targets / c->length * c->length;
        end = f->end > end ? f->end : end;
        for (int64_t q = 0; q < f->targets; q++)
            if (f->taken[q] != (q < end))
                abort();
        memset(f->taken, 0, sizeof f->taken);
        f->end = f->shortest = 0;
    }
    c->epoch++;
    c->done = 0;
    c->resting = c->rest_begun = false;
}

static bool next_whole(struct model *m, struct model_course *c, struct model_sample *out)
{
    while (c->done < elements(m, c, c->length, false)) {
        int file;
        int64_t first;
        bool taken = false;
        element(m, c, c->length, false, c->done++, &file, &first);
        for (int64_t q = first; q < first + c->length; q++)
            taken |= m->files[file].taken[q];
        if (taken)
            continue;
        take(m, file, first, c->length, out);
        return true;
    }
    return false;
}

static bool next_rest(struct model *m, struct model_course *c, struct model_sample *out)
{
    int64_t piece = c->length, room = c->length;
    for (int i = 0; i < c->n_files; i++) {
        int64_t shortest = m->files[c->file[i]].shortest;
        piece = shortest && shortest < piece ? shortest : piece;
    }
    for (int64_t u = 0; u < elements(m, c, piece, true) && room > 0; u++) {
        int file;
        int64_t first;
        element(m, c, piece, true, u, &file, &first);
        const struct model_file *f = &m->files[file];
        int64_t reach = f->targets / c->length * c->length, end = f->end > reach ? f->end : reach;
        for (int64_t q = first; q < first + piece && q < end && room > 0;) {
            int64_t n = 0;
            while (n < room && q + n < first + piece && q + n < end && !f->taken[q + n])
                n++;
            if (n > 0)
                take(m, file, q, n, out);
            room -= n;
            q += n > 0 ? n : 1;
        }
    }
    return room < c->length;
}

void model_next(struct model *m, int source, struct model_sample *out)
{
    struct model_course *c = &m->courses[source];
    out->n = 0;
    m->samples++;
    while (!next_whole(m, c, out) && !next_rest(m, c, out))
        end_epoch(m, c);
    if (!changed(m, c) && c->done == elements(m, c, c->length, false))
        end_epoch(m, c);
}
