#include "trainer/stages.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/mutant.h"
#include "trainer/config.h"

static const char key_of_stages[] = "train.stages";
static const char blanks[] = " \t\n";

/* One stage of the text: where it begins, and its settings one by one. */
struct stage {
    const char *at; /* what is to be read next */
    int64_t tokens;
    char key[64], value[4096];
};

/* The next stage's beginning; false: the text ends, or (*fault) is no stage. */
static bool next_stage(struct stage *s, const char **fault)
{
    char *end;
    s->at += strspn(s->at, " \t\n;");
    if (!*s->at)
        return false;
    double tokens = strtod(s->at, &end);
    if (end == s->at || !strchr(blanks, *end) || !(tokens >= 1 && tokens < 9e18)) {
        *fault = "a stage begins with the number of tokens from which it counts";
        return false;
    }
    s->tokens = (int64_t)tokens;
    s->at = end;
    return true;
}

/* The next key=value of the stage; false: it ends, or *fault says why not. */
static bool next_setting(struct stage *s, const char **fault)
{
    s->at += strspn(s->at, blanks);
    if (!*s->at || *s->at == ';')
        return false;
    size_t n = strcspn(s->at, "= \t\n;");
    bool quoted = s->at[n] == '=' && s->at[n + 1] == '\'';
    const char *value = s->at + n + 1 + quoted;
    if (s->at[n] != '=' || n >= sizeof s->key) {
        *fault = "a stage has settings of the form key=value, separated by blanks";
        return false;
    }
    size_t m = strcspn(value, quoted ? "'" : " \t\n;");
    if (m >= sizeof s->value || (quoted && value[m] != '\'')) {
        *fault = "a quoted value does not end, or a value is too long";
        return false;
    }
    snprintf(s->key, sizeof s->key, "%.*s", (int)n, s->at);
    snprintf(s->value, sizeof s->value, "%.*s", (int)m, value);
    s->at = value + m + quoted;
    return true;
}

/* May a stage set it? An unknown key is left to dtx_opt_set, which knows the nearest. */
static bool may_change(const char *key)
{
    for (const struct dtx_opt_row *row = dtx_train_options; row->key; row++)
        if (strcmp(row->key, key) == 0)
            return row->resume == DTX_OPT_FREE && strcmp(key, key_of_stages) != 0;
    return true;
}

void dtx_stages_apply(struct dtx_opt *opt, int64_t tokens)
{
    char *text = strdup(dtx_opt_text(opt, key_of_stages)); /* settings move what the option holds */
    struct stage s = {.at = text ? text : ""};
    const char *fault = NULL;
    int64_t before = 0;
    while (next_stage(&s, &fault)) {
        if (s.tokens <= before)
            dtx_opt_fault(opt, "%s: the stage from %lld tokens on stands behind one from %lld on", key_of_stages,
                          (long long)s.tokens, (long long)before);
        before = s.tokens;
        while (next_setting(&s, &fault))
            if (!may_change(s.key))
                dtx_opt_fault(opt, "%s: %s may not change within a run", key_of_stages, s.key);
            else if (s.tokens <= tokens || DTX_MUTANT(stages_begin_at_once))
                dtx_opt_set(opt, s.key, s.value, DTX_OPT_FLAG, key_of_stages);
        if (fault)
            break;
    }
    if (fault)
        dtx_opt_fault(opt, "%s: '%.60s…': %s", key_of_stages, s.at, fault);
    free(text);
}

int64_t dtx_stages_next(const struct dtx_opt *opt, int64_t tokens)
{
    struct stage s = {.at = dtx_opt_text(opt, key_of_stages)};
    const char *fault = NULL;
    while (next_stage(&s, &fault)) {
        if (s.tokens > tokens)
            return s.tokens;
        while (next_setting(&s, &fault))
            continue;
    }
    return INT64_MAX;
}
