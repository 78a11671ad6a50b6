#include "trainer/stop.h"

#include <errno.h>
#include <string.h>

#include "kernels/base/mutant.h"

/* The one mutable static variable of dtx: see stop.h. */
static volatile sig_atomic_t first_signal;

static const struct {
    int number;
    const char *name;
} signals[DTX_STOP_SIGNALS] = {{SIGUSR1, "USR1"}, {SIGTERM, "TERM"}, {SIGINT, "INT"}};

static void note(int number)
{
    if (!first_signal || DTX_MUTANT(stop_takes_last_signal))
        first_signal = number;
}

enum dtx_status dtx_stop_install(struct dtx_ctx *ctx, struct dtx_stop *stop)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = note;
    action.sa_flags = SA_RESTART; /* reads and writes in progress go on */
    sigfillset(&action.sa_mask);
    first_signal = 0;
    stop->n_installed = 0;
    for (int i = 0; i < DTX_STOP_SIGNALS; i++) {
        struct sigaction *before = &stop->before[i];
        if (sigaction(signals[i].number, NULL, before) != 0)
            goto failed;
        if (signals[i].number != SIGINT || before->sa_handler != SIG_IGN)
            if (sigaction(signals[i].number, &action, NULL) != 0)
                goto failed;
        stop->n_installed++;
    }
    return DTX_OK;
failed:
    dtx_fail(ctx, DTX_E_INTERNAL, "cannot install the handler of signal %s: %s", signals[stop->n_installed].name,
             strerror(errno));
    dtx_stop_uninstall(stop);
    return DTX_E_INTERNAL;
}

void dtx_stop_uninstall(struct dtx_stop *stop)
{
    while (stop->n_installed > 0) {
        stop->n_installed--;
        sigaction(signals[stop->n_installed].number, &stop->before[stop->n_installed], NULL);
    }
}

int dtx_stop_requested(void)
{
    return first_signal;
}

const char *dtx_stop_name(int signal_number)
{
    for (int i = 0; i < DTX_STOP_SIGNALS; i++)
        if (signals[i].number == signal_number)
            return signals[i].name;
    return signal_number == DTX_STOP_TIME ? "the end of the job's time" : signal_number ? "unknown" : "none";
}
