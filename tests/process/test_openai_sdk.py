"""The OpenAI Python SDK drives chat, streaming, logprobs, tools and its own parse() and stream() helpers."""
import json

import pytest

from harness import Server, model_file

openai = pytest.importorskip("openai", reason="the OpenAI SDK is not installed (PyPI could not be reached)")


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0, timeout=60)


MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Say something."}]


def test_chat_and_round_trip(client):
    print("openai", openai.__version__)
    r = client.chat.completions.create(model="any-name", messages=MESSAGES, max_tokens=8, temperature=0)
    assert r.choices[0].message.role == "assistant" and r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens
    # The SDK's own message object goes back unchanged.
    again = client.chat.completions.create(model="any-name", messages=[*MESSAGES, r.choices[0].message, {"role": "user", "content": "More."}], max_tokens=4)
    assert again.choices[0].finish_reason in ("stop", "length")


def test_streaming(client):
    plain = client.chat.completions.create(model="m", messages=MESSAGES, max_tokens=16, temperature=0)
    text, finish, usage = "", None, None
    for chunk in client.chat.completions.create(model="m", messages=MESSAGES, max_tokens=16, temperature=0, stream=True,
                                                stream_options={"include_usage": True}):
        for c in chunk.choices:
            text += c.delta.content or ""
            finish = c.finish_reason or finish
        usage = chunk.usage or usage
    assert text == (plain.choices[0].message.content or "") and finish == plain.choices[0].finish_reason
    assert usage.completion_tokens == plain.usage.completion_tokens


def test_logprobs(client):
    r = client.chat.completions.create(model="m", messages=MESSAGES, max_tokens=6, temperature=0, logprobs=True, top_logprobs=2)
    content = r.choices[0].logprobs.content
    assert content and all(len(t.top_logprobs) == 2 for t in content)


def test_errors_arrive_as_the_right_exceptions(client):
    with pytest.raises(openai.BadRequestError) as e:
        client.chat.completions.create(model="m", messages=MESSAGES, temperature=9)
    assert e.value.param == "temperature" and e.value.type == "invalid_request_error" and e.value.request_id
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("none-such")


def test_models_and_completions(client):
    assert client.models.list().data[0].object == "model"
    r = client.completions.create(model="m", prompt="hello", max_tokens=4, temperature=0)
    assert r.object == "text_completion" and r.choices[0].finish_reason in ("stop", "length")


def test_leaving_a_stream_cancels(client, server):
    with client.chat.completions.create(model="m", messages=MESSAGES, max_tokens=2000, stream=True, temperature=1, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
    server.idle()


@pytest.fixture(scope="module")
def tool_client():
    with Server(model_file("random-gemma4"), "--tool-call-parser", "gemma4", "--reasoning-parser", "gemma4") as s:
        yield openai.OpenAI(base_url=s.url + "/v1", api_key="unused", max_retries=0, timeout=60)


TOOL = {"type": "function", "function": {"name": "add", "strict": True, "parameters": {
    "type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"type": "boolean"}}, "required": ["a", "b"],
    "additionalProperties": False}}}
CALL = dict(model="m", messages=MESSAGES, tools=[TOOL], tool_choice="required", parallel_tool_calls=False, max_tokens=200, temperature=1, seed=5)


def test_tool_calls_plain_streamed_and_round_trip(tool_client):
    r = tool_client.chat.completions.create(**CALL)
    choice = r.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None and len(choice.message.tool_calls) == 1
    call = choice.message.tool_calls[0]
    arguments = json.loads(call.function.arguments)
    assert call.function.name == "add" and 0 <= arguments["a"] <= 99 and isinstance(arguments["b"], bool)
    name, text, ids = "", "", set()
    for chunk in tool_client.chat.completions.create(**CALL, stream=True):
        for c in chunk.choices:
            for d in c.delta.tool_calls or []:
                ids |= {d.id} if d.id else set()
                name += d.function.name or ""
                text += d.function.arguments or ""
    assert (name, text, len(ids)) == ("add", call.function.arguments, 1)
    # The SDK's own message object and the tool's result go back.
    history = [*MESSAGES, choice.message, {"role": "tool", "tool_call_id": call.id, "content": "7"}]
    again = tool_client.chat.completions.create(**{**CALL, "messages": history, "tool_choice": "auto"})
    assert again.choices[0].finish_reason in ("stop", "length", "tool_calls")


def test_the_helpers_parse_and_stream(tool_client):
    parsed = tool_client.chat.completions.parse(**CALL)
    arguments = parsed.choices[0].message.tool_calls[0].function.parsed_arguments
    assert 0 <= arguments["a"] <= 99
    schema = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": TOOL["function"]["parameters"]}}
    r = tool_client.chat.completions.create(model="m", messages=MESSAGES, response_format=schema, max_tokens=200, temperature=1, seed=9)
    assert r.choices[0].finish_reason == "stop" and set(json.loads(r.choices[0].message.content)) == {"a", "b"}
    with tool_client.chat.completions.stream(**CALL) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds and final.choices[0].message.tool_calls[0].function.name == "add"


def test_errors_of_tools(tool_client):
    with pytest.raises(openai.BadRequestError) as e:
        tool_client.chat.completions.create(**{**CALL, "tool_choice": {"type": "function", "function": {"name": "none"}}})
    assert e.value.param == "tool_choice.function.name"
