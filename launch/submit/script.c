#include "launch/submit/script.h"

#include <errno.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static void append(struct dtx_script *s, const char *text)
{
    size_t length = strlen(text);
    if (s->used + length + 1 > sizeof s->text) {
        s->full = true;
        return;
    }
    memcpy(s->text + s->used, text, length + 1);
    s->used += length;
}

void dtx_script_set(struct dtx_script *script, const char *format, ...)
{
    char text[4096];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    if (length >= (int)sizeof text || script->n == DTX_SCRIPT_LINES || script->used + 1 >= sizeof script->text) {
        script->full = true;
        return;
    }
    script->used += script->n > 0; /* keeps the last line's end */
    script->text[script->used] = '\0';
    script->line[script->n++] = script->text + script->used;
    append(script, text);
}

void dtx_script_word(struct dtx_script *script, const char *word)
{
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_./:=,@%+-";
    if (script->used && !strchr("(=", script->text[script->used - 1]))
        append(script, " ");
    if (*word && word[strspn(word, plain)] == '\0') {
        append(script, word);
        return;
    }
    append(script, "'");
    for (const char *c = word; *c; c++)
        append(script, *c == '\'' ? "'\\''" : (const char[]){*c, '\0'});
    append(script, "'");
}

void dtx_script_set_word(struct dtx_script *script, const char *line, const char *word)
{
    dtx_script_set(script, "%s", line);
    dtx_script_word(script, word);
}

void dtx_script_set_job(struct dtx_script *script, const struct dtx_opt *opt)
{
    static const char *const texts[] = {"partition", "account"}, *const numbers[] = {"gpus-per-node", "cpus-per-task"};
    const char *word = dtx_opt_text(opt, "sbatch");
    dtx_script_set(script, "#SBATCH --time=%s", dtx_opt_text(opt, "time"));
    double limit = dtx_script_limit(dtx_opt_text(opt, "time"));
    if (limit > 0 && limit < 600) /* Slurm may warn a minute early; dtx stops by itself anyway */
        dtx_script_set(script, "#SBATCH --signal=");
    for (int i = 0; i < 2; i++)
        if (*dtx_opt_text(opt, texts[i]))
            dtx_script_set(script, "#SBATCH --%s=%s", texts[i], dtx_opt_text(opt, texts[i]));
    for (int i = 0; i < 2; i++)
        if (dtx_opt_int(opt, numbers[i]))
            dtx_script_set(script, "#SBATCH --%s=%lld", numbers[i], (long long)dtx_opt_int(opt, numbers[i]));
    for (word += strspn(word, " "); *word; word += strspn(word, " ")) {
        int length = (int)strcspn(word, " ");
        dtx_script_set(script, "#SBATCH %s%.*s", strncmp(word, "--", 2) == 0 ? "" : "--", length, word);
        word += length;
    }
}

void dtx_script_close_list(struct dtx_script *script)
{
    append(script, ")");
}

/* Up to and with '=': what two lines for the same thing have in common; 0: no setting. */
static size_t key_length(const char *line)
{
    size_t length = strcspn(line, "= (\n");
    if (strncmp(line, "#SBATCH --", 10) == 0)
        length = strcspn(line, "=\n");
    return line[length] == '=' ? length + 1 : 0;
}

static const char *setting(const struct dtx_script *s, const char *line, bool *taken)
{
    size_t key = key_length(line);
    for (int i = 0; key && i < s->n; i++)
        if (strncmp(s->line[i], line, key) == 0) {
            taken[i] = true;
            return s->line[i];
        }
    return NULL;
}

/* The template's line with another value; its comment stays in its column where there is room. */
static void write_setting(FILE *file, const char *line, const char *value)
{
    const char *comment = strstr(line, " #");
    int column = comment ? (int)(comment - line) : 0;
    if (comment)
        fprintf(file, "%-*s%s", column, value, comment);
    else
        fprintf(file, "%s\n", value);
}

enum dtx_status dtx_script_write(struct dtx_script *script, FILE *file)
{
    char path[4096];
    bool taken[DTX_SCRIPT_LINES] = {false}, head = true;
    char *line = NULL;
    size_t capacity = 0;
    if (script->full)
        return dtx_fail(script->ctx, DTX_E_CONFIG, "too many options for a batch script: put them in a configuration");
    snprintf(path, sizeof path, "%s/%s", DTX_SLURM, script->template);
    FILE *template = fopen(path, "r");
    if (!template)
        return dtx_fail(script->ctx, dtx_status_of_path(errno), "cannot open %s: %s", path, strerror(errno));
    while (getline(&line, &capacity, template) > 0) {
        const char *value = head ? setting(script, line, taken) : NULL;
        if (line[0] == '\n' && head) { /* the end of the #SBATCH lines */
            for (int i = 0; i < script->n; i++)
                if (!taken[i] && strncmp(script->line[i], "#SBATCH", 7) == 0)
                    fprintf(file, "%s\n", script->line[i]);
        }
        head = head && strncmp(line, "# ----", 6) != 0;
        if (value && strncmp(value, "#SBATCH", 7) == 0 && value[strlen(value) - 1] == '=')
            continue;
        if (value)
            write_setting(file, line, value);
        else
            fputs(line, file);
    }
    free(line);
    fclose(template);
    return ferror(file) ? dtx_fail(script->ctx, DTX_E_IO, "cannot write the script: %s", strerror(errno)) : DTX_OK;
}

void dtx_script_program(char *path, size_t bytes)
{
    snprintf(path, bytes, "dtx");
    ssize_t length = readlink("/proc/self/exe", path, bytes - 1);
    if (length > 0)
        path[length] = '\0';
}

enum dtx_status dtx_script_submit(struct dtx_ctx *ctx, const char *path, const char *option)
{
    char *command[] = {"sbatch", *option ? (char *)option : (char *)path, *option ? (char *)path : NULL, NULL};
    pid_t child;
    int code = posix_spawnp(&child, "sbatch", NULL, NULL, command, environ);
    if (code != 0)
        return dtx_fail(ctx, DTX_E_CONFIG, "cannot start sbatch: %s. The script is written: %s", strerror(code), path);
    if (waitpid(child, &code, 0) != child || !WIFEXITED(code) || WEXITSTATUS(code) != 0)
        return dtx_fail(ctx, DTX_E_CONFIG, "sbatch refuses %s: edit it and give it to sbatch again", path);
    return DTX_OK;
}

double dtx_script_limit(const char *text)
{
    double part[3] = {0}, days = 0;
    int n, used = 0;
    if (sscanf(text, "%lf-%n", &days, &used) != 1 || !used)
        days = used = 0;
    n = sscanf(text + used, "%lf:%lf:%lf", &part[0], &part[1], &part[2]);
    if (used || n == 3)
        return ((days * 24 + part[0]) * 60 + part[1]) * 60 + part[2];
    return n < 1 ? 0 : part[0] * 60 + part[1];
}
