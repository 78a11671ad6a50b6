# Sourced by tests that need a real Slurm cluster: a head and the nodes n1 and n2, all on this machine.
#
# cluster_enter starts the script again in namespaces of its own (network, processes, mounts, host name); it is process 1
# there and the cluster's head. All that the cluster is lives inside: it binds nothing outside, two of them do not meet,
# and whatever way the script ends (also by KILL) nothing of it is left. Every node has its own host name, network,
# processes, /tmp and /dev/shm; everything else, so the sources, the build and the test's folder, is shared. On the head
# srun, sbatch, squeue, mpirun are used as on any cluster.
# shellcheck shell=bash
cluster_namespaces=(unshare --net --uts --ipc --mount --pid --fork --kill-child --mount-proc)
declare -A cluster_pid=() # node → its process 1, as the head sees it
cluster_nodes=(n1 n2)

# Does this machine allow it? (tests/skips.txt: where it does, skipping is a fault.)
cluster_possible() {
    "${cluster_namespaces[@]}" bash -c '! command -v ip ||
        { ip link add bridge0 type bridge && ip link add n1 type veth peer name n2; }' >/dev/null 2>&1
}

# A /tmp and a /dev/shm of its own for the mount namespace NAME; what nodes share stays visible where it was.
cluster_private() { # NAME
    local shared private=$DTX_CLUSTER/tmp.$1
    mkdir -p "$private"
    mount -t tmpfs -o mode=1777 tmpfs "$private" || return
    for shared in "$DTX_CLUSTER_FROM" "$DTX_CLUSTER" "$DTX_SOURCE" "$DTX_BUILD"; do
        [[ $shared == /tmp/* ]] || continue
        mkdir -p "$private${shared#/tmp}"
        mount --bind "$shared" "$private${shared#/tmp}" || return
    done
    mount --move "$private" /tmp && mount -t tmpfs -o mode=1777 tmpfs /dev/shm && hostname "$1"
}

# cluster_enter "$@": the first thing a script does. Outside it waits for the script inside, shows the daemons' logs when
# that failed, and removes the folder in which all files lie. Skips (77) where namespaces are not allowed.
cluster_enter() {
    if [ -n "${DTX_CLUSTER:-}" ]; then
        cluster_private head || exit 1
        cd "$PWD" || exit 1
        return
    fi
    cluster_possible || { echo "namespaces for a cluster are not allowed here"; exit 77; }
    local command folder code
    for command in slurmctld slurmd srun munged ip; do
        command -v $command >/dev/null || { echo "no $command here: launch/packages.sh cluster"; exit 1; }
    done
    folder=$(mktemp -d "${TMPDIR:-/tmp}/dtx-cluster.XXXXXX") || exit 1
    # In the background, so that a signal ends it at once. Background jobs would ignore INT.
    DTX_CLUSTER=$folder DTX_CLUSTER_FROM=$PWD TMPDIR=$folder env --default-signal=INT,QUIT setpriv --pdeathsig KILL \
        "${cluster_namespaces[@]}" bash "$0" "$@" <&0 &
    # shellcheck disable=SC2064
    trap "kill -KILL $! 2>/dev/null; wait; rm -rf '$folder'" EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM HUP
    wait $!
    code=$?
    [ "$code" = 0 ] || [ "$code" = 77 ] || tail -n 30 "$folder"/slurm/*.log
    exit "$code"
}

# Inside. Starts everything and waits until both nodes take jobs; ends the script if they do not.
cluster_start() {
    local slurm=$DTX_CLUSTER/slurm name deadline=$((SECONDS + ${DTX_CLUSTER_DEADLINE:-60}))
    unset TMPDIR # nodes have their own /tmp
    export SLURM_CONF=$slurm/slurm.conf
    # Neither Open MPI nor dtx can see that all nodes share this machine's cores.
    export OMPI_MCA_mpi_yield_when_idle=1 DTX_SHARED_CORES=true
    export SLURM_PMIX_FENCE=ring # launch/slurm/README.md: without it a fence of PMIx waits for the own node's ranks only
    mkdir "$slurm"
    cluster_configure "$slurm"
    [ ! -e /etc/hosts ] || mount --bind "$slurm/hosts" /etc/hosts # in this mount namespace only
    ip link set lo up
    ip link add bridge type bridge
    ip address add 10.77.0.1/24 dev bridge
    ip link set bridge up
    # By force: the folder may be this user's alone.
    munged --foreground --force --key-file="$slurm/munge.key" --socket="$slurm/munge.socket" --pid-file="$slurm/munged.pid" \
        --log-file="$slurm/munged.log" --seed-file="$slurm/munge.seed" </dev/null >"$slurm/munged.out.log" 2>&1 &
    until [ -S "$slurm/munge.socket" ]; do
        cluster_before "$deadline" "munged does not start"
    done
    slurmctld -D -i </dev/null >"$slurm/slurmctld.out.log" 2>&1 &
    for name in "${cluster_nodes[@]}"; do
        node_start "$name"
    done
    for name in "${cluster_nodes[@]}"; do
        node_wait "$name" idle "$deadline"
    done
}

cluster_before() { # DEADLINE TEXT: a moment later, or the end of the script
    [ "$SECONDS" -lt "$1" ] || { echo "cluster: $2"; exit 1; }
    sleep 0.05
}

cluster_configure() { # FOLDER
    head -c 1024 /dev/urandom >"$1/munge.key"
    chmod 600 "$1/munge.key"
    mkdir "$1/state"
    printf '%s\n' '127.0.0.1 localhost' '10.77.0.1 head' '10.77.0.11 n1' '10.77.0.12 n2' >"$1/hosts"
    cat >"$1/slurm.conf" <<END
ClusterName=dtx
SlurmctldHost=head(10.77.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
# A requeued job waits until the credentials of its last run have expired.
AuthInfo=socket=$1/munge.socket,cred_expire=5
StateSaveLocation=$1/state
SlurmdSpoolDir=$1/spool.%n
SlurmctldPidFile=$1/slurmctld.pid
SlurmdPidFile=$1/slurmd.%n.pid
SlurmctldLogFile=$1/slurmctld.log
SlurmdLogFile=$1/slurmd.%n.log
MailProg=/bin/true
MpiDefault=pmix
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
# Jobs that may begin again do so soon.
SchedulerParameters=bf_interval=2,sched_interval=5
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
# Nodes have the cores stated here, whatever the machine has.
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=10
NodeName=n1 NodeAddr=10.77.0.11 CPUs=8
NodeName=n2 NodeAddr=10.77.0.12 CPUs=8
PartitionName=all Nodes=n1,n2 Default=YES State=UP
END
    echo 'CgroupAutomount=no' >"$1/cgroup.conf"
}

# node_start NAME: switches a node on.
node_start() {
    local slurm=$DTX_CLUSTER/slurm name=$1 text process deadline=$((SECONDS + 20))
    rm -rf "$slurm/spool.$name" # sockets left there would break the next job
    mkdir -p "$slurm/spool.$name"
    text=$(declare -f cluster_private cluster_node)
    "${cluster_namespaces[@]}" bash -c "$text; cluster_node $name" </dev/null >>"$slurm/$name.log" 2>&1 &
    process=$!
    until cluster_pid[$name]=$(pgrep -P "$process"); do
        cluster_before "$deadline" "node $name does not start"
    done
    ip link add "$name" type veth peer name eth0 netns "${cluster_pid[$name]}"
    ip link set "$name" master bridge up
}

# Process 1 of a node.
cluster_node() { # NAME
    set -e
    cluster_private "$1"
    ip link set lo up
    until ip link show eth0 >/dev/null 2>&1; do
        sleep 0.02
    done
    ip address add "10.77.0.1${1#n}/24" dev eth0
    ip link set eth0 up
    slurmd -D -N "$1" &
    sleep infinity # as process 1 bash reaps what the steps leave
}

# node_stop NAME: its power goes.
node_stop() {
    kill -KILL "${cluster_pid[$1]}"
    while ip link show "$1" >/dev/null 2>&1; do # the network goes with the last process
        sleep 0.02
    done
}

node_state() { # as sinfo writes it, which shows changes late
    scontrol -o show node "$1" 2>/dev/null | sed -nE 's/.* State=([^ ]*) .*/\L\1/; s/\+not_responding/*/; p'
}
node_wait() { # NAME STATE DEADLINE
    until [ "$(node_state "$1")" = "$2" ]; do
        cluster_before "$3" "node $1 is '$(node_state "$1")', not $2"
    done
}

# on_node NAME COMMAND…: runs there, in this folder; sees that node's processes and files.
on_node() {
    nsenter --target "${cluster_pid[$1]}" --net --uts --ipc --mount --pid -- bash -c 'cd "$0" && exec "$@"' "$PWD" "${@:2}"
}

# on_nodes RANKS COMMAND…: half of the ranks on each node.
on_nodes() {
    timeout -s KILL "${DTX_CLUSTER_LIMIT:-60}" srun -N 2 --ntasks-per-node=$(($1 / 2)) --mpi=pmix "${@:2}" </dev/null
}
