#include "tests/fuzz/case.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/rng.h"
#include "parallel/schedule.h"

/* key: the product's option that takes the value as it stands; NULL where several options or the batch follow. */
static const struct {
    const char *name, *key, *values[FUZZ_VALUES];
} options[FUZZ_OPTIONS] = {
    [FUZZ_PP] = {"pp", "parallel.pp", {"1", "2", "3", "4", "7"}},
    [FUZZ_TP] = {"tp", "parallel.tp", {"1", "2", "3", "4", "6"}},
    [FUZZ_DP] = {"dp", "parallel.dp", {"1", "2", "3", "4", "7"}},
    [FUZZ_CP] = {"cp", "parallel.cp", {"1", "2", "3", "4", "6"}},
    [FUZZ_EXCHANGE] = {"exchange", "parallel.cp_exchange", {"gather", "ring"}},
    [FUZZ_CHUNKS] = {"chunks", "parallel.chunks", {"1", "2", "3"}},
    [FUZZ_SCHEDULE] = {"schedule", "parallel.schedule", {"1f1b", "gpipe", "interleaved", "zb_h1"}},
    [FUZZ_ZERO] = {"zero", "parallel.zero", {"0", "1", "2"}},
    [FUZZ_BUCKET] = {"bucket", "parallel.bucket_bytes", {"67108864", "4096", "20000", "100000"}},
    [FUZZ_OVERLAP] = {"overlap", "comm.overlap", {"false", "true"}},
    [FUZZ_SEQUENCE] = {"sequence", "parallel.sequence", {"false", "true"}},
    [FUZZ_RECOMPUTE] = {"recompute", "train.recompute", {"none", "attention", "block", "attention:2", "block:2"}},
    [FUZZ_LAYOUT] = {"layout", NULL, {"even", "flops", "front", "back", "hollow"}},
    [FUZZ_MICRO_BATCHES] = {"micro_batches", NULL, {"1", "2", "3", "4", "6"}},
    [FUZZ_MICRO_BATCH] = {"micro_batch", "train.micro_batch", {"1", "2", "3"}},
    [FUZZ_DOCUMENTS] = {"documents", NULL, {"no", "yes"}},
    [FUZZ_TARGETS] = {"targets", NULL, {"all", "unequal", "sparse"}},
    [FUZZ_ATTENTION] = {"attention", "model.attention", {"softmax", "diff"}},
    [FUZZ_SUBNORM] = {"subnorm", "model.subnorm", {"affine", "plain", "none"}},
    [FUZZ_LAMBDA_INIT] = {"lambda_init", "model.lambda_init", {"depth", "0.4"}},
    [FUZZ_GROUPED] = {"grouped", NULL, {"no", "yes"}},
    [FUZZ_TIED] = {"tied", "model.tied", {"false", "true"}},
    [FUZZ_CLIP] = {"clip", "optim.clip", {"0", "0.05"}},
    [FUZZ_HEADS] = {"heads", NULL, {"4", "6"}},
    [FUZZ_LAYERS] = {"layers", "model.layers", {"2", "3", "4", "7"}},
    [FUZZ_LENGTH] = {"length", "train.length", {"12", "24", "7"}},
    [FUZZ_VOCAB] = {"vocab", "model.vocab", {"64", "67", "5"}},
    [FUZZ_FFN] = {"ffn", "model.ffn", {"48", "44", "5"}},
    [FUZZ_TRANSFER] = {"transfer", "model.transfer", {"none", "completep"}},
};
enum { MOST_SEQUENCES = 48, TRIES = 40000, REFUSALS = 200, HEAD_DIM = 4, WANTED = 2 };

static int values_of(int option)
{
    int n = 0;
    while (n < FUZZ_VALUES && options[option].values[n])
        n++;
    return n;
}

const char *fuzz_value(const struct fuzz_case *c, enum fuzz_option option)
{
    return options[option].values[c->value[option]];
}

int fuzz_number(const struct fuzz_case *c, enum fuzz_option option)
{
    return atoi(fuzz_value(c, option));
}

int fuzz_ranks(const struct fuzz_case *c)
{
    return fuzz_number(c, FUZZ_TP) * fuzz_number(c, FUZZ_PP) * fuzz_number(c, FUZZ_DP) * fuzz_number(c, FUZZ_CP);
}

static int sequences(const struct fuzz_case *c)
{
    return fuzz_number(c, FUZZ_DP) * fuzz_number(c, FUZZ_MICRO_BATCHES) * fuzz_number(c, FUZZ_MICRO_BATCH);
}

void fuzz_print(const struct fuzz_case *c, char *text)
{
    size_t used = 0;
    text[0] = '\0';
    for (int o = 0; o < FUZZ_OPTIONS; o++)
        if (c->value[o] && used < FUZZ_TEXT)
            used += (size_t)snprintf(text + used, FUZZ_TEXT - used, "%s%s=%s", used ? " " : "", options[o].name,
                                     fuzz_value(c, o));
}

static bool parse_word(const char *word, struct fuzz_case *c)
{
    for (int o = 0; o < FUZZ_OPTIONS; o++)
        for (int v = 0; v < values_of(o); v++) {
            char known[64];
            snprintf(known, sizeof known, "%s=%s", options[o].name, options[o].values[v]);
            if (strcmp(word, known) == 0) {
                c->value[o] = v;
                return true;
            }
        }
    return false;
}

bool fuzz_parse(const char *text, struct fuzz_case *c)
{
    char copy[FUZZ_TEXT], *rest = copy;
    snprintf(copy, sizeof copy, "%s", text);
    memset(c, 0, sizeof *c);
    for (char *word; (word = strsep(&rest, " "));)
        if (*word && !parse_word(word, c))
            return false;
    return true;
}

const char *fuzz_missing_schedule(void)
{
    int n;
    const struct dtx_schedule *const *list = dtx_schedule_list(&n);
    for (int i = 0; i < n; i++) {
        bool known = false;
        for (int v = 0; v < values_of(FUZZ_SCHEDULE); v++)
            known = known || strcmp(list[i]->name, options[FUZZ_SCHEDULE].values[v]) == 0;
        if (!known)
            return list[i]->name;
    }
    return NULL;
}

static void set_number(struct dtx_opt *opt, const char *key, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    dtx_opt_set(opt, key, text, DTX_OPT_FLAG, "fuzz");
}

/* Blocks of each part, all by the first or last part but one for each other; or none at both ends. */
static void set_layout(struct dtx_opt *opt, const struct fuzz_case *c)
{
    const char *kind = fuzz_value(c, FUZZ_LAYOUT);
    int parts = fuzz_number(c, FUZZ_PP) * fuzz_number(c, FUZZ_CHUNKS), layers = fuzz_number(c, FUZZ_LAYERS);
    bool hollow = strcmp(kind, "hollow") == 0, front = strcmp(kind, "front") == 0;
    if (strcmp(kind, "flops") == 0)
        dtx_opt_set(opt, "parallel.balance", "flops", DTX_OPT_FLAG, "fuzz");
    if (strcmp(kind, "even") == 0 || strcmp(kind, "flops") == 0)
        return;
    int first = hollow ? 0 : front ? layers - parts + 1 : 1; /* below 0: refused by the product */
    int middle = parts - 2 > 0 ? parts - 2 : 0, left = layers - first;
    char text[160];
    size_t used = (size_t)snprintf(text, sizeof text, "%d", first);
    for (int p = 1; p < parts; p++) {
        bool last = p == parts - 1;
        int count = !last ? (hollow && p == 1 ? layers - (middle - 1) : 1) : hollow && middle ? 0 : left;
        left -= count;
        used += (size_t)snprintf(text + used, sizeof text - used, ",%d", count);
    }
    dtx_opt_set(opt, "parallel.layout", text, DTX_OPT_FLAG, "fuzz");
}

static void set_model(struct dtx_opt *opt, const struct fuzz_case *c)
{
    int maps = strcmp(fuzz_value(c, FUZZ_ATTENTION), "diff") == 0 ? 2 : 1, pairs = fuzz_number(c, FUZZ_HEADS);
    int heads = maps == 2 ? pairs : 2 * pairs;
    set_number(opt, "model.width", 2 * pairs * HEAD_DIM);
    set_number(opt, "model.head_dim", HEAD_DIM);
    set_number(opt, "model.heads", heads);
    set_number(opt, "model.kv_heads", c->value[FUZZ_GROUPED] ? heads / 2 : heads);
    if (c->value[FUZZ_TRANSFER]) {
        set_number(opt, "model.base_width", 20);
        set_number(opt, "model.base_layers", 2);
        set_number(opt, "model.base_head_dim", 2);
        dtx_opt_set(opt, "model.embed_mult", "1.7", DTX_OPT_FLAG, "fuzz");
        dtx_opt_set(opt, "model.output_mult", "2.3", DTX_OPT_FLAG, "fuzz");
    }
}

bool fuzz_config(struct dtx_ctx *ctx, const struct fuzz_case *c, bool reference, struct dtx_opt **opt,
                 struct dtx_engine_config *out)
{
    const struct dtx_opt_row *const tables[] = {dtx_train_options};
    struct fuzz_case plain = *c;
    if (reference)
        for (int o = FUZZ_PP; o <= FUZZ_MICRO_BATCH; o++)
            plain.value[o] = 0;
    if (dtx_opt_create(ctx, tables, 1, opt) != DTX_OK)
        abort();
    for (int o = 0; o < FUZZ_OPTIONS; o++)
        if (options[o].key)
            dtx_opt_set(*opt, options[o].key, fuzz_value(&plain, o), DTX_OPT_FLAG, "fuzz");
    dtx_opt_set(*opt, "train.dtype", "f64", DTX_OPT_FLAG, "fuzz");
    set_number(*opt, "train.batch", sequences(c));
    set_model(*opt, c);
    set_layout(*opt, &plain);
    dtx_engine_config_read(*opt, reference ? 1 : fuzz_ranks(c), out);
    bool valid = dtx_opt_check(ctx, *opt) == DTX_OK;
    if (!valid)
        dtx_error_clear(ctx);
    return valid;
}

bool fuzz_valid(struct dtx_ctx *ctx, const struct fuzz_case *c, int max_ranks)
{
    struct dtx_opt *opt;
    struct dtx_engine_config config;
    if (fuzz_ranks(c) > max_ranks || sequences(c) > MOST_SEQUENCES)
        return false;
    bool valid = fuzz_config(ctx, c, false, &opt, &config);
    dtx_opt_free(opt);
    return valid;
}

/* Rules that rule out most of what the product would refuse, at less cost. */
static bool plausible(const struct fuzz_case *c, int max_ranks)
{
    const struct dtx_schedule *schedule = dtx_schedule_find(fuzz_value(c, FUZZ_SCHEDULE));
    const char *layout = fuzz_value(c, FUZZ_LAYOUT);
    int pp = fuzz_number(c, FUZZ_PP), chunks = fuzz_number(c, FUZZ_CHUNKS), parts = pp * chunks;
    bool hollow = strcmp(layout, "hollow") == 0;
    if (fuzz_ranks(c) > max_ranks || sequences(c) > MOST_SEQUENCES)
        return false;
    int cp = fuzz_number(c, FUZZ_CP);
    if (cp == 1 ? c->value[FUZZ_EXCHANGE] != 0 : fuzz_number(c, FUZZ_LENGTH) % (2 * cp) != 0)
        return false;
    if (pp == 1)
        return chunks == 1 && !hollow && strcmp(layout, "back") != 0;
    return chunks <= schedule->max_chunks && parts - (hollow ? 2 : 0) <= fuzz_number(c, FUZZ_LAYERS) &&
           fuzz_number(c, FUZZ_MICRO_BATCHES) % dtx_schedule_multiple(schedule, pp, chunks) == 0;
}

static int chance(struct fuzz_coverage *g, int below)
{
    return (int)(dtx_rng_uniform(g->key, g->drawn++) * below);
}

/* Everything by chance but the values of two options. */
static bool draw_with(struct dtx_ctx *ctx, struct fuzz_coverage *g, int max_ranks, int a, int va, int b, int vb,
                      struct fuzz_case *c)
{
    for (int t = 0, refused = 0; t < TRIES && refused < REFUSALS; t++) {
        for (int o = 0; o < FUZZ_OPTIONS; o++)
            c->value[o] = o == a ? va : o == b ? vb : chance(g, values_of(o));
        if (!plausible(c, max_ranks))
            continue;
        if (fuzz_valid(ctx, c, max_ranks))
            return true;
        refused++;
    }
    return false;
}

/* One of the pairs seen least, from a place by chance on; false when all were seen often enough. */
static bool least_seen(struct fuzz_coverage *g, int pair[4])
{
    int least = WANTED, turn = chance(g, FUZZ_OPTIONS);
    for (int i = 0; i < FUZZ_OPTIONS; i++)
        for (int j = 0; j < FUZZ_OPTIONS; j++) {
            int a = (i + turn) % FUZZ_OPTIONS, b = (j + turn) % FUZZ_OPTIONS;
            for (int va = 0; a < b && va < values_of(a); va++)
                for (int vb = 0; vb < values_of(b); vb++)
                    if (g->seen[a][va][b][vb] < least && !g->impossible[a][va][b][vb]) {
                        least = g->seen[a][va][b][vb];
                        memcpy(pair, (int[]){a, va, b, vb}, 4 * sizeof *pair);
                    }
        }
    return least < WANTED;
}

struct fuzz_case fuzz_draw(struct dtx_ctx *ctx, struct fuzz_coverage *g, int max_ranks)
{
    struct fuzz_case c;
    int pair[4];
    bool found = false;
    while (!found && least_seen(g, pair)) {
        found = draw_with(ctx, g, max_ranks, pair[0], pair[1], pair[2], pair[3], &c);
        if (!found)
            g->impossible[pair[0]][pair[1]][pair[2]][pair[3]] = true;
    }
    while (!found)
        found = draw_with(ctx, g, max_ranks, -1, 0, -1, 0, &c);
    fuzz_count(g, &c, 1);
    return c;
}

void fuzz_count(struct fuzz_coverage *g, const struct fuzz_case *c, int times)
{
    for (int a = 0; a < FUZZ_OPTIONS; a++)
        for (int b = a + 1; b < FUZZ_OPTIONS; b++)
            g->seen[a][c->value[a]][b][c->value[b]] += times;
}

void fuzz_report(const struct fuzz_coverage *g)
{
    int pairs = 0, often = 0, never = 0;
    for (int a = 0; a < FUZZ_OPTIONS; a++)
        for (int b = a + 1; b < FUZZ_OPTIONS; b++)
            for (int va = 0; va < values_of(a); va++)
                for (int vb = 0; vb < values_of(b); vb++) {
                    int seen = g->seen[a][va][b][vb];
                    bool impossible = g->impossible[a][va][b][vb] && seen == 0;
                    pairs++;
                    often += seen >= WANTED;
                    never += impossible;
                    if (seen < WANTED)
                        printf("pair: %s=%s %s=%s: %s\n", options[a].name, options[a].values[va], options[b].name,
                               options[b].values[vb],
                               impossible ? "no valid case"
                               : seen     ? "once"
                                          : "never");
                }
    printf("coverage: %d pairs of values; %d seen at least twice, %d in no valid case, %d seen less than twice\n",
           pairs, often, never, pairs - often - never);
}

int fuzz_smaller(struct dtx_ctx *ctx, const struct fuzz_case *c, int max_ranks, struct fuzz_case *out, int capacity)
{
    int n = 0;
    for (int o = 0; o < FUZZ_OPTIONS; o++)
        for (int v = 0; v < c->value[o] && n < capacity; v++) {
            out[n] = *c;
            out[n].value[o] = v;
            n += fuzz_valid(ctx, &out[n], max_ranks);
        }
    return n;
}
