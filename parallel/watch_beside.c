/* The watch and what runs on a device, where no thread waits for it. */
#include "kernels/base/mutant.h"
#include "parallel/watch_impl.h"

void dtx_watch_beside(struct dtx_watch *w, struct dtx_watch_beside *beside)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->beside_mutex);
    beside->next = w->beside;
    w->beside = beside;
    pthread_mutex_unlock(&w->beside_mutex);
}

void dtx_watch_beside_end(struct dtx_watch *w, struct dtx_watch_beside *beside)
{
    if (!w)
        return;
    pthread_mutex_lock(&w->beside_mutex);
    struct dtx_watch_beside **at = &w->beside;
    while (*at && *at != beside)
        at = &(*at)->next;
    if (*at)
        *at = beside->next;
    pthread_mutex_unlock(&w->beside_mutex);
}

void dtx_watch_look_beside(struct dtx_watch *w)
{
    char why[512];
    bool good = true;
    pthread_mutex_lock(&w->beside_mutex);
    for (struct dtx_watch_beside *b = w->beside; b && good; b = b->next)
        good = b->look(b->self, why, sizeof why) || DTX_MUTANT(watch_device_error_unseen);
    pthread_mutex_unlock(&w->beside_mutex);
    if (!good)
        dtx_watch_alarm(w, why, true, false);
}

void dtx_watch_stop_beside(struct dtx_watch *w)
{
    pthread_mutex_lock(&w->beside_mutex);
    for (struct dtx_watch_beside *b = w->beside; b && !DTX_MUTANT(watch_device_not_stopped); b = b->next)
        b->stop(b->self);
    pthread_mutex_unlock(&w->beside_mutex);
}
