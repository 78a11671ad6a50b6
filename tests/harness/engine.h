/* An engine of one rank on the CPU, for cmocka tests. A failure to open fails the test with the engine's message. */
#ifndef DTX_TESTS_HARNESS_ENGINE_H
#define DTX_TESTS_HARNESS_ENGINE_H

#include "tests/harness/mesh_run.h"

struct dtx_test_engine {
    struct dtx_ctx ctx;
    struct dtx_comm *self;
    struct dtx_backend *backend;
    struct dtx_engine *engine;
};

void dtx_test_engine_open(struct dtx_test_engine *out, const struct dtx_engine_config *config, int isa);
/* The configuration of dtx_test_config, the processor's best instruction set. */
void dtx_test_engine_open_model(struct dtx_test_engine *out, const struct dtx_test_model *model);
void dtx_test_engine_close(struct dtx_test_engine *engine);

#endif
