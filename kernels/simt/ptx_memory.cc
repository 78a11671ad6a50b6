/* Loads, stores, conversions of addresses, copies to shared memory. */
#include <type_traits>

#include "kernels/base/mutant.h"
#include "kernels/simt/ptx.h"

unsigned char *ptx_shared(const ptx_thread &t, const ptx_ins &i, uint32_t address, size_t bytes, size_t alignment)
{
    machine *m = machine_now();
    const uint32_t piece = (address - PTX_STATIC) / PTX_STATIC_STEP, within = (address - PTX_STATIC) % PTX_STATIC_STEP;
    const std::vector<ptx_piece> &statics = t.kernel->statics;
    if (address % alignment)
        ptx_fault(t, i,
                  "shared address " + std::to_string(address) + " is not a multiple of " + std::to_string(alignment));
    if (address < PTX_STATIC) {
        if (address + bytes > m->dynamic_bytes)
            ptx_fault(t, i,
                      "bytes " + std::to_string(address) + " to " + std::to_string(address + bytes) + " of " +
                          std::to_string(m->dynamic_bytes) + " of the launch's shared memory");
        return m->dynamic + address;
    }
    if (piece >= statics.size())
        ptx_fault(t, i, "shared address " + std::to_string((int32_t)address));
    if (within + bytes > statics[piece].bytes)
        ptx_fault(t, i,
                  "bytes " + std::to_string(within) + " to " + std::to_string(within + bytes) + " of " +
                      statics[piece].name + "[" + std::to_string(statics[piece].bytes) + "]");
    return t.statics[piece] + within;
}

/* Memory that any thread may reach by its host's address: device memory, shared memory, the kernel's parameters. The
 * piece found last for an instruction of the launch is tried first. */
static unsigned char *generic(const ptx_thread &t, const ptx_ins &i, uint64_t address, size_t bytes)
{
    memory_piece *last = &machine_now()->pieces[(size_t)i.line % PIECES];
    unsigned char *p = (unsigned char *)address;
    if (address % bytes)
        ptx_fault(t, i, "address is not a multiple of " + std::to_string(bytes));
    if (address >= last->begin && address + bytes <= last->end)
        return p;
    if (p >= t.parameters && p + bytes <= t.parameters + t.kernel->parameter_bytes && i.is_load)
        return p;
    if (p >= t.local && p + bytes <= t.local + t.kernel->local_bytes)
        return p;
    if (!memory_find(p, bytes, last) && !DTX_MUTANT(ptx_bounds_unchecked))
        ptx_fault(t, i, std::to_string(bytes) + " bytes outside shared and device memory");
    return p;
}

/* The host's address of what a load or store names; register `reg` holds its address. */
template <ptx_space SPACE> static unsigned char *place(const ptx_thread &t, const ptx_ins &i, int reg, size_t bytes)
{
    const uint64_t address = t.get<uint64_t>(reg) + (uint64_t)i.offset;
    if (SPACE == PTX_SHARED)
        return ptx_shared(t, i, (uint32_t)address, bytes, bytes);
    if (SPACE == PTX_GENERIC || SPACE == PTX_GLOBAL)
        return generic(t, i, address, bytes);
    if (address % bytes || address + bytes > (SPACE == PTX_LOCAL ? t.kernel->local_bytes : t.kernel->parameter_bytes))
        ptx_fault(t, i, "byte " + std::to_string((int64_t)address) + " of local memory or parameters");
    return (SPACE == PTX_LOCAL ? t.local : (unsigned char *)t.parameters) + address;
}

/* Registers of a signed type are filled with the sign. */
template <class T> static uint64_t register_of(T value)
{
    return std::is_signed<T>::value ? (uint64_t)(int64_t)value : (uint64_t)value;
}
template <class T, ptx_space SPACE> static void load(ptx_thread &t, const ptx_ins &i)
{
    const unsigned char *from = place<SPACE>(t, i, i.r[i.n], sizeof(T) * i.n);
    for (size_t n = 0; n < i.n; n++) {
        T value;
        memcpy(&value, from + n * sizeof value, sizeof value);
        t.r[i.r[n]] = register_of(value);
    }
}
template <class T, ptx_space SPACE> static void store(ptx_thread &t, const ptx_ins &i)
{
    unsigned char *to = place<SPACE>(t, i, i.r[0], sizeof(T) * i.n);
    for (size_t n = 0; n < i.n; n++)
        memcpy(to + n * sizeof(T), &t.r[i.r[1 + n]], sizeof(T));
}

static void shared_to_generic(ptx_thread &t, const ptx_ins &i)
{
    t.put(i.r[0], (uint64_t)(uintptr_t)ptx_shared(t, i, t.get<uint32_t>(i.r[1]), 0, 1));
}
static void local_to_generic(ptx_thread &t, const ptx_ins &i)
{
    t.put(i.r[0], (uint64_t)(uintptr_t)t.local + t.get<uint64_t>(i.r[1]));
}
static void generic_to_local(ptx_thread &t, const ptx_ins &i)
{
    t.put(i.r[0], t.get<uint64_t>(i.r[1]) - (uint64_t)(uintptr_t)t.local);
}
static void parameter_to_generic(ptx_thread &t, const ptx_ins &i)
{
    t.put(i.r[0], (uint64_t)(uintptr_t)t.parameters + t.get<uint64_t>(i.r[1]));
}

/* to, from, 16, and how many bytes to read: 0 writes zeros. */
static void copy(ptx_thread &t, const ptx_ins &i)
{
    const uint32_t bytes = t.get<uint32_t>(i.r[2]), read = i.operands > 3 ? t.get<uint32_t>(i.r[3]) : bytes;
    if (read != 0 && read != bytes)
        ptx_fault(t, i, "a copy that reads " + std::to_string(read) + " bytes is not known here");
    if (i.offset)
        ptx_fault(t, i, "a copy with an offset is not known here");
    unsigned char *to = ptx_shared(t, i, t.get<uint32_t>(i.r[0]), bytes, bytes);
    dtx_simt_copy(to, read ? (const void *)t.get<uint64_t>(i.r[1]) : nullptr, bytes, ptx_site(t, i));
}
static void copy_commit(ptx_thread &, const ptx_ins &)
{
    dtx_simt_copy_commit();
}
static void copy_wait(ptx_thread &t, const ptx_ins &i)
{
    dtx_simt_copy_wait((int)t.get<uint32_t>(i.r[0]));
}

template <class T> static ptx_step *access_of(ptx_space space, bool is_load)
{
    switch (space) {
    case PTX_GENERIC:
        return is_load ? load<T, PTX_GENERIC> : store<T, PTX_GENERIC>;
    case PTX_GLOBAL:
        return is_load ? load<T, PTX_GLOBAL> : store<T, PTX_GLOBAL>;
    case PTX_SHARED:
        return is_load ? load<T, PTX_SHARED> : store<T, PTX_SHARED>;
    case PTX_LOCAL:
        return is_load ? load<T, PTX_LOCAL> : store<T, PTX_LOCAL>;
    case PTX_PARAM:
        return is_load ? load<T, PTX_PARAM> : nullptr;
    }
    return nullptr;
}

/* "ld.global.v4.f32": the space and the number of elements in *i. */
static ptx_step *access(const std::string &op, ptx_ins *i)
{
    static const char *const spaces[] = {"", ".global", ".shared", ".local", ".param"};
    static const struct {
        const char *type;
        ptx_step *(*choose)(ptx_space space, bool is_load);
    } types[] = {{".b8", access_of<uint8_t>},   {".u8", access_of<uint8_t>},   {".s8", access_of<int8_t>},
                 {".b16", access_of<uint16_t>}, {".u16", access_of<uint16_t>}, {".s16", access_of<int16_t>},
                 {".b32", access_of<uint32_t>}, {".u32", access_of<uint32_t>}, {".s32", access_of<int32_t>},
                 {".f32", access_of<uint32_t>}, {".b64", access_of<uint64_t>}, {".u64", access_of<uint64_t>},
                 {".s64", access_of<int64_t>},  {".f64", access_of<uint64_t>}};
    std::string rest = op.substr(2);
    ptx_space space = PTX_GENERIC;
    i->is_load = op[0] == 'l';
    i->n = 1;
    for (int s = PTX_GLOBAL; s <= PTX_PARAM; s++)
        if (rest.compare(0, strlen(spaces[s]), spaces[s]) == 0) {
            space = (ptx_space)s;
            rest = rest.substr(strlen(spaces[s]));
        }
    if (rest.compare(0, 3, ".v2") == 0 || rest.compare(0, 3, ".v4") == 0) {
        i->n = (uint8_t)(rest[2] - '0');
        rest = rest.substr(3);
    }
    for (const auto &type : types)
        if (rest == type.type)
            return type.choose(space, i->is_load);
    return nullptr;
}

ptx_step *ptx_find_memory(const std::string &op, ptx_ins *ins)
{
    static const std::unordered_map<std::string, ptx_step *> rows = {
        {"cvta.shared.u64", shared_to_generic},  {"cvta.local.u64", local_to_generic},
        {"cvta.to.local.u64", generic_to_local}, {"cvta.param.u64", parameter_to_generic},
        {"cp.async.cg.shared.global", copy},     {"cp.async.commit_group", copy_commit},
        {"cp.async.wait_group", copy_wait},
    };
    if (op.compare(0, 3, "ld.") == 0 || op.compare(0, 3, "st.") == 0)
        return access(op, ins);
    auto found = rows.find(op);
    return found == rows.end() ? nullptr : found->second;
}
