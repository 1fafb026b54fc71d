# The settings of t5x.infer on Cloud TPUs, as settings.sh. T5X resumes by itself: it skips what its
# output directory has already.
# shellcheck shell=bash disable=SC2034

PROJECT=my-project
ZONE=us-west4-a
NAME=decoding-t5x
ACCELERATOR=v5litepod-8
RUNTIME=v2-alpha-tpuv5-lite
SPOT=yes

GIN_FILE=configs/tpu/t5x_v5e_8.gin
FILES=gs://my-bucket/decoding_t5x/files
OUTPUT=gs://my-bucket/decoding_t5x/out
MORE_FILES=my_tasks.py # the module that registers the task

EXTRAS=cloud,seqio,t5x
SETUP="
uv pip install --python venv/bin/python flax optax orbax-checkpoint clu chex fiddle jaxtyping \\
  cached_property tensorboard grain
git clone --depth 1 https://github.com/google-research/t5x src/t5x
git clone --depth 1 https://github.com/google/airio src/airio
git clone --depth 1 https://github.com/google-research/jestimator src/jestimator
"
JOB="PYTHONPATH=src/t5x:src/airio:src/jestimator:. python -m t5x.infer \
  --gin_search_paths=\$(python -m decoding_jax.gin_path),src/t5x --gin_file=job.gin \
  --gin.INFER_OUTPUT_DIR='\"$OUTPUT\"'"
