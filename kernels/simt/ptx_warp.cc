/* What threads do together: barriers, shuffles, tensor cores; and what orders or ends a thread. */
#include "kernels/device/hopper.h"
#include "kernels/device/mma.h"
#include "kernels/device/warp.h"
#include "kernels/simt/ptx.h"

void ptx_branch(ptx_thread &t, const ptx_ins &i)
{
    t.next = (int)i.offset;
}
static void thread_returns(ptx_thread &t, const ptx_ins &)
{
    t.next = -1;
}
/* Fences and hints: the emulator's memory has one order. */
static void nothing(ptx_thread &, const ptx_ins &)
{
}

static void barrier_sync(ptx_thread &t, const ptx_ins &i)
{
    const uint32_t id = t.get<uint32_t>(i.r[0]), threads = i.operands > 1 ? t.get<uint32_t>(i.r[1]) : 0;
    if (id >= BARRIERS || threads % 32)
        ptx_fault(t, i, "barrier " + std::to_string(id) + " of " + std::to_string(threads) + " threads");
    dtx_simt_barrier((int)id, (int)threads, id || threads ? "named barrier" : "block barrier", ptx_site(t, i));
}
static void warp_sync(ptx_thread &t, const ptx_ins &i)
{
    dtx_simt_meet(
        t.get<uint32_t>(i.r[0]), "warp barrier", ptx_site(t, i), nullptr, nullptr,
        [](const void *const *, void *const *, const void *) {}, nullptr);
}

/* d|p, a, b, c, mask: the value of lane ^ b or of lane b; c must be 31, the whole warp. */
template <bool BITS> static void shuffle(ptx_thread &t, const ptx_ins &i)
{
    const int *r = i.r + (i.operands == 6 ? 2 : 1);
    const int b = t.get<int32_t>(r[1]) & 31;
    if (t.get<uint32_t>(r[2]) != 31)
        ptx_fault(t, i, "a shuffle of parts of a warp is not known here");
    dtx_simt_shuffle<uint32_t> in = {t.get<uint32_t>(r[0]), BITS ? (t.state->number & 31) ^ b : b};
    uint32_t out;
    dtx_simt_meet(t.get<uint32_t>(r[3]), BITS ? "shuffle by bits" : "shuffle by lane", ptx_site(t, i), &in, &out,
                  dtx_simt_shuffle_combine<uint32_t>, nullptr);
    t.put(i.r[0], out);
    if (i.operands == 6)
        t.put(i.r[1], true);
}

/* {d × 4}, {a × 4}, {b × 2}, {c × 4} */
static void mma(ptx_thread &t, const ptx_ins &i)
{
    uint32_t a[4];
    float sum[4];
    for (int x = 0; x < 4; x++) {
        a[x] = t.get<uint32_t>(i.r[4 + x]);
        sum[x] = t.get<float>(i.r[10 + x]);
    }
    const dtx_simt_mma_in in = {a, {t.get<uint32_t>(i.r[8]), t.get<uint32_t>(i.r[9])}};
    dtx_simt_meet(0xffffffffu, "mma", ptx_site(t, i), &in, sum, dtx_simt_mma, nullptr);
    for (int x = 0; x < 4; x++)
        t.put(i.r[x], sum[x]);
}

template <bool TRANSPOSED> static void matrix_load(ptx_thread &t, const ptx_ins &i)
{
    uint32_t out[4];
    const void *row = ptx_shared(t, i, t.get<uint32_t>(i.r[4]) + (uint32_t)i.offset, 16, 16);
    dtx_simt_meet(0xffffffffu, TRANSPOSED ? "transposed matrix load" : "matrix load", ptx_site(t, i), row, out,
                  dtx_simt_matrix, TRANSPOSED ? "" : nullptr);
    for (int x = 0; x < 4; x++)
        t.put(i.r[x], out[x]);
}

static uint64_t *arrivals(const ptx_thread &t, const ptx_ins &i, int reg)
{
    return (uint64_t *)ptx_shared(t, i, t.get<uint32_t>(reg) + (uint32_t)i.offset, 8, 8);
}
static void arrival_init(ptx_thread &t, const ptx_ins &i)
{
    dtx_simt_arrival_init(arrivals(t, i, i.r[0]), t.get<int32_t>(i.r[1]));
}
/* [barrier], and the bytes to expect if there are any. */
static void arrive(ptx_thread &t, const ptx_ins &i)
{
    dtx_simt_arrive(arrivals(t, i, i.r[0]), i.operands > 1 ? t.get<int32_t>(i.r[1]) : 0, ptx_site(t, i));
}
/* p, [barrier], parity: comes back when the phase is complete, so p is true. */
static void arrival_wait(ptx_thread &t, const ptx_ins &i)
{
    dtx_simt_arrival_wait(arrivals(t, i, i.r[1]), t.get<int32_t>(i.r[2]), ptx_site(t, i));
    t.put(i.r[0], true);
}

/* [to], [map, {c × 4}], [barrier] */
static void tile_load(ptx_thread &t, const ptx_ins &i)
{
    const unsigned char *map = (const unsigned char *)t.get<uint64_t>(i.r[1]);
    if (map < t.parameters || map + sizeof(dtx_tile_map) > t.parameters + t.kernel->parameter_bytes)
        ptx_fault(t, i, "the tile's map is not a parameter of the kernel");
    if (i.offset)
        ptx_fault(t, i, "a tile load with an offset is not known here");
    int at[4];
    for (int x = 0; x < 4; x++)
        at[x] = t.get<int32_t>(i.r[2 + x]);
    dtx_simt_tile_load(ptx_shared(t, i, t.get<uint32_t>(i.r[0]), 0, 1), (const dtx_tile_map *)map,
                       arrivals(t, i, i.r[6]), at, ptx_site(t, i));
}

/* {sums}, {a × 4} or a's panel, b's panel, add, factors of a and b, and which operands are transposed. The registers of
 * the sums are NaN until a wait gives them back: the emulator's products work on a copy. */
static void group_mma(ptx_thread &t, const ptx_ins &i)
{
    const int columns = i.n * 8, sums = columns / 2, flags = i.operands - sums;
    const bool in_registers = flags == 4 + 5; /* a's four; b, add, two factors, one transposition */
    const int *a = i.r + sums, *b = a + (in_registers ? 4 : 1);
    const bool transposed = t.get<uint32_t>(in_registers ? b[4] : b[5]) & 1;
    if ((!in_registers && (flags != 7 || t.get<uint32_t>(b[4]))) || transposed != in_registers ||
        t.get<int32_t>(b[2]) != 1 || t.get<int32_t>(b[3]) != 1)
        ptx_fault(t, i, "a product with these factors and orders is not known here");
    thread_state::sum &sum = t.state->sums[i.r[0]];
    uint32_t rows[4];
    for (int x = 0; x < 4 && in_registers; x++)
        rows[x] = t.get<uint32_t>(a[x]);
    sum.value.resize((size_t)sums);
    sum.registers = i.r;
    for (int x = 0; x < sums; x++)
        sum.value[(size_t)x] = t.get<float>(i.r[x]);
    dtx_simt_group_mma(sum.value.data(), columns, in_registers ? rows : nullptr, false,
                       in_registers ? 0 : t.get<uint64_t>(a[0]), t.get<uint64_t>(b[0]), t.get<uint32_t>(b[1]) & 1,
                       ptx_site(t, i));
    for (int x = 0; x < sums; x++)
        t.put(i.r[x], sum.value[(size_t)x]);
}
static void group_fence(ptx_thread &, const ptx_ins &)
{
    dtx_simt_group_fence();
}
static void group_commit(ptx_thread &, const ptx_ins &)
{
    dtx_simt_group_commit();
}
static void group_wait(ptx_thread &t, const ptx_ins &i)
{
    dtx_simt_group_wait(t.get<int32_t>(i.r[0]), ptx_site(t, i));
    auto &sums = t.state->sums;
    for (auto it = sums.begin(); it != sums.end();) {
        thread_state::sum &sum = it->second;
        if (products_own(t.state, sum.value.data())) {
            ++it;
            continue;
        }
        for (size_t x = 0; x < sum.value.size(); x++)
            t.put(sum.registers[x], sum.value[x]);
        it = sums.erase(it);
    }
}

ptx_step *ptx_find_warp(const std::string &op, ptx_ins *ins)
{
    static const std::unordered_map<std::string, ptx_step *> rows = {
        {"ret", thread_returns},
        {"exit", thread_returns},
        {"setmaxnreg.inc.sync.aligned.u32", nothing},
        {"setmaxnreg.dec.sync.aligned.u32", nothing},
        {"fence.mbarrier_init.release.cluster", nothing},
        {"fence.proxy.async", nothing},
        {"membar.cta", nothing},
        {"membar.gl", nothing},
        {"bar.sync", barrier_sync},
        {"bar.warp.sync", warp_sync},
        {"shfl.sync.bfly.b32", shuffle<true>},
        {"shfl.sync.idx.b32", shuffle<false>},
        {"mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", mma},
        {"ldmatrix.sync.aligned.m8n8.x4.shared.b16", matrix_load<false>},
        {"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16", matrix_load<true>},
        {"mbarrier.init.shared::cta.b64", arrival_init},
        {"mbarrier.arrive.shared::cta.b64", arrive},
        {"mbarrier.arrive.expect_tx.shared::cta.b64", arrive},
        {"mbarrier.try_wait.parity.shared::cta.b64", arrival_wait},
        {"cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes", tile_load},
        {"wgmma.fence.sync.aligned", group_fence},
        {"wgmma.commit_group.sync.aligned", group_commit},
        {"wgmma.wait_group.sync.aligned", group_wait},
    };
    int columns, end = 0;
    if (sscanf(op.c_str(), "wgmma.mma_async.sync.aligned.m64n%dk16.f32.bf16.bf16%n", &columns, &end) == 1 &&
        (size_t)end == op.size() && columns % 8 == 0) {
        ins->n = (uint8_t)(columns / 8);
        return group_mma;
    }
    auto found = rows.find(op);
    return found == rows.end() ? nullptr : found->second;
}
