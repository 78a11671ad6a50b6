#!/usr/bin/env bash
# test: label=long timeout=7200
# ckpt_enumerate.sh with every call: none is left out, on one and on three ranks (two shards, one of two writers).
exec bash "$DTX_SOURCE/tests/crash/ckpt_enumerate.sh" 1 3 1 1 1
