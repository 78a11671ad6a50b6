#!/usr/bin/env bash
# test: label=long timeout=3600
# tokenize_kills.sh with more rounds.
exec bash "$DTX_SOURCE/tests/crash/tokenize_kills.sh" 60 7
