/* test: label=unit timeout=60 */
/* Of processes that want the same attempt at a trial at once exactly one gets it, and it keeps it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "launch/sweep/claim.h"

enum { PROCESSES = 4, ATTEMPTS = 50 };

static void claim_all(struct dtx_sweep *sweep, int process, int report)
{
    struct dtx_ctx ctx;
    struct dtx_sweep_self self;
    bool won[ATTEMPTS];
    dtx_ctx_init(&ctx);
    dtx_sweep_self_read(&self, 60);
    self.pid += process; /* so that names differ where forks follow upon each other */
    for (int k = 0; k < ATTEMPTS; k++)
        if (dtx_sweep_claim(&ctx, sweep, 0, k + 1, &self, 100 * process + k, &won[k]) != DTX_OK)
            _exit(1);
    _exit(write(report, won, sizeof won) == (ssize_t)sizeof won ? 0 : 2);
}

static void one_of_many(void **state)
{
    (void)state;
    struct dtx_sweep sweep = {.dir = "/tmp/dtx-claim-XXXXXX"};
    struct dtx_sweep_trial trial = {.id = "0123456789abcdef"};
    char path[DTX_SWEEP_PATH];
    bool won[PROCESSES][ATTEMPTS];
    int ends[PROCESSES][2];
    sweep.trials.item = &trial;
    sweep.trials.n = 1;
    assert_non_null(mkdtemp(sweep.dir));
    snprintf(path, sizeof path, "%s/state", sweep.dir);
    assert_int_equal(mkdir(path, 0777), 0);
    for (int p = 0; p < PROCESSES; p++) {
        assert_int_equal(pipe(ends[p]), 0);
        if (fork() == 0)
            claim_all(&sweep, p, ends[p][1]);
        close(ends[p][1]);
    }
    for (int p = 0; p < PROCESSES; p++) {
        int code;
        assert_int_equal(read(ends[p][0], won[p], sizeof won[p]), sizeof won[p]);
        close(ends[p][0]);
        assert_true(wait(&code) > 0 && code == 0);
    }
    for (int k = 0; k < ATTEMPTS; k++) {
        int winners = 0, winner = 0;
        struct dtx_sweep_self self;
        struct dtx_sweep_attempt attempt;
        for (int p = 0; p < PROCESSES; p++)
            if (won[p][k]) {
                winners++;
                winner = p;
            }
        assert_int_equal(winners, 1);
        dtx_sweep_self_read(&self, 60);
        dtx_sweep_attempt_read(&sweep, 0, k + 1, &self, &attempt);
        assert_int_equal(attempt.from, 100 * winner + k);
        snprintf(path, sizeof path, "%s/state/%s.%d", sweep.dir, trial.id, k + 1);
        assert_int_equal(unlink(path), 0);
    }
    snprintf(path, sizeof path, "%s/state", sweep.dir);
    assert_int_equal(rmdir(path), 0); /* no other file is left */
    assert_int_equal(rmdir(sweep.dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_of_many)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
