#!/usr/bin/env bash
# test: label=long timeout=500
# Nodes that are lost or named in crashes: an elastic job goes on upon the other with another mesh, from what was saved,
# and keeps the lost one off; without a node to spare a bad one is used all the same, and the script gives up in the end.
set -uo pipefail
. "$DTX_SOURCE/tests/harness/jobs.sh"
endless=(--train.steps 100000 --checkpoint.every 20 --checkpoint.keep 0 --eval.every 0)
on() { head -n 1 "$1/logs/attempt-$2.log"; } # RUN ATTEMPT: its nodes and mesh

# The batch host is lost: Slurm itself requeues the job, which starts on the other node alone.
submit lost "${endless[@]}" --nodes 1-2
until_true 60 "a checkpoint" test -e lost/checkpoints/latest
[[ $(on lost 1) = *" on n[1-2] (2 nodes × 2 ranks), --parallel.tp=2 --parallel.dp=2 "* ]] || complain "two nodes: $(on lost 1)"
node_stop n1
until_true 150 "a second attempt" attempts lost 2
until_true 60 "its steps" running_steps lost 2
[[ $(on lost 2) = *" on n2 (1 nodes × 2 ranks), --parallel.tp=2 --parallel.dp=1 "* ]] || complain "one node: $(on lost 2)"
grep -q '^dtx: resumed from .*step-' lost/logs/attempt-2.log || complain "not continued: $(head -n 20 lost/logs/attempt-2.log)"
grep -q 'the checkpoint is of tp 2 × pp 1 × dp 2' lost/logs/attempt-2.log || complain "the mesh is not told"
grep -q '^n1  # .* was lost in attempt 1' lost/excluded || complain "not excluded: $(cat lost/excluded)"
grep -q '^before: attempt 1: ended without a word' lost/status || complain "the page: $(cat lost/status)"

# It comes back, and is left alone: excluded.
node_start n1
node_wait n1 idle $((SECONDS + 60))
scancel --signal=USR1 "$job"
until_true 60 "a third attempt" attempts lost 3
until_true 60 "its steps" running_steps lost 3
[[ $(on lost 3) = *" on n2 (1 nodes"* ]] || complain "an excluded node is used: $(on lost 3)"
scancel "$job"
until_true 60 "the end" gone "$job"
step=$(value lost step)
train 4 reference "${endless[@]}" --train.until "$step" --parallel.tp 2 --parallel.dp 2
close_numbers 2e-3 <(field loss reference) <(field loss lost) >log || complain "the curve: $(head -n 4 log)"

# A node whose ranks are killed is excluded, here the first time.
edit='s/^backoff=30/backoff=1/; s/^strikes=2/strikes=1/'
submit killed "${endless[@]}" --nodes 1-2
until_true 60 "a checkpoint" test -e killed/checkpoints/latest
on_node n2 pkill -KILL -o -x dtx
until_true 60 "a second attempt" attempts killed 2
until_true 60 "its steps" running_steps killed 2
grep -q '^n2  # .* was named in 1 crashes' killed/excluded || complain "killed: $(cat killed/excluded killed/logs/*)"
[[ $(on killed 2) = *" on n1 (1 nodes"* ]] || complain "killed: $(on killed 2)"
grep -q '^before: attempt 1: failed, .*n2' killed/status || complain "killed: $(cat killed/status)"
scancel "$job"
until_true 60 "the end" gone "$job"

# Both nodes are needed: one fails the pre-flight and cannot be spared.
cat >standin <<END
#!/usr/bin/env bash
[ "\$1" = doctor ] || exec $DTX "\$@"
while [ "\$1" != --bad-nodes ]; do shift; done
[ "\$(hostname)" != n1 ] || { hostname >>"\$2"; exit 1; }
END
chmod +x standin
edit="s|^dtx=[^ ]*|dtx=$work/standin|; s/^backoff=30/backoff=1/; s/^crashes=3/crashes=1/"
submit both "${endless[@]}" --preflight
until_true 90 "the script gives up" gone "$job"
said both | grep -q 'crashed 2 times since nothing was saved, not requeued: the pre-flight fails' || complain "both: $(said both)"
said both | grep -q 'n1: excluded, but used all the same' || complain "both: $(said both)"
[ ! -e both/metrics.jsonl ] || complain "both: it trained"
finish
