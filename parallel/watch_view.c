/* Where ledgers lie, and reading them all. */
#include "parallel/watch_view.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"

void dtx_watch_ledger_path(const struct dtx_watch_place *place, int rank, char path[DTX_WATCH_PATH])
{
    snprintf(path, DTX_WATCH_PATH, "%.*s-%06d", DTX_WATCH_PATH - 16, place->prefix, rank);
}

void dtx_watch_copy_path(const struct dtx_watch_place *place, int rank, char path[DTX_WATCH_PATH])
{
    snprintf(path, DTX_WATCH_PATH, "%.*s/watch/rank-%06d", DTX_WATCH_PATH - 32, place->run, rank);
}

static void ranks_path(const char *run, char path[DTX_WATCH_PATH])
{
    snprintf(path, DTX_WATCH_PATH, "%.*s/watch/ranks", DTX_WATCH_PATH - 32, run);
}

enum dtx_status dtx_watch_place_write(struct dtx_ctx *ctx, const struct dtx_watch_place *place)
{
    char path[DTX_WATCH_PATH], temporary[DTX_WATCH_PATH + 8];
    ranks_path(place->run, path);
    snprintf(temporary, sizeof temporary, "%s.new", path);
    FILE *file = fopen(temporary, "w");
    bool written = file != NULL;
    if (file) {
        fprintf(file, "format: %d\ntoken: %016" PRIx64 "\nledgers: %s\nranks: %d\n", DTX_LEDGER_FORMAT, place->token,
                place->prefix, place->size);
        for (int r = 0; r < place->size; r++)
            fprintf(file, "rank %d pid %d born %" PRIu64 " host %s\n", r, place->ranks[r].pid, place->ranks[r].born,
                    place->ranks[r].host);
        written = fflush(file) == 0;
        written = fclose(file) == 0 && written;
    }
    if (!written || rename(temporary, path) != 0)
        return dtx_fail(ctx, DTX_E_IO, "%s: cannot write: %s", path, strerror(errno));
    return DTX_OK;
}

/* The lines "rank …". */
static bool read_ranks(FILE *file, struct dtx_watch_place *place)
{
    for (int r = 0; r < place->size; r++) {
        int number;
        struct dtx_watch_rank *rank = &place->ranks[r];
        if (fscanf(file, " rank %d pid %" SCNd32 " born %" SCNu64 " host %63s", &number, &rank->pid, &rank->born,
                   rank->host) != 4 ||
            number != r)
            return false;
    }
    return true;
}

enum dtx_status dtx_watch_place_read(struct dtx_ctx *ctx, const char *run, struct dtx_watch_place *out)
{
    char path[DTX_WATCH_PATH];
    int format = 0;
    struct dtx_watch_place place = {.size = 0};
    ranks_path(run, path);
    FILE *file = fopen(path, "r");
    if (!file)
        return dtx_fail(ctx, DTX_E_IO, "%s: %s", path, strerror(errno));
    snprintf(place.run, sizeof place.run, "%s", run);
    bool whole = fscanf(file, "format: %d token: %" SCNx64 " ledgers:", &format, &place.token) == 2 &&
                 format == DTX_LEDGER_FORMAT && fgetc(file) == ' ' && fgets(place.prefix, sizeof place.prefix, file) &&
                 fscanf(file, " ranks: %d", &place.size) == 1 && place.size > 0;
    place.prefix[strcspn(place.prefix, "\n")] = '\0';
    void *ranks = NULL;
    enum dtx_status status = DTX_OK;
    if (whole)
        status = dtx_mem_alloc(ctx, place.size, sizeof *place.ranks, &ranks);
    place.ranks = ranks;
    whole = whole && status == DTX_OK && read_ranks(file, &place);
    fclose(file);
    if (!whole) {
        dtx_mem_free(ranks);
        return status != DTX_OK ? status
                                : dtx_fail(ctx, DTX_E_FORMAT,
                                           "%s: is not the list of ranks (format %d) of this program", path, format);
    }
    *out = place;
    return DTX_OK;
}

/* /proc/PID/stat after the command's name: its state, and field 22, the start time. */
static bool read_stat(int32_t pid, char *state, uint64_t *born)
{
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "r");
    if (!file)
        return false;
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = '\0';
    char *at = strrchr(text, ')');
    if (!at || sscanf(at + 1, " %c", state) != 1)
        return false;
    at += 2;
    for (int field = 3; at && field < 22; field++)
        if ((at = strchr(at, ' ')) != NULL)
            at++;
    *born = at ? strtoull(at, NULL, 10) : 0;
    return true;
}

char dtx_watch_process(int32_t pid, uint64_t born_then, uint64_t *born)
{
    char state = '?';
    uint64_t started = 0;
    if (!read_stat(pid, &state, &started)) {
        bool readable = pid != (int32_t)getpid() && read_stat((int32_t)getpid(), &state, &started);
        return readable ? 'X' : '?';
    }
    if (born)
        *born = started;
    if ((born_then && started != born_then) || state == 'Z' || state == 'X')
        return 'X';
    return state == 'T' || state == 't' ? 'T' : 'R';
}

/* A ledger of this launch and rank. An unreadable one counts as none: the table says so. */
static struct dtx_ledger *read_one(struct dtx_ctx *ctx, const char *path, uint64_t token, int rank)
{
    struct dtx_ctx reader;
    struct dtx_ledger *ledger = NULL;
    dtx_ctx_init_child(&reader, ctx);
    if (dtx_ledger_read(&reader, path, &ledger) != DTX_OK)
        return NULL;
    if (ledger->token == token && ledger->rank == rank)
        return ledger;
    dtx_mem_free(ledger);
    return NULL;
}

static void fill_seat(struct dtx_ctx *ctx, const struct dtx_watch_place *place, const char *host, int rank,
                      struct dtx_watch_seat *seat)
{
    char path[DTX_WATCH_PATH];
    seat->who = &place->ranks[DTX_MUTANT(watch_names_next_rank) ? (rank + 1) % place->size : rank];
    seat->here = strcmp(seat->who->host, host) == 0;
    bool copied = false;
    if (place->prefix[0]) { /* also for another host's name: the folder may be shared */
        dtx_watch_ledger_path(place, rank, path);
        seat->ledger = read_one(ctx, path, place->token, rank);
    }
    if (!seat->ledger && place->run[0]) {
        dtx_watch_copy_path(place, rank, path);
        seat->ledger = read_one(ctx, path, place->token, rank);
        copied = seat->ledger != NULL;
    }
    seat->process = seat->here ? dtx_watch_process(place->ranks[rank].pid, place->ranks[rank].born, NULL) : '?';
    if (!seat->here && copied)
        seat->process = seat->ledger->observed ? (char)seat->ledger->observed : 'R';
}

enum dtx_status dtx_watch_view_make(struct dtx_ctx *ctx, const struct dtx_watch_place *place, const char *host,
                                    const struct dtx_ledger *own, struct dtx_watch_view *out)
{
    void *seats;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, place->size, sizeof(struct dtx_watch_seat), &seats));
    struct dtx_watch_view view = {place->size, seats};
    for (int r = 0; r < place->size; r++) {
        struct dtx_watch_seat *seat = &view.seats[r];
        fill_seat(ctx, place, host, r, seat);
        if (own && own->rank == r && !seat->ledger) {
            enum dtx_status status = dtx_ledger_copy(ctx, own, &seat->ledger);
            if (status != DTX_OK) {
                dtx_watch_view_free(&view);
                return status;
            }
        }
    }
    *out = view;
    return DTX_OK;
}

void dtx_watch_view_free(struct dtx_watch_view *view)
{
    for (int r = 0; r < view->size; r++)
        dtx_mem_free(view->seats[r].ledger);
    dtx_mem_free(view->seats);
    view->seats = NULL;
    view->size = 0;
}
