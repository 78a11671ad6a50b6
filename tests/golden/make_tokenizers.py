#!/usr/bin/env python3
"""Cuts real vocabularies down to what decides over the golden texts: tests/golden/make_tokenizers.py FOLDER

FOLDER holds cl100k_base.tiktoken, o200k_base.tiktoken, qwen3/tokenizer.json and golden.jsonl (ids by tiktoken and Hugging
Face tokenizers). Whatever BPE makes of a text is a part of that text: a token that is no part of a golden text, in the
normal form that the tokenizer uses, can be left out without changing one id. Ids stay what they are.
"""
import base64
import json
import os
import sys
import unicodedata

source = sys.argv[1]
out = os.path.join(os.path.dirname(os.path.abspath(__file__)), "tokenizer")
lines = [json.loads(line) for line in open(os.path.join(source, "golden.jsonl"), encoding="utf-8")]
texts = [bytes.fromhex(line["utf8_hex"]) for line in lines]
normal = [unicodedata.normalize("NFC", text.decode()).encode() for text in texts]


def wanted(token, where):
    return len(token) == 1 or any(token in text for text in where)


def alphabet():
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table, n = {chr(b): b for b in shown}, 256
    for byte in range(256):
        if byte not in shown:
            table[chr(n)] = byte
            n += 1
    return table


for name in ("cl100k_base", "o200k_base"):
    with open(os.path.join(source, name + ".tiktoken"), "rb") as file:
        kept = [line for line in file if wanted(base64.b64decode(line.split()[0]), texts)]
    with open(os.path.join(out, name + ".part.tiktoken"), "wb") as file:
        file.writelines(kept)

letters = alphabet()
with open(os.path.join(source, "qwen3", "tokenizer.json"), encoding="utf-8") as file:
    root = json.load(file)
model = root["model"]


def read(token):
    return bytes(letters[c] for c in token)


model["vocab"] = {key: id for key, id in model["vocab"].items() if wanted(read(key), normal)}
model["merges"] = [merge for merge in model["merges"] if wanted(read(merge[0]) + read(merge[1]), normal)]
with open(os.path.join(out, "qwen3.part.json"), "w", encoding="utf-8") as file:
    json.dump(root, file, ensure_ascii=False, separators=(",", ":"))
    file.write("\n")
with open(os.path.join(out, "ids.jsonl"), "w", encoding="utf-8") as file:
    for line in lines:
        del line["text"]
        file.write(json.dumps(line, separators=(",", ":")) + "\n")
