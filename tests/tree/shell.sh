#!/usr/bin/env bash
# test: label=tree timeout=60
# The scripts that users start are clean to shellcheck, and the batch scripts use bash, Slurm's commands and what every
# POSIX system has.
set -uo pipefail
cd "$DTX_SOURCE" || exit 1
command -v shellcheck >/dev/null || { echo "no shellcheck here: launch/packages.sh tests"; exit 77; }
shellcheck -x launch/*.sh launch/*/*.sh launch/slurm/*.sbatch tests/device/*.sh || exit 1
foreign=$(sed 's/#.*//' launch/slurm/*.sbatch | grep -oE '(^|[|;&({]|\$\() *(python3?|perl|awk|jq|gawk|ruby|node)\b')
[ -z "$foreign" ] || { echo "launch/slurm needs: $foreign"; exit 1; }
