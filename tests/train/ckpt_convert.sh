#!/usr/bin/env bash
# test: label=train timeout=240
# Export, import and average of checkpoints of small trained models; --init from each of them on 1 and 4 ranks; what
# does not fit is refused by name; a kill leaves no half target.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/train.sh"
make_data
small+=(--lr.warmup 0 --eval.samples 8)

# ckpt EXPECTED_CODE WORDS…: output in `out`
ckpt() {
    local expected=$1
    shift
    timeout -s KILL 60 "$DTX" ckpt "$@" >out 2>&1 </dev/null
    local code=$?
    [ "$code" = "$expected" ] || complain "dtx ckpt $*: exit code $code instead of $expected: $(cat out)"
}
says() { grep -qF -- "$1" "${2:-out}" || complain "'$1' is not in: $(cat "${2:-out}")"; }
same_folders() { diff -r "$1" "$2" >log 2>&1 || complain "$1 and $2 differ: $(head -n 5 log)"; }
heldout_of() { sed -nE 's/^held-out loss ([0-9.]+) .*/\1/p' "$1"; }

# Export, import, export: the same files bit for bit; one file or several; what both hold has the same bits in dtx.
for kind in diff-tied diff-gqa softmax-tied softmax-gqa; do
    options=(--model.attention "${kind%-*}" --train.steps 8 --checkpoint.every 4 --checkpoint.keep 0 --lr.peak 1e-2)
    [ "${kind#*-}" = gqa ] && options+=(--model.kv_heads 2 --model.tied false)
    train 1 "$kind" "${options[@]}"
    ckpt 0 export --out "$kind-hf" --tokenizer tok.json "$kind/checkpoints"
    ckpt 0 import --out "$kind-dtx" "$kind-hf"
    ckpt 0 export --out "$kind-hf2" --tokenizer tok.json "$kind-dtx"
    same_folders "$kind-hf" "$kind-hf2"
    ckpt 0 export --out "$kind-many" --shard_bytes 20000 --tokenizer tok.json "$kind/checkpoints"
    [ "$(find "$kind-many" -name 'model-*-of-*.safetensors' | wc -l)" -gt 5 ] || complain "$kind: not several files"
    ckpt 0 import --out "$kind-dtx2" "$kind-many"
    ckpt 0 diff "$kind-dtx" "$kind-dtx2"
    ckpt 1 diff "$kind/checkpoints" "$kind-dtx"
    # the gain is in the out-projection now and all else is as it was (the optimizer's arrays are gone)
    changed=$(grep -c 'elements differ' out)
    expected=0
    [ "${kind%-*}" = diff ] && expected=8
    [ "$changed" = $expected ] || complain "$kind: $changed arrays changed, expected $expected: $(cat out)"
    if grep 'elements differ' out | grep -qvE 'attn\.(out|subnorm) '; then complain "$kind: others changed: $(cat out)"; fi
    "$DTX" eval --resume "$kind/checkpoints" --samples 8 >direct 2>log
    "$DTX" eval --resume "$kind-dtx" --samples 8 --data.train "$work/data" >imported 2>log
    close_numbers 1e-6 <(heldout_of direct) <(heldout_of imported) >log || complain "$kind: losses differ: $(cat log)"
done
grep -q '"eos_token": "<|endoftext|>"' diff-tied-hf/tokenizer_config.json || complain "no end token"
cmp -s tok.json diff-tied-hf/tokenizer.json || complain "tokenizer.json is another one"

# bf16: matrices from the masters rounded once, which is what the layers used; an import of it is exact.
train 1 bf16 --train.dtype bf16 --model.subnorm plain --train.steps 4 --lr.peak 1e-2
ckpt 0 export --out bf16-hf bf16/checkpoints
says 'bfloat16' bf16-hf/config.json
ckpt 0 import --out bf16-dtx bf16-hf
ckpt 0 export --out bf16-hf2 --dtype bf16 bf16-dtx
same_folders bf16-hf bf16-hf2
ckpt 0 export --out bf16-f32 --dtype f32 bf16/checkpoints
[ "$(stat -c %s bf16-f32/model.safetensors)" -gt "$(stat -c %s bf16-hf/model.safetensors)" ] || complain "f32 is no larger"

# Targets: refused when there, replaced by --force, never half there.
ckpt 78 export --out diff-tied-hf diff-gqa/checkpoints
says '--force replaces it'
ckpt 78 import --out diff-tied-dtx diff-gqa-hf
says 'holds a checkpoint already'
mkdir other && touch other/precious
ckpt 78 export --force --out other diff-tied/checkpoints
says 'no earlier export'
[ -e other/precious ] || complain "a folder of something else was replaced"
cp -r diff-tied-hf replaced
ckpt 0 export --force --out replaced --tokenizer tok.json diff-gqa/checkpoints
same_folders replaced diff-gqa-hf
ckpt 0 import --force --out diff-tied-dtx2 diff-tied-hf
ckpt 0 diff diff-tied-dtx diff-tied-dtx2
for i in 1 2 3 4 5 6; do # killed at some instant, then again undisturbed
    "$DTX" ckpt export --shard_bytes 3000 --out killed --tokenizer tok.json diff-gqa/checkpoints >log 2>&1 &
    sleep "0.00$i"
    kill -KILL $! 2>/dev/null
    wait $! 2>/dev/null
    [ ! -e killed ] || [ -e killed/model.safetensors.index.json ] || complain "half an export: $(ls killed)"
    ckpt 0 export --force --shard_bytes 3000 --out killed --tokenizer tok.json diff-gqa/checkpoints
    [ -e .killed.new ] && complain "what was killed stays"
    ckpt 0 import --force --out killed-dtx killed
    ckpt 0 diff killed-dtx diff-gqa-dtx
    rm -r killed
done

# What DiffLlama cannot hold, and what it says.
for what in model.lambda_init:0.8 model.subnorm:none model.norm_eps:1e-06; do
    folder=refused-${what%:*}
    train 1 "$folder" --train.steps 1 "--${what%:*}" "${what#*:}"
    ckpt 78 export --out refused "$folder/checkpoints"
    says "${what%:*} is ${what#*:}"
    [ ! -e refused ] && [ ! -e .refused.new ] || complain "a refused export leaves something behind"
done
train 1 eps --train.steps 1 --model.attention softmax --model.norm_eps 1e-6
ckpt 0 export --out eps-hf eps/checkpoints
says '"rms_norm_eps": 1e-6' eps-hf/config.json

# Folders that are not what they should be.
broken() { # NAME SED TEXT: config.json of diff-gqa-hf changed; its import must say TEXT
    rm -rf "broken-$1" && cp -r diff-gqa-hf "broken-$1"
    sed -i "$2" "broken-$1/config.json"
    ckpt 78 import --out "broken-$1-dtx" "broken-$1"
    says "$3"
    [ ! -e "broken-$1-dtx" ] || complain "a refused import leaves something behind"
}
broken bias 's/"attention_bias": false/"attention_bias": true/' 'attention_bias = true: dtx has no biases'
broken shape 's/"intermediate_size": 48/"intermediate_size": 49/' 'has shape [48, 32]; its config.json says [49, 32]'
broken tied 's/"tie_word_embeddings": false/"tie_word_embeddings": true/' 'lm_head.weight is another matrix'
broken layers 's/"num_hidden_layers": 4/"num_hidden_layers": 3/' 'no place for the tensor model.layers.3.'
broken more 's/"num_hidden_layers": 4/"num_hidden_layers": 5/' 'has no tensor model.layers.4.'
rm -r broken-bias/model.safetensors
sed -i 's/"attention_bias": true/"attention_bias": false/' broken-bias/config.json
ckpt 78 import --out nothing broken-bias
says 'has neither model.safetensors nor'
ckpt 78 import --out nothing nowhere
says 'nowhere/config.json does not exist'
cp -r diff-gqa-many lost && rm lost/model-00003-of-*
ckpt 1 import --out nothing lost
says 'model-00003-of-'
sed -i 's|"model-00001-of[^"]*"|"../x.safetensors"|' lost/model.safetensors.index.json
ckpt 78 import --out nothing lost
says 'is no file name'

# The mean of two, against numbers that h5dump prints; the mean of one with itself is that one.
ckpt 0 average --out mean diff-tied/checkpoints/step-00000004 diff-tied/checkpoints/step-00000008
ckpt 0 average --out twice diff-tied/checkpoints/step-00000004 diff-tied/checkpoints/step-00000004
list() { h5dump -y -w 1 -m '%.17g' -d /model/layers.01.attn.q "$1/checkpoint.h5" | sed -nE 's/^ *(-?[0-9][^,]*),?$/\1/p'; }
paste <(list diff-tied/checkpoints/step-00000004) <(list diff-tied/checkpoints/step-00000008) |
    awk '{ printf "%.17g\n", ($1 + $2) / 2 }' >expected
[ "$(wc -l <expected)" = 1024 ] || complain "h5dump prints $(wc -l <expected) numbers"
close_numbers 1e-7 <(list mean/step-00000008) expected >log || complain "the mean: $(head -n 3 log)"
ckpt 1 diff diff-tied/checkpoints/step-00000004 twice
grep -q 'elements differ' out && complain "the mean of one with itself is another"
ckpt 78 average --out mean2 diff-tied/checkpoints diff-gqa/checkpoints
says 'model.kv_heads'
says 'model.tied'
# A folder into which a run saves just now is left alone.
exec {lock}>>diff-gqa/checkpoints/.lock
flock "$lock"
ckpt 78 average --force --out diff-gqa/checkpoints diff-tied/checkpoints diff-tied/checkpoints
says 'another dtx is at work in diff-gqa/checkpoints'
exec {lock}>&-

# --init: a new run from weights alone. With a learning rate of 0 its held-out loss is the checkpoint's, on any mesh.
"$DTX" eval --resume diff-gqa/checkpoints --samples 8 >direct 2>log
new=(--train.steps 2 --lr.peak 0 --lr.min 0 --eval.every 1)
from=diff-gqa/checkpoints/step-00000008
train 1 init1 "${new[@]}" --init $from
train 4 init4 "${new[@]}" --init $from --parallel.tp 2 --parallel.pp 2
train 2 init2 "${new[@]}" --init diff-gqa-dtx --parallel.dp 2
train 1 init-bf16 "${new[@]}" --init diff-gqa-dtx --train.dtype bf16
for run in init1 init4 init2 init-bf16; do
    bound=1e-6
    [ $run = init-bf16 ] && bound=1e-2
    close_numbers $bound <(heldout_of direct) <(field heldout_loss $run | head -n 1) >log ||
        complain "$run: the held-out loss at step 1 is not the checkpoint's: $(cat log)"
    [ "$(field step $run | xargs)" = '1 2' ] || complain "$run: steps $(field step $run | xargs)"
done
# a run in bf16 gives its masters, to runs in bf16 on several data ranks and in fp32
"$DTX" eval --resume bf16/checkpoints --samples 8 >direct 2>log
train 2 init-masters "${new[@]}" --init bf16/checkpoints --train.dtype bf16 --parallel.dp 2
train 1 init-wider "${new[@]}" --init bf16/checkpoints
close_numbers 1e-3 <(heldout_of direct) <(field heldout_loss init-masters | head -n 1) >log || complain "masters: $(cat log)"
close_numbers 1e-2 <(heldout_of direct) <(field heldout_loss init-wider | head -n 1) >log || complain "wider: $(cat log)"
ckpt 0 export --out wider-hf --dtype f32 init-wider/checkpoints
cmp -s wider-hf/model.safetensors bf16-f32/model.safetensors || complain "a run in fp32 does not begin with the masters"
close_numbers 1e-6 <(field loss init1) <(field loss init4) >log || complain "init on 4 ranks: $(cat log)"
same_loss=$(field loss init1 | head -n 1)
train 1 fresh --model.kv_heads 2 --model.tied false --train.steps 2
awk -v a="$same_loss" -v b="$(field loss fresh | head -n 1)" 'BEGIN { exit !(a < b - 0.1) }' ||
    complain "the first loss from a checkpoint, $same_loss, is not below that of first weights"
# the options of the new run are its own, the model's are the checkpoint's
grep -q 'kv_heads: 2' init1/config.yaml || complain "the model's options were not taken over"
refused() { # TEXT OPTION…
    start 1 train "${small[@]}" --run.dir refused "${@:2}" >out 2>&1 </dev/null
    [ $? = 78 ] || complain "${*:2} is not refused: $(cat out)"
    says "$1"
}
refused 'model.kv_heads = '\''4'\''' --init $from --model.kv_heads 4
refused 'choose one of them' --init $from --resume $from
refused 'holds weights alone (imported from diff-gqa-hf' --resume diff-gqa-dtx --model.kv_heads 2 --model.tied false
says '--init diff-gqa-dtx/step-00000000'
refused 'does not exist' --init nowhere
# it is a run like any other: stopped and resumed
train 1 init1 --train.steps 4 --resume latest
[ "$(field step init1 | xargs)" = '1 2 3 4' ] || complain "the run cannot be resumed: $(field step init1 | xargs)"
finish
