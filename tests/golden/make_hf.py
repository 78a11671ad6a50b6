#!/usr/bin/env python3
"""Makes hf_diffllama and hf_llama: small random models as Hugging Face transformers saves them, with their logits.

usage: python3 make_hf.py OUTDIR        needs torch, transformers, numpy; see README.md for the versions used
"""
import os
import sys

import numpy as np
import torch
from transformers import DiffLlamaConfig, DiffLlamaForCausalLM, LlamaConfig, LlamaForCausalLM


def make(out, config_class, model_class, dtype, shard, seed, **settings):
    torch.manual_seed(seed)
    model = model_class(config_class(
        vocab_size=37, intermediate_size=20, num_hidden_layers=2, head_dim=4,
        rms_norm_eps=1e-5, max_position_embeddings=24, initializer_range=0.3, attn_implementation="eager",
        rope_parameters={"rope_type": "default", "rope_theta": 2000.0}, **settings)).to(dtype).eval()
    with torch.no_grad():  # gains and λ vectors away from their first values
        for p in model.parameters():
            if p.ndim == 1:
                p += 0.3 * torch.randn_like(p)
    model.save_pretrained(out, max_shard_size=shard)
    os.remove(os.path.join(out, "generation_config.json"))
    for name in os.listdir(out):
        os.chmod(os.path.join(out, name), 0o644)
    ids = torch.randint(0, 37, (2, 18), generator=torch.Generator().manual_seed(7))
    with open(os.path.join(out, "ids.txt"), "w") as f:
        f.writelines(" ".join(map(str, line)) + "\n" for line in ids.tolist())
    with torch.no_grad():  # the stored weights, computed in fp32
        logits = model_class.from_pretrained(out, dtype=torch.float32, attn_implementation="eager").eval()(ids).logits
    logits.numpy().astype("<f4").tofile(os.path.join(out, "logits.f32"))
    assert np.isfinite(logits.numpy()).all()


make(os.path.join(sys.argv[1], "hf_diffllama"), DiffLlamaConfig, DiffLlamaForCausalLM, torch.float32, "30KB", 1,
     hidden_size=32, num_attention_heads=8, num_key_value_heads=4, tie_word_embeddings=False)
make(os.path.join(sys.argv[1], "hf_llama"), LlamaConfig, LlamaForCausalLM, torch.bfloat16, "5GB", 2,
     hidden_size=16, num_attention_heads=4, num_key_value_heads=2, tie_word_embeddings=True)
