#!/usr/bin/env python3
"""Makes the golden files: logits, loss, gradients and one AdamW step of tiny models, in float64.

usage: python3 make_golden.py OUTDIR

The numbers come from Hugging Face transformers (DiffLlamaForCausalLM, LlamaForCausalLM) through
the export map of dtx; the files hold dtx's own layout and names. A second, direct implementation
of the mathematics in dtx's layout (function `direct_logits`) must agree before a file is written.
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
LOGIT_TOL, GRAD_TOL, FINITE_DIFF_TOL = 1e-12, 1e-10, 1e-7

# file: (variant, heads, kv_heads, tied, seed). A differential head has two maps of HEAD_DIM.
CASES = {
    "diff_mha": ("diff", 2, 2, False, 1),
    "diff_gqa": ("diff", 2, 1, True, 2),
    "softmax_mha": ("softmax", 4, 4, False, 3),
    "softmax_gqa": ("softmax", 4, 2, True, 4),
}


# ---- Hugging Face in true float64 ----------------------------------------------------------------

class Float64Torch:
    """Stands in for the name `torch` inside Hugging Face's modelling modules.

    Their code computes some parts in float32 whatever the model's type is: the softmax
    (dtype=torch.float32), RMSNorm (.to(torch.float32)), the two sums in lambda
    (dtype=torch.float32) and the rotary frequencies and angles (dtype=torch.float). Here these two
    names mean float64 and all else is torch itself, so the code runs unchanged without rounding to
    float32. What is left, `position_ids.float()`, is exact for small integers. The loss is not
    taken from Hugging Face, which casts the logits to float32: see `mean_loss`.
    """

    float32 = torch.float64
    float = torch.float64

    def __getattr__(self, name):
        return getattr(torch, name)


def hf_model(variant, heads, kv_heads, tied):
    maps = 2 if variant == "diff" else 1
    modelling = modeling_diffllama if variant == "diff" else modeling_llama
    config_class, model_class = ((DiffLlamaConfig, DiffLlamaForCausalLM) if variant == "diff"
                                 else (LlamaConfig, LlamaForCausalLM))
    modelling.torch = Float64Torch()
    config = config_class(
        vocab_size=VOCAB, hidden_size=D, intermediate_size=FFN, num_hidden_layers=LAYERS,
        num_attention_heads=maps * heads, num_key_value_heads=maps * kv_heads, head_dim=HEAD_DIM,
        rms_norm_eps=EPS, max_position_embeddings=64, tie_word_embeddings=tied,
        attention_bias=False, attention_dropout=0.0, use_cache=False, pad_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        attn_implementation="eager")  # the plain code: SDPA's kernels are not the reference
    model = model_class(config).double().eval()
    if variant == "diff":  # lambda_init counts the layers from 0: 0.2, 0.3555, 0.4707, ...
        for i, layer in enumerate(model.model.layers):
            assert layer.self_attn.lambda_init == 0.8 - 0.6 * math.exp(-0.3 * i)
    return model


# ---- the export map, dtx's layout -> Hugging Face's, and the same for gradients, backwards -------

def rotary_rows(rows):
    """Row order that turns interleaved rotary pairs into halves, within each block of HEAD_DIM."""
    return np.arange(rows).reshape(-1, HEAD_DIM // 2, 2).transpose(0, 2, 1).reshape(-1)


def even_odd_blocks(rows):
    """Row order that puts the even blocks of HEAD_DIM first, then the odd ones."""
    return np.arange(rows).reshape(-1, 2, HEAD_DIM).transpose(1, 0, 2).reshape(-1)


def export_order(variant, kind, rows):
    """Hugging Face's row i is our row order[i]."""
    order = np.arange(rows)
    if variant == "diff" and kind in "qkv":
        order = order[even_odd_blocks(rows)]
    if kind in "qk":
        order = order[rotary_rows(rows)]
    return order


def hf_names(variant, tied):
    """Our name -> Hugging Face's, for all but the sub-norm gain, which it has not."""
    names = {"embed.tokens": "model.embed_tokens.weight", "final_norm.gain": "model.norm.weight"}
    if not tied:
        names["head.out"] = "lm_head.weight"
    for i in range(LAYERS):
        ours, theirs = f"layers.{i:02d}.", f"model.layers.{i}."
        names[ours + "attn_norm.gain"] = theirs + "input_layernorm.weight"
        names[ours + "ffn_norm.gain"] = theirs + "post_attention_layernorm.weight"
        for kind in ("q", "k", "v"):
            names[ours + "attn." + kind] = f"{theirs}self_attn.{kind}_proj.weight"
        names[ours + "attn.out"] = theirs + "self_attn.o_proj.weight"
        for kind in ("gate", "up", "down"):
            names[ours + "ffn." + kind] = f"{theirs}mlp.{kind}_proj.weight"
        if variant == "diff":
            for kind in ("lambda_q1", "lambda_k1", "lambda_q2", "lambda_k2"):
                names[ours + "attn." + kind] = f"{theirs}self_attn.{kind}"
    return names


def hf_run(variant, heads, kv_heads, tied, weights, tokens, targets):
    """Logits, loss and gradients (in our layout) by Hugging Face."""
    model = hf_model(variant, heads, kv_heads, tied)
    params = dict(model.named_parameters())  # names a tied tensor once
    names = hf_names(variant, tied)
    assert sorted(params) == sorted(names.values())
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied
    for name, w in weights.items():
        if name.endswith("subnorm"):
            continue
        kind = name.rsplit(".", 1)[1]
        if kind in ("q", "k", "v"):
            w = w[export_order(variant, kind, len(w))]
        elif kind == "out" and variant == "diff" and name != "head.out":
            w = w * np.tile(weights[name.replace("out", "subnorm")], heads)  # scales columns
        params[names[name]].data.copy_(torch.from_numpy(w))

    logits = model(input_ids=torch.from_numpy(tokens).long()).logits
    assert logits.dtype == torch.float64
    loss = mean_loss(logits, targets)
    loss.backward()

    grads = {}
    for name, w in weights.items():
        if name.endswith("subnorm"):
            continue
        g = params[names[name]].grad.numpy()
        kind = name.rsplit(".", 1)[1]
        if kind in ("q", "k", "v"):
            ours = np.empty_like(g)
            ours[export_order(variant, kind, len(g))] = g
            g = ours
        elif kind == "out" and variant == "diff" and name != "head.out":
            # O_hf = Out * tile(gain): dOut = dO_hf * tile(gain); dgain sums over heads and rows
            sub = name.replace("out", "subnorm")
            grads[sub] = (g * w).sum(axis=0).reshape(heads, 2 * HEAD_DIM).sum(axis=0)
            g = g * np.tile(weights[sub], heads)
        grads[name] = g
    return logits.detach().numpy(), loss.item(), grads


# ---- the same mathematics, written directly in our layout ----------------------------------------

def mean_loss(logits, targets):
    """Mean of the cross-entropy over the targets that are not ignored."""
    return F.cross_entropy(logits.reshape(-1, VOCAB), torch.from_numpy(targets).long().reshape(-1),
                           ignore_index=IGNORED)


def rms_norm(x):
    return x / torch.sqrt((x * x).mean(dim=-1, keepdim=True) + EPS)


def rotate(x):
    """Turns (batch, t, HEAD_DIM) by position, in interleaved pairs."""
    t = x.shape[1]
    freq = torch.tensor([THETA ** (-2.0 * i / HEAD_DIM) for i in range(HEAD_DIM // 2)], dtype=torch.float64)
    angle = torch.arange(t, dtype=torch.float64)[:, None] * freq
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * angle.cos() - odd * angle.sin(),
                        even * angle.sin() + odd * angle.cos()), dim=-1).reshape(x.shape)


def attention_map(q, k):
    """Causal softmax of one sub-head."""
    t = q.shape[1]
    score = rotate(q) @ rotate(k).transpose(1, 2) / math.sqrt(HEAD_DIM)
    later = torch.ones(t, t, dtype=torch.bool).triu(1)
    return score.masked_fill(later, -math.inf).softmax(dim=-1)


def block(x, index, width):
    return x[..., index * width:(index + 1) * width]


def direct_attention(variant, heads, kv_heads, w, layer, x):
    p = f"layers.{layer:02d}.attn."
    q, k, v = x @ w[p + "q"].T, x @ w[p + "k"].T, x @ w[p + "v"].T
    outs = []
    for j in range(heads):
        g = j // (heads // kv_heads)  # the head's key/value index
        if variant == "softmax":
            outs.append(attention_map(block(q, j, HEAD_DIM), block(k, g, HEAD_DIM)) @ block(v, g, HEAD_DIM))
            continue
        signal = attention_map(block(q, 2 * j, HEAD_DIM), block(k, 2 * g, HEAD_DIM))
        noise = attention_map(block(q, 2 * j + 1, HEAD_DIM), block(k, 2 * g + 1, HEAD_DIM))
        lambda_init = 0.8 - 0.6 * math.exp(-0.3 * layer)
        lam = (torch.exp(w[p + "lambda_q1"] @ w[p + "lambda_k1"])
               - torch.exp(w[p + "lambda_q2"] @ w[p + "lambda_k2"]) + lambda_init)
        o = (signal - lam * noise) @ block(v, g, 2 * HEAD_DIM)
        outs.append((1.0 - lambda_init) * rms_norm(o) * w[p + "subnorm"])
    return torch.cat(outs, dim=-1) @ w[p + "out"].T


def direct_logits(variant, heads, kv_heads, tied, w, tokens):
    x = w["embed.tokens"][torch.from_numpy(tokens).long()]
    for layer in range(LAYERS):
        p = f"layers.{layer:02d}."
        x = x + direct_attention(variant, heads, kv_heads, w, layer, rms_norm(x) * w[p + "attn_norm.gain"])
        y = rms_norm(x) * w[p + "ffn_norm.gain"]
        gate = y @ w[p + "ffn.gate"].T
        x = x + (gate * torch.sigmoid(gate) * (y @ w[p + "ffn.up"].T)) @ w[p + "ffn.down"].T
    x = rms_norm(x) * w["final_norm.gain"]
    return x @ w["embed.tokens" if tied else "head.out"].T


def direct_run(variant, heads, kv_heads, tied, weights, tokens, targets):
    w = {name: torch.from_numpy(value.copy()).requires_grad_() for name, value in weights.items()}
    logits = direct_logits(variant, heads, kv_heads, tied, w, tokens)
    loss = mean_loss(logits, targets)
    loss.backward()
    return logits.detach().numpy(), loss.item(), {name: value.grad.numpy() for name, value in w.items()}


# ---- inputs, the optimiser's step, the files ------------------------------------------------------

def make_weights(variant, heads, kv_heads, tied, rng):
    """Random and nowhere trivial; q and k larger, so that attention is far from uniform."""
    width = 2 * HEAD_DIM if variant == "diff" else HEAD_DIM  # of one head's q, k, v, output
    matrix = lambda rows, cols, scale=0.15: scale * rng.standard_normal((rows, cols))
    gain = lambda n: 1.0 + 0.2 * rng.standard_normal(n)
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
        w[p + "ffn.gate"] = matrix(FFN, D)
        w[p + "ffn.up"] = matrix(FFN, D)
        w[p + "ffn.down"] = matrix(D, FFN)
    w["final_norm.gain"] = gain(D)
    if not tied:
        w["head.out"] = matrix(VOCAB, D)
    return w


def make_tokens(rng):
    ids = rng.integers(0, VOCAB, (BATCH, SEQ + 1)).astype(np.int32)
    tokens, targets = ids[:, :-1].copy(), ids[:, 1:].copy()
    targets[0, [4, 11]] = IGNORED  # uneven on purpose: a mean per row would differ
    targets[1, [0, 1, 2, 7, 8, 13, SEQ - 1]] = IGNORED
    return tokens, targets


def adamw_step(weights, grads):
    """One textbook AdamW step from zero moments, after clipping the global norm of the gradients."""
    norm = math.sqrt(sum(float((g * g).sum()) for g in grads.values()))
    scale = min(1.0, CLIP / norm)
    update = {}
    for name, w in weights.items():
        g = grads[name] * scale
        m_hat = (1.0 - BETA1) * g / (1.0 - BETA1)
        v_hat = (1.0 - BETA2) * g * g / (1.0 - BETA2)
        decay = LR * WEIGHT_DECAY if w.ndim == 2 else 0.0  # matrices and embeddings only
        update[name] = w - decay * w - LR * m_hat / (np.sqrt(v_hat) + ADAM_EPS)
    return update, norm


def worst_relative(a, b):
    assert sorted(a) == sorted(b)
    return max(float(np.abs(a[n] - b[n]).max() / np.abs(b[n]).max()) for n in a)


def finite_difference_error(case, weights, grads, tokens, targets, rng, step=1e-5):
    """Relative error of the gradients along one random direction, against central differences."""
    ahead = {n: rng.standard_normal(w.shape) for n, w in weights.items()}
    def at(s):
        return direct_run(*case, {n: w + s * ahead[n] for n, w in weights.items()}, tokens, targets)[1]
    slope = sum(float((grads[n] * ahead[n]).sum()) for n in weights)
    return abs((at(step) - at(-step)) / (2.0 * step) - slope) / abs(slope)


def write_file(path, case, tokens, targets, logits, loss, weights, grads, update, norm):
    variant, heads, kv_heads, tied = case
    with h5py.File(path, "w", libver=("earliest", "v110")) as f:
        for name, value in dict(D=D, heads=heads, kv_heads=kv_heads, head_dim=HEAD_DIM, layers=LAYERS,
                                ffn=FFN, vocab=VOCAB, tied=int(tied)).items():
            f.attrs[name] = np.int32(value)
        for name, value in dict(theta=THETA, eps=EPS, grad_norm=norm).items():
            f.attrs[name] = np.float64(value)
        f.attrs["variant"] = np.bytes_(variant)
        f["tokens"], f["targets"], f["logits"], f["loss"] = tokens, targets, logits, np.float64(loss)
        for group, tensors in (("weights", weights), ("grads", grads), ("update", update)):
            for name, value in tensors.items():
                f[f"{group}/{name}"] = np.ascontiguousarray(value)


def main(outdir):
    torch.manual_seed(0)
    os.makedirs(outdir, exist_ok=True)
    for label, (*case, seed) in CASES.items():
        rng = np.random.default_rng(seed)
        weights = make_weights(*case, rng)
        tokens, targets = make_tokens(rng)
        logits, loss, grads = hf_run(*case, weights, tokens, targets)
        direct = direct_run(*case, weights, tokens, targets)
        logit_diff = float(np.abs(logits - direct[0]).max())
        loss_diff = abs(loss - direct[1])
        grad_diff = worst_relative(grads, direct[2])
        slope_diff = finite_difference_error(case, weights, grads, tokens, targets, rng)
        assert logit_diff < LOGIT_TOL and loss_diff < LOGIT_TOL, (label, logit_diff, loss_diff)
        assert grad_diff < GRAD_TOL and slope_diff < FINITE_DIFF_TOL, (label, grad_diff, slope_diff)
        update, norm = adamw_step(weights, grads)
        assert norm > CLIP, (label, norm)  # so that clipping is exercised
        path = os.path.join(outdir, label + ".h5")
        write_file(path, case, tokens, targets, logits, loss, weights, grads, update, norm)
        print(f"{label}: loss {loss:.15f} grad_norm {norm:.15f} {os.path.getsize(path)} bytes; differences: "
              f"logits {logit_diff:.1e} loss {loss_diff:.1e} gradients {grad_diff:.1e} slope {slope_diff:.1e}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
