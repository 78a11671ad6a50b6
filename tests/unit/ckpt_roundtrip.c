/* test: label=unit ranks=1 timeout=120 */
/* Whole arrays survive saving and loading on every pair of meshes, bit for bit; the index presents them whole to any
 * HDF5 reader, from another folder and working directory, with few descriptors.
 * With arguments "make DIR STEP SALT": writes a checkpoint for the shell tests. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>
#include <hdf5.h>

#include "checkpoints/disk.h"
#include "checkpoints/index.h"
#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "tests/harness/ckpt_state.h"

static const struct ckpt_mesh meshes[] = {{1, 1, 1}, {2, 1, 1}, {1, 2, 1}, {1, 1, 2}, {4, 1, 1}, {1, 3, 1},
                                          {1, 1, 4}, {2, 1, 2}, {2, 2, 1}, {1, 2, 2}, {2, 2, 2}, {5, 1, 1}};
enum { MESHES = sizeof meshes / sizeof *meshes };

static void save_mesh(struct dtx_ctx *ctx, struct dtx_comm *self, const char *dir, struct ckpt_mesh mesh, int64_t step,
                      uint64_t salt, const struct dtx_ckpt_save_options *options)
{
    struct ckpt_state state = {0};
    for (int r = 0; r < mesh.tp * mesh.dp * mesh.pp; r++)
        ckpt_state_add(&state, mesh, r, salt);
    struct dtx_ckpt_meta meta = ckpt_state_meta(step, mesh);
    enum dtx_status status = dtx_ckpt_save(ctx, self, dir, state.items, state.n, &meta, options);
    if (status != DTX_OK)
        dtx_error_print(ctx);
    assert_int_equal(status, DTX_OK);
    ckpt_state_free(&state);
}

static void load_mesh(struct dtx_ctx *ctx, struct dtx_comm *self, const char *path, struct ckpt_mesh mesh,
                      uint64_t salt)
{
    for (int r = 0; r < mesh.tp * mesh.dp * mesh.pp; r++) {
        struct ckpt_state state = {0};
        ckpt_state_add(&state, mesh, r, salt);
        ckpt_state_clear(&state);
        enum dtx_status status = dtx_ckpt_load(ctx, self, path, state.items, state.n);
        if (status != DTX_OK)
            dtx_error_print(ctx);
        assert_int_equal(status, DTX_OK);
        assert_int_equal(ckpt_state_differences(&state, salt), 0);
        ckpt_state_free(&state);
    }
}

static void start(struct dtx_ctx *ctx, struct dtx_comm **self, char dir[256])
{
    dtx_ctx_init(ctx);
    ctx->log_level = DTX_LOG_ERROR;
    assert_int_equal(dtx_comm_self(ctx, self), DTX_OK);
    ckpt_temp_make(dir);
}

static void test_pairs(void **unused)
{
    (void)unused;
    struct dtx_ctx ctx;
    struct dtx_comm *self;
    char dir[256], path[4096];
    start(&ctx, &self, dir);
    for (int w = 0; w < MESHES; w++) {
        /* every other one in small boxes: rows, and single elements of a row longer than the limit */
        struct dtx_ckpt_save_options options = {.box_bytes = w % 3 == 1 ? 100 : w % 3 == 2 ? 7 : 0};
        save_mesh(&ctx, self, dir, meshes[w], w, 7, &options);
        assert_int_equal(ckpt_find_whole(&ctx, self, dir, "latest", path, sizeof path), DTX_OK);
        for (int r = 0; r < MESHES; r++)
            load_mesh(&ctx, self, path, meshes[r], 7);
    }
    dtx_comm_free(self);
    ckpt_temp_remove(dir);
}

static void test_meta(void **unused)
{
    (void)unused;
    struct dtx_ctx ctx;
    struct dtx_comm *self;
    char dir[256], path[4096], *config = malloc(200001), ledger[] = "a ledger\nof two lines\n", health[] = "health\n";
    start(&ctx, &self, dir);
    struct ckpt_state state = {0};
    ckpt_state_add(&state, meshes[0], 0, 1);
    struct dtx_ckpt_meta meta = ckpt_state_meta(123456789012, meshes[10]), got;
    memset(config, 'x', 200000); /* longer than an attribute may be */
    config[200000] = '\0';
    meta.config = config;
    meta.ledger = ledger;
    meta.health = health;
    assert_int_equal(dtx_ckpt_save(&ctx, self, dir, state.items, state.n, &meta, NULL), DTX_OK);
    assert_int_equal(ckpt_find_whole(&ctx, self, dir, "latest", path, sizeof path), DTX_OK);
    assert_int_equal(dtx_ckpt_load_meta(&ctx, self, path, &got), DTX_OK);
    assert_int_equal(got.step, meta.step);
    assert_int_equal(got.tokens, meta.tokens);
    assert_int_equal(got.samples, meta.samples);
    assert_true(got.seed == meta.seed);
    assert_memory_equal(got.mesh, meta.mesh, sizeof got.mesh);
    assert_string_equal(got.isa, meta.isa);
    assert_string_equal(got.program, meta.program);
    assert_true(got.best_heldout == 3.25);
    assert_string_equal(got.config, config);
    assert_string_equal(got.ledger, ledger);
    assert_string_equal(got.health, health);
    dtx_ckpt_meta_free(&got);
    meta.best_heldout = NAN;
    meta.config = meta.ledger = meta.health = NULL;
    assert_int_equal(dtx_ckpt_save(&ctx, self, dir, state.items, state.n, &meta, NULL),
                     DTX_OK); /* the same step again */
    assert_int_equal(dtx_ckpt_load_meta(&ctx, self, path, &got), DTX_OK);
    assert_true(isnan(got.best_heldout));
    assert_string_equal(got.config, "");
    assert_string_equal(got.ledger, "");
    dtx_ckpt_meta_free(&got);
    ckpt_state_free(&state);
    free(config);
    dtx_comm_free(self);
    ckpt_temp_remove(dir);
}

static void test_refusals(void **unused)
{
    (void)unused;
    struct dtx_ctx ctx;
    struct dtx_comm *self;
    char dir[256], path[4096];
    start(&ctx, &self, dir);
    save_mesh(&ctx, self, dir, meshes[0], 1, 1, NULL);
    assert_int_equal(ckpt_find_whole(&ctx, self, dir, "latest", path, sizeof path), DTX_OK);
    struct ckpt_state state = {0};
    ckpt_state_add(&state, meshes[0], 0, 1);
    for (int fault = 0; fault < 4; fault++) {
        static const char *const words[] = {"no array /model/absent",
                                            "has shape [101, 6]; this run's model needs [102, 6]",
                                            "stored as bf16; this run needs f32", "has shape [101, 6]"};
        struct dtx_ckpt_item item = state.items[0];
        if (fault == 0)
            strcpy(item.name, "/model/absent");
        else if (fault == 1)
            item.whole[0]++;
        else if (fault == 2)
            item.dtype = DTX_F32;
        else
            item.ndim = 1;
        assert_int_equal(dtx_ckpt_load(&ctx, self, path, &item, 1), DTX_E_CONFIG);
        if (!strstr(ctx.error.text, words[fault]))
            fail_msg("%s", ctx.error.text);
        dtx_error_clear(&ctx);
    }
    /* an element without a writer, and one with two */
    struct dtx_ckpt_meta meta = ckpt_state_meta(2, meshes[0]);
    state.items[0].boxes[0].extent[0]--;
    assert_int_equal(dtx_ckpt_save(&ctx, self, dir, state.items, state.n, &meta, NULL), DTX_E_FORMAT);
    assert_non_null(strstr(ctx.error.text, "only 600 of the 606 elements of /model/embed"));
    dtx_error_clear(&ctx);
    state.items[0].boxes[0].extent[0]++;
    state.items[0].n_boxes = 2;
    state.items[0].boxes[1] = state.items[0].boxes[0];
    state.items[0].boxes[1].global[0] = state.items[0].boxes[1].local[0] = 100;
    state.items[0].boxes[1].extent[0] = 1;
    assert_int_equal(dtx_ckpt_save(&ctx, self, dir, state.items, state.n, &meta, NULL), DTX_E_FORMAT);
    assert_non_null(strstr(ctx.error.text, "/model/embed have two writers"));
    dtx_error_clear(&ctx);
    load_mesh(&ctx, self, path, meshes[3], 1); /* the earlier one is untouched */
    ckpt_state_free(&state);
    dtx_comm_free(self);
    ckpt_temp_remove(dir);
}

/* Reads a whole virtual dataset as doubles, as any HDF5 program would; counts the values that are not right. */
static int64_t differences_seen_by_hdf5(const char *index, const char *name, enum dtx_dtype dtype, uint64_t salt,
                                        int64_t *nans)
{
    hid_t file = H5Fopen(index, H5F_ACC_RDONLY, H5P_DEFAULT);
    assert_true(file >= 0);
    hid_t set = H5Dopen2(file, name, H5P_DEFAULT), space = H5Dget_space(set);
    int64_t n = H5Sget_simple_extent_npoints(space), differences = 0;
    double *values = malloc((size_t)n * sizeof *values);
    assert_true(n > 0 && H5Dread(set, H5T_NATIVE_DOUBLE, H5S_ALL, H5S_ALL, H5P_DEFAULT, values) >= 0);
    *nans = 0;
    for (int64_t i = 0; i < n; i++) {
        *nans += isnan(values[i]);
        differences += !(values[i] == ckpt_state_value(name, dtype, i, salt));
    }
    free(values);
    H5Sclose(space);
    H5Dclose(set);
    H5Fclose(file);
    return differences;
}

static void test_virtual(void **unused)
{
    (void)unused;
    struct dtx_ctx ctx;
    struct dtx_comm *self;
    char dir[256], other[256], from[600], to[512], index[600];
    int64_t nans;
    struct rlimit few = {64, 0};
    start(&ctx, &self, dir);
    ckpt_temp_make(other);
    struct dtx_ckpt_save_options options = {.box_bytes = 24}; /* 12 boxes of two rows in attn.q, more in embed */
    save_mesh(&ctx, self, dir, meshes[10], 3, 5, &options);
    snprintf(from, sizeof from, "%s/step-00000003", dir);
    snprintf(to, sizeof to, "%s/elsewhere", other);
    snprintf(index, sizeof index, "%s/checkpoint.h5", to);
    assert_int_equal(rename(from, to), 0);
    assert_int_equal(chdir("/"), 0);
    getrlimit(RLIMIT_NOFILE, &few);
    few.rlim_cur = 64;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    assert_int_equal(differences_seen_by_hdf5(index, "/model/embed", DTX_BF16, 5, &nans), 0);
    assert_int_equal(differences_seen_by_hdf5(index, "/optimizer/master/layers.03.ffn.gate_up", DTX_F32, 5, &nans), 0);
    assert_int_equal(differences_seen_by_hdf5(index, "/optimizer/adam_m/layers.02.ffn.w2", DTX_F64, 5, &nans), 0);
    assert_int_equal(differences_seen_by_hdf5(index, "/other/i32", DTX_I32, 5, &nans), 0);
    assert_int_equal(differences_seen_by_hdf5(index, "/other/i64", DTX_I64, 5, &nans), 0);
    assert_int_equal(differences_seen_by_hdf5(index, "/other/u8", DTX_U8, 5, &nans), 0);
    load_mesh(&ctx, self, to, meshes[7], 5);
    /* without its shards the index shows NaN, never plausible numbers */
    snprintf(from, sizeof from, "%s/shard-00000.h5", to);
    assert_int_equal(unlink(from), 0);
    assert_int_equal(differences_seen_by_hdf5(index, "/model/embed", DTX_BF16, 5, &nans), 606);
    assert_int_equal(nans, 606);
    dtx_comm_free(self);
    ckpt_temp_remove(dir);
    ckpt_temp_remove(other);
}

/* HDF5 would write the hour into every group and array; so saves would differ that are of one state. */
static void test_same_bytes_later(void **unused)
{
    (void)unused;
    static const char *const files[] = {"checkpoint.h5", "shard-00000.h5", "COMPLETE"};
    struct dtx_ctx ctx;
    struct dtx_comm *self;
    struct dtx_ckpt_save_options options = {.box_bytes = 100};
    char dirs[2][256], path[600], *data[2];
    int64_t bytes[2];
    start(&ctx, &self, dirs[0]);
    ckpt_temp_make(dirs[1]);
    save_mesh(&ctx, self, dirs[0], meshes[10], 3, 5, &options);
    dtx_clock_sleep(1.1); /* in whole seconds */
    save_mesh(&ctx, self, dirs[1], meshes[10], 3, 5, &options);
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        for (int k = 0; k < 2; k++) {
            snprintf(path, sizeof path, "%s/step-00000003/%s", dirs[k], files[f]);
            assert_int_equal(dtx_disk_read(&ctx, path, INT64_MAX - 1, &data[k], &bytes[k]), DTX_OK);
        }
        assert_int_equal(bytes[0], bytes[1]);
        assert_memory_equal(data[0], data[1], (size_t)bytes[0]);
        dtx_mem_free(data[0]);
        dtx_mem_free(data[1]);
    }
    dtx_comm_free(self);
    ckpt_temp_remove(dirs[0]);
    ckpt_temp_remove(dirs[1]);
}

/* A checkpoint of format 1, written once and kept: loads for ever. */
static void test_golden(void **unused)
{
    (void)unused;
    struct dtx_ctx ctx;
    struct dtx_comm *self;
    struct dtx_ckpt_meta meta;
    char path[4096], found[4096];
    const char *source = getenv("DTX_SOURCE");
    if (!source)
        skip();
    snprintf(path, sizeof path, "%s/tests/golden/checkpoint_format_1", source);
    dtx_ctx_init(&ctx);
    assert_int_equal(dtx_comm_self(&ctx, &self), DTX_OK);
    assert_int_equal(ckpt_find_whole(&ctx, self, NULL, path, found, sizeof found), DTX_OK);
    assert_int_equal(dtx_ckpt_load_meta(&ctx, self, path, &meta), DTX_OK);
    assert_true(meta.step == 1000 && meta.tokens == 1000003000 && meta.seed == 0xfedcba9876543210u);
    assert_string_equal(meta.config, "model.width: 6\nparallel.tp: 2\n");
    assert_string_equal(meta.health, "");
    dtx_ckpt_meta_free(&meta);
    load_mesh(&ctx, self, path, meshes[10], 7);
    dtx_comm_free(self);
}

int main(int argc, char **argv)
{
    if (argc == 5 && strcmp(argv[1], "make") == 0) {
        struct dtx_ctx ctx;
        struct dtx_comm *self;
        struct ckpt_state state = {0};
        struct dtx_ckpt_meta meta = ckpt_state_meta(atoll(argv[3]), meshes[7]);
        dtx_ctx_init(&ctx);
        ckpt_state_add(&state, meshes[0], 0, strtoull(argv[4], NULL, 10));
        if (dtx_comm_self(&ctx, &self) != DTX_OK ||
            dtx_ckpt_save(&ctx, self, argv[2], state.items, state.n, &meta, NULL) != DTX_OK) {
            dtx_error_print(&ctx);
            return 1;
        }
        ckpt_state_free(&state);
        dtx_comm_free(self);
        return 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_pairs),
                                       cmocka_unit_test(test_meta),
                                       cmocka_unit_test(test_refusals),
                                       cmocka_unit_test(test_virtual),
                                       cmocka_unit_test(test_same_bytes_later),
                                       cmocka_unit_test(test_golden)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
