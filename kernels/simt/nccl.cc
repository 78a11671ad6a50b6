/*
 * A stand-in for NCCL (kernels/cuda/collectives.h): ranks are processes that exchange over MPI, each operation when its
 * stream comes to it. What it reads is read then; what it writes is NaN until all is there. A communicator's members
 * find each other by its id, as with NCCL: the id holds who made it.
 *
 * DTX_EMU_NCCL="hang R N" or "error R N": operation N (from 1) of rank R of the world never ends; with error its
 * communicator says so, too.
 */
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

#define DTX_EMU
#include "kernels/cuda/collectives.h"
#include "kernels/simt/runtime.h"

enum { FAILED = 3, RECORDED = 5, REMOTE = 6, FIRST_TAG = 1000, MOST_TAGS = 8000 }; /* ncclResult_t; tags of MPI */

struct maker {
    int rank, number;
};

struct communicator {
    MPI_Comm handle;
    std::atomic<bool> aborted;
    std::atomic<int> error;
};

struct operation {
    void *stream;
    communicator *comm;
    const void *from; /* NULL: a receive */
    void *to;         /* NULL: a send */
    size_t bytes;
    int peer;
};

struct rank_state {
    int depth, made;             /* groups that are open; ids made */
    std::vector<operation> list; /* between group_start and group_end */
    int64_t issued;              /* operations or groups */
    int64_t odd;                 /* the one that never ends; 0: none */
    bool fails;                  /* it says so */
};

static rank_state *state()
{
    static thread_local rank_state s = {};
    return &s;
}

static int version(int *out)
{
    *out = 22809;
    return 0;
}

static const char *error_text(int code)
{
    return code == REMOTE     ? "remote process exited or there was a network error"
           : code == RECORDED ? "the stand-in's exchanges cannot be recorded"
                              : "an exchange over MPI failed";
}

static int unique_id(struct nccl_id *out)
{
    maker m;
    memset(out, 0, sizeof *out);
    MPI_Comm_rank(MPI_COMM_WORLD, &m.rank);
    m.number = state()->made++ % MOST_TAGS;
    memcpy(out->bytes, &m, sizeof m);
    return 0;
}

/* Everybody tells the maker its rank in the world and gets the list. */
static int init(void **out, int size, struct nccl_id id, int rank, struct nccl_config *config)
{
    enum { INVALID_ARGUMENT = 4 };
    maker m;
    if (config->size != sizeof *config || config->magic != 0xcafebeef || config->blocking != INT_MIN ||
        config->most_channels < 1 || config->most_channels > 64)
        return INVALID_ARGUMENT;
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

/* NCCL's abort frees the communicator. */
static void need_living(const communicator *c)
{
    if (!c->aborted)
        return;
    fprintf(stderr, "stand-in for NCCL: communicator used after its abort\n");
    std::abort();
}

static int destroy(void *handle)
{
    communicator *c = (communicator *)handle;
    need_living(c);
    MPI_Comm_free(&c->handle);
    delete c;
    return 0;
}

/* By any thread; the memory stays, since the owner may be in an operation. */
static int abort_now(void *handle)
{
    communicator *c = (communicator *)handle;
    if (!c->aborted)
        fprintf(stderr, "stand-in for NCCL: communicator aborted\n");
    c->aborted = true;
    return 0;
}

static int async_error(void *handle, int *out)
{
    communicator *c = (communicator *)handle;
    need_living(c);
    *out = c->error;
    return 0;
}

/* One operation, or a group of messages, on its way. */
struct exchange {
    communicator *comm;
    bool begun = false, never = false, fails = false;
    std::vector<MPI_Request> requests;
    std::vector<std::vector<char>> sent; /* copies */
    struct arrival {
        void *to;
        std::vector<char> data;
    };
    std::vector<arrival> arrivals;
    std::function<void(exchange *)> begin;

    MPI_Request *request()
    {
        requests.push_back(MPI_REQUEST_NULL);
        return &requests.back();
    }
    const char *copy(const void *from, size_t bytes)
    {
        sent.emplace_back((const char *)from, (const char *)from + bytes);
        return sent.back().data();
    }
    char *arrive(void *to, size_t bytes)
    {
        arrivals.push_back({to, std::vector<char>(bytes)});
        return arrivals.back().data.data();
    }
};

/* Begins the exchange at the first call; then looks whether it is done. */
static int progress(exchange *x)
{
    int done = 0;
    if (x->comm->aborted)
        return FAILED;
    if (x->never) {
        x->comm->error = x->fails ? REMOTE : 0;
        return DTX_EMU_PENDING;
    }
    if (!x->begun) {
        x->begun = true;
        x->begin(x);
        for (auto &a : x->arrivals)
            memset(a.to, 0xff, a.data.size());
    }
    if (MPI_Testall((int)x->requests.size(), x->requests.data(), &done, MPI_STATUSES_IGNORE) != MPI_SUCCESS)
        return FAILED;
    if (!done)
        return DTX_EMU_PENDING;
    for (auto &a : x->arrivals)
        memcpy(a.to, a.data.data(), a.data.size());
    return 0;
}

static int submit(void *stream, communicator *comm, std::function<void(exchange *)> begin)
{
    if (dtx_emu_records(stream))
        return RECORDED;
    std::shared_ptr<exchange> x(new exchange());
    x->comm = comm;
    x->begin = std::move(begin);
    x->never = ++state()->issued == state()->odd;
    x->fails = state()->fails;
    return dtx_emu_submit(stream, [x] { return progress(x.get()); }, {});
}

static int all_gather(const void *from, void *to, size_t count, int, void *handle, void *stream)
{
    communicator *c = (communicator *)handle;
    return submit(stream, c, [=](exchange *x) {
        int size;
        MPI_Comm_size(c->handle, &size);
        const char *mine = x->copy(from, count);
        char *all = x->arrive(to, count * (size_t)size);
        MPI_Iallgather(mine, (int)count, MPI_BYTE, all, (int)count, MPI_BYTE, c->handle, x->request());
    });
}

static int broadcast(const void *from, void *to, size_t count, int, int root, void *handle, void *stream)
{
    communicator *c = (communicator *)handle;
    return submit(stream, c, [=](exchange *x) {
        char *data = x->arrive(to, count);
        memcpy(data, from, count);
        MPI_Ibcast(data, (int)count, MPI_BYTE, root, c->handle, x->request());
    });
}

/* Sends end when their receives are there: those of large messages do so in NCCL. */
static void exchange_messages(exchange *x, const std::vector<operation> &list)
{
    x->requests.reserve(list.size());
    x->sent.reserve(list.size());
    x->arrivals.reserve(list.size());
    for (const auto &o : list)
        if (o.to)
            MPI_Irecv(x->arrive(o.to, o.bytes), (int)o.bytes, MPI_BYTE, o.peer, 0, o.comm->handle, x->request());
        else
            MPI_Issend(x->copy(o.from, o.bytes), (int)o.bytes, MPI_BYTE, o.peer, 0, o.comm->handle, x->request());
}

static int group_start()
{
    state()->depth++;
    return 0;
}

static int group_end()
{
    rank_state *s = state();
    if (--s->depth > 0 || s->list.empty())
        return 0;
    std::vector<operation> list;
    list.swap(s->list);
    return submit(list[0].stream, list[0].comm, [list](exchange *x) { exchange_messages(x, list); });
}

static int add(operation o)
{
    group_start();
    state()->list.push_back(o);
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

bool dtx_emu_nccl_load(struct dtx_nccl *out, char *why, size_t size)
{
    const char *text = getenv("DTX_EMU_NCCL");
    char what[8];
    int rank, mine;
    long long number;
    state()->odd = 0;
    if (text && sscanf(text, "%7s %d %lld", what, &rank, &number) != 3) {
        snprintf(why, size, "DTX_EMU_NCCL is '%s', not 'hang RANK NUMBER' or 'error RANK NUMBER'", text);
        return false;
    }
    MPI_Comm_rank(MPI_COMM_WORLD, &mine);
    if (text && mine == rank) {
        state()->odd = state()->issued + number;
        state()->fails = strcmp(what, "error") == 0;
    }
    *out = {version,     error_text, unique_id,  init,      destroy, abort_now, async_error,
            group_start, group_end,  all_gather, broadcast, send,    receive};
    return true;
}
