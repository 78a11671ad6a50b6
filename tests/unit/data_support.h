/* What the tests of data/ share: a folder that vanishes, files, and expected failures. */
#ifndef DTX_TESTS_UNIT_DATA_SUPPORT_H
#define DTX_TESTS_UNIT_DATA_SUPPORT_H

#include <fcntl.h>
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "data/source.h"
#include "data/tokenwriter.h"
#include "kernels/base/status.h"

struct data_fixture {
    struct dtx_ctx ctx;
    char folder[256];
    struct dtx_filepool *files;
};

static inline int data_remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
    (void)st, (void)flag, (void)ftw;
    return remove(path);
}

static inline int data_setup(void **state)
{
    struct data_fixture *f = calloc(1, sizeof *f);
    const char *base = getenv("TMPDIR");
    dtx_ctx_init(&f->ctx);
    f->ctx.log_level = DTX_LOG_ERROR;
    snprintf(f->folder, sizeof f->folder, "%s/dtx-data-XXXXXX", base ? base : "/tmp");
    *state = f;
    return mkdtemp(f->folder) && dtx_filepool_create(&f->ctx, false, 0, &f->files) == DTX_OK ? 0 : -1;
}

static inline int data_teardown(void **state)
{
    struct data_fixture *f = *state;
    dtx_filepool_free(f->files);
    int rc = nftw(f->folder, data_remove_one, 8, FTW_DEPTH | FTW_PHYS);
    free(f);
    return rc;
}

#define DATA_TEST(name) cmocka_unit_test_setup_teardown(name, data_setup, data_teardown)

/* A path in the test's folder; sixteen live at a time. */
static inline const char *data_path(struct data_fixture *f, const char *name)
{
    static _Thread_local char paths[16][512];
    static _Thread_local int next;
    char *p = paths[next++ % 16];
    snprintf(p, sizeof *paths, "%s/%s", f->folder, name);
    return p;
}

/* A file of the source tree. */
static inline const char *data_source(const char *name)
{
    static _Thread_local char path[1024];
    const char *root = getenv("DTX_SOURCE");
    snprintf(path, sizeof path, "%s/%s", root ? root : ".", name);
    return path;
}

static inline void data_write(const char *path, const void *bytes, size_t n)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

/* The whole file, NUL-terminated; free it. */
static inline char *data_read(const char *path, size_t *n)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    *n = (size_t)ftell(file);
    rewind(file);
    char *bytes = calloc(1, *n + 1);
    assert_int_equal(fread(bytes, 1, *n, file), *n);
    fclose(file);
    return bytes;
}

static inline void data_ok(struct data_fixture *f, enum dtx_status status)
{
    if (status != DTX_OK)
        fail_msg("%s", f->ctx.error.text);
}

/* The call failed as `expected` with a message that has all of the words up to NULL. */
static inline void data_fails(struct data_fixture *f, enum dtx_status got, enum dtx_status expected, ...)
{
    va_list words;
    assert_int_equal(got, expected);
    va_start(words, expected);
    for (const char *word; (word = va_arg(words, const char *));)
        if (!strstr(f->ctx.error.text, word))
            fail_msg("'%s' does not name '%s'", f->ctx.error.text, word);
    va_end(words);
    dtx_error_clear(&f->ctx);
}

/* Overwrites n bytes of a file, or cuts or grows it to `at` bytes when n is 0. */
static inline void data_patch(const char *path, off_t at, const void *bytes, size_t n)
{
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    if (n)
        assert_int_equal(pwrite(fd, bytes, n, at), n);
    else
        assert_int_equal(ftruncate(fd, at), 0);
    close(fd);
}

static inline enum dtx_status data_try_source(struct data_fixture *f, const char *path, int64_t vocab,
                                              struct dtx_source **out)
{
    struct dtx_source_config config = {.files = f->files, .vocab = vocab, .separator = -1};
    *out = NULL;
    return dtx_source_open(&f->ctx, &config, path, out);
}

static inline struct dtx_source *data_open_source(struct data_fixture *f, const char *path, int64_t vocab)
{
    struct dtx_source *s;
    data_ok(f, data_try_source(f, path, vocab, &s));
    return s;
}

/* A token file with ids 0, 1, 2, … modulo vocab in documents of the given lengths. */
static inline void data_make_tokens(struct data_fixture *f, const char *prefix, int64_t vocab, const int64_t *lengths,
                                    int n)
{
    struct dtx_tokenwriter *w;
    data_ok(f, dtx_tokenwriter_create(&f->ctx, prefix, vocab, 0, &w));
    int64_t next = 0;
    for (int d = 0; d < n; d++) {
        for (int64_t t = 0; t < lengths[d]; t++) {
            int32_t id = (int32_t)(next++ % vocab);
            data_ok(f, dtx_tokenwriter_add(&f->ctx, w, &id, 1));
        }
        data_ok(f, dtx_tokenwriter_end(&f->ctx, w));
    }
    data_ok(f, dtx_tokenwriter_publish(&f->ctx, w));
}

#endif
