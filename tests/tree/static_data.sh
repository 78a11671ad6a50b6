#!/usr/bin/env bash
# test: label=tree timeout=60
# No mutable static or global data in the libraries and the program's own objects. (Tables of constant pointers lie in
# .data.rel.ro, which the loader makes read-only.)
set -uo pipefail
cd "$DTX_BUILD" || exit 1
# "object symbol section" lines that may stay: a signal handler can reach nothing but static data (trainer/stop.h);
# NVTX's header keeps what a profiler gives it.
allowed='/trainer/stop\.c\.o first_signal \.bss$|/nvtx\.c\.o (nvtxGlobals_v[0-9]+|InitializeInjectionNvtx2_fnptr) \.'

objects=$(find . -path '*.dir/*' -name '*.c.o' -not -path './tests/*' -not -path './CMakeFiles/[0-9]*' | sort)
[ -n "$objects" ] || { echo "no objects found in $DTX_BUILD"; exit 1; }

# Names that begin with a dot are sections; with two underscores, the compiler's and the sanitizers' own.
found=$(xargs -d '\n' objdump -t <<<"$objects" | awk '
/file format/ { object = $1; sub(/:$/, "", object); next }
$NF ~ /^(__|\.)/ { next }
/\*COM\*/ { print object, $NF, "common"; next }
{
    for (i = 2; i < NF; i++)
        if ($i ~ /^\.(data|bss|tdata|tbss)(\.|$)/ && $i !~ /^\.data\.rel\.ro/)
            print object, $NF, $i
}' | grep -vE "$allowed")
if [ -n "$found" ]; then
    echo "mutable data outside a context:"
    echo "$found"
    exit 1
fi
echo "$(wc -l <<<"$objects") objects without mutable data"
