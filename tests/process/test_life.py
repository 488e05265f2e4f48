"""Life and death of the processes: stops that leave nothing behind, kills that are noticed at once and survived."""
import os
import signal
import subprocess
import threading
import time

import pytest

import harness
from harness import Server, model_file, wait_for


def test_sigterm_stops_everything_within_five_seconds():
    for sig in (signal.SIGTERM, signal.SIGINT):
        s = Server(model_file("random-gemma4"))
        try:
            assert s.chat("hi", max_tokens=4).status == 200
            s.tree()
            begin = time.monotonic()
            s.process.send_signal(sig)
            assert s.process.wait(10) == 0
            assert time.monotonic() - begin < 5
        finally:
            s.close()


def test_killed_worker_comes_back_and_the_stream_goes_on(loop_server):
    s = loop_server
    killed = {}

    def kill(events):
        if len(events) == 30 and not killed:
            killed["pid"] = s.worker()
            os.kill(killed["pid"], signal.SIGKILL)

    out = s.stream_chat("<S03>", max_tokens=400, on_event=kill)
    assert killed and out.error is None and out.done
    assert out.text() == "".join("w%03d " % (i % 200) for i in range(400))
    assert out.finish() == "length"
    assert s.worker() != killed["pid"]
    wait_for(lambda: s.health() == 200, 10, "healthy again")


def test_health_says_so_when_the_worker_is_killed(server):
    before = int(server.status()["health"]["restarts"])
    os.kill(server.worker(), signal.SIGKILL)
    begin = time.monotonic()
    wait_for(lambda: server.health() == 503, 1.0, "health 503")
    assert time.monotonic() - begin < 1.0
    assert server.get("/livez").status == 200
    wait_for(lambda: server.health() == 200, 15, "health 200 again")
    assert int(server.status()["health"]["restarts"]) == before + 1
    assert server.chat("after", max_tokens=4).status == 200


def test_supervisor_killed_takes_its_workers_with_it(server):
    old = server.worker()
    supervisor = server.pids("holdfast-supervisor")[0]
    os.kill(supervisor, signal.SIGKILL)
    wait_for(lambda: old not in harness.processes(), 2, "the worker left with its supervisor")
    # The new process first: for some milliseconds the frontend may not have heard of the old one's end.
    wait_for(lambda: server.pids("holdfast-supervisor") not in ([], [supervisor]), 30, "serve started a new supervisor")
    wait_for(lambda: server.health() == 200, 30, "health 200 again")
    assert server.chat("after", max_tokens=4).status == 200


def test_frontend_killed_is_started_again_on_its_port(server):
    os.kill(server.pids("holdfast-frontend")[0], signal.SIGKILL)

    def answers():
        try:
            return server.health() == 200
        except OSError:
            return False
    wait_for(answers, 15, "the frontend is back")
    assert server.chat("after", max_tokens=4).status == 200
    server.idle()


def test_stopped_serve_is_not_needed_by_its_children_to_end():
    s = Server(model_file("random-gemma4"))
    try:
        s.tree()
        children = set(s.children_seen)
        s.process.kill()
        s.process.wait(5)
        wait_for(lambda: not (children & set(harness.processes())), 10, "children of a killed serve end")
    finally:
        s.close()


def test_concurrent_streams_all_resume(loop_server):
    s = loop_server
    results = {}

    def ask(i):
        results[i] = s.stream_chat("<S03>", max_tokens=250)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
    [t.start() for t in threads]
    time.sleep(0.15)
    os.kill(s.worker(), signal.SIGKILL)
    [t.join() for t in threads]
    for r in results.values():
        assert r.error is None and r.text() == "".join("w%03d " % (i % 200) for i in range(250))


def test_frontend_without_a_supervisor_says_so():
    port = harness.free_port()
    p = subprocess.Popen([str(harness.BIN / "holdfast-frontend"), "--engine", "unix:/nonexistent/supervisor.sock", "--port", str(port)],
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert p.stdout.readline().startswith(b"ready http://")
        import http.client
        c = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        c.request("GET", "/health")
        r = c.getresponse()
        assert r.status == 503
        r.read()
        c.request("GET", "/livez")
        r = c.getresponse()
        assert r.status == 200
        r.read()
        c.request("POST", "/v1/chat/completions", b'{"messages":[{"role":"user","content":"x"}]}', {"Content-Type": "application/json"})
        r = c.getresponse()
        assert r.status == 503 and r.getheader("Retry-After")
    finally:
        p.terminate()
        assert p.wait(10) == 0


@pytest.mark.parametrize("who", ["holdfast-frontend", "holdfast-supervisor", "holdfast-worker"])
def test_help_and_version(who):
    r = subprocess.run([str(harness.BIN / who), "--version"], capture_output=True, text=True, timeout=20)
    assert r.returncode == 0 and who in r.stdout
