#!/usr/bin/env python3
"""The second oracle: plays the logs of kv_log (tests/sim/transcript.h) on the executable model of worker/kv and worker/sched. After every
command the digest, the plan, the number of requests and nodes and the state of every pool must be those of the C++; the model checks its own
pages and the content every step reads.

usage: replay.py KV_LOG [--first SEED] [--count N] [--commands N]      HOLDFAST_LONG=n: n times as many"""
import argparse
import os
import subprocess
import sys
import time

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

from pages import FREE, HELD, QUARANTINED, RETIRING, Disagreement, mix  # noqa: E402
from scheduler import Config, Scheduler  # noqa: E402


def numbers(text, separator=","):
    return [] if text == "-" else [int(x) for x in text.split(separator)]


class Replay:
    def __init__(self):
        self.scheduler, self.content, self.salts, self.steps = None, {}, {}, 0
        self.awaited = {}  # [request, position] token of a step launched before it was told

    def do(self, words):
        s = self.scheduler
        kind, rest = words[0], words[1:]
        if kind == "config":
            groups = [numbers(g, ":") for g in rest[7:]]
            self.scheduler = Scheduler(Config(*map(int, rest[:7]), *[[g[i] for g in groups] for i in range(3)]))
        elif kind == "submit":
            request, prompt, most, private, logprobs, ahead = map(int, rest[:6])
            self.salts[request] = hash((rest[6], request if private else 0))
            s.submit(request, numbers(rest[8]), prompt, most, numbers(rest[7]), rest[6], bool(private), bool(logprobs), bool(ahead))
        elif kind == "plan":
            plan = s.plan()
            for g, a, b in s.moves:
                for i in range(s.ps):
                    self.content[g, b, i] = self.content.get((g, a, i))
            s.moves.clear()
            text = ["-"] if plan is None else [f"{e.request}:{e.start}:{e.tokens}:{int(e.sample)}:{'token' if e.awaits else '-'}" for e in plan]
            # Which token an entry awaits is the log's to say.
            for request, start, _, _, token in (w.split(":") for w in rest if not w.endswith("-")):
                self.awaited[int(request), int(start)] = int(token)
            if text != [w if w.endswith("-") else w[:w.rindex(":")] + ":token" for w in rest]:
                raise Disagreement(f"plan {' '.join(text)}")
            self.run(plan or [])
        elif kind == "apply":
            s.apply([] if rest == ["-"] else [(r, t, bool(stop), bool(failed)) for r, t, stop, failed in (numbers(x, ":") for x in rest)])
        elif kind == "cancel":
            s.cancel(int(rest[0]))
        elif kind == "evict":
            for _ in range(int(rest[1])):
                s.ledger.evict(int(rest[0]))
        elif kind == "suspect":
            s.suspect(int(rest[0]), int(rest[1]))
        elif kind == "resize":
            s.resize(*map(int, rest[:3]), rest[3] == "1")
        elif kind == "reset":
            s.ledger.reset()
        elif kind == "state":
            state = self.state()
            if state != rest:
                raise Disagreement(f"state {' '.join(state)}")
            s.audit()
        else:
            raise Disagreement("no such command")

    def state(self):
        s = self.scheduler
        pools = [":".join(map(str, (a.count(FREE), a.row_held(), a.count(HELD) - a.row_held(), a.count(RETIRING), a.count(QUARANTINED))))
                 for a in s.ledger.arenas]
        return [f"{s.digest():016x}", str(len(s.active)), str(len(s.waiting)), str(sum(1 for _ in s.ledger.nodes())), *pools]

    def run(self, plan):
        """KV is a function of the path: what a step may see must have been written for its own tokens."""
        s = self.scheduler
        self.steps += len(plan) > 0
        tags = {}
        for e in plan:
            q, tag, path = s.requests[e.request], self.salts[e.request], []
            known = len(q.tokens)
            for t in q.tokens[:e.start + e.tokens] + [self.awaited[e.request, i] for i in range(known, e.start + e.tokens)]:
                tag = mix((tag ^ (t + 1)) & (1 << 64) - 1)
                path.append(tag)
            tags[e.request] = path
            for g, table in enumerate(q.row.pages):
                for i in range(e.start, e.start + e.tokens):
                    self.content[g, table[i // s.ps][0], i % s.ps] = path[i]
        for e in plan:
            for g, table in enumerate(s.requests[e.request].row.pages):
                w = s.c.windows[g]
                for i in range(max(0, e.start - w + 1) if w else 0, e.start + e.tokens):
                    handle = table[i // s.ps]
                    if handle is None or self.content.get((g, handle[0], i % s.ps)) != tags[e.request][i]:
                        raise Disagreement(f"request {e.request} reads wrong KV at {i} of group {g}")


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument("kv_log")
    ap.add_argument("--first", type=int, default=1)
    ap.add_argument("--count", type=int, default=120)
    ap.add_argument("--commands", type=int, default=200)
    a = ap.parse_args()
    count = a.count * max(1, int(os.environ.get("HOLDFAST_LONG", "1")))
    begin = time.time()
    producer = subprocess.Popen([a.kv_log, str(a.first), str(count), str(a.commands)], stdout=subprocess.PIPE, text=True)
    seed, replay, logs, commands, steps, ended = None, None, 0, 0, 0, False
    for number, line in enumerate(producer.stdout, 1):
        words = line.split()
        if words[0] == "end":
            ended = True
            break
        if words[0] == "log":
            steps += replay.steps if replay else 0
            seed, replay, logs = words[1], Replay(), logs + 1
            continue
        commands += words[0] not in ("state", "config")
        try:
            replay.do(words)
        except Disagreement as e:
            print(f"seed {seed} line {number}: {line.strip()[:300]}\nthe model: {e}")
            producer.kill()
            return 1
    code = producer.wait()
    if code != 0 or not ended or logs != count:
        print(f"kv_log ended with {code} after {logs} of {count} logs")
        return 1
    print(f"{logs} logs, {commands} commands, {steps + replay.steps} steps: the same digest after every command, {time.time() - begin:.0f} s")
    return 0


sys.exit(main())
