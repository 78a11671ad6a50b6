/* test: label=unit timeout=20 */
/* Each stop signal is noted, the first one counts, uninstall restores, an ignored INT stays ignored. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <unistd.h>

#include "trainer/stop.h"

static void test_each_signal(void **state)
{
    (void)state;
    static const int numbers[] = {SIGUSR1, SIGTERM, SIGINT};
    static const char *const names[] = {"USR1", "TERM", "INT"};
    struct dtx_ctx ctx;
    dtx_ctx_init(&ctx);
    for (int i = 0; i < 3; i++) {
        struct dtx_stop stop;
        assert_int_equal(dtx_stop_install(&ctx, &stop), DTX_OK);
        assert_int_equal(dtx_stop_requested(), 0);
        raise(numbers[i]);
        assert_int_equal(dtx_stop_requested(), numbers[i]);
        assert_string_equal(dtx_stop_name(dtx_stop_requested()), names[i]);
        raise(numbers[i]);
        raise(numbers[(i + 1) % 3]); /* a second one changes nothing */
        assert_int_equal(dtx_stop_requested(), numbers[i]);
        dtx_stop_uninstall(&stop);
    }
    assert_string_equal(dtx_stop_name(0), "none");
}

static void test_uninstall_restores(void **state)
{
    (void)state;
    struct dtx_ctx ctx;
    dtx_ctx_init(&ctx);
    struct dtx_stop stop;
    struct sigaction action;
    signal(SIGUSR1, SIG_IGN);
    signal(SIGINT, SIG_IGN);
    assert_int_equal(dtx_stop_install(&ctx, &stop), DTX_OK);
    raise(SIGINT); /* ignored by the parent: still ignored */
    assert_int_equal(dtx_stop_requested(), 0);
    raise(SIGUSR1); /* the scheduler's warning counts in any case */
    assert_int_equal(dtx_stop_requested(), SIGUSR1);
    dtx_stop_uninstall(&stop);
    sigaction(SIGUSR1, NULL, &action);
    assert_true(action.sa_handler == SIG_IGN);
    sigaction(SIGTERM, NULL, &action);
    assert_true(action.sa_handler == SIG_DFL);
    signal(SIGINT, SIG_DFL);
}

static void test_a_read_goes_on(void **state)
{
    (void)state;
    struct dtx_ctx ctx;
    dtx_ctx_init(&ctx);
    struct dtx_stop stop;
    int fd[2];
    char byte = 0;
    assert_int_equal(pipe(fd), 0);
    assert_int_equal(dtx_stop_install(&ctx, &stop), DTX_OK);
    pid_t parent = getpid(), child = fork();
    if (child == 0) {
        usleep(50000);
        kill(parent, SIGTERM);
        usleep(50000);
        _exit(write(fd[1], "x", 1) == 1 ? 0 : 1);
    }
    assert_int_equal(read(fd[0], &byte, 1), 1);
    assert_int_equal(byte, 'x');
    assert_int_equal(dtx_stop_requested(), SIGTERM);
    dtx_stop_uninstall(&stop);
    close(fd[0]);
    close(fd[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_signal), cmocka_unit_test(test_uninstall_restores),
                                       cmocka_unit_test(test_a_read_goes_on)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
