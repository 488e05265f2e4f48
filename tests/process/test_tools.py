"""Tool calls through the whole server: scripts that force every split, calls that must be valid whatever the weights, kills in the middle."""
import json
import re
import subprocess
import time

import pytest

import harness
from harness import Server, model_file, script_model

HERMES = ("--tool-call-parser", "hermes", "--reasoning-parser", "think")
GEMMA = ("--tool-call-parser", "gemma4", "--reasoning-parser", "gemma4")

WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Weather of a city.", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 14},
                                     "unit": {"type": "string", "maxLength": 8}},
    "required": ["city", "days"], "additionalProperties": False}}}
ADD = {"type": "function", "function": {"name": "add", "parameters": {
    "type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 999}, "flags": {"type": "array", "items": {"type": "boolean"}, "maxItems": 3}},
    "required": ["a"], "additionalProperties": False}}}
TOOLS = [WEATHER, ADD]


def check_arguments(name, text):
    """The arguments keep the schema above; written out, so that the test trusts no validator of ours."""
    value = json.loads(text)
    assert isinstance(value, dict)
    if name == "get_weather":
        assert set(value) <= {"city", "days", "unit"} and {"city", "days"} <= set(value), value
        assert value["city"] in ("Paris", "Oslo") and type(value["days"]) is int and 1 <= value["days"] <= 14, value
        assert len(value.get("unit", "")) <= 8 and isinstance(value.get("unit", ""), str), value
    else:
        assert name == "add" and set(value) <= {"a", "flags"} and "a" in value, (name, value)
        assert type(value["a"]) is int and 0 <= value["a"] <= 999, value
        assert len(value.get("flags", [])) <= 3 and all(type(x) is bool for x in value.get("flags", [])), value


def calls_of(stream, choice=0):
    """The calls of a streamed answer, with the shape of their deltas checked."""
    calls = []
    for event in stream.events:
        for c in event["choices"]:
            if c["index"] != choice:
                continue
            for d in c["delta"].get("tool_calls", []):
                if d["index"] == len(calls):
                    assert d["type"] == "function" and d["function"]["arguments"] == "" and re.fullmatch(r"call_[a-z0-9]{24}", d["id"]), d
                    calls.append({"id": d["id"], "name": d["function"]["name"], "arguments": ""})
                else:
                    assert d["index"] == len(calls) - 1 and set(d) == {"index", "function"} and set(d["function"]) == {"arguments"}, d
                    calls[-1]["arguments"] += d["function"]["arguments"]
    return calls


# One answer, cut into tokens in different ways. A piece occurs once in the file, so every answer differs a little.
def answer(k):
    return (f'<think>hm {k}</think>Text{k} <tool_call>\n{{"name": "add", "arguments": {{"a": {k}, "flags": [true]}}}}\n</tool_call>'
            f'<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "Paris", "days": {k}}}}}\n</tool_call>')


def cut(text, size, seen):
    """Pieces of about this size; longer where one of them was used before."""
    pieces, at = [], 0
    while at < len(text):
        end = at + size
        while text[at:end] in seen and end < len(text):
            end += 1
        if text[at:end] in seen:  # the rest was used before: join it to the piece in front
            seen.discard(pieces[-1])
            pieces[-1] += text[at:end]
            end = len(text)
            seen.add(pieces[-1])
        else:
            pieces.append(text[at:end])
            seen.add(text[at:end])
        at = end
    return pieces


def test_every_split_gives_the_same_calls(tmp_path_factory):
    seen = set("\n")
    sizes = [2, 3, 4, 5, 7, 9, 11, 13, 17, 23, 31, 47, 200]
    scripts = [{"pieces": cut(answer(k + 1), size, seen)} for k, size in enumerate(sizes)]
    with Server(script_model(tmp_path_factory.mktemp("scripts"), scripts), *HERMES) as s:
        for k in range(len(sizes)):
            body = {"messages": [{"role": "user", "content": f"<S{k:02}>"}], "tools": TOOLS, "temperature": 0, "max_tokens": 400}
            plain = s.post("/v1/chat/completions", body).json["choices"][0]
            stream = s.stream("/v1/chat/completions", body)
            calls = calls_of(stream)
            assert stream.done and stream.finish(0) == "tool_calls" == plain["finish_reason"], (k, plain)
            assert stream.text(0) == plain["message"]["content"] == f"Text{k + 1}"
            assert plain["message"]["reasoning_content"] == f"hm {k + 1}"
            assert [(c["name"], json.loads(c["arguments"])) for c in calls] == [
                ("add", {"a": k + 1, "flags": [True]}), ("get_weather", {"city": "Paris", "days": k + 1})]
            assert [(c["function"]["name"], c["function"]["arguments"]) for c in plain["message"]["tool_calls"]] == [(c["name"], c["arguments"]) for c in calls]


@pytest.fixture(scope="module")
def random_server():
    with Server(model_file("random-gemma4"), *GEMMA) as s:
        yield s


CHOICES = {
    "required": ("required", True, {"add", "get_weather"}),
    "one": ("required", False, {"add", "get_weather"}),
    "named": ({"type": "function", "function": {"name": "add"}}, True, {"add"}),
    "allowed": ({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "get_weather"}]}, False, {"get_weather"}),
}


@pytest.mark.parametrize("choice", list(CHOICES))
def test_a_required_call_is_valid_whatever_the_weights(random_server, choice):
    tool_choice, parallel, names = CHOICES[choice]
    seen = 0
    for seed in range(6):
        body = {"messages": [{"role": "user", "content": f"Go {seed}"}], "tools": TOOLS, "tool_choice": tool_choice, "parallel_tool_calls": parallel,
                "temperature": 1.5, "seed": seed, "max_tokens": 400}
        stream = random_server.stream("/v1/chat/completions", body)
        plain = random_server.post("/v1/chat/completions", body).json["choices"][0]
        calls, finish = calls_of(stream), stream.finish(0)
        assert finish in ("tool_calls", "length") and stream.text(0) == "", (finish, stream.text(0))
        whole = calls if finish == "tool_calls" else calls[:-1]
        for c in whole:
            assert c["name"] in names
            check_arguments(c["name"], c["arguments"])
        assert len({c["id"] for c in calls}) == len(calls)
        assert [(c["function"]["name"], c["function"]["arguments"]) for c in plain["message"].get("tool_calls", [])] == [(c["name"], c["arguments"]) for c in calls]
        if not parallel or choice == "named":
            assert len(calls) == 1 and finish == "tool_calls"
        seen += len(whole)
    assert seen >= 6


def test_a_form_of_the_answer_is_kept_whatever_the_weights(random_server):
    schema = ADD["function"]["parameters"]
    for seed in range(4):
        common = {"messages": [{"role": "user", "content": "x"}], "temperature": 1.2, "seed": seed, "max_tokens": 400, "reasoning_effort": "none"}
        r = random_server.post("/v1/chat/completions", {**common, "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}).json
        if r["choices"][0]["finish_reason"] == "stop":
            check_arguments("add", r["choices"][0]["message"]["content"])
        r = random_server.post("/v1/chat/completions", {**common, "response_format": {"type": "regex", "pattern": "(yes|no)-[0-9]{2,4}"}}).json
        choice = r["choices"][0]
        if choice["finish_reason"] == "length":  # the model began a thought, which is free, and did not come to its end
            assert choice["message"]["content"] == "" and choice["message"]["reasoning_content"], r
        else:
            assert choice["finish_reason"] == "stop" and re.fullmatch("(yes|no)-[0-9]{2,4}", choice["message"]["content"]), r
        r = random_server.post("/v1/completions", {"prompt": "x", "temperature": 1.2, "seed": seed, "max_tokens": 50, "guided_choice": ["red", "blue"]}).json
        assert r["choices"][0]["text"] in ("red", "blue"), r


def told(body, server, streamed):
    """All a client keeps but the ids of calls."""
    if streamed:
        stream = server.stream("/v1/chat/completions", body)
        assert stream.done and stream.error is None
        return [stream.text(0), stream.finish(0), [(c["name"], c["arguments"]) for c in calls_of(stream)]]
    c = server.post("/v1/chat/completions", body).json["choices"][0]
    return [c["message"]["content"] or "", c["finish_reason"], [(t["function"]["name"], t["function"]["arguments"]) for t in c["message"].get("tool_calls", [])]]


def test_a_kill_in_the_middle_of_a_call_changes_nothing(random_server):
    body = {"messages": [{"role": "user", "content": "Call."}], "tools": TOOLS, "tool_choice": "required", "temperature": 1.0, "seed": 3, "max_tokens": 120}
    undisturbed = told(body, random_server, True)
    for step in (1, 2, 5, 11, 23, 40):
        fault = {"HOLDFAST_FAULT": f"worker.step:abort:{step}", "HOLDFAST_FAULT_GENERATION": "1"}
        with Server(model_file("random-gemma4"), *GEMMA, env=fault) as s:
            assert told(body, s, step % 2 == 1) == undisturbed, f"lost at step {step}"
            if step == 1:
                assert int(s.status()["health"]["restarts"]) == 1, "the fault did not happen"


def test_flags_of_the_parsers():
    binary = str(harness.BIN / "holdfast-frontend")
    bad = subprocess.run([binary, "--engine", "unix:/nowhere", "--tool-call-parser", "nonsense"], capture_output=True, text=True, timeout=30)
    assert bad.returncode == 64 and "nonsense" in bad.stderr and "hermes" in bad.stderr
    text = subprocess.run([binary, "--help"], capture_output=True, text=True, timeout=30).stdout
    assert "--tool-call-parser" in text and "--reasoning-parser" in text and "gemma4" in text


def test_what_cannot_be_enforced_is_refused_with_its_place(random_server):
    def param(**fields):
        r = random_server.chat("x", **fields)
        assert r.status == 400, r.body
        return r.json["error"]["param"]
    assert param(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "none"}}) == "tool_choice.function.name"
    assert param(response_format={"type": "regex", "pattern": "(a"}) == "response_format.pattern"
    t0 = time.monotonic()
    # A tower of repetitions costs no more than a bounded time, whatever comes of it.
    r = random_server.chat("x", max_tokens=4, response_format={"type": "regex", "pattern": "((a{1,1000}){1,1000}){1,1000}"})
    assert r.status == 200 or r.json["error"]["param"] == "response_format.pattern", r.body
    assert time.monotonic() - t0 < 20


def test_a_constraint_that_cannot_be_run_is_the_requests_own_fault(random_server):
    # So many ways to have come here after a few letters that the matcher gives up: the same again would end the same, so no client may retry.
    body = {"messages": [{"role": "user", "content": "x"}], "temperature": 0, "max_tokens": 400, "reasoning_effort": "none",
            "response_format": {"type": "regex", "pattern": "((a{1,1000}){1,1000}){100,1000}"}}
    r = random_server.post("/v1/chat/completions", body)
    assert r.status == 400 and r.json["error"]["type"] == "invalid_request_error" and "too ambiguous" in r.json["error"]["message"], r.body
    stream = random_server.stream("/v1/chat/completions", body)
    assert stream.error["type"] == "invalid_request_error" and not stream.done and stream.finish(0) is None
    assert random_server.chat("x", max_tokens=2).status == 200
