#!/usr/bin/env bash
# test: label=long timeout=600
# Every model whose figures are shipped, in double precision and by every instruction set.
exec "$DTX_BUILD/tests/test_numeric_selfcheck_reference" --all
