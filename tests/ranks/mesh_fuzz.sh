#!/usr/bin/env bash
# test: label=ranks timeout=300
# A short run of the mesh fuzzer, always the same cases as far as the time reaches.
exec "$DTX_SOURCE/tests/run_fuzz.sh" --seconds 20 --seed 1
