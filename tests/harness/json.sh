# Sourced by shell tests that read JSON; $work is a folder of theirs.
# shellcheck shell=bash

# value FILE KEY…: through CMake's JSON reader, so that the text must be JSON.
value() {
    printf 'file(READ "%s" text)\nstring(JSON v GET "${text}" %s)\nmessage("${v}")\n' "$1" "${*:2}" >"$work/get.cmake"
    cmake -P "$work/get.cmake" 2>&1
}
# median: of the numbers on standard input; the lower one of two.
median() {
    sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'
}
