#!/usr/bin/env bash
# test: label=cluster timeout=180
# A node that fails the pre-flight is excluded, and the job goes on upon the other with another mesh; taken off the list it
# is used again. (nodes.sh: where no other node is left.)
set -uo pipefail
. "$DTX_SOURCE/tests/harness/jobs.sh"

# In place of the program: its pre-flight fails on the nodes that are named in $work/bad. Else it is the program's, which
# measures for a moment and does not judge a machine that is shared by its speed.
cat >standin <<END
#!/usr/bin/env bash
[ "\$1" = doctor ] || exec $DTX "\$@"
if [ -s $work/bad ]; then
    while [ "\$1" != --bad-nodes ]; do shift; done
    ! grep -qx "\$(hostname)" $work/bad || { hostname >>"\$2"; exit 1; }
    exit
fi
exec $DTX "\$@" --seconds 0.01 --least.gemm 0 --least.memory 0 --least.node 0 --least.link 0
END
chmod +x standin
: >bad
edit="s|^dtx=[^ ]*|dtx=$work/standin|; s/^backoff=30/backoff=1/; s/^crashes=3/crashes=1/"
options=(--train.steps 12 --checkpoint.every 0 --eval.every 0 --preflight)

echo n2 >bad
submit run "${options[@]}" --nodes 1-2
until_true 90 "the end of the run" in_state run done
until_true 20 "the end of the job" gone "$job"
grep -qE '^n2  # .* failed the pre-flight of attempt 1$' run/excluded || complain "excluded: $(cat run/excluded)"
said run | grep -q 'requeued without n2' || complain "not said: $(said run)"
! grep -q '^dtx: step' run/logs/attempt-1.log || complain "trained on a node that fails: $(cat run/logs/attempt-1.log)"
head -n 1 run/logs/attempt-2.log | grep -q ' on n1 (1 nodes × 2 ranks), --parallel.tp=2 --parallel.dp=1 ' ||
    complain "the second attempt: $(head -n 1 run/logs/attempt-2.log)"
grep -q '^1 --parallel.tp=2 --parallel.dp=1 ' run/meshes || complain "the mesh is not kept: $(cat run/meshes)"

# Off the list, and given to Slurm again: both nodes.
: >bad
sed -i '/^n2/d' run/excluded
sed -i 's/^options=(/options=(--train.until=12 /' run/train.sbatch
resubmit run
until_true 60 "the resubmitted job's end" gone "$job"
grep -q '^pre-flight: passed: 2 nodes, 4 ranks' run/logs/attempt-3.log || complain "pre-flight: $(cat run/logs/attempt-3.log)"
head -n 1 run/logs/attempt-3.log | grep -qF ' on n[1-2] (2 nodes' || complain "the third attempt: $(head -n 1 run/logs/attempt-3.log)"

finish
