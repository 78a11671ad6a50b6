/* The ledger for people. */
#include <stdio.h>

#include "data/ledger.h"

static int64_t targets_of(const struct dtx_data_ledger *ledger, const struct dtx_file_list *files)
{
    int64_t n = 0;
    for (int i = 0; i < files->n; i++)
        n += ledger->files[files->at[i]].targets;
    return n;
}

static int64_t samples_of(const struct dtx_data_ledger *ledger, const struct dtx_file_list *files, int64_t length)
{
    int64_t n = 0;
    for (int i = 0; i < files->n; i++)
        n += ledger->files[files->at[i]].targets / length;
    return n;
}

static void print_files(const struct dtx_data_ledger *ledger, const struct dtx_file_list *files, FILE *out)
{
    enum { SHOWN = 3 };
    for (int i = 0; i < files->n && i < SHOWN; i++)
        fprintf(out, "%s%s", i ? ", " : " ", ledger->files[files->at[i]].name);
    if (files->n > SHOWN)
        fprintf(out, ", … %d files in all", files->n);
    fprintf(out, "\n");
}

static void print_layer(const struct dtx_data_ledger *ledger, const struct dtx_course_layer *l, FILE *out)
{
    if (l->rest)
        fprintf(out, "    before      pieces 0 to %lld of the rest in pieces of %lld", (long long)l->done,
                (long long)l->length);
    else
        fprintf(out, "    before      samples 0 to %lld of %lld of length %lld", (long long)l->done - 1,
                (long long)samples_of(ledger, &l->grid, l->length), (long long)l->length);
    fprintf(out, " in the order of epoch %lld over %d file%s; counts in %d of them\n", (long long)l->epoch, l->grid.n,
            l->grid.n == 1 ? "" : "s", l->scope.n);
}

static void print_course(const struct dtx_data_ledger *ledger, const struct dtx_course_record *c, FILE *out)
{
    int64_t n = samples_of(ledger, &c->files, c->length);
    if (c->source >= 0)
        fprintf(out, "source %d:", c->source);
    else
        fprintf(out, "not in use now:");
    print_files(ledger, &c->files, out);
    fprintf(out, "    epoch       %lld, %lld targets in %d file%s\n", (long long)c->epoch,
            (long long)targets_of(ledger, &c->files), c->files.n, c->files.n == 1 ? "" : "s");
    for (int i = 0; i < c->n_layers; i++)
        print_layer(ledger, &c->layers[i], out);
    fprintf(out, "    through     %lld of %lld samples of length %lld (%.2f %%)%s\n", (long long)c->done, (long long)n,
            (long long)c->length, n > 0 ? 100.0 * (double)c->done / (double)n : 0.0,
            c->n_layers > 0 ? ", those passed over that earlier lengths had touched" : "");
    if (c->rest)
        fprintf(out, "    rest        %lld pieces of %lld and %lld targets of the next are through\n",
                (long long)c->unit, (long long)dtx_course_piece_length(c), (long long)c->within);
}

void dtx_data_ledger_print(const struct dtx_data_ledger *ledger, FILE *out)
{
    fprintf(out, "samples     %lld of the run\n", (long long)ledger->samples);
    for (int i = 0; i < ledger->n_skips; i++)
        fprintf(out, "passed over samples %lld to %lld\n", (long long)ledger->skips[i].first,
                (long long)ledger->skips[i].end - 1);
    for (int i = 0; i < ledger->n_courses; i++)
        print_course(ledger, &ledger->courses[i], out);
}
