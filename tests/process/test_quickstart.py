"""What deploy/quickstart.sh finds out about the machine before it builds."""
import os
import subprocess

import pytest

import harness


@pytest.mark.parametrize("smi, flags, words", [
    (None, "-DHOLDFAST_CUDA=OFF", ""),
    ("echo 'NVIDIA-SMI has failed because it could not communicate with the driver'; exit 9", "-DHOLDFAST_CUDA=OFF", ""),
    ("echo 9.0", "-DHOLDFAST_CUDA=AUTO -DHOLDFAST_CUDA_ARCHITECTURES=90a-real", ""),
    ("printf '8.9\\n8.9\\n12.0\\n'", "-DHOLDFAST_CUDA=AUTO -DHOLDFAST_CUDA_ARCHITECTURES=120-real;89-real", ""),
    ("echo 7.5", "-DHOLDFAST_CUDA=OFF", "compute capability 7.5 is too old"),
])
def test_device_code_is_compiled_for_the_gpus_that_are_there(tmp_path, smi, flags, words):
    if smi is not None:
        (tmp_path / "nvidia-smi").write_text("#!/bin/sh\n" + smi + "\n")
        (tmp_path / "nvidia-smi").chmod(0o755)
    path = f"{tmp_path}:{os.environ['PATH']}" if smi else "/usr/bin:/bin"
    if smi is None and os.path.exists("/usr/bin/nvidia-smi"):
        pytest.skip("this machine has an nvidia-smi")
    r = subprocess.run(["bash", "-euo", "pipefail", "-c", f". {harness.SOURCE}/deploy/packages.sh; cuda_flags"], env={**os.environ, "PATH": path},
                       capture_output=True, text=True, timeout=20)
    assert r.returncode == 0, r.stderr
    assert r.stdout.strip() == flags and words in r.stderr
