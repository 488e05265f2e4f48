"""What a restart costs and what it leaves: weights are mapped instead of loaded, and an incident bundle replays to the same digest."""
import os
import pathlib
import shutil
import signal
import subprocess

import pytest

import harness
from harness import Server, model_file, wait_for


def how(server):
    """{mapped: n, loaded: n} of the workers that became ready."""
    text = server.get("/metrics").body.decode()
    out = {"mapped": 0, "loaded": 0}
    for line in text.splitlines():
        for key in out:
            if line.startswith('holdfast_weight_loads_total{how="%s"}' % key):
                out[key] = int(float(line.split()[-1]))
    return out


def kill_worker(server):
    before = sum(how(server).values())
    os.kill(server.worker(), signal.SIGKILL)
    wait_for(lambda: sum(how(server).values()) == before + 1, 20, "another worker became ready")
    wait_for(lambda: server.health() == 200, 20, "healthy again")


def bundles(server, at_least=1):
    folder = pathlib.Path(server.runtime, "run", "incidents")
    return wait_for(lambda: (found := sorted(folder.glob("*"))) and len(found) >= at_least and found, 5, f"{at_least} incident bundles")


def replay(path):
    return subprocess.run([str(harness.BIN / "holdfast"), "replay", str(path)], capture_output=True, text=True, timeout=120)


def test_restarts_map_the_weights_and_answer_as_before():
    with Server(model_file("random-gemma4")) as s:
        before = s.chat("one two three", max_tokens=24, seed=5, temperature=0.8).json["choices"][0]["message"]["content"]
        assert how(s) == {"mapped": 0, "loaded": 1}
        assert not s.status()["mapped_weights"]
        for n in range(1, 4):
            kill_worker(s)
            assert how(s) == {"mapped": n, "loaded": 1}
            status = s.status()
            assert status["mapped_weights"] and int(status["weight_bytes"]) > 0
            assert s.chat("one two three", max_tokens=24, seed=5, temperature=0.8).json["choices"][0]["message"]["content"] == before
        assert "mapped in" in s.ctl("status").stdout


def test_pools_do_not_shrink_when_weights_are_mapped():
    with Server(model_file("random-gemma4"), "--num-tokens", "2048") as s:
        before = [(p["name"], p["capacity"]) for p in s.status()["pools"]]
        kill_worker(s)
        assert s.status()["mapped_weights"]
        assert [(p["name"], p["capacity"]) for p in s.status()["pools"]] == before


def test_another_file_in_its_place_is_loaded_not_mapped(tmp_path):
    path = tmp_path / "model.gguf"
    shutil.copy(model_file("script"), path)
    with Server(path) as s:
        assert s.chat("<S03>", max_tokens=4).json["choices"][0]["message"]["content"].startswith("w000")
        other = tmp_path / "other.gguf"
        shutil.copy(model_file("random-llama"), other)
        os.replace(other, path)
        kill_worker(s)
        assert how(s) == {"mapped": 0, "loaded": 2}
        assert s.chat("one", max_tokens=4).status == 200
        assert "weights: loading, since kept weights cannot be used" in s.stderr()
        kill_worker(s)
        assert how(s) == {"mapped": 1, "loaded": 2}


def test_a_file_rewritten_in_place_is_loaded_again(tmp_path):
    path = tmp_path / "model.gguf"
    shutil.copy(model_file("script"), path)
    with Server(path) as s:
        os.utime(path, ns=(1, 1))
        kill_worker(s)
        assert how(s) == {"mapped": 0, "loaded": 2}


def test_kept_weights_that_cannot_be_mapped_cost_a_load():
    with Server(model_file("random-gemma4"), env={"HOLDFAST_FAULT": "worker.map:fail:1", "HOLDFAST_FAULT_GENERATION": "2"}) as s:
        kill_worker(s)
        assert how(s) == {"mapped": 0, "loaded": 2}
        kill_worker(s)
        assert how(s) == {"mapped": 1, "loaded": 2}


@pytest.mark.parametrize("fault", ["worker.finding:fail:40", "worker.step:abort:40", "exec.step:fail:40", "worker.step:exit=71:40"])
def test_a_bundle_replays_to_the_same_digest(fault):
    with Server(model_file("script"), env={"HOLDFAST_FAULT": fault, "HOLDFAST_FAULT_GENERATION": "1"}) as s:
        out = s.stream_chat("<S03>", max_tokens=120)
        assert out.error is None and out.text() == "".join("w%03d " % i for i in range(120))
        bundle = bundles(s)[0]
        r = replay(bundle)
        assert r.returncode == 0, r.stdout + r.stderr
        assert "same digest, " in r.stdout and "rank 0 of generation 1" in r.stdout
        steps = int(r.stdout.split("same digest, ")[1].split()[0])
        assert 30 <= steps <= 40, r.stdout
        if "step" in fault:
            assert "was running when the recording ended" in r.stdout


def test_a_killed_worker_leaves_a_recording_too():
    with Server(model_file("random-gemma4")) as s:
        for i in range(6):
            s.chat("text %d" % i, max_tokens=20)
        kill_worker(s)
        s.chat("after", max_tokens=8)
        kill_worker(s)
        for bundle in bundles(s, 2):
            r = replay(bundle)
            assert r.returncode == 0 and "same digest, " in r.stdout, r.stdout + r.stderr


def test_a_tampered_recording_is_reported(tmp_path):
    with Server(model_file("script"), env={"HOLDFAST_FAULT": "worker.finding:fail:20", "HOLDFAST_FAULT_GENERATION": "1"}) as s:
        s.stream_chat("<S03>", max_tokens=40)
        log = bundles(s)[0] / "replay-r0.log"
        good = log.read_bytes()
    assert len(good) > 4096
    for at in [0, 9, 40, 4095, 4096, 4100, len(good) // 2 + 2048, len(good) - 1]:
        bad = tmp_path / f"replay-{at}.log"
        bad.write_bytes(good[:at] + bytes([good[at] ^ 0x5A]) + good[at + 1:])
        r = replay(bad)
        assert r.returncode in (1, 2), (at, r.returncode, r.stdout, r.stderr)
        assert "same digest, " not in r.stdout
    cut = tmp_path / "cut.log"
    cut.write_bytes(good[:-3])
    r = replay(cut)
    assert r.returncode == 2 and "cannot be replayed" in r.stdout
    r = replay(tmp_path / "nothing")
    assert r.returncode == 2 and "does not exist" in r.stderr
