#!/usr/bin/env bash
# test: label=unit timeout=300
# Registers, spills and tensor-core instructions of the attention kernels, as compiled for each architecture, against
# tests/kernel_budgets.txt. With --table: prints the table as it would be now.
set -uo pipefail
cd "$DTX_SOURCE" || exit 1
nvcc=$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)
[ -x "$nvcc" ] || { echo "no nvcc here"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# One line per kernel of a cubin: name<TAB>HMMA and HGMMA instructions (low 12 bits of each 16-byte word).
tensor_instructions() {
    readelf -SW "$1" 2>/dev/null | sed -n 's/.* \.text\.\([^ ]*\) *PROGBITS *[0-9a-f]* *\([0-9a-f]*\) *\([0-9a-f]*\) .*/\1 \2 \3/p' |
        while read -r name offset size; do
            printf '%s\t' "$name"
            od -An -v -tx4 -w16 -j "$((16#$offset))" -N "$((16#$size))" "$1" | grep -cE '^ .....(23c|9f0|df0) '
        done
}

table() {
    local arch source
    for arch in sm_80 sm_90a; do
        for source in kernels/cuda/attn_mma.cu kernels/cuda/attn_tma.cu; do
            [ "$arch$source" != sm_80kernels/cuda/attn_tma.cu ] || continue
            "$nvcc" -std=c++17 -O3 -I. -arch="$arch" -Xptxas -v -cubin -o "$work/cubin" "$source" 2>"$work/log" ||
                { cat "$work/log"; return 1; }
            if grep -E 'C75(08|12)|wgmma.*serializ' "$work/log"; then return 1; fi
            tensor_instructions "$work/cubin" >"$work/counts"
            awk -v arch="$arch" '
                NR == FNR { count[$1] = $2; next }
                /Compiling entry function/ { split($0, part, "\047"); name = part[2] }
                /bytes spill stores/ { for (i = 2; i <= NF; i++) if ($(i + 1) == "spill") { spill = $(i - 1); break } }
                /Used [0-9]+ registers/ {
                    for (i = 1; i < NF; i++) if ($i == "Used") registers = $(i + 1)
                    print arch "\t" name "\t" registers "\t" spill "\t" count[name] + 0
                }' "$work/counts" "$work/log" | c++filt -t | sed 's/(attn_job[^)]*)//; s/void //'
        done
    done | LC_ALL=C sort
}

table >"$work/now" || { cat "$work/now"; exit 1; }
if [ "${1:-}" = --table ]; then
    cat "$work/now"
    exit 0
fi
grep -v '^#' tests/kernel_budgets.txt >"$work/allowed"
awk -F '\t' '
NR == FNR { registers[$1 " " $2] = $3; spill[$1 " " $2] = $4; tensor[$1 " " $2] = $5; next }
{
    key = $1 " " $2; seen[key] = 1
    if (!(key in registers)) { print key " is not in tests/kernel_budgets.txt"; faults++; next }
    if ($3 > registers[key] + 0) { print key ": " $3 " registers, at most " registers[key]; faults++ }
    if ($4 > spill[key] + 0) { print key ": " $4 " bytes spilled, at most " spill[key]; faults++ }
    if ($5 != tensor[key]) { print key ": " $5 " tensor-core instructions, must be " tensor[key]; faults++ }
}
END {
    for (key in registers) if (!(key in seen)) { print key " is in tests/kernel_budgets.txt but not compiled"; faults++ }
    print length(seen) " kernels, " faults + 0 " faults"
    exit faults > 0
}' "$work/allowed" "$work/now"
