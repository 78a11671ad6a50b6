#!/usr/bin/env python3
"""Components of tokenizer.json and the ids that Hugging Face tokenizers gives with them: make_components.py > FILE

Needs the package tokenizers. First line: vocabulary and merges beyond the 256 bytes (ids 0 to 255), and texts. Each
further line: what a tokenizer.json adds to them, and the ids of all texts with special tokens as plain text and, where it
has added tokens, with special tokens found. tests/unit/token_components.c reads it.
"""
import json
import random
import sys

from tokenizers import Tokenizer

MERGES = ["a b", "ab c", "h e", "l l", "he ll", "hell o", "Ġ hello", "Ġ a", "Ġ Ġ", "ĠĠ ĠĠ", "Ċ Ċ", "Ġ Ċ", "1 2", "12 3",
          "Ì ģ", "Ã ©", "e Ìģ", "ï ¬", "ï¬ ģ", "f i", ". .", "< s", "<s >", "Ġ <", "A B", "' s", "Ġ 1"]
SHOWN = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]


def letters():
    table, n = {}, 256
    for byte in range(256):
        table[byte] = chr(byte) if byte in SHOWN else chr(n)
        n += byte not in SHOWN
    return table


VOCAB = {text: byte for byte, text in letters().items()}
for merge in MERGES:
    VOCAB["".join(merge.split(" "))] = len(VOCAB)
VOCAB["abab"] = len(VOCAB)  # no merge makes it
VOCAB["Ġhello!"] = len(VOCAB)
FIRST_ADDED = len(VOCAB)

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
LAST = dict(BYTE_LEVEL, use_regex=False)


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": [*steps, LAST]}


def added(content, id, special=False, **flags):
    return {"id": VOCAB.get(content, FIRST_ADDED + id - 1), "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": special, **flags}


CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
UPPER, LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
O200K = "|".join([r"[^\r\n\p{L}\p{N}]?" + UPPER + "*" + LOWER + "+" + CONTRACTIONS + "?",
                  r"[^\r\n\p{L}\p{N}]?" + UPPER + "+" + LOWER + "*" + CONTRACTIONS + "?",
                  r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])
DEEPSEEK_3 = sequence(
    split(r"\p{N}{1,3}"), split("[一-龥぀-ゟ゠-ヿ]+"),
    split("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+|"
          " ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"))
DEEPSEEK_1 = sequence(
    split("[\r\n]"), split(r"\s?[A-Za-zµÀ-ÖØ-öø-ƺͰ-ͳΑ-Ωа-я]+"), split(r"\s?[!-/:-~！-／：-～‘-‟　-。]+"), split(r"\s+$"),
    split("[一-龥ࠀ-一가-퟿]+"), {"type": "Digits", "individual_digits": True})
TOKENS = [added("<s>", 0, True), added("<t>", 1), added("foo", 2, single_word=True), added("<l>", 3, lstrip=True),
          added("<r>", 4, rstrip=True), added("<lr>", 5, True, lstrip=True, rstrip=True), added("<s><t>", 6, True),
          added("ab<", 7), added("é!", 8, normalized=True), added("<e\u0301>", 9), added("  ", 10, normalized=True),
          added("t>f", 11), added("日本", 12, single_word=True)]


def configurations():
    yield {"pre_tokenizer": BYTE_LEVEL}
    yield {"pre_tokenizer": BYTE_LEVEL, "model": {"ignore_merges": True}}
    yield {"pre_tokenizer": BYTE_LEVEL, "model": {"merges": [merge.split(" ") for merge in MERGES]}}
    yield {"pre_tokenizer": BYTE_LEVEL, "model": {"merges": MERGES[::-1][:8] + MERGES[:19]}}
    yield {"pre_tokenizer": LAST}
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        yield {"pre_tokenizer": BYTE_LEVEL, "normalizer": {"type": form}}
    yield {"pre_tokenizer": BYTE_LEVEL, "normalizer": {"type": "Sequence", "normalizers": []}}
    yield {"pre_tokenizer": BYTE_LEVEL,
           "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKD"}, {"type": "NFC"}]}}
    for behavior in ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            yield {"pre_tokenizer": sequence(split("ab", behavior, invert, "String"))}
            yield {"pre_tokenizer": sequence(split(r"\s+|,", behavior, invert))}
            yield {"pre_tokenizer": sequence(split(r"\w+", behavior, invert), split(".", behavior, False, "String"))}
    yield {"pre_tokenizer": sequence({"type": "Digits", "individual_digits": True})}
    yield {"pre_tokenizer": sequence({"type": "Digits", "individual_digits": False})}
    for pattern in (r"(?=[A-Z])", r"x*", r"^a|b$", r"\W", r"[^\S\n]+", r"[\w']+", r"(?i)HELLO|ß", r"(?<=a)b", r"\h+",
                    r"\d{2}", r"[a\]]+", r"\p{Han}+", r"."):
        yield {"pre_tokenizer": sequence(split(pattern))}
    yield {"pre_tokenizer": DEEPSEEK_3}
    yield {"pre_tokenizer": DEEPSEEK_1}
    template = {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}],
                "pair": [{"Sequence": {"id": "A", "type_id": 0}}], "special_tokens": {}}
    yield {"pre_tokenizer": sequence(split(WORDS % "{1,3}")), "model": {"ignore_merges": True},
           "post_processor": {"type": "Sequence", "processors": [BYTE_LEVEL, template]}}
    yield {"pre_tokenizer": sequence(split(WORDS % "{1,3}", "Removed", True))}
    yield {"pre_tokenizer": sequence(split(WORDS % "")), "normalizer": {"type": "NFC"}}
    yield {"pre_tokenizer": sequence(split(O200K))}
    for form in (None, "NFC", "NFD"):
        yield {"pre_tokenizer": BYTE_LEVEL, "added_tokens": TOKENS, "normalizer": form and {"type": form}}
    yield {"pre_tokenizer": sequence(split(WORDS % "{1,3}")), "added_tokens": TOKENS[:5]}
    yield {"pre_tokenizer": BYTE_LEVEL, "added_tokens": TOKENS[:1]}


def texts():
    yield from ["", "hello hello! abab abcab", "it's IT'S I'LL 'S we’ve\u017f '\u017f 'ſx", "a  b   c \n\n \n  d  ", "foo foobar food afoo foo",
                "x <s> <s><t>foo<t>foo ab<s> <l> <r>  <lr> y", "  <l>  <r>  z<lr>\n\nab<lr>", "e\u0301! é! é <é> <e\u0301> ﬁ Å Ω 한",
                "12345 1 23.4..5 ١٢٣ ²", "日本語 日本 日 日本x 가나 カタ", "HELLOworld HelloWorld ÀÉ日aB ǅx ʰA", "a\u180eb\u0085c\u2028d\u00a0e\u3000f\x0b",
                "\r\n\r\na\rb\n\ra", "!!/\n/// ..\r\n//x #tag <p>", "a\u0323\u0301\u0301\u0323 \u0301x!\u0301y \u1100\u1161\u11a8 가\u11a8", "\u00df SS x*xx 😀‍👩 \ue000\U000e0001"]
    rng = random.Random(5)
    parts = list("  \n\tabcxABf.!,'<>12é") + ["hello", "ab", "<s>", "<t>", "foo", "<l>", "<r>", "<lr>", "\u0301", "日本", "\r\n", "'S", "½"]
    for _ in range(10):
        yield "".join(rng.choice(parts) for _ in range(25))


TEXTS = list(texts())
print(json.dumps({"vocab": {text: id for text, id in VOCAB.items() if id >= 256}, "merges": MERGES, "texts": TEXTS},
                 ensure_ascii=False))
for parts in configurations():
    root = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": parts.get("added_tokens", []),
            "normalizer": parts.get("normalizer"), "pre_tokenizer": parts["pre_tokenizer"],
            "post_processor": parts.get("post_processor"), "decoder": BYTE_LEVEL,
            "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                      "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                      "vocab": VOCAB, "merges": MERGES, **parts.get("model", {})}}
    tokenizer = Tokenizer.from_str(json.dumps(root))
    assert all(tokenizer.token_to_id(token["content"]) == token["id"] for token in root["added_tokens"])
    line = dict(parts)
    tokenizer.encode_special_tokens = True
    line["plain"] = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
    if parts.get("added_tokens"):
        tokenizer.encode_special_tokens = False
        line["found"] = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
    print(json.dumps({key: value for key, value in line.items() if value is not None}, ensure_ascii=False,
                     separators=(",", ":")))
sys.stdout.flush()
