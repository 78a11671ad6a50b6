/* Device and shared memory with guard zones. */
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "kernels/base/mutant.h"
#include "kernels/simt/machine.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(p, bytes)   ((void)(p), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(p, bytes) ((void)(p), (void)(bytes))
#endif

enum {
    GUARD = 256,
    BEFORE = 1024,
    PATTERN = 0xFB
}; /* BEFORE keeps the alignment of what follows; GUARD of it counts */

/* Allocations of the process by address; any thread may free them. */
struct allocation_list {
    std::mutex lock;
    std::map<uintptr_t, size_t> size;
};
static allocation_list &allocations()
{
    static allocation_list list;
    return list;
}

/* [guard][bytes, rounded up][guard], 1024-byte aligned; the guard behind begins at the last byte. */
static unsigned char *guarded(size_t bytes)
{
    size_t room = (bytes + GUARD - 1) / GUARD * GUARD;
    unsigned char *p = (unsigned char *)aligned_alloc(1024, (BEFORE + room + GUARD + 1023) / 1024 * 1024);
    if (!p)
        abort();
    memset(p, PATTERN, BEFORE + room + GUARD);
    memory_poison(p + BEFORE, bytes);
    ASAN_POISON_MEMORY_REGION(p, BEFORE);
    ASAN_POISON_MEMORY_REGION(p + BEFORE + bytes, room - bytes + GUARD);
    return p + BEFORE;
}

static void guarded_free(unsigned char *p, size_t bytes)
{
    size_t room = (bytes + GUARD - 1) / GUARD * GUARD;
    ASAN_UNPOISON_MEMORY_REGION(p - BEFORE, BEFORE + room + GUARD);
    free(p - BEFORE);
}

/* The offset of a byte of the guards that was written, relative to p; 0 when none was. */
static ptrdiff_t guard_damage(unsigned char *p, size_t bytes)
{
    size_t room = (bytes + GUARD - 1) / GUARD * GUARD;
    ptrdiff_t at = 0;
    ASAN_UNPOISON_MEMORY_REGION(p - GUARD, GUARD);
    ASAN_UNPOISON_MEMORY_REGION(p + bytes, room - bytes + GUARD);
    for (ptrdiff_t i = 1; i <= GUARD && !at; i++)
        if (p[-i] != PATTERN)
            at = -i;
    for (size_t i = bytes; i < room + GUARD && !at; i++)
        if (p[i] != PATTERN)
            at = (ptrdiff_t)i;
    ASAN_POISON_MEMORY_REGION(p - GUARD, GUARD);
    ASAN_POISON_MEMORY_REGION(p + bytes, room - bytes + GUARD);
    return at;
}

void memory_poison(void *p, size_t bytes)
{
    memset(p, 0xFF, bytes); /* NaN in every type */
}

void *dtx_simt_alloc(size_t bytes)
{
    unsigned char *p = guarded(bytes);
    std::lock_guard<std::mutex> hold(allocations().lock);
    allocations().size[(uintptr_t)p] = bytes;
    return p;
}

void dtx_simt_free(void *p)
{
    if (!p)
        return;
    std::lock_guard<std::mutex> hold(allocations().lock);
    auto found = allocations().size.find((uintptr_t)p);
    if (found == allocations().size.end())
        abort();
    guarded_free((unsigned char *)p, found->second);
    allocations().size.erase(found);
}

/* [guard][room for all pieces and as much again]; a piece's second half, as long as what it takes, stays guard. */
static size_t arena_room(size_t bytes)
{
    return (GUARD + 2 * bytes + 1023) / 1024 * 1024;
}

void *dtx_simt_arena(size_t bytes)
{
    void *p = aligned_alloc(1024, arena_room(bytes));
    if (!p)
        abort();
    memset(p, PATTERN, arena_room(bytes));
    ASAN_POISON_MEMORY_REGION(p, arena_room(bytes));
    return p;
}

void dtx_simt_arena_free(void *arena, size_t bytes)
{
    ASAN_UNPOISON_MEMORY_REGION(arena, arena_room(bytes));
    free(arena);
}

void *dtx_simt_cut(void *arena, size_t offset, size_t bytes)
{
    unsigned char *p = (unsigned char *)arena + GUARD + (DTX_MUTANT(simt_pieces_touch) ? 1 : 2) * offset;
    ASAN_UNPOISON_MEMORY_REGION(p, bytes);
    memory_poison(p, bytes);
    std::lock_guard<std::mutex> hold(allocations().lock);
    allocations().size[(uintptr_t)p] = bytes;
    return p;
}

void dtx_simt_join(void *piece)
{
    std::lock_guard<std::mutex> hold(allocations().lock);
    auto found = allocations().size.find((uintptr_t)piece);
    if (found == allocations().size.end())
        abort();
    memset(piece, PATTERN, found->second);
    ASAN_POISON_MEMORY_REGION(piece, found->second);
    allocations().size.erase(found);
}

static bool within(const void *p, size_t bytes, const void *piece, size_t piece_bytes, memory_piece *out)
{
    *out = {(uintptr_t)piece, (uintptr_t)piece + piece_bytes};
    return (uintptr_t)p >= out->begin && (uintptr_t)p + bytes <= out->end;
}

bool memory_find(const void *p, size_t bytes, memory_piece *out)
{
    machine *m = machine_now();
    if (within(p, bytes, m->dynamic, m->dynamic_bytes, out))
        return true;
    for (const auto &piece : m->statics)
        if (within(p, bytes, piece.second, m->static_bytes[piece.first], out))
            return true;
    std::lock_guard<std::mutex> hold(allocations().lock);
    auto next = allocations().size.upper_bound((uintptr_t)p);
    if (next == allocations().size.begin())
        return *out = {0, 0}, false;
    --next;
    return within(p, bytes, (void *)next->first, next->second, out);
}

bool memory_guards_kept()
{
    std::lock_guard<std::mutex> hold(allocations().lock);
    for (const auto &piece : allocations().size)
        if (ptrdiff_t at = guard_damage((unsigned char *)piece.first, piece.second)) {
            report("byte %td of an allocation of %zu bytes was written", at, piece.second);
            return false;
        }
    return true;
}

unsigned char *shared_make(size_t bytes)
{
    return guarded(bytes);
}

void shared_free(unsigned char *p)
{
    if (p)
        free(p - BEFORE);
}

bool shared_guards_kept(const unsigned char *p, size_t bytes)
{
    if (ptrdiff_t at = guard_damage((unsigned char *)p, bytes)) {
        report("byte %td of %zu bytes of shared memory was written", at, bytes);
        return false;
    }
    return true;
}

void dtx_simt_check_access(const void *p, size_t bytes, size_t alignment, const char *what, struct dtx_site site)
{
    if ((uintptr_t)p % alignment)
        dtx_simt_fault(site, "%s at an address that is not a multiple of %zu", what, alignment);
    memory_piece piece;
    if (!memory_find(p, bytes, &piece))
        dtx_simt_fault(site, "%s of %zu bytes outside shared and device memory", what, bytes);
}
