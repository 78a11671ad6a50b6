#!/usr/bin/env bash
# test: label=train timeout=60
# dtx tokenizer, tokenize and data from the outside: results, messages, exit codes, nothing left behind by failures.
set -uo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0

complain() {
    echo "FAILED: $1"
    failures=$((failures + 1))
}
# expect CODE WORD COMMAND…: the exit code and a word in the output.
expect() {
    local code=$1 word=$2 got
    shift 2
    "$@" >out 2>&1
    got=$?
    [ "$got" = "$code" ] || complain "'$*' ends with $got, not $code: $(cat out)"
    grep -qF -- "$word" out || complain "'$*' does not say '$word': $(cat out)"
}

cat "$DTX_SOURCE"/data/*.c >text.txt
for command in tokenizer tokenize data; do
    expect 0 "usage: dtx $command" "$DTX" $command --help
done

# Learning: the same file for any number of threads.
expect 0 "700 ids, 443 merges" "$DTX" tokenizer train --vocab 700 --out a.json --threads 1 text.txt
expect 0 "700 ids" "$DTX" tokenizer train --vocab 700 --out b.json --threads 3 text.txt
cmp a.json b.json || complain "threads change the tokenizer"
expect 0 "end of text   256" "$DTX" tokenizer info a.json
printf 'no pair twice' >few.txt
expect 0 "warning: the text has pairs for" "$DTX" tokenizer train --out few.json few.txt

# Tokenizing: counts, the separator, the same tokens from a pipe, quiet when no terminal is there.
lines=$(grep -c . text.txt)
expect 0 "$lines documents" "$DTX" tokenize --tokenizer a.json --out lines --split line text.txt
expect 0 "good: " "$DTX" data verify --vocab 700 lines
expect 0 "documents    $lines" "$DTX" data inspect lines
expect 0 "2 documents" "$DTX" tokenize --tokenizer a.json --out whole text.txt text.txt
cat text.txt text.txt | expect 0 "1 documents" "$DTX" tokenize --tokenizer a.json --out pipe --separator= -
[ "$("$DTX" tokenize --tokenizer a.json --out pipe --separator= - <text.txt 2>&1 | wc -l)" = 1 ] ||
    complain "more than one line without a terminal"
size=$(stat -c %s pipe.bin)
[ "$(stat -c %s whole.bin)" = $((2 * size + 4)) ] || complain "two documents are not twice one and two separators"
cmp -n "$size" pipe.bin whole.bin || complain "a pipe gives other tokens"
[ "$(od -An -tu2 -j "$size" -N 2 whole.bin | tr -d ' ')" = 256 ] || complain "no separator behind the first document"
printf 'caf\xe9 \xf0\x9f' >broken.txt
expect 0 "2 invalid parts replaced" "$DTX" tokenize --tokenizer a.json --out broken broken.txt

# Unigram entropy: of a uniform text over four symbols, ln 4.
printf 'a\nb\nc\nd\n%.0s' $(seq 50) >four.txt
expect 0 "entropy 1.3863 nats over 100 tokens" bash -c "'$DTX' tokenize --tokenizer a.json --out four --split line \
    --separator= four.txt && '$DTX' data entropy --heldout 0.5 four"

# Other people's formats: looked into, made into a pair, merged, split; documents where an index or a separator says.
formats=$DTX_SOURCE/tests/golden/formats
expect 0 "format       llmc" "$DTX" data inspect "$formats/llmc_gpt2.bin"
expect 0 "first tokens 50256 15496 995 50256 40" "$DTX" data inspect "$formats/llmc_llama3.bin"
expect 0 "good: 5 tokens, largest id 50256" "$DTX" data verify "$formats/llmc_gpt2.bin" "$formats/tiny_i32"
expect 0 "3 documents, 5 tokens" "$DTX" data convert --separator 50256 --out llmc "$formats/llmc_llama3.bin"
expect 0 "type         i32" "$DTX" data inspect llmc
expect 0 "7 documents, 14 tokens" "$DTX" data merge --out merged "$formats/tiny_u16" llmc
expect 0 "first tokens 1 2 3 65535 10 11 12 13 14 50256 15496 995 50256 40" "$DTX" data inspect merged
expect 0 "parts-00001-of-00002: 3 documents, 5 tokens" "$DTX" data split --shares 9,5 --out parts merged
expect 0 "by-00004-of-00005: 1 documents, 1 tokens" "$DTX" data split --tokens 3 --out by merged
expect 0 "whole-00000-of-00001: 7 documents, 14 tokens" "$DTX" data split --parts 1 --out whole merged
cmp whole-00000-of-00001.bin merged.bin && cmp whole-00000-of-00001.idx merged.idx || complain "one part is not the whole"
printf '\1\0\2\0\3\0' >raw.npy
expect 0 "first tokens 1 2 3" "$DTX" data inspect --type u16 --mmap raw.npy
expect 0 "first tokens 10 11" "$DTX" data inspect --document 3 --show 2 "$formats/tiny_u16"
expect 0 "document 3 is tokens 4 to 8" "$DTX" data inspect --document 3 "$formats/tiny_u16"
expect 78 "document 4 is wanted, it has 4" "$DTX" data inspect --document 4 "$formats/tiny_u16"
expect 0 "a<|endoftext|>" bash -c "printf 'a\\nb\\n' >ab.txt && '$DTX' tokenize --tokenizer a.json --split line --out ab ab.txt &&
    '$DTX' data inspect --tokenizer a.json --document 0 ab"
expect 78 "what type" "$DTX" data inspect raw.npy
expect 78 "merged.bin or .idx exists" "$DTX" data convert --out merged "$formats/tiny_u16"
expect 78 "takes one file" "$DTX" data convert --out x "$formats/tiny_u16" "$formats/tiny_i32"
expect 78 "--parts, --shares and --tokens" "$DTX" data split --out x merged
expect 78 "'-1' is no positive share" "$DTX" data split --shares 1,-1 --out x merged
expect 78 "1 of 2 files are not good" "$DTX" data verify merged nothing
expect 78 "is none of llm.c's" "$DTX" data inspect llmc:text.txt

# What is wrong is named, with the exit codes of the design.
expect 78 "--vocabs" "$DTX" tokenizer train --vocabs 300 text.txt
expect 78 "vocab" "$DTX" tokenizer train --vocab 256 text.txt
expect 78 "0 file(s)" "$DTX" tokenize --tokenizer a.json --out x
expect 78 "--out PREFIX" "$DTX" tokenize --tokenizer a.json text.txt
expect 78 "split" "$DTX" tokenize --tokenizer a.json --out x --split word text.txt
expect 78 "<|end|>" "$DTX" tokenize --tokenizer a.json --out x --separator '<|end|>' text.txt
expect 78 "frobnicate" "$DTX" data frobnicate x
expect 78 "no/folder.json" "$DTX" tokenizer train --out no/folder.json text.txt
expect 78 "nothing.txt" "$DTX" tokenize --tokenizer a.json --out x text.txt nothing.txt
expect 78 "nothing.json" "$DTX" tokenize --tokenizer nothing.json --out x text.txt
expect 78 "Is a directory" "$DTX" tokenize --tokenizer a.json --out x .
truncate -s -1 lines.idx
expect 78 "lines.idx: truncated" "$DTX" data verify lines
truncate -s -2 whole.bin
expect 78 "whole.bin" "$DTX" data inspect whole
expect 78 "outside the vocabulary of 100" "$DTX" data verify --vocab 100 pipe
[ -z "$(find . -name 'x*')" ] || complain "a failed run left $(find . -name 'x*')"

# A full disk (here: a limit on file sizes) and a kill leave nothing under the final names.
expect 1 "cannot write" bash -c "trap '' XFSZ; ulimit -f 40; exec '$DTX' tokenize --tokenizer a.json --out y text.txt"
[ -z "$(find . -name 'y*')" ] || complain "a full disk left $(find . -name 'y*')"
mkfifo stall
"$DTX" tokenize --tokenizer a.json --out z stall >/dev/null 2>&1 &
killed=$!
exec 9>stall # the reader waits for more
cat text.txt >&9
for _ in $(seq 100); do
    [ -e z.tokenize.partial ] && break
    sleep 0.05
done
kill -KILL "$killed"
wait "$killed" 2>/dev/null
exec 9>&-
[ -e z.tokenize.partial ] || complain "the killed run had not begun"
[ ! -e z.bin ] && [ ! -e z.idx ] || complain "a killed run left a token file"
expect 0 "1 documents" "$DTX" tokenize --tokenizer a.json --out z text.txt
expect 0 "good: " "$DTX" data verify z
[ "$(find . -name 'z*' | wc -l)" = 3 ] || complain "more than a pair and a manifest: $(find . -name 'z*')"
expect 0 "complete already: 1 documents" "$DTX" tokenize --tokenizer a.json --out z text.txt

# JSON lines, plain and packed, by name and by pattern; what is bad is named, counted, and with --strict an error.
printf '{"text":"one","id":1}\n\n{"id":2}\n{"text":"caf\xe9"}\n{"text":""}\nnot json\n{"text":7}\n{"text":"t\\u0077o\\n"}\r\n' >a.jsonl
printf 'one<|endoftext|>' >plain.txt
expect 0 "3 documents, " "$DTX" tokenize --tokenizer a.json --out json a.jsonl
grep -q "1 invalid parts replaced, 3 bad lines left out, 1 empty texts left out" out || complain "counts: $(cat out)"
grep -q "a.jsonl: line 3 is left out: 'text' is not there" out || complain "line 3: $(cat out)"
grep -q "a.jsonl: line 6 is left out: not JSON at byte" out || complain "line 6: $(cat out)"
grep -q "a.jsonl: line 7 is left out: 'text' is not a string" out || complain "line 7: $(cat out)"
printf 'one\ncaf\xef\xbf\xbd\ntwo\n' >lines3.txt
expect 0 "3 documents" "$DTX" tokenize --tokenizer a.json --split line --out lines3 lines3.txt
[ "$(od -An -tu2 json.bin | tr -s ' \n' ' ' | wc -w)" -gt "$(od -An -tu2 lines3.bin | tr -s ' \n' ' ' | wc -w)" ] ||
    complain "the line end inside a JSON text is lost"
gzip -kc a.jsonl >b.jsonl.gz
cat b.jsonl.gz b.jsonl.gz >c.jsonl.gz
expect 0 "3 documents" "$DTX" tokenize --tokenizer a.json --out packed b.jsonl.gz
cmp json.bin packed.bin && cmp json.idx packed.idx || complain "gzip changes the tokens"
expect 0 "6 documents" "$DTX" tokenize --tokenizer a.json --out members c.jsonl.gz
expect 0 "9 documents" "$DTX" tokenize --tokenizer a.json --out glob '[bc].jsonl.gz'
expect 0 "3 documents" bash -c "'$DTX' tokenize --tokenizer a.json --format jsonl --out pipe - <b.jsonl.gz"
cmp json.bin pipe.bin || complain "a pipe of gzip changes the tokens"
expect 78 "a.jsonl: line 3: 'text' is not there" "$DTX" tokenize --tokenizer a.json --strict --out x a.jsonl
expect 78 "invalid UTF-8 in document 0" "$DTX" tokenize --tokenizer a.json --strict --out x broken.txt
expect 78 "no file matches w*.jsonl" "$DTX" tokenize --tokenizer a.json --out x 'w*.jsonl'
head -c 60 b.jsonl.gz >cut.jsonl.gz
expect 78 "cut.jsonl.gz: the gzip stream is cut off at byte 60" "$DTX" tokenize --tokenizer a.json --out x cut.jsonl.gz
cat b.jsonl.gz plain.txt >tail.jsonl.gz
expect 78 "is not gzip" "$DTX" tokenize --tokenizer a.json --out x tail.jsonl.gz
[ -z "$(find . -name 'x*')" ] || complain "a failed run left $(find . -name 'x*')"

# Shards end with the document that fills them; fewer of them replace more.
expect 0 "shards" "$DTX" tokenize --tokenizer a.json --split line --shard_bytes 3000 --out s text.txt
[ "$(stat -c %s s-00000.bin)" -ge 3000 ] && [ -e s-00009.idx ] || complain "shards: $(ls s-*)"
cat $(ls s-*.bin) | cmp - lines.bin || complain "the shards in a row are not the whole"
grep -q '"bin_xxh3": "[0-9a-f]\{16\}"' s.manifest.json || complain "manifest: $(cat s.manifest.json)"
expect 0 "2 shards" "$DTX" tokenize --tokenizer a.json --split line --shard_bytes 200000 --out s text.txt
[ ! -e s-00002.idx ] && [ ! -e s-00009.bin ] || complain "old shards stay: $(ls s-*)"

[ "$failures" = 0 ] && echo "all good"
exit $((failures > 0))
