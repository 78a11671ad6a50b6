/* test: label=ranks ranks=4 timeout=120 */
/* Four ranks save, in one to four shards; four, two and one rank load, on every mesh that fits. A fault on one rank is
 * everybody's: the same status and a text that names it, no rank left waiting, earlier checkpoints untouched; a damaged
 * newest checkpoint sends all ranks to the one before. */
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "checkpoints/ckpt.h"
#include "checkpoints/disk.h"
#include "checkpoints/index.h"
#include "tests/harness/ckpt_state.h"
#include "tests/harness/rank_check.h"

static const struct ckpt_mesh of_four[] = {{4, 1, 1}, {2, 1, 2}, {2, 2, 1}, {1, 2, 2}, {1, 1, 4}, {1, 4, 1}};
static const struct ckpt_mesh of_two[] = {{2, 1, 1}, {1, 2, 1}, {1, 1, 2}};
static const struct ckpt_mesh of_one[] = {{1, 1, 1}};

static void save(struct dtx_comm *comm, const char *dir, struct ckpt_mesh mesh, int64_t step, int max_shards)
{
    struct ckpt_state state = {0};
    struct dtx_ckpt_meta meta = ckpt_state_meta(step, mesh);
    struct dtx_ckpt_save_options options = {.max_shards = max_shards, .keep = 3, .box_bytes = 64};
    ckpt_state_add(&state, mesh, comm->rank, 9);
    CHECK_OK(comm, dtx_ckpt_save(comm->ctx, comm, dir, state.items, state.n, &meta, &options));
    ckpt_state_free(&state);
}

static void load(struct dtx_comm *comm, const char *path, struct ckpt_mesh mesh)
{
    struct ckpt_state state = {0};
    ckpt_state_add(&state, mesh, comm->rank, 9);
    ckpt_state_clear(&state);
    CHECK_OK(comm, dtx_ckpt_load(comm->ctx, comm, path, state.items, state.n));
    CHECK(comm, ckpt_state_differences(&state, 9) == 0);
    ckpt_state_free(&state);
}

static void load_everywhere(struct dtx_comm *world, struct dtx_comm *half, struct dtx_comm *one, const char *path)
{
    for (size_t i = 0; i < sizeof of_four / sizeof *of_four; i++)
        load(world, path, of_four[i]);
    for (size_t i = 0; i < sizeof of_two / sizeof *of_two; i++)
        load(half, path, of_two[i]);
    load(one, path, of_one[0]);
}

static int64_t bytes_read;

/* In place of the C library's: what loading reads is counted. */
ssize_t pread(int fd, void *data, size_t bytes, off_t offset)
{
    ssize_t n = syscall(SYS_pread64, fd, data, bytes, offset);
    bytes_read += n > 0 ? n : 0;
    return n;
}

/* The ranks together read each stored byte once, whatever the mesh and however many of them need it, and share the
 * work: nobody reads more than its share and a box. Arrays that nobody asks for are not read. */
static void test_read_once(struct dtx_comm *world, const char *dir)
{
    char path[DTX_DISK_PATH];
    struct dtx_ckpt_index index;
    CHECK_OK(world, ckpt_find_whole(world->ctx, world, dir, "latest", path, sizeof path));
    CHECK_OK(world, dtx_ckpt_index_open(world->ctx, world, path, &index));
    for (size_t i = 0; i < sizeof of_four / sizeof *of_four; i++)
        for (int alone = 0; alone < 2; alone++) {
            struct ckpt_state state = {0};
            int64_t needed = dtx_ckpt_index_bytes(&index), first, all[4];
            ckpt_state_add(&state, of_four[i], world->rank, 9);
            ckpt_state_clear(&state);
            for (int k = 0; k < state.n && alone; k++)
                if (strcmp(state.items[k].name, "/model/embed") != 0)
                    state.items[k].n_boxes = 0;
            if (alone) {
                needed = 0;
                int64_t count = dtx_ckpt_lookup(index.entries, index.n, "/model/embed", &first);
                for (int64_t e = first; e < first + count; e++)
                    needed += index.entries[e].bytes;
            }
            CHECK(world, needed > 0);
            bytes_read = 0;
            CHECK_OK(world, dtx_ckpt_index_load(world->ctx, world, path, &index, state.items, state.n));
            int64_t mine = bytes_read, sum = 0;
            CHECK_OK(world, dtx_comm_gather_bytes(world, &mine, sizeof mine, all));
            for (int r = 0; r < 4; r++)
                sum += all[r];
            CHECK_THAT(world, sum == needed, "%lld bytes are read where %lld are needed", (long long)sum,
                       (long long)needed);
            bool replicas = of_four[i].dp == 4;
            CHECK_THAT(world, !replicas || mine <= needed / 4 + dtx_ckpt_longest(index.entries, index.n),
                       "rank %d reads %lld of %lld bytes", world->rank, (long long)mine, (long long)needed);
            ckpt_state_free(&state);
        }
    dtx_ckpt_index_free(&index);
}

/* A damaged box that one rank reads: the same status on all, and all load the one before. */
static void test_damage_while_loading(struct dtx_comm *world, const char *dir)
{
    char path[DTX_DISK_PATH], shard[DTX_DISK_PATH + 32];
    struct dtx_ckpt_search search = {0};
    struct dtx_ckpt_index index;
    enum dtx_status status;
    int tries = 0;
    CHECK_OK(world, dtx_ckpt_find(world->ctx, world, dir, "latest", &search, path, sizeof path));
    if (world->rank == 0) {
        CHECK_OK(world, dtx_ckpt_index_read(world->ctx, path, &index));
        unsigned char byte;
        int64_t at = index.entries[index.n / 2].offset;
        snprintf(shard, sizeof shard, "%s/shard-%05d.h5", path, index.entries[index.n / 2].shard);
        FILE *file = fopen(shard, "r+b");
        CHECK(world, file && fseek(file, at, SEEK_SET) == 0 && fread(&byte, 1, 1, file) == 1);
        byte ^= 4;
        CHECK(world, fseek(file, at, SEEK_SET) == 0 && fwrite(&byte, 1, 1, file) == 1 && fclose(file) == 0);
        dtx_ckpt_index_free(&index);
    }
    CHECK_OK(world, dtx_comm_barrier(world));
    memset(&search, 0, sizeof search);
    do {
        struct ckpt_state state = {0};
        CHECK_OK(world, dtx_ckpt_find(world->ctx, world, dir, "latest", &search, path, sizeof path));
        ckpt_state_add(&state, of_four[3], world->rank, 9);
        ckpt_state_clear(&state);
        status = dtx_ckpt_load(world->ctx, world, path, state.items, state.n);
        CHECK(world, status == (tries == 0 ? DTX_E_FORMAT : DTX_OK));
        CHECK(world, status != DTX_OK || ckpt_state_differences(&state, 9) == 0);
        ckpt_state_free(&state);
        tries++;
    } while (status != DTX_OK && dtx_ckpt_pass_over(world->ctx, world, &search, path, status));
    CHECK_THAT(world, status == DTX_OK && tries == 2 && strstr(path, "step-00000004"), "%s is loaded at last", path);
}

static void find(struct dtx_comm *world, const char *dir, int64_t step)
{
    char path[DTX_DISK_PATH], name[32];
    snprintf(name, sizeof name, "/step-%08lld", (long long)step);
    CHECK_OK(world, ckpt_find_whole(world->ctx, world, dir, "latest", path, sizeof path));
    CHECK_THAT(world, strcmp(path + strlen(dir), name) == 0, "%s", path);
}

static void count_shards(struct dtx_comm *world, const char *path, int expected)
{
    int n = 0;
    char shard[DTX_DISK_PATH + 32];
    do
        snprintf(shard, sizeof shard, "%s/shard-%05d.h5", path, n);
    while (dtx_disk_exists(shard) && ++n);
    CHECK_THAT(world, n == expected, "%d shards instead of %d", n, expected);
}

static void test_meshes(struct dtx_comm *world, const char *dir)
{
    struct dtx_comm *half, *one;
    char path[DTX_DISK_PATH];
    static const int expected[] = {1, 2, 3, 4}; /* for at most 1, 2, 3, 4 and four writers */
    CHECK_OK(world, dtx_comm_split(world, world->rank / 2, world->rank, "half", &half));
    CHECK_OK(world, dtx_comm_split(world, world->rank, 0, "one", &one));
    for (size_t i = 0; i < sizeof of_four / sizeof *of_four; i++) {
        int shards = i < 4 ? (int)i + 1 : 0;
        save(world, dir, of_four[i], (int64_t)i, shards);
        CHECK_OK(world, ckpt_find_whole(world->ctx, world, dir, "latest", path, sizeof path));
        count_shards(world, path, i < 4 ? expected[i] : 4);
        load_everywhere(world, half, one, path);
    }
    dtx_comm_free(half);
    dtx_comm_free(one);
}

/* One rank at a time has what the others lack. */
static void test_faults(struct dtx_comm *world, const char *dir)
{
    char path[DTX_DISK_PATH], shard[DTX_DISK_PATH], rank_text[32];
    CHECK_OK(world, ckpt_find_whole(world->ctx, world, dir, "latest", path, sizeof path));
    for (int bad = 0; bad < world->size; bad++) {
        struct ckpt_state state = {0};
        struct dtx_ckpt_meta meta = ckpt_state_meta(100, of_four[1]);
        snprintf(rank_text, sizeof rank_text, "rank %d", bad);
        ckpt_state_add(&state, of_four[1], world->rank, 9);
        if (world->rank == bad)
            strcpy(state.items[0].name, "/model/absent");
        enum dtx_status status = dtx_ckpt_load(world->ctx, world, path, state.items, state.n);
        CHECK(world, status == DTX_E_CONFIG && strstr(world->ctx->error.text, "/model/absent"));
        CHECK(world, world->rank == bad || strstr(world->ctx->error.text, rank_text));
        dtx_error_clear(world->ctx);
        if (world->rank == bad)
            state.items[0].n_boxes = DTX_MAX_BOXES + 1;
        status = dtx_ckpt_save(world->ctx, world, dir, state.items, state.n, &meta, NULL);
        CHECK(world, status == DTX_E_RANGE);
        dtx_error_clear(world->ctx);
        ckpt_state_free(&state);
    }
    /* rank 3 alone cannot open a file (it has no descriptors left): all ranks give the newest up, and the next */
    struct rlimit limit, none;
    getrlimit(RLIMIT_NOFILE, &limit);
    none = (struct rlimit){3, limit.rlim_max};
    if (world->rank == 3)
        setrlimit(RLIMIT_NOFILE, &none);
    enum dtx_status status = ckpt_find_whole(world->ctx, world, dir, "latest", shard, sizeof shard);
    setrlimit(RLIMIT_NOFILE, &limit);
    CHECK(world, status == DTX_E_IO && strstr(world->ctx->error.text, "none of the 3 checkpoints"));
    dtx_error_clear(world->ctx);
    /* damage */
    find(world, dir, 5);
    if (world->rank == 0) {
        snprintf(shard, sizeof shard, "%s/step-00000005/shard-00001.h5", dir);
        CHECK(world, truncate(shard, 5000) == 0);
        snprintf(shard, sizeof shard, "%s/step-00000004/shard-00002.h5", dir);
        CHECK(world, unlink(shard) == 0);
    }
    CHECK_OK(world, dtx_comm_barrier(world));
    find(world, dir, 3);
}

int main(void)
{
    struct dtx_ctx ctx;
    struct dtx_comm *world;
    char dir[256];
    dtx_ctx_init(&ctx);
    ctx.log_level = DTX_LOG_ERROR;
    if (dtx_comm_open_world(&ctx, &world) != DTX_OK) {
        dtx_error_print(&ctx);
        return 1;
    }
    CHECK(world, world->size == 4);
    if (world->rank == 0)
        ckpt_temp_make(dir);
    CHECK_OK(world, dtx_comm_broadcast_bytes(world, dir, sizeof dir, 0));
    test_meshes(world, dir);
    test_read_once(world, dir);
    test_faults(world, dir);
    save(world, dir, of_four[1], 4, 0);
    save(world, dir, of_four[2], 5, 2);
    test_damage_while_loading(world, dir);
    CHECK_OK(world, dtx_comm_barrier(world));
    if (world->rank == 0)
        ckpt_temp_remove(dir);
    dtx_comm_close_world(world);
    return 0;
}
