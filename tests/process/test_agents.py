"""Agents with tools, driven by the real SDKs, on a random-weight model: what it writes has no sense, so only a constraint makes a call valid."""
import json

import pytest

import harness

openai = pytest.importorskip("openai", reason="the OpenAI SDK is not installed (PyPI could not be reached)")

CITY = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Oslo", "Lima", "Quito"]}, "days": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["city", "days"], "additionalProperties": False}
SUM = {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"type": "boolean"}}, "required": ["a", "b"], "additionalProperties": False}
TOOLS = [("get_weather", "Weather of a city.", CITY), ("both", "True when both are.", SUM)]


@pytest.fixture(scope="module")
def server():
    with harness.Server(harness.model_file("random-gemma4"), "--tool-call-parser", "gemma4") as s:
        yield s


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0, timeout=60)


def check_call(name, arguments):
    """Arguments follow the tool's schema."""
    assert name in ("get_weather", "both"), name
    if name == "get_weather":
        assert set(arguments) == {"city", "days"} and arguments["city"] in ("Oslo", "Lima", "Quito") and 0 <= arguments["days"] <= 9, arguments
    else:
        assert set(arguments) == {"a", "b"} and all(isinstance(v, bool) for v in arguments.values()), arguments


def chat_tools():
    return [{"type": "function", "function": {"name": n, "description": d, "parameters": p, "strict": True}} for n, d, p in TOOLS]


def test_twenty_turns_of_chat(client):
    """An agent's loop: a call is required each turn, its result goes back, and the SDK's own objects are the history."""
    messages, calls = [{"role": "user", "content": "Go."}], 0
    for turn in range(20):
        r = client.chat.completions.create(model="m", messages=messages, tools=chat_tools(), tool_choice="required", max_tokens=120, temperature=1, seed=turn)
        choice = r.choices[0]
        assert choice.finish_reason == "tool_calls", choice
        messages.append(choice.message)
        for call in choice.message.tool_calls:
            check_call(call.function.name, json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": "ok"})
            calls += 1
    assert calls >= 20 and len({c.id for m in messages if not isinstance(m, dict) for c in m.tool_calls}) == calls


def test_streamed_calls_are_the_same(client):
    ask = dict(model="m", messages=[{"role": "user", "content": "Go."}], tools=chat_tools(), tool_choice="required", max_tokens=120, temperature=0)
    plain = client.chat.completions.create(**ask).choices[0].message.tool_calls
    with client.chat.completions.stream(**ask) as stream:
        for _ in stream:
            pass
        streamed = stream.get_final_completion().choices[0].message.tool_calls
    assert [(c.function.name, c.function.arguments) for c in plain] == [(c.function.name, c.function.arguments) for c in streamed]


def test_twenty_turns_of_responses(client):
    tools = [{"type": "function", "name": n, "description": d, "parameters": p, "strict": True} for n, d, p in TOOLS]
    items, calls = [{"role": "user", "content": "Go."}], 0
    for turn in range(20):
        r = client.responses.create(model="m", input=items, tools=tools, tool_choice="required", max_output_tokens=120, temperature=1, extra_body={"seed": turn})
        assert r.status == "completed"
        items += r.output
        for item in r.output:
            if item.type == "function_call":
                check_call(item.name, json.loads(item.arguments))
                items.append({"type": "function_call_output", "call_id": item.call_id, "output": "ok"})
                calls += 1
    assert calls >= 20


def test_responses_stream_of_a_call(client):
    tools = [{"type": "function", "name": n, "description": d, "parameters": p} for n, d, p in TOOLS]
    arguments, done = {}, {}
    for event in client.responses.create(model="m", input="Go.", tools=tools, tool_choice={"type": "function", "name": "both"}, temperature=0,
                                         max_output_tokens=120, stream=True):
        if event.type == "response.function_call_arguments.delta":
            arguments[event.output_index] = arguments.get(event.output_index, "") + event.delta
        if event.type == "response.function_call_arguments.done":
            done[event.output_index] = event.arguments
    assert event.type == "response.completed" and arguments and arguments == done
    for item in event.response.output:
        assert item.type == "function_call" and item.name == "both"
        check_call(item.name, json.loads(item.arguments))


def test_structured_output(client):
    r = client.responses.create(model="m", input="Go.", temperature=1, max_output_tokens=120,
                                text={"format": {"type": "json_schema", "name": "weather", "strict": True, "schema": CITY}})
    check_call("get_weather", json.loads(r.output_text))


def test_twenty_turns_of_messages(server):
    anthropic = pytest.importorskip("anthropic", reason="the Anthropic SDK is not installed (PyPI could not be reached)")
    client = anthropic.Anthropic(base_url=server.url, api_key="unused", max_retries=0, timeout=60)
    tools = [{"name": n, "description": d, "input_schema": p} for n, d, p in TOOLS]
    messages, calls = [{"role": "user", "content": "Go."}], 0
    for turn in range(20):
        # By turns a body and a stream.
        ask = dict(model="m", messages=messages, tools=tools, tool_choice={"type": "any"}, max_tokens=120, extra_body={"temperature": 1, "seed": turn})
        if turn % 2:
            with client.messages.stream(**ask) as stream:
                m = stream.get_final_message()
        else:
            m = client.messages.create(**ask)
        assert m.stop_reason == "tool_use", m
        results = []
        for block in m.content:
            if block.type == "tool_use":
                assert block.id.startswith("toolu_")
                check_call(block.name, block.input)
                results.append({"type": "tool_result", "tool_use_id": block.id, "content": "ok", "is_error": turn % 5 == 4})
        calls += len(results)
        messages += [{"role": "assistant", "content": m.content}, {"role": "user", "content": results}]
    assert calls >= 20
    one = client.messages.create(model="m", messages=messages[:1], tools=tools, tool_choice={"type": "tool", "name": "both", "disable_parallel_tool_use": True},
                                 max_tokens=120, extra_body={"temperature": 1})
    assert [b.name for b in one.content if b.type == "tool_use"] == ["both"]


def test_langchain_binds_tools(server):
    langchain = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed (PyPI could not be reached)")
    from langchain_core.messages import HumanMessage, ToolMessage
    model = langchain.ChatOpenAI(base_url=server.url + "/v1", api_key="unused", model="m", max_retries=0, timeout=60, max_tokens=120, temperature=0)
    bound = model.bind_tools(chat_tools(), tool_choice="required")
    history = [HumanMessage("Go.")]
    for _ in range(3):
        answer = bound.invoke(history)
        assert answer.tool_calls and not answer.invalid_tool_calls
        history.append(answer)
        for call in answer.tool_calls:
            check_call(call["name"], call["args"])
            history.append(ToolMessage("ok", tool_call_id=call["id"]))
    chunk = None
    for part in bound.stream(history):
        chunk = part if chunk is None else chunk + part
    assert chunk.tool_calls
    for call in chunk.tool_calls:
        check_call(call["name"], call["args"])
