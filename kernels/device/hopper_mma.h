/* Products of a group of 128 threads, asynchronous: fence, issue, commit, wait. Included by hopper.h. */
#ifndef DTX_KERNELS_DEVICE_HOPPER_MMA_H
#define DTX_KERNELS_DEVICE_HOPPER_MMA_H

#if defined(__CUDACC__)
/* The sums as text of operands, and as operands. */
#define DTX_WGMMA_SUMS_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define DTX_WGMMA_SUMS_32                                                                                              \
    DTX_WGMMA_SUMS_16                                                                                                  \
    ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define DTX_WGMMA_SUMS_64                                                                                              \
    DTX_WGMMA_SUMS_32                                                                                                  \
    ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"                                                 \
    ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define DTX_WGMMA_SUMS_128                                                                                             \
    DTX_WGMMA_SUMS_64                                                                                                  \
    ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79"                                                 \
    ",%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95"                                                 \
    ",%96,%97,%98,%99,%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111"                                     \
    ",%112,%113,%114,%115,%116,%117,%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define DTX_SUM_4(n)   "+f"(sum[n][0]), "+f"(sum[n][1]), "+f"(sum[n][2]), "+f"(sum[n][3])
#define DTX_SUM_16(n)  DTX_SUM_4(n), DTX_SUM_4(n + 1), DTX_SUM_4(n + 2), DTX_SUM_4(n + 3)
#define DTX_SUM_32(n)  DTX_SUM_16(n), DTX_SUM_16(n + 4)
#define DTX_SUM_64(n)  DTX_SUM_32(n), DTX_SUM_32(n + 8)
#define DTX_SUM_128(n) DTX_SUM_64(n), DTX_SUM_64(n + 16)

/* One instruction on sum, a, b (and add) of the function around it; SUMS: floats of a thread. The other numbers are
 * those of the operands, which come behind the sums. */
#define DTX_WGMMA_ROWS(COLUMNS, SUMS, A, B, ADD)                                                                       \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #ADD ", 0;\n"                                                    \
                 "wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32.bf16.bf16 {" DTX_WGMMA_SUMS_##SUMS              \
                 "}, %" #A ", %" #B ", p, 1, 1, 0, 0;\n}"                                                              \
                 : DTX_SUM_##SUMS(0)                                                                                   \
                 : "l"(a), "l"(b), "r"((int)add))
#define DTX_WGMMA_COLUMNS(COLUMNS, SUMS, A0, A1, A2, A3, B)                                                            \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32.bf16.bf16 {" DTX_WGMMA_SUMS_##SUMS              \
                 "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", 1, 1, 1, 1;"                                   \
                 : DTX_SUM_##SUMS(0)                                                                                   \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#endif

/* Before the first product after registers were written: pins the sums. */
template <int N> DTX_FN void dtx_group_mma_begin(float (&sum)[N][4])
{
#if !defined(__CUDACC__)
    (void)sum;
    dtx_simt_group_fence();
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
    DTX_UNROLL for (int n = 0; n < N; n++) asm volatile("" : DTX_SUM_4(n)::"memory");
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#endif
}
DTX_FN void dtx_group_mma_commit()
{
#if !defined(__CUDACC__)
    dtx_simt_group_commit();
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
#endif
}
/* Until at most `Left` committed groups are under way; `sum` is then readable if it was in none of them. */
template <int Left, int N> DTX_FN void dtx_group_mma_wait(float (&sum)[N][4], dtx_site site = {})
{
#if !defined(__CUDACC__)
    (void)sum;
    dtx_simt_group_wait(Left, site);
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Left) : "memory");
    DTX_UNROLL for (int n = 0; n < N; n++) asm volatile("" : DTX_SUM_4(n)::"memory");
#endif
}

/* sum [64,8N] (+)= a [64,16]·b [8N,16]ᵀ: 16 columns of panels of shared memory. Thread t of the group holds the rows of
 * warp t/32 as the m16n8k16 fragments do. */
template <int N>
DTX_FN void dtx_group_mma_rows(float (&sum)[N][4], uint64_t a, uint64_t b, bool add, dtx_site site = {})
{
    static_assert(N == 4 || N == 8 || N == 16);
#if !defined(__CUDACC__)
    dtx_simt_group_mma(sum[0], N * 8, nullptr, false, a, b, add, site);
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
    if constexpr (N == 4)
        DTX_WGMMA_ROWS(32, 16, 16, 17, 18);
    else if constexpr (N == 8)
        DTX_WGMMA_ROWS(64, 32, 32, 33, 34);
    else
        DTX_WGMMA_ROWS(128, 64, 64, 65, 66);
#endif
}

/* sum [64,8N] += a [64,16] in registers · b [16,8N], rows of panels. */
template <int N>
DTX_FN void dtx_group_mma_columns(float (&sum)[N][4], const uint32_t (&a)[4], uint64_t b, dtx_site site = {})
{
    static_assert(N == 8 || N == 16 || N == 32);
#if !defined(__CUDACC__)
    dtx_simt_group_mma(sum[0], N * 8, a, true, 0, b, true, site);
#elif defined(__CUDA_ARCH_FEAT_SM90_ALL)
    if constexpr (N == 8)
        DTX_WGMMA_COLUMNS(64, 32, 32, 33, 34, 35, 36);
    else if constexpr (N == 16)
        DTX_WGMMA_COLUMNS(128, 64, 64, 65, 66, 67, 68);
    else
        DTX_WGMMA_COLUMNS(256, 128, 128, 129, 130, 131, 132);
#endif
}

#endif
