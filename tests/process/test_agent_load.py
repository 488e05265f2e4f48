"""The field report's load through HTTP, short form: concurrent conversations with a shared system prompt, answers fed back. tests/bench/soak.sh runs
the full form."""
import json
import random
import subprocess
import sys
import threading
import time

import pytest

import harness
from harness import Server, model_file

LOAD = harness.SOURCE / "tests" / "support" / "agent_load.py"


def agent_load(server, *flags, timeout=300, tool_choice="none"):
    r = subprocess.run([sys.executable, str(LOAD), "--base", server.url, "--tool-choice", tool_choice, "--verify-solo", *map(str, flags)],
                       capture_output=True, text=True, timeout=timeout)
    assert r.returncode == 0, r.stdout + r.stderr
    return json.loads(r.stdout.splitlines()[-1])


def clean(server):
    """Idle, every page accounted for, nothing found, nobody restarted."""
    status = server.idle()
    assert not status["findings"], status["findings"]
    assert int(status["health"]["restarts"]) == 0
    return status


@pytest.mark.parametrize("conversations", [1, 2, 4, 8])
@pytest.mark.parametrize("ratio", ["0.2", "0.07"])
def test_report_load_is_clean_and_hits_the_cache(ratio, conversations):
    model = model_file("random-gemma4", "--context", 16384)
    with Server(model, "--max-running-requests", 4, "--num-tokens", 65536, "--swa-full-tokens-ratio", ratio, "--max-prefill-length", 512) as s:
        r = agent_load(s, "--conversations", conversations, "--rounds", 2, "--system-words", 1500, "--max-tokens", 48)
        assert r["requests"] == 8 * conversations and r["failures"] == 0 and r["differ"] == 0
        status = clean(s)
        # Each conversation after the first finds the system prompt, each turn the turns before it: what is left are the new words.
        if conversations >= 4:
            assert r["cached_tokens"] / r["prompt_tokens"] >= 0.95, r
        cache = status["cache"]
        assert int(cache["prompt_tokens"]) == int(cache["cached_tokens"]) + int(cache["computed_prompt_tokens"])


@pytest.mark.parametrize("page_size, kv", [(16, "f16"), (1, "f16"), (16, "q8_0")])
def test_window_pool_at_its_floor(page_size, kv):
    model = model_file("random-gemma4", "--context", 8192)
    tokens = 8192
    # The floor as the server states it, then exactly that.
    refused = subprocess.run([str(harness.BIN / "holdfast"), "serve", "--model", str(model), "--port", "0", "--page-size", str(page_size), "--num-tokens",
                              str(tokens), "--max-running-requests", "4", "--swa-full-tokens-ratio", "0.001", "--kv-cache-dtype", kv],
                             capture_output=True, text=True, timeout=30)
    assert refused.returncode == 64
    ratio = refused.stderr.split("--swa-full-tokens-ratio ")[-1].split(")")[0]
    with Server(model, "--page-size", page_size, "--num-tokens", tokens, "--max-running-requests", 4, "--swa-full-tokens-ratio", ratio, "--kv-cache-dtype", kv) as s:
        pool = next(p for p in s.status()["pools"] if p["window"])
        assert pool["capacity"] - pool["floor"] <= 1 + 16 // page_size
        agent_load(s, "--conversations", 6, "--rounds", 1, "--system-words", 500, "--max-tokens", 40)
        clean(s)


GEMMA = ("--tool-call-parser", "gemma4", "--reasoning-parser", "gemma4")


def test_real_calls_under_load_are_valid_and_equal_a_solo_run():
    """The report's load with calls that must be valid, on random weights: agent_load.py checks names, arguments and finish reasons."""
    model = model_file("random-gemma4", "--context", 16384)
    with Server(model, *GEMMA, "--max-running-requests", 4, "--num-tokens", 65536, "--swa-full-tokens-ratio", "0.2", "--max-prefill-length", 512) as s:
        r = agent_load(s, "--conversations", 4, "--rounds", 1, "--turns", 3, "--system-words", 800, "--max-tokens", 64, tool_choice="required")
        assert r["failures"] == 0 and r["differ"] == 0 and r["tool_calls"] >= 4, r
        clean(s)


def test_real_calls_while_workers_are_killed():
    """The same, with a worker killed again and again: every stream goes on, every answer equals the undisturbed solo run's. A request that comes
    while there is no worker is told when to come again."""
    model = model_file("random-gemma4", "--context", 16384)
    # A kill each time so many tokens are out: more than four requests have together, so that none is in flight at two of them (it would be
    # taken for poison). By progress, not by the clock: a fast machine must not be done before the first kill, nor a slow one drown in them.
    apart, most = 320, 4
    with Server(model, *GEMMA, "--max-running-requests", 4, "--num-tokens", 65536, "--swa-full-tokens-ratio", "0.2", "--max-prefill-length", 512) as s:
        stop = threading.Event()
        killed = []

        def killer():
            last = -apart / 2  # the first comes early
            while not stop.wait(0.02) and len(killed) < most:
                tokens = sum(s.metrics()["holdfast_engine_generated_tokens_total"].values())
                if tokens - last < apart:
                    continue
                pid = s.worker()
                harness.os.kill(pid, harness.signal.SIGKILL)
                killed.append(pid)
                last = tokens

        t = threading.Thread(target=killer)
        t.start()
        try:
            r = agent_load(s, "--conversations", 4, "--rounds", 2, "--turns", 4, "--system-words", 800, "--max-tokens", 64, "--health", "/livez",
                           "--retries", 20, tool_choice="required", timeout=600)
        finally:
            stop.set()
            t.join()
        assert r["failures"] == 0 and r["differ"] == 0, r
        assert len(killed) >= 2 and int(s.status()["health"]["restarts"]) == len(killed) == len(set(killed)), killed
        assert not s.idle(timeout=30)["findings"]


def test_cancels_in_the_middle_leave_nothing_behind():
    model = model_file("random-gemma4", "--context", 8192)
    with Server(model, "--max-running-requests", 4, "--num-tokens", 16384, "--swa-full-tokens-ratio", "0.1") as s:
        stop = threading.Event()
        r = random.Random(5)

        def nuisance():
            while not stop.is_set():
                c = s.connect()
                body = {"messages": [{"role": "user", "content": "leaving soon " * r.randint(1, 400)}], "max_tokens": 400, "stream": True}
                c.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
                time.sleep(r.random() * 0.05)
                c.close()
                stop.wait(0.1)  # the load is what is measured: it must get on beside this

        t = threading.Thread(target=nuisance)
        t.start()
        try:
            agent_load(s, "--conversations", 4, "--rounds", 3, "--system-words", 500, "--max-tokens", 48)
        finally:
            stop.set()
            t.join()
        clean(s)


def test_lengths_around_window_and_page_edges_equal_a_cold_solo_run():
    """Prompts of W-1, W, W+1, page multiples +-1, repeated and in parallel, against a server without a prefix cache."""
    model = model_file("random-gemma4")
    base = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}
    lengths = sorted({n + d for n in (16, 32, 48, 64, 80, 128, 192, 256) for d in (-1, 0, 1)})
    ids = {n: [3 + (7 * i * i + 13 * i + n // 40) % 300 for i in range(n)] for n in lengths}

    def ask(s, n):
        r = s.post("/v1/completions", {"prompt": ids[n], **base})
        assert r.status == 200, r.body
        return r.json["choices"][0]["text"]

    with Server(model, "--cache-type", "none", "--max-running-requests", 1) as cold:
        want = {n: ask(cold, n) for n in lengths}
    for flags in (["--page-size", 16], ["--page-size", 1], ["--page-size", 32, "--num-tokens", 2048, "--max-seq-len", 512]):
        with Server(model, "--max-running-requests", 4, "--max-prefill-length", 64, *flags) as s:
            for _ in range(2):
                assert {n: ask(s, n) for n in lengths} == want
            got = {}
            order = list(lengths) * 2
            random.Random(1).shuffle(order)
            lanes = [order[i::6] for i in range(6)]

            def lane(mine):
                for n in mine:
                    got.setdefault(n, set()).add(ask(s, n))

            threads = [threading.Thread(target=lane, args=(mine,)) for mine in lanes]
            [t.start() for t in threads]
            [t.join() for t in threads]
            assert got == {n: {want[n]} for n in lengths}
            clean(s)


def test_computed_prompt_tokens_are_exactly_the_new_ones():
    """No clock needed: with perfect sharing every prompt token is computed once, up to the partial page at each cut (PERF 4.1's formula)."""
    model = model_file("random-gemma4", "--context", 8192)
    page = 16
    with Server(model, "--max-running-requests", 4, "--num-tokens", 32768, "--page-size", page) as s:
        shared = [3 + (i * 31 + 7) % 300 for i in range(1600)]
        turns = [[3 + (i * 17 + k) % 300 for i in range(100)] for k in range(8)]
        expected = 0
        seen = set()
        for k, tail in enumerate(turns):
            prompt = shared + tail
            r = s.post("/v1/completions", {"prompt": prompt, "max_tokens": 1, "temperature": 0}).json
            # Cached: the longest prefix of whole pages that an earlier prompt had, short of the last token.
            best = 0
            for other in seen:
                n = 0
                while n < min(len(other), len(prompt)) and other[n] == prompt[n]:
                    n += 1
                best = max(best, n // page * page)
            best = min(best, (len(prompt) - 1) // page * page)
            assert r["usage"]["prompt_tokens_details"]["cached_tokens"] == best, (k, r["usage"])
            expected += len(prompt) - best
            seen.add(tuple(prompt))
        assert int(s.idle()["cache"]["computed_prompt_tokens"]) == expected
