#!/usr/bin/env python3
"""Compares dtx with Hugging Face transformers and lm-eval. Started by hf.sh; every step prints its figure.

usage: hf_compare.py export FOLDER IDS LOGITS PROMPT TEXT   a dtx export gives dtx's logits and dtx's text
       hf_compare.py random KIND FOLDER IDS LOGITS          saves a random model; its logits go to LOGITS
       hf_compare.py logits LOGITS LOGITS VOCAB             two files of logits
       hf_compare.py lm_eval FOLDER TASKS DOCS IDS LOGITS   lm-eval's bits per byte are those of dtx's logits
       hf_compare.py ids FOLDER DOCS IDS                    token ids of the documents, each behind the end token
"""
import json
import math
import sys

import numpy as np

# Both sides compute in fp32 and sum in different orders. A logit is a sum of D terms of normed values; an error of
# some ulp (6e-8) in each of a handful of layers' sums leaves about 1e-6 of the largest logit. Ten times that is the
# bound: a wrong permutation, gain or angle is a thousand times larger.
BOUND = 1e-5


def load_logits(path, vocab):
    return np.fromfile(path, dtype=np.float64).reshape(-1, vocab)


def load_ids(path):
    with open(path) as f:
        return [[int(word) for word in line.split()] for line in f if line.strip()]


def compare(name, got, expected):
    assert got.shape == expected.shape and np.isfinite(got).all(), (name, got.shape, expected.shape)
    largest = np.abs(expected).max()
    difference = np.abs(got - expected).max()
    print(f"{name}: {got.shape[0]} positions, largest logit {largest:.3f}, largest difference {difference:.2e} "
          f"({difference / largest:.1e} of it; bound {BOUND:.0e})")
    if not difference <= BOUND * largest:
        sys.exit(f"{name}: the logits differ")


def model_logits(model, ids):
    import torch
    with torch.no_grad():
        return np.concatenate([model(torch.tensor([line])).logits[0].double().numpy() for line in ids])


def export(folder, ids_path, logits_path, prompt, text):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    compare(f"{type(model).__name__} from a dtx export", model_logits(model, load_ids(ids_path)),
            load_logits(logits_path, model.config.vocab_size))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = [tokenizer.eos_token_id] + tokenizer(prompt)["input_ids"]
    out = model.generate(torch.tensor([ids]), max_new_tokens=16, do_sample=False)
    got = tokenizer.decode(out[0][1:], skip_special_tokens=True)
    with open(text, encoding="utf-8", errors="replace") as f:
        expected = f.read()
    if got.strip() != expected.strip():
        sys.exit(f"generated text differs:\n{got!r}\n{expected!r}")
    print(f"  16 greedy tokens behind {prompt!r}: the same text as dtx generate: {got[len(prompt):]!r}")


def random_model(kind, folder, ids_path, logits_path):
    import torch
    from transformers import DiffLlamaConfig, DiffLlamaForCausalLM, LlamaConfig, LlamaForCausalLM
    torch.manual_seed(5)
    diff, tied = kind.startswith("diff"), kind.endswith("tied")
    config_class, model_class = (DiffLlamaConfig, DiffLlamaForCausalLM) if diff else (LlamaConfig, LlamaForCausalLM)
    config = config_class(vocab_size=61, hidden_size=32, intermediate_size=40, num_hidden_layers=3,
                          num_attention_heads=8, num_key_value_heads=4 if diff else 2, head_dim=4, rms_norm_eps=1e-5,
                          max_position_embeddings=32, tie_word_embeddings=tied, initializer_range=0.2,
                          rope_parameters={"rope_type": "default", "rope_theta": 5000.0}, attn_implementation="eager")
    model = model_class(config).float().eval()
    with torch.no_grad():  # gains and λ vectors away from their first values
        for name, p in model.named_parameters():
            if p.ndim == 1:
                p += 0.3 * torch.randn_like(p)
    model.save_pretrained(folder, max_shard_size="20KB" if tied else "5GB")
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(0, 61, (3, 20), generator=generator).tolist()
    with open(ids_path, "w") as f:
        f.writelines(" ".join(map(str, line)) + "\n" for line in ids)
    model_logits(model, ids).tofile(logits_path)
    print(f"{model_class.__name__} with random weights, {'tied' if tied else 'own head'}: saved")


def lm_eval(folder, tasks, docs, ids_path, logits_path):
    import lm_eval as harness
    from lm_eval.tasks import TaskManager
    manager = TaskManager(include_path=tasks)
    results = harness.simple_evaluate(model="hf", tasks=["dtx_local"], task_manager=manager, batch_size=1, device="cpu",
                                      model_args={"pretrained": folder, "dtype": "float32"}, bootstrap_iters=0)
    got = results["results"]["dtx_local"]["bits_per_byte,none"]
    with open(f"{folder}/config.json") as f:
        logits = load_logits(logits_path, json.load(f)["vocab_size"])
    nats = at = 0
    for line in load_ids(ids_path):
        rows = logits[at:at + len(line) - 1]
        top = rows.max(axis=1)
        nats += (np.log(np.exp(rows - top[:, None]).sum(axis=1)) + top - rows[range(len(rows)), line[1:]]).sum()
        at += len(line)
    with open(docs) as f:
        size = sum(len(json.loads(line)["text"].encode()) for line in f)
    expected = nats / size / math.log(2)
    print(f"lm-eval {folder.rsplit('/', 1)[-1]}: {got:.6f} bits per byte; from dtx's logits {expected:.6f}")
    if not abs(got - expected) <= 1e-5 * expected:
        sys.exit("lm-eval gives another value than dtx's logits")


def ids_of(folder, docs, ids_path):
    from transformers import AutoTokenizer
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with open(docs) as f, open(ids_path, "w") as out:
        for line in f:
            ids = [tokenizer.eos_token_id] + tokenizer(json.loads(line)["text"])["input_ids"]
            out.write(" ".join(map(str, ids)) + "\n")


if __name__ == "__main__":
    what, *rest = sys.argv[1:] or [""]
    if what == "logits":
        compare("dtx from a transformers folder", load_logits(rest[0], int(rest[2])), load_logits(rest[1], int(rest[2])))
    else:
        {"export": export, "random": random_model, "lm_eval": lm_eval, "ids": ids_of}[what](*rest)
