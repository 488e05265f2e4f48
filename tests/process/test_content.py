"""Content on the real engine: a windowed model whose pools stand at their floor, prompts that end around window and page edges, shared prefixes,
everything at once, requests that are cancelled and requests that are put back into the queue. Every greedy answer must be, byte for byte, that of
a server without a prefix cache that computes one request at a time."""
import json
import random
import re
import subprocess
import threading

import pytest

import harness
from harness import Server, model_file

WINDOW = 64  # of random-gemma4
BASE = {"temperature": 0, "ignore_eos": True}


def window_floor(model, *flags):
    """The ratio at which the window pool stands exactly at its floor, as the server states it when it is below."""
    r = subprocess.run([str(harness.BIN / "holdfast"), "serve", "--model", str(model), "--port", "0", "--swa-full-tokens-ratio", "0.00001", *map(str, flags)],
                       capture_output=True, text=True, timeout=60)
    assert r.returncode == 64, r.stderr
    return re.search(r"--swa-full-tokens-ratio ([0-9.]+[0-9])", r.stderr).group(1)


def prompts(page):
    """Three families that share a prefix each, cut at every edge, and one with a tail of its own for each length."""
    lengths = sorted({n + d for n in (WINDOW, WINDOW - 1, WINDOW + 1, page, 2 * page, 4 * page, 6 * page, 2 * WINDOW, 3 * WINDOW) for d in (-1, 0, 1)} - {0, -1})
    families = [[3 + (7 * i * i + (13 + f) * i + f) % 300 for i in range(256)] for f in range(3)]
    found = {}
    for n in lengths:
        found[f"cut-{n}"] = families[n % 3][:n]
        found[f"tail-{n}"] = families[0][:n] + [3 + (i * n + 11) % 300 for i in range(7)]
    return found


def ask(server, ids, most):
    r = server.post("/v1/completions", {"prompt": ids, "max_tokens": most, **BASE})
    assert r.status == 200, r.body
    return r.json["choices"][0]["text"]


def leave(server, ids, r):
    """Starts an answer and hangs up after a few of its tokens."""
    connection = server.connect()
    connection.request("POST", "/v1/completions", json.dumps({"prompt": ids, "max_tokens": 200, "stream": True, **BASE}), {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.status == 200
    for _ in range(r.randint(0, 6)):
        response.readline()
    connection.close()


@pytest.mark.parametrize("page, kv, overlap", [(16, "f16", 0), (1, "f16", 0), (16, "q8_0", 0), (1, "q8_0", 0), (16, "f16", 1), (1, "f16", 1)])
def test_every_answer_at_the_floor_equals_a_cold_solo_run(page, kv, overlap):
    model = model_file("random-gemma4")
    work = prompts(page)
    most = {name: 8 + 29 * (i % 3) for i, name in enumerate(work)}
    common = ["--max-seq-len", 512, "--kv-cache-dtype", kv, "--page-size", page]
    with Server(model, "--cache-type", "none", "--max-running-requests", 1, *common) as cold:
        want = {name: ask(cold, ids, most[name]) for name, ids in work.items()}
    assert len(set(want.values())) > len(want) // 2  # the answers do depend on the prompt

    # 4 running answers do not fit into the full pool at their longest: with only one token reserved, the youngest gives way.
    tight = [*common, "--max-running-requests", 4, "--max-prefill-length", 64, "--num-tokens", 528, "--reserve-output-tokens", 1,
             "--overlap", overlap]
    ratio = window_floor(model, *tight)
    with Server(model, *tight, "--swa-full-tokens-ratio", ratio) as s:
        pool = next(p for p in s.status()["pools"] if p["window"])
        assert pool["capacity"] - pool["floor"] <= 1
        got, failures = {}, []
        order = list(work) * 2
        random.Random(page).shuffle(order)

        def lane(k):
            r = random.Random(100 + k)
            try:
                for name in order[k::6]:
                    if r.random() < 0.25:
                        leave(s, work[r.choice(order)], r)
                    got.setdefault(name, set()).add(ask(s, work[name], most[name]))
            except Exception as e:  # noqa: BLE001
                failures.append(repr(e))

        # How the lanes meet is the machine's affair: again, until requests had to give way to each other (pages of one token fit so tightly that all
        # may run to their ends).
        for _ in range(5):
            threads = [threading.Thread(target=lane, args=(k,)) for k in range(6)]
            [t.start() for t in threads]
            [t.join() for t in threads]
            if failures or page == 1 or int(s.idle()["cache"]["preemptions"]) > 0:
                break
        assert not failures
        assert got == {name: {text} for name, text in want.items()}
        status = s.idle()
        assert not status["findings"], status["findings"]
        assert int(status["health"]["restarts"]) == 0
        cache = status["cache"]
        # What the test is about did happen.
        assert int(cache["hits"]) > 0, cache
        # Pages of one token fit so tightly that all may run to their ends.
        if page > 1:
            assert int(cache["preemptions"]) > 0, cache
        assert sum(int(p["evictions"]) for p in status["pools"]) > 0
