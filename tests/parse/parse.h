/*
 * What the fuzzers of parsers share. Each file beside this one is one libFuzzer program: bytes go in as the parser's
 * file or text; a crash, a sanitizer's finding, a hang or a broken promise (PROMISE) ends it.
 */
#ifndef DTX_TESTS_PARSE_PARSE_H
#define DTX_TESTS_PARSE_PARSE_H

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

#define PROMISE(condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition)) {                                                                                            \
            fprintf(stderr, "%s:%d: broken promise: %s\n", __FILE__, __LINE__, #condition);                            \
            abort();                                                                                                   \
        }                                                                                                              \
    } while (0)

/* The file $PARSE_FOLDER/name with these bytes; its path. The folder is this process's own. */
static inline void parse_write(const char *name, const void *data, size_t n, char path[512])
{
    const char *folder = getenv("PARSE_FOLDER");
    snprintf(path, 512, "%s/%s", folder ? folder : ".", name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    PROMISE(fd >= 0 && write(fd, data, n) == (ssize_t)n);
    close(fd);
}

#endif
