"""The kill matrix: {frontend, supervisor, rank 0, rank 1} x {KILL, STOP, TERM, exit, abort} x {loading, idle, queued, prefill, decode, draining}, with the
real binaries. One test file a process (test_kill_matrix_*.py); a server lives through the phases of one way to die.

What must hold: a loss of the rank or of the supervisor costs the streams a pause and nothing else; of the frontend, its own connections at most;
health comes back by itself; the next request is answered right; no page is lost; a stop ends with exit status 0 and leaves nothing behind."""
import os
import shutil
import signal
import tempfile

from faults import Client, Triggers, alive, healthy, pid_of, quick_supervisor, state, story
from harness import Server, model_file, wait_for

ACTIONS = ["KILL", "STOP", "TERM", "exit", "abort"]
PHASES = ["idle", "decode", "prefill", "queued", "loading"]
LONG_PROMPT = "hello " * 80
SLOW = "worker.step:sleep=8:1+"
END = 60  # s; a bound against hanging, not a measurement


class Matrix:
    def __init__(self, who, action, drain=10):
        # Short bounds where a process is stopped and must be found out. Elsewhere they would add losses of their own on a machine so busy that a
        # step takes seconds, and two of those are a request's end.
        bounds = {"hang": 2, "silence": 2, "load": 3} if action == "STOP" else {"hang": 30, "silence": 30, "load": 30}
        self.who, self.action = who, action
        self.is_rank = who.startswith("rank")
        two = ["--tp", "2"] if who == "rank1" else []
        self.folder = tempfile.mkdtemp(prefix="holdfast-matrix-")
        self.slow_load = os.path.join(self.folder, "slow-load")  # while it is there, the next load takes its time
        self.triggers = Triggers(self.folder, also=f"{SLOW},worker.load:sleep=2000:@{self.slow_load}")
        self.server = Server(model_file("script"), "--max-running-requests", "1", "--max-prefill-length", "32", "--max-queue", "8", *two,
                             "--drain-timeout", drain, *quick_supervisor(**bounds, **{"--restart-intensity": 1000, "--restart-max-delay": 0.3}),
                             env={**self.triggers.env, **({"HOLDFAST_FAULT_RANK": "1"} if two else {})})
        self.seed = 0

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        try:
            self.server.__exit__(kind, value, trace)
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)

    def client(self, content="<S03>", tokens=60):
        self.seed += 1
        return Client(self.server, content, max_tokens=tokens, seed=self.seed)

    def load(self):
        h = self.server.status()["health"]
        return int(h["running"]), int(h["waiting"])

    def enter(self, phase):
        """Brings the server into the phase; returns [(client, the text it must get or None)]."""
        if phase == "idle":
            return []
        if phase == "prefill":
            c = self.client(LONG_PROMPT, 20)
            wait_for(lambda: self.load() == (1, 0), 20, "the prompt is being computed")
            return [(c, None)]
        first = self.client(tokens=120 if phase == "queued" else 60)
        wait_for(lambda: first.text.count("w") >= 3, 30, "tokens")
        clients = [(first, story(120 if phase == "queued" else 60))]
        if phase == "queued":
            clients.append((self.client(), story(60)))
            wait_for(lambda: self.load()[1] == 1, 20, "a request waits")
        if phase == "loading":
            open(self.slow_load, "w").close()
            os.kill(pid_of(self.server, self.who if self.is_rank else "rank"), signal.SIGKILL)
            wait_for(lambda: not os.path.exists(self.slow_load) and (state(self.server) or {}).get("state") == "loading", 20, "loading")
        return clients

    def inject(self, pid):
        if self.action in ("exit", "abort"):
            action = {"exit": "exit=1", "abort": "abort"}[self.action]
            point = "rank" if self.is_rank else self.who
            self.triggers.fire(point, action)
            self.triggers.wait_hit(point, action, 20)
        else:
            os.kill(pid, {"KILL": signal.SIGKILL, "STOP": signal.SIGSTOP, "TERM": signal.SIGTERM}[self.action])
        if self.action == "STOP" and self.who == "supervisor":
            # Nobody renews the lease: the frontend must say so by itself.
            wait_for(lambda: self.server.health() == 503, 5, "503 when the lease ran out")
            os.kill(pid, signal.SIGCONT)
        elif self.action == "STOP" and self.who == "frontend":
            os.kill(pid, signal.SIGCONT)
        # A stopped rank is left to the supervisor.

    def cell(self, phase):
        s = self.server
        healthy(s)
        clients = self.enter(phase)
        worker = pid_of(s, "rank") if phase != "loading" else None
        pid = pid_of(s, self.who)
        self.inject(pid)
        if not (self.action == "STOP" and not self.is_rank):
            wait_for(lambda: not alive(pid), 20, f"the {self.who} ends")
        for client, text in clients:
            client.wait(END)
            broken = self.who == "frontend" and self.action in ("KILL", "exit", "abort")
            if broken:
                assert client.error is not None or client.done, "neither an end nor an error"
                continue
            assert client.error is None, (phase, client.error)
            assert client.done and client.finish == "length", phase
            if text is not None:
                assert client.text == text, phase
        healthy(s)
        if self.action == "STOP" and not self.is_rank and worker:
            assert alive(worker), "a worker was killed for our own sleep"
        # In the instant before a loss is noticed a request may still come too late: 503 with Retry-After, as any client knows it.
        def answered():
            try:
                r = s.chat("<S03>", max_tokens=5, seed=1000 + self.seed)
            except OSError:
                assert self.who == "frontend"
                return None
            assert r.status == 200 or (r.status == 503 and "retry-after" in r.headers), (r.status, r.body)
            return r if r.status == 200 else None
        assert wait_for(answered, 20, "the next request is answered").json["choices"][0]["message"]["content"] == story(5)
        healthy(s)
        s.idle(20)


def run(who, action):
    with Matrix(who, action) as m:
        for phase in PHASES:
            m.cell(phase)


def run_draining(who, action):
    with Matrix(who, action, drain=1.5) as m:
        s = m.server
        client = m.client(tokens=1000)
        wait_for(lambda: client.text.count("w") >= 3, 30, "tokens")
        pid = pid_of(s, who)
        s.tree()
        s.process.send_signal(signal.SIGTERM)
        def drained():  # or over already, on a machine that is slow to ask
            try:
                return s.health() == 503
            except OSError:
                return True
        wait_for(drained, 5, "draining")
        if action in ("exit", "abort"):
            m.triggers.fire("rank" if m.is_rank else who, {"exit": "exit=1", "abort": "abort"}[action])  # it may be gone before it meets its point
        elif alive(pid):
            os.kill(pid, {"KILL": signal.SIGKILL, "STOP": signal.SIGSTOP, "TERM": signal.SIGTERM}[action])
        assert s.process.wait(END) == 0
        client.wait(20)
        assert client.error is not None or client.done
        assert story(1000).startswith(client.text)
