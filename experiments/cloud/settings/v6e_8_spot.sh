# The embedded model on one host of eight chips that may be taken away. v6e is in other zones than v5e.
# shellcheck shell=bash disable=SC2034
NAME=v6e-8-spot
ZONE=us-east5-b
ACCELERATOR=v6e-8
RUNTIME=v2-alpha-tpuv6e
SPOT=yes
GIN_FILE=configs/tpu/v6e_8_spot.gin
