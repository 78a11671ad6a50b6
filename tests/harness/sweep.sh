# Sourced, after train.sh, by tests of sweeps: a small spec, and what must hold of a sweep's folder.
# shellcheck shell=bash disable=SC2154 # work is train.sh's

export DTX_MACHINE=h100 # totals of a plan need no measurement of this machine

# make_spec FILE [LINE…]: two sizes of training of one shape, both variants, in branches of one stable part; LINEs are
# further keys of the group sweep.
make_spec() {
    local file=$1
    shift
    {
        printf 'sweep:\n  shapes: 32x2\n  tokens: 5120, 10240\n'
        printf '  %s\n' "$@"
        printf '%s\n' 'model: {heads: 4, vocab: 320, ffn: 48}' 'train: {length: 16, batch: 8}' \
            'lr: {schedule: wsd, peak: 1e-2, warmup: 2}' 'eval: {every: 0, samples: 16}' 'log: {peak_seconds: 0}' \
            'checkpoint: {every: 4}' "data: {train: $work/data}"
    } >"$file"
}
# losses SWEEP: what its results say, without the ids.
losses() { cut -d, -f2- "$1/results.csv" | sort; }
# phase SWEEP TRIAL: "done", "failed", …
phase() { "$DTX" sweep status "$1" --json --stale 2 | sed -n "s/^{\"trial\":$2,.*\"state\":\"\([a-z]*\)\".*/\1/p"; }
attempts_of() { find "$1/state" -regex ".*/$2[.][0-9]+" | wc -l; } # SWEEP ID
ids() { sed -nE 's/^\{"trial":[0-9]+,"id":"([0-9a-f]+)".*/\1/p' "$1/plan.jsonl"; }
# all_done SWEEP: each trial has one attempt that ended as done, its last; nothing of its run is younger than the record;
# every step was trained into the metrics once.
all_done() {
    local id last young
    for id in $(ids "$1"); do
        last=$(attempts_of "$1" "$id")
        [ -s "$1/state/$id.done" ] || { complain "$1: $id has no record"; continue; }
        [ "$(grep -lx 'outcome done' "$1/state/$id".*.end | wc -l)" = 1 ] && grep -qx 'outcome done' "$1/state/$id.$last.end" ||
            complain "$1: $id: of $last attempts not the last one alone is done: $(grep -H outcome "$1/state/$id".*.end)"
        young=$(find "$1/runs/$id" -newer "$1/state/$id.done" -type f)
        [ -z "$young" ] || complain "$1: $id was at work after it was done: $young"
        [ -z "$(sed -nE 's/^\{"step":([0-9]+),.*/\1/p' "$1/runs/$id/metrics.jsonl" | sort | uniq -d)" ] ||
            complain "$1: $id has steps twice"
    done
}
