/* Kernels of the build's object files, found by the address of what the host's compiler made of them; their launches.
 */
#include <dirent.h>
#include <elf.h>
#include <link.h>

#include <fstream>
#include <iterator>
#include <mutex>

#include "kernels/simt/ptx.h"

enum { ALIGNMENT = 128 }; /* of parameters */

struct dtx_ptx {
    ptx_kernels kernels;
    std::map<uintptr_t, const ptx_kernel *> by_address;
};

static bool file_read(const std::string &path, std::string *out)
{
    std::ifstream file(path, std::ios::binary);
    out->assign(std::istreambuf_iterator<char>(file), {});
    return file.good() || file.eof();
}

/* The PTX texts for the target in an object file: nvcc keeps them as they are, each ended by a zero. */
static bool object_parse(const std::string &folder, const std::string &name, const std::string &target,
                         ptx_kernels *kernels, std::string *why)
{
    std::string bytes;
    if (!file_read(folder + "/" + name, &bytes)) {
        *why = folder + "/" + name + " cannot be read";
        return false;
    }
    const std::string begin = ".version ";
    for (size_t at = bytes.find(begin); at != std::string::npos; at = bytes.find(begin, at + 1)) {
        const char *text = bytes.c_str() + at, *line = strstr(text, ".target ");
        if (line && line < text + 64 && strncmp(line + 8, (target + "\n").c_str(), target.size() + 1) == 0 &&
            !ptx_parse(text, name.c_str(), kernels, why))
            return false;
    }
    return true;
}

/* nvcc's name of what g++ calls `name`: not marked as local, with the runtime's type of a tile map. */
static std::string device_name(std::string name)
{
    const std::string here = "12dtx_tile_map", there = "14CUtensorMap_st";
    if (name.compare(0, 3, "_ZL") == 0)
        name.erase(2, 1);
    size_t at = name.find(here);
    return at == std::string::npos ? name : name.replace(at, here.size(), there);
}

/* The addresses of the program's own functions that have a kernel's name. */
static bool program_match(dtx_ptx *ptx, std::string *why)
{
    std::string bytes;
    uintptr_t base = 0;
    dl_iterate_phdr([](struct dl_phdr_info *info, size_t, void *out) { return *(uintptr_t *)out = info->dlpi_addr, 1; },
                    &base);
    if (!file_read("/proc/self/exe", &bytes) || bytes.size() < sizeof(Elf64_Ehdr)) {
        *why = "/proc/self/exe cannot be read";
        return false;
    }
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)bytes.data();
    const Elf64_Shdr *sections = (const Elf64_Shdr *)(bytes.data() + header->e_shoff);
    for (int s = 0; s < header->e_shnum; s++) {
        if (sections[s].sh_type != SHT_SYMTAB)
            continue;
        const char *names = bytes.data() + sections[sections[s].sh_link].sh_offset;
        const Elf64_Sym *symbols = (const Elf64_Sym *)(bytes.data() + sections[s].sh_offset);
        for (size_t i = 0; i < sections[s].sh_size / sizeof *symbols; i++) {
            auto found = ELF64_ST_TYPE(symbols[i].st_info) == STT_FUNC
                             ? ptx->kernels.find(device_name(names + symbols[i].st_name))
                             : ptx->kernels.end();
            if (found != ptx->kernels.end())
                ptx->by_address[base + symbols[i].st_value] = &found->second;
        }
    }
    if (ptx->by_address.empty())
        *why = "the program has no symbol of a kernel (is it stripped?)";
    return !ptx->by_address.empty();
}

/* What was loaded, for all threads of the process. */
struct loaded_list {
    std::mutex lock;
    std::map<std::pair<std::string, int>, std::unique_ptr<dtx_ptx>> programs;
};

const struct dtx_ptx *dtx_ptx_load(const char *folder, int architecture, char *why, size_t size)
{
    static loaded_list loaded;
    std::lock_guard<std::mutex> hold(loaded.lock);
    std::unique_ptr<dtx_ptx> &kept = loaded.programs[{folder, architecture}];
    if (kept)
        return kept.get();
    std::unique_ptr<dtx_ptx> ptx(new dtx_ptx());
    std::string fault;
    DIR *list = opendir(folder);
    bool right = list != nullptr;
    if (!right)
        fault = std::string(folder) + " cannot be read";
    for (struct dirent *e; right && (e = readdir(list));) {
        std::string name = e->d_name;
        if (name.size() > 2 && name.compare(name.size() - 2, 2, ".o") == 0)
            right = object_parse(folder, name, architecture == 90 ? "sm_90a" : "sm_80", &ptx->kernels, &fault);
    }
    if (list)
        closedir(list);
    if (right && ptx->kernels.empty()) {
        fault = std::string("no PTX for this architecture in ") + folder;
        right = false;
    }
    if (right && program_match(ptx.get(), &fault)) {
        kept = std::move(ptx);
        return kept.get();
    }
    snprintf(why, size, "%s", fault.c_str());
    return nullptr;
}

struct dtx_site ptx_site(const ptx_thread &t, const ptx_ins &i)
{
    return {t.kernel->sources[(size_t)i.source].c_str(), i.line};
}

void ptx_fault(const ptx_thread &t, const ptx_ins &i, const std::string &text)
{
    dtx_simt_fault(ptx_site(t, i), "%s in %s", text.c_str(), t.kernel->name.c_str());
}

/* Copies the arguments to where the kernel looks for them. The sizes show whether nvcc and g++ lay structs out alike.
 */
std::string ptx_begin(machine *m, const dtx_simt_job *job)
{
    auto found = m->settings.ptx->by_address.find((uintptr_t)job->kernel);
    if (found == m->settings.ptx->by_address.end())
        return "there is no PTX of this kernel";
    const ptx_kernel *k = found->second;
    if (k->parameters.size() != job->parameters.size())
        return "the PTX of " + k->name + " has " + std::to_string(k->parameters.size()) + " parameters";
    ptx_launch *launch =
        new ptx_launch{k, std::vector<unsigned char>(k->parameter_bytes + ALIGNMENT, 0xff), nullptr, {}};
    m->ptx.reset(launch);
    launch->parameters = launch->memory.data() + (ALIGNMENT - (uintptr_t)launch->memory.data() % ALIGNMENT);
    for (size_t p = 0; p < k->parameters.size(); p++) {
        if (k->parameters[p].bytes != job->parameters[p].bytes)
            return k->parameters[p].name + " has " + std::to_string(k->parameters[p].bytes) + " bytes in PTX and " +
                   std::to_string(job->parameters[p].bytes) + " here";
        memcpy(launch->parameters + k->parameters[p].offset, job->parameters[p].value, k->parameters[p].bytes);
    }
    for (const ptx_piece &s : k->statics)
        launch->statics.push_back((unsigned char *)dtx_simt_shared(&s, s.bytes));
    for (memory_piece &p : m->pieces)
        p = {0, 0};
    return "";
}

static uint64_t special(const machine *m, const thread_state *t, int which)
{
    const dim3 *vectors[] = {&t->index, &m->index, &m->block, &m->grid};
    if (which == 12)
        return (uint64_t)t->number % 32;
    const dim3 *v = vectors[which / 3];
    return which % 3 == 0 ? v->x : which % 3 == 1 ? v->y : v->z;
}

void ptx_run(machine *m, thread_state *state)
{
    const ptx_launch *launch = m->ptx.get();
    const ptx_kernel *k = launch->kernel;
    state->registers = k->registers;
    state->local.assign(k->local_bytes + 16, 0xff);
    state->sums.clear();
    for (const auto &s : k->specials)
        state->registers[(size_t)s.first] = special(m, state, s.second);
    unsigned char *local = state->local.data();
    ptx_thread t = {state->registers.data(), k, state, launch->parameters, local + (16 - (uintptr_t)local % 16) % 16,
                    launch->statics.data(),  0};
    const ptx_ins *code = k->code.data();
    while (t.next >= 0) {
        const ptx_ins &i = code[t.next++];
        if (i.guard < 0 || (t.r[i.guard] & 1) != i.unless)
            i.step(t, i);
    }
}
