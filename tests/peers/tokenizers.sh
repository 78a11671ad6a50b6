#!/usr/bin/env bash
# Ids and speed against PyPI's tiktoken and Hugging Face tokenizers on 30 MB of Debian text (dict-gcide), for every kind of
# tokenizer that is read, and for one that dtx learns. Needs a build, Debian's archive and PyPI, so it is no part of
# tests/run.sh. DTX_PEERS_PYTHON names a Python that has both packages, DTX_PEERS_TEXT a text file instead of the
# dictionary, DTX_TOKENIZERS a folder with vocab.bpe and encoder.json (GPT-2), cl100k_base.tiktoken, o200k_base.tiktoken
# and qwen3/tokenizer.json: what it lacks is left out.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export DTX_SOURCE="${DTX_SOURCE:-$(cd "$here/../.." && pwd)}"
DTX="${DTX:-${DTX_BUILD:-$DTX_SOURCE/build}/dtx}"
tokenizers=${DTX_TOKENIZERS:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
skip() { echo "skipped: $*"; exit 77; }

python=${DTX_PEERS_PYTHON:-}
if [ -z "$python" ]; then
    { python3 -m venv venv && venv/bin/pip install -q tokenizers tiktoken; } >pip 2>&1 ||
        skip "tokenizers and tiktoken cannot be installed: $(tail -n 1 pip)"
    python=$work/venv/bin/python
fi
"$python" -c 'import tokenizers, importlib.metadata as m
print("tokenizers", m.version("tokenizers"), "tiktoken", m.version("tiktoken"))' || skip "$python lacks a package"

text=${DTX_PEERS_TEXT:-}
if [ -z "$text" ]; then
    { apt-get -q download dict-gcide && dpkg-deb -x dict-gcide_*.deb package; } >apt 2>&1 ||
        skip "Debian's dict-gcide cannot be had; name a text with DTX_PEERS_TEXT"
    text=$work/text
    zcat package/usr/share/dictd/gcide.dict.dz | head -c 30000000 >"$text"
fi
echo "text: $(stat -c %s "$text") bytes"

failed=0
compare() { # LABEL LIBRARY TOKENIZER [what the library loads]
    "$DTX" tokenize --tokenizer "$3" --separator '' --out "ids" "$text" >log 2>&1 || { cat log; failed=1; return; }
    printf '%-22s' "$1"
    "$python" "$here/tokenizers_compare.py" ids "$2" "${4:-$3}" "$text" ids || failed=1
    rm -f ids.*
}
"$DTX" tokenizer train --vocab 8192 --out learned.json "$text" || failed=1
compare learned tokenizers learned.json
[ -z "$tokenizers" ] || {
    compare gpt2 tiktoken "$tokenizers/vocab.bpe"
    compare cl100k tiktoken "$tokenizers/cl100k_base.tiktoken"
    compare o200k tiktoken "$tokenizers/o200k_base.tiktoken"
    compare qwen3 tokenizers "$tokenizers/qwen3/tokenizer.json"
}

# In turns, each pass in a fresh process: bytes a second, the text's size over the median.
median() { sort -g "$1" | awk -v n="$2" '{ v[NR] = $n } END { print v[int((NR + 1) / 2)] }'; }
[ -z "$tokenizers" ] || for name in vocab.bpe cl100k_base.tiktoken o200k_base.tiktoken; do
    rm -f theirs ours
    for _ in 1 2 3 4 5; do
        "$python" "$here/tokenizers_compare.py" speed "$tokenizers/$name" "$text" >>theirs || failed=1
        for clock in wall cpu; do
            "$DTX" bench tokenizer --tokenizer "$tokenizers/$name" --text "$text" --passes 1 --clock $clock 2>log |
                sed -nE 's/^cold +([0-9.]+) (ms|s) .*/\1 \2/p' | awk '{ print $2 == "ms" ? $1 / 1000 : $1 }' >"one.$clock"
        done
        paste -d ' ' one.wall one.cpu >>ours
    done
    awk -v b="$(stat -c %s "$text")" -v n="$name" -v tw="$(median theirs 1)" -v tc="$(median theirs 2)" \
        -v ow="$(median ours 1)" -v oc="$(median ours 2)" 'BEGIN {
        printf "%-22s dtx %.1f MB/s (CPU %.1f), tiktoken %.1f (%.1f): %.1f times (%.1f)\n", n, b / ow / 1e6, b / oc / 1e6,
            b / tw / 1e6, b / tc / 1e6, tw / ow, tc / oc }'
done
exit $failed
