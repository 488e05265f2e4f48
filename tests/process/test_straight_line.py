"""A request goes HTTP -> frontend -> supervisor -> worker and back, in every form the API has."""
import json
import threading

import pytest

TEXT = "Tell me about the weather in Paris, caf\u00e9 \U0001f600, and in Oslo."


def test_chat_answers_in_openai_shape(server):
    r = server.chat(TEXT, max_tokens=12)
    assert r.status == 200, r.body
    j = r.json
    assert j["object"] == "chat.completion" and j["id"].startswith("chatcmpl-")
    assert isinstance(j["created"], int) and j["model"]
    (choice,) = j["choices"]
    assert choice["index"] == 0 and choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] in ("stop", "length")
    u = j["usage"]
    assert u["total_tokens"] == u["prompt_tokens"] + u["completion_tokens"]
    assert 1 <= u["completion_tokens"] <= 12
    assert r.headers["x-request-id"]


def test_streamed_equals_not_streamed(server):
    plain = server.chat(TEXT, max_tokens=40).json
    s = server.stream_chat(TEXT, max_tokens=40, stream_options={"include_usage": True})
    assert s.done and s.error is None
    assert s.text() == plain["choices"][0]["message"]["content"]
    assert s.finish() == plain["choices"][0]["finish_reason"]
    got, want = s.usage(), plain["usage"]
    for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert got[key] == want[key]
    first = s.events[0]["choices"][0]["delta"]
    assert first["role"] == "assistant"
    assert all("role" not in e["choices"][0]["delta"] for e in s.events[1:] if e["choices"])
    assert len({e["id"] for e in s.events}) == 1


def test_repeats_are_identical_and_hit_the_cache(server):
    prompt = TEXT * 8
    a = server.chat(prompt, max_tokens=24).json
    b = server.chat(prompt, max_tokens=24).json
    assert a["choices"][0]["message"]["content"] == b["choices"][0]["message"]["content"]
    assert b["usage"]["prompt_tokens_details"]["cached_tokens"] > 0


def test_neighbours_do_not_change_an_answer(server):
    """B125: at any place among sixteen, greedy and drawn, text and probabilities."""
    def told(content, **fields):
        choice = server.chat(content, max_tokens=32, logprobs=True, top_logprobs=2, **fields).json["choices"][0]
        return choice["message"]["content"], choice["logprobs"]

    drawn = dict(temperature=1.0, seed=7)
    alone, alone_drawn = told(TEXT + " alone"), told(TEXT + " alone", **drawn)
    for position in (0, 3, 15):
        answers = {}

        def ask(i):
            if i == position:
                answers[i] = told(TEXT + " alone")
            elif i == (position + 5) % 16:
                answers["drawn"] = told(TEXT + " alone", **drawn)
            else:
                answers[i] = told(f"neighbour {i} " + "x " * (17 * i))

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(16)]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert answers[position] == alone and answers["drawn"] == alone_drawn


def test_a_seed_gives_the_same_from_the_cache_and_without_it(server):
    """B128: computed anew, found in the cache, and after another conversation."""
    def told(**fields):
        choice = server.chat("Seeds. " + TEXT * 6, max_tokens=24, temperature=1.0, seed=11, logprobs=True, **fields).json
        return choice["choices"][0]["message"]["content"], choice["choices"][0]["logprobs"], choice["usage"]["prompt_tokens_details"]["cached_tokens"]

    anew, first, again = told(cache_prompt=False), told(), told()
    server.chat("Another conversation. " + TEXT * 5, max_tokens=24)
    later = told()
    assert anew[:2] == first[:2] == again[:2] == later[:2]
    assert anew[2] == 0 and again[2] > 0


def test_seed_reproduces_and_choices_differ(server):
    ask = dict(max_tokens=24, temperature=1.0, seed=42)
    a = server.chat(TEXT, **ask).json["choices"][0]["message"]["content"]
    b = server.chat(TEXT, **ask).json["choices"][0]["message"]["content"]
    assert a == b
    n = server.chat(TEXT, n=3, **ask).json
    texts = [c["message"]["content"] for c in n["choices"]]
    assert [c["index"] for c in n["choices"]] == [0, 1, 2]
    assert texts[0] == a and len(set(texts)) > 1
    unseeded = {server.chat(TEXT, max_tokens=24, temperature=1.0).json["choices"][0]["message"]["content"] for _ in range(3)}
    assert len(unseeded) > 1


def test_logprobs_join_to_the_text(server):
    j = server.chat(TEXT, max_tokens=10, logprobs=True, top_logprobs=3).json
    choice = j["choices"][0]
    content = choice["logprobs"]["content"]
    assert content and all(len(t["top_logprobs"]) == 3 and t["logprob"] <= 0 for t in content)
    raw = b"".join(bytes(t["bytes"]) for t in content)
    assert raw.decode("utf-8", "replace") == choice["message"]["content"]
    # Greedy: the chosen token is the best one.
    assert all(t["top_logprobs"][0]["logprob"] == t["logprob"] for t in content)


def test_a_bias_forces_a_token_and_bans_one(server):
    forced = server.post("/tokenize", {"content": "z", "add_special": False}).json["tokens"][-1]
    piece = server.post("/detokenize", {"tokens": [forced]}).json["content"]
    assert server.chat(TEXT, max_tokens=3, logit_bias={str(forced): 100}).json["choices"][0]["message"]["content"] == piece * 3

    def first(prompt, **fields):
        return bytes(server.chat(prompt, max_tokens=1, logprobs=True, **fields).json["choices"][0]["logprobs"]["content"][0]["bytes"])

    # Several tokens may have one text (a letter and its byte): all of that text are banned.
    vocabulary = server.get("/v1/models").json["data"][0]["meta"]["n_vocab"]
    greedy = next(text for text in (first(f"{TEXT} {i}") for i in range(20)) if text.isalnum())
    same = [i for i in range(vocabulary) if server.post("/detokenize", {"tokens": [i]}).json["content"].encode() == greedy]
    assert same
    for i in range(20):
        if first(f"{TEXT} {i}") == greedy:
            assert first(f"{TEXT} {i}", logit_bias={str(t): -100 for t in same}) != greedy


def test_probabilities_of_the_impossible_are_numbers(server):
    """A grammar leaves one legal token a step, and top_k one candidate: what is not there has no NaN and no infinity."""
    def refuse(name):
        raise AssertionError(f"{name} in JSON")

    for fields in ({"response_format": {"type": "regex", "pattern": "abc"}, "reasoning_effort": "none"}, {"top_k": 1, "max_tokens": 4}):
        body = server.chat(TEXT, logprobs=True, top_logprobs=20, **fields).body
        content = json.loads(body, parse_constant=refuse)["choices"][0]["logprobs"]["content"]
        assert content and all(len(t["top_logprobs"]) == 20 and t["logprob"] >= -9999 for t in content)


def test_completions_with_text_ids_and_echo(server):
    ids = server.post("/tokenize", {"content": "hello world", "add_special": True}).json["tokens"]
    assert ids and all(isinstance(i, int) for i in ids)
    a = server.post("/v1/completions", {"prompt": "hello world", "max_tokens": 8, "temperature": 0}).json
    b = server.post("/v1/completions", {"prompt": ids, "max_tokens": 8, "temperature": 0}).json
    assert a["object"] == "text_completion"
    assert a["choices"][0]["text"] == b["choices"][0]["text"]
    e = server.post("/v1/completions", {"prompt": "hello world", "max_tokens": 1, "temperature": 0, "echo": True, "logprobs": 2}).json["choices"][0]
    assert e["text"].startswith("hello world")
    lp = e["logprobs"]
    assert lp["token_logprobs"][0] is None and len(lp["tokens"]) == len(lp["token_logprobs"]) == len(lp["text_offset"])
    assert all(x is not None and x <= 0 for x in lp["token_logprobs"][1:])
    several = server.post("/v1/completions", {"prompt": ["one", "two"], "n": 2, "max_tokens": 3, "temperature": 0}).json
    assert [c["index"] for c in several["choices"]] == [0, 1, 2, 3]


def test_tokenize_round_trip(server):
    text = "The quick brown fox \u00e9\u4e2d\U0001f600 <|turn> {}"
    ids = server.post("/tokenize", {"content": text}).json["tokens"]
    assert server.post("/detokenize", {"tokens": ids}).json["content"] == text
    v = server.post("/tokenize", {"prompt": text}).json
    assert v["count"] == len(v["tokens"]) and v["max_model_len"] > 0


def test_models_and_health_routes(server):
    models = server.get("/v1/models").json
    assert models["object"] == "list" and models["data"][0]["object"] == "model"
    name = models["data"][0]["id"]
    assert server.get(f"/v1/models/{name}").json["id"] == name
    assert server.get("/v1/models/none-such").status == 404
    for path in ("/livez", "/readyz", "/health", "/health/live", "/health/ready"):
        assert server.get(path).status == 200, path


@pytest.mark.parametrize("body, param", [
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages"),
    ({"messages": [{"role": "user", "content": "x"}], "temperature": 3}, "temperature"),
    ({"messages": [{"role": "user", "content": "x"}], "max_tokens": 0}, "max_tokens"),
    ({"messages": [{"role": "user", "content": "x"}], "n": 1000000}, "n"),
    ({"messages": [{"role": "user", "content": "x"}], "logit_bias": {"99999999": 1}}, "logit_bias"),
    ({"messages": [{"role": "user", "content": "x"}], "response_format": {"type": "xml"}}, "response_format"),
    ({"messages": [{"role": "user", "content": "x"}], "tools": [{"type": "web_search"}]}, "tools[0].type"),
])
def test_bad_requests_are_400_in_openai_shape(server, body, param):
    r = server.post("/v1/chat/completions", body)
    assert r.status == 400, r.body
    error = r.json["error"]
    assert set(error) >= {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error" and (error["param"] or "").startswith(param)
    assert server.chat("still fine", max_tokens=2).status == 200


def test_prompt_longer_than_the_context_is_400_with_both_numbers(server):
    limit = server.post("/tokenize", {"prompt": "x"}).json["max_model_len"]
    for fields in ({}, {"stream": True}):
        r = server.chat("word " * (limit + 50), **fields)
        assert r.status == 400
        error = r.json["error"]
        assert error["code"] == "context_length_exceeded" and str(limit) in error["message"]
        assert error["n_ctx"] == limit and error["n_prompt_tokens"] > limit


def test_huge_max_tokens_is_clamped(server):
    r = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 10 ** 9, "temperature": 0,
                                             "stop": ["e", "a", "o", "i"]})
    assert r.status == 200


def test_stop_string_is_never_shown(loop_server):
    r = loop_server.chat("<S03>", max_tokens=60, stop=["w010 "]).json
    assert r["choices"][0]["message"]["content"] == "".join("w%03d " % i for i in range(10))
    assert r["choices"][0]["finish_reason"] == "stop"
    s = loop_server.stream_chat("<S03>", max_tokens=60, stop=["w010 "])
    assert s.text() == r["choices"][0]["message"]["content"]


def test_character_split_over_tokens(loop_server):
    s = loop_server.stream_chat("<S01>", max_tokens=40)
    assert s.text() == "Hi \U0001f600 done" and s.finish() == "stop"


def test_metrics_equal_the_usage_blocks(server):
    before = server.metrics()

    def total(m, name, **labels):
        return sum(v for k, v in m.get(name, {}).items() if set(labels.items()) <= set(k))

    prompt = generated = cached = 0
    for i in range(6):
        u = server.chat(f"count me {i % 3} " * (5 + i), max_tokens=3 + i).json["usage"]
        prompt += u["prompt_tokens"]
        generated += u["completion_tokens"]
        cached += u["prompt_tokens_details"]["cached_tokens"]
    server.idle()
    after = server.metrics()
    grown = lambda name, **labels: total(after, name, **labels) - total(before, name, **labels)
    assert grown("holdfast_generated_tokens_total") == generated
    assert grown("holdfast_prompt_tokens_total", source="cached") == cached
    assert grown("holdfast_prompt_tokens_total", source="computed") == prompt - cached


def test_page_states_sum_to_capacity(server):
    server.chat("pages", max_tokens=4)
    server.idle()
    status = server.status()
    m = server.metrics()["holdfast_pages"]
    for pool in status["pools"]:
        states = {dict(k)["state"]: v for k, v in m.items() if dict(k)["pool"] == pool["name"]}
        assert sum(v for s, v in states.items() if s != "unbacked") == pool["capacity"], states


def test_metrics_text_is_well_formed(server):
    text = server.get("/metrics")
    assert text.headers["content-type"].startswith("text/plain; version=0.0.4")
    seen = set()
    for line in text.body.decode().splitlines():
        if line.startswith("# TYPE"):
            family = line.split()[2]
            assert family not in seen, f"TYPE of {family} twice"
            seen.add(family)
        assert "nan" not in line.lower().split(" ")[-1:]
    for name in ("holdfast_pages", "holdfast_group_state", "holdfast_restarts_total", "holdfast_requests_total", "holdfast_queue_depth",
                 "holdfast_ttft_seconds", "holdfast_inter_token_seconds", "holdfast_step_seconds", "holdfast_health_lease_age_seconds"):
        assert name in seen, name


def test_log_lines_are_json_with_request_id(server):
    r = server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}, headers={"x-request-id": "trace-me-123"})
    assert r.headers["x-request-id"] == "trace-me-123"
    for line in server.stderr().splitlines():
        if line.startswith("{"):
            json.loads(line)


def test_cache_status(server):
    j = server.get("/v1/cache/status").json
    assert j["pools"] and all({"name", "capacity", "free", "floor"} <= set(p) for p in j["pools"])
