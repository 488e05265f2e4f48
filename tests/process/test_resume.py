"""A generation that is lost at any step goes on as if nothing had happened: the client's bytes equal those of an undisturbed run."""
import json
import os

import pytest

import harness
from harness import Server, model_file, wait_for

PROMPT = "Tell me a long story about the sea, the wind and the harbour."
VARIANTS = {
    "greedy": dict(temperature=0, ignore_eos=True),
    "seeded": dict(temperature=1.0, seed=1234, top_p=0.95, ignore_eos=True),
    "stop": dict(temperature=1.0, seed=7, stop=["zzzzzz", "\n\n\n\n\n\n"], ignore_eos=True),
    "choices": dict(temperature=1.0, seed=99, n=2, ignore_eos=True),
    "logprobs": dict(temperature=0.8, seed=5, logprobs=True, top_logprobs=2, ignore_eos=True),
    "penalties": dict(temperature=0.7, seed=21, presence_penalty=0.5, frequency_penalty=0.8, repetition_penalty=1.1, top_k=40, ignore_eos=True),
}
TOKENS = 200


def body(variant):
    return {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": TOKENS, **VARIANTS[variant]}


def strip(j):
    """What a client keeps: everything but the identity of the answer."""
    return json.dumps([{k: c[k] for k in ("index", "message", "finish_reason", "logprobs")} for c in j["choices"]], sort_keys=True), {
        k: j["usage"][k] for k in ("prompt_tokens", "completion_tokens", "total_tokens")}


def assemble(stream, n):
    assert stream.done and stream.error is None, stream.error
    out = []
    for i in range(n):
        logprobs = [t for e in stream.events for c in e["choices"] if c["index"] == i and c.get("logprobs") for t in c["logprobs"]["content"]]
        out.append([stream.text(i), stream.finish(i), logprobs])
    return out


@pytest.fixture(scope="module")
def undisturbed():
    with Server(model_file("random-gemma4")) as s:
        plain = {v: strip(s.post("/v1/chat/completions", body(v)).json) for v in VARIANTS}
        streamed = {v: assemble(s.stream("/v1/chat/completions", body(v)), VARIANTS[v].get("n", 1)) for v in VARIANTS}
        return plain, streamed


def lost_at(step, action="abort"):
    return {"HOLDFAST_FAULT": f"worker.step:{action}:{step}", "HOLDFAST_FAULT_GENERATION": "1"}


# Step 1 is the prefill, step k the k-th token. Every variant at points spread over the run; greedy at more of them.
POINTS = [1, 2, 3, 17, 64, 100, 199, 200]


@pytest.mark.parametrize("variant", list(VARIANTS))
def test_lost_at_spread_points(variant, undisturbed):
    plain, streamed = undisturbed
    points = POINTS if variant != "greedy" else sorted(set(POINTS + list(range(5, 200, 13))))
    for step in points:
        with Server(model_file("random-gemma4"), env=lost_at(step)) as s:
            if step % 2:
                assert strip(s.post("/v1/chat/completions", body(variant)).json) == plain[variant], f"lost at step {step}"
            else:
                got = assemble(s.stream("/v1/chat/completions", body(variant)), VARIANTS[variant].get("n", 1))
                assert got == streamed[variant], f"lost at step {step}"
            assert int(s.status()["health"]["restarts"]) == 1, "the fault did not happen"


@pytest.mark.parametrize("action", ["exit=70", "exit=71", "exit=1", "hang", "stop"])
def test_other_ways_to_be_lost(action, undisturbed):
    plain, _ = undisturbed
    with Server(model_file("random-gemma4"), env=lost_at(40, action)) as s:
        if action in ("hang", "stop"):
            # A hang is found by the supervisor's watch over steps, 30 s by default; the test kills instead of waiting for it.
            import threading
            import time
            def end():
                time.sleep(1.0)
                os.kill(s.worker(), 9)
            threading.Thread(target=end).start()
        assert strip(s.post("/v1/chat/completions", body("seeded")).json) == plain["seeded"]
        assert int(s.status()["health"]["restarts"]) == 1


def test_several_streams_resume_together(undisturbed):
    _, streamed = undisturbed
    import threading
    with Server(model_file("random-gemma4"), env=lost_at(120)) as s:
        got = {}
        threads = [threading.Thread(target=lambda v=v: got.__setitem__(v, assemble(s.stream("/v1/chat/completions", body(v)), VARIANTS[v].get("n", 1))))
                   for v in VARIANTS]
        [t.start() for t in threads]
        [t.join() for t in threads]
        assert got == streamed
        assert int(s.status()["health"]["restarts"]) == 1
        s.idle()
        resumed = sum(s.metrics()["holdfast_resumes_total"].values())
        assert resumed >= 1


def test_a_request_in_flight_at_two_losses_fails_alone():
    """Poison: the prefill of one request kills two generations; a third is not tried, and it says so in a way that SDKs do not retry."""
    # The first step of every generation dies: the request never gets anywhere.
    with Server(model_file("random-gemma4"), env={"HOLDFAST_FAULT": "worker.step:abort:1"}) as s:
        r = s.post("/v1/chat/completions", body("greedy"))
        assert r.status == 500, r.body
        assert r.json["error"]["code"] == "request_quarantined"
        assert r.headers.get("x-should-retry") == "false"
        wait_for(lambda: int(s.status()["health"]["restarts"]) == 2 and s.health() == 200, 20, "the third generation serves")
        # Sent again by a client that does not listen: refused without a third loss.
        again = s.post("/v1/chat/completions", body("greedy"))
        assert again.status == 500 and again.json["error"]["code"] == "request_quarantined"
        assert int(s.status()["health"]["restarts"]) == 2
        assert s.health() == 200
        # An operator sees it and lets it in again.
        entry, = s.get("/v1/quarantine").json["data"]
        assert entry["losses"] == 2 and entry["refused"] == 1 and entry["position"] == 0 and 0 < entry["remaining_ms"] <= 600_000
        fingerprint = entry["fingerprint"]
        assert fingerprint in s.ctl("quarantine").stdout
        assert s.request("DELETE", "/v1/quarantine/0123").status == 404
        assert s.request("DELETE", "/v1/quarantine/xyz").status == 400
        assert s.request("POST", "/v1/quarantine", {}).status == 405
        cleared = s.request("DELETE", f"/v1/quarantine/{fingerprint}")
        assert cleared.status == 200 and cleared.json == {"object": "quarantine.cleared", "cleared": 1}
        assert s.get("/v1/quarantine").json["data"] == []
        assert "no request" in s.ctl("quarantine").stdout
        assert s.request("DELETE", "/v1/quarantine").json["cleared"] == 0
        assert s.ctl("quarantine", "--clear", fingerprint, check=False).returncode == 1
        assert s.ctl("quarantine", "--clear", "all").stdout.startswith("0 ")


def test_a_request_that_only_waits_is_no_poison():
    """Two losses while it stands in the queue behind a request that fills the only slot: it was never computed, so it is not to blame."""
    import threading
    with Server(model_file("script"), "--max-running-requests", 1, env={"HOLDFAST_FAULT": "worker.step:sleep=20:1+"}) as s:
        seen, got = {"runs": 0, "waits": 0}, {}

        def ask(name, content):
            got[name] = s.stream_chat(content, max_tokens=120, on_event=lambda events: seen.__setitem__(name, len(events)))
        threads = [threading.Thread(target=ask, args=a) for a in (("runs", "<S03>"), ("waits", "And once more: <S03>"))]
        threads[0].start()
        wait_for(lambda: seen["runs"] > 3, 20, "tokens")
        threads[1].start()
        wait_for(lambda: int(s.status()["health"]["waiting"]) == 1, 20, "one waits")
        for _ in range(2):
            before = seen["runs"]
            os.kill(s.worker(), 9)
            wait_for(lambda: seen["runs"] > before + 3, 20, "the stream goes on")
        [t.join() for t in threads]
        story = " ".join(f"w{i:03d}" for i in range(120))
        for name in seen:
            assert got[name].error is None and got[name].text().strip().startswith(story[:400]), name
            assert got[name].finish() == "length"
        assert s.get("/v1/quarantine").json["data"] == []
