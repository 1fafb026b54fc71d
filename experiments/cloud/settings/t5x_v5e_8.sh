# t5x.infer on one host of eight chips. T5X resumes by itself: it skips what its output directory has.
# shellcheck shell=bash disable=SC2034
NAME=t5x-v5e-8
ZONE=us-west4-a
ACCELERATOR=v5litepod-8
RUNTIME=v2-alpha-tpuv5-lite
SPOT=yes
GIN_FILE=configs/tpu/t5x_v5e_8.gin
# The module that registers the task (docs/t5x.md), and what installs T5X.
MORE_FILES="my_tasks.py experiments/cloud/install_t5x.sh"
EXTRAS=cloud,t5x
SETUP="bash install_t5x.sh src"
JOB="PYTHONPATH=src/t5x:src/airio:src/jestimator:. python -m t5x.infer \
  --gin_search_paths=\$(python -m decoding_jax.gin_path),src/t5x --gin_file=job.gin \
  --gin.INFER_OUTPUT_DIR='\"$BUCKET/$NAME/out\"'"
