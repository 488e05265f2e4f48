"""Steps in flight: the worker plans and launches the next step while one computes, decodes before their token is known. On the CPU the executor is
synchronous, but plans, outcomes and losses take the same path as on a device: nothing that a client sees may depend on it."""
import json
import os
import subprocess
import threading

import pytest

import harness
from harness import Server, model_file, wait_for
from test_agent_load import GEMMA, agent_load, clean
from test_resume import VARIANTS, assemble, body, lost_at, strip

AHEAD = ("--overlap", 1)


def answers(s):
    """All variants at once, so that requests that run ahead and requests that cannot share steps."""
    got = {}

    def ask(v):
        got[v] = strip(s.post("/v1/chat/completions", body(v)).json)

    threads = [threading.Thread(target=ask, args=(v,)) for v in VARIANTS]
    [t.start() for t in threads]
    [t.join() for t in threads]
    return got


@pytest.fixture(scope="module")
def one_by_one():
    with Server(model_file("random-gemma4"), "--overlap", 0) as s:
        plain = answers(s)
        streamed = {v: assemble(s.stream("/v1/chat/completions", body(v)), VARIANTS[v].get("n", 1)) for v in VARIANTS}
        return plain, streamed


def test_answers_do_not_depend_on_it(one_by_one):
    with Server(model_file("random-gemma4"), *AHEAD) as s:
        assert "two steps in flight" in s.stderr()
        assert answers(s) == one_by_one[0]
        for v in VARIANTS:
            assert assemble(s.stream("/v1/chat/completions", body(v)), VARIANTS[v].get("n", 1)) == one_by_one[1][v], v
        clean(s)


@pytest.mark.parametrize("ranks", [1, 2])
def test_stops_in_the_middle_and_cancels(ranks):
    """Answers that end by a stop token leave a step in flight behind them; so do clients that go."""
    texts = {}
    for overlap in (0, 1):
        with Server(model_file("script"), "--overlap", overlap, "--tp", ranks, "--max-running-requests", 3) as s:
            texts[overlap] = [s.chat(f"<S0{i % 4}>", max_tokens=20 + i).json["choices"][0]["message"]["content"] for i in range(12)]
            for _ in range(4):
                c = s.connect()
                c.request("POST", "/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": "<S03>"}], "max_tokens": 400, "stream": True}))
                c.getresponse().read(200)
                c.close()
            clean(s)
    assert texts[0] == texts[1]


def test_tool_calls_under_load_are_valid_and_equal_a_solo_run():
    model = model_file("random-gemma4", "--context", 16384)
    with Server(model, *GEMMA, *AHEAD, "--max-running-requests", 4, "--num-tokens", 65536, "--swa-full-tokens-ratio", "0.2", "--max-prefill-length", 512) as s:
        r = agent_load(s, "--conversations", 4, "--rounds", 1, "--turns", 3, "--system-words", 400, "--max-tokens", 48, tool_choice="required")
        assert r["failures"] == 0 and r["differ"] == 0 and r["tool_calls"] >= 4, r
        r = agent_load(s, "--conversations", 4, "--rounds", 1, "--turns", 2, "--system-words", 400, "--max-tokens", 48)
        assert r["failures"] == 0 and r["differ"] == 0, r
        clean(s)


@pytest.mark.parametrize("step", [1, 2, 3, 64, 101, 199])
def test_lost_with_steps_in_flight_the_stream_goes_on(step, one_by_one):
    """The fault comes when a step is launched: of a request that runs ahead the one before it is in flight, its token lost and drawn again."""
    first = "greedy" if step % 2 else "penalties"
    with Server(model_file("random-gemma4"), *AHEAD, env=lost_at(step)) as s:
        for v in (first, "seeded"):
            assert assemble(s.stream("/v1/chat/completions", body(v)), 1) == one_by_one[1][v], v
        assert int(s.status()["health"]["restarts"]) == 1, "the fault did not happen"
        s.idle()
        bundle = wait_for(lambda: next((os.path.join(s.runtime_dir, "incidents", n) for n in os.listdir(os.path.join(s.runtime_dir, "incidents"))), None), 5, "a bundle")
        r = subprocess.run([str(harness.BIN / "holdfast"), "replay", bundle], capture_output=True, text=True, timeout=60)
        assert r.returncode == 0 and "same digest" in r.stdout, r.stdout + r.stderr
        oldest = step - 1 if first == "greedy" and step > 1 else step
        assert f"step {oldest} was running when the recording ended" in r.stdout, r.stdout


def test_killed_in_the_middle_of_several_streams(one_by_one):
    with Server(model_file("random-gemma4"), *AHEAD) as s:
        got, once = {}, threading.Event()

        def kill(event):
            if len(seen) > 40 and not once.is_set():
                once.set()
                os.kill(s.worker(), 9)

        seen = []
        threads = []
        for v in VARIANTS:
            def ask(v=v):
                got[v] = assemble(s.stream("/v1/chat/completions", body(v), on_event=lambda e: (seen.append(1), kill(e))), VARIANTS[v].get("n", 1))
            threads.append(threading.Thread(target=ask))
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert got == one_by_one[1]
        assert int(s.status()["health"]["restarts"]) == 1
        assert not s.idle()["findings"]


def test_pools_shrink_and_grow_with_steps_in_flight():
    with Server(model_file("random-gemma4", "--context", 8192), *AHEAD, "--max-running-requests", 4, "--num-tokens", 16384) as s:
        alone = strip(s.post("/v1/chat/completions", body("seeded")).json)
        got = []
        threads = [threading.Thread(target=lambda: got.append(strip(s.post("/v1/chat/completions", body("seeded")).json))) for _ in range(3)]
        [t.start() for t in threads]
        for pages in (600, 1024, 500):
            s.ctl("cache", "--full", str(pages))
        [t.join() for t in threads]
        assert got == [alone] * 3
        clean(s)
