#!/usr/bin/env bash
# test: label=train timeout=60
# A library in NVTX_INJECTION64_PATH, as profilers bring one, is told of every operation and phase of a step, each begun
# and ended; without it nothing is loaded.
set -uo pipefail
probe=$DTX_BUILD/tests/libdtx_nvtx.so
[ -e "$probe" ] || { echo "this build has no CUDA toolkit, whose header NVTX is"; exit 77; }
. "$DTX_SOURCE/tests/harness/train.sh"
make_data
run() {
    "$DTX" train --run.dir "$1" --data.train data --model.vocab 320 --model.layers 2 --model.width 32 \
        --model.heads 2 --train.steps 3 --train.length 32 --train.batch 2 --device cpu >log 2>&1 ||
        complain "train fails: $(cat log)"
}
NVTX_INJECTION64_PATH=$probe NVTX_PROBE=$work/ranges run a
for name in step forward backward optimizer norm attn ffn attn_fwd attn_bwd matmul adamw; do
    grep -q "^$name: " ranges || complain "no range '$name': $(cat ranges)"
done
grep -q '^step: 3$' ranges || complain "not three steps: $(cat ranges)"
grep -q '^open: 0 of ' ranges || complain "ranges stay open: $(cat ranges)"
NVTX_PROBE=$work/none run b
[ ! -e none ] || complain "ranges without a profiler"
finish
