# Flan-T5 XXL on one host of eight chips. Each file of this folder is the settings of one recipe of
# configs/tpu; common.sh documents the names, and has defaults for those that are not here.
# shellcheck shell=bash disable=SC2034
NAME=v5e-8
ZONE=us-west4-a
ACCELERATOR=v5litepod-8
RUNTIME=v2-alpha-tpuv5-lite
SPOT=yes
GIN_FILE=configs/tpu/v5e_8.gin
