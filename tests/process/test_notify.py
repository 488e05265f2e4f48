"""The notify protocol of systemd, without systemd: READY after the first generation serves, more time while a load moves, pings only from a loop that
turns, STOPPING in a drain."""
import os
import re
import signal
import socket
import subprocess
import tempfile

import pytest

import harness
from harness import model_file, wait_for


class Manager:
    """What systemd is to the supervisor: a datagram socket and a watchdog interval."""

    def __init__(self, *flags, watchdog_us=400000, fault=None, abstract=False):
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
        self.process = subprocess.Popen([str(harness.BIN / "holdfast-supervisor"), "--runtime-dir", self.run_dir, "--model", str(model_file("script")),
                                         "--exit-on-permanent", *map(str, flags)], env=environment, stderr=self.log)

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
