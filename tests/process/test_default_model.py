"""The default model, as deploy/quickstart.sh serves it, on dialogues that it was never trained on (deploy/default-model/evaluate.py has the long form)."""
import json
import subprocess
import sys

import pytest

from harness import SOURCE, Server

FOLDER = SOURCE / "deploy" / "default-model"
MODEL = FOLDER / "holdfast-tiny.gguf"


@pytest.fixture(scope="module")
def server():
    with Server(MODEL) as s:
        yield s


def evaluate(server, *flags):
    r = subprocess.run([sys.executable, str(FOLDER / "evaluate.py"), "--server", server.url, *map(str, flags)], capture_output=True, text=True, timeout=300)
    assert r.returncode == 0, r.stderr
    return json.loads(r.stdout), r.stderr


def test_it_is_small():
    assert MODEL.stat().st_size <= 8 << 20


# Well below what was measured (docs/default-model.md): another instruction set rounds otherwise, and a few dialogues are a small sample.
@pytest.mark.parametrize("flags, calls, conversations", [((), 0.93, 0.8), (("--tools", 8, 8, "--distract", 400), 0.9, 0.7)])
def test_it_calls_the_right_tool_with_what_the_user_said(server, flags, calls, conversations):
    # --check: the server's template and tokenizer give token for token what the training saw.
    right, said = evaluate(server, "--check", "--dialogues", 20, *flags)
    assert right["calls"]["of"] >= 40 and right["calls"]["share"] >= calls, (right, said)
    assert right["conversations"]["share"] >= conversations, (right, said)
