/*
 * sm_90a in the emulator. Tile loads land as late as is legal (in LIFO order: at once); products happen when a wait
 * covers them: until then the sums are NaN, and operands in shared memory and registers must stay. The registers of a
 * product need a fence between the last wait and it.
 */
#include "kernels/device/hopper.h"

#include <algorithm>
#include <iterator>

#include "kernels/base/mutant.h"
#include "kernels/simt/machine.h"

static thread_state *running()
{
    return static_cast<thread_state *>(machine_now()->thread);
}

/* What stands in the eight bytes of a barrier. */
struct arrival_state {
    uint16_t count, pending;
    int32_t phase_and_bytes; /* bit 0: parity of the phase that runs; above: bytes still to come */
};

void dtx_simt_arrival_init(uint64_t *barrier, int count)
{
    arrival_state s = {(uint16_t)count, (uint16_t)count, 0};
    memcpy(barrier, &s, sizeof s);
}

static void arrival_check(uint64_t *barrier)
{
    arrival_state s;
    memcpy(&s, barrier, sizeof s);
    if (s.pending || s.phase_and_bytes >> 1)
        return;
    s.pending = s.count;
    s.phase_and_bytes ^= 1;
    memcpy(barrier, &s, sizeof s);
    threads_wake(&machine_now()->arrivals[barrier]);
}

static void arrival_bytes(uint64_t *barrier, int bytes)
{
    arrival_state s;
    memcpy(&s, barrier, sizeof s);
    s.phase_and_bytes += bytes * 2;
    memcpy(barrier, &s, sizeof s);
}

void dtx_simt_arrive(uint64_t *barrier, int bytes_expected, struct dtx_site site)
{
    arrival_bytes(barrier, bytes_expected);
    arrival_state s;
    memcpy(&s, barrier, sizeof s);
    if (s.pending == 0 || s.pending > s.count)
        dtx_simt_fault(site, "arrival at a barrier that expects none");
    s.pending--;
    memcpy(barrier, &s, sizeof s);
    arrival_check(barrier);
}

void dtx_simt_arrival_wait(uint64_t *barrier, int parity, struct dtx_site site)
{
    arrival_state s;
    for (memcpy(&s, barrier, sizeof s); (s.phase_and_bytes & 1) == parity && !DTX_MUTANT(simt_arrival_passes);
         memcpy(&s, barrier, sizeof s)) {
        machine_now()->arrivals[barrier].push_back(running());
        thread_wait("wait for arrivals", site);
    }
}

/* Byte address → where the 128-byte swizzle puts it. */
static uint32_t swizzle(uint32_t at)
{
    return at ^ (at >> 7 & 7) << 4;
}

static void tile_land(const tile_copy &c)
{
    machine *m = machine_now();
    const dtx_tile_map *map = &c.map;
    uint32_t base = (uint32_t)((unsigned char *)c.to - m->dynamic), element = 0;
    int i[4];
    for (i[3] = 0; i[3] < map->box[3]; i[3]++)
        for (i[2] = 0; i[2] < map->box[2]; i[2]++)
            for (i[1] = 0; i[1] < map->box[1]; i[1]++)
                for (i[0] = 0; i[0] < map->box[0]; i[0]++, element++) {
                    int64_t from = 0;
                    bool inside = true;
                    for (int k = 0; k < 4; k++) {
                        int64_t x = c.at[k] + i[k];
                        inside = inside && x >= 0 && x < map->size[k];
                        from += x * map->stride[k];
                    }
                    uint16_t value = inside ? map->base[from].bits : 0;
                    memcpy(m->dynamic + swizzle(base + element * 2), &value, sizeof value);
                }
    arrival_bytes(c.barrier, -(int)(element * 2));
    arrival_check(c.barrier);
}

void dtx_simt_tile_load(void *to, const dtx_tile_map *map, uint64_t *barrier, const int (&at)[4], struct dtx_site site)
{
    machine *m = machine_now();
    size_t bytes = 2;
    for (int k = 0; k < 4; k++)
        bytes *= (size_t)map->box[k];
    dtx_simt_check_access(to, bytes, 1024, "tile load", site);
    memory_poison(to, bytes);
    tile_copy c = {to, *map, barrier, {at[0], at[1], at[2], at[3]}};
    if (m->settings.order == DTX_SIMT_LIFO || DTX_MUTANT(simt_tile_lands_early))
        tile_land(c);
    else
        m->tiles.push_back(c);
}

bool tile_land_one()
{
    machine *m = machine_now();
    if (m->tiles.empty())
        return false;
    tile_copy c = m->tiles.front();
    m->tiles.erase(m->tiles.begin());
    tile_land(c);
    return true;
}

static float panel_value(uint32_t at)
{
    uint16_t half;
    at = swizzle(at);
    if (at + 2 > machine_now()->dynamic_bytes)
        dtx_simt_fault({"panel", 0}, "product reads byte %u of shared memory", at);
    memcpy(&half, machine_now()->dynamic + at, 2);
    return dtx_float_of((uint32_t)half << 16);
}
static uint32_t panel_start(uint64_t d)
{
    return (uint32_t)(d & 0x3fff) << 4;
}
static uint32_t panel_next(uint64_t d)
{
    return (uint32_t)(d >> 16 & 0x3fff) << 4;
}
static uint32_t panel_step(uint64_t d)
{
    return (uint32_t)(d >> 32 & 0x3fff) << 4;
}

static mma_group *group_of(thread_state *t)
{
    std::vector<mma_group> &list = machine_now()->groups;
    if (list.empty())
        list.resize((size_t)(machine_now()->n + 127) / 128);
    return &list[(size_t)t->number / 128];
}

void dtx_simt_group_fence()
{
    thread_state *t = running();
    group_of(t)->lane[t->number % 128].fenced = true;
}

void dtx_simt_group_mma(float *sum, int columns, const uint32_t *a, bool a_stays, uint64_t a_panel, uint64_t b_panel,
                        bool add, struct dtx_site site)
{
    thread_state *t = running();
    mma_group *g = group_of(t);
    const int lane = t->number % 128;
    if (!g->lane[lane].fenced)
        dtx_simt_fault(site, "product without a fence since the last wait");
    const size_t number = (size_t)g->lane[lane].issued++;
    if (g->ops.size() <= number)
        g->ops.resize(number + 1);
    mma_op *op = &g->ops[number];
    if (op->lanes++ == 0) {
        op->columns = columns;
        op->in_registers = a != nullptr;
        op->a = a_panel;
        op->b = b_panel;
        op->add = add;
    } else if (op->columns != columns || op->in_registers != (a != nullptr) || op->a != a_panel || op->b != b_panel ||
               op->add != add) {
        dtx_simt_fault(site, "the threads of a group issue different products");
    }
    if (a)
        memcpy(op->registers[lane], a, sizeof op->registers[lane]);
    op->registers_of[lane] = a_stays ? a : nullptr;
    op->sum[lane] = sum;
    std::vector<float> &kept = g->lane[lane].sums[sum];
    if (kept.empty()) {
        kept.assign(sum, sum + columns / 2);
        memory_poison(sum, (size_t)columns / 2 * sizeof *sum);
    }
}

void dtx_simt_group_commit()
{
    thread_state *t = running();
    mma_group::lane_state *l = &group_of(t)->lane[t->number % 128];
    l->ends.push_back(l->issued);
}

/* The left operand as rows, the right one as [16][columns]. */
static void operands(const mma_op *op, float (*a)[16], std::vector<float> *b)
{
    for (int k = 0; k < 16; k++)
        for (int n = 0; n < op->columns; n++) {
            uint32_t at = op->in_registers ? (uint32_t)(n / 64) * panel_next(op->b) + (uint32_t)(n % 64 * 2) +
                                                 (uint32_t)(k / 8) * panel_step(op->b) + (uint32_t)(k % 8 * 128)
                                           : (uint32_t)(n / 8) * panel_step(op->b) + (uint32_t)(n % 8 * 128 + k * 2);
            (*b)[(size_t)(k * op->columns + n)] = panel_value(panel_start(op->b) + at);
        }
    for (int lane = 0; lane < 128 && op->in_registers; lane++)
        for (int x = 0; x < 4; x++) {
            int row = lane / 32 * 16 + lane % 32 / 4 + (x & 1) * 8, column = lane % 4 * 2 + (x >> 1) * 8;
            a[row][column] = dtx_bf16_low(op->registers[lane][x]);
            a[row][column + 1] = dtx_bf16_high(op->registers[lane][x]);
        }
    for (int row = 0; row < 64 && !op->in_registers; row++)
        for (int k = 0; k < 16; k++)
            a[row][k] = panel_value(panel_start(op->a) + (uint32_t)(row / 8) * panel_step(op->a) +
                                    (uint32_t)(row % 8 * 128 + k * 2));
}

static void multiply(mma_group *g, const mma_op *op)
{
    float a[64][16];
    std::vector<float> b((size_t)(16 * op->columns)), row_sum((size_t)op->columns);
    operands(op, a, &b);
    for (int row = 0; row < 64; row++) {
        std::fill(row_sum.begin(), row_sum.end(), 0.f);
        for (int k = 0; k < 16; k++)
            for (int n = 0; n < op->columns; n++)
                row_sum[(size_t)n] += a[row][k] * b[(size_t)(k * op->columns + n)];
        for (int n = 0; n < op->columns; n++) {
            int lane = row / 16 * 32 + row % 8 * 4 + n % 8 / 2;
            float *to = &g->lane[lane].sums[op->sum[lane]][(size_t)(n / 8 * 4 + row % 16 / 8 * 2 + n % 2)];
            *to = (op->add ? *to : 0.f) + row_sum[(size_t)n];
        }
    }
}

/* Sums that no product under way will change go back to their threads. */
static void give_back(mma_group *g)
{
    for (int lane = 0; lane < 128; lane++) {
        auto &sums = g->lane[lane].sums;
        for (auto it = sums.begin(); it != sums.end();) {
            bool busy = false;
            for (size_t i = (size_t)g->done; i < g->ops.size(); i++)
                busy = busy || g->ops[i].sum[lane] == it->first;
            if (!busy)
                memcpy(it->first, it->second.data(), it->second.size() * sizeof(float));
            it = busy ? std::next(it) : sums.erase(it);
        }
    }
}

void dtx_simt_group_wait(int groups_left, struct dtx_site site)
{
    thread_state *t = running();
    mma_group *g = group_of(t);
    if (++g->arrived < 128) {
        g->waiting.push_back(t);
        thread_wait("wait for products", site);
        return;
    }
    const mma_group::lane_state *l = &g->lane[t->number % 128];
    for (const auto &lane : g->lane)
        if (lane.ends != l->ends)
            dtx_simt_fault(site, "the threads of a group have committed different numbers of products");
    const int groups = (int)l->ends.size() - groups_left, until = groups > 0 ? l->ends[(size_t)groups - 1] : 0;
    for (; g->done < until; g->done++) {
        const mma_op *op = &g->ops[(size_t)g->done];
        for (int lane = 0; lane < 128; lane++)
            if (op->registers_of[lane] &&
                memcmp(op->registers_of[lane], op->registers[lane], sizeof op->registers[lane]))
                dtx_simt_fault(site, "registers of lane %d changed while a product read them", lane);
        multiply(g, op);
    }
    for (auto &lane : g->lane)
        lane.fenced = false;
    give_back(g);
    g->arrived = 0;
    if (g->done == (int)g->ops.size()) {
        g->ops.clear();
        g->done = 0;
        for (auto &lane : g->lane) {
            lane.issued = 0;
            lane.ends.clear();
        }
    }
    threads_wake(&g->waiting);
}

bool products_under_way(const thread_state *t)
{
    machine *m = machine_now();
    if (m->groups.empty())
        return false;
    return m->groups[(size_t)t->number / 128].lane[t->number % 128].issued > 0;
}

bool products_own(const thread_state *t, float *sum)
{
    machine *m = machine_now();
    return !m->groups.empty() && m->groups[(size_t)t->number / 128].lane[t->number % 128].sums.count(sum);
}
