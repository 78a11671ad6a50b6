#!/usr/bin/env python3
"""Makes the golden files: logits, loss, gradients and one AdamW step of tiny models, in float64.

usage: python3 make_golden.py OUTDIR

The numbers come from Hugging Face transformers (DiffLlamaForCausalLM, LlamaForCausalLM) through
the export map of dtx; the files hold dtx's own layout and names. A second, direct implementation
of the mathematics in dtx's layout (`direct_logits`) must agree before a file is written.
"""
import math
import os
import sys

import h5py
import numpy as np
import torch
import torch.nn.functional as F
from transformers import DiffLlamaConfig, DiffLlamaForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.models.diffllama import modeling_diffllama
from transformers.models.llama import modeling_llama

VOCAB, D, LAYERS, HEAD_DIM, FFN = 67, 32, 3, 8, 48
THETA, EPS = 10000.0, 1e-5
BATCH, SEQ, IGNORED = 2, 19, -1
LR, BETA1, BETA2, ADAM_EPS, WEIGHT_DECAY, CLIP = 1e-2, 0.9, 0.95, 1e-8, 0.1, 1.0
LOGIT_TOL, GRAD_TOL = 1e-12, 1e-10  # absolute; relative to the largest entry of each tensor

# file: (variant, heads, kv_heads, tied, seed). A head of diff has two maps of width HEAD_DIM.
CASES = {
    "diff_mha": ("diff", 2, 2, False, 1),
    "diff_gqa": ("diff", 2, 1, True, 2),
    "softmax_mha": ("softmax", 4, 4, False, 3),
    "softmax_gqa": ("softmax", 4, 2, True, 4),
}


# ---- Hugging Face in true float64, fed from our layout --------------------------------------------

class Float64Torch:
    """Stands in for the name `torch` inside Hugging Face's modelling modules.

    Whatever the model's type, their code computes some parts in float32: the softmax
    (dtype=torch.float32), RMSNorm (.to(torch.float32)), the two sums in lambda
    (dtype=torch.float32), the rotary frequencies and angles (dtype=torch.float). Here these two
    names mean float64 and all else is torch itself, so their code runs as it is without rounding
    to float32. What is left, `position_ids.float()`, is exact for small integers. Their loss casts
    the logits to float32 and is not used: see `mean_loss`.
    """
    float32 = float = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


def hf_model(variant, heads, kv_heads, tied):
    maps = 2 if variant == "diff" else 1
    module, config_class, model_class = {
        "diff": (modeling_diffllama, DiffLlamaConfig, DiffLlamaForCausalLM),
        "softmax": (modeling_llama, LlamaConfig, LlamaForCausalLM)}[variant]
    module.torch = Float64Torch()
    model = model_class(config_class(
        vocab_size=VOCAB, hidden_size=D, intermediate_size=FFN, num_hidden_layers=LAYERS,
        num_attention_heads=maps * heads, num_key_value_heads=maps * kv_heads, head_dim=HEAD_DIM,
        rms_norm_eps=EPS, tie_word_embeddings=tied, use_cache=False, pad_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        attn_implementation="eager")).double().eval()
    if variant == "diff":  # lambda_init counts the layers from 0: 0.2, 0.3555, 0.4707, ...
        for i, layer in enumerate(model.model.layers):
            assert layer.self_attn.lambda_init == 0.8 - 0.6 * math.exp(-0.3 * i)
    return model


def hf_name(name):
    """Hugging Face's name for one of ours; it has none for the sub-norm gain."""
    whole = {"embed.tokens": "model.embed_tokens.weight", "final_norm.gain": "model.norm.weight",
             "head.out": "lm_head.weight"}
    if name in whole:
        return whole[name]
    _, layer, rest = name.split(".", 2)
    part, kind = rest.split(".")
    if part == "attn":
        suffix = f"self_attn.{kind}" if kind.startswith("lambda") else f"self_attn.{kind[0]}_proj.weight"
    elif part == "ffn":
        suffix = f"mlp.{kind}_proj.weight"
    else:
        suffix = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}[part] + ".weight"
    return f"model.layers.{int(layer)}.{suffix}"


def export(variant, heads, w):
    """The export map, in operations that autograd can follow: {their name: tensor}."""
    theirs = {}
    for name, x in w.items():
        part = name.split(".", 2)[-1]
        if part == "attn.subnorm":
            continue
        if variant == "diff" and part in ("attn.q", "attn.k", "attn.v"):
            # blocks of HEAD_DIM rows: the even ones (signal) first, then the odd ones (noise)
            x = x.reshape(-1, 2, HEAD_DIM, D).transpose(0, 1).reshape(-1, D)
        if part in ("attn.q", "attn.k"):
            # rows inside each block: interleaved rotary pairs -> halves
            x = x.reshape(-1, HEAD_DIM // 2, 2, D).transpose(1, 2).reshape(-1, D)
        if variant == "diff" and part == "attn.out":
            # the sub-norm gain, the same for every head, scales the columns
            x = x * w[name.replace("out", "subnorm")].repeat(heads)
        theirs[hf_name(name)] = x
    return theirs


def hf_logits(variant, heads, kv_heads, tied, w, tokens):
    model = hf_model(variant, heads, kv_heads, tied)
    params = export(variant, heads, w)
    assert sorted(params) == sorted(n for n, _ in model.named_parameters())  # a tied tensor is named once
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    logits = torch.func.functional_call(model, params, kwargs={"input_ids": tokens}).logits
    assert logits.dtype == torch.float64
    return logits


# ---- the same mathematics, written directly in our layout -----------------------------------------

def rms_norm(x):
    return x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + EPS)


def rotate(x):
    """Turns (batch, t, HEAD_DIM) by position, in interleaved pairs."""
    freq = torch.tensor([THETA ** (-2.0 * i / HEAD_DIM) for i in range(HEAD_DIM // 2)], dtype=torch.float64)
    angle = torch.arange(x.shape[1], dtype=torch.float64)[:, None] * freq
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * angle.cos() - odd * angle.sin(),
                        even * angle.sin() + odd * angle.cos()), dim=-1).reshape(x.shape)


def attention_map(q, k):
    """Causal softmax of one map."""
    score = rotate(q) @ rotate(k).transpose(1, 2) / math.sqrt(HEAD_DIM)
    later = torch.ones(score.shape[1:], dtype=torch.bool).triu(1)
    return score.masked_fill(later, -math.inf).softmax(dim=-1)


def block(x, index, width=HEAD_DIM):
    return x[..., index * width:(index + 1) * width]


def direct_attention(variant, heads, kv_heads, w, layer, x):
    p = f"layers.{layer:02d}.attn."
    q, k, v = x @ w[p + "q"].T, x @ w[p + "k"].T, x @ w[p + "v"].T
    outs = []
    for j in range(heads):
        g = j // (heads // kv_heads)  # the head's key/value index
        if variant == "softmax":
            outs.append(attention_map(block(q, j), block(k, g)) @ block(v, g))
            continue
        signal = attention_map(block(q, 2 * j), block(k, 2 * g))
        noise = attention_map(block(q, 2 * j + 1), block(k, 2 * g + 1))
        lambda_init = 0.8 - 0.6 * math.exp(-0.3 * layer)
        lam = (torch.exp(w[p + "lambda_q1"] @ w[p + "lambda_k1"])
               - torch.exp(w[p + "lambda_q2"] @ w[p + "lambda_k2"]) + lambda_init)
        o = (signal - lam * noise) @ block(v, g, 2 * HEAD_DIM)
        outs.append((1.0 - lambda_init) * rms_norm(o) * w[p + "subnorm"])
    return torch.cat(outs, dim=-1) @ w[p + "out"].T


def direct_logits(variant, heads, kv_heads, tied, w, tokens):
    x = w["embed.tokens"][tokens]
    for layer in range(LAYERS):
        p = f"layers.{layer:02d}."
        x = x + direct_attention(variant, heads, kv_heads, w, layer, rms_norm(x) * w[p + "attn_norm.gain"])
        y = rms_norm(x) * w[p + "ffn_norm.gain"]
        gate = y @ w[p + "ffn.gate"].T
        x = x + (gate * torch.sigmoid(gate) * (y @ w[p + "ffn.up"].T)) @ w[p + "ffn.down"].T
    return rms_norm(x) * w["final_norm.gain"] @ w["embed.tokens" if tied else "head.out"].T


# ---- inputs, loss, the optimiser's step, the files ------------------------------------------------

def make_weights(variant, heads, kv_heads, tied, rng):
    """Random and nowhere trivial; q and k larger, so that attention is far from uniform."""
    width = 2 * HEAD_DIM if variant == "diff" else HEAD_DIM  # of one head's queries, keys, values
    def matrix(rows, cols, scale=0.15): return scale * rng.standard_normal((rows, cols))
    def gain(n): return 1.0 + 0.2 * rng.standard_normal(n)
    w = {"embed.tokens": matrix(VOCAB, D)}
    for i in range(LAYERS):
        p = f"layers.{i:02d}."
        w[p + "attn_norm.gain"] = gain(D)
        w[p + "attn.q"] = matrix(heads * width, D, 0.3)
        w[p + "attn.k"] = matrix(kv_heads * width, D, 0.3)
        w[p + "attn.v"] = matrix(kv_heads * width, D)
        w[p + "attn.out"] = matrix(D, heads * width)
        if variant == "diff":
            for kind in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
                w[p + "attn." + kind] = 0.3 * rng.standard_normal(HEAD_DIM)
            w[p + "attn.subnorm"] = gain(width)
        w[p + "ffn_norm.gain"] = gain(D)
        w[p + "ffn.gate"], w[p + "ffn.up"] = matrix(FFN, D), matrix(FFN, D)
        w[p + "ffn.down"] = matrix(D, FFN)
    w["final_norm.gain"] = gain(D)
    if not tied:
        w["head.out"] = matrix(VOCAB, D)
    return w


def make_tokens(rng):
    ids = rng.integers(0, VOCAB, (BATCH, SEQ + 1)).astype(np.int32)
    tokens, targets = ids[:, :-1].copy(), ids[:, 1:].copy()
    targets[0, [4, 11]] = IGNORED  # uneven on purpose: a mean of the rows' means would differ
    targets[1, [0, 1, 2, 7, 8, 13, SEQ - 1]] = IGNORED
    return tokens, targets


def mean_loss(logits, targets):
    """Mean of the cross-entropy over the targets that are not ignored."""
    return F.cross_entropy(logits.reshape(-1, VOCAB), targets.reshape(-1), ignore_index=IGNORED)


def run(forward, case, weights, tokens, targets):
    """Logits, loss and the gradients of our weights, with one of the two implementations."""
    w = {name: torch.from_numpy(value.copy()).requires_grad_() for name, value in weights.items()}
    logits = forward(*case, w, torch.from_numpy(tokens).long())
    loss = mean_loss(logits, torch.from_numpy(targets).long())
    loss.backward()
    return logits.detach().numpy(), loss.item(), {name: value.grad.numpy() for name, value in w.items()}


def adamw_step(weights, grads):
    """One textbook AdamW step from zero moments, after clipping the global norm of the gradients."""
    norm = math.sqrt(sum(float((g * g).sum()) for g in grads.values()))
    update = {}
    for name, w in weights.items():
        g = grads[name] * min(1.0, CLIP / norm)
        m_hat = (1.0 - BETA1) * g / (1.0 - BETA1)
        v_hat = (1.0 - BETA2) * g * g / (1.0 - BETA2)
        decay = WEIGHT_DECAY if w.ndim == 2 else 0.0  # matrices and embeddings only
        update[name] = w - LR * decay * w - LR * m_hat / (np.sqrt(v_hat) + ADAM_EPS)
    return update, norm


def write_file(path, case, datasets, groups, grad_norm):
    variant, heads, kv_heads, tied = case
    with h5py.File(path, "w", libver=("earliest", "v110")) as f:
        for name, value in dict(D=D, heads=heads, kv_heads=kv_heads, head_dim=HEAD_DIM, layers=LAYERS, ffn=FFN,
                                vocab=VOCAB, tied=int(tied), theta=THETA, eps=EPS, grad_norm=grad_norm).items():
            f.attrs[name] = np.int32(value) if isinstance(value, int) else np.float64(value)
        f.attrs["variant"] = np.bytes_(variant)  # a fixed-length string
        for name, value in datasets.items():
            f[name] = value
        for group, tensors in groups.items():
            for name, value in tensors.items():
                f[f"{group}/{name}"] = value


def main(outdir):
    os.makedirs(outdir, exist_ok=True)
    for label, (*case, seed) in CASES.items():
        rng = np.random.default_rng(seed)
        weights = make_weights(*case, rng)
        tokens, targets = make_tokens(rng)
        logits, loss, grads = run(hf_logits, case, weights, tokens, targets)
        logits2, loss2, grads2 = run(direct_logits, case, weights, tokens, targets)
        logit_diff = max(np.abs(logits - logits2).max(), abs(loss - loss2))
        grad_diff = max(np.abs(grads[n] - grads2[n]).max() / np.abs(grads[n]).max() for n in weights)
        assert logit_diff < LOGIT_TOL and grad_diff < GRAD_TOL, (label, logit_diff, grad_diff)
        update, norm = adamw_step(weights, grads)
        assert norm > CLIP, (label, norm)  # so that clipping is exercised
        path = os.path.join(outdir, label + ".h5")
        write_file(path, case, dict(tokens=tokens, targets=targets, logits=logits, loss=np.float64(loss)),
                   dict(weights=weights, grads=grads, update=update), norm)
        print(f"{label}: loss {loss:.15f}, gradient norm {norm:.15f}, {os.path.getsize(path)} bytes; largest "
              f"differences: logits and loss {logit_diff:.1e}, gradients {grad_diff:.1e}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
