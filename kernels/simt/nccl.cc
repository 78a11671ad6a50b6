/*
 * A stand-in for NCCL (kernels/cuda/collectives.h): ranks are processes that exchange over MPI, each operation when its
 * stream comes to it. A communicator's members find each other by its id, as with NCCL: the id holds who made it.
 */
#include <cstring>
#include <memory>
#include <vector>

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#define DTX_EMU
#include "kernels/cuda/collectives.h"
#include "kernels/simt/runtime.h"

enum { FAILED = 3, FIRST_TAG = 1000, MOST_TAGS = 8000 };

struct maker {
    int rank, number;
};

struct flight {
    MPI_Request request;
    std::vector<char> data;
};

struct communicator {
    MPI_Comm handle;
    std::vector<std::shared_ptr<flight>> sends;
};

/* Operations between group_start and group_end. */
struct group {
    int depth, made;
    struct operation {
        void *stream;
        communicator *comm;
        const void *from;
        void *to;
        size_t bytes;
        int peer;
    };
    std::vector<operation> list;
};

static group *group_now()
{
    static thread_local group g = {};
    return &g;
}

static int version(int *out)
{
    *out = 22809;
    return 0;
}

static const char *error_text(int)
{
    return "an exchange over MPI failed";
}

static int unique_id(struct nccl_id *out)
{
    maker m;
    memset(out, 0, sizeof *out);
    MPI_Comm_rank(MPI_COMM_WORLD, &m.rank);
    m.number = group_now()->made++ % MOST_TAGS;
    memcpy(out->bytes, &m, sizeof m);
    return 0;
}

/* Everybody tells the maker its rank in the world and gets the list. */
static int init(void **out, int size, struct nccl_id id, int rank)
{
    maker m;
    memcpy(&m, id.bytes, sizeof m);
    int mine, tag = FIRST_TAG + m.number;
    std::vector<int> world(size);
    MPI_Comm_rank(MPI_COMM_WORLD, &mine);
    if (mine == m.rank) {
        for (int i = 0; i < size - 1; i++) {
            int pair[2];
            MPI_Recv(pair, 2, MPI_INT, MPI_ANY_SOURCE, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            world[pair[0]] = pair[1];
        }
        world[rank] = mine;
        for (int i = 0; i < size; i++)
            if (i != rank)
                MPI_Send(world.data(), size, MPI_INT, world[i], tag, MPI_COMM_WORLD);
    } else {
        int pair[2] = {rank, mine};
        MPI_Send(pair, 2, MPI_INT, m.rank, tag, MPI_COMM_WORLD);
        MPI_Recv(world.data(), size, MPI_INT, m.rank, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    communicator *c = new communicator();
    MPI_Group all, members;
    MPI_Comm_group(MPI_COMM_WORLD, &all);
    MPI_Group_incl(all, size, world.data(), &members);
    int code = MPI_Comm_create_group(MPI_COMM_WORLD, members, tag, &c->handle);
    MPI_Group_free(&members);
    MPI_Group_free(&all);
    *out = c;
    return code == MPI_SUCCESS ? 0 : FAILED;
}

static int destroy(void *handle)
{
    communicator *c = (communicator *)handle;
    for (auto &f : c->sends)
        MPI_Wait(&f->request, MPI_STATUS_IGNORE);
    MPI_Comm_free(&c->handle);
    delete c;
    return 0;
}

static int abort_now(void *)
{
    return 0;
}

static int all_gather(const void *from, void *to, size_t count, int, void *handle, void *stream)
{
    communicator *c = (communicator *)handle;
    return dtx_emu_submit(
        stream,
        [=] {
            std::vector<char> mine((const char *)from, (const char *)from + count);
            return MPI_Allgather(mine.data(), (int)count, MPI_BYTE, to, (int)count, MPI_BYTE, c->handle) ? FAILED : 0;
        },
        true);
}

static int broadcast(const void *from, void *to, size_t count, int, int root, void *handle, void *stream)
{
    communicator *c = (communicator *)handle;
    return dtx_emu_submit(
        stream,
        [=] {
            if (from != to)
                memmove(to, from, count);
            return MPI_Bcast(to, (int)count, MPI_BYTE, root, c->handle) ? FAILED : 0;
        },
        true);
}

static int run(const std::vector<group::operation> &list)
{
    std::vector<MPI_Request> receives;
    for (const auto &o : list) {
        if (o.to) {
            receives.push_back(MPI_REQUEST_NULL);
            MPI_Irecv(o.to, (int)o.bytes, MPI_BYTE, o.peer, 0, o.comm->handle, &receives.back());
            continue;
        }
        std::shared_ptr<flight> f(new flight());
        f->data.assign((const char *)o.from, (const char *)o.from + o.bytes);
        MPI_Isend(f->data.data(), (int)o.bytes, MPI_BYTE, o.peer, 0, o.comm->handle, &f->request);
        o.comm->sends.push_back(f);
    }
    return MPI_Waitall((int)receives.size(), receives.data(), MPI_STATUSES_IGNORE) ? FAILED : 0;
}

static int group_start()
{
    group_now()->depth++;
    return 0;
}

static int group_end()
{
    group *g = group_now();
    if (--g->depth > 0 || g->list.empty())
        return 0;
    std::vector<group::operation> list;
    list.swap(g->list);
    bool waits = false; /* what is sent is copied */
    for (const auto &o : list)
        waits = waits || o.to;
    void *stream = list[0].stream;
    return dtx_emu_submit(
        stream, [list] { return run(list); }, waits);
}

static int add(group::operation o)
{
    group_start();
    group_now()->list.push_back(o);
    return group_end();
}

static int send(const void *from, size_t count, int, int peer, void *comm, void *stream)
{
    return add({stream, (communicator *)comm, from, NULL, count, peer});
}

static int receive(void *to, size_t count, int, int peer, void *comm, void *stream)
{
    return add({stream, (communicator *)comm, NULL, to, count, peer});
}

bool dtx_emu_nccl_load(struct dtx_nccl *out, char *, size_t)
{
    *out = {version,     error_text, unique_id,  init,      destroy, abort_now,
            group_start, group_end,  all_gather, broadcast, send,    receive};
    return true;
}
