"""Two ranks on one machine: what they answer, that it is the same from run to run, and that losing either costs a pause and nothing else. The kill
matrix of rank 1 is in test_kill_matrix_rank.py."""
import json
import os
import pathlib
import re
import resource
import signal
import subprocess

import pytest

import harness
from faults import Client, descriptors, healthy, pid_of, quick_supervisor, state, story
from harness import Server, model_file, wait_for

TWO = ["--tp", "2"]
BODY = {"messages": [{"role": "user", "content": "Tell me a long story about the sea."}], "max_tokens": 60, "temperature": 0.8, "seed": 11, "top_p": 0.95,
        "ignore_eos": True, "logprobs": True, "top_logprobs": 2}


def answer(s, **fields):
    r = s.post("/v1/chat/completions", {**BODY, **fields})
    assert r.status == 200, r.body
    choice = r.json["choices"][0]
    return choice["message"]["content"], choice["logprobs"], choice["finish_reason"]


def incidents(s):
    return json.loads(s.ctl("incidents", "--json").stdout).get("incidents", [])


def loads(s):
    out = {}
    for labels, value in s.metrics().get("holdfast_weight_loads_total", {}).items():
        out[dict(labels)["how"]] = int(value)
    return out


@pytest.fixture(scope="module")
def undisturbed():
    with Server(model_file("random-gemma4"), *TWO) as s:
        assert len(s.pids("holdfast-worker")) == 2
        first = answer(s)
        assert answer(s) == first, "a second run on the same server differs"
        return first


def test_two_ranks_say_what_one_says_where_nothing_is_near():
    # The script model's choices are not close: another order of summation cannot change them.
    with Server(model_file("script"), *TWO) as s:
        assert s.chat("<S03>", max_tokens=30).json["choices"][0]["message"]["content"] == story(30)
        clients = [Client(s, "<S03>", max_tokens=40 + i) for i in range(4)]
        for i, c in enumerate(clients):
            c.wait(60)
            assert c.error is None and c.text == story(40 + i)
        s.idle(20)


def test_another_server_gives_the_same_bytes(undisturbed):
    with Server(model_file("random-gemma4"), *TWO) as s:
        assert answer(s) == undisturbed


@pytest.mark.parametrize("kind, args", [("random-gemma4", ["--experts"]), ("random-llama", [])])
def test_models_with_experts_and_without(kind, args):
    with Server(model_file(kind, *args), *TWO) as s:
        assert answer(s) == answer(s)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("step", [1, 20])
def test_losing_either_rank_costs_a_pause_and_no_byte(rank, step, undisturbed):
    env = {"HOLDFAST_FAULT": f"worker.step:abort:{step}", "HOLDFAST_FAULT_RANK": str(rank), "HOLDFAST_FAULT_GENERATION": "1"}
    with Server(model_file("random-gemma4"), *TWO, env=env) as s:
        assert answer(s) == undisturbed
        found = incidents(s)
        assert len(found) == 1, found
        bundle = json.loads((pathlib.Path(found[0]["path"]) / "incident.json").read_text())
        assert bundle["cause"] == "signal" and bundle["rank"] == rank, "the rank that died is to blame, not the one that missed it"
        # Each rank's weights outlived it.
        assert loads(s) == {"loaded": 2, "mapped": 2}
        for r in (0, 1):
            assert (pathlib.Path(found[0]["path"]) / f"replay-r{r}.log").exists()
        replayed = subprocess.run([str(harness.BIN / "holdfast"), "replay", found[0]["path"]], capture_output=True, text=True, timeout=120)
        assert replayed.returncode == 0, replayed.stdout + replayed.stderr


@pytest.mark.parametrize("rank", [0, 1])
def test_health_says_so_within_a_second_of_a_kill(rank):
    with Server(model_file("script"), *TWO, env={"HOLDFAST_FAULT": "worker.load:sleep=1500:2+"}) as s:
        client = Client(s, "<S03>", max_tokens=400)
        wait_for(lambda: client.events > 3, 20, "tokens")
        os.kill(pid_of(s, f"rank{rank}"), signal.SIGKILL)
        wait_for(lambda: s.health() == 503, 1, "503")
        client.wait(60)
        assert client.error is None and client.text == story(400)


def test_ranks_that_do_not_agree_part_at_that_step(undisturbed):
    env = {"HOLDFAST_FAULT": "worker.diverge:fail:25", "HOLDFAST_FAULT_RANK": "1", "HOLDFAST_FAULT_GENERATION": "1"}
    with Server(model_file("random-gemma4"), *TWO, env=env) as s:
        assert answer(s) == undisturbed
        found = incidents(s)
        assert len(found) == 1 and found[0]["cause"] == "integrity", found
        bundle = pathlib.Path(found[0]["path"])
        said = json.loads((bundle / "incident.json").read_text())
        assert said["rank"] == 1 and any("rank_divergence" in f for f in said["findings"]), said


@pytest.mark.parametrize("action, causes", [("hang", ["hang"]), ("stop", ["silent", "hang"])])
def test_a_rank_that_stands_still_is_blamed_not_the_one_that_waits(action, causes):
    env = {"HOLDFAST_FAULT": f"worker.step:{action}:20", "HOLDFAST_FAULT_RANK": "1", "HOLDFAST_FAULT_GENERATION": "1"}
    with Server(model_file("script"), *TWO, *quick_supervisor(), env=env) as s:
        client = Client(s, "<S03>", max_tokens=60).wait(60)
        assert client.error is None and client.text == story(60)
        found = incidents(s)
        assert found[0]["cause"] in causes, found
        assert json.loads((pathlib.Path(found[0]["path"]) / "incident.json").read_text())["rank"] == 1


def test_pools_resize_on_both_ranks_under_load():
    with Server(model_file("script"), *TWO, "--num-tokens", "4096") as s:
        clients = [Client(s, "<S03>", max_tokens=300 + i) for i in range(3)]
        wait_for(lambda: all(c.events > 3 for c in clients), 30, "tokens")
        for pages in (300, 128, 256):
            r = s.post("/v1/cache/resize", {"full_pages": pages})
            assert r.status == 200, r.body
        for i, c in enumerate(clients):
            c.wait(60)
            assert c.error is None and c.text == story(300 + i)
        s.idle(20)
        assert incidents(s) == []


@pytest.mark.parametrize("short", ["rank0", "rank1"])
def test_growing_beyond_the_memory_of_one_rank_is_refused_by_both(short):
    with Server(model_file("random-gemma4", "--context", 8192), *TWO, "--max-running-requests", 2, "--num-tokens", 131072) as s:
        def capacity():
            return next(p for p in s.status()["pools"] if not p["window"])["capacity"]

        before = capacity()
        worker = pid_of(s, short)
        taken = int(re.search(r"VmSize:\s+(\d+) kB", pathlib.Path(f"/proc/{worker}/status").read_text()).group(1)) * 1024
        resource.prlimit(worker, resource.RLIMIT_AS, (taken + (16 << 20), resource.RLIM_INFINITY))
        r = s.post("/v1/cache/resize", {"full_pages": 4 * before}, timeout=60)
        assert r.status == 400 and ("MiB" if short == "rank0" else "rank 1") in r.json["error"]["message"], r.body
        assert capacity() == before
        resource.prlimit(worker, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert s.post("/v1/cache/resize", {"full_pages": 2 * before}, timeout=60).status == 200 and capacity() == 2 * before
        assert s.chat("still here", max_tokens=4).status == 200
        assert int(s.status()["health"]["restarts"]) == 0 and incidents(s) == []


def test_restarts_leave_no_descriptor_behind():
    with Server(model_file("script"), *TWO, *quick_supervisor(**{"--restart-intensity": 1000, "--restart-delay": 0.02, "--restart-max-delay": 0.02})) as s:
        supervisor = pid_of(s, "supervisor")
        counts = []
        for cycle in range(6):
            healthy(s)
            before = int(s.status()["health"]["restarts"])
            os.kill(pid_of(s, f"rank{cycle % 2}"), signal.SIGKILL)
            wait_for(lambda: int(s.status()["health"]["restarts"]) > before, 20, "a restart")
            healthy(s)
            counts.append(descriptors(supervisor))
        assert counts[-1] <= counts[1] + 1, counts
        assert s.chat("<S03>", max_tokens=5).json["choices"][0]["message"]["content"] == story(5)
        assert (state(s) or {}).get("status") is not None


def test_an_idle_group_stops_at_once():
    with Server(model_file("script"), *TWO) as s:
        assert s.terminate(5) == 0
