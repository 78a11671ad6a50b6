#include "kernels/base/meter.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "kernels/base/clock.h"

enum { LINE_BYTES = 160 };
static const double LIVE_SECONDS = 0.2, PLAIN_SECONDS = 30;

void dtx_format_duration(double seconds, char out[16])
{
    if (!isfinite(seconds) || seconds < 0 || seconds > 1e9) {
        strcpy(out, "?");
        return;
    }
    int s = (int)(seconds + 0.5);
    if (s < 60)
        snprintf(out, 16, "%ds", s);
    else if (s < 3600)
        snprintf(out, 16, "%dm%02ds", s / 60, s % 60);
    else if (s < 86400)
        snprintf(out, 16, "%dh%02dm", s / 3600, s / 60 % 60);
    else
        snprintf(out, 16, "%dd%02dh", s / 86400, s / 3600 % 24);
}

void dtx_format_count(double value, char out[16])
{
    static const char units[] = " kMGTPE";
    if (!isfinite(value) || value < 0 || value > 1e20) {
        strcpy(out, "?");
        return;
    }
    int unit = 0;
    while (value >= 999.5 && unit < 6) {
        value /= 1000;
        unit++;
    }
    int decimals = value >= 99.95 || unit == 0 ? 0 : value >= 9.995 ? 1 : 2;
    snprintf(out, 16, "%.*f%.*s", decimals, value, unit > 0, &units[unit]);
}

bool dtx_terminal_live(FILE *file)
{
    const char *term = getenv("TERM");
    return isatty(fileno(file)) && term && strcmp(term, "dumb") != 0;
}

int dtx_terminal_width(FILE *file)
{
    struct winsize size;
    const char *columns = getenv("COLUMNS");
    if (ioctl(fileno(file), TIOCGWINSZ, &size) == 0 && size.ws_col > 0)
        return size.ws_col;
    int given = columns ? (int)strtol(columns, NULL, 10) : 0;
    return given > 0 ? given : 80;
}

void dtx_meter_start(struct dtx_meter *meter, FILE *file, const char *what, int64_t total)
{
    double now = dtx_clock_now();
    *meter = (struct dtx_meter){
        .file = file, .what = what, .live = dtx_terminal_live(file), .total = total, .start = now, .last = now};
}

/* All of it ASCII. */
static void make_line(const struct dtx_meter *m, double seconds, char line[LINE_BYTES])
{
    char done[16], total[16], speed[16], left[16];
    double rate = seconds > 0 ? (double)m->done / seconds : NAN;
    dtx_format_count((double)m->done, done);
    dtx_format_count((double)m->total, total);
    dtx_format_count(rate, speed);
    dtx_format_duration((double)(m->total - m->done) / rate, left);
    if (m->total > 0)
        snprintf(line, LINE_BYTES, "%s %3.0f%%  %sB of %sB  %sB/s  ETA %s", m->what,
                 100.0 * (double)m->done / (double)m->total, done, total, speed, left);
    else
        snprintf(line, LINE_BYTES, "%s  %sB  %sB/s", m->what, done, speed);
}

void dtx_meter_add(struct dtx_meter *meter, int64_t bytes)
{
    char line[LINE_BYTES];
    if (!meter)
        return;
    meter->done += bytes;
    double now = dtx_clock_now();
    if (now - meter->last < (meter->live ? LIVE_SECONDS : PLAIN_SECONDS))
        return;
    meter->last = now;
    make_line(meter, now - meter->start, line);
    if (meter->live)
        fprintf(meter->file, "\r%.*s\033[K", dtx_terminal_width(meter->file) - 1,
                line); /* the last column would wrap */
    else
        fprintf(meter->file, "dtx: %s\n", line);
    meter->drawn = meter->live;
    fflush(meter->file);
}

void dtx_meter_clear(struct dtx_meter *meter)
{
    if (!meter->drawn)
        return;
    fputs("\r\033[K", meter->file);
    fflush(meter->file);
    meter->drawn = false;
}
