"""The notify protocol of systemd, without systemd: READY after the first generation serves, more time while a load moves, pings only from a loop that
turns, STOPPING in a drain; and the same of a frontend, which is ready when it listens."""
import os
import re
import signal
import socket
import subprocess
import tempfile
import time

import pytest

import harness
from harness import model_file, wait_for


class Manager:
    """What systemd is to the supervisor: a datagram socket and a watchdog interval."""

    def __init__(self, *flags, program="holdfast-supervisor", watchdog_us=400000, fault=None, abstract=False):
        self.folder = tempfile.mkdtemp(prefix="holdfast-notify-")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        path = "\0holdfast-notify-%d" % os.getpid() if abstract else os.path.join(self.folder, "notify")
        self.socket.bind(path)
        self.socket.setblocking(False)
        self.heard = []
        environment = {**os.environ, "NOTIFY_SOCKET": path.replace("\0", "@"), "WATCHDOG_USEC": str(watchdog_us)}
        if fault:
            environment["HOLDFAST_FAULT"] = fault
        self.log = open(os.path.join(self.folder, "log"), "wb")
        self.run_dir = os.path.join(self.folder, "run")
        own = {"holdfast-supervisor": ["--runtime-dir", self.run_dir, "--model", model_file("script"), "--exit-on-permanent"], "holdfast-frontend": []}[program]
        self.process = subprocess.Popen([str(harness.BIN / program), *map(str, own), *map(str, flags)], env=environment, stderr=self.log,
                                        stdout=subprocess.DEVNULL)

    def listen(self):
        while True:
            try:
                self.heard.append(self.socket.recv(4096).decode())
            except BlockingIOError:
                return self.heard

    def count(self, word):
        return sum(m.startswith(word) or f"\n{word}" in m for m in self.listen())

    def first(self, word):
        return next((i for i, m in enumerate(self.listen()) if m.startswith(word)), None)

    def wait_heard(self, word, timeout=20):
        wait_for(lambda: self.first(word) is not None, timeout, f"{word} is heard")

    def status(self):
        """The last STATUS."""
        return next((x for m in reversed(self.listen()) for x in m.split("\n") if x.startswith("STATUS=")), "")

    def extensions(self):
        """The seconds asked for, so far."""
        return [int(x) / 1e6 for x in re.findall(r"EXTEND_TIMEOUT_USEC=(\d+)", "\n".join(self.listen()))]

    def ready(self):
        r = subprocess.run([str(harness.BIN / "holdfast"), "ctl", "--runtime-dir", self.run_dir, "status"], capture_output=True, timeout=20)
        return r.returncode == 0

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind is not None:
            print(open(os.path.join(self.folder, "log")).read()[-3000:])
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
        self.process.wait()
        self.log.close()
        self.socket.close()
        subprocess.run(["rm", "-rf", self.folder])


def test_ready_comes_when_it_serves_and_not_before():
    with Manager(fault="worker.load:sleep=1000:1+") as m:
        wait_for(lambda: os.path.exists(os.path.join(m.run_dir, "supervisor.sock")), 20, "it listens")
        assert m.first("READY=1") is None and not m.ready()
        m.wait_heard("READY=1")
        assert m.ready()
        assert m.first("EXTEND_TIMEOUT_USEC=") < m.first("READY=1")


def test_each_progress_of_a_load_asks_for_more_time():
    with Manager("--load-timeout", 30, "--threads", 1, fault="model.pack:sleep=250:1+") as m:  # at most one request a second is sent  # an extension a second at most
        m.wait_heard("READY=1")
        asked = [int(x) for x in re.findall(r"EXTEND_TIMEOUT_USEC=(\d+)", "\n".join(m.heard[:m.first("READY=1")]))]
        assert len(asked) >= 2, "attached, and progress"
        assert all(us >= 30_000_000 for us in asked), "less than the load may stand still"
        assert any(re.search(r"STATUS=loading the model: repacking \d+ %", x) for x in m.heard), "the status says how far it is"


def test_a_load_after_the_first_one_does_not_put_the_watchdog_off():
    with Manager() as m:
        m.wait_heard("READY=1")
        pings = m.count("WATCHDOG=1")
        wait_for(lambda: m.count("WATCHDOG=1") >= pings + 6, 20, "an extension would not be held back for having been sent a second ago")
        before = len(m.extensions())
        worker = wait_for(lambda: [pid for pid, (ppid, cmd) in harness.processes().items() if ppid == m.process.pid], 10, "a worker")[0]
        os.kill(worker, signal.SIGKILL)
        wait_for(lambda: m.count("READY=1") >= 2, 20, "serving again")
        assert len(m.extensions()) == before


def test_a_pause_before_the_first_generation_serves_is_waited_for():
    """Else the manager's time-out for the start would end it, and the next supervisor would know nothing of the losses."""
    with Manager("--restart-intensity", 1, "--quarantine", 400, fault="worker.start:exit=70:1+") as m:
        wait_for(lambda: "too often" in m.status(), 20, "quarantined")
        assert max(m.extensions()) >= 300  # the pause is drawn from a range around it
        assert m.first("READY=1") is None


def test_a_load_that_does_not_move_asks_for_nothing():
    with Manager("--load-timeout", 100, fault="worker.load:hang") as m:
        m.wait_heard("EXTEND_TIMEOUT_USEC=")
        before = m.count("EXTEND_TIMEOUT_USEC=")
        pings = m.count("WATCHDOG=1")
        wait_for(lambda: m.count("WATCHDOG=1") >= pings + 5, 20, "time goes by, the loop turns")
        assert m.count("EXTEND_TIMEOUT_USEC=") == before
        assert m.first("READY=1") is None


def test_pings_stop_when_the_loop_hangs():
    with tempfile.TemporaryDirectory() as folder:
        trigger = os.path.join(folder, "hang")
        with Manager(watchdog_us=200000, fault=f"supervisor.loop:hang:@{trigger}") as m:
            m.wait_heard("READY=1")
            pings = m.count("WATCHDOG=1")
            wait_for(lambda: m.count("WATCHDOG=1") > pings + 2, 20, "pings")
            open(trigger, "w").close()
            wait_for(lambda: not os.path.exists(trigger), 10, "the loop hangs")
            m.listen()
            silent_from = m.count("WATCHDOG=1")
            # Its gRPC threads live on, and a caller gets no answer either: nothing speaks for the loop.
            r = subprocess.run([str(harness.BIN / "holdfast"), "ctl", "--runtime-dir", m.run_dir, "--timeout", "2", "status"], capture_output=True, timeout=30)
            assert r.returncode != 0
            assert m.count("WATCHDOG=1") == silent_from, "a ping from a loop that does not turn"


@pytest.mark.parametrize("abstract", [False, True])
def test_stopping_is_said_in_a_drain_and_the_end_is_0(abstract):
    with Manager(abstract=abstract) as m:
        m.wait_heard("READY=1")
        m.process.send_signal(signal.SIGTERM)
        assert m.process.wait(20) == 0
        assert m.first("STOPPING=1") is not None and m.first("STOPPING=1") > m.first("READY=1")


@pytest.mark.parametrize("program", ["holdfast-supervisor", "holdfast-frontend"])
def test_a_drain_longer_than_the_unit_allows_asks_for_the_time(program):
    flags = ["--port", 0, "--engine", "unix:/nonexistent/sock"] if program == "holdfast-frontend" else []
    with Manager("--drain-timeout", 200, *flags, program=program) as m:
        m.wait_heard("READY=1")
        m.process.send_signal(signal.SIGTERM)
        assert m.process.wait(20) == 0
        stopping, = [x for x in m.listen() if x.startswith("STOPPING=1")]
        assert int(re.search(r"EXTEND_TIMEOUT_USEC=(\d+)", stopping).group(1)) > 200_000_000


def test_a_frontend_is_ready_when_it_listens_and_says_what_it_lacks():
    with Manager("--port", 0, "--engine", "unix:/nonexistent/sock", program="holdfast-frontend") as m:
        m.wait_heard("READY=1")
        assert re.search(r"STATUS=http://127\.0\.0\.1:\d+, engine not ready: .", m.listen()[m.first("READY=1")])
        wait_for(lambda: m.count("WATCHDOG=1") >= 3, 20, "pings")
        m.process.send_signal(signal.SIGSTOP)
        wait_for(lambda: open(f"/proc/{m.process.pid}/stat").read().rsplit(")", 1)[1].split()[0] == "T", 10, "it is stopped")
        m.listen()
        pings = m.count("WATCHDOG=1")
        time.sleep(0.5)  # more than an interval
        assert m.count("WATCHDOG=1") == pings


def test_a_frontend_tells_when_the_engine_comes_and_goes_and_nothing_in_between():
    with Manager() as engine:
        with Manager("--port", 0, "--engine", f"unix:{engine.run_dir}/supervisor.sock", program="holdfast-frontend") as m:
            wait_for(lambda: "engine ready" in m.status(), 20, "the engine came")
            told = m.count("STATUS=")
            pings = m.count("WATCHDOG=1")
            wait_for(lambda: m.count("WATCHDOG=1") >= pings + 5, 20, "a second, with some statements of the engine in it")
            assert m.count("STATUS=") == told
            engine.process.kill()
            wait_for(lambda: "not ready" in m.status(), 20, "the engine went")


def test_a_frontend_without_its_port_is_not_ready():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        with Manager("--port", taken.getsockname()[1], "--engine", "unix:/nonexistent/sock", program="holdfast-frontend") as m:
            assert m.process.wait(20) == 69
            assert m.first("READY=1") is None


def test_below_serve_only_the_engine_speaks(tmp_path):
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    manager.setblocking(False)
    heard = []

    def listen():
        try:
            while True:
                heard.append(manager.recv(4096).decode())
        except BlockingIOError:
            return heard

    with harness.Server(model_file("script"), wait=False, env={"NOTIFY_SOCKET": str(tmp_path / "notify"), "HOLDFAST_FAULT": "worker.load:sleep=1000:1"}) as s:
        wait_for(lambda: listen() and s.ready.is_set(), 60, "it serves")
        listen()
    ready = [i for i, x in enumerate(heard) if x.startswith("READY=1")]
    assert len(ready) == 1 and heard[ready[0]] == "READY=1\nSTATUS=serving", heard
    assert not any("engine" in x for x in heard), "a frontend spoke"
    manager.close()


def test_a_loss_is_told_as_status_and_does_not_take_ready_back():
    with Manager() as m:
        m.wait_heard("READY=1")
        worker = wait_for(lambda: [pid for pid, (ppid, cmd) in harness.processes().items() if ppid == m.process.pid], 10, "a worker")[0]
        os.kill(worker, signal.SIGKILL)
        wait_for(lambda: any("STATUS=" in x and "restarting" in x for x in m.listen()), 10, "the status says what happened")
        wait_for(lambda: m.count("READY=1") >= 2, 20, "serving again")
        assert m.first("STOPPING=1") is None


def test_a_permanent_failure_exits_with_a_code_that_systemd_does_not_retry():
    for code in (64, 65):
        with Manager(fault=f"worker.start:exit={code}:1+") as m:
            assert m.process.wait(20) == code
            assert m.first("READY=1") is None


def test_without_a_manager_nothing_is_needed(tmp_path):
    environment = {k: v for k, v in os.environ.items() if k not in ("NOTIFY_SOCKET", "WATCHDOG_USEC")}
    for bad in ("", "relative", str(tmp_path / "nobody")):
        p = subprocess.Popen([str(harness.BIN / "holdfast-supervisor"), "--runtime-dir", str(tmp_path / "run"), "--model", str(model_file("script"))],
                             env={**environment, "NOTIFY_SOCKET": bad, "WATCHDOG_USEC": "100000"}, stderr=subprocess.DEVNULL)
        ctl = [str(harness.BIN / "holdfast"), "ctl", "--runtime-dir", str(tmp_path / "run"), "status"]
        wait_for(lambda: subprocess.run(ctl, capture_output=True).returncode == 0, 30, "it serves")
        p.send_signal(signal.SIGTERM)
        assert p.wait(20) == 0
