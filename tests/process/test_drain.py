"""Stopping: what runs may finish, what is new is told so, nothing stays behind, and a stuck process does not make us wait for ever."""
import http.client
import os
import signal
import subprocess
import sys

import pytest

from faults import Client, alive, healthy, pid_of, quick_supervisor, story
from harness import Server, model_file, wait_for

SLOW = {"HOLDFAST_FAULT": "worker.step:sleep=10:1+"}
STREAMS = 4
TOKENS = 80


def server(*flags, **kw):
    kw.setdefault("env", SLOW)
    return Server(model_file("script"), *flags, **kw)


def streams(s, n=STREAMS, tokens=TOKENS):
    clients = [Client(s, "<S03>", max_tokens=tokens, seed=i) for i in range(n)]
    wait_for(lambda: all(c.text for c in clients), 30, "every stream has begun")
    return clients


def test_running_streams_finish_new_requests_are_told_exit_0():
    with server("--drain-timeout", 30) as s:
        kept = http.client.HTTPConnection(s.host, s.port, timeout=30)  # an idle keep-alive connection is no reason to wait
        kept.request("GET", "/livez")
        kept.getresponse().read()
        clients = streams(s)
        s.process.send_signal(signal.SIGTERM)
        wait_for(lambda: s.health() == 503, 5, "health says draining")
        assert s.get("/health").json["state"] == "draining"
        refused = s.chat("<S03>", max_tokens=3)
        assert refused.status == 503
        assert refused.headers["connection"].lower() == "close"
        assert s.get("/livez").status == 200
        assert not all(c.done for c in clients), "the streams were over before anything was tested"
        assert s.process.wait(60) == 0
        for c in clients:
            c.wait(5)
            assert c.error is None and c.done and c.finish == "length" and c.text == story(TOKENS)


def test_the_drain_timeout_ends_streams_with_an_error_event():
    with server("--drain-timeout", 0.5) as s:
        clients = streams(s, tokens=3000)
        s.process.send_signal(signal.SIGTERM)
        assert s.process.wait(20) == 0
        for c in clients:
            c.wait(5)
            assert isinstance(c.error, dict) and c.error["message"], c.error  # an event of the stream, not a cut connection
            assert story(3000).startswith(c.text) and c.text


def test_a_second_sigterm_ends_at_once():
    with server("--drain-timeout", 300) as s:
        clients = streams(s, tokens=3000)
        s.process.send_signal(signal.SIGTERM)
        wait_for(lambda: s.health() == 503, 5, "draining")
        assert s.process.poll() is None
        s.process.send_signal(signal.SIGTERM)
        assert s.process.wait(20) == 0
        for c in clients:
            c.wait(5)
            assert c.error is not None


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_a_stopped_worker_does_not_hold_up_the_end(sig):
    with server(*quick_supervisor(silence=60, hang=60)) as s:
        worker = pid_of(s, "rank")
        s.tree()
        os.kill(worker, signal.SIGSTOP)
        s.process.send_signal(sig)
        assert s.process.wait(20) == 0
        wait_for(lambda: not alive(worker), 5, "the stopped worker is gone")


def test_a_worker_that_hangs_in_a_step_is_killed_after_the_grace():
    with server("--drain-timeout", 0.5, *quick_supervisor(silence=60, hang=60), env={"HOLDFAST_FAULT": "worker.step:hang:20"}) as s:
        client = Client(s, "<S03>", max_tokens=100)
        wait_for(lambda: client.text, 20, "tokens")
        worker = pid_of(s, "rank")
        s.process.send_signal(signal.SIGTERM)
        assert s.process.wait(20) == 0
        assert not alive(worker)
        client.wait(5)
        assert client.error is not None


def test_stop_while_loading():
    with server(wait=False, env={"HOLDFAST_FAULT": "worker.load:sleep=4000:1+"}) as s:
        worker = pid_of(s, "rank")
        s.process.send_signal(signal.SIGTERM)
        assert s.process.wait(20) == 0
        assert not alive(worker)


def test_stop_in_a_long_prefill():
    with server("--max-prefill-length", 32, "--drain-timeout", 0.5, env={"HOLDFAST_FAULT": "worker.step:sleep=50:1+"}) as s:
        client = Client(s, "hello " * 200, max_tokens=5)
        wait_for(lambda: int(s.status()["health"]["running"]) == 1, 20, "the prompt is computed")
        s.process.send_signal(signal.SIGTERM)
        assert s.process.wait(20) == 0
        client.wait(5)
        assert client.error is not None and not client.text


def test_drain_by_ctl_refuses_and_finishes_and_waits_for_resume():
    with server() as s:
        clients = streams(s, 2, tokens=200)
        assert s.get("/health").json["state"] == "ready"
        s.ctl("drain")
        body = wait_for(lambda: (lambda r: r.status == 503 and r.json)(s.get("/health")), 5, "health says draining")
        assert body["state"] == "draining" and body["error"]["code"] == "server_draining", body
        asked = s.ctl("status")
        assert asked.returncode == 2 and "draining, not ready: drained by an operator" in asked.stdout, asked
        refused = s.chat("<S03>", max_tokens=3)
        assert refused.status == 503 and refused.json["error"]["code"] == "server_draining" and "retry-after" in refused.headers
        # A loss meanwhile is none of the operator's wish: what runs goes on.
        os.kill(pid_of(s, "rank"), signal.SIGKILL)
        for c in clients:
            c.wait(60)
            assert c.error is None and c.text == story(200)
        assert s.get("/health").json["state"] == "draining" and s.process.poll() is None
        assert s.status()["health"]["restarts"] == 1
        s.ctl("resume")
        healthy(s)
        assert s.chat("<S03>", max_tokens=3).status == 200


def test_drain_and_stop_by_ctl_ends_serve_with_0():
    with server() as s:
        clients = streams(s, 2)
        s.ctl("drain", "--stop")
        assert s.process.wait(60) == 0
        for c in clients:
            c.wait(60)
            assert c.error is None and c.text == story(TOKENS)


def test_a_sentinel_of_the_same_session_survives():
    """Only what was spawned is killed, whoever else lives in the session or the process group."""
    sentinel = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        with server() as s:
            worker = pid_of(s, "rank")
            os.kill(worker, signal.SIGKILL)
            wait_for(lambda: not alive(worker), 5, "the worker is gone")
            healthy(s)
            s.terminate(20)
        assert sentinel.poll() is None
    finally:
        sentinel.kill()
        sentinel.wait()


def test_kill_and_start_again_on_the_same_port():
    """The port is free at once, with open client connections in every state, because nobody else holds the listening socket."""
    with server() as first:
        port = first.port
    for _ in range(5):
        s = Server(model_file("script"), port=port)
        try:
            assert s.port == port
            kept = [http.client.HTTPConnection(s.host, s.port, timeout=10) for _ in range(5)]
            for c in kept:
                c.request("GET", "/livez")
                c.getresponse().read()
            s.tree()
            for pid in s.pids("holdfast-frontend") + s.pids("holdfast-supervisor") + [s.process.pid]:
                os.kill(pid, signal.SIGKILL)
            s.process.wait(10)
            wait_for(lambda: not any(alive(p) for p in s.children_seen), 10, "everything is gone")
        finally:
            s.close()


def pid1_works():
    r = subprocess.run(["unshare", "--pid", "--fork", "--mount-proc", "true"], capture_output=True)
    return r.returncode == 0


def test_as_pid_1_of_a_container(tmp_path):
    if not pid1_works():
        pytest.skip("unshare --pid is not permitted here: PID 1 is not tested")
    import harness
    log = open(tmp_path / "log", "wb")
    p = subprocess.Popen(["unshare", "--pid", "--fork", "--mount-proc", "--kill-child", str(harness.BIN / "holdfast-supervisor"), "--runtime-dir",
                          str(tmp_path / "run"), "--model", str(model_file("script"))], stdout=log, stderr=log)
    try:
        ctl = [str(harness.BIN / "holdfast"), "ctl", "--runtime-dir", str(tmp_path / "run"), "status"]
        wait_for(lambda: subprocess.run(ctl, capture_output=True).returncode == 0, 30, "the supervisor serves")
        child = wait_for(lambda: [pid for pid, (ppid, _) in harness.processes().items() if ppid == p.pid], 5, "PID 1")[0]
        os.kill(child, signal.SIGTERM)
        assert p.wait(20) == 0
    finally:
        p.kill()
        p.wait()
        log.close()
