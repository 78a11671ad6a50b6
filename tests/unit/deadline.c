/* test: label=unit timeout=20 */
/* When a run stops for the end of its job's time: late, but with time for a save, two steps and the end. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "trainer/deadline.h"

/* Steps of `step` seconds and saves of `save` until the run stops: how long before the end its last save is done. The
 * first step takes ten times as long. *saves: those before the last. */
static double spare(double slice, double step, double save, int *saves)
{
    struct dtx_deadline deadline;
    double now = 1000;
    dtx_deadline_open(&deadline, now, (int64_t)(now + slice));
    *saves = 0;
    for (int i = 0; i < 1000000; i++) {
        double seconds = i == 0 ? 10 * step : step;
        now += seconds;
        enum dtx_deadline_verdict verdict = dtx_deadline_step(&deadline, now, seconds);
        if (verdict != DTX_DEADLINE_NONE)
            now += save;
        dtx_deadline_saved(&deadline, verdict != DTX_DEADLINE_NONE ? save : 0);
        *saves += verdict == DTX_DEADLINE_SAVE;
        if (verdict == DTX_DEADLINE_STOP)
            return 1000 + slice - now;
    }
    return -1;
}

static void check(double slice, double step, double save, double least, double most)
{
    int saves;
    double got = spare(slice, step, save, &saves);
    assert_int_equal(saves, 1);
    assert_true(got >= least && got <= most);
}

static void saves_in_time_but_late(void **state)
{
    (void)state;
    check(60, 0.02, 0.1, 2, 4);          /* one minute */
    check(60, 3, 10, 2, 20);             /* a save takes a sixth of it */
    check(3600, 0.5, 20, 20, 45);        /* an hour */
    check(24 * 3600, 30, 600, 100, 420); /* a day, a large model */
}

static void without_an_end_nothing(void **state)
{
    (void)state;
    struct dtx_deadline deadline;
    unsetenv("SLURM_JOB_END_TIME");
    dtx_deadline_open(&deadline, 1000, 0);
    assert_int_equal(dtx_deadline_step(&deadline, 1e9, 1), DTX_DEADLINE_NONE);
}

static void the_scheduler_says_when(void **state)
{
    (void)state;
    struct dtx_deadline deadline;
    setenv("SLURM_JOB_END_TIME", "2000", 1);
    dtx_deadline_open(&deadline, 1000, 0);
    assert_int_equal(dtx_deadline_step(&deadline, 1001, 1), DTX_DEADLINE_NONE);
    assert_int_equal(dtx_deadline_step(&deadline, 1999, 1), DTX_DEADLINE_STOP);
    dtx_deadline_open(&deadline, 1000, 5000); /* the option comes first */
    assert_int_equal(dtx_deadline_step(&deadline, 1010, 1), DTX_DEADLINE_NONE);
    unsetenv("SLURM_JOB_END_TIME");
}

static void a_save_that_was_made_is_a_measure(void **state)
{
    (void)state;
    struct dtx_deadline deadline;
    dtx_deadline_open(&deadline, 1000, 2000);
    dtx_deadline_saved(&deadline, 100);
    assert_int_equal(dtx_deadline_step(&deadline, 1500, 1), DTX_DEADLINE_NONE);
    assert_int_equal(dtx_deadline_step(&deadline, 1900, 1), DTX_DEADLINE_STOP);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saves_in_time_but_late),
        cmocka_unit_test(without_an_end_nothing),
        cmocka_unit_test(the_scheduler_says_when),
        cmocka_unit_test(a_save_that_was_made_is_a_measure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
