#!/usr/bin/env bash
# test: label=tree timeout=60
# clang-format has nothing to change in any source.
set -u
cd "$DTX_SOURCE" || exit 1
command -v clang-format >/dev/null || { echo "no clang-format here"; exit 77; }
find kernels parallel data checkpoints trainer launch tests -regextype posix-extended \
    -regex '.*\.([ch]|cu|cuh|cc)' -print0 2>/dev/null |
    xargs -0 -P 2 -n 40 clang-format --dry-run -Werror
