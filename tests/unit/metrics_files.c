/* test: label=unit timeout=30 */
/* metrics.jsonl and the event files: contents, checksums, resume, torn lines, a full disk. The decoder here shares no
 * code with the writer: its CRC is table-driven and checked against published values. */
#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "trainer/metrics.h"
#include "trainer/tfevents.h"

struct fixture {
    struct dtx_ctx ctx;
    char run[256], jsonl[300], board[300];
};

static void setup_run(struct fixture *f)
{
    dtx_ctx_init(&f->ctx);
    f->ctx.log_level = DTX_LOG_ERROR;
    snprintf(f->run, sizeof f->run, "/tmp/dtx_metrics_XXXXXX");
    assert_non_null(mkdtemp(f->run));
    snprintf(f->jsonl, sizeof f->jsonl, "%s/metrics.jsonl", f->run);
    snprintf(f->board, sizeof f->board, "%s/tensorboard", f->run);
}

static void remove_run(struct fixture *f)
{
    DIR *d = opendir(f->board);
    for (struct dirent *e = d ? readdir(d) : NULL; e; e = readdir(d))
        unlinkat(dirfd(d), e->d_name, 0);
    if (d)
        closedir(d);
    rmdir(f->board);
    unlink(f->jsonl);
    assert_int_equal(rmdir(f->run), 0);
}

static const double lambdas[] = {0.2, 0.35550906759096926};

/* Numbers of step i that are not short in decimal. */
static struct dtx_step_record make_record(int64_t i)
{
    return (struct dtx_step_record){.step = i,
                                    .steps = 10,
                                    .loss = 9.0 / (double)i + 1.0 / 3,
                                    .heldout = i % 2 == 0 ? 7.0 / (double)i : NAN,
                                    .lr = 1e-4 * (double)i,
                                    .grad_norm = 2.5,
                                    .grad_norm_clipped = 1,
                                    .targets = 1000,
                                    .targets_total = 1000 * i,
                                    .seconds = 0.5,
                                    .data_wait = 0.125,
                                    .flops = 3e9,
                                    .peak_flops = 1e10,
                                    .lambda = lambdas,
                                    .n_lambda = 2,
                                    .memory_bytes = 5368709120,
                                    .skipped = i == 3};
}

static void write_steps(struct fixture *f, int64_t resume, int64_t last)
{
    struct dtx_metrics *m = NULL;
    assert_int_equal(dtx_metrics_open(&f->ctx, f->run, resume, &m), DTX_OK);
    for (int64_t i = resume + 1; i <= last; i++) {
        struct dtx_step_record r = make_record(i);
        assert_int_equal(dtx_metrics_write(&f->ctx, m, &r), DTX_OK);
    }
    assert_int_equal(dtx_metrics_sync(&f->ctx, m), DTX_OK);
    assert_int_equal(dtx_metrics_close(&f->ctx, m), DTX_OK);
}

static size_t read_all(const char *path, uint8_t *to, size_t capacity)
{
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    size_t n = fread(to, 1, capacity, file);
    fclose(file);
    assert_true(n < capacity);
    return n;
}

static void append_text(const char *path, const char *text, size_t bytes)
{
    FILE *file = fopen(path, "a");
    assert_int_equal(fwrite(text, 1, bytes, file), bytes);
    fclose(file);
}

/* Every line parses and holds exactly the steps 1 … last. */
static void check_steps(struct fixture *f, int64_t last)
{
    FILE *file = fopen(f->jsonl, "r");
    char line[4096];
    int64_t n = 0;
    while (fgets(line, sizeof line, file)) {
        json_t *j = json_loads(line, 0, NULL);
        assert_non_null(j);
        assert_int_equal(json_integer_value(json_object_get(j, "step")), ++n);
        json_decref(j);
    }
    fclose(file);
    assert_int_equal(n, last);
}

static double number_of(json_t *j, const char *key)
{
    assert_true(json_is_number(json_object_get(j, key)));
    return json_number_value(json_object_get(j, key));
}

static void test_line(void **state)
{
    (void)state;
    struct fixture f;
    uint8_t text[8192];
    setup_run(&f);
    write_steps(&f, 0, 3);
    text[read_all(f.jsonl, text, sizeof text - 1)] = 0;
    json_t *line[3];
    char *save = NULL, *word = strtok_r((char *)text, "\n", &save);
    for (int i = 0; i < 3; i++, word = strtok_r(NULL, "\n", &save))
        assert_non_null(line[i] = json_loads(word, JSON_REJECT_DUPLICATES, NULL));
    assert_null(word);
    struct dtx_step_record r = make_record(2);
    assert_true(number_of(line[1], "loss") == r.loss && number_of(line[1], "heldout_loss") == r.heldout);
    assert_true(number_of(line[1], "lr") == r.lr && number_of(line[1], "tokens_per_s") == 2000);
    assert_true(number_of(line[1], "grad_norm") == 2.5 && number_of(line[1], "grad_norm_clipped") == 1);
    assert_true(number_of(line[1], "flops_per_s") == 6e9 && number_of(line[1], "peak_share") == 0.6);
    assert_true(number_of(line[1], "peak_flops_per_s") == 1e10 && number_of(line[1], "data_wait_seconds") == 0.125);
    assert_true(number_of(line[1], "seconds") == 0.5 && number_of(line[1], "steps") == 10);
    assert_int_equal(json_integer_value(json_object_get(line[1], "tokens")), 1000);
    assert_int_equal(json_integer_value(json_object_get(line[1], "tokens_total")), 2000);
    assert_int_equal(json_integer_value(json_object_get(line[1], "memory_bytes")), 5368709120);
    assert_true(json_is_null(json_object_get(line[0], "heldout_loss")));
    assert_true(json_is_false(json_object_get(line[1], "skipped")) &&
                json_is_true(json_object_get(line[2], "skipped")));
    json_t *lambda = json_object_get(line[1], "lambda");
    assert_int_equal(json_array_size(lambda), 2);
    for (size_t l = 0; l < 2; l++)
        assert_true(json_number_value(json_array_get(lambda, l)) == lambdas[l]);
    for (int i = 0; i < 3; i++)
        json_decref(line[i]);
    remove_run(&f);
}

static void test_no_numbers(void **state)
{
    (void)state;
    struct fixture f;
    struct dtx_metrics *m = NULL;
    struct dtx_losses losses;
    setup_run(&f);
    struct dtx_step_record r = make_record(1);
    r.loss = NAN;
    r.grad_norm = INFINITY;
    r.peak_flops = 0;
    r.seconds = 0;
    r.n_lambda = 0;
    assert_int_equal(dtx_metrics_open(&f.ctx, f.run, 0, &m), DTX_OK);
    assert_int_equal(dtx_metrics_write(&f.ctx, m, &r), DTX_OK);
    assert_int_equal(dtx_metrics_close(&f.ctx, m), DTX_OK);
    json_t *j = json_load_file(f.jsonl, 0, NULL);
    assert_non_null(j);
    static const char *const keys[] = {"loss",        "grad_norm",        "tokens_per_s",
                                       "flops_per_s", "peak_flops_per_s", "peak_share"};
    for (int i = 0; i < 6; i++)
        assert_true(json_is_null(json_object_get(j, keys[i])));
    assert_int_equal(json_array_size(json_object_get(j, "lambda")), 0);
    json_decref(j);
    assert_int_equal(dtx_metrics_read_losses(&f.ctx, f.run, &losses), DTX_OK);
    assert_true(losses.n == 1 && losses.step[0] == 1 && isnan(losses.loss[0]) && isnan(losses.heldout[0]));
    dtx_losses_free(&losses);
    remove_run(&f);
}

static void test_resume(void **state)
{
    (void)state;
    struct fixture f;
    setup_run(&f);
    write_steps(&f, 0, 5);
    write_steps(&f, 3, 6); /* steps 4 and 5 come again */
    check_steps(&f, 6);
    append_text(f.jsonl, "{\"step\":7,\"lo", 13); /* killed while writing */
    write_steps(&f, 6, 8);
    check_steps(&f, 8);
    append_text(f.jsonl, "{\"step\":9,\"loss\":1}", 19); /* whole, but without its newline */
    struct dtx_losses losses;
    write_steps(&f, 9, 10); /* must not be glued to it */
    assert_int_equal(dtx_metrics_read_losses(&f.ctx, f.jsonl, &losses), DTX_OK);
    assert_true(losses.n == 9 && losses.step[7] == 8 && losses.step[8] == 10);
    dtx_losses_free(&losses);
    write_steps(&f, 8, 9);
    check_steps(&f, 9);
    append_text(f.jsonl, "\0\0\0\0\0\n\0\0", 8); /* what a power cut may leave */
    write_steps(&f, 9, 10);
    check_steps(&f, 10);
    assert_int_equal(dtx_metrics_read_losses(&f.ctx, f.jsonl, &losses), DTX_OK);
    assert_int_equal(losses.n, 10);
    for (int64_t i = 1; i <= 10; i++) {
        struct dtx_step_record r = make_record(i);
        assert_true(losses.step[i - 1] == i && losses.loss[i - 1] == r.loss);
        assert_true(losses.heldout[i - 1] == r.heldout || (isnan(losses.heldout[i - 1]) && isnan(r.heldout)));
    }
    dtx_losses_free(&losses);
    write_steps(&f, 0, 2); /* no checkpoint was reached: from the start */
    check_steps(&f, 2);
    remove_run(&f);
}

static void test_foreign_files(void **state)
{
    (void)state;
    struct fixture f;
    struct dtx_metrics *m = NULL;
    struct dtx_losses losses;
    setup_run(&f);
    append_text(f.jsonl, "my notes\nof the run\n", 20);
    assert_int_equal(dtx_metrics_open(&f.ctx, f.run, 0, &m), DTX_E_FORMAT);
    assert_non_null(strstr(f.ctx.error.text, f.jsonl));
    dtx_error_clear(&f.ctx);
    uint8_t text[64];
    assert_int_equal(read_all(f.jsonl, text, sizeof text), 20);
    assert_int_equal(dtx_metrics_read_losses(&f.ctx, f.jsonl, &losses), DTX_E_FORMAT);
    dtx_error_clear(&f.ctx);
    remove_run(&f);
    assert_int_equal(dtx_metrics_open(&f.ctx, f.run, 0, &m), DTX_E_IO);
    assert_non_null(strstr(f.ctx.error.text, f.run));
    dtx_error_clear(&f.ctx);
    assert_int_equal(dtx_metrics_read_losses(&f.ctx, f.run, &losses), DTX_E_CONFIG);
}

static void test_full_disk(void **state)
{
    (void)state;
    struct fixture f;
    struct dtx_metrics *m = NULL;
    struct rlimit before, small;
    uint8_t text[16384];
    setup_run(&f);
    assert_int_equal(dtx_metrics_open(&f.ctx, f.run, 0, &m), DTX_OK);
    struct dtx_step_record r = make_record(1);
    assert_int_equal(dtx_metrics_write(&f.ctx, m, &r), DTX_OK);
    size_t line = read_all(f.jsonl, text, sizeof text);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = line + line / 2;
    setrlimit(RLIMIT_FSIZE, &small);
    r = make_record(2);
    assert_int_equal(dtx_metrics_write(&f.ctx, m, &r), DTX_E_IO);
    setrlimit(RLIMIT_FSIZE, &before);
    dtx_error_clear(&f.ctx);
    assert_int_equal(read_all(f.jsonl, text, sizeof text), line);
    assert_int_equal(dtx_metrics_write(&f.ctx, m, &r), DTX_OK); /* there is room again */
    assert_int_equal(dtx_metrics_close(&f.ctx, m), DTX_OK);
    check_steps(&f, 2);
    remove_run(&f);
}

static uint32_t table_crc(const uint8_t *p, size_t n)
{
    uint32_t table[256], crc = 0xffffffffu;
    for (uint32_t i = 0; i < 256; i++) {
        table[i] = i;
        for (int k = 0; k < 8; k++)
            table[i] = table[i] & 1 ? (table[i] >> 1) ^ 0x82F63B78u : table[i] >> 1;
    }
    for (size_t i = 0; i < n; i++)
        crc = table[(crc ^ p[i]) & 0xff] ^ (crc >> 8);
    return ~crc;
}

/* RFC 3720, B.4, and the check value of the CRC catalogues. */
static void test_crc(void **state)
{
    (void)state;
    uint8_t zeros[32] = {0}, ones[32], up[32], down[32];
    for (int i = 0; i < 32; i++) {
        ones[i] = 0xff;
        up[i] = (uint8_t)i;
        down[i] = (uint8_t)(31 - i);
    }
    assert_int_equal(table_crc((const uint8_t *)"123456789", 9), 0xE3069283u);
    assert_int_equal(dtx_crc32c(0, "123456789", 9), 0xE3069283u);
    assert_int_equal(dtx_crc32c(dtx_crc32c(0, "1234", 4), "56789", 5), 0xE3069283u);
    assert_int_equal(dtx_crc32c(0, zeros, 32), 0x8A9136AAu);
    assert_int_equal(dtx_crc32c(0, ones, 32), 0x62A8AB43u);
    assert_int_equal(dtx_crc32c(0, up, 32), 0x46DD794Eu);
    assert_int_equal(dtx_crc32c(0, down, 32), 0x113FDB5Cu);
}

static uint64_t le(const uint8_t *p, int bytes)
{
    uint64_t v = 0;
    for (int i = bytes - 1; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

static uint64_t varint(const uint8_t **p)
{
    uint64_t v = 0;
    int shift = 0;
    do
        v |= (uint64_t)(**p & 0x7f) << shift, shift += 7;
    while (*(*p)++ & 0x80);
    return v;
}

struct event {
    double wall_time;
    int64_t step;
    char version[32];
    int n, session;
    char tag[32][64];
    float value[32];
};

static void decode_value(const uint8_t *p, const uint8_t *end, struct event *e)
{
    assert_true(e->n < 32);
    while (p < end) {
        uint64_t key = varint(&p);
        if (key == (1 << 3 | 2)) {
            uint64_t n = varint(&p);
            assert_true(n < 64);
            memcpy(e->tag[e->n], p, n);
            p += n;
        } else {
            assert_int_equal(key, 2 << 3 | 5);
            uint32_t bits = (uint32_t)le(p, 4);
            memcpy(&e->value[e->n], &bits, 4);
            p += 4;
        }
    }
    assert_true(p == end);
    e->n++;
}

static void decode_event(const uint8_t *p, const uint8_t *end, struct event *e)
{
    memset(e, 0, sizeof *e);
    while (p < end) {
        uint64_t key = varint(&p);
        if (key == (1 << 3 | 1)) {
            uint64_t bits = le(p, 8);
            memcpy(&e->wall_time, &bits, 8);
            p += 8;
        } else if (key == (2 << 3 | 0)) {
            e->step = (int64_t)varint(&p);
        } else {
            assert_int_equal(key & 7, 2);
            uint64_t n = varint(&p);
            const uint8_t *inner = p, *inner_end = p + n;
            p = inner_end;
            if (key >> 3 == 3) {
                memcpy(e->version, inner, n);
            } else if (key >> 3 == 7) {
                assert_int_equal(varint(&inner), 1 << 3 | 0);
                e->session = (int)varint(&inner);
            } else {
                assert_int_equal(key >> 3, 5);
                while (inner < inner_end) {
                    assert_int_equal(varint(&inner), 1 << 3 | 2);
                    uint64_t bytes = varint(&inner);
                    decode_value(inner, inner + bytes, e);
                    inner += bytes;
                }
                assert_true(inner == inner_end);
            }
        }
    }
    assert_true(p == end);
}

static uint32_t masked(const uint8_t *p, size_t n)
{
    uint32_t crc = table_crc(p, n);
    return (crc >> 15 | crc << 17) + 0xa282ead8u;
}

static int decode_file(const char *path, struct event *events, int capacity)
{
    uint8_t bytes[65536];
    size_t total = read_all(path, bytes, sizeof bytes), at = 0;
    int n = 0;
    while (at < total) {
        size_t length = le(bytes + at, 8);
        assert_true(at + 16 + length <= total && n < capacity);
        assert_int_equal(le(bytes + at + 8, 4), masked(bytes + at, 8));
        assert_int_equal(le(bytes + at + 12 + length, 4), masked(bytes + at + 12, length));
        decode_event(bytes + at + 12, bytes + at + 12 + length, &events[n++]);
        at += 16 + length;
    }
    return n;
}

static float value_of(const struct event *e, const char *tag)
{
    for (int i = 0; i < e->n; i++)
        if (strcmp(e->tag[i], tag) == 0)
            return e->value[i];
    return -12345;
}

static void test_event_files(void **state)
{
    (void)state;
    struct fixture f;
    struct dirent **names;
    struct event events[16];
    char path[600];
    setup_run(&f);
    write_steps(&f, 0, 3);
    write_steps(&f, 2, 130);                                        /* steps over 127 take two bytes */
    assert_int_equal(scandir(f.board, &names, NULL, alphasort), 4); /* with . and .. */
    snprintf(path, sizeof path, "%s/%s", f.board, names[2]->d_name);
    assert_int_equal(decode_file(path, events, 16), 5);
    assert_string_equal(events[0].version, "brain.Event:2");
    assert_true(events[1].session == 1 && events[1].step == 1);
    for (int64_t i = 1; i <= 3; i++) {
        struct dtx_step_record r = make_record(i);
        const struct event *e = &events[i + 1];
        assert_true(e->step == i && e->wall_time > 1.7e9);
        assert_true(value_of(e, "train/loss") == (float)r.loss && value_of(e, "train/lr") == (float)r.lr);
        assert_true(value_of(e, "heldout/loss") == (i == 2 ? 3.5f : -12345));
        assert_true(value_of(e, "lambda/layer_01") == (float)lambdas[1] && value_of(e, "speed/peak_share") == 0.6f);
        assert_true(value_of(e, "train/grad_norm") == 2.5f && value_of(e, "speed/tokens_per_s") == 2000);
        assert_true(value_of(e, "memory/gib") == 5);
    }
    static struct event many[140];
    snprintf(path, sizeof path, "%s/%s", f.board, names[3]->d_name);
    assert_int_equal(decode_file(path, many, 140), 130);
    assert_true(many[1].session == 1 && many[1].step == 3); /* the reader drops step 3 of the first attempt */
    assert_true(many[2].step == 3 && many[129].step == 130);
    for (int i = 0; i < 4; i++)
        free(names[i]);
    free(names);
    remove_run(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_line),          cmocka_unit_test(test_no_numbers), cmocka_unit_test(test_resume),
        cmocka_unit_test(test_foreign_files), cmocka_unit_test(test_full_disk),  cmocka_unit_test(test_crc),
        cmocka_unit_test(test_event_files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
