"""The demo of deploy/quickstart.sh --demo, shorter: conversations that call tools, a kill -9 in the middle, an audit that can fail."""
import http.server
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading

import pytest

from harness import SOURCE, Server, model_file, wait_for

DEMO = SOURCE / "deploy" / "demo.py"


def start(server, tmp_path, *flags):
    return subprocess.Popen([sys.executable, str(DEMO), "--base", server.url, "--serve-pid", str(server.process.pid), "--turns", "2", "--conversations", "3",
                             "--system-tokens", "300", "--max-tokens", "80", "--tool-choice", "required", "--json", str(tmp_path / "audit.json"), *flags],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def finish(demo, tmp_path):
    out, err = demo.communicate(timeout=400)
    audit = tmp_path / "audit.json"
    return subprocess.CompletedProcess(demo.args, demo.returncode, out, err), json.loads(audit.read_text()) if audit.exists() else None


def run(server, tmp_path, *flags):
    return finish(start(server, tmp_path, *flags), tmp_path)


def answered(server, n):
    wait_for(lambda: len(server.get("/v1/requests").json["entries"]) >= n, 60, f"{n} answers")


def test_the_demo_survives_its_kill_and_accounts_for_everything(tmp_path):
    with Server(model_file("random-gemma4", "--context", "8192"), "--max-seq-len", "4096", "--tool-call-parser", "gemma4") as server:
        r, audit = run(server, tmp_path)
        assert r.returncode == 0, r.stdout[-3000:] + r.stderr[-2000:]
        assert audit["kills"] == audit["kills_survived"] == 1
        assert audit["failed"] == audit["answers_that_differ"] == audit["pages_unaccounted"] == audit["pages_held_when_idle"] == 0
        assert audit["tool_calls"] >= 6 and audit["prefix_hit_rate"] > 0.5
        assert "BAD" not in r.stdout


def test_the_demo_with_the_default_model(tmp_path):
    """As deploy/quickstart.sh --demo runs it, shorter: nobody forces a call, the model makes them."""
    with Server(SOURCE / "deploy" / "default-model" / "holdfast-tiny.gguf") as server:
        r, audit = run(server, tmp_path, "--tool-choice", "auto", "--conversations", "4", "--turns", "4", "--rounds", "2", "--system-tokens", "1500")
        assert r.returncode == 0, r.stdout[-3000:] + r.stderr[-2000:]
        assert audit["kills"] == audit["kills_survived"] == 1 and audit["failed"] == audit["answers_that_differ"] == 0
        # 32 turns, each asks for one of the tools that are offered: most of them are called.
        assert audit["tool_calls"] >= 26, audit


def test_the_audit_says_so_when_it_is_not_so(tmp_path):
    with Server(model_file("random-gemma4", "--context", "8192"), "--max-seq-len", "4096", "--tool-call-parser", "gemma4") as server:
        # A process that has no worker below it: the kill that was promised cannot happen.
        r, audit = run(server, tmp_path, "--serve-pid", str(1 << 22), "--conversations", "1", "--turns", "1")
        assert r.returncode == 1
        assert audit["kills"] == 0 and "BAD  kills survived" in r.stdout


def test_a_worker_that_somebody_else_kills_is_told_apart(tmp_path):
    with Server(SOURCE / "deploy" / "default-model" / "holdfast-tiny.gguf") as server:
        demo = start(server, tmp_path, "--tool-choice", "auto", "--rounds", "8", "--kills", "0")
        answered(server, 3)
        os.kill(server.worker(), signal.SIGKILL)
        r, audit = finish(demo, tmp_path)
        assert r.returncode == 0 and audit["other_losses"] == 1 and audit["kills"] == 0, (r, audit)
        assert "1 more losses of the engine, not by this demo" in r.stdout


def test_a_server_that_goes_away_ends_in_an_audit_all_the_same(tmp_path):
    with Server(SOURCE / "deploy" / "default-model" / "holdfast-tiny.gguf") as server:
        demo = start(server, tmp_path, "--tool-choice", "auto", "--rounds", "30")
        answered(server, 3)
        server.terminate()
        r, audit = finish(demo, tmp_path)
        assert r.returncode == 1 and audit["failed"] == 3, (r, audit)
        assert "BAD  tokens lost or doubled         unknown" in r.stdout and "Traceback" not in r.stderr, r
        r, _ = run(server, tmp_path)
        assert r.returncode == 1 and r.stderr.startswith("demo: ") and "refused" in r.stderr and r.stdout == "", r


class Late(http.server.BaseHTTPRequestHandler):
    """Puts the first requests off, and refuses for good when told to."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.refusals:
            after = self.server.refusals.pop(0)
            self.send_response(503)
            if after:
                self.send_header("Retry-After", after)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        chunk = {"choices": [{"index": 0, "delta": {"content": "Yes."}, "finish_reason": "stop"}]}
        body = b"data: " + json.dumps(chunk).encode() + b"\n\ndata: [DONE]\n\n"
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


def test_what_begins_while_there_is_no_worker_is_sent_again(monkeypatch):
    spec = importlib.util.spec_from_file_location("demo", DEMO)
    demo = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(demo)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Late) as s:
        threading.Thread(target=s.serve_forever, daemon=True).start()
        monkeypatch.setattr(sys, "argv", ["demo.py", "--serve-pid", "1", "--base", f"http://127.0.0.1:{s.server_port}"])
        d = demo.Demo(demo.parse_args())
        s.refusals = ["1", "0"]
        assert d.ask([], "auto", 0).text == "Yes." and d.put_off == 2 and not d.under_way
        s.refusals = [""]
        with pytest.raises(RuntimeError, match="HTTP 503"):
            d.ask([], "auto", 0)
        s.shutdown()


def test_the_demos_tools_are_of_the_default_models_world():
    """Same names, parameters and results, and questions of a shape that it was trained on, so that the default model answers well."""
    sys.path.insert(0, str(SOURCE / "deploy" / "default-model"))
    try:
        import world
    finally:
        sys.path.pop(0)
    known = {t.name: t for t in world.TOOLS}
    tools = json.loads((SOURCE / "frontend" / "console" / "demo_tools.json").read_text())
    assert 1 <= sum(t["offered"] for t in tools) <= 5, "most of its training has one to five tools"
    for tool in tools:
        mine = known[tool["function"]["name"]]
        assert {"type": tool["type"], "function": tool["function"]} == mine.declaration()
        assert list(tool["stub"]) == list(mine.result)
        for member, rule in tool["stub"].items():
            kind = mine.result[member]
            possible = rule.get("choice") or [rule["value"]] if "range" not in rule else rule["range"]
            for value in possible:
                if kind == "ok":
                    assert value == "ok"
                elif kind == "clock":
                    assert re.fullmatch(r"[0-2]\d:[0-5][05]", value)
                elif kind in world.VALUES:
                    assert value in world.VALUES[kind]
                else:
                    assert 0 < len(str(value)) <= int(kind[1:]) and type(value) is int, (tool, member)
        for example in tool["examples"]:
            asks = [re.sub(r"\\{(\w+)\\}", r"(?P<\1>\\w+)", re.escape(ask)) for ask in mine.asks]
            found = next((m for m in (re.fullmatch(ask, example) for ask in asks) if m), None)
            assert found, example
            for name, value in found.groupdict().items():
                kind = mine.params[name]
                assert value.isdigit() if kind not in world.VALUES else value in world.VALUES[kind], (example, name)
