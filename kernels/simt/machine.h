/* The emulator's inside: the threads of the block that runs, and who waits for what. */
#ifndef DTX_KERNELS_SIMT_MACHINE_H
#define DTX_KERNELS_SIMT_MACHINE_H

#include <map>
#include <vector>

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

enum { BARRIERS = 16, STACK_BYTES = 256 * 1024 };

struct machine : dtx_simt_block {
    std::vector<thread_state *> threads; /* kept from launch to launch, with their stacks */
    int n, live;
    thread_list ready;
    std::vector<std::vector<meeting>> meetings; /* by warp, one per mask */
    barrier barriers[BARRIERS];
    std::map<const void *, unsigned char *> statics; /* static shared memory by key */
    std::map<const void *, size_t> static_bytes;
    struct dtx_fiber outside;
    struct dtx_simt_job *job;
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
};

machine *machine_now();
/* Lets others run until somebody wakes this thread. */
void thread_wait(const char *what, struct dtx_site site);
void threads_wake(thread_list *list);
void report(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* memory.cc */
void memory_poison(void *p, size_t bytes);
bool memory_is_inside(const void *p, size_t bytes);
/* Reports guard zones that were written. */
bool memory_guards_kept();
unsigned char *shared_make(size_t bytes);
void shared_free(unsigned char *p);
bool shared_guards_kept(const unsigned char *p, size_t bytes);

#endif
