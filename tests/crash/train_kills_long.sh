#!/usr/bin/env bash
# test: label=long timeout=3600
# train_kills.sh with two hundred kills.
exec bash "$DTX_SOURCE/tests/crash/train_kills.sh" 100 100
