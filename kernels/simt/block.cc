/* Launches, the order of threads, and what they wait for. */
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/base/mutant.h"
#include "kernels/simt/machine.h"
#include "kernels/simt/ptx.h"

machine *machine_now()
{
    static thread_local machine m;
    return &m;
}

machine::~machine()
{
    for (thread_state *t : threads) {
        free(t->fiber.stack);
        delete t;
    }
    for (auto &piece : statics)
        shared_free(piece.second);
}

struct dtx_simt_block *dtx_simt_block_now()
{
    return machine_now();
}

void dtx_simt_set(const struct dtx_simt_settings *settings)
{
    machine_now()->settings = *settings;
}

struct dtx_simt_settings dtx_simt_get(void)
{
    return machine_now()->settings;
}

const char *dtx_simt_fault_text(void)
{
    return machine_now()->report;
}

void dtx_simt_fault_clear(void)
{
    machine_now()->report[0] = 0;
}

static void append(const char *format, va_list list)
{
    machine *m = machine_now();
    size_t used = strlen(m->report);
    vsnprintf(m->report + used, sizeof m->report - used, format, list);
}

void report(const char *format, ...)
{
    va_list list;
    va_start(list, format);
    append(format, list);
    va_end(list);
    machine_now()->failed = true;
}

static thread_state *running()
{
    return static_cast<thread_state *>(machine_now()->thread);
}

/* The launch ends here; the stacks of all threads are left as they are. */
[[noreturn]] static void give_up()
{
    machine *m = machine_now();
    thread_state *self = running();
    m->thread = nullptr;
    dtx_fiber_switch(&self->fiber, &m->outside, true);
    abort();
}

static void report_place(const thread_state *t)
{
    machine *m = machine_now();
    report(" (block %u,%u,%u, thread %d)", m->index.x, m->index.y, m->index.z, t->number);
}

void dtx_simt_fault(struct dtx_site site, const char *format, ...)
{
    report("%s:%d: ", site.file, site.line);
    va_list list;
    va_start(list, format);
    append(format, list);
    va_end(list);
    report_place(running());
    give_up();
}

static uint64_t random_next(machine *m)
{
    m->random ^= m->random << 13; /* xorshift64 */
    m->random ^= m->random >> 7;
    m->random ^= m->random << 17;
    return m->random;
}

static thread_state *pick(machine *m)
{
    size_t n = m->ready.size();
    if (n == 0)
        return nullptr;
    size_t at = m->settings.order == DTX_SIMT_FIFO   ? 0
                : m->settings.order == DTX_SIMT_LIFO ? n - 1
                                                     : random_next(m) % n;
    thread_state *t = m->ready[at];
    if (m->settings.order == DTX_SIMT_RANDOM) {
        m->ready[at] = m->ready[n - 1];
        m->ready.pop_back();
    } else {
        m->ready.erase(m->ready.begin() + (ptrdiff_t)at);
    }
    return t;
}

/* Nobody can run: who waits where. Threads of one place are told once. */
[[noreturn]] static void report_deadlock()
{
    machine *m = machine_now();
    report("block %u,%u,%u hangs:", m->index.x, m->index.y, m->index.z);
    for (int i = 0; i < m->n; i++) {
        thread_state *t = m->threads[i];
        int same = 0;
        bool told = false;
        for (int j = 0; j < m->n; j++) {
            thread_state *o = m->threads[j];
            if (o->done || o->waits_in != t->waits_in || o->waits_at.line != t->waits_at.line)
                continue;
            same++;
            told = told || j < i;
        }
        if (!t->done && !told)
            report("\n  %d thread(s), the first is %d, wait in %s at %s:%d", same, t->number, t->waits_in,
                   t->waits_at.file, t->waits_at.line);
    }
    give_up();
}

static void run_next(bool dying)
{
    machine *m = machine_now();
    thread_state *self = running(), *next = pick(m);
    while (!next && m->live > 0 && tile_land_one())
        next = pick(m);
    if (!next && m->live == 0) {
        m->thread = nullptr;
        dtx_fiber_switch(&self->fiber, &m->outside, true);
    }
    if (!next)
        report_deadlock();
    if (next == self)
        return;
    m->thread = next;
    dtx_fiber_switch(&self->fiber, &next->fiber, dying);
}

void thread_wait(const char *what, struct dtx_site site)
{
    thread_state *self = running();
    self->waits_in = what;
    self->waits_at = site;
    run_next(false);
}

void threads_wake(thread_list *list)
{
    machine *m = machine_now();
    m->ready.insert(m->ready.end(), list->begin(), list->end());
    list->clear();
}

static void barrier_open(barrier *b)
{
    b->arrived = 0;
    threads_wake(&b->waiting);
}

void dtx_simt_barrier(int id, int threads, const char *what, struct dtx_site site)
{
    machine *m = machine_now();
    barrier *b = &m->barriers[id];
    if (b->arrived == 0) {
        b->site = site;
        b->expected = threads;
    } else if (threads != b->expected) {
        dtx_simt_fault(site, "%s of %d threads meets one of %d at %s:%d", what, threads, b->expected, b->site.file,
                       b->site.line);
    } else if (id == 0 && !DTX_MUTANT(simt_barrier_anywhere) &&
               (site.line != b->site.line || strcmp(site.file, b->site.file) != 0)) {
        dtx_simt_fault(site, "%s while others wait in the one at %s:%d", what, b->site.file, b->site.line);
    }
    b->arrived++;
    if (b->arrived >= (threads ? threads : m->live)) {
        barrier_open(b);
        return;
    }
    b->waiting.push_back(running());
    thread_wait(what, site);
}

/* A finished thread no longer counts at the block's barrier. */
static void thread_end()
{
    machine *m = machine_now();
    thread_state *self = running();
    if (!self->copies.empty())
        dtx_simt_fault({"kernel", 0}, "the thread ends with asynchronous copies under way");
    if (products_under_way(self))
        dtx_simt_fault({"kernel", 0}, "the thread ends with products under way");
    self->done = true;
    self->fiber.returned = true;
    m->live--;
    barrier *b = &m->barriers[0];
    if (b->arrived > 0 && b->expected == 0 && b->arrived >= m->live)
        barrier_open(b);
    run_next(true);
    abort();
}

static void thread_begin()
{
    machine *m = machine_now();
    dtx_fiber_entered(&running()->fiber, &m->outside);
    if (m->ptx)
        ptx_run(m, running());
    else
        m->job->body(m->job->arguments);
    thread_end();
}

void dtx_simt_meet(uint32_t mask, const char *what, struct dtx_site site, const void *in, void *out,
                   dtx_simt_combine *combine, const void *argument)
{
    machine *m = machine_now();
    thread_state *self = running();
    int warp = self->number / 32, lane = self->number % 32;
    if (!(mask >> lane & 1))
        dtx_simt_fault(site, "%s: lane %d is not in its own mask %08x", what, lane, mask);
    std::vector<meeting> &list = m->meetings[(size_t)warp];
    size_t i = 0;
    while (i < list.size() && list[i].mask != mask)
        i++;
    if (i == list.size()) {
        list.emplace_back();
        list[i].mask = mask;
    }
    meeting *g = &list[i];
    if (g->arrived == 0) {
        g->what = what;
        g->site = site;
        memset(g->in, 0, sizeof g->in);
        memset(g->out, 0, sizeof g->out);
    } else if (strcmp(g->what, what) != 0 || g->site.line != site.line) {
        dtx_simt_fault(site, "lane %d is in %s while others of its warp are in %s at %s:%d", lane, what, g->what,
                       g->site.file, g->site.line);
    }
    g->in[lane] = in;
    g->out[lane] = out;
    g->arrived |= 1u << lane;
    if (g->arrived != mask) {
        g->waiting.push_back(self);
        thread_wait(what, site);
        return;
    }
    combine(g->in, g->out, argument);
    g->arrived = 0;
    threads_wake(&g->waiting);
}

void *dtx_simt_shared(const void *key, size_t bytes)
{
    machine *m = machine_now();
    unsigned char *&p = m->statics[key];
    if (!p) {
        p = shared_make(bytes);
        m->static_bytes[key] = bytes;
    }
    return p;
}

static void prepare_threads(machine *m)
{
    while ((int)m->threads.size() < m->n) {
        thread_state *t = new thread_state();
        t->fiber.stack_bytes = STACK_BYTES;
        t->fiber.stack = (unsigned char *)aligned_alloc(4096, STACK_BYTES);
        m->threads.push_back(t);
    }
    m->ready.clear();
    for (int i = 0; i < m->n; i++) {
        thread_state *t = m->threads[(size_t)i];
        t->number = i;
        t->index = dim3((unsigned)i % m->block.x, (unsigned)i / m->block.x % m->block.y,
                        (unsigned)i / (m->block.x * m->block.y));
        t->done = false;
        t->waits_in = "nothing";
        t->copies.clear();
        t->groups = 0;
        dtx_fiber_prepare(&t->fiber, thread_begin);
        m->ready.push_back(t);
    }
}

static void run_block(machine *m)
{
    m->live = m->n;
    m->meetings.assign((size_t)(m->n + 31) / 32, {});
    for (barrier &b : m->barriers)
        b = barrier();
    m->arrivals.clear();
    m->tiles.clear();
    m->groups.clear();
    memory_poison(m->dynamic, m->dynamic_bytes);
    for (auto &piece : m->statics)
        if (!DTX_MUTANT(simt_shared_kept))
            memory_poison(piece.second, m->static_bytes[piece.first]);
    prepare_threads(m);
    m->thread = pick(m);
    dtx_fiber_switch(&m->outside, &running()->fiber, false);
    if (!m->failed && !shared_guards_kept(m->dynamic, m->dynamic_bytes))
        report(" by block %u,%u,%u", m->index.x, m->index.y, m->index.z);
    for (auto &piece : m->statics)
        if (!m->failed)
            shared_guards_kept(piece.second, m->static_bytes[piece.first]);
}

struct dtx_simt_job *dtx_simt_job_make(dim3 grid, dim3 block, size_t shared_bytes, void (*body)(const void *),
                                       void *arguments, void (*release)(void *), const void *kernel,
                                       const std::vector<dtx_simt_argument> &parameters)
{
    return new dtx_simt_job{grid, block, shared_bytes, body, arguments, release, kernel, parameters};
}

static const char *refusal(const struct dtx_simt_job *job)
{
    uint64_t threads = (uint64_t)job->block.x * job->block.y * job->block.z;
    if (threads == 0 || threads > 1024)
        return "a block has 1 to 1024 threads";
    if ((uint64_t)job->grid.x * job->grid.y * job->grid.z == 0 || job->grid.y > 65535 || job->grid.z > 65535)
        return "a grid has at least one block, and at most 65535 in y and z";
    return job->shared_bytes > 227 * 1024 ? "a block has at most 227 KiB of shared memory" : nullptr;
}

/* All blocks, or those at the edges, and what they share. */
static void run_blocks(machine *m)
{
    m->dynamic_bytes = m->job->shared_bytes;
    m->dynamic = shared_make(m->dynamic_bytes);
    std::string refused = m->settings.ptx ? ptx_begin(m, m->job) : "";
    if (!refused.empty())
        report("launch refused: %s", refused.c_str());
    const unsigned edge = m->settings.edge_blocks;
    for (unsigned z = 0; z < m->grid.z && !m->failed; z++)
        for (unsigned y = 0; y < m->grid.y && !m->failed; y++)
            for (unsigned x = 0; x < m->grid.x && !m->failed; x++) {
                if (edge && x == edge && m->grid.x > 2 * edge)
                    x = m->grid.x - edge;
                m->index = dim3(x, y, z);
                run_block(m);
            }
    m->ptx.reset();
    shared_free(m->dynamic);
    m->dynamic = nullptr;
    for (auto &piece : m->statics)
        shared_free(piece.second);
    m->statics.clear();
    m->static_bytes.clear();
    if (!m->failed)
        memory_guards_kept();
}

int dtx_simt_run_kept(struct dtx_simt_job *job)
{
    machine *m = machine_now();
    m->job = job;
    m->grid = job->grid;
    m->block = job->block;
    m->n = (int)(job->block.x * job->block.y * job->block.z);
    m->random = m->settings.seed * 0x9E3779B97F4A7C15u | 1;
    m->failed = false;
    dtx_simt_fault_clear();
    if (const char *why = refusal(job))
        report("launch refused: %s", why);
    else
        run_blocks(m);
    return m->failed ? DTX_SIMT_FAULT : 0;
}

void dtx_simt_job_free(struct dtx_simt_job *job)
{
    job->release(job->arguments);
    delete job;
}

int dtx_simt_run(struct dtx_simt_job *job)
{
    int code = dtx_simt_run_kept(job);
    dtx_simt_job_free(job);
    return code;
}

std::vector<const void *> dtx_simt_job_words(const struct dtx_simt_job *job)
{
    std::vector<const void *> words;
    for (const dtx_simt_argument &p : job->parameters)
        for (size_t at = 0; at + sizeof(void *) <= p.bytes; at += sizeof(void *)) {
            const void *word;
            memcpy(&word, (const char *)p.value + at, sizeof word);
            words.push_back(word);
        }
    return words;
}

int dtx_simt_submit(void *stream, struct dtx_simt_job *job)
{
    machine *m = machine_now();
    if (m->settings.defer)
        return m->settings.defer(m->settings.user, stream, job);
    return dtx_simt_run(job);
}
