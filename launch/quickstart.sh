#!/usr/bin/env bash
# From nothing to a trained Differential Transformer: launch/quickstart.sh [--text FILE]… [--dir DIR] [--steps N]
#
#   installs packages, builds, takes English text (Debian's copy of the GCIDE dictionary, or your own with --text), learns a
#   vocabulary, tokenizes, trains preset `laptop` on 4 ranks (tensor 2 × pipeline 2), resumes on another mesh
#   (data 2 × tensor 2), evaluates, writes text, and sums up. Needs Debian 12 and root or sudo for the packages.
#   A second run reuses what is there; --dir (default: quickstart) holds everything that is made.
set -euo pipefail
cd "$(dirname "$0")/.."
. launch/text.sh

texts=() dir=quickstart steps=200
while [ $# -gt 0 ]; do
    case $1 in
    --text) texts+=("$(realpath -e "${2:?--text needs a file}")"); shift 2 ;;
    --dir) dir=${2:?--dir needs a folder}; shift 2 ;;
    --steps) steps=${2:?--steps needs a number}; shift 2 ;;
    *) sed -n '2,7s/^# \{0,1\}//p' "$0"; [ "$1" = --help ] && exit 0 || exit 78 ;;
    esac
done
case $steps in *[!0-9]* | '') echo "quickstart: --steps $steps is no number" >&2; exit 78 ;; esac
[ "$steps" -ge 10 ] || { echo "quickstart: --steps must be at least 10" >&2; exit 78; }
switch=$((steps * 4 / 5)) # the step at which the mesh changes
started=$SECONDS
say() { printf '\n== %s (%d s)\n' "$*" $((SECONDS - started)); }

say "packages"
launch/packages.sh build
started=$SECONDS # the promise of minutes begins here

say "build"
if [ ! -f build/build.ninja ]; then
    cuda=AUTO
    if [[ $(/sbin/ldconfig -p) != *libcuda.so.1* ]]; then # a user's PATH has no /sbin
        cuda=OFF
        echo "no NVIDIA driver here: built without CUDA (-DDTX_CUDA=OFF)"
    fi
    cmake --preset release -DDTX_TESTS=OFF -DDTX_CUDA=$cuda >/dev/null
fi
cmake --build build --target dtx | tail -n 1
dtx=$PWD/build/dtx
mkdir -p "$dir"
cd "$dir"

text_take
if text_is_new; then
    rm -rf tokenizer.json tokens.bin tokens.idx run
fi
text_tokens 8192

export OMP_NUM_THREADS=1
progress=auto
if [ -t 2 ]; then # behind mpirun a rank cannot see the terminal
    progress=live
    COLUMNS=$(tput cols 2>/dev/null || echo 100)
    export COLUMNS
fi
# TERM to mpirun gives the ranks 30 s to save, not 1 s.
launch=(mpirun --oversubscribe --bind-to none --mca odls_base_sigkill_timeout 30 -n 4)
[ "$(id -u)" -ne 0 ] || launch+=(--allow-run-as-root)
step_of() { sed -n "s/^$1: //p" run/status 2>/dev/null || true; }
train() { # until, further options
    local until=$1 resume=()
    shift
    [ ! -f run/checkpoints/latest ] || resume=(--resume latest)
    [ ${#resume[@]} -gt 0 ] || rm -rf run # an attempt that saved nothing
    "${launch[@]}" "$dtx" train --preset laptop --data.train tokens --run.dir run --train.steps "$steps" \
        --lr.warmup $((steps / 10)) --train.until "$until" --log.progress "$progress" "$@" "${resume[@]}" || {
        local code=$?
        "$dtx" watch run --unreported || true # who is dead, and where the others were
        exit "$code"
    }
}
done_steps=$(step_of step)
if [ "$(step_of steps)" != "$steps" ]; then
    rm -rf run
    done_steps=0
fi
if [ "${done_steps:-0}" -lt "$switch" ]; then
    say "training, 4 ranks: tensor 2 × pipeline 2, to step $switch"
    train "$switch"
fi
if [ "${done_steps:-0}" -lt "$steps" ]; then
    say "the same run on another mesh: tensor 2 × data 2, to step $steps"
    train "$steps" --parallel.pp 1 --parallel.dp 2
fi

say "held-out text"
heldout=$("$dtx" eval --resume run/checkpoints --data.train tokens 2>/dev/null)
unigram=$("$dtx" data entropy --heldout 0.01 tokens)
echo "$heldout"
loss=$(sed -n 's/^held-out loss \([0-9.]*\).*/\1/p' <<<"$heldout")
entropy=$(sed -n 's/.*unigram entropy \([0-9.]*\).*/\1/p' <<<"$unigram")

say "what it writes (seed 1)"
"$dtx" generate --resume run/checkpoints --tokenizer tokenizer.json --tokens 96 2>/dev/null

say "summary"
"$dtx" curve run --unigram "$entropy" --svg loss.svg
median() { sed -nE "s/.*\"$1\":([0-9.eE+-]+).*/\1/p" run/metrics.jsonl | sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
awk -v t="$(median tokens_per_s)" -v p="$(median peak_share)" 'BEGIN {
    printf "speed           %.0f tokens/s, %.0f %% of this machine'"'"'s measured peak (medians of all steps)\n", t, 100 * p }'
awk -v l="$loss" -v e="$entropy" 'BEGIN {
    printf "held-out loss   %.3f nats, %.3f %s the unigram entropy %.3f of the same text\n", l, l < e ? e - l : l - e, l < e ? "below" : "ABOVE", e }'
echo "checkpoint      $dir/run/checkpoints/$(cat run/checkpoints/latest)"
echo "curve           $dir/loss.svg"
echo "time            $((SECONDS - started)) s without the packages"
