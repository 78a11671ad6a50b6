/* The emulator's inside: the threads of the block that runs, and who waits for what. */
#ifndef DTX_KERNELS_SIMT_MACHINE_H
#define DTX_KERNELS_SIMT_MACHINE_H

#include <map>
#include <memory>
#include <vector>

#include "kernels/device/hopper.h"
#include "kernels/simt/fiber.h"
#include "kernels/simt/simt.h"

struct thread_state;
typedef std::vector<thread_state *> thread_list;

struct async_copy {
    void *to;
    const void *from; /* NULL: zeros */
    size_t bytes;
    int group;
};

struct thread_state : dtx_simt_thread {
    struct dtx_fiber fiber;
    bool done;
    const char *waits_in; /* what it waits for, and where */
    struct dtx_site waits_at;
    std::vector<async_copy> copies;
    int groups; /* committed */
    /* Of a kernel that runs as PTX: registers, local memory, and the sums of products under way by first register. */
    std::vector<uint64_t> registers;
    std::vector<unsigned char> local;
    struct sum {
        std::vector<float> value;
        const int *registers;
    };
    std::map<int, sum> sums;
};

/* Lanes of one warp on their way into a collective operation. */
struct meeting {
    uint32_t mask, arrived;
    const char *what;
    struct dtx_site site;
    const void *in[32];
    void *out[32];
    thread_list waiting;
};

struct barrier {
    int arrived, expected;
    struct dtx_site site;
    thread_list waiting;
};

/* A tile load under way. */
struct tile_copy {
    void *to;
    dtx_tile_map map; /* a copy: the kernel's argument may be gone when the tile lands */
    uint64_t *barrier;
    int at[4];
};

/* A product of a group of 128 threads, and the products of a group in order of issue. */
struct mma_op {
    int columns, lanes;
    bool in_registers, add;
    uint64_t a, b;
    uint32_t registers[128][4];
    const uint32_t *registers_of[128]; /* where they stand and must stay; NULL: nobody said */
    float *sum[128];
};
struct mma_group {
    std::vector<mma_op> ops;
    int done, arrived;
    struct lane_state {
        int issued;
        bool fenced;                                /* since the last wait */
        std::vector<int> ends;                      /* of committed groups, as counts of issued products */
        std::map<float *, std::vector<float>> sums; /* what the thread's registers hold when a wait gives them back */
    } lane[128];
    thread_list waiting;
};

/* An allocation, or a piece of shared memory. */
struct memory_piece {
    uintptr_t begin, end;
};

enum { BARRIERS = 16, STACK_BYTES = 256 * 1024, PIECES = 256 };

struct machine : dtx_simt_block {
    std::vector<thread_state *> threads; /* kept from launch to launch, with their stacks */
    int n, live;
    thread_list ready;
    std::vector<std::vector<meeting>> meetings; /* by warp, one per mask */
    barrier barriers[BARRIERS];
    std::map<const void *, unsigned char *> statics; /* static shared memory by key */
    std::map<const void *, size_t> static_bytes;
    std::map<uint64_t *, thread_list> arrivals; /* who waits for barriers in shared memory */
    std::vector<tile_copy> tiles;
    std::vector<mma_group> groups;
    struct dtx_fiber outside;
    struct dtx_simt_job *job;
    std::unique_ptr<struct ptx_launch> ptx; /* the job's, when it runs as PTX */
    memory_piece pieces[PIECES];            /* where loads and stores of PTX found their memory last */
    struct dtx_simt_settings settings;
    uint64_t random;
    bool failed;
    char report[2048];
    ~machine();
};

struct dtx_simt_job {
    dim3 grid, block;
    size_t shared_bytes;
    void (*body)(const void *);
    void *arguments;
    void (*release)(void *);
    const void *kernel;
    std::vector<dtx_simt_argument> parameters;
};

machine *machine_now();
/* Lets others run until somebody wakes this thread. */
void thread_wait(const char *what, struct dtx_site site);
void threads_wake(thread_list *list);
void report(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* hopper.cc: lands the oldest tile load; false when none is under way. */
bool tile_land_one();
bool products_under_way(const thread_state *t);
/* Whether these sums of the thread are still NaN. */
bool products_own(const thread_state *t, float *sum);

/* memory.cc */
void memory_poison(void *p, size_t bytes);
/* The piece of device or shared memory that has all these bytes; false: none. */
bool memory_find(const void *p, size_t bytes, memory_piece *out);
/* Reports guard zones that were written. */
bool memory_guards_kept();
unsigned char *shared_make(size_t bytes);
void shared_free(unsigned char *p);
bool shared_guards_kept(const unsigned char *p, size_t bytes);

#endif
