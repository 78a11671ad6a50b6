#!/usr/bin/env bash
# test: label=long timeout=900
# crash.sweep_kills with 60 kills.
exec bash "$DTX_SOURCE/tests/crash/sweep_kills.sh" 60
