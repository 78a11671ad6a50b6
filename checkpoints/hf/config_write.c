#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoints/disk.h"
#include "checkpoints/hf/config.h"
#include "kernels/base/mem.h"

enum { TOKENIZER_LIMIT = 1 << 28 };

enum dtx_status dtx_hf_check(struct dtx_ctx *ctx, const char *checkpoint, const struct dtx_ckpt_model *m)
{
    if (!m->diff)
        return DTX_OK;
    if (strcmp(m->lambda_init, "depth") != 0)
        return dtx_fail(ctx, DTX_E_UNSUPPORTED,
                        "checkpoint %s: model.lambda_init is %s; DiffLlama has λ_init by depth only", checkpoint,
                        m->lambda_init);
    if (strcmp(m->subnorm, "none") == 0)
        return dtx_fail(ctx, DTX_E_UNSUPPORTED,
                        "checkpoint %s: model.subnorm is none; DiffLlama always has a norm over each head", checkpoint);
    if (m->norm_eps != 1e-5)
        return dtx_fail(ctx, DTX_E_UNSUPPORTED,
                        "checkpoint %s: model.norm_eps is %g; DiffLlama has one epsilon for all norms, and that of the "
                        "norm over each head is 1e-5",
                        checkpoint, m->norm_eps);
    return DTX_OK;
}

/* The fewest digits that give these numbers back. */
static size_t digits(const double *values, int n)
{
    size_t most = 1;
    for (int i = 0; i < n; i++)
        for (size_t p = most; p <= 17; p++) {
            char text[40];
            snprintf(text, sizeof text, "%.*g", (int)p, values[i]);
            most = p;
            if (strtod(text, NULL) == values[i])
                break;
        }
    return most;
}

/* Takes `root` over. */
static enum dtx_status write_json(struct dtx_ctx *ctx, const char *folder, const char *name, json_t *root,
                                  size_t precision)
{
    char path[DTX_DISK_PATH];
    char *text = root ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(precision)) : NULL;
    json_decref(root);
    enum dtx_status status =
        text ? dtx_disk_join(ctx, folder, name, path) : dtx_fail(ctx, DTX_E_MEMORY, "out of memory making %s", name);
    if (status == DTX_OK)
        status = dtx_disk_write_text(ctx, path, text);
    free(text);
    return status;
}

struct tokenizer {
    char *text;
    int64_t bytes;
    int64_t end; /* id of the token that ends a document; −1: none */
};

/* The largest id, and the id of the end token, which is special (an added token). */
static enum dtx_status read_ids(struct dtx_ctx *ctx, const struct dtx_ckpt_export *job, json_t *root,
                                struct tokenizer *t)
{
    json_t *vocab = json_object_get(json_object_get(root, "model"), "vocab"), *value;
    const json_t *added = json_object_get(root, "added_tokens");
    const char *key;
    int64_t largest = -1;
    size_t i;
    if (!json_is_object(vocab))
        return dtx_fail(ctx, DTX_E_FORMAT, "%s has no model.vocab: is it a tokenizer.json?", job->tokenizer);
    json_object_foreach(vocab, key, value)
    {
        largest = dtx_max64(largest, json_integer_value(value));
    }
    t->end = -1;
    json_array_foreach(added, i, value)
    {
        const char *content = json_string_value(json_object_get(value, "content"));
        int64_t id = json_integer_value(json_object_get(value, "id"));
        largest = dtx_max64(largest, id);
        if (content && strcmp(content, job->end_token) == 0)
            t->end = id;
    }
    if (largest >= job->model.vocab)
        return dtx_fail(ctx, DTX_E_CONFIG,
                        "%s has ids up to %lld, the model only %lld: it was trained with another one", job->tokenizer,
                        (long long)largest, (long long)job->model.vocab);
    if (t->end < 0)
        dtx_log(ctx, DTX_LOG_WARN,
                "%s has no special token %s: the export says of none that it ends a text (--end_token)", job->tokenizer,
                job->end_token);
    return DTX_OK;
}

static enum dtx_status read_tokenizer(struct dtx_ctx *ctx, const struct dtx_ckpt_export *job, struct tokenizer *t)
{
    json_error_t error;
    *t = (struct tokenizer){.end = -1};
    if (!job->tokenizer[0])
        return DTX_OK;
    DTX_TRY(ctx, dtx_disk_read(ctx, job->tokenizer, TOKENIZER_LIMIT, &t->text, &t->bytes));
    json_t *root = json_loadb(t->text, (size_t)t->bytes, 0, &error);
    enum dtx_status status =
        root ? read_ids(ctx, job, root, t)
             : dtx_fail(ctx, DTX_E_FORMAT, "%s: line %d, column %d: %s; it must be a tokenizer.json", job->tokenizer,
                        error.line, error.column, error.text);
    json_decref(root);
    if (status != DTX_OK)
        dtx_mem_free(t->text);
    return status;
}

static json_t *id_or_null(const struct tokenizer *t)
{
    return t->end < 0 ? json_null() : json_integer(t->end);
}

static enum dtx_status write_model(struct dtx_ctx *ctx, const struct dtx_ckpt_export *job, const struct tokenizer *t)
{
    const struct dtx_ckpt_model *m = &job->model;
    const char *dtype = job->dtype == DTX_BF16 ? "bfloat16" : "float32";
    int64_t maps = m->diff ? 2 : 1;
    json_t *root = json_pack(
        "{s:[s], s:s, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:I, s:f, s:f, s:{s:s, s:f}, s:b, s:b, s:f, s:f, s:b,"
        " s:s, s:s, s:o, s:o}",
        "architectures", m->diff ? "DiffLlamaForCausalLM" : "LlamaForCausalLM", "model_type",
        m->diff ? "diffllama" : "llama", "vocab_size", (json_int_t)m->vocab, "hidden_size", (json_int_t)m->width,
        "intermediate_size", (json_int_t)m->ffn, "num_hidden_layers", (json_int_t)m->layers, "num_attention_heads",
        (json_int_t)(maps * m->heads), "num_key_value_heads", (json_int_t)(maps * m->kv_heads), "head_dim",
        (json_int_t)m->head_dim, "hidden_act", "silu", "max_position_embeddings", (json_int_t)m->length, "rms_norm_eps",
        m->norm_eps, "rope_theta", m->rope_theta, "rope_parameters", "rope_type", "default", "rope_theta",
        m->rope_theta, "attention_bias", 0, "tie_word_embeddings", m->tied, "attention_dropout", 0.0,
        "initializer_range", 0.02, "use_cache", 1, "dtype", dtype, "torch_dtype", dtype, "bos_token_id", id_or_null(t),
        "eos_token_id", id_or_null(t));
    int failed = !root;
    if (m->diff)
        failed |= json_object_set_new(root, "lambda_std_dev", json_real(0.1));
    if (failed) {
        json_decref(root);
        return dtx_fail(ctx, DTX_E_MEMORY, "out of memory making config.json");
    }
    double reals[] = {m->norm_eps, m->rope_theta, 0.02};
    return write_json(ctx, job->folder, "config.json", root, digits(reals, 3));
}

static enum dtx_status write_tokenizer(struct dtx_ctx *ctx, const struct dtx_ckpt_export *job,
                                       const struct tokenizer *t)
{
    char path[DTX_DISK_PATH];
    DTX_TRY(ctx, dtx_disk_join(ctx, job->folder, "tokenizer.json", path));
    DTX_TRY(ctx, dtx_disk_write_text(ctx, path, t->text));
    json_t *special = json_object(), *config;
    int failed = !special;
    if (t->end >= 0) {
        failed |= json_object_set_new(special, "bos_token", json_string(job->end_token));
        failed |= json_object_set_new(special, "eos_token", json_string(job->end_token));
    }
    config = json_pack("{s:s, s:I, s:b}", "tokenizer_class", "PreTrainedTokenizerFast", "model_max_length",
                       (json_int_t)job->model.length, "clean_up_tokenization_spaces", 0);
    failed |= json_object_update(config, special);
    if (failed) {
        json_decref(config);
        json_decref(special);
        return dtx_fail(ctx, DTX_E_MEMORY, "out of memory making tokenizer_config.json");
    }
    enum dtx_status status = write_json(ctx, job->folder, "tokenizer_config.json", config, 17);
    if (status != DTX_OK) {
        json_decref(special);
        return status;
    }
    return write_json(ctx, job->folder, "special_tokens_map.json", special, 17);
}

enum dtx_status dtx_hf_write_config(struct dtx_ctx *ctx, const struct dtx_ckpt_export *job)
{
    struct tokenizer t;
    DTX_TRY(ctx, read_tokenizer(ctx, job, &t));
    enum dtx_status status = write_model(ctx, job, &t);
    if (status == DTX_OK)
        status = write_json(ctx, job->folder, "generation_config.json",
                            json_pack("{s:o, s:o, s:o}", "bos_token_id", id_or_null(&t), "eos_token_id", id_or_null(&t),
                                      "pad_token_id", id_or_null(&t)),
                            17);
    if (status == DTX_OK && t.text)
        status = write_tokenizer(ctx, job, &t);
    dtx_mem_free(t.text);
    return status;
}
