#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoints/hf/config.h"
#include "kernels/base/mem.h"

enum kind { READ, IGNORED, FALSE, NOTHING, ROPE };

/* Every key that may stand in config.json. READ: the model. IGNORED: changes nothing of what the model computes when it
 * is used. FALSE: must be false; NOTHING: must be null. ROPE: must mean plain rotary positions. */
static const struct {
    const char *name;
    enum kind kind;
} keys[] = {{"model_type", READ},
            {"architectures", READ},
            {"vocab_size", READ},
            {"hidden_size", READ},
            {"intermediate_size", READ},
            {"num_hidden_layers", READ},
            {"num_attention_heads", READ},
            {"num_key_value_heads", READ},
            {"head_dim", READ},
            {"hidden_act", READ},
            {"max_position_embeddings", READ},
            {"rms_norm_eps", READ},
            {"rope_theta", READ},
            {"tie_word_embeddings", READ},
            {"attention_bias", FALSE},
            {"mlp_bias", FALSE},
            {"sliding_window", NOTHING},
            {"rope_scaling", ROPE},
            {"rope_parameters", ROPE},
            {"attention_dropout", IGNORED},
            {"initializer_range", IGNORED},
            {"lambda_std_dev", IGNORED},
            {"use_cache", IGNORED},
            {"pad_token_id", IGNORED},
            {"bos_token_id", IGNORED},
            {"eos_token_id", IGNORED},
            {"dtype", IGNORED},
            {"torch_dtype", IGNORED},
            {"transformers_version", IGNORED},
            {"pretraining_tp", IGNORED},
            {"_name_or_path", IGNORED},
            {"attn_implementation", IGNORED},
            {"_attn_implementation_autoset", IGNORED}};
enum { KEYS = sizeof keys / sizeof *keys };

static enum dtx_status refuse(struct dtx_ctx *ctx, const char *path, const char *key, const json_t *value,
                              const char *why)
{
    char *text = value ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    enum dtx_status status =
        dtx_fail(ctx, DTX_E_UNSUPPORTED, "%s: %s = %.200s: %s", path, key, text ? text : "(missing)", why);
    free(text);
    return status;
}

static bool absent(const json_t *v)
{
    return !v || json_is_null(v);
}

/* rope_scaling (older) or rope_parameters (newer): plain rotary positions, perhaps with their base. */
static enum dtx_status read_rope(struct dtx_ctx *ctx, const char *path, const char *key, json_t *rope, double *theta)
{
    const char *name;
    json_t *value;
    if (absent(rope))
        return DTX_OK;
    if (!json_is_object(rope))
        return refuse(ctx, path, key, rope, "expected null or an object");
    json_object_foreach(rope, name, value)
    {
        const char *text = json_string_value(value);
        bool type = strcmp(name, "rope_type") == 0 || strcmp(name, "type") == 0;
        if (type && text && strcmp(text, "default") == 0)
            continue;
        if (strcmp(name, "rope_theta") == 0 && json_is_number(value))
            *theta = json_number_value(value);
        else if (!absent(value))
            return refuse(ctx, path, key, rope, "dtx has plain rotary positions only");
    }
    return DTX_OK;
}

static enum dtx_status check_keys(struct dtx_ctx *ctx, const char *path, json_t *root, double *theta)
{
    const char *name;
    json_t *value;
    json_object_foreach(root, name, value)
    {
        int k = 0;
        while (k < KEYS && strcmp(keys[k].name, name) != 0)
            k++;
        if (k == KEYS)
            return refuse(
                ctx, path, name, value,
                "this setting is not known to dtx; remove it if it changes nothing of what the model computes");
        if (keys[k].kind == FALSE && !absent(value) && !json_is_false(value))
            return refuse(ctx, path, name, value, "dtx has no biases");
        if (keys[k].kind == NOTHING && !absent(value))
            return refuse(ctx, path, name, value, "dtx has no such thing");
        if (keys[k].kind == ROPE)
            DTX_TRY(ctx, read_rope(ctx, path, name, value, theta));
    }
    return DTX_OK;
}

static enum dtx_status read_size(struct dtx_ctx *ctx, const char *path, const json_t *root, const char *key,
                                 int64_t otherwise, int64_t *out)
{
    const json_t *value = json_object_get(root, key);
    if (absent(value) && otherwise > 0) {
        *out = otherwise;
        return DTX_OK;
    }
    if (!json_is_integer(value) || json_integer_value(value) < 1 || json_integer_value(value) > 1 << 24)
        return refuse(ctx, path, key, value, "expected a whole number from 1 to 2^24");
    *out = json_integer_value(value);
    return DTX_OK;
}

static enum dtx_status read_real(struct dtx_ctx *ctx, const char *path, const json_t *root, const char *key,
                                 double otherwise, double *out)
{
    const json_t *value = json_object_get(root, key);
    *out = otherwise;
    if (absent(value))
        return DTX_OK;
    *out = json_number_value(value);
    return json_is_number(value) && *out >= 0 ? DTX_OK : refuse(ctx, path, key, value, "expected a number");
}

static enum dtx_status read_kind(struct dtx_ctx *ctx, const char *path, const json_t *root, bool *diff)
{
    const json_t *type = json_object_get(root, "model_type"), *names = json_object_get(root, "architectures");
    const json_t *act = json_object_get(root, "hidden_act"), *tied = json_object_get(root, "tie_word_embeddings");
    const char *text = json_string_value(type);
    *diff = text && strcmp(text, "diffllama") == 0;
    if (!*diff && (!text || strcmp(text, "llama") != 0))
        return refuse(ctx, path, "model_type", type, "dtx knows diffllama and llama");
    const char *class = json_string_value(json_array_get(names, 0));
    if (!absent(names) && (json_array_size(names) != 1 || !class ||
                           strcmp(class, *diff ? "DiffLlamaForCausalLM" : "LlamaForCausalLM") != 0))
        return refuse(ctx, path, "architectures", names, "only the causal language model of that type fits");
    if (!absent(act) && (!json_is_string(act) || strcmp(json_string_value(act), "silu") != 0))
        return refuse(ctx, path, "hidden_act", act, "dtx has silu only");
    if (!absent(tied) && !json_is_boolean(tied))
        return refuse(ctx, path, "tie_word_embeddings", tied, "expected true or false");
    return DTX_OK;
}

static enum dtx_status read_model(struct dtx_ctx *ctx, const char *path, json_t *root, struct dtx_ckpt_model *m)
{
    double theta = 10000; /* what the classes take when nothing is said */
    if (!json_is_object(root))
        return dtx_fail(ctx, DTX_E_FORMAT, "%s is no JSON object", path);
    DTX_TRY(ctx, read_kind(ctx, path, root, &m->diff));
    DTX_TRY(ctx, read_real(ctx, path, root, "rope_theta", theta, &theta));
    DTX_TRY(ctx, check_keys(ctx, path, root, &theta));
    m->rope_theta = theta;
    int64_t maps = m->diff ? 2 : 1, heads, kv_heads;
    DTX_TRY(ctx, read_size(ctx, path, root, "vocab_size", 0, &m->vocab));
    DTX_TRY(ctx, read_size(ctx, path, root, "hidden_size", 0, &m->width));
    DTX_TRY(ctx, read_size(ctx, path, root, "intermediate_size", 0, &m->ffn));
    DTX_TRY(ctx, read_size(ctx, path, root, "num_hidden_layers", 0, &m->layers));
    DTX_TRY(ctx, read_size(ctx, path, root, "num_attention_heads", 0, &heads));
    DTX_TRY(ctx, read_size(ctx, path, root, "num_key_value_heads", heads, &kv_heads));
    DTX_TRY(ctx, read_size(ctx, path, root, "head_dim", dtx_max64(1, m->width / heads), &m->head_dim));
    DTX_TRY(ctx, read_size(ctx, path, root, "max_position_embeddings", 2048, &m->length));
    DTX_TRY(ctx, read_real(ctx, path, root, "rms_norm_eps", m->diff ? 1e-5 : 1e-6, &m->norm_eps));
    if (heads % maps || kv_heads % maps || heads % kv_heads)
        return refuse(ctx, path, "num_key_value_heads", json_object_get(root, "num_key_value_heads"),
                      m->diff ? "heads and key/value heads must be even, and the latter divide the former"
                              : "key/value heads must divide the heads");
    if (heads * m->head_dim != m->width || m->head_dim % 2)
        return refuse(ctx, path, "head_dim", json_object_get(root, "head_dim"),
                      "dtx needs heads of an even width that fill hidden_size");
    if (m->layers > 10000)
        return refuse(ctx, path, "num_hidden_layers", json_object_get(root, "num_hidden_layers"), "too many");
    if (m->diff && m->norm_eps != 1e-5)
        return refuse(ctx, path, "rms_norm_eps", json_object_get(root, "rms_norm_eps"),
                      "the norm over differential heads has 1e-5 in dtx");
    if (theta < 1)
        return refuse(ctx, path, "rope_theta", json_object_get(root, "rope_theta"), "expected a number from 1 on");
    m->heads = heads / maps;
    m->kv_heads = kv_heads / maps;
    m->tied = json_is_true(json_object_get(root, "tie_word_embeddings"));
    m->dtype = DTX_F32;
    snprintf(m->subnorm, sizeof m->subnorm, "affine");
    snprintf(m->lambda_init, sizeof m->lambda_init, "depth");
    return DTX_OK;
}

enum dtx_status dtx_hf_parse_config(struct dtx_ctx *ctx, const char *path, const char *text, int64_t bytes,
                                    struct dtx_ckpt_model *out)
{
    json_error_t error;
    struct dtx_ckpt_model model = {0};
    json_t *root = json_loadb(text, (size_t)bytes, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        return dtx_fail(ctx, DTX_E_FORMAT, "%s: line %d, column %d: %s", path, error.line, error.column, error.text);
    enum dtx_status status = read_model(ctx, path, root, &model);
    json_decref(root);
    if (status == DTX_OK)
        *out = model;
    return status;
}
