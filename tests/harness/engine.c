#include "tests/harness/engine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

void dtx_test_engine_open(struct dtx_test_engine *o, const struct dtx_engine_config *config, int isa)
{
    dtx_ctx_init(&o->ctx);
    assert_int_equal(dtx_comm_self(&o->ctx, &o->self), DTX_OK);
    assert_int_equal(dtx_backend_open(&o->ctx, "cpu", 1, isa, &o->backend), DTX_OK);
    if (dtx_engine_create(&o->ctx, config, o->self, o->backend, &o->engine) != DTX_OK)
        fail_msg("%s", o->ctx.error.text);
}

void dtx_test_engine_open_model(struct dtx_test_engine *o, const struct dtx_test_model *model)
{
    struct dtx_engine_config config;
    dtx_test_config(model, &config);
    dtx_test_engine_open(o, &config, dtx_isa_detect());
}

void dtx_test_engine_close(struct dtx_test_engine *o)
{
    dtx_engine_free(o->engine);
    dtx_backend_close(o->backend);
    dtx_comm_free(o->self);
}
