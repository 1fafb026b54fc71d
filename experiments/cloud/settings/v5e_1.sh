# The embedded model on one chip: the way from nothing to results and back, to be tried first.
# shellcheck shell=bash disable=SC2034
NAME=v5e-1
ZONE=us-west4-a
ACCELERATOR=v5litepod-1
RUNTIME=v2-alpha-tpuv5-lite
SPOT=no
GIN_FILE=configs/tpu/v5e_1.gin
