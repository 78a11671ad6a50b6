#!/usr/bin/env bash
# Both commands of the README in a bare Debian 12 with nothing but a clone of this repository (its last commit).
# Needs root, mmdebstrap and a package mirror. Words after `bare` are labels for the inner tests/run.sh. The folder is
# removed at the end; DTX_BARE_KEEP=1 leaves it.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" -eq 0 ] || { echo "bare: needs root" >&2; exit 78; }
if ! command -v mmdebstrap >/dev/null; then
    apt-get update -q >/dev/null
    DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends mmdebstrap >/dev/null
fi

root=$(mktemp -d "${TMPDIR:-/tmp}/dtx-bare.XXXXXX")
clean() { if [ -n "${DTX_BARE_KEEP:-}" ]; then echo "bare: left in $root"; else rm -rf --one-file-system "$root"; fi; }
trap clean EXIT
sources=()
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*.list /etc/apt/sources.list.d/*.sources; do
    [ -s "$file" ] && grep -q bookworm "$file" && sources+=("$file")
done
echo "bare: making a Debian 12 in $root"
mmdebstrap --quiet --variant=minbase bookworm "$root" ${sources[@]+"${sources[@]}"}
cp /etc/resolv.conf /etc/hosts "$root/etc/"
git clone -q . "$root/dtx"
echo "bare: commit $(git rev-parse --short HEAD), $(nproc) cores"

# The mounts live in a mount namespace of their own and end with it. The root is a mount too: without, tests could not
# make namespaces inside.
inside() {
    unshare --mount --fork bash -c 'set -e
        mount --bind "$0" "$0"
        mount --rbind /proc "$0/proc"; mount --rbind /sys "$0/sys"; mount --rbind /dev "$0/dev"
        exec chroot "$0" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root TERM=dumb bash -c "cd /dtx && exec $1"' \
        "$root" "$1"
}
failed=0
for command in launch/quickstart.sh "tests/run.sh $*"; do
    start=$SECONDS
    if inside "$command"; then verdict=passed; else verdict="FAILED ($?)"; failed=1; fi
    times+=("bare: $command $verdict after $((SECONDS - start)) s")
done
printf '%s\n' "${times[@]}"
exit "$failed"
