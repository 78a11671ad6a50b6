/* test: label=unit timeout=60 */
#include <dirent.h>
#include <sys/wait.h>

#include "data/cache.h"
#include "data/stream.h"
#include "kernels/base/mem.h"
#include "tests/unit/data_support.h"
#include "tests/unit/stream_rows.h"

/* How many there are; the name of the last. */
static int files_in(const char *folder, char *name)
{
    DIR *dir = opendir(folder);
    int n = 0;
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));)
        if (e->d_name[0] != '.') {
            snprintf(name, 256, "%s", e->d_name);
            n++;
        }
    closedir(dir);
    return n;
}

static struct dtx_stream_config config_of(const char *path, const char *cache)
{
    return (struct dtx_stream_config){
        .paths = path, .length = 10, .seed = 4, .vocab = 60000, .separator = -1, .cache_dir = cache};
}

/* The first sample makes the copy; it is read from there on, found again, and made anew for a file that was replaced or
 * where it is cut short. */
static void copies_at_the_first_sample(void **state)
{
    struct data_fixture *f = *state;
    const int64_t tokens = 501;
    char cache[512], name[256] = "", copy[1024];
    int32_t row[11], want[11];
    struct dtx_stream *s;
    snprintf(cache, sizeof cache, "%s", data_path(f, "cache"));
    data_make_tokens(f, data_path(f, "t"), 60000, &tokens, 1);
    struct dtx_stream_config config = config_of(data_path(f, "t"), cache);
    for (int round = 0; round < 3; round++) {
        data_ok(f, dtx_stream_open(&f->ctx, &config, &s));
        if (round == 0)
            assert_int_equal(access(cache, F_OK), -1);
        data_ok(f, stream_rows(&f->ctx, s, 7, 1, want, NULL));
        assert_int_equal(files_in(cache, name), 1);
        assert_non_null(strstr(name, "-t.bin"));
        snprintf(copy, sizeof copy, "%s/%s", cache, name);
        if (round == 0) { /* what is read next shows where it comes from */
            int fd = open(data_path(f, "t.bin"), O_RDWR);
            uint16_t zeros[501] = {0};
            struct stat st;
            assert_int_equal(fstat(fd, &st), 0);
            assert_int_equal(pwrite(fd, zeros, sizeof zeros, 0), sizeof zeros);
            data_ok(f, stream_rows(&f->ctx, s, 7, 1, row, NULL));
            assert_memory_equal(row, want, sizeof row);
            uint16_t ids[501];
            for (int t = 0; t < 501; t++)
                ids[t] = (uint16_t)t;
            assert_int_equal(pwrite(fd, ids, sizeof ids, 0), sizeof ids);
            struct timespec times[2] = {st.st_atim, st.st_mtim};
            assert_int_equal(futimens(fd, times), 0);
            close(fd);
        }
        dtx_stream_close(s);
        if (round == 1)
            assert_int_equal(truncate(copy, 100), 0);
    }
    struct stat st;
    assert_int_equal(stat(copy, &st), 0);
    assert_int_equal(st.st_size, 1002);
    assert_int_equal(unlink(data_path(f, "t.bin")), 0);
    uint16_t ids[501] = {5};
    data_write(data_path(f, "t.bin"), ids, sizeof ids);
    data_ok(f, dtx_stream_open(&f->ctx, &config, &s));
    data_ok(f, stream_rows(&f->ctx, s, 0, 1, row, NULL));
    assert_int_equal(files_in(cache, name), 2);
    dtx_stream_close(s);
}

/* Several processes that ask at once make one copy. */
static void one_copy_for_all(void **state)
{
    struct data_fixture *f = *state;
    size_t bytes = 3000000;
    char *data = malloc(bytes), name[256], cache[512];
    for (size_t i = 0; i < bytes; i++)
        data[i] = (char)(i * 7 + i / 1000);
    snprintf(cache, sizeof cache, "%s", data_path(f, "cache"));
    data_write(data_path(f, "big"), data, bytes);
    for (int p = 0; p < 4; p++)
        if (fork() == 0) {
            char *copy = NULL;
            size_t n = 0;
            int good = dtx_cache_copy(&f->ctx, cache, data_path(f, "big"), &copy) == DTX_OK;
            char *got = good ? data_read(copy, &n) : NULL;
            _exit(!(good && n == bytes && memcmp(got, data, n) == 0));
        }
    for (int p = 0; p < 4; p++) {
        int status;
        wait(&status);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    assert_int_equal(files_in(cache, name), 1);
    free(data);
}

/* A folder that cannot be written is a warning. */
static void reads_without_a_copy(void **state)
{
    struct data_fixture *f = *state;
    const int64_t tokens = 501;
    int32_t row[11];
    struct dtx_stream *s;
    char cache[512];
    data_make_tokens(f, data_path(f, "t"), 60000, &tokens, 1);
    snprintf(cache, sizeof cache, "%s/none/deep", f->folder);
    struct dtx_stream_config config = config_of(data_path(f, "t"), cache);
    data_ok(f, dtx_stream_open(&f->ctx, &config, &s));
    data_ok(f, stream_rows(&f->ctx, s, 7, 1, row, NULL));
    assert_int_equal(row[1], row[0] + 1);
    dtx_stream_close(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        DATA_TEST(copies_at_the_first_sample),
        DATA_TEST(one_copy_for_all),
        DATA_TEST(reads_without_a_copy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
