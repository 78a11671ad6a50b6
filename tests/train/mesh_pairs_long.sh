#!/usr/bin/env bash
# test: label=long timeout=3000
# train.mesh_pairs with every pair of its meshes.
set -uo pipefail
mpirun -n 4 "$DTX_BUILD/tests/test_train_mesh_pairs" all </dev/null
