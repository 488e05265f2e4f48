"""The Anthropic Python SDK drives /v1/messages and /v1/messages/count_tokens."""
import pytest

anthropic = pytest.importorskip("anthropic", reason="the Anthropic SDK is not installed (PyPI could not be reached)")


@pytest.fixture(scope="module")
def client(server):
    print("anthropic", anthropic.__version__)
    return anthropic.Anthropic(base_url=server.url, api_key="unused", max_retries=0, timeout=60)


# The SDK of today has no parameter for the temperature; what it does not know travels in extra_body.
ASK = {"model": "any", "max_tokens": 12, "system": "Be brief.", "messages": [{"role": "user", "content": "Say something."}], "extra_body": {"temperature": 0}}


def text_of(message):
    return "".join(b.text for b in message.content if b.type == "text")


def prompt_of(usage):
    return usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_message(client):
    m = client.messages.create(**ASK)
    assert m.type == "message" and m.role == "assistant" and m.id.startswith("msg_") and text_of(m)
    assert m.stop_reason in ("end_turn", "max_tokens") and m.usage.output_tokens <= 12
    assert m._request_id
    # The SDK's own blocks go back unchanged.
    again = client.messages.create(**{**ASK, "messages": [*ASK["messages"], {"role": "assistant", "content": m.content}, {"role": "user", "content": "More."}]})
    assert prompt_of(again.usage) > prompt_of(m.usage)


def test_stream_folds_to_the_message(client):
    plain = client.messages.create(**ASK)
    order = []
    with client.messages.stream(**ASK) as stream:
        for event in stream:
            order.append(event.type)
        final = stream.get_final_message()
    assert order[0] == "message_start" and order[-1] == "message_stop"
    assert text_of(final) == text_of(plain) and final.stop_reason == plain.stop_reason
    assert final.usage.output_tokens == plain.usage.output_tokens and prompt_of(final.usage) == prompt_of(plain.usage)


def test_beta_route(client):
    m = client.beta.messages.create(**ASK, betas=["prompt-caching-2024-07-31"])
    assert m.type == "message"


def test_stop_sequence(client):
    # Any text of the answer can be a stop sequence: what stood before it is left.
    plain = text_of(client.messages.create(**ASK))
    stop = plain[2:4] if len(plain) >= 4 else plain[-1:]
    m = client.messages.create(**ASK, stop_sequences=[stop])
    assert m.stop_reason == "stop_sequence" and m.stop_sequence == stop and text_of(m) == plain[:plain.index(stop)]


def test_count_tokens_is_what_the_message_is_charged(client):
    tools = [{"name": "f", "description": "does things", "input_schema": {"type": "object", "properties": {"x": {"type": "integer"}}}}]
    for more in ({}, {"tools": tools}, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]}]}):
        ask = {**ASK, **more}
        count = client.messages.count_tokens(**{k: v for k, v in ask.items() if k not in ("max_tokens", "extra_body")})
        assert count.input_tokens == prompt_of(client.messages.create(**ask).usage)


def test_errors_arrive_as_the_right_exceptions(client):
    with pytest.raises(anthropic.BadRequestError) as e:
        client.messages.create(**{**ASK, "extra_body": {"temperature": 9}})
    assert e.value.body["error"]["type"] == "invalid_request_error" and "temperature" in e.value.body["error"]["message"] and e.value.request_id
    with pytest.raises(anthropic.BadRequestError) as e:
        client.messages.create(**{**ASK, "messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x/y.png"}}]}]})
    assert "image" in str(e.value)
    with pytest.raises(anthropic.BadRequestError) as e:
        client.messages.create(**{**ASK, "messages": [{"role": "user", "content": "x " * 20000}]})
    assert "maximum context length" in str(e.value)


def test_leaving_a_stream_cancels(client, server):
    with client.messages.stream(**{**ASK, "max_tokens": 2000, "extra_body": {"temperature": 1, "ignore_eos": True}}) as stream:
        next(iter(stream))
    server.idle()
