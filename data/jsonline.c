#include "data/jsonline.h"

#include <jansson.h>
#include <stdio.h>

#include "data/utf8.h"

static enum dtx_status take_text(struct dtx_ctx *ctx, const char *line, int64_t n, const char *field,
                                 struct dtx_bytes *text, char why[DTX_JSONLINE_WHY])
{
    json_error_t error;
    json_t *root = json_loadb(line, (size_t)n, JSON_ALLOW_NUL, &error);
    json_t *string = json_object_get(root, field);
    enum dtx_status status = DTX_OK;
    if (!root)
        snprintf(why, DTX_JSONLINE_WHY, "not JSON at byte %d: %.100s", error.position, error.text);
    else if (!json_is_object(root))
        snprintf(why, DTX_JSONLINE_WHY, "not an object");
    else if (!json_is_string(string))
        snprintf(why, DTX_JSONLINE_WHY, "'%.60s' %s", field, string ? "is not a string" : "is not there");
    else
        status = dtx_bytes_append(ctx, text, json_string_value(string), (int64_t)json_string_length(string));
    json_decref(root);
    return status;
}

enum dtx_status dtx_jsonline_text(struct dtx_ctx *ctx, const char *line, int64_t n, const char *field,
                                  struct dtx_bytes *text, int64_t *invalid, char why[DTX_JSONLINE_WHY])
{
    why[0] = '\0';
    if (dtx_utf8_valid(line, n) == n)
        return take_text(ctx, line, n, field, text, why);
    struct dtx_bytes repaired = {0};
    enum dtx_status status = dtx_utf8_repair(ctx, line, n, &repaired, invalid);
    if (status == DTX_OK)
        status = take_text(ctx, repaired.data, repaired.n, field, text, why);
    dtx_bytes_free(&repaired);
    return status;
}
