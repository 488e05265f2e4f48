"""The OpenAI Python SDK drives chat, streaming and logprobs."""
import pytest

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
