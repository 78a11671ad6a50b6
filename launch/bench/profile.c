#include "launch/bench/profile.h"

#include <string.h>

enum { SHAPE_WIDTH = 46 };
static const double small_bytes = 1 << 16; /* under it a call's time is not the memory's */

/* Speed of `seconds` for one call and its share of what bounds it; share 0: nothing to compare with. */
struct speed {
    double value, share;
    const char *unit;
};

static struct speed speed_of(const struct dtx_profile *p, const struct dtx_cost *each, double seconds)
{
    bool compute = each->flops > 0;
    struct speed s = {.unit = compute ? "FLOP/s" : "B/s"};
    double peak = compute ? p->flops : p->bytes;
    if (seconds > 0)
        s.value = (compute ? each->flops : each->bytes) / seconds;
    if (peak > 0 && (compute || each->bytes >= small_bytes))
        s.share = s.value / peak;
    return s;
}

/* Pads by characters, not bytes. */
static void print_shape(const char *shape, FILE *file)
{
    int width = 0;
    for (const char *c = shape; *c; c++)
        width += ((unsigned char)*c & 0xc0) != 0x80;
    fprintf(file, "%s%*s", shape, width < SHAPE_WIDTH ? SHAPE_WIDTH - width : 0, "");
}

static void print_speed(const struct speed *s, FILE *file)
{
    char text[32];
    dtx_report_scaled(s->value, s->unit, text);
    fprintf(file, " %13s", text);
    if (s->share > 0)
        fprintf(file, " %6.1f %%\n", 100 * s->share);
    else
        fprintf(file, " %8s\n", "");
}

/* Returns the seconds of all. */
static double print_comms(const struct dtx_profile *p, FILE *file)
{
    double sum = 0;
    for (int i = 0; i < p->n_comms; i++) {
        const struct dtx_comm_tap_row *row = &p->comms[i];
        char time[32], sent[32], what[64];
        sum += row->seconds;
        if (row->calls == 0)
            continue;
        dtx_report_seconds(row->seconds, time);
        dtx_report_scaled((double)row->sent_bytes, "B", sent);
        snprintf(what, sizeof what, "communicator, %s sent", sent);
        fprintf(file, "%-12s %-*s %6lld %*s %5.1f %%\n", row->name, SHAPE_WIDTH, what, (long long)row->calls,
                strstr(time, "µ") ? 10 : 9, time, 100 * row->seconds / p->seconds);
    }
    return sum;
}

void dtx_profile_print(const struct dtx_profile *p, FILE *file)
{
    double known = 0;
    char text[32];
    fprintf(file, "%-12s %-*s %6s %9s %7s %13s %8s\n", "operation", SHAPE_WIDTH, "shape", "calls", "time", "of step",
            "speed", "of peak");
    for (int i = 0; i < p->n; i++) {
        const struct dtx_tap_row *row = &p->rows[i];
        struct speed s = speed_of(p, &row->each, row->seconds / (double)row->calls);
        known += row->seconds;
        dtx_report_seconds(row->seconds, text);
        fprintf(file, "%-12s ", row->op);
        print_shape(row->each.shape, file);
        /* µ is two bytes wide */
        fprintf(file, " %6lld %*s %5.1f %%", (long long)row->calls, strstr(text, "µ") ? 10 : 9, text,
                100 * row->seconds / p->seconds);
        print_speed(&s, file);
    }
    known += print_comms(p, file);
    dtx_report_seconds(p->seconds - known, text);
    fprintf(file, "%-12s %-*s %6s %*s %5.1f %%\n", "outside", SHAPE_WIDTH, p->n_comms ? "of both" : "operations", "",
            strstr(text, "µ") ? 10 : 9, text, 100 * (p->seconds - known) / p->seconds);
    if (p->n_comms)
        fprintf(file, "in communicators, waiting for others included: %.1f %% of the step, mean of the ranks\n",
                100 * p->comm_share);
}

static json_t *row_json(const struct dtx_tap_row *row, const struct speed *s)
{
    json_t *object =
        json_pack("{s:s, s:s, s:I, s:f, s:f, s:f}", "operation", row->op, "shape", row->each.shape, "calls",
                  (json_int_t)row->calls, "seconds", row->seconds, "flops", row->each.flops, "bytes", row->each.bytes);
    json_object_set_new(object, s->unit[0] == 'F' ? "flops_per_second" : "bytes_per_second", json_real(s->value));
    if (s->share > 0)
        json_object_set_new(object, "share_of_peak", json_real(s->share));
    return object;
}

json_t *dtx_profile_json(const struct dtx_profile *p)
{
    json_t *list = json_array(), *comms = json_array();
    for (int i = 0; i < p->n; i++) {
        struct speed s = speed_of(p, &p->rows[i].each, p->rows[i].seconds / (double)p->rows[i].calls);
        json_array_append_new(list, row_json(&p->rows[i], &s));
    }
    for (int i = 0; i < p->n_comms; i++)
        json_array_append_new(comms, json_pack("{s:s, s:I, s:f, s:I}", "communicator", p->comms[i].name, "calls",
                                               (json_int_t)p->comms[i].calls, "seconds", p->comms[i].seconds,
                                               "sent_bytes", (json_int_t)p->comms[i].sent_bytes));
    return json_pack("{s:f, s:o, s:o, s:f}", "step_seconds", p->seconds, "operations", list, "communicators", comms,
                     "communication_share", p->comm_share);
}

void dtx_profile_print_each(const struct dtx_profile *p, FILE *file)
{
    char median[32], low[32];
    fprintf(file, "%-12s %-*s %9s %9s %13s %8s\n", "operation", SHAPE_WIDTH, "shape", "median", "least", "speed",
            "of peak");
    for (int i = 0; i < p->n; i++) {
        const struct dtx_tap_row *row = &p->rows[i];
        struct speed s = speed_of(p, &row->each, dtx_samples_median(&row->repeats));
        dtx_report_seconds(dtx_samples_median(&row->repeats), median);
        dtx_report_seconds(dtx_samples_min(&row->repeats), low);
        fprintf(file, "%-12s ", row->op);
        print_shape(row->each.shape, file);
        fprintf(file, " %*s %*s", strstr(median, "µ") ? 10 : 9, median, strstr(low, "µ") ? 10 : 9, low);
        print_speed(&s, file);
    }
}

json_t *dtx_profile_json_each(const struct dtx_profile *p)
{
    json_t *list = json_array();
    for (int i = 0; i < p->n; i++) {
        struct speed s = speed_of(p, &p->rows[i].each, dtx_samples_median(&p->rows[i].repeats));
        json_t *row = row_json(&p->rows[i], &s);
        json_object_set_new(row, "call_seconds", dtx_samples_json(&p->rows[i].repeats));
        json_array_append_new(list, row);
    }
    return list;
}
