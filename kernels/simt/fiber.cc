#include "kernels/simt/fiber.h"

#include <cstdint>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

/* x86-64: six registers that a callee must keep, on the old stack; elsewhere ucontext, which is slower. */
#if defined(__x86_64__) && !defined(DTX_FIBER_UCONTEXT)
extern "C" void dtx_fiber_swap(void **save, void *load);
asm(".text\n"
    ".globl dtx_fiber_swap\n"
    ".type dtx_fiber_swap,@function\n"
    "dtx_fiber_swap:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp,(%rdi)\n"
    "  movq %rsi,%rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  ret\n"
    ".size dtx_fiber_swap,.-dtx_fiber_swap\n");

static void prepare(struct dtx_fiber *fiber, void (*entry)())
{
    void **top = (void **)(fiber->stack + fiber->stack_bytes - 64);
    *--top = nullptr; /* the return address of entry: aligns its frame */
    *--top = (void *)entry;
    for (int i = 0; i < 6; i++)
        *--top = nullptr;
    fiber->sp = top;
}

static void swap(struct dtx_fiber *from, struct dtx_fiber *to)
{
    dtx_fiber_swap(&from->sp, to->sp);
}
#else
#include <ucontext.h>

static ucontext_t *context(struct dtx_fiber *fiber)
{
    if (!fiber->sp)
        fiber->sp = new ucontext_t();
    return (ucontext_t *)fiber->sp;
}

static void prepare(struct dtx_fiber *fiber, void (*entry)())
{
    ucontext_t *c = context(fiber);
    getcontext(c);
    c->uc_stack.ss_sp = fiber->stack;
    c->uc_stack.ss_size = fiber->stack_bytes;
    c->uc_link = nullptr;
    makecontext(c, entry, 0);
}

static void swap(struct dtx_fiber *from, struct dtx_fiber *to)
{
    swapcontext(context(from), context(to));
}
#endif

void dtx_fiber_prepare(struct dtx_fiber *fiber, void (*entry)())
{
#if defined(__SANITIZE_ADDRESS__)
    /* Frames that never returned. */
    size_t bytes = fiber->returned ? 16 * 1024 : fiber->stack_bytes;
    ASAN_UNPOISON_MEMORY_REGION(fiber->stack + fiber->stack_bytes - bytes, bytes);
#endif
    fiber->returned = false;
    fiber->shadow = nullptr;
    prepare(fiber, entry);
}

void dtx_fiber_switch(struct dtx_fiber *from, struct dtx_fiber *to, bool dying)
{
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_start_switch_fiber(dying ? nullptr : &from->shadow, to->stack, to->stack_bytes);
#else
    (void)dying;
#endif
    swap(from, to);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(from->shadow, nullptr, nullptr);
#endif
}

void dtx_fiber_entered(struct dtx_fiber *self, struct dtx_fiber *caller)
{
#if defined(__SANITIZE_ADDRESS__)
    const void *bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(nullptr, &bottom, &bytes);
    if (!caller->stack) {
        caller->stack = (unsigned char *)bottom;
        caller->stack_bytes = bytes;
    }
#else
    (void)caller;
#endif
    (void)self;
}
