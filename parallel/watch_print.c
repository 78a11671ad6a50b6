/* The table: findings first, then where every rank is. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "parallel/watch_view.h"

enum {
    MOST_FINDINGS = 16, /* lines of one kind */
    MOST_ROWS = 200,
    LIST_TEXT = 256
};

/* One member of a communicator. */
struct member {
    uint64_t id;
    int seat;
    const struct dtx_ledger_page *page;
};

struct table {
    const struct dtx_watch_view *view;
    FILE *file;
    struct member *members; /* [n_members], by id and rank in the communicator */
    int n_members;
    int *ranks; /* [size], scratch */
    int *other; /* [size], scratch */
    int findings;
    bool all_gone; /* as far as is known */
    bool *blamed;  /* [size], or NULL */
};

void dtx_watch_ranges(const int *ranks, int n, char *text, size_t bytes)
{
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < n;) {
        int last = i;
        while (last + 1 < n && ranks[last + 1] == ranks[last] + 1)
            last++;
        char part[32];
        if (last == i)
            snprintf(part, sizeof part, "%d", ranks[i]);
        else
            snprintf(part, sizeof part, "%d%s%d", ranks[i], last == i + 1 ? "," : "-", ranks[last]);
        if (used + strlen(part) + 8 > bytes) {
            snprintf(text + used, bytes - used, ",…");
            return;
        }
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", used ? "," : "", part);
        i = last + 1;
    }
}

static const char *plural(int n)
{
    return n == 1 ? "" : "s";
}

/* What a rank does, or did last: the entry that waits longest, else one that failed, else the last that ended. */
static const struct dtx_ledger_entry *current(const struct dtx_ledger *ledger, const struct dtx_ledger_page **page)
{
    const struct dtx_ledger_entry *found = NULL;
    static const int weight[] = {0, 0, 3, 1, 2};
    for (int p = 0; p < DTX_LEDGER_PAGES; p++)
        for (int i = 0; ledger->pages[p].id && i < DTX_LEDGER_RING; i++) {
            const struct dtx_ledger_entry *e = &ledger->pages[p].ring[i];
            if (e->state > DTX_LEDGER_FAILED || weight[e->state] == 0 ||
                dtx_ledger_patient(&ledger->pages[p], e, ledger->seen))
                continue;
            int more = found ? weight[e->state] - weight[found->state] : 1;
            bool waiting = e->state == DTX_LEDGER_WAITING;
            if (more > 0 || (more == 0 && (waiting ? e->start < found->start : e->end > found->end))) {
                found = e;
                *page = &ledger->pages[p];
            }
        }
    return found;
}

static bool waits(const struct dtx_watch_seat *seat)
{
    const struct dtx_ledger_page *page;
    const struct dtx_ledger_entry *e = seat->ledger ? current(seat->ledger, &page) : NULL;
    return e && e->state == DTX_LEDGER_WAITING;
}

/* A rank that waits itself, so that nobody waits because of it. Of the dead that is only said when a launcher has
 * killed all. */
static bool victim(const struct table *t, int rank)
{
    const struct dtx_watch_seat *seat = &t->view->seats[rank];
    return waits(seat) && (t->all_gone || (seat->process != 'X' && seat->process != 'T'));
}

static const char *condition(const struct dtx_watch_seat *seat)
{
    if (seat->process == 'X')
        return "dead";
    if (seat->process == 'T')
        return "stopped";
    if (!seat->ledger)
        return "unknown";
    if (seat->ledger->end == DTX_LEDGER_FAILS)
        return "failed";
    const struct dtx_ledger_page *page;
    const struct dtx_ledger_entry *e = current(seat->ledger, &page);
    return !e ? "starts" : e->state == DTX_LEDGER_WAITING ? "waits" : e->state == DTX_LEDGER_FAILED ? "error" : "busy";
}

static void say_entry(FILE *file, const struct dtx_ledger_entry *e)
{
    fprintf(file, "%s of %" PRId64 " bytes", dtx_ledger_op_name((enum dtx_ledger_op)e->op), e->bytes);
    if (e->count)
        fprintf(file, " (%" PRId64 " %s)", e->count,
                e->dtype <= DTX_U8 ? dtx_dtype_name((enum dtx_dtype)e->dtype) : "?");
    if (e->op == DTX_LEDGER_BROADCAST)
        fprintf(file, " from %d", e->peer);
    fprintf(file, " at %s:%d", e->file, e->line);
}

/* "rank 2 (n1, pid 77, stopped)" for a few, "ranks 2-9" for more. */
static void say_ranks(struct table *t, const int *ranks, int n)
{
    char list[LIST_TEXT];
    dtx_watch_ranges(ranks, n, list, sizeof list);
    fprintf(t->file, "rank%s %s", plural(n), list);
    for (int i = 0; i < n && n <= 4; i++) {
        const struct dtx_watch_seat *seat = &t->view->seats[ranks[i]];
        fprintf(t->file, "%s%s, pid %d", i ? "; " : " (", seat->who->host, seat->who->pid);
        if (seat->ledger && seat->ledger->mesh[0])
            fprintf(t->file, ", %s", seat->ledger->mesh);
        fprintf(t->file, ", %s", condition(seat));
    }
    if (n <= 4)
        fprintf(t->file, ")");
}

static bool finding(struct table *t, int *n)
{
    t->findings++;
    return (*n)++ < MOST_FINDINGS;
}

static void blame(struct table *t, const int *ranks, int n)
{
    for (int i = 0; i < n && t->blamed; i++)
        t->blamed[ranks[i]] = true;
}

/* Dead, stopped, failed, unheard of. */
static void print_conditions(struct table *t)
{
    static const struct {
        const char *name, *says;
    } kinds[] = {{"dead", "the process is gone"},
                 {"stopped", "the process is stopped (signal STOP or a debugger): it cannot answer"},
                 {"failed", ""},
                 {"unknown", "no ledger could be read: not heard of"}};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        int n = 0;
        for (int r = 0; r < t->view->size; r++)
            if (strcmp(condition(&t->view->seats[r]), kinds[k].name) == 0)
                t->ranks[n++] = r;
        if (n == 0)
            continue;
        bool known = strcmp(kinds[k].name, "unknown") != 0;
        t->findings += known;
        blame(t, t->ranks, known ? n : 0);
        fprintf(t->file, "  %-9s ", kinds[k].name);
        say_ranks(t, t->ranks, n);
        const struct dtx_ledger *ledger = t->view->seats[t->ranks[0]].ledger;
        fprintf(t->file, ": %s\n", kinds[k].says[0] ? kinds[k].says : ledger ? ledger->cause : "");
    }
}

static int compare_members(const void *a, const void *b)
{
    const struct member *x = a, *y = b;
    if (x->id != y->id)
        return x->id < y->id ? -1 : 1;
    return (x->page->rank > y->page->rank) - (x->page->rank < y->page->rank);
}

static const struct dtx_ledger_entry *numbered(const struct dtx_ledger_page *page, uint64_t number, int op_from,
                                               int op_to)
{
    for (int i = 0; i < DTX_LEDGER_RING; i++) {
        const struct dtx_ledger_entry *e = &page->ring[i];
        if (e->state != DTX_LEDGER_EMPTY && e->number == number && e->op >= op_from && e->op < op_to)
            return e;
    }
    return NULL;
}

/* The lowest number of a collective that somebody of the group waits for; 0: none. */
static uint64_t lowest_wait(const struct member *group, int n)
{
    uint64_t lowest = 0;
    for (int m = 0; m < n; m++)
        for (int i = 0; i < DTX_LEDGER_RING; i++) {
            const struct dtx_ledger_entry *e = &group[m].page->ring[i];
            if (e->state == DTX_LEDGER_WAITING && e->op < DTX_LEDGER_SEND && (!lowest || e->number < lowest))
                lowest = e->number;
        }
    return lowest;
}

/* World rank of member r of a group, of which `found` is the member there or NULL: no ledger of it; −1: unknown. */
static int seat_of(const struct table *t, const struct dtx_ledger_page *page, const struct member *found, int r)
{
    int seat = found ? found->seat : page->stride ? page->first + page->stride * r : -1;
    return seat < t->view->size ? seat : -1;
}

/* Members that have not come to the collective that others wait in, and those who do. `all`: also those who wait
 * elsewhere themselves. */
static void print_missing(struct table *t, const struct member *group, int n, bool all, int *printed)
{
    const struct dtx_ledger_page *page = group[0].page;
    const struct dtx_ledger_entry *e = NULL;
    uint64_t number = lowest_wait(group, n);
    int n_missing = 0, n_waiting = 0, m = 0;
    for (int r = 0; number && r < page->size; r++) {
        while (m < n && group[m].page->rank < r)
            m++;
        const struct member *member = m < n && group[m].page->rank == r ? &group[m] : NULL;
        const struct dtx_ledger_entry *here = member ? numbered(member->page, number, 0, DTX_LEDGER_SEND) : NULL;
        int seat = seat_of(t, page, member, r);
        if (here && here->state == DTX_LEDGER_WAITING) {
            if (dtx_ledger_patient(member->page, here, t->view->seats[member->seat].ledger->seen))
                return;
            e = here;
            t->other[n_waiting++] = seat;
        }
        if (seat >= 0 && (!member || member->page->collectives < number) && (all || !victim(t, seat)))
            t->ranks[n_missing++] = seat;
    }
    if (n_missing == 0 || !e)
        return;
    blame(t, t->ranks, n_missing);
    if (!finding(t, printed))
        return;
    char waiting[LIST_TEXT];
    dtx_watch_ranges(t->other, n_waiting, waiting, sizeof waiting);
    fprintf(t->file, "  missing   ");
    say_ranks(t, t->ranks, n_missing);
    fprintf(t->file, " in %s #%" PRIu64 ": rank%s %s wait%s in ", page->name, number, plural(n_waiting), waiting,
            n_waiting == 1 ? "s" : "");
    say_entry(t->file, e);
    fprintf(t->file, "\n");
}

static bool same_call(const struct dtx_ledger_entry *a, const struct dtx_ledger_entry *b)
{
    return a->op == b->op && a->bytes == b->bytes && a->dtype == b->dtype && a->peer == b->peer;
}

/* An entry that says what its rank did together with the others (a rank that fails comes to the end by itself). */
static const struct dtx_ledger_entry *common_entry(struct table *t, const struct member *member, uint64_t number)
{
    const struct dtx_ledger_entry *e = numbered(member->page, number, 0, DTX_LEDGER_SEND);
    return e && e->op == DTX_LEDGER_END && t->view->seats[member->seat].ledger->end == DTX_LEDGER_FAILS ? NULL : e;
}

/* The first collective of a group that its members call with other operations or sizes. */
static uint64_t first_difference(struct table *t, const struct member *group, int n)
{
    uint64_t from = 0, to = 0;
    for (int m = 0; m < n; m++) {
        uint64_t last = group[m].page->collectives, first = last > DTX_LEDGER_RING ? last - DTX_LEDGER_RING : 1;
        from = m == 0 || first < from ? first : from;
        to = last > to ? last : to;
    }
    for (uint64_t number = from; number && number <= to; number++) {
        const struct dtx_ledger_entry *one = NULL;
        for (int m = 0; m < n; m++) {
            const struct dtx_ledger_entry *e = common_entry(t, &group[m], number);
            if (e && one && !same_call(e, one))
                return number;
            one = e ? e : one;
        }
    }
    return 0;
}

static void print_disagreement(struct table *t, const struct member *group, int n, int *printed)
{
    uint64_t number = first_difference(t, group, n);
    if (!number || !finding(t, printed))
        return;
    fprintf(t->file, "  disagree  in %s #%" PRIu64 ": ", group[0].page->name, number);
    int kinds = 0;
    for (int m = 0; m < n && kinds < 8; m++) {
        const struct dtx_ledger_entry *e = common_entry(t, &group[m], number);
        bool known = e == NULL;
        for (int k = 0; k < m && !known; k++) {
            const struct dtx_ledger_entry *before = common_entry(t, &group[k], number);
            known = before && same_call(before, e);
        }
        if (known)
            continue;
        int same = 0;
        for (int k = m; k < n; k++) {
            const struct dtx_ledger_entry *other = common_entry(t, &group[k], number);
            if (other && same_call(other, e))
                t->ranks[same++] = group[k].seat;
        }
        fprintf(t->file, "%s", kinds++ ? "; but " : "");
        say_ranks(t, t->ranks, same);
        fprintf(t->file, " %s ", same == 1 ? "calls" : "call");
        say_entry(t->file, e);
    }
    fprintf(t->file, "\n");
}

/* Messages between the two members of a channel: waits whose other end has not come, and other sizes. */
static void print_messages(struct table *t, const struct member *group, int n, bool all, int *missing, int *differing)
{
    for (int m = 0; m < n; m++) {
        const struct dtx_ledger_page *page = group[m].page;
        for (int i = 0; page->size == 2 && i < DTX_LEDGER_RING; i++) {
            const struct dtx_ledger_entry *e = &page->ring[i];
            if (e->state == DTX_LEDGER_EMPTY || e->op < DTX_LEDGER_SEND)
                continue;
            bool receive = e->op == DTX_LEDGER_RECEIVE;
            int seat = page->first + page->stride * e->peer, op = receive ? DTX_LEDGER_SEND : DTX_LEDGER_RECEIVE;
            if (seat < 0 || seat >= t->view->size)
                continue;
            const struct dtx_watch_seat *peer = &t->view->seats[seat];
            const struct dtx_ledger_page *there = n == 2 ? group[1 - m].page : NULL;
            const struct dtx_ledger_entry *match = there ? numbered(there, e->number, op, op + 1) : NULL;
            uint64_t begun = !there ? 0 : receive ? there->sends : there->receives;
            bool absent = e->state == DTX_LEDGER_WAITING && begun < e->number && (all || !victim(t, seat));
            blame(t, &seat, absent);
            if (absent && finding(t, missing)) {
                fprintf(t->file, "  missing   ");
                say_ranks(t, &seat, 1);
                fprintf(t->file, " in %s message #%" PRIu64 ": rank %d waits in ", page->name, e->number,
                        group[m].seat);
                say_entry(t->file, e);
                fprintf(t->file, "\n");
            }
            if (match && receive && match->bytes != e->bytes && finding(t, differing)) {
                fprintf(t->file, "  disagree  in %s message #%" PRIu64 ": rank %d (%s): ", page->name, e->number, seat,
                        peer->who->host);
                say_entry(t->file, match);
                fprintf(t->file, "; but rank %d (%s): ", group[m].seat, t->view->seats[group[m].seat].who->host);
                say_entry(t->file, e);
                fprintf(t->file, "\n");
            }
        }
    }
}

static void print_groups(struct table *t, bool all)
{
    int missing = 0, differing = 0;
    for (int first = 0, n; first < t->n_members; first += n) {
        const struct member *group = &t->members[first];
        for (n = 1; first + n < t->n_members && group[n].id == group[0].id; n++)
            ;
        print_missing(t, group, n, all, &missing);
        if (!all)
            print_disagreement(t, group, n, &differing);
        print_messages(t, group, n, all, &missing, &differing);
    }
    if (missing > MOST_FINDINGS || differing > MOST_FINDINGS)
        fprintf(t->file, "  and %d more of the kind\n",
                (missing > MOST_FINDINGS ? missing - MOST_FINDINGS : 0) +
                    (differing > MOST_FINDINGS ? differing - MOST_FINDINGS : 0));
}

/* Ranks at one place of the program. */
struct row {
    const char *condition;
    const struct dtx_ledger_page *page;
    const struct dtx_ledger_entry *entry; /* NULL: no ledger, or nothing in it */
    const char *host;                     /* NULL: several */
    double seconds, since;                /* the longest wait, the earliest start (wall clock) */
    int n, first;
};

static bool same_row(const struct row *a, const struct row *b)
{
    if (strcmp(a->condition, b->condition) != 0 || !a->entry != !b->entry)
        return false;
    return !a->entry || (strcmp(a->page->name, b->page->name) == 0 && a->entry->number == b->entry->number &&
                         same_call(a->entry, b->entry) && a->entry->line == b->entry->line &&
                         strcmp(a->entry->file, b->entry->file) == 0);
}

static struct row row_of(const struct dtx_watch_seat *seat, int rank)
{
    struct row row = {.condition = condition(seat), .host = seat->who->host, .n = 1, .first = rank};
    if (!seat->ledger)
        return row;
    const struct dtx_ledger *l = seat->ledger;
    row.entry = current(l, &row.page);
    if (row.entry) {
        double from = row.entry->state == DTX_LEDGER_WAITING ? row.entry->start : row.entry->end;
        row.since = from + l->wall;
        row.seconds = l->seen > from ? l->seen - from : 0;
    }
    return row;
}

static void print_row(struct table *t, const struct row *row, const int *row_of_rank, int index)
{
    char list[LIST_TEXT], name[DTX_LEDGER_FILE + 16], number[24], clock[16] = "";
    int n = 0;
    for (int r = 0; r < t->view->size; r++)
        if (row_of_rank[r] == index)
            t->other[n++] = r;
    dtx_watch_ranges(t->other, n, list, sizeof list);
    fprintf(t->file, "  %-9s %-12s %-8s ", list, row->host ? row->host : "several", row->condition);
    const struct dtx_ledger_entry *e = row->entry;
    if (!e) {
        fprintf(t->file, "%s\n", t->view->seats[row->first].ledger ? "before the first collective" : "");
        return;
    }
    time_t seconds = (time_t)row->since;
    struct tm local;
    if (localtime_r(&seconds, &local))
        strftime(clock, sizeof clock, "%H:%M:%S", &local);
    snprintf(name, sizeof name, "%s:%d", e->file, e->line);
    snprintf(number, sizeof number, "#%" PRIu64, e->number);
    fprintf(t->file, "%-5s %-13s %-8s %-14s %12" PRId64 "  %-32s %s  %.1f s\n",
            e->state == DTX_LEDGER_WAITING || e->state == DTX_LEDGER_FAILED ? "in" : "after", row->page->name, number,
            dtx_ledger_op_name((enum dtx_ledger_op)e->op), e->bytes, name, clock, row->seconds);
}

/* One row for all ranks at the same place. */
static void print_rows(struct table *t)
{
    struct row rows[MOST_ROWS];
    int n_rows = 0, left_out = 0;
    for (int r = 0; r < t->view->size; r++) {
        struct row row = row_of(&t->view->seats[r], r);
        int i = 0;
        while (i < n_rows && !same_row(&rows[i], &row))
            i++;
        t->ranks[r] = i < MOST_ROWS ? i : -1;
        if (i == MOST_ROWS) {
            left_out++;
        } else if (i == n_rows) {
            rows[n_rows++] = row;
        } else {
            rows[i].n++;
            if (rows[i].host && strcmp(rows[i].host, row.host) != 0)
                rows[i].host = NULL;
            rows[i].seconds = row.seconds > rows[i].seconds ? row.seconds : rows[i].seconds;
            rows[i].since = row.since < rows[i].since ? row.since : rows[i].since;
        }
    }
    fprintf(t->file, "  %-9s %-12s %-8s %-5s %-13s %-8s %-14s %12s  %-32s %s\n", "ranks", "host", "state", "", "axis",
            "number", "operation", "bytes", "where", "since");
    for (int i = 0; i < n_rows; i++)
        print_row(t, &rows[i], t->ranks, i);
    if (left_out)
        fprintf(t->file, "  and %d more ranks at other places\n", left_out);
}

static enum dtx_status list_members(struct dtx_ctx *ctx, struct table *t)
{
    void *p;
    DTX_TRY(ctx, dtx_mem_alloc(ctx, (int64_t)t->view->size * DTX_LEDGER_PAGES, sizeof *t->members, &p));
    t->members = p;
    for (int r = 0; r < t->view->size; r++)
        for (int i = 0; t->view->seats[r].ledger && i < DTX_LEDGER_PAGES; i++) {
            const struct dtx_ledger_page *page = &t->view->seats[r].ledger->pages[i];
            if (page->id)
                t->members[t->n_members++] = (struct member){page->id, r, page};
        }
    qsort(t->members, (size_t)t->n_members, sizeof *t->members, compare_members);
    DTX_TRY(ctx, dtx_mem_alloc(ctx, 2 * (int64_t)t->view->size, sizeof *t->ranks, &p));
    t->ranks = p;
    t->other = t->ranks + t->view->size;
    return DTX_OK;
}

static int print(struct dtx_ctx *ctx, const struct dtx_watch_view *view, FILE *file, bool *blamed)
{
    struct table t = {.view = view, .file = file, .all_gone = true, .blamed = blamed};
    for (int r = 0; r < view->size; r++)
        t.all_gone = t.all_gone && (view->seats[r].process == 'X' || view->seats[r].process == '?');
    if (list_members(ctx, &t) == DTX_OK) {
        print_conditions(&t);
        print_groups(&t, false);
        if (t.findings == 0) /* a ring of ranks that wait for each other */
            print_groups(&t, true);
        print_rows(&t);
    }
    dtx_mem_free(t.members);
    dtx_mem_free(t.ranks);
    return t.findings;
}

int dtx_watch_view_print(struct dtx_ctx *ctx, const struct dtx_watch_view *view, FILE *file)
{
    return print(ctx, view, file, NULL);
}

void dtx_watch_view_blame(struct dtx_ctx *ctx, const struct dtx_watch_view *view, bool *blamed)
{
    FILE *nowhere = fopen("/dev/null", "w");
    memset(blamed, 0, (size_t)view->size * sizeof *blamed);
    if (!nowhere)
        return;
    print(ctx, view, nowhere, blamed);
    fclose(nowhere);
}
