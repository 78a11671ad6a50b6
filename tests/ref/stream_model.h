/*
 * The rules of data/README.md for epochs with changes, written down plainly: for each file the set of targets that its
 * epoch has consumed, element by element. No intervals, no layers, no inverse orders. Of data/ it uses the orders and
 * the choice of the source alone, which have tests of their own.
 */
#ifndef DTX_TESTS_REF_STREAM_MODEL_H
#define DTX_TESTS_REF_STREAM_MODEL_H

#include "data/blend.h"

enum { MODEL_FILES = 8, MODEL_TARGETS = 128, MODEL_COURSES = 32 };

struct model_file {
    int64_t targets;
    bool taken[MODEL_TARGETS]; /* in this epoch */
    int64_t end;               /* how far the samples of earlier lengths of this epoch reach */
    int64_t shortest;          /* of these lengths; 0: there are none */
    int64_t served;            /* targets in all */
};

struct model_course {
    int n_files, file[MODEL_FILES];
    int64_t number, epoch, length, done;
    bool resting, rest_begun; /* all samples were looked at; something of the rest was served */
};

struct model {
    uint64_t seed, scenario; /* scenario: the test's own */
    int n_files, n_courses, n_sources;
    struct model_file files[MODEL_FILES];
    struct model_course courses[MODEL_COURSES]; /* those of the sources first */
    int64_t samples;
};

struct model_sample {
    int n; /* pieces */
    struct {
        int file;
        int64_t first, n;
    } piece[MODEL_TARGETS];
};

/* Sources of `length` from now on: source s has files file[first[s]] … file[first[s + 1] − 1]. */
void model_change(struct model *m, int n_sources, const int *first, const int *file, int64_t length);
/* The next sample of the source. Aborts when a target would come twice in an epoch, or an epoch would end without one.
 */
void model_next(struct model *m, int source, struct model_sample *out);

#endif
