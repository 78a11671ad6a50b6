/*
 * PTX in the emulator: what nvcc made of a kernel runs in place of what the host's compiler made of it, on the same
 * threads, so that barriers, shuffles, late copies, guard zones and orders of threads apply to nvcc's code too. Every
 * load and store is checked. An instruction, type or form that is not known here is an error with its line.
 *
 * Registers are 64 bits: values of narrower types stand in the low bits, and what is above is not looked at. Constants
 * and special registers (%tid.x) are registers too, filled when a thread begins.
 * Addresses: of device and generic memory, the host's; of dynamic shared memory from 0; of static shared memory from
 * PTX_STATIC, PTX_STATIC_STEP for each variable; of parameters and local memory from 0.
 */
#ifndef DTX_KERNELS_SIMT_PTX_H
#define DTX_KERNELS_SIMT_PTX_H

#include <cstring>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "kernels/simt/machine.h"

enum ptx_space : uint8_t { PTX_GENERIC, PTX_GLOBAL, PTX_SHARED, PTX_LOCAL, PTX_PARAM };
enum { PTX_STATIC = 1 << 18, PTX_STATIC_STEP = 1 << 16 };

struct ptx_thread;
struct ptx_ins;
typedef void ptx_step(ptx_thread &t, const ptx_ins &i);

struct ptx_ins {
    ptx_step *step;
    const int *r;   /* registers of all operands in their order; vectors element by element */
    int64_t offset; /* of the address among them; of a branch: where it goes */
    int guard;      /* the predicate under which it runs, −1: always */
    bool unless;    /* … when that is false */
    bool is_load;
    uint8_t n; /* elements of a load or store; columns of a product, in eights */
    int operands, line, source;
};

struct ptx_piece {
    std::string name;
    size_t offset, bytes;
};

struct ptx_kernel {
    std::string name;
    std::vector<ptx_ins> code;
    std::vector<ptx_piece> parameters, statics;
    size_t parameter_bytes = 0, local_bytes = 0;
    std::vector<uint64_t> registers;           /* at the start: constants, and NaN */
    std::vector<std::pair<int, int>> specials; /* register, and which of the list in ptx_parse.cc */
    std::vector<int> operands;                 /* what ptx_ins.r points to */
    std::vector<std::string> sources;          /* file:line of the CUDA source */
};

/* One thread of the emulated block, in a kernel. */
struct ptx_thread {
    uint64_t *r;
    const ptx_kernel *kernel;
    thread_state *state;
    const unsigned char *parameters;
    unsigned char *local;
    unsigned char *const *statics;
    int next; /* instruction; −1: the thread has ended */

    template <class T> T get(int reg) const
    {
        T value;
        memcpy(&value, r + reg, sizeof value);
        return value;
    }
    template <class T> void put(int reg, T value)
    {
        uint64_t bits = 0;
        memcpy(&bits, &value, sizeof value);
        r[reg] = bits;
    }
};

/* A launch under way. */
struct ptx_launch {
    const ptx_kernel *kernel;
    std::vector<unsigned char> memory; /* parameters, in it */
    unsigned char *parameters;
    std::vector<unsigned char *> statics;
};
/* "" or why the job cannot run as PTX. */
std::string ptx_begin(machine *m, const dtx_simt_job *job);
/* All of a thread. */
void ptx_run(machine *m, thread_state *state);

typedef std::map<std::string, ptx_kernel> ptx_kernels;

/* Adds the kernels of a PTX text. false: `why` names the line and what is wrong. */
bool ptx_parse(const char *text, const char *name, ptx_kernels *kernels, std::string *why);
/* What executes `op` (as add.s32; "mov.b32 {}" packs, "{} mov.b32" unpacks), with the fields of *ins set that the name
 * alone decides; NULL: nothing. */
ptx_step *ptx_find_arithmetic(const std::string &op);
ptx_step *ptx_find_memory(const std::string &op, ptx_ins *ins);
ptx_step *ptx_find_warp(const std::string &op, ptx_ins *ins);

void ptx_branch(ptx_thread &t, const ptx_ins &i);
[[noreturn]] void ptx_fault(const ptx_thread &t, const ptx_ins &i, const std::string &text);
struct dtx_site ptx_site(const ptx_thread &t, const ptx_ins &i);
/* The host's address of shared memory, checked. */
unsigned char *ptx_shared(const ptx_thread &t, const ptx_ins &i, uint32_t address, size_t bytes, size_t alignment);

#endif
