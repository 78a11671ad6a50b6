/* One value of an option: from text, to its canonical text, within its range. */
#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/mutant.h"
#include "kernels/base/opt_impl.h"

static bool parse_int(const char *text, int64_t *out)
{
    const char *p = text;
    bool negative = *p == '-';
    if (*p == '-' || *p == '+')
        p++;
    if (!isdigit((unsigned char)*p))
        return false;
    int64_t value = 0;
    for (; isdigit((unsigned char)*p) || (*p == '_' && isdigit((unsigned char)p[1])); p++)
        if (*p != '_' &&
            (__builtin_mul_overflow(value, 10, &value) || (negative ? __builtin_sub_overflow(value, *p - '0', &value)
                                                                    : __builtin_add_overflow(value, *p - '0', &value))))
            return false;
    static const char suffixes[] = "KMG";
    const char *suffix = *p ? strchr(suffixes, *p) : NULL;
    if (suffix) {
        for (const char *s = suffixes; s <= suffix; s++)
            if (__builtin_mul_overflow(value, 1000, &value))
                return false;
        p++;
    }
    *out = value;
    return *p == '\0';
}

static bool parse_real(const char *text, double *out)
{
    if (!*text || isspace((unsigned char)*text))
        return false;
    char *end;
    *out = strtod(text, &end);
    return *end == '\0' && isfinite(*out);
}

bool dtx_opt_parse_bool(const char *text, bool *out)
{
    static const char *const words[] = {"false", "no", "off", "true", "yes", "on"};
    for (int i = 0; i < 6; i++)
        if (strcmp(text, words[i]) == 0) {
            *out = i >= 3;
            return true;
        }
    return false;
}

/* YAML holds Unicode only: what could not be stored in a checkpoint is refused when it is set. */
static bool is_utf8(const char *text)
{
    const unsigned char *p = (const unsigned char *)text;
    while (*p) {
        int more = *p < 0x80                 ? 0
                   : *p >= 0xc2 && *p < 0xe0 ? 1
                   : *p >= 0xe0 && *p < 0xf0 ? 2
                   : *p >= 0xf0 && *p < 0xf5 ? 3
                                             : -1;
        if (more < 0)
            return false;
        uint32_t code = more == 0 ? *p : *p & (0x3fu >> more);
        p++;
        for (int i = 0; i < more; i++, p++) {
            if ((*p & 0xc0) != 0x80)
                return false;
            code = code << 6 | (*p & 0x3f);
        }
        bool surrogate = code >= 0xd800 && code < 0xe000;
        if (surrogate || (more == 2 && code < 0x800) || (more == 3 && (code < 0x10000 || code > 0x10ffff)))
            return false;
    }
    return true;
}

/* Splits "lowest..highest"; an end that is missing becomes "". */
static void split_range(const char *range, char low[DTX_OPT_KEY_LENGTH], char high[DTX_OPT_KEY_LENGTH])
{
    const char *dots = strstr(range, "..");
    snprintf(low, DTX_OPT_KEY_LENGTH, "%.*s", dots ? (int)(dots - range) : 0, range);
    snprintf(high, DTX_OPT_KEY_LENGTH, "%s", dots ? dots + 2 : "");
}

static bool in_range(const struct dtx_opt_row *row, const struct opt_value *value)
{
    if (!row->range)
        return true;
    char low[DTX_OPT_KEY_LENGTH], high[DTX_OPT_KEY_LENGTH];
    split_range(row->range, low, high);
    if (row->type == DTX_OPT_REAL)
        return (!*low || value->real >= strtod(low, NULL)) && (!*high || value->real <= strtod(high, NULL));
    int64_t lowest = INT64_MIN, highest = INT64_MAX;
    return (!*low || parse_int(low, &lowest)) && (!*high || parse_int(high, &highest)) && value->integer >= lowest &&
           value->integer <= highest;
}

static bool is_choice(const char *choices, const char *text)
{
    size_t length = strlen(text);
    for (const char *p = choices; p && *p; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL)
        if (strncmp(p, text, length) == 0 && (p[length] == '|' || p[length] == '\0'))
            return length > 0 && !strchr(text, '|');
    return false;
}

/* The shortest decimal that reads back to the same bits. */
static void print_real(double value, char *out, size_t size)
{
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(out, size, "%.*g", digits, value);
        if (strtod(out, NULL) == value || (DTX_MUTANT(option_real_short) && digits == 6))
            return;
    }
}

bool dtx_opt_parse_value(const struct dtx_opt_row *row, const char *text, struct opt_value *value, char *canonical,
                         size_t size, char reason[DTX_OPT_REASON_LENGTH])
{
    bool good = true;
    switch (row->type) {
    case DTX_OPT_INT:
        good = parse_int(text, &value->integer);
        snprintf(reason, DTX_OPT_REASON_LENGTH, "must be a whole number of at most 64 bits (as 4096, 1_000_000 or 4M)");
        snprintf(canonical, size, "%lld", (long long)value->integer);
        break;
    case DTX_OPT_REAL:
        good = parse_real(text, &value->real);
        snprintf(reason, DTX_OPT_REASON_LENGTH, "must be a finite number");
        print_real(value->real, canonical, size);
        break;
    case DTX_OPT_BOOL:
        good = dtx_opt_parse_bool(text, &value->boolean);
        snprintf(reason, DTX_OPT_REASON_LENGTH, "must be true or false");
        snprintf(canonical, size, "%s", value->boolean ? "true" : "false");
        break;
    case DTX_OPT_CHOICE:
        good = is_choice(row->range, text);
        snprintf(reason, DTX_OPT_REASON_LENGTH, "must be one of %s", row->range);
        break;
    case DTX_OPT_TEXT:
        good = is_utf8(text);
        snprintf(reason, DTX_OPT_REASON_LENGTH, "must be UTF-8 text");
        break;
    }
    if (good && (row->type == DTX_OPT_INT || row->type == DTX_OPT_REAL) && !in_range(row, value)) {
        char low[DTX_OPT_KEY_LENGTH], high[DTX_OPT_KEY_LENGTH];
        split_range(row->range, low, high);
        snprintf(reason, DTX_OPT_REASON_LENGTH, "must be %s%s%s%s", *low ? "at least " : "", low,
                 *low && *high ? " and at most "
                 : *high       ? "at most "
                               : "",
                 high);
        return false;
    }
    return good;
}
