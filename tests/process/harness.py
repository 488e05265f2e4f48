"""Starts and stops the real binaries for the process tests, and looks at them from outside: HTTP, /proc, exit codes."""
import contextlib
import http.client
import importlib.util
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time

BIN = pathlib.Path(os.environ.get("HOLDFAST_BIN", "build/release/bin"))
SOURCE = pathlib.Path(os.environ.get("HOLDFAST_SOURCE", "."))
BUILD = pathlib.Path(os.environ.get("HOLDFAST_BUILD", "build/release"))
START_TIMEOUT = 60


def model_file(kind, *args):
    """A model of our own making, made once a build folder."""
    folder = BUILD / "test-models"
    folder.mkdir(parents=True, exist_ok=True)
    name = "-".join([kind] + [re.sub(r"[^A-Za-z0-9.]", "", str(a)) for a in args])
    path = folder / (name + ".gguf")
    if not path.exists():
        temporary = folder / f"{name}.{os.getpid()}.tmp"
        subprocess.run([str(BIN / "holdfast-make-model"), "--kind", kind, *map(str, args), str(temporary)], check=True, capture_output=True)
        os.replace(temporary, path)
    return path


def script_model(folder, scripts, *args):
    """A model that says these scripts: [{"pieces": [...]}, ...]; script k where the last message ends with <Sk>."""
    (folder / "scripts.json").write_text(json.dumps(scripts))
    out = folder / "model.gguf"
    subprocess.run([str(BIN / "holdfast-make-model"), "--kind", "script", "--scripts", str(folder / "scripts.json"), *map(str, args), str(out)], check=True, capture_output=True)
    return out


def demo_tool_result(name, arguments):
    """What deploy/demo.py answers to a call, as JSON text."""
    spec = importlib.util.spec_from_file_location("holdfast_demo", SOURCE / "deploy" / "demo.py")
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    caller = demo.Demo.__new__(demo.Demo)
    caller.tools = json.loads(pathlib.Path(demo.TOOLS_FILE).read_text())
    return json.dumps(caller.result_of({"name": name}, arguments), separators=(",", ":"))


def wait_for(predicate, timeout, what):
    end = time.monotonic() + timeout
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout} s: {what}")
        time.sleep(0.02)


def processes():
    """pid -> (ppid, command line) of all live processes."""
    found = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            stat = pathlib.Path("/proc", entry, "stat").read_text()
            cmd = pathlib.Path("/proc", entry, "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
        fields = stat[stat.rindex(")") + 2:].split()
        if fields[0] != "Z":
            found[int(entry)] = (int(fields[1]), cmd)
    return found


class Reply:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)


class Server:
    """`holdfast serve` on a free port. Use as a context manager; leaving it checks that nothing stayed behind."""

    def __init__(self, model, *flags, env=None, wait=True, port=0, runtime_dir=None):
        self.runtime = tempfile.mkdtemp(prefix="holdfast-test-")
        self.runtime_dir = str(runtime_dir or os.path.join(self.runtime, "run"))
        self.log_path = os.path.join(self.runtime, "stderr.log")
        self.log = open(self.log_path, "wb")
        self.command = [str(BIN / "holdfast"), "serve", "--model", str(model), "--port", str(port), "--runtime-dir", self.runtime_dir,
                        "--log-level", "info", *map(str, flags)]
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, stderr=self.log, env={**os.environ, **(env or {})})
        self.url = None
        self.children_seen = set()
        self.ready = threading.Event()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        if wait:
            try:
                self.wait_ready()
            except BaseException:
                self.close(check=False)
                raise

    def _read(self):
        for raw in self.process.stdout:
            line = raw.decode().strip()
            if line.startswith("ready http"):
                self.url = line.split()[1]
                self.host, port = re.match(r"http://\[?([^\]]+?)\]?:(\d+)$", self.url).groups()
                self.port = int(port)
                self.ready.set()

    def wait_ready(self, timeout=START_TIMEOUT):
        end = time.monotonic() + timeout
        while not self.ready.wait(0.05):
            if self.process.poll() is not None:
                raise AssertionError(f"serve exited with {self.process.returncode}:\n{self.stderr()[-3000:]}")
            if time.monotonic() > end:
                raise AssertionError(f"not ready within {timeout} s:\n{self.stderr()[-3000:]}")
        return self

    def stderr(self):
        self.log.flush()
        return pathlib.Path(self.log_path).read_text(encoding="utf-8", errors="replace")

    # ---- what runs -----------------------------------------------------------------------------------------------
    def tree(self):
        """Pids below serve, by program."""
        table = processes()
        below, todo = {}, [self.process.pid]
        while todo:
            parent = todo.pop()
            for pid, (ppid, cmd) in table.items():
                if ppid == parent and pid not in below:
                    below[pid] = cmd
                    todo.append(pid)
        self.children_seen |= set(below)
        return below

    def pids(self, program):
        return [pid for pid, cmd in self.tree().items() if cmd.split(" ")[0].endswith("/" + program)]

    def worker(self):
        return wait_for(lambda: self.pids("holdfast-worker"), 20, "a worker process")[0]

    def ctl(self, *args, check=True):
        r = subprocess.run([str(BIN / "holdfast"), "ctl", "--runtime-dir", self.runtime_dir, *map(str, args)], capture_output=True,
                           text=True, timeout=60)
        if check and r.returncode not in (0, 2):
            raise AssertionError(f"ctl {args}: {r.returncode} {r.stderr}")
        return r

    def status(self):
        return json.loads(self.ctl("status", "--json").stdout)

    # ---- HTTP -------------------------------------------------------------------------------------------------------
    def connect(self, timeout=60):
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout)

    def request(self, method, path, body=None, headers=None, timeout=60):
        connection = self.connect(timeout)
        try:
            data = body if isinstance(body, (bytes, type(None))) else json.dumps(body).encode()
            base = {"Content-Type": "application/json"} if data is not None else {}
            connection.request(method, path, data, {**base, **(headers or {})})
            response = connection.getresponse()
            return Reply(response.status, dict((k.lower(), v) for k, v in response.getheaders()), response.read())
        finally:
            connection.close()

    def get(self, path, **kw):
        return self.request("GET", path, **kw)

    def post(self, path, body, **kw):
        return self.request("POST", path, body, **kw)

    def chat(self, content, **fields):
        body = {"messages": [{"role": "user", "content": content}], "temperature": 0, **fields}
        return self.post("/v1/chat/completions", body)

    def stream(self, path, body, timeout=120, on_event=None):
        """The events of an SSE answer, parsed; checks the framing on the way."""
        connection = self.connect(timeout)
        try:
            connection.request("POST", path, json.dumps({**body, "stream": True}), {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                raise AssertionError(f"HTTP {response.status}: {response.read()[:500]}")
            assert response.getheader("Content-Type", "").startswith("text/event-stream")
            events, done = [], False
            for raw in response:
                line = raw.decode("utf-8").rstrip("\r\n")
                if not line or line.startswith(":"):
                    continue
                assert line.startswith("data: "), line
                assert not done, "an event after [DONE]"
                if line == "data: [DONE]":
                    done = True
                    continue
                events.append(json.loads(line[6:]))
                if on_event:
                    on_event(events)
            return Stream(events, done)
        finally:
            connection.close()

    def stream_chat(self, content, on_event=None, **fields):
        return self.stream("/v1/chat/completions", {"messages": [{"role": "user", "content": content}], "temperature": 0, **fields}, on_event=on_event)

    def health(self, timeout=1):
        return self.get("/health", timeout=timeout).status

    def metrics(self):
        """Samples of /metrics: {name: {labels frozenset: value}}."""
        samples = {}
        for line in self.get("/metrics").body.decode().splitlines():
            if line.startswith("#") or not line.strip():
                continue
            m = re.match(r'([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)', line)
            labels = frozenset(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', m.group(2) or ""))
            samples.setdefault(m.group(1), {})[labels] = float(m.group(3))
        return samples

    def idle(self, timeout=5, supervisor_may_end=False):
        """Waits until nothing runs or waits and the pages add up; returns the status."""
        def settled():
            try:
                s = self.status()
            except AssertionError:
                if supervisor_may_end:
                    return None
                raise
            if int(s["health"]["running"]) or int(s["health"]["waiting"]):
                return None
            for p in s["pools"]:
                if p["held"] or p["free"] + p["evictable"] + p["retiring"] + p["quarantined"] != p["capacity"]:
                    return None
            return s
        return wait_for(settled, timeout, "idle with all pages accounted for")

    # ---- the end ----------------------------------------------------------------------------------------------------
    def terminate(self, timeout=10):
        self.tree()
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)

    def close(self, check=True):
        with contextlib.suppress(Exception):
            self.tree()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(5)
                if check:
                    raise AssertionError("serve did not stop within 10 s of SIGTERM")
        self.reader.join(2)
        self.process.stdout.close()
        left = [pid for pid in self.children_seen if pid in processes()]
        if left:
            time.sleep(1.5)
            left = [pid for pid in left if pid in processes()]
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        self.log.close()
        text = self.text = pathlib.Path(self.log_path).read_text(encoding="utf-8", errors="replace")
        shutil.rmtree(self.runtime, ignore_errors=True)
        if check:
            assert not left, f"processes left behind: {left}\n{text[-2000:]}"

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if kind is not None:
            print(self.stderr()[-4000:])
        self.close(check=kind is None)


class Stream:
    """The events of one streamed answer."""

    def __init__(self, events, done):
        self.events, self.done = events, done
        self.error = next((e["error"] for e in events if "error" in e), None)

    def text(self, index=0):
        out = []
        for e in self.events:
            for c in e.get("choices", []):
                if c["index"] == index:
                    out.append((c["delta"].get("content") if "delta" in c else c.get("text")) or "")
        return "".join(out)

    def finish(self, index=0):
        reasons = [c["finish_reason"] for e in self.events for c in e.get("choices", []) if c["index"] == index and c.get("finish_reason")]
        assert len(reasons) <= 1, "finish_reason twice"
        return reasons[0] if reasons else None

    def usage(self):
        return next((e["usage"] for e in self.events if e.get("usage")), None)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
