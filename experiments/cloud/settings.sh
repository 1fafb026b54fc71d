# The settings of a batch job on Cloud TPUs. Copy this file, edit the copy, and pass it to each script
# with --settings FILE. What the job decodes is in the gin file that it names.
# shellcheck shell=bash disable=SC2034

PROJECT=my-project          # the project that pays
ZONE=us-west4-a             # a zone that has the accelerator
NAME=decoding               # the name of the queued resource and of its TPU
ACCELERATOR=v5litepod-8     # v5litepod-8, v5litepod-64, v6e-8, ...
RUNTIME=v2-alpha-tpuv5-lite # v2-alpha-tpuv6e for v6e
SPOT=yes                    # yes: cheaper, and may be taken away at any time

GIN_FILE=configs/tpu/v5e_8.gin
FILES=gs://my-bucket/decoding/files # where the library and the gin file are put for the TPU's hosts
OUTPUT=gs://my-bucket/decoding/out  # the OUTPUT_DIR of the job
MORE_FILES=""                       # further local files that the job needs, such as a module

# The command that each host runs, in /opt/decoding_jax, and what it installs before.
EXTRAS=cloud,t5x
SETUP=""
JOB="python -m decoding_jax.infer --distributed --gin_file=job.gin --gin.OUTPUT_DIR='\"$OUTPUT\"'"
