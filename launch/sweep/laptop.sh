#!/usr/bin/env bash
# The sweep `laptop` on real text: launch/sweep/laptop.sh [--text FILE]… [--dir DIR] [--jobs N]
#
#   takes English text (Debian's copy of the GCIDE dictionary, or your own with --text), learns a vocabulary of 1,024,
#   tokenizes, plans, trains and fits: about 15 minutes on 2 cores. A second call goes on where the first one was stopped.
set -euo pipefail
cd "$(dirname "$0")/../.."
. launch/text.sh

texts=() dir=laptop-sweep jobs=0
while [ $# -gt 0 ]; do
    case $1 in
    --text) texts+=("$(realpath -e "${2:?--text needs a file}")"); shift 2 ;;
    --dir) dir=${2:?--dir needs a folder}; shift 2 ;;
    --jobs) jobs=${2:?--jobs needs a number}; shift 2 ;;
    *) sed -n '2,5s/^# \{0,1\}//p' "$0"; [ "$1" = --help ] && exit 0 || exit 78 ;;
    esac
done
dtx=${DTX:-$PWD/build/dtx}
[ -x "$dtx" ] || { echo "laptop: no $dtx: cmake --preset release && cmake --build build" >&2; exit 78; }
mkdir -p "$dir"
cd "$dir"
started=$SECONDS
say() { printf '\n== %s (%d s)\n' "$*" $((SECONDS - started)); }

text_take
if text_is_new; then
    [ ! -e sweep ] || { echo "laptop: $dir/sweep was trained on other texts: remove $dir or give another --dir" >&2; exit 78; }
    rm -f tokenizer.json tokens.bin tokens.idx
fi
text_tokens 1024
say "plan"
"$dtx" sweep plan laptop --dir sweep --data.train tokens
say "run"
"$dtx" sweep run sweep --jobs "$jobs"
say "fit"
"$dtx" sweep fit sweep
say "done"
