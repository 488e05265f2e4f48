"""What can be said about GPUs where there is none: which backend is taken and why, and that tests/bench/gpu.sh works. A machine that has a GPU is kept
from seeing it."""
import os
import pathlib
import re
import subprocess

import pytest

import harness
from harness import Server, model_file

HIDDEN = {"CUDA_VISIBLE_DEVICES": ""}
WHY = r"(no NVIDIA driver|no CUDA device|built without CUDA|no CUDA backend)"


def gpu_sh(*args, env=None, timeout=500):
    return subprocess.run(["bash", str(harness.SOURCE / "tests/bench/gpu.sh"), "--build", str(harness.BUILD), *args], capture_output=True, text=True,
                          env={**os.environ, **HIDDEN, **(env or {})}, timeout=timeout)


def test_auto_takes_the_cpu_and_says_why():
    with Server(model_file("random-llama"), "--backend", "auto", "--num-tokens", 1024, env=HIDDEN) as s:
        assert s.status()["backend"].startswith("cpu")
        lines = [line for line in s.stderr().splitlines() if "backend: " in line]
        assert len(lines) == 1 and re.search(r"backend: cpu .*\(.*" + WHY, lines[0]), lines
        assert len([line for line in s.stderr().splitlines() if re.search(r"memory: \S+ GiB available x --memory-ratio 0\.85 = .*: weights .*KV pools ", line)]) == 1


def test_cuda_without_a_device_is_refused_with_words():
    r = subprocess.run([str(harness.BIN / "holdfast"), "serve", "--model", str(model_file("random-llama")), "--port", "0", "--backend", "cuda"], capture_output=True,
                       text=True, env={**os.environ, **HIDDEN}, timeout=60)
    assert r.returncode == 64
    assert re.search(r"--backend cuda: .*" + WHY + ".*--backend auto takes the CPU then", r.stderr), r.stderr[-2000:]


def test_the_gpu_script_says_what_is_missing():
    r = gpu_sh()
    assert r.returncode == 69 and re.search(WHY, r.stderr), (r.returncode, r.stderr)
    assert r.stdout == ""
    r = gpu_sh("--help")
    assert r.returncode == 0 and "--only SECTION" in r.stdout and "set -" not in r.stdout
    for args, words in ((["--only", "nonsense"], "no section is called 'nonsense'"), (["--fast"], "unknown: --fast"), (["--device", "one"], "is no number"),
                        (["--only", "kernels", "--skip", "kernels,load"], "leaves no section")):
        r = gpu_sh(*args)
        assert r.returncode == 64 and words in r.stderr, r.stderr
    r = subprocess.run(["bash", str(harness.SOURCE / "tests/bench/gpu.sh"), "--smoke", "--build", "/nonexistent"], capture_output=True, text=True, timeout=60)
    assert r.returncode == 69 and "/nonexistent has no kernels_gpu" in r.stderr


@pytest.fixture()
def reports():
    """The reports a test made; they are taken away."""
    folder = pathlib.Path(harness.BUILD) / "gpu"
    before = set(folder.glob("report-*.md"))
    yield lambda: set(folder.glob("report-*.md")) - before
    for path in set(folder.glob("report-*.md")) - before:
        path.unlink()


def test_the_gpu_script_runs_twice_on_the_emulated_device_and_claims_no_figure(reports):
    for n in (1, 2):
        r = gpu_sh("--smoke", "--only", "tests,sanitizer,kernels,torch")
        assert r.returncode == 0, r.stdout + r.stderr
        assert len(reports()) == n
    assert "FAILED" not in r.stdout and "WRONG" not in r.stdout
    assert re.search(r"^[1-9]\d* tests would run\.$", r.stdout, re.M)
    assert "skipped: no compute-sanitizer" in r.stdout or "skipped: no device" in r.stdout
    assert re.search(r"^skipped: (python3 has no PyTorch|PyTorch .* finds no GPU)", r.stdout, re.M)
    assert re.search(r"commit [0-9a-f]{7,}|commit unknown", r.stdout) and re.search(r"\d{4}-\d{2}-\d{2}", r.stdout)
    rows = [line for line in r.stdout.splitlines() if re.match(r"\| (q\w+|f16|bf16|mxfp4|iq4_nl|fp8\w*) \|", line)]
    assert len(rows) > 50
    assert all(re.search(r"( \| -){3,5} \| 0\.\d\d( of (copy|peak))? \|$", row) for row in rows), rows
    assert not re.search(r"\d (GB/s|TFLOP/s|us)\b", r.stdout)
    assert any(p.read_text() == r.stdout for p in reports()) and len(r.stdout) > 1000


def test_the_gpu_script_serves_on_the_cpu_when_it_is_a_smoke(reports):
    r = gpu_sh("--smoke", "--only", "tokens,load,kill")
    assert r.returncode == 0, r.stdout + r.stderr
    assert re.search(r"^large:\n    ran$", r.stdout, re.M)
    assert re.search(r"^\| 2 \| \d+ \| 0 \| 0 \| 0 \| 0 \| \d\.\d+ \| - \| - \| - \|$", r.stdout, re.M)
    assert re.search(r"^\| window-smoke\.gguf \| cpu .* \| 4 \| all \| 1 \| - \|$", r.stdout, re.M)
    assert reports()


def test_a_section_that_fails_is_said_and_the_others_still_run(tmp_path):
    """A build whose programs are not what they should be: kernels_gpu fails, the next section runs all the same."""
    fake = tmp_path / "build"
    (fake / "bin").mkdir(parents=True)
    for name in ("holdfast", "kernels_gpu"):
        (fake / "bin" / name).write_text("#!/bin/sh\necho one line; echo broken >&2; exit 3\n")
        (fake / "bin" / name).chmod(0o755)
    r = subprocess.run(["bash", str(harness.SOURCE / "tests/bench/gpu.sh"), "--smoke", "--build", str(fake), "--only", "kernels,torch"], capture_output=True, text=True,
                       env={**os.environ, **HIDDEN}, timeout=120)
    assert r.returncode == 1
    assert "one line" in r.stdout and "**FAILED** (exit 3)" in r.stdout and "broken" in r.stdout
    assert r.stdout.index("**FAILED** (exit 3)") < r.stdout.index("PyTorch on the same shapes")
