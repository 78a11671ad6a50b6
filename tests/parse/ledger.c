/* A checkpoint's ledger of the data. What is accepted writes and reads back alike, and courses of it can be opened and,
 * where they are small, followed. */
#include "data/course.h"
#include "kernels/base/mem.h"
#include "tests/parse/parse.h"

enum { SMALL = 4096, DRAWS = 64 };

static void follow(struct dtx_ctx *ctx, const struct dtx_data_ledger *ledger, const struct dtx_course_record *record,
                   bool small)
{
    struct dtx_course *course;
    struct dtx_cursor cursor;
    static struct dtx_piece pieces[SMALL];
    if (dtx_course_open(ctx, 1, ledger, record, &course, &cursor) != DTX_OK) {
        dtx_error_clear(ctx);
        return;
    }
    for (int i = 0; small && record->length <= SMALL && dtx_course_samples(course) > 0 && i < DRAWS; i++) {
        int64_t n, sum = 0;
        dtx_course_next(course, &cursor, pieces, &n);
        for (int64_t k = 0; k < n; k++) {
            const struct dtx_piece *p = &pieces[k];
            PROMISE(p->n > 0 && p->first >= 0 && p->file >= 0 && p->file < record->files.n);
            PROMISE(p->first + p->n <= ledger->files[record->files.at[p->file]].targets);
            sum += p->n;
        }
        PROMISE(sum > 0 && sum <= record->length);
    }
    dtx_course_close(course);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    struct dtx_ctx ctx;
    struct dtx_data_ledger ledger, again;
    char *text = malloc(n + 1), *one, *two;
    int64_t targets = 0;
    dtx_ctx_init(&ctx);
    memcpy(text, data, n);
    text[n] = '\0';
    enum dtx_status status = dtx_data_ledger_read(&ctx, text, &ledger);
    free(text);
    PROMISE(status == DTX_OK || status == DTX_E_FORMAT);
    if (status != DTX_OK)
        return 0;
    for (int f = 0; f < ledger.n_files; f++)
        targets += ledger.files[f].targets;
    PROMISE(targets >= 0 && ledger.samples >= 0);
    for (int i = 0; i < ledger.n_courses; i++)
        follow(&ctx, &ledger, &ledger.courses[i], targets <= SMALL);
    PROMISE(dtx_data_ledger_write(&ctx, &ledger, &one) == DTX_OK);
    PROMISE(dtx_data_ledger_read(&ctx, one, &again) == DTX_OK);
    PROMISE(dtx_data_ledger_write(&ctx, &again, &two) == DTX_OK && strcmp(one, two) == 0);
    dtx_data_ledger_free(&ledger);
    dtx_data_ledger_free(&again);
    dtx_mem_free(one);
    dtx_mem_free(two);
    return 0;
}
