#!/usr/bin/env bash
# Checkpoints against Hugging Face transformers and EleutherAI's lm-eval: an export gives dtx's logits and text there, a
# model saved there gives its logits here, lm-eval runs on an export. Needs a build and Python packages from PyPI (torch
# is large), so it is no part of tests/run.sh. DTX_PEERS_PYTHON names a Python that has torch, transformers and lm_eval.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
export DTX_SOURCE="${DTX_SOURCE:-$(cd "$here/../.." && pwd)}"
export DTX_BUILD="${DTX_BUILD:-$DTX_SOURCE/build}"
export DTX="${DTX:-$DTX_BUILD/dtx}"
export HF_HUB_OFFLINE=1 HF_DATASETS_OFFLINE=1 TRANSFORMERS_VERBOSITY=error TOKENIZERS_PARALLELISM=false
. "$DTX_SOURCE/tests/harness/train.sh"
export HF_HOME="$work/home"

python=${DTX_PEERS_PYTHON:-}
if [ -z "$python" ]; then
    python3 -m venv "$work/venv" && "$work/venv/bin/pip" install -q torch transformers "lm_eval[hf]" >"$work/pip" 2>&1 || {
        echo "skipped: torch, transformers and lm_eval cannot be installed: $(tail -n 1 "$work/pip" 2>/dev/null)"
        exit 77
    }
    python=$work/venv/bin/python
fi
"$python" -c 'import torch, transformers, lm_eval, importlib.metadata as m
print("torch", torch.__version__, "transformers", transformers.__version__, "lm_eval", m.version("lm_eval"))' ||
    { echo "skipped: $python lacks torch, transformers or lm_eval"; exit 77; }
compare() { "$python" "$here/hf_compare.py" "$@" 2>err || complain "$*: $(tail -n 5 err)"; }
dump() { "$DTX_BUILD/tests/dump_logits" --resume "$1" --ids "$2" --logits "$3" >log 2>&1 || complain "logits of $1: $(cat log)"; }

make_data
docs=$here/lm_eval/docs.jsonl
mkdir tasks && sed "s|DOCS|$docs|" "$here/lm_eval/dtx_local.yaml" >tasks/dtx_local.yaml
small+=(--train.length 64 --model.width 64 --model.ffn 96 --train.steps 60 --checkpoint.every 0 --lr.peak 5e-3)
for kind in diff-tied diff-gqa softmax-tied softmax-gqa; do
    options=(--model.attention "${kind%-*}")
    [ "${kind#*-}" = gqa ] && options+=(--model.kv_heads 2 --model.tied false)
    train 1 "$kind" "${options[@]}"
    "$DTX" ckpt export --tokenizer tok.json --shard_bytes 60000 --out "$kind-hf" "$kind/checkpoints" 2>log ||
        complain "export of $kind: $(cat log)"
    compare ids "$work/$kind-hf" "$docs" ids
    dump "$kind/checkpoints" ids logits
    prompt='static enum'
    "$DTX" generate --resume "$kind/checkpoints" --tokenizer tok.json --prompt "$prompt" --tokens 16 --temperature 0 \
        >text 2>log || complain "generate: $(cat log)"
    compare export "$work/$kind-hf" ids logits "$prompt" text
    compare lm_eval "$work/$kind-hf" "$work/tasks" "$docs" ids logits
done
for kind in diff-own diff-tied softmax-own softmax-tied; do
    compare random "$kind" "$work/random-$kind" ids expected
    "$DTX" ckpt import --out "random-$kind-dtx" "random-$kind" 2>log || complain "import of $kind: $(cat log)"
    dump "random-$kind-dtx" ids logits
    compare logits logits expected 61
done
finish
