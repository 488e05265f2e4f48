"""The measuring half of restart.sh: restart.py KILLS MODEL..."""
import os
import pathlib
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
            os.kill(pid, signal.SIGKILL)

    stream = server.stream("/v1/chat/completions",
                           {"messages": [{"role": "user", "content": "Tell me a story about the sea."}], "max_tokens": kill_after + 12,
                            "temperature": 0, "ignore_eos": True}, timeout=600, on_event=on_event)
    assert stream.error is None, stream.error
    # Tokens that were under way when the kill fell may still arrive; the pause is the longest gap after it.
    after = [killed[0]] + [t for t in times if t > killed[0]]
    gap, at = max((b - a, b) for a, b in zip(after, after[1:]))
    return at - killed[0]


def measure(model, kills):
    """One server a kill: the first restart of a group is immediate, later ones in a row wait for the back-off."""
    harness.START_TIMEOUT = 600
    loads, cold, maps, ready, first = [], [], [], [], []
    for _ in range(kills):
        begin = time.monotonic()
        with harness.Server(model, "--num-tokens", "4096", "--max-seq-len", "2048") as s:
            cold.append(time.monotonic() - begin)
            status = s.status()
            assert not status["mapped_weights"]
            loads.append(int(status["weights_ms"]))
            s.chat("warm", max_tokens=4)
            first.append(interrupted_stream(s, 8))
            status = harness.wait_for(lambda: (t := s.status())["health"]["ready"] and t, 60, "ready again")
            assert status["mapped_weights"]
            maps.append(int(status["weights_ms"]))
            ready.append(int(status["load_ms"]))
    weights, backend = int(status["weight_bytes"]), status["backend"]
    return (f"| {pathlib.Path(model).name} | {weights / 2**20:.0f} MiB | {statistics.median(loads):.0f} ms | {statistics.median(maps):.0f} ms | "
            f"{statistics.median(ready):.0f} ms | {statistics.median(cold):.2f} s | {statistics.median(first):.2f} s (worst of {kills}: {max(first):.2f} s) | {backend} |")


def main():
    kills = int(sys.argv[1])
    print("| model | weights | load | map | worker ready after a map | serve, cold, to ready | kill -9 to next token | backend |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for model in sys.argv[2:]:
        print(measure(model, kills), flush=True)


main()
