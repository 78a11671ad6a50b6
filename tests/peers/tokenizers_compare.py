#!/usr/bin/env python3
"""What tests/peers/tokenizers.sh asks of tiktoken and Hugging Face tokenizers.

  ids LIBRARY TOKENIZER TEXT PREFIX   the ids of the text against PREFIX.bin, which dtx wrote
  speed TOKENIZER TEXT                seconds of one pass of tiktoken in this process: wall, CPU
"""
import array
import base64
import os
import re
import sys
import time


def read_ids(prefix):
    with open(prefix + ".idx", "rb") as file:
        kind = file.read(18)[17]
    ids = array.array({8: "H", 4: "i"}[kind])
    with open(prefix + ".bin", "rb") as file:
        ids.frombytes(file.read())
    return ids


def tiktoken_encoding(path):
    import tiktoken
    import tiktoken_ext.openai_public as public
    from tiktoken.load import data_gym_to_mergeable_bpe_ranks

    name = os.path.basename(path)
    if name == "vocab.bpe":
        encoder = os.path.join(os.path.dirname(path), "encoder.json")
        return tiktoken.Encoding("gpt2", pat_str=public.r50k_pat_str, special_tokens={},
                                 mergeable_ranks=data_gym_to_mergeable_bpe_ranks(path, encoder))
    with open(path, "rb") as file:
        ranks = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in file if line.strip())}
    kept = public.load_tiktoken_bpe
    public.load_tiktoken_bpe = lambda *args, **options: ranks  # the pattern of the package, the ranks of the file
    try:
        parts = getattr(public, name.split(".")[0])()
    finally:
        public.load_tiktoken_bpe = kept
    return tiktoken.Encoding(**parts)


def cut(text, size=1 << 20):
    """Parts of about that size, cut between a letter and a space."""
    at = 0
    while len(text) - at > size:
        found = None
        for found in re.finditer(r"[A-Za-z](?= )", text[at + size - 2000:at + size]):
            pass
        end = at + size - 2000 + found.end() if found else at + size
        yield text[at:end]
        at = end
    yield text[at:]


def main():
    what, *words = sys.argv[1:]
    if what == "speed":
        encoding = tiktoken_encoding(words[0])
        text = open(words[1], "rb").read().decode("utf-8", "replace")
        wall, cpu = time.perf_counter(), time.process_time()
        encoding.encode_ordinary(text)
        print(time.perf_counter() - wall, time.process_time() - cpu)
        return 0
    library, path, text_path, prefix = words
    text = open(text_path, "rb").read().decode("utf-8", "replace")
    expected = array.array("i")
    if library == "tiktoken":
        expected.extend(tiktoken_encoding(path).encode_ordinary(text))
    else:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(path)
        tokenizer.encode_special_tokens = True
        for part in cut(text):
            expected.extend(tokenizer.encode(part, add_special_tokens=False).ids)
    got = read_ids(prefix)
    same = len(got) == len(expected) and all(a == b for a, b in zip(got, expected))
    if not same:
        at = next((i for i, (a, b) in enumerate(zip(got, expected)) if a != b), min(len(got), len(expected)))
        print(f"{library}: {len(expected)} ids, dtx {len(got)}; first other at {at}: "
              f"{list(expected[at:at + 8])} against {list(got[at:at + 8])}")
        return 1
    print(f"{library}: {len(got)} ids, all equal")
    return 0


sys.exit(main())
