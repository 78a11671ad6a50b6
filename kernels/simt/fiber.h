/*
 * Fibers: one stack per emulated thread, switched by hand on one thread of the operating system. Not thread-safe; a
 * fiber never moves to another thread. Address sanitizer is told of every switch.
 */
#ifndef DTX_KERNELS_SIMT_FIBER_H
#define DTX_KERNELS_SIMT_FIBER_H

#include <cstddef>

struct dtx_fiber {
    void *sp; /* saved stack pointer (or ucontext_t) while it does not run */
    unsigned char *stack;
    size_t stack_bytes;
    void *shadow;  /* the sanitizer's own */
    bool returned; /* set by the owner when the last entry's work was done: only its last frames are left */
};

/* Makes the next switch to `fiber` call `entry`, which must never return. The stack may be one that was left in the
 * middle of something. */
void dtx_fiber_prepare(struct dtx_fiber *fiber, void (*entry)());
/* Leaves `from`, continues `to`. `dying`: nobody will come back to `from`. */
void dtx_fiber_switch(struct dtx_fiber *from, struct dtx_fiber *to, bool dying);
/* First thing in an entry function; `caller` is the fiber that the thread itself is. */
void dtx_fiber_entered(struct dtx_fiber *self, struct dtx_fiber *caller);

#endif
