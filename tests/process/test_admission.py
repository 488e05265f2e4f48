"""Load: what there is no room for is told so with a time, many idle connections and slow readers cost nobody anything, probes stay true, and
the supervisor's memory does not follow what clients do."""
import concurrent.futures
import http.client
import json
import os
import socket
import threading

import pytest

from faults import Client, healthy, pid_of, resident_kb, story
from harness import Server, model_file, wait_for

SLOW = {"HOLDFAST_FAULT": "worker.step:sleep=10:1+"}


@pytest.fixture(scope="module")
def narrow():
    """One request at a time, two may wait."""
    with Server(model_file("script"), "--max-running-requests", 1, "--max-queue", 2, "--max-prefill-length", 32, env=SLOW) as s:
        yield s


def load(s):
    h = s.status()["health"]
    return int(h["running"]), int(h["waiting"])


def test_overload_is_429_or_503_with_retry_after_and_probes_stay_green(narrow):
    s = narrow
    clients = [Client(s, "<S03>", max_tokens=150, seed=i) for i in range(3)]
    wait_for(lambda: load(s) == (1, 2), 20, "slot and queue are full")
    for _ in range(5):
        r = s.chat("<S03>", max_tokens=2)
        assert r.status in (429, 503), r.body
        assert int(r.headers["retry-after"]) >= 1
        assert r.json["error"]["message"]
        assert s.health() == 200 and s.get("/livez").status == 200 and s.get("/readyz").status == 200
    for c in clients:
        c.wait(60)
        assert c.error is None and c.text == story(150)
    assert s.chat("<S03>", max_tokens=2).status == 200
    s.idle()


def test_who_leaves_the_queue_makes_room(narrow):
    s = narrow
    running = Client(s, "<S03>", max_tokens=150, seed=10)
    wait_for(lambda: running.text, 20, "tokens")
    gone = s.connect()
    for _ in range(2):
        c = s.connect()
        c.request("POST", "/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": "<S03>"}], "max_tokens": 50}),
                  {"Content-Type": "application/json"})
        gone, last = c, gone
        wait_for(lambda: load(s)[1] >= 1, 20, "it waits")
    wait_for(lambda: load(s) == (1, 2), 20, "the queue is full")
    gone.close()
    wait_for(lambda: load(s)[1] == 1, 10, "its place is free")
    last.close()
    running.wait(60)
    assert running.error is None and running.text == story(150)
    s.idle(20)


def test_health_is_200_throughout_long_prefills(narrow):
    s = narrow
    clients = [Client(s, f"hello {i} " * 150, max_tokens=4) for i in range(3)]
    wait_for(lambda: load(s)[0] == 1, 20, "a prompt is computed")
    polls = 0
    while any(c.is_alive() for c in clients):
        assert s.health(timeout=5) == 200
        polls += 1
    assert polls > 10
    for c in clients:
        assert c.error is None and c.done


def test_a_thousand_idle_connections(narrow):
    s = narrow
    idle = []
    try:
        for _ in range(1000):
            idle.append(socket.create_connection((s.host, s.port), timeout=20))
        assert s.health(timeout=5) == 200
        out = s.stream_chat("<S03>", max_tokens=30)
        assert out.error is None and out.text() == story(30)
        assert s.get("/livez").status == 200
    finally:
        for c in idle:
            c.close()
    frontend = pid_of(s, "frontend")
    wait_for(lambda: len(os.listdir(f"/proc/{frontend}/fd")) < 200, 20, "their descriptors are closed")


def test_more_connections_than_allowed_wait_and_nobody_falls():
    with Server(model_file("script"), "--frontend-arg", "--max-connections=20") as s:
        idle = [socket.create_connection((s.host, s.port), timeout=20) for _ in range(60)]
        for c in idle:
            c.close()
        healthy(s)
        assert s.chat("<S03>", max_tokens=2).status == 200


def test_slow_readers_hold_up_nobody(narrow):
    s = narrow
    slow = []
    for i in range(2):
        c = socket.create_connection((s.host, s.port), timeout=60)
        c.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        body = json.dumps({"messages": [{"role": "user", "content": "<S03>"}], "max_tokens": 100, "stream": True, "seed": 50 + i}).encode()
        c.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        slow.append(c)  # and reads nothing
    out = s.stream_chat("<S03>", max_tokens=30)
    assert out.error is None and out.text() == story(30)
    for c in slow:  # at last they read: everything is there
        text = b""
        while b"data: [DONE]" not in text:
            chunk = c.recv(65536)
            assert chunk, text[-200:]
            text += chunk
        c.close()
        said = "".join(ch["delta"].get("content") or "" for line in text.decode().splitlines() if line.startswith("data: {")
                       for ch in json.loads(line[6:])["choices"])
        assert said == story(100)
    s.idle(20)


def test_bytes_that_trickle_in_hold_up_nobody(narrow):
    s = narrow
    body = json.dumps({"messages": [{"role": "user", "content": "<S03>"}], "max_tokens": 3}).encode()
    c = socket.create_connection((s.host, s.port), timeout=60)
    c.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body))
    for i, byte in enumerate(body):
        c.sendall(bytes([byte]))
        if i % 20 == 0:
            assert s.get("/livez").status == 200
    response = http.client.HTTPResponse(c)
    response.begin()
    assert response.status == 200
    assert json.loads(response.read())["choices"][0]["message"]["content"] == story(3)
    c.close()


def test_none_of_many_short_requests_is_lost_and_the_supervisor_stays_small():
    """A slot given back and taken at once, again and again, over kept connections; refusals retried as told."""
    n = int(os.environ.get("HOLDFAST_MANY", "3000" if os.environ.get("HOLDFAST_LONG") else "600"))
    with Server(model_file("script"), "--max-running-requests", 1, "--max-queue", 4) as s:
        supervisor = pid_of(s, "supervisor")
        retries = threading.Semaphore(0)

        def ask(count):
            connection = s.connect()
            for i in range(count):
                body = json.dumps({"messages": [{"role": "user", "content": "<S03>"}], "max_tokens": 1, "temperature": 0})
                while True:
                    connection.request("POST", "/v1/chat/completions", body, {"Content-Type": "application/json"})
                    r = connection.getresponse()
                    data = r.read()
                    if r.status == 200:
                        assert json.loads(data)["choices"][0]["message"]["content"].strip() == "w000"
                        break
                    assert r.status in (429, 503) and r.getheader("Retry-After"), data
                    retries.release()
            connection.close()
            return count

        def many(total):
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                assert sum(pool.map(ask, [total // 4] * 4)) == total // 4 * 4

        many(n // 3)
        before = resident_kb(supervisor)
        many(n)
        grown = resident_kb(supervisor) - before
        assert grown < 4096, f"the supervisor grew by {grown} kB over {n} requests"
        s.idle()
        assert int(s.status()["health"]["restarts"]) == 0


def test_a_flood_that_is_refused_does_not_make_the_supervisor_grow(narrow):
    s = narrow
    supervisor = pid_of(s, "supervisor")
    holder = [Client(s, "<S03>", max_tokens=400, seed=100 + i) for i in range(3)]
    wait_for(lambda: load(s) == (1, 2), 20, "full")
    prompt = "x" * 20000

    def flood(n):
        refused = 0
        for _ in range(n):
            refused += s.post("/v1/completions", {"prompt": prompt, "max_tokens": 1}).status in (400, 429, 503)
        return refused
    assert flood(20) == 20
    before = resident_kb(supervisor)
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert sum(pool.map(flood, [25] * 4)) == 100
    assert resident_kb(supervisor) - before < 16384
    for c in holder:
        c.wait(90)
        assert c.error is None


def test_gauges_fall_to_zero_when_all_leave_at_once(narrow):
    s = narrow
    sockets = []
    for i in range(3):
        c = s.connect()
        c.request("POST", "/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": "<S03>"}], "max_tokens": 3000, "stream": True}),
                  {"Content-Type": "application/json"})
        sockets.append(c)
    wait_for(lambda: load(s) == (1, 2), 20, "all are there")
    for c in sockets:
        c.close()

    def zero():
        m = s.metrics()
        return all(sum(m[name].values()) == 0 for name in ("holdfast_running_requests", "holdfast_queue_depth", "holdfast_active_requests"))
    wait_for(zero, 10, "gauges at zero without another request")
    s.idle()
