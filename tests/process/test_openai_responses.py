"""The OpenAI Python SDK drives /v1/responses: bodies, streams, its stream helper, and the errors of a stateless server."""
import pytest

openai = pytest.importorskip("openai", reason="the OpenAI SDK is not installed (PyPI could not be reached)")


@pytest.fixture(scope="module")
def client(server):
    print("openai", openai.__version__)
    return openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0, timeout=60)


ASK = {"model": "any", "instructions": "Be brief.", "input": "Say something.", "max_output_tokens": 12, "temperature": 0}


def test_body(client):
    r = client.responses.create(**ASK, metadata={"k": "v"})
    assert r.object == "response" and r.id.startswith("resp_") and r.status in ("completed", "incomplete")
    assert r.output[0].type == "message" and r.output[0].id.startswith("msg_") and r.output_text
    assert r.usage.total_tokens == r.usage.input_tokens + r.usage.output_tokens and r.usage.output_tokens <= 12
    assert r.instructions == "Be brief." and r.metadata == {"k": "v"} and r.store is False
    assert r._request_id


def test_every_event_of_a_stream(client):
    plain = client.responses.create(**ASK)
    text, snapshots = "", []
    for i, event in enumerate(client.responses.create(**ASK, stream=True)):
        assert event.sequence_number == i
        snapshots.append(event.type)
        if event.type in ("response.created", "response.in_progress"):
            assert event.response.status == "in_progress" and event.response.output == []
        if event.type == "response.output_text.delta":
            text += event.delta
        if event.type == "response.output_text.done":
            assert event.text == text
    assert snapshots[:2] == ["response.created", "response.in_progress"]
    assert event.type == ("response.completed" if plain.status == "completed" else "response.incomplete")
    assert event.response.output_text == text == plain.output_text
    assert event.response.usage.output_tokens == plain.usage.output_tokens


def test_stream_helper(client):
    # A long enough answer: the helper wants the answer to be complete.
    with client.responses.stream(model="any", input="Say something.", temperature=0, max_output_tokens=8) as stream:
        text = "".join(e.delta for e in stream if e.type == "response.output_text.delta")
    assert text


def test_history_goes_back_unchanged(client):
    first = client.responses.create(**ASK)
    again = client.responses.create(**{**ASK, "input": [{"role": "user", "content": "Say something."}, *first.output, {"role": "user", "content": "More."}]})
    assert again.usage.input_tokens > first.usage.input_tokens


def test_agents_probe_and_foreign_tools(client):
    r = client.responses.create(model="gpt-5-codex", input=[], max_output_tokens=1, store=False)
    assert r.status in ("completed", "incomplete")
    r = client.responses.create(**ASK, tools=[{"type": "web_search"}], include=["reasoning.encrypted_content"], parallel_tool_calls=True,
                                extra_body={"client_metadata": {"a": "b"}})
    assert r.tools == [] and r.tool_choice == "auto"


def test_logprobs(client):
    r = client.responses.create(**ASK, include=["message.output_text.logprobs"], top_logprobs=2)
    entries = r.output[0].content[0].logprobs
    assert entries and all(len(e.top_logprobs) == 2 for e in entries)
    assert b"".join(bytes(e.bytes) for e in entries).decode("utf-8", "replace") == r.output_text


def test_what_needs_a_store_is_refused(client):
    with pytest.raises(openai.BadRequestError) as e:
        client.responses.create(**ASK, previous_response_id="resp_123")
    assert e.value.param == "previous_response_id" and "whole conversation" in e.value.message
    with pytest.raises(openai.BadRequestError) as e:
        client.responses.create(**ASK, background=True)
    assert e.value.param == "background"


def test_leaving_a_stream_cancels(client, server):
    with client.responses.create(model="m", input="x", max_output_tokens=2000, stream=True, temperature=1, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
    server.idle()
