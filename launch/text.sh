# Sourced by scripts that go from text to token files: English text, a vocabulary, tokens, in the current folder. Sets and
# uses $texts, an array; $dtx is the program; say prints a heading.
# shellcheck shell=bash disable=SC2154

# text_take: where texts is empty, Debian's copy of the GCIDE dictionary. Sets split, how it falls into documents.
text_take() {
    split=blank-line
    [ ${#texts[@]} -eq 0 ] || return 0
    split=entry # an entry is a document: the held-out ones, the last, define words that no other entry defines
    texts=("$PWD/gcide.txt")
    [ ! -s gcide.txt ] || return 0
    say "text: Debian's package dict-gcide (a dictionary, 40 MB of English)"
    mkdir -p package
    (cd package && { ls dict-gcide_*.deb >/dev/null 2>&1 || apt-get -q download dict-gcide 2>/dev/null; } &&
        dpkg-deb -x dict-gcide_*.deb .) || { echo "${0##*/}: cannot get dict-gcide; use --text FILE" >&2; exit 1; }
    zcat package/usr/share/dictd/gcide.dict.dz >gcide.new
    mv gcide.new gcide.txt
}

# text_is_new: made things belong to the texts they were made of; is what is here of other ones, or not there?
text_is_new() {
    source_key=$(printf '%s\n' "$split" "${texts[@]}"; stat -c '%s %Y' "${texts[@]}")
    [ ! -f source ] || [ "$(cat source)" != "$source_key" ]
}

# text_tokens IDS: tokenizer.json and tokens, where they are not there.
text_tokens() {
    printf '%s\n' "$source_key" >source
    if [ ! -s tokenizer.json ]; then
        say "vocabulary: $1 ids, byte-level BPE"
        "$dtx" tokenizer train --vocab "$1" --out tokenizer.json "${texts[@]}"
    fi
    if [ ! -s tokens.idx ]; then
        say "tokens"
        "$dtx" tokenize --tokenizer tokenizer.json --split "$split" --out tokens "${texts[@]}"
    fi
}
