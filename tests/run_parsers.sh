#!/usr/bin/env bash
# Coverage-guided fuzzing of every parser (libFuzzer, address and undefined-behaviour sanitizers; needs clang):
#   tests/run_parsers.sh [--seconds N] [--build FOLDER] [name…]   default 60 s each; names: the files of tests/parse
# An input that crashes, hangs or breaks a promise stays in FOLDER/found (default build-parse) and is printed with the
# command that repeats it. Inputs that reached new code stay in FOLDER/corpus and are where the next run begins.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
seconds=60 build=build-parse names=()
while [ $# -gt 0 ]; do
    case $1 in
    --seconds) seconds=$2; shift 2 ;;
    --build) build=$2; shift 2 ;;
    -*) sed -n '2,5s/^# //p' "$0"; exit 78 ;;
    *) names+=("$1"); shift ;;
    esac
done
[ ${#names[@]} -gt 0 ] || for file in tests/parse/*.c; do names+=("$(basename "$file" .c)"); done
mkdir -p "$build/object" "$build/found" || exit
packages=(libxxhash yaml-0.1 jansson libpcre2-8 libutf8proc zlib libzstd hdf5)
flags=(-std=c11 -D_GNU_SOURCE -O1 -g -I. "-I$build" -fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined
    -ffunction-sections $(pkg-config --cflags "${packages[@]}"))
libraries=($(pkg-config --libs "${packages[@]}") -lm -lpthread)
sources=(kernels/base/*.c parallel/shard.c $(ls data/*.c data/readers/*.c | grep -vE '_cmd\.c$|loader|stream')
    checkpoints/{manifest,disk,ahead,flush,layout,index_read,index_write,h5,h5_out,shard_file,local_file,load}.c
    checkpoints/hf/{safetensors,config_read}.c launch/sweep/{csv,points}.c trainer/health.c)

# The list of readers that CMake makes for the program.
mkdir -p "$build/data" && for file in data/readers/*.c; do echo "DTX_VARIANT($(basename "$file" .c))"; done \
    >"$build/data/readers.inc"

# Objects again where the source or any header is newer.
headers=$(find kernels data checkpoints parallel trainer tests/parse -name '*.h' -printf '%T@\n' | sort -n | tail -n 1)
for source in "${sources[@]}"; do
    object=$build/object/${source//\//_}.o
    if awk -v object="$(stat -c %.Y "$object" 2>/dev/null || echo 0)" -v header="$headers" \
        -v source="$(stat -c %.Y "$source")" 'BEGIN { exit object > header && object > source }'; then
        printf '%s\0%s\0' "$object" "$source"
    fi
done | xargs -0 -r -n 2 -P 2 clang "${flags[@]}" -c -o || exit

# What a run begins with.
seeds() {
    local folder=$1 golden=tests/golden
    case $2 in
    options)
        printf 'a: {whole: 7, real: 1e-3, truth: no}\nb.text: "x y"\nb:\n  choice: zed\nsingle: ~\n' >"$folder/all"
        cp launch/presets/laptop.yaml "$folder" ;;
    tokenizer)
        head -n 40 $golden/tokenizer/gpt2_vocab.bpe >"$folder/bpe"
        cp $golden/tokenizer/qwen3.part.json "$folder/qwen3"
        printf 'aab aaab\n' >"$build/text"
        [ ! -x "${DTX:-build/dtx}" ] || "${DTX:-build/dtx}" tokenizer train --vocab 258 --out "$folder/json" "$build/text" \
            >/dev/null 2>&1 ;;
    tiktoken)
        printf 'aYWE= 256\nYWI= 257\nYWFi 300\n' >"$folder/few"
        { printf '\x80'; cat $golden/tokenizer/cl100k_base.part.tiktoken; } >"$folder/cl100k" ;;
    tokenfile)
        for file in $golden/formats/*.idx; do
            half=$(($(stat -c %s "${file%.idx}.bin") / 2))
            { printf '%b' "\\x$(printf %02x $half)"; cat "$file"; } >"$folder/$(basename "$file")"
        done ;;
    jsonl)
        printf '{"text":"one","id":[1,2.5e3,{"a":null}]}\n\nbad\n{"text":"\\ud83d\\ude00\\n"}\r\n{"text":"caf\351"}' >"$folder/plain"
        gzip -c "$folder/plain" >"$folder/gz" ;;
    readers)
        printf '\0' | cat - $golden/formats/llmc_gpt2.bin >"$folder/gpt2"
        printf '\0' | cat - $golden/formats/llmc_llama3.bin >"$folder/llama3"
        printf '\1\1\0\0\0\0\0\0\0\3\0\0\0\0\0\0\0gpt2|2\n3\n3 T' >"$folder/datatrove"
        printf '\2\223NUMPY\1\0\66\0%-53s\n\1\0\2\0\3\0' "{'descr': '<u2', 'fortran_order': False, 'shape': (3,), }" \
            >"$folder/numpy" ;;
    safetensors)
        cp $golden/hf_diffllama/model-00002-of-00002.safetensors "$folder"
        printf '\10\0{"t":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"u":{"dtype":"I8","shape":[0],"data_offsets":[8,8]}}' \
            >"$folder/header" ;;
    hf_config) cp $golden/hf_diffllama/config.json "$folder/diff" && cp $golden/hf_llama/config.json "$folder/llama" ;;
    index) printf '\0' >"$folder/good" ;;
    ledger)
        { printf 'dtx ledger 1\nsamples 40\nfile 01 100 a\nfile 02 60 b\nfile 03 9 c\n'
            printf 'course 0 0 7 10 3 0 0 0 0\ncourse 1 0 1 7 8 1 2 3 1\nlayer 0 5 0 1 3 0 0-1 1\n'
            printf 'layer 1 5 0 1 2 1 1 1\ncourse -1 9 0 3 0 0 0 0 2\nskip 5 9\nend\n'; } >"$folder/one" ;;
    points)
        printf 'variant,N,D,loss,seed\ndiff,1e6,1e8,3.5,1\nsoftmax,2e6,"1e8",3.6,1\n' >"$folder/comma"
        printf '\357\273\277"Model Size";flops;loss;state\r\n1e6;6e14;3;done\r\n# x\r\n\r\n1e6;6e15;;failed\r\n' >"$folder/semicolon" ;;
    health) printf 'dtx health 1\nskipped 1\nrollbacks 2\n3.25 1\n-1e-3 0.5\n2 7\nend\n' >"$folder/one" ;;
    manifest) printf 'dtx checkpoint 1\nsequence 3\nstep 20\nfile checkpoint.h5 10 0123456789abcdef\n' >"$folder/one" ;;
    esac
}

memory=${TMPDIR:-/tmp} # where files are written and synced for every input
[ ! -w /dev/shm ] || memory=/dev/shm
absent=() # what communicates is not linked: no parser gets there
for name in agree broadcast_bytes broadcast_text gather_bytes send_start recv_start wait; do
    absent+=("-Wl,--defsym=dtx_comm_$name=LLVMFuzzerTestOneInput")
done
failed=0
for name in "${names[@]}"; do
    [ -e "tests/parse/$name.c" ] || { echo "parsers: there is no tests/parse/$name.c"; exit 78; }
    clang "${flags[@]}" -fsanitize=fuzzer -Wl,--gc-sections "${absent[@]}" -o "$build/$name" "tests/parse/$name.c" \
        "$build"/object/*.o "${libraries[@]}" || exit
    folder=$(mktemp -d -p "$memory") corpus=$build/corpus/$name
    mkdir -p "$corpus" "$folder/seeds"
    seeds "$folder/seeds" "$name"
    PARSE_FOLDER=$folder "$build/$name" -max_total_time="$seconds" -max_len=65536 -timeout=20 -rss_limit_mb=2048 \
        -artifact_prefix="$build/found/$name-" -print_final_stats=1 "$corpus" "$folder/seeds" \
        >"$build/$name.log" 2>&1 </dev/null
    status=$?
    rm -rf "$folder"
    echo "parsers: $name: $(sed -nE 's/^stat::number_of_executed_units: *//p' "$build/$name.log") inputs, coverage $(sed -nE \
        's/^#.* cov: ([0-9]+) .*/\1/p' "$build/$name.log" | tail -n 1), exit code $status"
    [ $status -eq 0 ] && continue
    failed=1
    grep -vE '^#|^INFO' "$build/$name.log" | tail -n 60
    found=$(sed -nE 's/.*Test unit written to (.*)/\1/p' "$build/$name.log" | tail -n 1)
    echo "parsers: again: mkdir -p /tmp/parse && PARSE_FOLDER=/tmp/parse $build/$name $found"
done
exit $failed
