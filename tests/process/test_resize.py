"""Resizing both pools while serving: no failed request, no changed answer; refused below the floor with numbers; cancellable."""
import json
import re
import resource
import subprocess
import sys
import threading
import time

import pytest

import harness
from harness import Server, model_file, wait_for

LOAD = harness.SOURCE / "tests" / "support" / "agent_load.py"


@pytest.fixture(scope="module")
def server():
    with Server(model_file("random-gemma4", "--context", 8192), "--max-running-requests", 4, "--num-tokens", 16384, "--swa-full-tokens-ratio", "0.2") as s:
        yield s


def pools(s):
    return {("window" if p["window"] else "full"): p for p in s.status()["pools"]}


def resize(s, **targets):
    return s.post("/v1/cache/resize", {k: v for k, v in targets.items()}, timeout=60)


def test_grow_and_shrink_through_http(server):
    before = pools(server)
    full, window = before["full"]["capacity"], before["window"]["capacity"]
    for f, w in ((full * 2, window * 2), (full // 2, window // 2), (full, window)):
        r = resize(server, full_pages=f, window_pages=w)
        assert r.status == 200, r.body
        wait_for(lambda: (pools(server)["full"]["capacity"], pools(server)["window"]["capacity"]) == (f, w), 10, f"capacity {f}, {w}")
        assert server.chat("after a resize", max_tokens=8).status == 200
    assert server.health() == 200


def test_grow_and_shrink_through_ctl(server):
    before = pools(server)
    full, window = before["full"]["capacity"], before["window"]["capacity"]
    r = server.ctl("cache", "--full", full + 100, "--window", window + 50)
    assert r.returncode == 0 and r.stdout.split(": ", 1)[1] == "done\n", r
    assert server.chat("something", max_tokens=2).status == 200
    assert "prefix cache" in server.ctl("cache").stdout, "the hit rate is part of it"
    wait_for(lambda: pools(server)["full"]["capacity"] == full + 100, 10, "grown")
    assert server.ctl("cache", "--full", full, "--window", window).returncode == 0
    wait_for(lambda: pools(server)["full"]["capacity"] == full, 10, "shrunk")


def test_below_the_floor_is_refused_with_both_numbers(server):
    before = pools(server)
    r = resize(server, window_pages=before["window"]["floor"] - 1)
    assert r.status == 400, r.body
    message = r.json["error"]["message"]
    assert str(before["window"]["floor"]) in message and str(before["window"]["floor"] - 1) in message
    assert pools(server)["window"]["capacity"] == before["window"]["capacity"]
    r = server.ctl("cache", "--window", before["window"]["floor"] - 1, check=False)
    assert r.returncode == 1 and str(before["window"]["floor"]) in r.stdout and ": refused: " in r.stdout, r
    for nonsense in (["--full", 0], ["--window", 0], ["--full", before["full"]["capacity"], "--cancel"]):
        assert server.ctl("cache", *nonsense, check=False).returncode == 64, nonsense


@pytest.mark.parametrize("bad", [{}, {"full_pages": 0}, {"full_pages": -1}, {"full_pages": "many"}, {"full_pages": 1 << 40}, {"pages": 3}])
def test_nonsense_is_400(server, bad):
    assert server.post("/v1/cache/resize", bad).status == 400
    assert server.health() == 200


def test_after_a_shrink_answers_end_sooner_and_nobody_is_refused_who_fits(server):
    before = pools(server)["full"]["capacity"]
    pages = max(pools(server)["full"]["floor"], 40)
    assert resize(server, full_pages=pages).status == 200
    try:
        for asked in ({}, {"max_tokens": 5000}):
            r = server.chat("hello", ignore_eos=True, **asked)
            assert r.status == 200, r.body
            assert r.json["choices"][0]["finish_reason"] == "length" and r.json["usage"]["total_tokens"] == pages * 16
        r = server.chat("hello " * 1000, max_tokens=1)
        assert r.status == 400 and str(pages * 16) in r.json["error"]["message"]
    finally:
        assert resize(server, full_pages=before).status == 200


def test_a_pool_that_grows_right_after_it_shrank_is_backed_again(server):
    """Both are done at once while nothing runs; pages above the small size must be there when a later shrink moves them down."""
    before = pools(server)["full"]["capacity"]
    generation = server.status()["health"]["generation"]
    for pages in (max(pools(server)["full"]["floor"], 40), before):
        assert resize(server, full_pages=pages).status == 200
    k = 0
    while pools(server)["full"]["evictable"] <= before * 3 // 4:
        k += 1
        assert server.chat(f"{k} " + "hello " * 600, max_tokens=1).status == 200
    try:
        assert resize(server, full_pages=before // 2).status == 200
        assert server.chat("after it", max_tokens=8).status == 200
    finally:
        assert resize(server, full_pages=before).status == 200
    assert server.status()["health"]["generation"] == generation, "the worker was lost"


def test_growing_beyond_the_memory_is_refused_and_costs_nothing():
    with Server(model_file("random-gemma4", "--context", 8192), "--max-running-requests", 2, "--num-tokens", 131072) as s:
        before = pools(s)["full"]["capacity"]
        worker = s.worker()
        taken = int(re.search(r"VmSize:\s+(\d+) kB", open(f"/proc/{worker}/status").read()).group(1)) * 1024
        resource.prlimit(worker, resource.RLIMIT_AS, (taken + (16 << 20), resource.RLIM_INFINITY))
        r = resize(s, full_pages=4 * before)
        assert r.status == 400 and "MiB" in r.json["error"]["message"], r.body
        assert pools(s)["full"]["capacity"] == before
        assert int(s.status()["health"]["restarts"]) == 0 and s.chat("still here", max_tokens=4).status == 200


def test_a_resize_while_held_is_told_why(server):
    server.ctl("drain")
    try:
        wait_for(lambda: server.health() == 503, 10, "held")
        r = resize(server, full_pages=pools(server)["full"]["capacity"])
        assert r.status == 503 and "drained by an operator" in r.json["error"]["message"]
        assert "reached" not in r.json["error"]["message"], "the supervisor answered"
    finally:
        server.ctl("resume")
    wait_for(lambda: server.health() == 200, 10, "ready")


def test_resizing_under_load_changes_no_answer(server):
    before = pools(server)
    full, window = before["full"]["capacity"], before["window"]["capacity"]
    stop = threading.Event()
    done = []

    def shake():
        k = 0
        while not stop.is_set():
            f, w = [(full, window), (full // 2, window // 2), (full * 2, window), (full * 3 // 4, window * 2), (full // 2, window)][k % 5]
            r = resize(server, full_pages=f, window_pages=w)
            assert r.status in (200, 202), r.body
            done.append(r.status)
            k += 1
            time.sleep(0.05)

    t = threading.Thread(target=shake)
    t.start()
    try:
        r = subprocess.run([sys.executable, str(LOAD), "--base", server.url, "--tool-choice", "none", "--verify-solo", "--conversations", "4", "--rounds", "4",
                            "--system-words", "600", "--max-tokens", "48"], capture_output=True, text=True, timeout=200)
    finally:
        stop.set()
        t.join()
    assert r.returncode == 0, r.stdout + r.stderr
    assert json.loads(r.stdout.splitlines()[-1])["differ"] == 0
    assert len(done) > 10
    status = server.idle()
    assert not status["findings"] and int(status["health"]["restarts"]) == 0
