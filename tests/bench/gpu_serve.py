"""The serving half of gpu.sh: gpu_serve.py load|kill BACKEND MODEL [--short]. Prints Markdown; exits 1 with the reason when a check failed.

load: the field report's conversations (agent_load.py) with a window pool of 0.07, every one replayed alone.
kill: kill -9 of the worker in the middle of four answers, greedy and drawn; each must go on to the very text of an undisturbed run."""
import json
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "process"))
import harness  # noqa: E402


def check(ok, words):
    if not ok:
        print(f"FAILED: {words}")
        sys.exit(1)


def computes_on(server, backend):
    said = server.status()["backend"]
    check(said.startswith(backend), f"the worker computes on '{said}', not on {backend}")
    return said


def load(backend, model, short):
    with harness.Server(model, "--backend", backend, "--max-running-requests", 4, "--num-tokens", 131072 // (4 if short else 1), "--swa-full-tokens-ratio", "0.07") as s:
        computes_on(s, backend)
        flags = ["--conversations", 2, "--rounds", 1, "--turns", 2, "--system-words", 400, "--max-tokens", 16] if short else ["--conversations", 4, "--rounds", 4]
        r = subprocess.run([sys.executable, str(harness.SOURCE / "tests/support/agent_load.py"), "--base", s.url, "--tool-choice", "none", "--verify-solo", *map(str, flags)],
                           capture_output=True, text=True)
        check(r.stdout.strip(), f"the load ended without a word: {r.stderr[-2000:]}")
        out = json.loads(r.stdout.splitlines()[-1])
        status = s.idle(timeout=30)
        print("| conversations | requests | failures | differ from solo | findings | restarts | from the cache | first token, ms p50 / p99 | between tokens, ms p50 / p99 | tokens/s |")
        print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
        hit = out["cached_tokens"] / max(1, out["prompt_tokens"])
        figures = ["-"] * 3 if short else [f"{out['ttft_ms_p50']} / {out['ttft_ms_p99']}", f"{out['itl_ms_p50']} / {out['itl_ms_p99']}", out["tokens_per_s"]]
        print("|", " | ".join(map(str, [out["conversations"], out["requests"], out["failures"], out["differ"], len(status["findings"]), status["health"]["restarts"],
                                        f"{hit:.3f}", *figures])), "|")
        check(r.returncode == 0, f"the load: {r.stderr[-2000:]}")
        check(not status["findings"] and int(status["health"]["restarts"]) == 0, f"findings {status['findings']}, restarts {status['health']['restarts']}")


REQUESTS = [{"messages": [{"role": "user", "content": f"Tell me story number {i} about the sea."}], "ignore_eos": True, **draw}
            for i, draw in enumerate([{"temperature": 0}, {"temperature": 0}, {"temperature": 1, "seed": 7}, {"temperature": 0.7, "top_p": 0.9, "seed": 8}])]


def together(server, tokens, on_token=None):
    """The four answers at once; on_token(time) at each event of any of them."""
    streams = [None] * len(REQUESTS)

    def one(i):
        streams[i] = server.stream("/v1/chat/completions", {**REQUESTS[i], "max_tokens": tokens}, timeout=300, on_event=lambda events: on_token and on_token(time.monotonic()))

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(REQUESTS))]
    [t.start() for t in threads]
    [t.join() for t in threads]
    check(all(s is not None and s.error is None and s.done for s in streams), f"streams ended badly: {[s and s.error for s in streams]}")
    return [s.text() for s in streams]


def kill(backend, model, short):
    tokens = 60 if short else 400
    with harness.Server(model, "--backend", backend, "--max-running-requests", 4, "--num-tokens", 16384) as s:
        said = computes_on(s, backend)
        want = together(s, tokens)
        times, killed, lock = [], [], threading.Lock()

        def on_token(now):
            with lock:
                times.append(now)
                if len(times) == tokens and not killed:   # a quarter of all of them
                    pid = s.worker()
                    killed.append(time.monotonic())
                    os.kill(pid, signal.SIGKILL)

        got = together(s, tokens, on_token)
        check(killed, "the answers were over before the kill")
        check(got == want, "a text after the kill is not the undisturbed one")
        status = harness.wait_for(lambda: (t := s.status())["health"]["ready"] and t, 120, "ready again")
        check(int(status["health"]["restarts"]) == 1, f"{status['health']['restarts']} restarts after one kill")
        after = [killed[0]] + sorted(t for t in times if t > killed[0])
        gap, at = max((b - a, b) for a, b in zip(after, after[1:]))
        print("| model | backend | answers | texts as undisturbed | restarts | kill -9 to next token |\n| --- | --- | --- | --- | --- | --- |")
        print(f"| {pathlib.Path(model).name} | {said} | {len(got)} | all | 1 | {'-' if short else f'{at - killed[0]:.2f} s'} |")
        s.idle(timeout=30)


def main():
    what, backend, model = sys.argv[1:4]
    harness.START_TIMEOUT = 300
    {"load": load, "kill": kill}[what](backend, model, "--short" in sys.argv)


main()
