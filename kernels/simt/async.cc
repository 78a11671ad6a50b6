/* Asynchronous copies: the destination is NaN from the issue until the wait that covers the copy. */
#include <cstring>

#include "kernels/base/mutant.h"
#include "kernels/simt/machine.h"

static thread_state *running()
{
    return static_cast<thread_state *>(machine_now()->thread);
}

void dtx_simt_copy(void *to, const void *from, size_t bytes, struct dtx_site site)
{
    thread_state *t = running();
    dtx_simt_check_access(to, bytes, bytes, "asynchronous copy to shared memory", site);
    if (from)
        dtx_simt_check_access(from, bytes, bytes, "asynchronous copy from device memory", site);
    if (!DTX_MUTANT(simt_copy_leaves_old))
        memory_poison(to, bytes);
    t->copies.push_back({to, from, bytes, t->groups});
}

void dtx_simt_copy_commit()
{
    running()->groups++;
}

void dtx_simt_copy_wait(int groups_left)
{
    thread_state *t = running();
    size_t kept = 0;
    for (const async_copy &c : t->copies) {
        if (c.group >= t->groups - groups_left)
            t->copies[kept++] = c;
        else if (c.from)
            memcpy(c.to, c.from, c.bytes);
        else
            memset(c.to, 0, c.bytes);
    }
    t->copies.resize(kept);
}
