/* What NCCL is at: for the ledger, the watch and errors that show only later. */
#include <stdio.h>
#include <string.h>

#include "kernels/base/mutant.h"
#include "parallel/comm_nccl_impl.h"

/* With the mutex held: ends what has happened, in order. False: the device says that it never will. */
static bool retire(struct dtx_comm *comm, int *code)
{
    struct dtx_nccl_flights *f = &dtx_nccl_of(comm)->flights;
    *code = 0;
    for (; f->ended < f->issued; f->ended++) {
        bool happened = false;
        *code = dtx_nccl_runtime(comm)->event_happened(f->ring[f->ended % DTX_NCCL_FLIGHTS].event, &happened);
        if (*code || !happened)
            return *code == 0;
        dtx_ledger_finish(f->ring[f->ended % DTX_NCCL_FLIGHTS].mark, true);
    }
    return true;
}

enum dtx_status dtx_nccl_track(struct dtx_comm *comm, struct dtx_ledger_mark *mark, void *stream)
{
    struct dtx_nccl_flights *f = &dtx_nccl_of(comm)->flights;
    int code;
    if (!mark->page || DTX_MUTANT(nccl_ends_when_issued))
        return DTX_OK;
    pthread_mutex_lock(&f->mutex);
    retire(comm, &code);
    if (f->issued - f->ended == DTX_NCCL_FLIGHTS) /* later ones tell of a hang as well */
        dtx_ledger_finish(f->ring[f->ended++ % DTX_NCCL_FLIGHTS].mark, true);
    f->ring[f->issued % DTX_NCCL_FLIGHTS].mark = *mark;
    pthread_mutex_unlock(&f->mutex);
    /* Without the mutex: the host may be held up here while the device takes no more work, and the watch must see why.
     */
    code = dtx_nccl_runtime(comm)->event_record(f->ring[f->issued % DTX_NCCL_FLIGHTS].event, stream);
    pthread_mutex_lock(&f->mutex);
    f->issued += code == 0;
    pthread_mutex_unlock(&f->mutex);
    DTX_TRY(comm->ctx, dtx_nccl_check_cuda(comm, code, "recording an event"));
    *mark = (struct dtx_ledger_mark){NULL, 0};
    return DTX_OK;
}

/* NCCL's error of a communicator, if there is one. */
static bool failed(const struct dtx_comm *comm, char *why, size_t size)
{
    enum { IN_PROGRESS = 7 };
    const struct dtx_nccl_comm *impl = dtx_nccl_of(comm);
    int code = 0, asked = impl->handle ? impl->run->nccl.async_error(impl->handle, &code) : 0;
    code = asked ? asked : code;
    if (code == 0 || code == IN_PROGRESS || DTX_MUTANT(nccl_error_unseen))
        return false;
    snprintf(
        why, size,
        "NCCL: communicator '%s', rank %d of %d: what is under way will not end: %s (%d); NCCL_DEBUG=WARN says more",
        comm->name, comm->rank, comm->size, impl->run->nccl.error_text(code), code);
    return true;
}

enum dtx_status dtx_nccl_ready(struct dtx_comm *comm)
{
    char why[512];
    if (atomic_load(&dtx_nccl_of(comm)->run->stopped))
        return dtx_fail(comm->ctx, DTX_E_LIBRARY, "NCCL: communicator '%s' was ended by the watch", comm->name);
    return failed(comm, why, sizeof why) ? dtx_fail(comm->ctx, DTX_E_LIBRARY, "%s", why) : DTX_OK;
}

enum dtx_status dtx_nccl_flights_create(struct dtx_comm *comm)
{
    struct dtx_nccl_flights *f = &dtx_nccl_of(comm)->flights;
    for (int i = 0; i < DTX_NCCL_FLIGHTS; i++) {
        int code = dtx_nccl_runtime(comm)->event_create(&f->ring[i].event, false);
        DTX_TRY(comm->ctx, dtx_nccl_check_cuda(comm, code, "creating an event"));
    }
    return DTX_OK;
}

void dtx_nccl_flights_free(struct dtx_comm *comm)
{
    struct dtx_nccl_flights *f = &dtx_nccl_of(comm)->flights;
    for (int i = 0; i < DTX_NCCL_FLIGHTS; i++)
        if (f->ring[i].event)
            dtx_nccl_runtime(comm)->event_free(f->ring[i].event);
    pthread_mutex_destroy(&f->mutex);
}

bool dtx_nccl_look(void *self, char *why, size_t size)
{
    struct dtx_nccl_run *run = self;
    bool good = run->device->attach(run->backend) == 0;
    if (!good)
        snprintf(why, size, "CUDA: the watch cannot use the device");
    pthread_mutex_lock(&run->mutex);
    bool stopped = atomic_load(&run->stopped) && !DTX_MUTANT(nccl_looked_at_after_abort); /* NCCL has freed it */
    for (struct dtx_comm *comm = run->list; comm && good && !stopped; comm = dtx_nccl_of(comm)->next) {
        struct dtx_nccl_flights *f = &dtx_nccl_of(comm)->flights;
        int code = 0;
        pthread_mutex_lock(&f->mutex);
        good = !failed(comm, why, size);
        if (good && !retire(comm, &code)) {
            snprintf(why, size, "CUDA: communicator '%s', rank %d of %d: the device failed: %s (%d)", comm->name,
                     comm->rank, comm->size, dtx_nccl_runtime(comm)->error_text(code), code);
            good = false;
        }
        pthread_mutex_unlock(&f->mutex);
    }
    pthread_mutex_unlock(&run->mutex);
    return good;
}

/* As one group: a communicator's end may wait for what others have on the device. */
void dtx_nccl_stop(void *self)
{
    struct dtx_nccl_run *run = self;
    if (atomic_exchange(&run->stopped, true))
        return;
    pthread_mutex_lock(&run->mutex);
    run->nccl.group_start();
    for (struct dtx_comm *comm = run->list; comm; comm = dtx_nccl_of(comm)->next)
        if (dtx_nccl_of(comm)->handle)
            run->nccl.abort(dtx_nccl_of(comm)->handle);
    run->nccl.group_end();
    pthread_mutex_unlock(&run->mutex);
}
