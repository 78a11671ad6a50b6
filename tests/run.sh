#!/usr/bin/env bash
# Installs what the tests need, builds, runs them: tests/run.sh [label…]
#   (no label)  everything but the labels long, mutants and bench
#   mutants     every planted fault of tests/mutants.txt, or those named, must turn its tests red
#   fuzz        random meshes against one rank: --seconds 300, --cases N, --seed S, --case "…" (run_fuzz.sh)
#   parsers     coverage-guided fuzzing of every parser: --seconds 60, names (run_parsers.sh; needs clang)
#   slurm       a shell on a Slurm cluster of two nodes on this machine, or a command there (run_slurm.sh; needs root)
#   bare        launch/quickstart.sh and tests/run.sh in a bare Debian 12 (minutes; needs root)
# Ends with ctest's own summary.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

case ${1:-} in
mutants) shift; exec tests/run_mutants.sh "$@" ;;
fuzz) shift; launch/packages.sh tests && tests/build.sh release && exec tests/run_fuzz.sh "$@"; exit ;;
parsers) shift; exec tests/run_parsers.sh "$@" ;;
slurm) shift; launch/packages.sh tests cluster && tests/build.sh release && exec tests/run_slurm.sh "$@"; exit ;;
bare) shift; exec tests/run_bare.sh "$@" ;;
-*) sed -n '2,9s/^# //p' "$0"; exit 78 ;;
esac

packages=(tests)
! tests/run_slurm.sh --possible || packages+=(cluster)
launch/packages.sh "${packages[@]}" || exit
tests/build.sh release || exit

if [ $# -gt 0 ]; then
    select=(-L "^($(IFS='|'; echo "$*"))\$")
else
    select=(-LE '^(long|mutants|bench)$')
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Three at a time: tests that sleep would leave two cores idle a third of the time. The summary is held back until the
# slowest tests and the skips have been printed.
start=$SECONDS
ctest --test-dir build -j3 --output-on-failure --no-tests=error "${select[@]}" 2>&1 | tee "$work/log" |
    awk -v held="$work/summary" '/% tests passed/ { hold = 1 } hold { print > held; next } { print; fflush() }'
status=${PIPESTATUS[0]}

echo
echo "The ten slowest tests (all tests: $((SECONDS - start)) s):"
sed -nE 's/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: ([^ ]+) .* ([0-9.]+) sec.*$/\2 \1/p' "$work/log" | sort -rn | head -n 10 |
    awk '{ printf "  %8.2f s  %s\n", $1, $2 }'
echo
tests/check_skips.sh "$work/log" || status=1
[ ! -e "$work/summary" ] || cat "$work/summary"
exit "$status"
