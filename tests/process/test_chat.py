"""`holdfast chat`: tool calls are shown and answered, Ctrl-C stops an answer and not the chat, commands, what a request holds."""
import contextlib
import fcntl
import http.server
import json
import os
import pty
import re
import select
import signal
import subprocess
import termios
import threading
import time

import pytest

from harness import BIN, SOURCE, Server, demo_tool_result, model_file, script_model, wait_for

HERMES = ("--tool-call-parser", "hermes", "--reasoning-parser", "think")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    scripts = [
        {"pieces": ["<think>", "Hm.", "</think>", "I look. ", "<tool_call>", '\n{"name": "get_', 'weather", "arg', 'uments": {"city": "Os', 'lo"}}', "\n</tool_call>"]},
        {"pieces": ["}", " It is as ", "it says", "."]},        # behind a result's brace
        {"pieces": ["w%03d " % i for i in range(200)], "end": "loop"},
        {"pieces": ["a \x1b[31mred\x07", " word"]},
    ]
    with Server(script_model(tmp_path_factory.mktemp("chat"), scripts, "--context", 16384), *HERMES) as s:
        yield s


def chat(url, *flags, lines):
    return subprocess.run([str(BIN / "holdfast"), "chat", "--server", url, *flags], input="".join(line + "\n" for line in lines), capture_output=True, text=True,
                          timeout=120)


def test_a_call_is_shown_answered_and_goes_on(server):
    r = chat(server.url, "--tools", lines=["How is the weather? <S00>"])
    assert r.returncode == 0, r
    assert r.stdout == f'I look.\n* get_weather {{"city": "Oslo"}}\n  get_weather -> {demo_tool_result("get_weather", {"city": "Oslo"})}\n It is as it says.\n'


def test_without_tools_nothing_is_a_call(server):
    # This model's template shows it no tools, so none are offered unless asked for.
    for flags in [], ["--no-tools"]:
        r = chat(server.url, *flags, lines=["How is the weather? <S00>"])
        assert r.returncode == 0 and "<tool_call>" in r.stdout and "->" not in r.stdout, r


def test_a_model_that_only_calls_is_stopped(tmp_path):
    scripts = [
        {"pieces": ["<tool_call>", '{"name": "turn_', 'on", "arguments": ', '{"device": "fan"}}', "</tool_call>"]},
        {"pieces": ["}", " <tool_call>", '{"name": "get_ti', 'me", "arguments": ', "{}", "} </tool_call>"]},
        {"pieces": ["An an", "swer."]},
    ]
    with Server(script_model(tmp_path, scripts), *HERMES) as s:
        r = chat(s.url, "--tools", lines=["Go. <S00>"])
        assert r.returncode == 1 and r.stdout.count("* get_time {}") == 7 and r.stdout.count("* turn_on") == 1, r
        assert '  turn_on -> {"status":"ok"}\n' in r.stdout and f'  get_time -> {demo_tool_result("get_time", {})}\n' in r.stdout
        assert "8 answers were calls" in r.stdout
        # The question that had no answer is forgotten; the chat goes on.
        r = chat(s.url, "--tools", lines=["Go. <S00>", "Say. <S02>"])
        assert r.returncode == 0 and r.stdout.endswith("An answer.\n"), r


class Terminal:
    """A chat at a terminal."""

    def __init__(self, *arguments):
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen([str(BIN / "holdfast"), "chat", *arguments], stdin=slave, stdout=slave, stderr=slave, start_new_session=True,
                                        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(slave)
        self.seen, self.at = "", 0

    def type(self, text):
        os.write(self.master, text.encode())

    def until(self, text, timeout=60):
        """Waits for the text, behind what the last call found; returns what came before it."""
        end = time.monotonic() + timeout
        while (found := self.seen.find(text, self.at)) < 0:
            assert time.monotonic() < end, f"not within {timeout} s: {text!r} in {self.seen[self.at:]!r}"
            if select.select([self.master], [], [], 0.1)[0]:
                self.seen += os.read(self.master, 4096).decode("utf-8", "replace")
        before, self.at = self.seen[self.at:found], found + len(text)
        return before

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(10)
        os.close(self.master)


def test_a_chat_at_a_terminal(server):
    with Terminal("--server", server.url, "--tools", "--max-tokens", "16000") as t:
        greeting = t.until("\n> ")
        assert "script-model" in greeting and "/tools" in greeting and "What is the weather in Paris?" in greeting
        t.type("Loop <S02>\n")
        t.until("w003 ")
        t.type("\x03")
        t.until("[stopped]")
        t.until("\n> ")
        t.type("half a line\x03")   # Ctrl-C at the prompt: a fresh one
        t.until("\n> ")
        t.type("/tools\n")
        shown = t.until("\n> ")
        assert "tools are on; this model's chat template shows it none" in shown
        assert "[x] get_weather" in shown and "[ ] get_distance" in shown
        t.type("/tools get_weather\n")
        assert "[ ] get_weather" in t.until("\n> ")
        t.type("/tools off\n")
        assert "[x]" not in t.until("\n> ")
        t.type("/tools get_weather\n")   # that one alone
        assert (shown := t.until("\n> ")).count("[x]") == 1 and "[x] get_weather" in shown, shown
        t.type("How? <S00>\n")
        shown = t.until(" tokens in ")
        assert re.fullmatch(r"\d+\.\d\d s(, \d+ a second)?", t.until("]"))
        assert "\x1b[2mHm.\x1b[0m\r\n" in shown and "* \x1b[1mget_weather\x1b[0m " in shown and " It is as it says." in shown, shown
        t.until("\n> ")
        t.type("Red <S03>\n")
        # What a terminal would obey is not passed on.
        assert "a \ufffd[31mred\ufffd word" in t.until(" tokens in ")
        t.until("\n> ")
        for line, answer in [("/reset", "a new conversation"), ("/help", "/system TEXT"), ("/system", "there is no system prompt"), ("/nonsense", "there is no command /nonsense"), ("/tools nonsense", "there is no tool")]:
            t.type(line + "\n")
            assert answer in t.until("\n> "), line
        t.type("\x04")
        assert t.process.wait(20) == 0


class Recorder(http.server.BaseHTTPRequestHandler):
    """A server of which a test says everything; it keeps the chats' bodies."""

    def do_GET(self):
        data = {"data": [{"id": "fake", "capabilities": self.server.capabilities}]} if self.path == "/v1/models" else {}
        self.reply("application/json", json.dumps(data).encode())

    def do_POST(self):
        self.server.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        events = self.server.answers.pop(0)
        if events[-1] is None:   # an answer that does not end: until the client leaves
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            self.wfile.write(b"".join(b"data: " + json.dumps(e).encode() + b"\n\n" for e in events[:-1]))
            self.connection.settimeout(60)
            assert self.connection.recv(1) == b""
            self.server.left += 1
            return
        self.reply("text/event-stream", b"".join(b"data: " + json.dumps(e).encode() + b"\n\n" for e in events) + b"data: [DONE]\n\n")

    def reply(self, kind, body):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@contextlib.contextmanager
def recorder(capabilities, answers):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Recorder) as s:
        s.capabilities, s.answers, s.bodies, s.left = capabilities, answers, [], 0
        thread = threading.Thread(target=s.serve_forever)
        thread.start()
        try:
            yield s, f"http://127.0.0.1:{s.server_port}"
        finally:
            s.shutdown()
            thread.join()


def test_several_lines_are_one_message_and_blank_ones_none():
    with recorder([], [said("Yes."), said("No.")]) as (s, url), Terminal("--server", url) as t:
        t.until("\n> ")
        t.type("  \n")
        t.until("\n> ")
        t.type('"""one\n')
        t.until("\n. ")
        t.type("half a\x03")   # drops the whole of it
        t.until("\n> ")
        t.type('"""one\n')
        for line in ["", "  /reset", 'three"""']:
            t.until("\n. ")
            t.type(line + "\n")
        t.until("Yes.")
        t.until("\n> ")
        t.type('"""four"""\n')
        t.until("No.")
        assert [b["messages"][-1]["content"] for b in s.bodies] == ["one\n\n  /reset\nthree", "four"]


def test_a_person_may_wait_for_a_server_that_is_gone():
    with contextlib.ExitStack() as stack:
        with recorder([], [said("Yes.")]) as (s, url):
            t = stack.enter_context(Terminal("--server", url))
            t.until("\n> ")
            t.type("one\n")
            t.until("Yes.")
            t.until("\n> ")
        t.type("two\n")
        t.until("cannot reach")
        t.until("\n> ")
        t.type("\x04")
        assert t.process.wait(20) == 0


def said(text, finish="stop", calls=()):
    deltas = [{"content": text}] + [{"tool_calls": [{"index": i, "id": f"call_{i}", "type": "function", "function": {"name": n, "arguments": a}}]} for i, (n, a) in enumerate(calls)]
    return [{"choices": [{"index": 0, "delta": d, "finish_reason": None}]} for d in deltas] + [{"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}]


def test_what_is_sent():
    two = [("get_time", '{"city":"Rome"}'), ("turn_on", '{"device":"fan"}')]
    answers = [said("Wait. ", "tool_calls", two), said("Done."), said("Half", "length", [("get_time", '{"ci')]), [{"error": {"message": "gone"}}], said("Yes.")]
    with recorder(["completion", "tools"], answers) as (s, url):
        r = chat(url, "--system", "Be brief.", "--temperature", "0", lines=["one", "two", "lost", "/tools get_time", "three"])
        assert r.returncode == 0 and "gone" in r.stderr, r
    user = lambda text: {"role": "user", "content": text}  # noqa: E731
    system = {"role": "system", "content": "Be brief."}
    calling = {"role": "assistant", "content": "Wait. ", "tool_calls": [{"id": f"call_{i}", "type": "function", "function": {"name": n, "arguments": a}} for i, (n, a) in enumerate(two)]}
    results = [{"role": "tool", "tool_call_id": f"call_{i}", "content": demo_tool_result(n, json.loads(a))} for i, (n, a) in enumerate(two)]
    first = [system, user("one"), calling, *results, {"role": "assistant", "content": "Done."}]
    second = [*first, user("two"), {"role": "assistant", "content": "Half"}]
    assert [b["messages"] for b in s.bodies] == [[system, user("one")], first[:-1], second[:-1], [*second, user("lost")], [*second, user("three")]]
    tools = [{"type": t["type"], "function": t["function"]} for t in json.loads((SOURCE / "frontend" / "console" / "demo_tools.json").read_text()) if t["offered"]]
    assert [b["tools"] for b in s.bodies[:4]] == [tools] * 4
    assert s.bodies[4]["tools"] == [t for t in tools if t["function"]["name"] != "get_time"]
    assert all(b["stream"] and b["temperature"] == 0 for b in s.bodies)


def test_what_was_stopped_counts_as_far_as_it_was_said():
    half = said("Half")[:-1] + [None]
    calls = said("", "tool_calls", [("turn_on", '{"device":"fan"}')])
    with recorder(["tools"], [half, [None], calls, [None], said("Yes.")]) as (s, url):
        process = subprocess.Popen([str(BIN / "holdfast"), "chat", "--server", url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for question, requests in [("one", 1), ("two", 2), ("three", 4)]:
            process.stdin.write(question + "\n")
            process.stdin.flush()
            if question == "one":
                assert process.stdout.read(4) == "Half"
            wait_for(lambda: len(s.bodies) == requests, 30, f"request {requests}")
            gone = s.left + 1
            process.send_signal(signal.SIGINT)
            wait_for(lambda: s.left == gone, 30, "the client leaves")
        out, _ = process.communicate("four\n", timeout=60)
        assert process.returncode == 0 and out.count("[stopped]") == 3 and out.endswith("Yes.\n"), out
    # Half an answer stays; a question without one goes, with the calls that came of it.
    assert s.bodies[-1]["messages"] == [{"role": "user", "content": "one"}, {"role": "assistant", "content": "Half"}, {"role": "user", "content": "four"}]


def test_what_cannot_work_is_said(tmp_path):
    r = chat("http://127.0.0.1:1", lines=[])
    assert r.returncode == 1 and "is `holdfast serve` running?" in r.stderr
    (tmp_path / "keys").write_text("s3cret-key\n")
    with Server(model_file("script"), "--api-key-file", tmp_path / "keys") as s:
        r = chat(s.url, lines=["Hi <S02>"])
        assert r.returncode == 1 and "HTTP 401" in r.stderr and "--key" in r.stderr and r.stdout == "", r
        assert chat(s.url, "--key", "s3cret-key", lines=["Hi <S02>"]).returncode == 0


@pytest.mark.parametrize("capabilities,flags,offered", [(["completion"], [], False), (["completion", "tools"], ["--no-tools"], False), (["completion"], ["--tools"], True)])
def test_tools_are_offered_to_models_that_take_them(capabilities, flags, offered):
    with recorder(capabilities, [said("Hi.")]) as (s, url):
        assert chat(url, *flags, lines=["Hello"]).returncode == 0
        assert ("tools" in s.bodies[0]) == offered
