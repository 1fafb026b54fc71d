"""The scripts for Cloud TPUs: shellcheck, dry runs, and runs against a false ``gcloud``."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
SCRIPTS = ROOT / "experiments" / "cloud"
SETTINGS = """
PROJECT=p
BUCKET=gs://b
ZONE=z
NAME=job
ACCELERATOR=v6e-8
RUNTIME=r
SPOT=yes
GIN_FILE=configs/tpu/v6e_8_spot.gin
FILES=gs://b/files
OUTPUT=gs://b/out
MORE_FILES="one.py two.py"
EXTRAS=cloud
SETUP="echo 'set up'"
JOB="python -m decoding_jax.infer --gin.OUTPUT_DIR='\\"$OUTPUT\\"'"
"""
ABOUT = ["--project=p", "--zone=z"]
CREATE = "gcloud compute tpus queued-resources create job --node-id=job --accelerator-type=v6e-8"
DELETE = "gcloud compute tpus queued-resources delete job --force --quiet --project=p --zone=z"

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed")


@pytest.fixture
def run(tmp_path):
    """Runs a script with a false ``gcloud`` and ``python3``; returns its output and their calls."""
    (tmp_path / "settings.sh").write_text(SETTINGS)
    for name, answers in (
        (
            "python3",
            'for word; do case $word in */wheels) mkdir -p "$word"; '
            'touch "$word"/decoding_jax-2-py3-none-any.whl ;; esac; done',
        ),
        (
            "gcloud",
            'case "$*" in *describe*) cat state ;; *"storage ls"*) cat shards ;; esac\n'
            "for word; do\n"
            'case $word in --metadata-from-file=*) cp "${word##*=}" startup ;; esac\ndone',
        ),
    ):
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        log = f'printf "%s\\n" "{name} $*" >> calls'
        program.write_text(f"#!/usr/bin/env bash\ncd {tmp_path}\n{log}\n{answers}\n")
        program.chmod(0o755)

    def of(script, *flags, state="ACTIVE", shards=(), settings="settings.sh", **variables):
        (tmp_path / "calls").write_text("")
        (tmp_path / "state").write_text(f"{state}\n") if state else None
        (tmp_path / "shards").write_text("".join(f"gs://b/out/{name}\n" for name in shards))
        done = subprocess.run(
            [SCRIPTS / f"{script}.sh", "--settings", tmp_path / settings, *flags],
            capture_output=True,
            text=True,
            env={
                "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
                "TMPDIR": str(tmp_path),
                **variables,
            },
            check=False,
        )
        return done, (tmp_path / "calls").read_text().splitlines()

    return of


def shards(finished, count):
    names = [f"decodes-{i:05d}-of-{count:05d}.jsonl" for i in range(finished)]
    return ["job.json", *names, "summary-00000-of-00002.json"]


def test_shellcheck():
    beside = Path(sys.executable).parent / "shellcheck"
    program = beside if beside.exists() else shutil.which("shellcheck")
    if program is None:
        pytest.skip("shellcheck is not installed")
    files = sorted(str(p.relative_to(ROOT)) for p in SCRIPTS.glob("*.sh"))
    files += sorted(str(p.relative_to(ROOT)) for p in SCRIPTS.glob("settings/*.sh"))
    assert len(files) == 13
    subprocess.run([program, "-x", *files], cwd=ROOT, check=True)


@pytest.mark.parametrize("script", ["launch", "watch", "resume", "collect"])
def test_a_dry_run_does_nothing_and_prints_what_a_run_does(run, script):
    dry, calls = run(script, "--dry-run")
    assert dry.returncode == 0, dry.stderr
    assert calls == []
    done, calls = run(script, shards=shards(0, 1))
    assert done.returncode == 0, done.stderr
    printed = [line for line in (dry.stdout + dry.stderr).splitlines() if line.startswith("+ ")]

    def plain(line):
        words = line.replace("\\", "").removeprefix("+ ").split()
        return [word for word in words if "/tmp" not in word]

    assert sorted(map(plain, printed)) == sorted(map(plain, calls))


def test_launch(run, tmp_path):
    done, calls = run("launch")
    assert done.returncode == 0, done.stderr
    assert calls[0].startswith("python3 -m pip wheel --quiet --no-deps --wheel-dir ")
    assert calls[1].endswith("/wheels/*.whl gs://b/files/")
    assert calls[2:6] == [
        "gcloud storage cp configs/tpu/v6e_8_spot.gin gs://b/files/job.gin",
        "gcloud storage cp experiments/cloud/constraints.txt gs://b/files/",
        "gcloud storage cp one.py gs://b/files/",
        "gcloud storage cp two.py gs://b/files/",
    ]
    assert calls[6].startswith(f"{CREATE} --runtime-version=r --metadata-from-file=startup-script=")
    assert calls[6].endswith(" --spot --project=p --zone=z")
    startup = tmp_path / "startup"
    subprocess.run(["bash", "-n", startup], check=True)
    text = startup.read_text().split("set -euo pipefail")[0]
    asked = subprocess.run(
        ["bash", "-c", f'{text}\nprintf \'%s|\' "$FILES" "$WHEEL" "$EXTRAS" "$SETUP" "$JOB"'],
        capture_output=True,
        text=True,
        check=True,
    )
    job = "python -m decoding_jax.infer --gin.OUTPUT_DIR='\"gs://b/out\"'"
    assert (
        asked.stdout == f"gs://b/files|decoding_jax-2-py3-none-any.whl|cloud|echo 'set up'|{job}|"
    )


@pytest.mark.parametrize(
    "settings", sorted((SCRIPTS / "settings").glob("*.sh")), ids=lambda p: p.stem
)
def test_the_settings_of_a_recipe(run, settings):
    """They launch the recipe of their name, with the project and the bucket of the environment."""
    gin_file = ROOT / "configs" / "tpu" / f"{settings.stem}.gin"
    done, _ = run("launch", "--dry-run", settings=settings, PROJECT="p", BUCKET="gs://b")
    if "YOUR_" in gin_file.read_text():
        assert done.returncode == 1
        assert f"{settings.stem}.gin: expected a name of yours in line" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    assert f"configs/tpu/{settings.stem}.gin gs://b/" in done.stdout
    # The accelerator is that of the name, in a zone and with an image that it has.
    kind, chips = settings.stem.removeprefix("t5x_").split("_")[:2]
    accelerator = {"v5e": "v5litepod", "v6e": "v6e"}[kind]
    image = {"v5e": "v2-alpha-tpuv5-lite", "v6e": "v2-alpha-tpuv6e"}[kind]
    zone = {"v5e": "us-west4-a", "v6e": "us-east5-b"}[kind]
    assert f"--accelerator-type={accelerator}-{chips} --runtime-version={image}" in done.stdout
    assert f"--zone={zone}" in done.stdout


def test_every_recipe_has_settings():
    recipes = {p.stem for p in (ROOT / "configs" / "tpu").glob("*.gin")}
    assert recipes == {p.stem for p in (SCRIPTS / "settings").glob("*.sh")}


def test_a_host_installs_the_wheel_that_it_is_told(tmp_path):
    """The folder in the bucket may have the wheels of several versions."""
    lines = (SCRIPTS / "on_host.sh").read_text().splitlines()
    (install,) = (line.strip() for line in lines if "WHEEL" in line)
    for version in (1, 2):
        (tmp_path / f"decoding_jax-{version}-py3-none-any.whl").touch()
    told = "WHEEL=decoding_jax-2-py3-none-any.whl EXTRAS=cloud"
    script = f'uv() {{ printf "%s\\n" "$@"; }}\n{told}\n{install}'
    done = subprocess.run(["bash", "-euc", script], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("constraints.txt\n")[1] == (
        "./decoding_jax-2-py3-none-any.whl[cloud]\njax[tpu]\n"
    )


def test_watch(run):
    done, calls = run("watch", shards=shards(3, 12))
    assert done.stdout.splitlines()[0] == "job: ACTIVE, 3 of 12 shards are finished"
    assert calls[-1].startswith(
        "gcloud compute tpus tpu-vm ssh job --project=p --zone=z --worker=0"
    )
    done, calls = run("watch", state="PROVISIONING")
    assert done.stdout == "job: PROVISIONING, 0 of 0 shards are finished\n"
    assert len(calls) == 2


@pytest.mark.parametrize("state", ["SUSPENDED", "FAILED", "ACTIVE", "PROVISIONING", ""])
def test_resume_launches_again_what_is_gone(run, tmp_path, state):
    if not state:
        (tmp_path / "bin" / "gcloud").write_text(
            f'#!/usr/bin/env bash\ncd {tmp_path}\necho "gcloud $*" >> calls\n'
            'case "$*" in *describe*) exit 1 ;; esac\n'
        )
    done, calls = run("resume", state=state, shards=shards(3, 12))
    assert done.returncode == 0, done.stderr
    assert (DELETE in calls) == (state in ("SUSPENDED", "FAILED"))
    assert any(c.startswith(CREATE) for c in calls) == (state in ("SUSPENDED", "FAILED", ""))
    if DELETE in calls:
        assert calls.index(DELETE) < len(calls) - 1


def test_resume_ends_when_all_shards_are_finished(run):
    done, calls = run("resume", "--every", "1", state="SUSPENDED", shards=shards(12, 12))
    assert done.stdout == "job: all 12 shards are finished\n"
    assert calls == ["gcloud storage ls gs://b/out/"]


def test_collect(run, tmp_path):
    done, calls = run("collect", "--to", "all.parquet")
    assert done.returncode == 0, done.stderr
    assert calls == [
        "python3 -m decoding_jax.infer.merge gs://b/out -o all.parquet",
        "gcloud storage cat gs://b/out/summary*.json",
        DELETE,
    ]
    assert DELETE not in run("collect", "--keep")[1]
    (tmp_path / "bin" / "python3").write_text("#!/usr/bin/env bash\nexit 1\n")
    done, calls = run("collect")
    assert done.returncode == 1
    assert calls == []


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--quick"], "launch.sh: expected --settings FILE, --dry-run, --every SECONDS,"),
        (["--to"], "launch.sh: --to: got no value"),
        (["--every", "often"], "launch.sh: --every: expected seconds, got often"),
        (["--settings", "none.sh"], "launch.sh: --settings: expected a file such as "),
    ],
)
def test_refused_flags(run, flags, line):
    done, calls = run("launch", *flags)
    assert done.returncode == 1
    assert done.stderr.startswith(line)
    assert done.stderr.count("\n") == 1
    assert calls == []


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("ZONE=z", "", "has no ZONE"),
        ("gs://b/out", "out", "expected folders of buckets, gs://..., got FILES=gs://b/files"),
        ("v6e_8_spot.gin", "none.gin", "expected a file, got GIN_FILE=configs/tpu/none.gin"),
        ("v6e_8_spot.gin", "v5e_64.gin", "v5e_64.gin: expected a name of yours in line 11:MODEL"),
        ("PROJECT=p", "", "PROJECT: expected the id of your project, as by `export PROJECT=...`"),
        ("gs://b\n", "gs://YOUR_BUCKET\n", "BUCKET: expected your bucket, as by `export BUCKET"),
    ],
)
def test_refused_settings(run, tmp_path, old, new, line):
    (tmp_path / "wrong.sh").write_text(SETTINGS.replace(old, new))
    done, calls = run("launch", settings="wrong.sh")
    assert done.returncode == 1
    assert line in done.stderr
    assert done.stderr.count("\n") == 1
    assert calls == []
