/* The page of a report: HTML with a style of its own and SVG within it, no script, nothing from elsewhere. */
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "kernels/base/clock.h"
#include "kernels/base/host.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "launch/curve/gnuplot.h"
#include "launch/sweep/fit_print.h"
#include "launch/sweep/report.h"

enum { WIDTH = 480, HEIGHT = 350, PATH_BYTES = 4096, SPEC_BYTES = 1 << 18 };

static const char style[] =
    "<style>\n"
    ":root{color-scheme:light}\n"
    "body{font:16px/1.5 system-ui,sans-serif;color:#222;background:#fff;margin:0 auto;max-width:1180px;padding:0 14px "
    "40px}\n"
    "h1{font-size:1.5em;margin:.8em 0 .2em}h2{font-size:1.2em;margin:1.6em 0 .4em}h3{font-size:1em;margin:1.2em 0 "
    ".3em}\n"
    "p{max-width:46em}.key{background:#f2f6fb;border-left:4px solid #1f5fa8;padding:.6em .9em;margin:.8em 0}\n"
    ".pictures{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:18px}\n"
    "figure{margin:0;border:1px solid #e2e2e2;border-radius:6px;padding:8px}\n"
    "figure svg{width:100%;height:auto;display:block}figcaption{font-size:.9em;color:#444;padding:.3em .2em 0}\n"
    ".scroll{overflow-x:auto}table{border-collapse:collapse;font-size:.88em;font-variant-numeric:tabular-nums}\n"
    "th,td{text-align:right;padding:.22em .7em;border-bottom:1px solid #e8e8e8;white-space:nowrap}\n"
    "th:first-child,td:first-child,.left{text-align:left}thead th{border-bottom:2px solid #bbb}\n"
    "details{margin:.8em 0}summary{cursor:pointer;font-weight:600}\n"
    "pre{background:#f6f6f6;padding:.7em;overflow-x:auto;font-size:.85em}code{overflow-wrap:anywhere}\n"
    "</style>\n";

static void put_escaped(FILE *page, const char *text)
{
    for (; *text; text++)
        switch (*text) {
        case '<':
            fputs("&lt;", page);
            break;
        case '>':
            fputs("&gt;", page);
            break;
        case '&':
            fputs("&amp;", page);
            break;
        case '"':
            fputs("&quot;", page);
            break;
        default:
            fputc(*text, page);
        }
}

/* Formatted, then escaped. */
static void put_text(FILE *page, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put_text(FILE *page, const char *format, ...)
{
    char text[2048];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    put_escaped(page, text);
}

/* A cell; NaN is empty. */
static void put_number(FILE *page, const char *format, double value)
{
    fputs("<td>", page);
    if (!isnan(value))
        fprintf(page, format, value);
    fputs("</td>", page);
}

/* A number that belongs to a figure; NaN is nothing. */
static void put_value(const struct dtx_figure *f, const char *format, double value, FILE *page)
{
    if (isinf(value))
        fputs(dtx_figure_infinite(f, value), page);
    else if (!isnan(value))
        fprintf(page, format, value);
}

/* --- pictures ----------------------------------------------------------------------------------------------------- */

/* gnuplot opens a group for every change of pen, most of which draw nothing, and names what holds anyway. In place. */
static void drop_idle(char *text)
{
    static const char usual[] = " stroke-linecap=\"butt\" stroke-linejoin=\"miter\"";
    char *to = text;
    for (const char *at = text; *at;) {
        const char *end = strncmp(at, "<g ", 3) == 0 ? strchr(at, '>') : NULL;
        const char *behind = end ? end + 1 + strspn(end + 1, " \t\n") : at;
        if (strncmp(behind, "</g>", 4) == 0 && behind > at)
            at = behind + 4 + strspn(behind + 4, "\n");
        else if (strncmp(at, usual, sizeof usual - 1) == 0)
            at += sizeof usual - 1;
        else
            *to++ = *at++;
    }
    *to = '\0';
}

enum dtx_status dtx_report_inline_svg(struct dtx_ctx *ctx, FILE *svg, int number, FILE *page)
{
    static const char *const marks[] = {"id=\"", "id='", "href='#", "href=\"#", "url(#"};
    void *memory;
    fseek(svg, 0, SEEK_END);
    long n = ftell(svg);
    rewind(svg);
    DTX_TRY(ctx, dtx_mem_alloc(ctx, n + 1, 1, &memory));
    char *text = memory;
    size_t got = fread(text, 1, (size_t)n, svg);
    drop_idle(text);
    const char *at = strstr(text, "<svg");
    if (got != (size_t)n || !at) {
        dtx_mem_free(memory);
        return dtx_fail(ctx, DTX_E_LIBRARY, "gnuplot's picture %d is no SVG", number);
    }
    while (*at) {
        size_t mark = 0;
        for (size_t i = 0; i < sizeof marks / sizeof *marks && mark == 0; i++)
            if (strncmp(at, marks[i], strlen(marks[i])) == 0)
                mark = strlen(marks[i]);
        if (mark == 0 || DTX_MUTANT(report_ids_shared)) {
            fputc(*at++, page);
            continue;
        }
        fprintf(page, "%.*sp%d_", (int)mark, at, number);
        at += mark;
    }
    dtx_mem_free(memory);
    return DTX_OK;
}

static enum dtx_status put_picture(struct dtx_report *r, const struct dtx_report_picture *picture, int variant,
                                   int number, FILE *page)
{
    FILE *script = tmpfile(), *svg = tmpfile();
    enum dtx_status status = DTX_OK;
    if (!script || !svg)
        status = dtx_fail(r->ctx, DTX_E_IO, "cannot make a temporary file: %s", strerror(errno));
    if (status == DTX_OK) {
        dtx_gnuplot_begin(script, DTX_PLOT_SVG, WIDTH, HEIGHT);
        status = dtx_report_draw(r, picture, variant, script);
    }
    if (status == DTX_OK)
        status = dtx_gnuplot_run(r->ctx, script, fileno(svg), picture->name);
    if (status == DTX_OK) {
        fputs("<figure>\n", page);
        status = dtx_report_inline_svg(r->ctx, svg, number, page);
        fprintf(page, "<figcaption><b>%s%s", picture->title, picture->per_variant ? ", " : "");
        put_escaped(page, picture->per_variant ? r->fit->variant[variant].name : "");
        fprintf(page, ".</b> %s</figcaption></figure>\n", picture->caption);
    }
    if (script)
        fclose(script);
    if (svg)
        fclose(svg);
    return status;
}

static enum dtx_status put_pictures(struct dtx_report *r, FILE *page)
{
    int number = 0;
    fputs("<h2>Pictures</h2>\n<div class=\"pictures\">\n", page);
    for (int k = 0; dtx_report_pictures[k].name; k++)
        for (int v = 0; v < (dtx_report_pictures[k].per_variant ? r->fit->n_variants : 1); v++)
            if (dtx_report_pictures[k].there(r, v))
                DTX_TRY(r->ctx, put_picture(r, &dtx_report_pictures[k], v, ++number, page));
    fputs("</div>\n", page);
    return DTX_OK;
}

/* --- what it comes to --------------------------------------------------------------------------------------------- */

/* The figure at the frontier of the highest measured compute, or else at the largest measured size; NULL: there is
 * none. */
static const struct dtx_figure *last_measured(const struct dtx_report *r, const char *variant, const char *method,
                                              const char *quantity, bool frontier)
{
    const struct dtx_figure *found = NULL;
    for (int64_t i = 0; i < r->figures->n; i++) {
        const struct dtx_figure *f = &r->figures->at[i];
        if (strcmp(f->variant, variant) == 0 && strcmp(f->method, method) == 0 && strcmp(f->quantity, quantity) == 0 &&
            !f->extrapolated && (strncmp(f->at, "C_6nd", 5) == 0) == frontier)
            found = f;
    }
    return found;
}

/* Methods of the shares, the steadiest first, and what they are. */
static const struct {
    const char *method, *by;
} shares[] = {{"equivalence (shared surface)", "surface with E, α, β in common"},
              {"equivalence", "a surface for each variant"},
              {"equivalence (shared L(N) at one D)", "laws of N at that D with E and α in common"},
              {"equivalence (L(N) at one D)", "laws of N at that D"},
              {"equivalence (shared L(D) at one N)", "laws of D at that N with E and β in common"},
              {"equivalence (L(D) at one N)", "laws of D at that N"}};
enum { SHARES = sizeof shares / sizeof *shares };

static void put_interval(const struct dtx_report *r, const struct dtx_figure *f, FILE *page)
{
    if (isnan(f->spread.low))
        return;
    fprintf(page, " (%g %% interval ", 100 * r->fit->options.interval);
    put_value(f, "%.1f %%", 100 * f->spread.low, page);
    fputs(" to ", page);
    put_value(f, "%.1f %%", 100 * f->spread.high, page);
    fputc(')', page);
}

/* In words, by the first method that has it, at the frontier if it can: with few tokens or few weights a model is not
 * what anybody would train. */
static void put_key(const struct dtx_report *r, const char *variant, const char *quantity, const char *of, FILE *page)
{
    for (int k = 0; k < SHARES; k++) {
        const struct dtx_figure *f = last_measured(r, variant, shares[k].method, quantity, true);
        f = f ? f : last_measured(r, variant, shares[k].method, quantity, false);
        if (!f)
            continue;
        fputs("<p class=\"key\"><b>", page);
        put_escaped(page, variant);
        fputs(isinf(f->value) ? "</b> does not reach the loss of " : "</b> reaches the loss of ", page);
        put_escaped(page, r->fit->variant[r->fit->baseline].name);
        if (isinf(f->value))
            fprintf(page, " by <b>any number</b> of %s", of);
        else
            fprintf(page, " with <b>%.1f %%</b> of the %s", 100 * f->value, of);
        put_interval(r, f, page);
        fprintf(page, ", at %s: %s.</p>\n", f->at, shares[k].by);
        return;
    }
}

static void put_share_row(const struct dtx_report *r, const char *variant, int k, bool frontier, FILE *page)
{
    const struct dtx_figure *const f[] = {last_measured(r, variant, shares[k].method, "share of weights", frontier),
                                          last_measured(r, variant, shares[k].method, "share of tokens", frontier)};
    if (!f[0] && !f[1])
        return;
    fputs("<tr><td>", page);
    put_escaped(page, variant);
    fprintf(page, ": %s</td>", shares[k].by);
    for (int i = 0; i < 2; i++) {
        fputs("<td>", page);
        if (f[i])
            put_value(f[i], "%.3f", f[i]->value, page);
        if (f[i] && !isnan(f[i]->spread.low)) {
            fputs(" [", page);
            put_value(f[i], "%.3f", f[i]->spread.low, page);
            fputs(", ", page);
            put_value(f[i], "%.3f", f[i]->spread.high, page);
            fputc(']', page);
        }
        fputs("</td>", page);
    }
    fprintf(page, "<td class=\"left\">%s</td></tr>\n", (f[0] ? f[0] : f[1])->at);
}

static void put_shares(const struct dtx_report *r, FILE *page)
{
    if (r->fit->n_variants < 2)
        return;
    for (int v = 0; v < r->fit->n_variants; v++)
        if (v != r->fit->baseline) {
            put_key(r, r->fit->variant[v].name, "share of weights", "weights", page);
            put_key(r, r->fit->variant[v].name, "share of tokens", "tokens", page);
        }
    fputs("<div class=\"scroll\"><table><thead><tr><th>at the highest measured compute (C_6nd) and the largest size, "
          "by</th><th>share of weights</th>"
          "<th>share of tokens</th><th class=\"left\">at</th></tr></thead><tbody>\n",
          page);
    for (int v = 0; v < r->fit->n_variants; v++)
        for (int k = 0; k < 2 * SHARES && v != r->fit->baseline; k++)
            put_share_row(r, r->fit->variant[v].name, k % SHARES, k < SHARES, page);
    fputs("</tbody></table></div>\n", page);
}

static void put_summary(const struct dtx_report *r, FILE *page)
{
    const struct dtx_points *p = &r->fit->points;
    fprintf(page, "<p>%lld trained models", (long long)p->used);
    for (int v = 0; v < r->fit->n_variants && r->fit->n_variants > 1; v++)
        put_text(page, "%s%lld %s%s", v ? ", " : " (", (long long)r->fit->variant[v].set.n, r->fit->variant[v].name,
                 v + 1 == r->fit->n_variants ? ")" : "");
    put_text(
        page,
        "; %lld rows dropped. N: weights, %s. D: tokens, %s. C: FLOPs, %s. Loss: nats per token, %s. Frontiers and "
        "what is named C_6nd count C = 6 N D. Intervals: %g %% of %lld bootstrap resamples.",
        (long long)(p->n - p->used), p->origin_n, p->origin_d, p->origin_c, p->origin_loss,
        100 * r->fit->options.interval, (long long)r->fit->options.resamples);
    fputs("</p>\n", page);
    put_shares(r, page);
}

/* --- tables ------------------------------------------------------------------------------------------------------- */
static void put_figure(const struct dtx_figure *f, FILE *page)
{
    fputs("<tr><td>", page);
    put_escaped(page, f->quantity);
    fputs("</td><td class=\"left\">", page);
    put_escaped(page, f->at);
    static const char *const formats[] = {"%.6g", "%.2g", "%.5g", "%.5g"};
    const double values[] = {f->value, f->spread.se, f->spread.low, f->spread.high};
    for (int i = 0; i < 4; i++) {
        fputs("</td><td>", page);
        put_value(f, formats[i], values[i], page);
    }
    fprintf(page, "</td><td class=\"left\">%s%s%s</td></tr>\n", f->unit, f->unit[0] && f->note[0] ? ", " : "", f->note);
}

static void put_figures(const struct dtx_report *r, FILE *page)
{
    const struct dtx_figure *before = NULL;
    fputs("<h2>Figures</h2>\n", page);
    for (int64_t i = 0; i < r->figures->n; i++) {
        const struct dtx_figure *f = &r->figures->at[i];
        if (!before || strcmp(before->variant, f->variant) != 0 || strcmp(before->method, f->method) != 0) {
            fprintf(page, "%s<details%s><summary>", before ? "</tbody></table></div></details>\n" : "",
                    strncmp(f->method, "equivalence", 11) == 0 || strcmp(f->method, "approach 3") == 0 ? " open" : "");
            put_escaped(page, f->variant);
            fprintf(page, ": %s", f->method);
            fputs("</summary><div class=\"scroll\"><table><thead><tr><th>quantity</th><th class=\"left\">at</th>"
                  "<th>value</th><th>± s.e.</th><th>low</th><th>high</th><th "
                  "class=\"left\">unit</th></tr></thead><tbody>\n",
                  page);
        }
        put_figure(f, page);
        before = f;
    }
    fputs(before ? "</tbody></table></div></details>\n" : "", page);
}

static void put_missing(void *data, const char *variant, const char *what, const char *why)
{
    FILE *page = data;
    const char *const cells[] = {variant, what, why};
    fputs("<tr>", page);
    for (int i = 0; i < 3; i++) {
        fputs("<td class=\"left\">", page);
        put_escaped(page, cells[i]);
        fputs("</td>", page);
    }
    fputs("</tr>\n", page);
}

static void put_points(const struct dtx_report *r, FILE *page)
{
    const struct dtx_points *p = &r->fit->points;
    fputs("<h2>Not made</h2>\n<div class=\"scroll\"><table><thead><tr><th>variant</th><th class=\"left\">what</th>"
          "<th class=\"left\">why</th></tr></thead><tbody>\n",
          page);
    dtx_fit_each_missing(r->fit, put_missing, page);
    fprintf(page,
            "</tbody></table></div>\n<h2>Points</h2>\n<details><summary>%lld used, %lld dropped</summary><div "
            "class=\"scroll\"><table><thead><tr><th>line</th><th class=\"left\">variant</th><th>N</th><th>D</th>"
            "<th>C</th><th>loss</th><th class=\"left\">dropped, why</th></tr></thead><tbody>\n",
            (long long)p->used, (long long)(p->n - p->used));
    for (int64_t i = 0; i < p->n; i++) {
        const struct dtx_point *at = &p->at[i];
        bool used = !at->dropped[0];
        fprintf(page, "<tr><td>%lld</td><td class=\"left\">", (long long)at->line);
        put_escaped(page, p->variants[at->variant]);
        fputs("</td>", page);
        put_number(page, "%.6g", used ? at->n : NAN);
        put_number(page, "%.6g", used ? at->d : NAN);
        put_number(page, "%.6g", used ? at->c : NAN);
        put_number(page, "%.6f", used ? at->loss : NAN);
        fputs("<td class=\"left\">", page);
        put_escaped(page, at->dropped);
        fputs("</td></tr>\n", page);
    }
    fputs("</tbody></table></div></details>\n", page);
}

/* --- how it was made ---------------------------------------------------------------------------------------------- */

/* A file's text into a block that can be unfolded, up to SPEC_BYTES; none: nothing. */
static void put_file(const char *path, const char *what, FILE *page)
{
    FILE *file = fopen(path, "r");
    if (!file)
        return;
    fprintf(page, "<details><summary>%s</summary><pre>", what);
    char text[2] = "";
    for (int i = 0, c; i < SPEC_BYTES && (c = fgetc(file)) != EOF; i++) {
        text[0] = (char)c;
        put_escaped(page, text);
    }
    fputs("</pre></details>\n", page);
    fclose(file);
}

/* The command as a shell takes it. */
static void put_command(int n_words, char **words, FILE *page)
{
    fputs("<pre>dtx sweep report", page);
    for (int i = 0; i < n_words; i++) {
        bool plain = words[i][0] && strspn(words[i], "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                                     "_-./=:,+") == strlen(words[i]);
        fputs(plain ? " " : " '", page);
        put_escaped(page, words[i]);
        fputs(plain ? "" : "'", page);
    }
    fputs("</pre>\n", page);
}

static void put_origin(const struct dtx_report *r, int n_words, char **words, const char *folder, FILE *page)
{
    static const char commit[] =
#include "launch/commit.inc"
        ;
    char when[32], path[PATH_BYTES];
    struct dtx_host host;
    struct tm tm;
    time_t now = (time_t)dtx_clock_wall();
    const struct dtx_csv *csv = &r->fit->points.csv;
    dtx_host_read("", &host);
    strftime(when, sizeof when, "%Y-%m-%d %H:%M UTC", gmtime_r(&now, &tm));
    fputs("<h2>How this was made</h2>\n", page);
    put_command(n_words, words, page);
    fprintf(page,
            "<p>dtx %s, commit <code>%s</code>, %s, seed %lld, Huber δ %g, isoFLOP tolerance %g and span %g, resamples "
            "of variants %s. Machine: ",
            DTX_VERSION, commit, when, (long long)r->fit->options.seed, r->fit->options.delta,
            r->fit->options.isoflop.tolerance, r->fit->options.isoflop.span, r->fit->paired ? "paired" : "independent");
    put_escaped(page, host.cpu_model);
    fputs(". Table: <code>", page);
    put_escaped(page, r->fit->points.path);
    fprintf(page, "</code>, %lld rows of %d columns.</p>\n", (long long)csv->rows, csv->columns);
    if (folder[0] && snprintf(path, sizeof path, "%s/spec.yaml", folder) < PATH_BYTES)
        put_file(path, "The sweep's specification", page);
    put_file(r->fit->points.path, "The table", page);
}

enum dtx_status dtx_report_write_page(struct dtx_report *r, int n_words, char **words, const char *folder, FILE *page)
{
    fputs("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n<title>Scaling laws: ",
          page);
    put_escaped(page, folder[0] ? folder : r->fit->points.path);
    fprintf(page, "</title>\n%s</head>\n<body>\n<h1>Scaling laws: ", style);
    put_escaped(page, folder[0] ? folder : r->fit->points.path);
    fputs("</h1>\n", page);
    put_summary(r, page);
    DTX_TRY(r->ctx, put_pictures(r, page));
    put_figures(r, page);
    put_points(r, page);
    put_origin(r, n_words, words, folder, page);
    fputs("</body>\n</html>\n", page);
    return DTX_OK;
}
