#!/usr/bin/env bash
# test: label=cluster timeout=180
# The same run under srun on two nodes and under mpirun on one: losses, norms, λ, held-out losses and the checkpoint's
# arrays have the same bits, whichever ranks share a node, and each continues the other's checkpoint. The run folder is
# complete, exit codes are srun's too.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/cluster.sh"
cluster_enter "$@"
. "$DTX_SOURCE/tests/harness/train.sh"
cluster_start
echo "two nodes after $SECONDS s"
make_data
options=(--train.steps 8 --checkpoint.every 4 --checkpoint.keep 0 --eval.every 4 --eval.samples 8 --parallel.tp 2
    --parallel.pp 2)
train 4 plain "${options[@]}"

# Under srun from here on; each rank notes where it is.
cat >task <<'END'
#!/bin/sh
hostname >"where.$SLURM_PROCID"
exec "$DTX" "$@"
END
chmod +x task
distribution=block
start() {
    local ranks=$1
    shift
    rm -f where.*
    on_nodes "$ranks" --distribution="$distribution" ./task "$@"
}
same() { # RUN CHECKPOINT: as the run under mpirun
    diff <(numbers plain | tail -n "$(numbers "$1" | wc -l)") <(numbers "$1") >log || complain "$1: other numbers: $(cat log)"
    same_arrays "plain/checkpoints/$2" "$1/checkpoints/$2"
}
placed() { # HOST…: of rank 0, 1, …
    local where
    where=$(cat where.? | xargs)
    [ "$where" = "$*" ] || complain "ranks are on $where, not on $*"
}
train 4 nodes "${options[@]}"
placed n1 n1 n2 n2
[ "$(numbers nodes | wc -l)" = 8 ] || complain "$(numbers nodes | wc -l) steps of 8"
same nodes step-00000008
for line in 'state: done' 'step: 8' 'steps: 8' 'code: 0' 'host: n1'; do
    grep -qx "$line" nodes/status || complain "no '$line' in $(cat nodes/status)"
done
for part in config.yaml tensorboard checkpoints/latest checkpoints/step-00000004; do
    [ -e "nodes/$part" ] || complain "no $part: $(ls nodes nodes/checkpoints)"
done
"$DTX" ckpt verify nodes/checkpoints/step-00000008 >log 2>&1 || complain "verify: $(cat log)"

# Tensor ranks on different nodes; a resume under srun of what mpirun began, and the other way round.
distribution=cyclic
train 4 across "${options[@]}" --resume plain/checkpoints/step-00000004
placed n1 n2 n1 n2
same across step-00000008
start() { timeout -s KILL 60 mpirun -n "$1" "$DTX" "${@:2}"; }
train 4 back "${options[@]}" --resume nodes/checkpoints/step-00000004
same back step-00000008
finish
