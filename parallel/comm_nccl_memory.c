/*
 * NCCL's own device memory, as its sources allocate it (2.22 to 2.28; transport/p2p.cc, net.cc, nvls.cc, init.cc and
 * graph/paths.cc) and its documentation names the variables. Every channel has for each link
 *   - from a rank of the node: buffers of three protocols, LL 512 KiB, LL128 4,800 KiB, Simple 4 MiB, and a page;
 *   - to a rank of the node: a page;
 * both rounded up to 2 MiB. Sends and receives, of which sums are made, link every rank with every other on as many
 * channels as a power of two holds; all-gathers and broadcasts have a ring of their own, one link each way, and on
 * NVSwitch 2 · 1 MiB a rank. Ranks of other nodes share 16 steps of at most 512 KiB a channel, each way, which a
 * communicator without other nodes has too (NVIDIA/nccl issue 2363).
 * Reported of 8 H100 with 32 channels (issue 1685): 3.28 GB more after the first exchange of all with all; this file
 * says 3.36 GB for that. Links come into being when they are first used; NCCL before 2.22 makes rings and trees
 * at once, for communicators too that never use them, which is not counted here.
 */
#include <stdlib.h>

#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "kernels/cuda/collectives.h"
#include "parallel/comm_nccl.h"

enum { MIB = 1 << 20, PAGE = 4096, GRAIN = 2 * MIB, NODE = 8, STEPS = 16, STEP = 512 << 10, MULTICAST = 2 * MIB };
enum { LL = 512 << 10, LL128 = 4800 << 10, SIMPLE = 4 * MIB, MOST_CHANNELS = 64 };

/* A positive number in one of NCCL's variables, or what holds without it. */
static int64_t setting(const char *name, int64_t otherwise)
{
    const char *text = getenv(name);
    int64_t value = text ? strtoll(text, NULL, 0) : 0;
    return value > 0 ? value : otherwise;
}

size_t dtx_comm_nccl_own_bytes(const struct dtx_backend *backend, int ranks)
{
    if (ranks == 1 || !dtx_backend_collectives(backend))
        return 0;
    int64_t buffers = setting("NCCL_LL_BUFFSIZE", LL) + setting("NCCL_LL128_BUFFSIZE", LL128);
    int64_t link = dtx_round_up(buffers + setting("NCCL_BUFFSIZE", SIMPLE) + PAGE, GRAIN) + GRAIN;
    int64_t channels = dtx_min64(setting("NCCL_MAX_CTAS", NCCL_CHANNELS), setting("NCCL_MAX_NCHANNELS", MOST_CHANNELS));
    int64_t wanted = dtx_min64(channels, setting("NCCL_MAX_P2P_NCHANNELS", MOST_CHANNELS)), exchanged = 1;
    while (exchanged < wanted)
        exchanged *= 2;
    int64_t near = dtx_min64(ranks, NODE), peers = DTX_MUTANT(nccl_one_peer) ? 1 : near - 1;
    return (size_t)(exchanged * (peers * link + 2 * (int64_t)STEPS * STEP) + channels * (link + near * MULTICAST));
}
