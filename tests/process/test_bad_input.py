"""Files and flags that cannot work: a message with what and where, the right exit code, no crash and no restart loop."""
import os
import pathlib
import struct
import subprocess
import time

import pytest

import harness
from harness import BIN, Server, model_file

CONFIG, MODEL, ENVIRONMENT = 64, 65, 69


def serve(model, *flags, timeout=30):
    r = subprocess.run([str(BIN / "holdfast"), "serve", "--model", str(model), "--port", "0", "--log-level", "info", *map(str, flags)],
                       capture_output=True, text=True, timeout=timeout)
    return r


def good():
    return pathlib.Path(model_file("random-gemma4")).read_bytes()


@pytest.fixture
def file(tmp_path):
    def make(data, name="bad.gguf"):
        p = tmp_path / name
        p.write_bytes(data)
        return p
    return make


def replace_once(data, old, new):
    assert old in data and len(old) == len(new)
    return data.replace(old, new, 1)


@pytest.mark.parametrize("name, mutate, says", [
    ("empty", lambda d: b"", "empty"),
    ("not a model", lambda d: b"hello world, this is no model at all" * 10, "GGUF"),
    ("version from the future", lambda d: d[:4] + struct.pack("<I", 99) + d[8:], "version"),
    ("truncated in the data", lambda d: d[: len(d) - 1000], "bytes"),
    ("truncated in the header", lambda d: d[:200], "bad.gguf"),
    ("a tensor count that lies", lambda d: d[:8] + struct.pack("<Q", 1 << 60) + d[16:], "tensor"),
    ("an architecture nobody has", lambda d: replace_once(d, b"\x06\0\0\0\0\0\0\0gemma4", b"\x06\0\0\0\0\0\0\0gemma9"), "gemma9"),
    ("a tensor that is missing", lambda d: replace_once(d, b"blk.0.attn_q.weight", b"blk.0.attn_Q.weight"), "blk.0.attn_q.weight"),
])
def test_unusable_models_exit_65_and_say_why(file, name, mutate, says):
    begin = time.monotonic()
    r = serve(file(mutate(good())))
    assert r.returncode == MODEL, r.stderr[-2000:]
    assert says in r.stderr
    assert "ready http" not in r.stdout
    assert time.monotonic() - begin < 15


def test_a_template_that_cannot_be_read_is_named_and_costs_the_chat_alone(file):
    model = file(replace_once(good(), b"{%- for m in messages %}", b"{%- fro m in messages %}"))
    with Server(model) as s:
        r = s.chat("x", max_tokens=2)
        why = "chat_template:1:20: encountered unknown tag 'fro'"
        assert r.status == 400 and why in r.json["error"]["message"], r.body
        assert why in s.stderr()
        assert s.post("/v1/completions", {"prompt": "x", "max_tokens": 2}).status == 200


def test_missing_unreadable_and_odd_paths(tmp_path):
    assert serve(tmp_path / "none.gguf").returncode == MODEL
    assert serve(tmp_path).returncode == MODEL
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    assert serve(fifo).returncode == MODEL


@pytest.mark.parametrize("flags, says", [
    (["--page-size", "3"], "page-size"),
    (["--kv-cache-dtype", "q3"], "q8_0"),
    (["--max-running-requests", "0"], "max-running-requests"),
    (["--max-seq-len", "999999999"], "max-seq-len"),
    (["--num-tokens", "1024", "--swa-full-tokens-ratio", "0.01"], "floor|at least|needs?"),
    (["--memory-ratio", "7"], "memory-ratio"),
    (["--memory-ratio", "nan"], "memory-ratio"),
    (["--swa-full-tokens-ratio", "nan"], "swa-full-tokens-ratio"),
    (["--drain-timeout", "nan"], "drain-timeout"),
    (["--supervisor-arg=--hang-timeout=nan"], "hang-timeout"),
    (["--frontend-arg=--keep-alive=nan"], "keep-alive"),
    (["--port", "99999"], "port"),
    (["--tp", "3"], "numbers of ranks that work are 1, 2"),
    (["--no-such-flag"], "no-such-flag"),
    (["--cpu-isa", "vax"], "cpu-isa|vax"),
    (["--collectives", "ring"], "collectives"),
    (["--tp", "2", "--backend", "cpu", "--collectives", "nccl"], "--collectives nccl: the backend computes in the host's memory; --collectives auto"),
])
def test_impossible_flags_exit_64(flags, says):
    import re
    r = serve(model_file("random-gemma4"), *flags)
    assert r.returncode == CONFIG, (r.returncode, r.stderr[-2000:])
    assert re.search(says, r.stderr), r.stderr[-1500:]


def test_port_in_use_says_so():
    with Server(model_file("random-gemma4")) as s:
        r = subprocess.run([str(BIN / "holdfast"), "serve", "--model", str(model_file("random-gemma4")), "--port", str(s.port)], capture_output=True,
                           text=True, timeout=30)
        assert r.returncode == ENVIRONMENT, r.stderr
        assert str(s.port) in r.stderr
        assert s.chat("still here", max_tokens=2).status == 200


def test_runtime_directory_taken_by_another_supervisor():
    with Server(model_file("random-gemma4")) as s:
        r = serve(model_file("random-gemma4"), "--runtime-dir", os.path.join(s.runtime, "run"))
        assert r.returncode == ENVIRONMENT, r.stderr
        assert "run" in r.stderr and str(s.pids("holdfast-supervisor")[0]) in r.stderr
        assert s.chat("still here", max_tokens=2).status == 200


def test_no_room_for_the_model():
    r = serve(model_file("random-gemma4"), "--num-tokens", 1 << 29, "--memory-ratio", "0.5")
    assert r.returncode in (ENVIRONMENT, CONFIG), r.stderr[-1500:]
    assert "GiB" in r.stderr


def test_a_model_that_breaks_after_the_start_is_no_restart_loop(tmp_path):
    """The file is replaced while serving, then the worker dies: health says why, nothing loops, and a good file heals it."""
    path = tmp_path / "model.gguf"
    path.write_bytes(good())
    with Server(path) as s:
        path.write_bytes(b"no model any more")
        os.kill(s.worker(), 9)
        end = time.monotonic() + 10
        while time.monotonic() < end and s.process.poll() is None:
            time.sleep(0.2)
        # serve gives up with the model's exit code: a person sees the reason at once.
        assert s.process.poll() == MODEL, s.stderr()[-1500:]
        assert "GGUF" in s.stderr() or "gguf" in s.stderr()


def test_more_choices_than_the_server_ever_holds_is_no_429():
    """Such a request cannot be admitted by an idle server either: 429 would have SDKs try again for ever."""
    with Server(model_file("random-gemma4"), "--max-running-requests", 2, "--max-queue", 4) as s:
        assert s.chat("x", n=4, max_tokens=2).status == 200
        r = s.chat("x", n=7, max_tokens=2)
        assert r.status == 400 and r.json["error"]["param"] == "n", r.body
        r = s.post("/v1/completions", {"prompt": ["a", "b"], "n": 4, "max_tokens": 2})
        assert r.status == 400 and "8 choices" in r.json["error"]["message"], r.body
        r = s.post("/v1/completions", {"prompt": ["a"] * 7, "max_tokens": 2})
        assert r.status == 400 and r.json["error"]["param"] == "prompt", r.body
