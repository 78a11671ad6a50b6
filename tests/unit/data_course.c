/* test: label=unit timeout=120 */
#include "data/stream.h"
#include "kernels/base/mem.h"
#include "tests/ref/stream_model.h"
#include "tests/unit/data_support.h"

enum { VOCAB = 2000, SCENARIOS = 1200 };

/* `DTX_SCENARIO=17 test_unit_data_course` runs scenario 17 alone, DTX_SCENARIOS=100000 as many. */

/* A small generator of its own: scenarios repeat. */
static int draw(uint64_t *state, int n)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int)((*state >> 33) % (uint64_t)n);
}

/* File k: token t is 200·k + t. */
static void make_files(struct data_fixture *f, struct model *m, uint64_t *random)
{
    m->n_files = 1 + draw(random, 5);
    for (int k = 0; k < m->n_files; k++) {
        char name[16];
        uint16_t ids[MODEL_TARGETS];
        int64_t tokens = 12 + draw(random, 60);
        snprintf(name, sizeof name, "f%d.npy", k);
        m->files[k] = (struct model_file){.targets = tokens - 1};
        for (int64_t t = 0; t < tokens; t++)
            ids[t] = (uint16_t)(200 * k + t);
        data_write(data_path(f, name), ids, (size_t)tokens * sizeof *ids);
    }
}

struct plan {
    int n_sources, first[MODEL_FILES + 1], file[MODEL_FILES];
    double weights[MODEL_FILES];
    int64_t length;
    char paths[4096];
};

/* Some of the files, in any order, cut into sources. */
static void make_plan(struct data_fixture *f, const struct model *m, uint64_t *random, struct plan *p)
{
    int n = 0, order[MODEL_FILES], wanted = 1 + draw(random, m->n_files);
    for (int k = 0; k < m->n_files; k++)
        order[k] = k;
    for (int k = m->n_files - 1; k > 0 && draw(random, 3) == 0; k--) {
        int other = draw(random, k + 1), swap = order[k];
        order[k] = order[other];
        order[other] = swap;
    }
    bool weighted = draw(random, 3) > 0;
    p->n_sources = 0;
    p->paths[0] = '\0';
    p->length = 1 + draw(random, 10);
    for (int k = 0; k < m->n_files && n < wanted; k++) {
        char name[16], weight[32] = "";
        snprintf(name, sizeof name, "f%d.npy", order[k]);
        if (n == 0 || (weighted && draw(random, 2))) {
            p->weights[p->n_sources] = 1 + draw(random, 5);
            p->first[p->n_sources++] = n;
            if (weighted)
                snprintf(weight, sizeof weight, "%g ", p->weights[p->n_sources - 1]);
        }
        p->file[n++] = order[k];
        snprintf(p->paths + strlen(p->paths), sizeof p->paths - strlen(p->paths), "%s%s%s", n > 1 ? "," : "", weight,
                 data_path(f, name));
    }
    p->first[p->n_sources] = n;
}

static struct dtx_stream *open_plan(struct data_fixture *f, const struct plan *p, uint64_t seed, const char *ledger)
{
    struct dtx_stream *s;
    struct dtx_stream_config config = {
        .paths = p->paths, .length = p->length, .seed = seed, .vocab = VOCAB, .separator = -1, .ledger = ledger};
    data_ok(f, dtx_stream_open(&f->ctx, &config, &s));
    return s;
}

static void expect(uint64_t scenario, int64_t sample, const char *what, int64_t got, int64_t want)
{
    if (got != want)
        fail_msg("scenario %llu, sample %lld: %s is %lld, not %lld", (unsigned long long)scenario, (long long)sample,
                 what, (long long)got, (long long)want);
}

/* The row that the model's sample must give. */
static void check_row(const struct model *m, const struct model_sample *want, int64_t length,
                      const struct dtx_rows *rows)
{
    int64_t at = 0;
    bool whole = want->n == 1 && want->piece[0].n == length;
    expect(m->scenario, m->samples, "packed", rows->packed, !whole);
    for (int k = 0; k < want->n; k++)
        for (int64_t i = 0, begin = at; i < want->piece[k].n; i++, at++) {
            int64_t id = 200 * want->piece[k].file + want->piece[k].first + i;
            expect(m->scenario, m->samples, "token", rows->tokens[at], id);
            expect(m->scenario, m->samples, "target", rows->targets[at], id + 1);
            expect(m->scenario, m->samples, "document start", rows->doc_start[at], begin);
        }
    for (int64_t end = at; at < length; at++) {
        expect(m->scenario, m->samples, "padding's target", rows->targets[at], -1);
        expect(m->scenario, m->samples, "padding's start", rows->doc_start[at], end);
    }
}

/* Some samples of a plan: in turn, now and then one of those before again, now and then passed over. */
static char *run_plan(struct data_fixture *f, struct model *m, const struct plan *p, const char *ledger,
                      uint64_t *random)
{
    static const char *const names[MODEL_FILES] = {"0", "1", "2", "3", "4", "5", "6", "7"};
    struct dtx_stream *s = open_plan(f, p, m->seed, ledger);
    struct dtx_walk *walk, *other;
    struct dtx_blend blend;
    int32_t row[3][16];
    struct dtx_rows rows = {row[0], row[1], row[2], false};
    data_ok(f, dtx_walk_open(&f->ctx, s, &walk));
    data_ok(f, dtx_walk_open(&f->ctx, s, &other));
    data_ok(f, dtx_blend_init(&f->ctx, &blend, m->seed, p->weights, names, p->n_sources));
    assert_int_equal(dtx_stream_first(s), m->samples);
    model_change(m, p->n_sources, p->first, p->file, p->length);
    for (int k = draw(random, 60); k > 0; k--) {
        struct model_sample want;
        int64_t i = m->samples;
        model_next(m, dtx_blend_source(&blend, i), &want);
        if (draw(random, 8) == 0)
            continue;
        rows.packed = false;
        data_ok(f, dtx_stream_read(&f->ctx, s, walk, i, 1, &rows));
        check_row(m, &want, p->length, &rows);
        if (draw(random, 10) == 0) { /* another reader, or back and forth */
            data_ok(f, dtx_stream_read(&f->ctx, s, draw(random, 2) ? walk : other, i, 1, &rows));
            check_row(m, &want, p->length, &rows);
        }
    }
    char *text;
    data_ok(f, dtx_stream_ledger(&f->ctx, s, draw(random, 2) ? walk : other, m->samples, NULL, 0, &text));
    dtx_blend_free(&blend);
    dtx_walk_close(walk);
    dtx_walk_close(other);
    dtx_stream_close(s);
    return text;
}

/* CASES 16, 17, 19: any changes of sources, weights and length, at any sample, give the samples of the model, which
 * counts every target by itself. */
static void changes_neither_lose_nor_repeat(void **state)
{
    struct data_fixture *f = *state;
    const char *one = getenv("DTX_SCENARIO"), *more = getenv("DTX_SCENARIOS");
    uint64_t n = more ? strtoull(more, NULL, 10) : SCENARIOS;
    for (uint64_t k = 0; k < n; k++) {
        uint64_t random = one ? strtoull(one, NULL, 10) : k;
        struct model m = {.scenario = random, .seed = random % 7};
        struct plan p, next;
        char *ledger = NULL;
        random = random * 1000003 + 17;
        make_files(f, &m, &random);
        make_plan(f, &m, &random, &p);
        for (int phase = 2 + draw(&random, 6); phase > 0; phase--) {
            if (one)
                print_message("%s\nlength %lld: %s\n", ledger ? ledger : "", (long long)p.length, p.paths);
            char *after = run_plan(f, &m, &p, ledger, &random);
            dtx_mem_free(ledger);
            ledger = after;
            make_plan(f, &m, &random, &next);
            switch (draw(&random, 4)) {
            case 0: /* another length */
                p.length = next.length;
                break;
            case 1: /* nothing: a plain resume */
                break;
            default:
                if (draw(&random, 2))
                    next.length = p.length;
                p = next;
            }
        }
        dtx_mem_free(ledger);
        if (one)
            break;
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        DATA_TEST(changes_neither_lose_nor_repeat),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
