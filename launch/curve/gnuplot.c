/* gnuplot without a shell, so that no name is ever parsed but as a quoted text. */
#include "launch/curve/gnuplot.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

extern char **environ;

void dtx_gnuplot_begin(FILE *script, enum dtx_plot_format format, int width, int height)
{
    if (format == DTX_PLOT_SVG)
        fprintf(script, "set terminal svg size %d,%d dynamic font 'Helvetica,14' background '#ffffff'\n", width,
                height);
    else
        fprintf(script, "set terminal pngcairo size %d,%d font 'Sans,13' fontscale 1.1 linewidth 1.5\n", width * 3 / 2,
                height * 3 / 2);
    fputs("set encoding utf8\nset border 3 linecolor '#555555'\nset tics nomirror textcolor '#333333'\n"
          "set grid linecolor '#dddddd' linetype 1 linewidth 0.7\nset key top right Left reverse samplen 2 spacing "
          "1.25\n",
          script);
}

void dtx_gnuplot_quote(FILE *script, const char *text)
{
    fputc('\'', script);
    for (; *text; text++) {
        if (*text == '\'')
            fputc('\'', script);
        fputc((unsigned char)*text < ' ' ? '?' : *text, script);
    }
    fputc('\'', script);
}

static enum dtx_status spawn_gnuplot(struct dtx_ctx *ctx, int script, int picture, int messages, int *exit_status)
{
    char name[] = "gnuplot", defaults[] = "-d", from_stdin[] = "-"; /* spawn takes no const */
    char *argv[] = {name, defaults, from_stdin, NULL};
    posix_spawn_file_actions_t actions;
    pid_t child;
    if (posix_spawn_file_actions_init(&actions) != 0)
        return dtx_fail(ctx, DTX_E_MEMORY, "out of memory starting gnuplot");
    posix_spawn_file_actions_adddup2(&actions, script, 0);
    posix_spawn_file_actions_adddup2(&actions, picture, 1);
    posix_spawn_file_actions_adddup2(&actions, messages, 2);
    int cause = posix_spawnp(&child, name, &actions, NULL, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (cause == ENOENT)
        return dtx_fail(ctx, DTX_E_UNSUPPORTED,
                        "gnuplot is not installed, and pictures need it: install the package gnuplot-nox, or do "
                        "without pictures");
    if (cause != 0)
        return dtx_fail(ctx, DTX_E_LIBRARY, "gnuplot cannot be started: %s", strerror(cause));
    while (waitpid(child, exit_status, 0) < 0)
        if (errno != EINTR)
            return dtx_fail(ctx, DTX_E_INTERNAL, "lost gnuplot: %s", strerror(errno));
    return DTX_OK;
}

enum dtx_status dtx_gnuplot_run(struct dtx_ctx *ctx, FILE *script, int picture, const char *path)
{
    int exit_status = 0;
    struct stat st;
    if (fflush(script) != 0 || lseek(fileno(script), 0, SEEK_SET) != 0)
        return dtx_fail(ctx, DTX_E_IO, "cannot write a temporary file: %s", strerror(errno));
    FILE *messages = tmpfile();
    if (!messages)
        return dtx_fail(ctx, DTX_E_IO, "cannot make a temporary file: %s", strerror(errno));
    enum dtx_status status = spawn_gnuplot(ctx, fileno(script), picture, fileno(messages), &exit_status);
    if (status == DTX_OK && (exit_status != 0 || fstat(picture, &st) != 0 || st.st_size == 0)) {
        char text[600];
        rewind(messages);
        size_t n = fread(text, 1, sizeof text - 1, messages);
        text[n] = '\0';
        status =
            dtx_fail(ctx, DTX_E_LIBRARY, "gnuplot failed to make %s (wait status %d): %s", path, exit_status, text);
    }
    fclose(messages);
    return status;
}

enum dtx_status dtx_gnuplot_write(struct dtx_ctx *ctx, FILE *script, const char *path)
{
    char temporary[PATH_BYTES];
    if (snprintf(temporary, sizeof temporary, "%s.tmp", path) >= PATH_BYTES)
        return dtx_fail(ctx, DTX_E_CONFIG, "%.200s…: the name is too long", path);
    int fd = open(temporary, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0)
        return dtx_fail(ctx, DTX_E_IO, "%s: cannot create the file: %s", temporary, strerror(errno));
    enum dtx_status status = dtx_gnuplot_run(ctx, script, fd, path);
    if (close(fd) != 0 && status == DTX_OK)
        status = dtx_fail(ctx, DTX_E_IO, "%s: cannot write: %s", temporary, strerror(errno));
    if (status == DTX_OK && rename(temporary, path) != 0)
        status = dtx_fail(ctx, DTX_E_IO, "%s: cannot rename to %s: %s", temporary, path, strerror(errno));
    if (status != DTX_OK)
        unlink(temporary);
    return status;
}
