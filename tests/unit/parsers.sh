#!/usr/bin/env bash
# test: label=unit,fuzz timeout=300
# A few seconds of coverage-guided fuzzing of each parser: options, tokenizers, token files, checkpoints' lists of files,
# headers of safetensors files, config.json, tables of losses.
set -uo pipefail
echo 'int LLVMFuzzerTestOneInput(const char *d, unsigned long n) { return d && n > 3 && d[0] == 1 ? 0 : 0; }' |
    clang -fsanitize=fuzzer,address -x c - -o /dev/null 2>/dev/null || exit 77
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$DTX_SOURCE/tests/run_parsers.sh" --seconds 2 --build "$work"
