"""The demo of deploy/quickstart.sh --demo, shorter: conversations that call tools, a kill -9 in the middle, an audit that can fail."""
import json
import os
import pathlib
import subprocess
import sys

from harness import Server, model_file

DEMO = pathlib.Path(os.environ["HOLDFAST_SOURCE"]) / "deploy" / "demo.py"


def run(server, tmp_path, *flags):
    out = tmp_path / "audit.json"
    r = subprocess.run([sys.executable, str(DEMO), "--base", server.url, "--serve-pid", str(server.process.pid), "--turns", "2", "--conversations", "3",
                        "--system-tokens", "300", "--max-tokens", "80", "--tool-choice", "required", "--json", str(out), *flags],
                       capture_output=True, text=True, timeout=400)
    return r, json.loads(out.read_text()) if out.exists() else None


def test_the_demo_survives_its_kill_and_accounts_for_everything(tmp_path):
    with Server(model_file("random-gemma4", "--context", "8192"), "--max-seq-len", "4096", "--tool-call-parser", "gemma4") as server:
        r, audit = run(server, tmp_path)
        assert r.returncode == 0, r.stdout[-3000:] + r.stderr[-2000:]
        assert audit["kills"] == audit["kills_survived"] == 1
        assert audit["failed"] == audit["answers_that_differ"] == audit["pages_unaccounted"] == audit["pages_held_when_idle"] == 0
        assert audit["tool_calls"] >= 6 and audit["prefix_hit_rate"] > 0.5
        assert "BAD" not in r.stdout


def test_the_audit_says_so_when_it_is_not_so(tmp_path):
    with Server(model_file("random-gemma4", "--context", "8192"), "--max-seq-len", "4096", "--tool-call-parser", "gemma4") as server:
        # A process that has no worker below it: the kill that was promised cannot happen.
        r, audit = run(server, tmp_path, "--serve-pid", str(1 << 22), "--conversations", "1", "--turns", "1")
        assert r.returncode == 1
        assert audit["kills"] == 0 and "BAD  kills survived" in r.stdout
