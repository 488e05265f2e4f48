"""LangChain's ChatOpenAI drives chat, streams and structured messages."""
import pytest

langchain_openai = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed (PyPI could not be reached)")

from langchain_core.messages import AIMessage, HumanMessage, SystemMessage  # noqa: E402


def model(server, **more):
    return langchain_openai.ChatOpenAI(base_url=server.url + "/v1", api_key="unused", model="any", max_retries=0, timeout=60, temperature=0, max_tokens=12, **more)


HISTORY = [SystemMessage("Be brief."), HumanMessage("Hello."), AIMessage("Hi."), HumanMessage("Say something.")]


def test_chat_and_stream_say_the_same(server):
    answer = model(server).invoke(HISTORY)
    assert answer.content and answer.response_metadata["finish_reason"] in ("stop", "length")
    assert answer.usage_metadata["total_tokens"] == answer.usage_metadata["input_tokens"] + answer.usage_metadata["output_tokens"]
    chunks = list(model(server, stream_usage=True).stream(HISTORY))
    assert "".join(c.content for c in chunks) == answer.content
    whole = chunks[0]
    for c in chunks[1:]:
        whole += c
    assert whole.usage_metadata["output_tokens"] == answer.usage_metadata["output_tokens"]


def test_responses_api(server):
    chat, responses = model(server).invoke(HISTORY), model(server, use_responses_api=True).invoke(HISTORY)
    assert responses.text == chat.text and responses.usage_metadata["output_tokens"] == chat.usage_metadata["output_tokens"]
    streamed = "".join(c.text for c in model(server, use_responses_api=True).stream(HISTORY))
    assert streamed == chat.text


def test_batch(server):
    answers = model(server).batch([HISTORY, HISTORY[:2], HISTORY])
    assert answers[0].content == answers[2].content
