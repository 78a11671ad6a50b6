#!/usr/bin/env bash
# test: label=unit timeout=60
# Registers, spills and tensor-core instructions of the attention kernels, as the build compiled them for each
# architecture, against tests/kernel_budgets.txt. With --table: prints the table as it would be now.
set -uo pipefail
cd "$DTX_SOURCE" || exit 1
objects=$DTX_BUILD/kernels/cuda
[ -e "$objects/attn_mma.o.log" ] || { echo "this build has no CUDA"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The cubins of an object file (not compressed), each with what follows it: cubin.sm_80, cubin.sm_90a.
cubins() {
    local offset
    rm -f "$work"/cubin.*
    objcopy -O binary --only-section=.nv_fatbin "$1" "$work/fatbin" || return 1
    LC_ALL=C grep -abo $'\x7fELF' "$work/fatbin" | cut -d: -f1 | while read -r offset; do
        tail -c "+$((offset + 1))" "$work/fatbin" >"$work/cubin"
        mv "$work/cubin" "$work/cubin.$(grep -aoE -- '-arch sm_[0-9]+a?' "$work/cubin" | sed 's|.* ||;q')"
    done
}

# One line per kernel of a cubin: name<TAB>HMMA and HGMMA instructions (low 12 bits of each 16-byte word).
tensor_instructions() {
    readelf -SW "$1" 2>/dev/null | sed -n 's/.* \.text\.\([^ ]*\) *PROGBITS *[0-9a-f]* *\([0-9a-f]*\) *\([0-9a-f]*\) .*/\1 \2 \3/p' |
        while read -r name offset size; do
            printf '%s\t' "$name"
            od -An -v -tx4 -w16 -j "$((16#$offset))" -N "$((16#$size))" "$1" | grep -cE '^ .....(23c|9f0|df0) '
        done
}

table() {
    local source cubin
    for source in attn_mma attn_tma; do
        if grep -E 'C75(08|12)|wgmma.*serializ' "$objects/$source.o.log"; then return 1; fi
        cubins "$objects/$source.o" || return 1
        for cubin in "$work"/cubin.*; do tensor_instructions "$cubin" | sed "s/^/${cubin##*.}\t/"; done >"$work/counts"
        awk -F '\t' -v source="$source" '
            NR == FNR { count[$1 " " $2] = $3; next }
            /Compiling entry function/ { split($0, part, "\047"); name = part[2]; arch = part[4] }
            /bytes spill stores/ { split($0, part, ","); spill = part[2] + 0 }
            /Used [0-9]+ registers/ && source arch != "attn_tmasm_80" {
                sub(/.*Used /, "")
                print arch "\t" name "\t" $0 + 0 "\t" spill "\t" count[arch " " name] + 0
            }' "$work/counts" "$objects/$source.o.log" | c++filt -t | sed 's/(attn_job[^)]*)//; s/void //'
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
