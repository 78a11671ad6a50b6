/* The nodes of an allocation: which ranks are where, and whether the same program runs on all of them. */
#include <dnnl.h>
#include <fcntl.h>
#include <hdf5.h>
#include <math.h>
#include <mpi.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/base/hash.h"
#include "kernels/base/host.h"
#include "kernels/base/mem.h"
#include "kernels/base/mutant.h"
#include "launch/doctor/preflight.h"

static uint64_t hash_program(void)
{
    enum { PIECE = 1 << 20 };
    struct dtx_hasher *hasher = dtx_hasher_begin(0);
    char *piece = malloc(PIECE);
    int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    ssize_t n;
    while (piece && fd >= 0 && (n = read(fd, piece, PIECE)) > 0)
        dtx_hasher_add(hasher, piece, (size_t)n);
    if (fd >= 0)
        close(fd);
    free(piece);
    return dtx_hasher_end(hasher);
}

static void name_libraries(char *text, size_t bytes)
{
    char mpi[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    unsigned major = 0, minor = 0, release = 0;
    MPI_Get_library_version(mpi, &length);
    mpi[strcspn(mpi, ",\n")] = '\0';
    H5get_libversion(&major, &minor, &release);
    const dnnl_version_t *dnnl = dnnl_version();
    snprintf(text, bytes, "dtx %s, %.60s, HDF5 %u.%u.%u, oneDNN %d.%d.%d", DTX_VERSION, mpi, major, minor, release,
             dnnl->major, dnnl->minor, dnnl->patch);
}

static void describe_self(struct dtx_preflight *p)
{
    struct dtx_preflight_rank *m = &p->mine;
    const char *node = getenv("DTX_NODE"), *slurm = getenv("SLURMD_NODENAME"); /* first: several on one machine */
    struct dtx_host host;
    dtx_host_read("", &host);
    snprintf(m->host, sizeof m->host, "%s", p->ctx->host);
    snprintf(m->node, sizeof m->node, "%.63s", node && *node ? node : slurm && *slurm ? slurm : m->host);
    snprintf(m->processor, sizeof m->processor, "%.95s", host.cpu_model);
    name_libraries(m->libraries, sizeof m->libraries);
    m->program = hash_program() + (DTX_MUTANT(doctor_other_program) && p->world->rank == p->world->size - 1);
    m->isa = dtx_isa_detect();
    m->threads = p->backend->threads;
    for (int i = 0; i < DTX_PREFLIGHT_MEASURES; i++)
        m->value[i] = NAN;
    for (int i = 0; i < DTX_PREFLIGHT_ROUNDS; i++)
        m->link[i] = NAN;
    m->clock = m->clock_error = NAN;
}

enum dtx_status dtx_preflight_gather(struct dtx_preflight *p)
{
    return dtx_comm_gather_bytes(p->world, &p->mine, sizeof p->mine, p->ranks);
}

void dtx_preflight_note(struct dtx_preflight *p, enum dtx_status status)
{
    if (status == DTX_OK)
        return;
    if (!p->mine.failure[0])
        snprintf(p->mine.failure, sizeof p->mine.failure, "%.255s", p->ctx->error.text);
    dtx_error_clear(p->ctx);
}

/* A launcher that hands one node's variables on to all makes them one: then hosts' names are the nodes'. */
static void check_names(struct dtx_preflight *p)
{
    int size = p->world->size;
    bool clear = true;
    for (int r = 1; r < size; r++)
        clear = clear && (strcmp(p->ranks[r].node, p->ranks[r - 1].node) != 0 ||
                          strcmp(p->ranks[r].host, p->ranks[r - 1].host) == 0);
    for (int r = 0; r < size && !clear; r++)
        memcpy(p->ranks[r].node, p->ranks[r].host, sizeof p->ranks[r].node);
    memcpy(p->mine.node, p->ranks[p->world->rank].node, sizeof p->mine.node);
}

/* Nodes in the order of their first ranks. */
static enum dtx_status list_nodes(struct dtx_preflight *p)
{
    int size = p->world->size;
    void *memory;
    check_names(p);
    DTX_TRY(p->ctx, dtx_mem_alloc(p->ctx, size, sizeof *p->nodes, &memory));
    p->nodes = memory;
    DTX_TRY(p->ctx, dtx_mem_alloc(p->ctx, 2 * (int64_t)size, sizeof *p->node_of, &memory));
    p->node_of = memory;
    int *next = p->node_of + size; /* room for the nodes' lists */
    for (int r = 0; r < size; r++) {
        int n = 0;
        while (n < p->n_nodes && strcmp(p->nodes[n].name, p->ranks[r].node) != 0)
            n++;
        if (n == p->n_nodes)
            memcpy(p->nodes[p->n_nodes++].name, p->ranks[r].node, sizeof p->nodes[n].name);
        p->node_of[r] = n;
        p->nodes[n].n++;
    }
    for (int n = 0; n < p->n_nodes; n++) {
        p->nodes[n].rank = next;
        for (int r = 0; r < size; r++)
            if (p->node_of[r] == n) {
                p->local = r == p->world->rank ? (int)(next - p->nodes[n].rank) : p->local;
                *next++ = r;
            }
    }
    p->node = p->node_of[p->world->rank];
    return DTX_OK;
}

enum dtx_status dtx_preflight_identify(struct dtx_preflight *p)
{
    void *memory;
    describe_self(p);
    enum dtx_status status = dtx_mem_alloc(p->ctx, p->world->size, sizeof *p->ranks, &memory);
    p->ranks = memory;
    DTX_TRY(p->ctx, dtx_comm_agree(p->world, status));
    DTX_TRY(p->ctx, dtx_preflight_gather(p));
    DTX_TRY(p->ctx, dtx_comm_agree(p->world, list_nodes(p)));
    return dtx_comm_split(p->world, p->node, p->world->rank, "node", &p->node_ranks);
}

void dtx_preflight_free(struct dtx_preflight *p)
{
    dtx_mem_free(p->ranks);
    dtx_mem_free(p->nodes);
    dtx_mem_free(p->node_of);
    dtx_mem_free(p->suspect);
    free(p->problems);
    dtx_mem_free(p);
}
