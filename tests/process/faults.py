"""Injections for the fault tests: files that make a fault point act now, phases of a server's life to inject them in, and looks at processes."""
import json
import os
import pathlib
import signal
import socket
import threading
import time

import harness
from harness import Server, model_file, wait_for

# What the script model says after "<S03>": a token lost or doubled shows.
def story(n):
    return "".join("w%03d " % (i % 200) for i in range(n))


def quick_supervisor(hang=2, silence=2, load=5, drain=None, **more):
    """Bounds of the supervisor, shortened so that a test can wait for them."""
    flags = {"--hang-timeout": hang, "--heartbeat-timeout": silence, "--load-timeout": load, "--loss-grace": 0.5, "--stop-grace": 1, **more}
    if drain is not None:
        flags["--drain-timeout"] = drain
    return [x for k, v in flags.items() for x in ("--supervisor-arg", f"{k}={v}")]


class Triggers:
    """HOLDFAST_FAULT rules that wait for a file: fire(name) makes it, the process that meets the point removes it and acts."""

    # Points a process passes all the time, whatever it is doing.
    POINTS = {"rank": ["worker.loop", "worker.step", "worker.load.progress"], "supervisor": ["supervisor.loop"], "frontend": ["frontend.statement"]}

    def __init__(self, folder, actions=("exit=1", "abort"), also=""):
        self.folder = pathlib.Path(folder)
        rules = []
        for who, points in self.POINTS.items():
            for action in actions:
                for point in points:
                    rules.append(f"{point}:{action}:@{self.path(who, action)}")
        self.env = {"HOLDFAST_FAULT": ",".join(rules + ([also] if also else []))}

    def path(self, who, action):
        return self.folder / f"{who}.{action.replace('=', '')}"

    def fire(self, who, action):
        self.path(who, action).touch()

    def wait_hit(self, who, action, timeout=10):
        wait_for(lambda: not self.path(who, action).exists(), timeout, f"{who} hits its fault point ({action})")


class Client(threading.Thread):
    """One streamed answer in the background. Afterwards: text, finish, and error - what the client saw go wrong, if anything."""

    def __init__(self, server, content, **fields):
        super().__init__(daemon=True)
        self.server, self.content, self.fields = server, content, fields
        self.text, self.finish, self.error, self.status, self.done, self.events = "", None, None, None, False, 0
        self.start()

    def run(self):
        try:
            connection = self.server.connect(timeout=90)
            body = {"messages": [{"role": "user", "content": self.content}], "temperature": 0, "stream": True, **self.fields}
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            self.status = response.status
            if response.status != 200:
                self.error = response.read().decode()
                return
            for raw in response:
                line = raw.decode().rstrip("\r\n")
                if line == "data: [DONE]":
                    self.done = True
                elif line.startswith("data: "):
                    event = json.loads(line[6:])
                    if "error" in event:
                        self.error = event["error"]
                        continue
                    self.events += 1
                    for c in event.get("choices", []):
                        self.text += c["delta"].get("content") or ""
                        self.finish = c.get("finish_reason") or self.finish
            if not self.done and self.error is None:
                self.error = "the stream broke off"
        except OSError as e:
            self.error = repr(e)
        except Exception as e:  # http.client raises its own kinds for a cut connection
            self.error = repr(e)

    def wait(self, timeout=60):
        self.join(timeout)
        assert not self.is_alive(), "the client hangs"
        return self


def healthy(server, timeout=30):
    def ok():
        try:
            return server.health() == 200
        except OSError:
            return False
    wait_for(ok, timeout, "health 200")


def state(server):
    """The state /health tells, or None where nobody answers."""
    try:
        return server.get("/health", timeout=1).json
    except (OSError, ValueError):
        return None


def pid_of(server, who):
    """"rank" is rank 0, whatever else there is; "rank1" is the other one of two."""
    if who.startswith("rank"):
        flag = f" --rank {who[4:] or 0} "
        return wait_for(lambda: [p for p, cmd in server.tree().items() if cmd.split(" ")[0].endswith("/holdfast-worker") and flag in cmd], 20, who)[0]
    program = {"supervisor": "holdfast-supervisor", "frontend": "holdfast-frontend"}[who]
    return wait_for(lambda: server.pids(program), 20, f"a {program}")[0]


def alive(pid):
    return pid in harness.processes()


def zombies_below(pid):
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = pathlib.Path("/proc", entry, "stat").read_text()
            except OSError:
                continue
            fields = stat[stat.rindex(")") + 2:].split()
            if fields[0] == "Z" and int(fields[1]) == pid:
                found.append(int(entry))
    return found


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def threads(pid):
    return len(os.listdir(f"/proc/{pid}/task"))


def resident_kb(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0
