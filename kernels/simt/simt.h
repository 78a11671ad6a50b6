/*
 * The emulator: runs a CUDA kernel, compiled by the host's C++ compiler, with one fiber per thread. Blocks run one
 * after another, threads in the chosen order; every meeting of threads (barrier, shuffle, mma) is a point where others
 * run.
 *
 * What it promises to find, each with the source line: threads that wait for ever, lanes that meet in different
 * operations or are missing, barriers met at different places, asynchronous copies used before they were waited for
 * (they land as late as is legal and leave NaN until then) or still under way at the end, accesses outside an
 * allocation by copies and matrix loads, writes near an allocation's ends. Plain loads outside an allocation are found
 * by the address sanitizer, or where kernels run as PTX; a missing barrier shows as a wrong result in one of the three
 * orders.
 *
 * Shared memory is NaN when a block begins. One launch at a time per thread of the operating system.
 */
#ifndef DTX_KERNELS_SIMT_SIMT_H
#define DTX_KERNELS_SIMT_SIMT_H

#include <cstddef>
#include <cstdint>
#include <vector>

struct dim3 {
    unsigned x, y, z;
    dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};

/* A place in a kernel's source, for reports. As default of a parameter: the place of the call. */
struct dtx_site {
    const char *file;
    int line;
    dtx_site(const char *file_ = __builtin_FILE(), int line_ = __builtin_LINE()) : file(file_), line(line_)
    {
    }
};

enum dtx_simt_order { DTX_SIMT_FIFO, DTX_SIMT_LIFO, DTX_SIMT_RANDOM };
enum { DTX_SIMT_FAULT = 719 }; /* cudaErrorLaunchFailure */

/* A launch, ready to run: run(job) gives 0 or DTX_SIMT_FAULT and frees the job; run_kept(job) does not free it. */
struct dtx_simt_job;
extern "C" int dtx_simt_run(struct dtx_simt_job *job);
int dtx_simt_run_kept(struct dtx_simt_job *job);
void dtx_simt_job_free(struct dtx_simt_job *job);
/* What in its parameters may be an address. */
std::vector<const void *> dtx_simt_job_words(const struct dtx_simt_job *job);

/* How launches of this thread run. */
struct dtx_simt_settings {
    enum dtx_simt_order order;
    uint64_t seed;    /* of DTX_SIMT_RANDOM */
    int architecture; /* 90: kernels of sm_90a are chosen; else those of sm_80 */
    /* When set, launches go here instead of running at once; it calls dtx_simt_run(job) later. */
    int (*defer)(void *user, void *stream, struct dtx_simt_job *job);
    void *user;
    const struct dtx_ptx *ptx; /* when set, kernels run as what nvcc made of them */
    unsigned edge_blocks;      /* run of a launch that many blocks at each end of x, leave out the others; 0: run all */
};
extern "C" void dtx_simt_set(const struct dtx_simt_settings *settings);
extern "C" struct dtx_simt_settings dtx_simt_get(void);

/* The report of this thread's last launch that failed; "" when none did. */
extern "C" const char *dtx_simt_fault_text(void);
extern "C" void dtx_simt_fault_clear(void);

/* The PTX in the object files of a folder, for an architecture (80, 90); kept for ever. NULL: `why` says. Every load
 * and store of a kernel is then checked, so that plain ones outside an allocation are found too. */
extern "C" const struct dtx_ptx *dtx_ptx_load(const char *folder, int architecture, char *why, size_t size);

/* Device memory with guard zones, 256-byte aligned, filled with NaN patterns. */
extern "C" void *dtx_simt_alloc(size_t bytes);
extern "C" void dtx_simt_free(void *p);
/* One allocation for pieces. A piece lies at twice its offset, so that at least 256 bytes of nothing, which are guards,
 * lie between two; it is an allocation like those above, and what was in its place before is gone. */
extern "C" void *dtx_simt_arena(size_t bytes);
extern "C" void dtx_simt_arena_free(void *arena, size_t bytes);
extern "C" void *dtx_simt_cut(void *arena, size_t offset, size_t bytes);
extern "C" void dtx_simt_join(void *piece);

/* ---- what kernels/device needs ---- */

/* The thread that runs now. */
struct dtx_simt_thread {
    dim3 index;
    int number; /* in the block, x fastest */
};
struct dtx_simt_block {
    dim3 index, block, grid;
    struct dtx_simt_thread *thread;
    unsigned char *dynamic;
    size_t dynamic_bytes;
};
struct dtx_simt_block *dtx_simt_block_now();

/* All threads of the block (id 0, threads 0), or `threads` of them on named barrier `id`. */
void dtx_simt_barrier(int id, int threads, const char *what, struct dtx_site site);
/* Lanes of `mask` meet; the last computes the outputs of all. in[l], out[l]: NULL for lanes outside the mask. */
typedef void dtx_simt_combine(const void *const *in, void *const *out, const void *argument);
void dtx_simt_meet(uint32_t mask, const char *what, struct dtx_site site, const void *in, void *out,
                   dtx_simt_combine *combine, const void *argument);
/* Static shared memory: the same for every thread of a block that passes this key. */
void *dtx_simt_shared(const void *key, size_t bytes);
/* Ends the launch with a report. */
[[noreturn]] void dtx_simt_fault(struct dtx_site site, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Faults unless [p, p + bytes) is inside one piece of shared or device memory. */
void dtx_simt_check_access(const void *p, size_t bytes, size_t alignment, const char *what, struct dtx_site site);
/* Copies that land when they are waited for; from NULL writes zeros. */
void dtx_simt_copy(void *to, const void *from, size_t bytes, struct dtx_site site);
void dtx_simt_copy_commit();
void dtx_simt_copy_wait(int groups_left);

/* The kernel's address and its parameters are what is needed to run it as PTX. */
struct dtx_simt_argument {
    const void *value;
    size_t bytes;
};
struct dtx_simt_job *dtx_simt_job_make(dim3 grid, dim3 block, size_t shared_bytes, void (*body)(const void *),
                                       void *arguments, void (*release)(void *), const void *kernel,
                                       const std::vector<dtx_simt_argument> &parameters);
int dtx_simt_submit(void *stream, struct dtx_simt_job *job);

#endif
