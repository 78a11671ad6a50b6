/* test: label=unit timeout=30 */
/* The live line on a pseudo-terminal (width, rate), plain lines in a file, pace and formats. */
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "kernels/base/clock.h"
#include "trainer/progress.h"

static struct dtx_step_record make_record(int64_t step)
{
    return (struct dtx_step_record){.step = step,
                                    .steps = 1000,
                                    .loss = 5.125,
                                    .heldout = NAN,
                                    .lr = 3.2e-4,
                                    .grad_norm = 1.25,
                                    .targets = 8192,
                                    .seconds = 0.5,
                                    .flops = 4e9,
                                    .peak_flops = 16e9};
}

static void test_formats(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *text;
    } durations[] = {{0, "0s"},       {59.4, "59s"},     {59.6, "1m00s"},   {3599.4, "59m59s"}, {3600, "1h00m"},
                     {7620, "2h07m"}, {86399, "23h59m"}, {273600, "3d04h"}, {NAN, "?"},         {-1, "?"}},
      counts[] = {{0, "0"},         {987.4, "987"},  {999.7, "1.00k"}, {12345, "12.3k"}, {4560000, "4.56M"},
                  {99949, "99.9k"}, {99960, "100k"}, {NAN, "?"},       {INFINITY, "?"}};
    char text[16];
    for (size_t i = 0; i < sizeof durations / sizeof *durations; i++) {
        dtx_format_duration(durations[i].value, text);
        assert_string_equal(text, durations[i].text);
    }
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        dtx_format_count(counts[i].value, text);
        assert_string_equal(text, counts[i].text);
    }
}

static void test_pace(void **state)
{
    (void)state;
    struct dtx_pace pace;
    dtx_pace_start(&pace, 100);
    dtx_pace_step(&pace, 130); /* set-up */
    assert_true(pace.seconds == 30);
    dtx_pace_step(&pace, 131);
    assert_true(pace.seconds == 1);
    double now = 131;
    for (int i = 0; i < 1000; i++) /* every tenth step evaluates for 5 s more: 1.5 s a step */
        dtx_pace_step(&pace, now += i % 10 == 9 ? 6 : 1);
    assert_true(fabs(pace.seconds - 1.5) < 0.2);
    for (int i = 0; i < 1000; i++) /* a slower machine is noticed */
        dtx_pace_step(&pace, now += 4);
    assert_true(fabs(pace.seconds - 4) < 0.01);
}

static void test_plain(void **state)
{
    (void)state;
    struct dtx_ctx ctx;
    struct dtx_progress *p = NULL;
    char text[4096] = "";
    FILE *file = tmpfile();
    dtx_ctx_init(&ctx);
    assert_int_equal(dtx_progress_open(&ctx, file, DTX_PROGRESS_AUTO, 10, &p), DTX_OK);
    for (int64_t i = 5; i <= 31; i++) {
        struct dtx_step_record r = make_record(i);
        if (i == 15)
            r.heldout = 4.5;
        if (i == 17)
            r.skipped = true, r.why = "loss nan";
        r.seconds = i == 10 ? 3 : 0.5;
        dtx_progress_step(p, &r);
    }
    struct dtx_step_record last = make_record(1000);
    dtx_progress_step(p, &last);
    dtx_progress_close(p);
    rewind(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    static const char *const begin[] = {
        "dtx: step 5/1000  loss 5.1250",
        "dtx: step 10/1000",
        "dtx: step 15/1000  loss 5.1250  held-out 4.5000  16.4k tokens/s  50.0% of peak",
        "dtx: step 17/1000",
        "dtx: step 20/1000  loss 5.1250  held-out 4.5000",
        "dtx: step 30/1000",
        "dtx: step 1000/1000"};
    char *save = NULL, *line = strtok_r(text, "\n", &save);
    for (int i = 0; i < 7; i++, line = strtok_r(NULL, "\n", &save)) {
        assert_non_null(line);
        assert_memory_equal(line, begin[i], strlen(begin[i]));
        assert_non_null(strstr(line, "ETA "));
        assert_null(strchr(line, '\033'));
        assert_true((strstr(line, "no update") != NULL) == (i == 3));
        if (i == 1) /* steps 6 to 10: 5·8192 tokens in 5 s */
            assert_non_null(strstr(line, "8.19k tokens/s  25.0% of peak"));
    }
    assert_null(line);
}

/* A terminal of `columns`: its other side, and a stream into it. */
static FILE *open_terminal(int columns, int *master)
{
    struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)columns};
    *master = posix_openpt(O_RDWR | O_NOCTTY);
    assert_true(*master >= 0);
    assert_int_equal(grantpt(*master), 0);
    assert_int_equal(unlockpt(*master), 0);
    assert_int_equal(ioctl(*master, TIOCSWINSZ, &size), 0);
    FILE *file = fopen(ptsname(*master), "w");
    assert_non_null(file);
    fcntl(*master, F_SETFL, O_NONBLOCK);
    setenv("TERM", "xterm", 1);
    return file;
}

/* What it received; closes both. */
static size_t close_terminal(int master, FILE *file, char *text, size_t capacity)
{
    size_t n = 0;
    for (ssize_t got; (got = read(master, text + n, capacity - 1 - n)) > 0;)
        n += (size_t)got;
    text[n] = '\0';
    fclose(file);
    close(master);
    return n;
}

/* Writes `steps` records to a terminal of `columns` and returns what it received. */
static size_t run_live(int columns, int64_t steps, double pause, char *text, size_t capacity)
{
    struct dtx_ctx ctx;
    struct dtx_progress *p = NULL;
    int master;
    FILE *file = open_terminal(columns, &master);
    dtx_ctx_init(&ctx);
    assert_int_equal(dtx_progress_open(&ctx, file, DTX_PROGRESS_AUTO, 1, &p), DTX_OK);
    for (int64_t i = 1; i <= steps; i++) {
        struct dtx_step_record r = make_record(i);
        dtx_progress_step(p, &r);
        if (pause > 0)
            dtx_clock_sleep(pause);
    }
    dtx_progress_close(p);
    return close_terminal(master, file, text, capacity);
}

static void test_live_width(void **state)
{
    (void)state;
    static const int columns[] = {20, 40, 60, 80, 200};
    static const char *const must[] = {"step 2/1000", "loss 5.1250  ETA", "tokens/s", "of peak", "grad norm"};
    char text[4096];
    for (int i = 0; i < 5; i++) {
        run_live(columns[i], 2, 0, text, sizeof text);
        char *line = strchr(text, '\n'); /* behind the first step's own line */
        assert_non_null(line);
        assert_true(line[1] == '\r');
        char *end = strstr(line, "\033[K");
        assert_non_null(end);
        assert_true(end - (line + 2) < columns[i]);
        assert_non_null(strstr(line, must[i]));
    }
    run_live(8, 2, 0, text, sizeof text); /* narrower than the step */
    char *line = strchr(text, '\n');
    assert_true(line && strstr(line, "\033[K") - (line + 2) == 7);
}

static void test_live_rate(void **state)
{
    (void)state;
    char text[16384];
    double start = dtx_clock_now();
    run_live(100, 100, 0.006, text, sizeof text);
    int most = (int)((dtx_clock_now() - start) / 0.2) + 2, drawn = 0; /* one at once, one to wipe */
    for (char *at = text; (at = strstr(at, "\033[K")); at++)
        drawn++;
    assert_true(drawn >= 3 && drawn <= most);
    assert_string_equal(text + strlen(text) - 4, "\r\033[K");
}

/* Behind a launcher's pipe the script says what is there. */
static void test_told_modes(void **state)
{
    (void)state;
    for (int plain = 0; plain < 2; plain++) {
        struct dtx_ctx ctx;
        struct dtx_progress *p = NULL;
        char text[1024] = "";
        FILE *file = tmpfile();
        setenv("COLUMNS", "40", 1);
        dtx_ctx_init(&ctx);
        assert_int_equal(dtx_progress_open(&ctx, file, plain ? DTX_PROGRESS_PLAIN : DTX_PROGRESS_LIVE, 2, &p), DTX_OK);
        for (int64_t i = 1; i <= 2; i++) {
            struct dtx_step_record r = make_record(i);
            dtx_progress_step(p, &r);
        }
        dtx_progress_close(p);
        rewind(file);
        text[fread(text, 1, sizeof text - 1, file)] = '\0';
        fclose(file);
        unsetenv("COLUMNS");
        char *second = strchr(text, '\n') + 1, *end = strstr(second, "\033[K");
        if (plain) {
            assert_memory_equal(second, "dtx: step 2/1000  loss", 22);
            assert_null(end);
        } else {
            assert_memory_equal(second, "\rstep 2/1000  loss", 18);
            assert_true(end && end - second <= 40);
        }
    }
}

/* Work counted in bytes: a live line of the terminal's width that is wiped; nothing at once where there is none. */
static void test_meter(void **state)
{
    (void)state;
    struct dtx_meter meter;
    char text[4096];
    int master;
    FILE *file = open_terminal(40, &master);
    dtx_meter_start(&meter, file, "export", 4000000);
    dtx_meter_add(&meter, 500000);
    dtx_clock_sleep(0.25);
    dtx_meter_add(&meter, 500000);
    dtx_meter_add(&meter, 500000); /* too soon for another line */
    dtx_meter_clear(&meter);
    dtx_meter_clear(&meter);
    dtx_meter_add(NULL, 1);
    close_terminal(master, file, text, sizeof text);
    assert_memory_equal(text, "\rexport  25%  1.00MB of 4.00MB", 30);
    char *end = strstr(text, "\033[K");
    assert_true(end && end - text == 40); /* the carriage return and 39 columns */
    assert_string_equal(end, "\033[K\r\033[K");
    file = tmpfile();
    dtx_meter_start(&meter, file, "export", 0);
    dtx_meter_add(&meter, 500000);
    dtx_meter_clear(&meter);
    assert_int_equal(ftell(file), 0);
    meter.last -= 31;
    dtx_meter_add(&meter, 500000);
    rewind(file);
    text[fread(text, 1, sizeof text - 1, file)] = '\0';
    fclose(file);
    assert_memory_equal(text, "dtx: export  1.00MB  ", 21);
    assert_non_null(strstr(text, "B/s\n"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_formats),  cmocka_unit_test(test_pace),
                                       cmocka_unit_test(test_plain),    cmocka_unit_test(test_told_modes),
                                       cmocka_unit_test(test_meter),    cmocka_unit_test(test_live_width),
                                       cmocka_unit_test(test_live_rate)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
