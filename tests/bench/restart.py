"""The measuring half of restart.sh: restart.py KILLS MODEL..."""
import datetime
import json
import os
import pathlib
import re
import signal
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "process"))
import harness  # noqa: E402


def interrupted_stream(server, kill_after):
    """Seconds from kill -9 of the worker, some tokens into a stream, to the next token the client sees."""
    times = []
    killed = []

    def on_event(events):
        now = time.monotonic()
        text = any((c["delta"].get("content") or "") for c in events[-1].get("choices", []))
        if not text:
            return
        times.append(now)
        if len(times) == kill_after:
            pid = server.pids("holdfast-worker")[0]
            killed.append(time.monotonic())
            killed.append(time.time())
            os.kill(pid, signal.SIGKILL)

    stream = server.stream("/v1/chat/completions",
                           {"messages": [{"role": "user", "content": "Tell me a story about the sea."}], "max_tokens": kill_after + 12,
                            "temperature": 0, "ignore_eos": True}, timeout=600, on_event=on_event)
    assert stream.error is None, stream.error
    # Tokens that were under way when the kill fell may still arrive; the pause is the longest gap after it.
    after = [killed[0]] + [t for t in times if t > killed[0]]
    gap, at = max((b - a, b) for a, b in zip(after, after[1:]))
    return at - killed[0], killed[1]


# What the logs say between the kill and the first token, in order.
STAGES = [("noticed", "the worker ended"), ("spawned", "spawned a worker"), ("worker up", "backend: "), ("built", "built in "), ("serving", "serving"),
          ("resumed", " resumes after ")]


def timeline(log, killed, first_token):
    """Milliseconds from the kill to each stage; and how the building went, in the worker's words."""
    at, built = {}, ""
    for line in log.splitlines():
        if not line.startswith("{"):
            continue
        entry = json.loads(line)
        when = datetime.datetime.fromisoformat(entry["ts"].replace("Z", "+00:00")).timestamp()
        if when < killed - 0.002:
            continue
        for name, words in STAGES:
            if name not in at and (entry["msg"] == words or (len(words) > 8 and words in entry["msg"])):
                at[name] = 1000 * (when - killed)
                if name == "built":
                    built = re.sub(r"^built in \d+ ms:", "", entry["msg"]).strip()
    at["first token"] = 1000 * first_token
    return at, built


def measure(model, kills):
    """One server a kill: the first restart of a group is immediate, later ones in a row wait for the back-off."""
    harness.START_TIMEOUT = 600
    loads, cold, maps, ready, first, lines = [], [], [], [], [], []
    for _ in range(kills):
        begin = time.monotonic()
        with harness.Server(model, "--num-tokens", "4096", "--max-seq-len", "2048") as s:
            cold.append(time.monotonic() - begin)
            status = s.status()
            assert not status["mapped_weights"]
            loads.append(int(status["weights_ms"]))
            s.chat("warm", max_tokens=4)
            took, killed = interrupted_stream(s, 8)
            first.append(took)
            lines.append(timeline(s.stderr(), killed, took))
            status = harness.wait_for(lambda: (t := s.status())["health"]["ready"] and t, 60, "ready again")
            assert status["mapped_weights"]
            maps.append(int(status["weights_ms"]))
            ready.append(int(status["load_ms"]))
    at, built = lines[first.index(sorted(first)[len(first) // 2])]
    print("timeline of the median, ms after the kill: " + ", ".join(f"{name} {ms:.0f}" for name, ms in at.items()) + f"; building, ms each: {built}", file=sys.stderr, flush=True)
    weights, backend = int(status["weight_bytes"]), status["backend"]
    return (f"| {pathlib.Path(model).name} | {weights / 2**20:.0f} MiB | {statistics.median(loads):.0f} ms | {statistics.median(maps):.0f} ms | "
            f"{statistics.median(ready):.0f} ms | {statistics.median(cold):.2f} s | {statistics.median(first):.2f} s (best {min(first):.2f} s, worst {max(first):.2f} s of {kills}) | {backend} |")


def main():
    kills = int(sys.argv[1])
    print("| model | weights | load | map | worker ready after a map | serve, cold, to ready | kill -9 to next token | backend |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for model in sys.argv[2:]:
        print(measure(model, kills), flush=True)


main()
