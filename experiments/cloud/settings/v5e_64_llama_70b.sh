# Llama 70B on 16 hosts of four chips.
# shellcheck shell=bash disable=SC2034
NAME=v5e-64-llama-70b
ZONE=us-west4-a
ACCELERATOR=v5litepod-64
RUNTIME=v2-alpha-tpuv5-lite
SPOT=no
GIN_FILE=configs/tpu/v5e_64_llama_70b.gin
