#!/usr/bin/env python3
"""The promise, shown: the field report's load against a running server, a kill -9 of its worker in the middle, and an audit at the end.

  demo.py --base http://127.0.0.1:8080 --serve-pid PID [--conversations 4] [--turns 4] [--rounds 1] [--system-tokens 1500] [--kills 1]
          [--tool-choice auto|required] [--json OUT]

Conversations run at once, share a long system prompt, are offered tools and get the tools' results back; every answer is streamed and greedy.
When streams are in the middle of their answers the worker of the server that PID started is killed with SIGKILL: the streams must go on.
Afterwards every answer that was under way at a kill, and the first of each conversation, is asked for again alone: the same bytes must come.
A request that begins while there is no worker is put off with 503 and Retry-After, as any server does it, and sent again.
Exit 0 only if no request failed, every kill was survived, no token was lost or doubled, calls were made, every page is accounted for and the
prefix cache was used. Standard library only; talks to the given address and kills only a worker below PID."""
import argparse
import http.client
import json
import os
import random
import signal
import sys
import threading
import time
import urllib.parse

HERE = os.path.dirname(os.path.abspath(__file__))
TOOLS_FILE = os.path.join(HERE, "..", "frontend", "console", "demo_tools.json")
RULES = ("read every rule before you call a tool . never guess an argument that the user has not given . report errors in plain words . keep "
         "answers short . the units are metric . ask again when the date is missing . do not repeat a call that already succeeded . use a tool "
         "when it fits and say so when none does .").split()


def parse_args():
    ap = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    ap.add_argument("--base", default="http://127.0.0.1:8080")
    ap.add_argument("--serve-pid", type=int, required=True, help="the process that runs `holdfast serve`")
    ap.add_argument("--conversations", type=int, default=4)
    ap.add_argument("--turns", type=int, default=4)
    ap.add_argument("--rounds", type=int, default=1, help="how many conversations one after another, of each that runs at once")
    ap.add_argument("--max-tokens", type=int, default=96)
    ap.add_argument("--system-tokens", type=int, default=1500, help="length of the shared system prompt, about")
    ap.add_argument("--kills", type=int, default=1)
    ap.add_argument("--tool-choice", default="auto", choices=["auto", "required"])
    ap.add_argument("--seed", type=int, default=1)
    ap.add_argument("--json", default="", help="write the audit there too")
    return ap.parse_args()


def fnv1a(text):
    h = 2166136261
    for byte in text.encode("utf-8", "surrogatepass"):
        h = (h ^ byte) * 16777619 & 0xFFFFFFFF
    return h


class Server:
    """The server as this client sees it."""

    def __init__(self, base):
        url = urllib.parse.urlparse(base)
        self.host, self.port = url.hostname, url.port or 80

    def connect(self, timeout=120):
        return http.client.HTTPConnection(self.host, self.port, timeout=timeout)

    def call(self, method, path, body=None):
        c = self.connect(30)
        try:
            c.request(method, path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json"})
            r = c.getresponse()
            return r.status, json.loads(r.read() or b"null")
        finally:
            c.close()

    def tokens_of(self, text):
        status, body = self.call("POST", "/tokenize", {"content": text})
        if status != 200:
            raise RuntimeError("/tokenize answered %d: %s" % (status, body))
        return len(body["tokens"])


class Answer:
    """One streamed answer, also while it comes."""

    def __init__(self):
        self.text, self.reasoning, self.calls, self.finish, self.usage, self.pieces = "", "", {}, None, None, 0

    def take(self, event):
        if event.get("error"):
            raise RuntimeError("error in the stream: %s" % event["error"].get("message"))
        self.usage = event.get("usage") or self.usage
        for choice in event["choices"]:
            delta = choice.get("delta") or {}
            self.text += delta.get("content") or ""
            self.reasoning += delta.get("reasoning_content") or ""
            for part in delta.get("tool_calls") or []:
                call = self.calls.setdefault(part["index"], {"id": "", "name": "", "arguments": ""})
                function = part.get("function") or {}
                call["id"] = part.get("id") or call["id"]
                call["name"] += function.get("name") or ""
                call["arguments"] += function.get("arguments") or ""
            if delta.get("content") or delta.get("tool_calls") or delta.get("reasoning_content"):
                self.pieces += 1
            if choice.get("finish_reason"):
                if self.finish:
                    raise RuntimeError("two finish reasons in one stream")
                self.finish = choice["finish_reason"]

    def essence(self):
        return [self.text, self.reasoning, [[c["name"], c["arguments"]] for _, c in sorted(self.calls.items())], self.finish]


class Demo:
    def __init__(self, args):
        self.args, self.server = args, Server(args.base)
        self.tools = [t for t in json.load(open(TOOLS_FILE, encoding="utf-8")) if t["offered"]]
        self.lock = threading.Lock()
        self.lanes = [{"round": 0, "turn": 0, "state": "starts", "last": ""} for _ in range(args.conversations)]
        self.requests = self.calls = self.failed = self.tokens = self.prompt = self.cached = self.turns = self.conversations = self.put_off = 0
        self.failures, self.log = [], []       # log: (messages, choice, essence, was under way at a kill)
        self.under_way = {}                    # lane -> Answer
        self.struck = set()                    # answers that were under way at a kill
        self.kills, self.recoveries = 0, []
        self.engine, self.restarts = "", None  # what it does; how often it was lost before
        self.news = []                         # what happened, a line each
        self.began = time.monotonic()
        self.done = threading.Event()

    # ---- the load ---------------------------------------------------------------------------------------------------
    def ask(self, messages, choice, lane=None):
        body = {"messages": messages, "tools": [{"type": t["type"], "function": t["function"]} for t in self.tools], "tool_choice": choice,
                "max_tokens": self.args.max_tokens, "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
        give_up = time.monotonic() + 60
        while True:
            answer = self.send(body, lane, give_up)
            if answer is not None:
                return answer

    def send(self, body, lane, give_up):
        """The answer, or None when the request was put off: it is to be sent again."""
        answer, finished = Answer(), False
        if lane is not None:
            with self.lock:
                self.under_way[lane] = answer
        c = self.server.connect()
        try:
            c.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
            r = c.getresponse()
            if r.status == 503 and r.getheader("Retry-After") and time.monotonic() < give_up:
                with self.lock:
                    self.put_off += 1
                # Sooner than asked: it is a moment, and somebody watches.
                time.sleep(min(0.25, float(r.getheader("Retry-After"))))
                return None
            if r.status != 200:
                raise RuntimeError("HTTP %d: %s" % (r.status, r.read(300).decode("utf-8", "replace")))
            for line in r:
                line = line.strip()
                if line == b"data: [DONE]":
                    finished = True
                    break
                if line.startswith(b"data:"):
                    answer.take(json.loads(line[5:]))
        finally:
            c.close()
            if lane is not None:
                with self.lock:
                    self.under_way.pop(lane, None)
        if not finished or answer.finish is None:
            raise RuntimeError("the stream broke off")
        for call in answer.calls.values():
            if answer.finish != "length" and not isinstance(json.loads(call["arguments"]), dict):
                raise RuntimeError("a call whose arguments are no object: %s" % call)
        return answer

    def result_of(self, call, arguments):
        """What the tool answers: made up, but always the same for the same call (frontend/console/demo_tools.h says how)."""
        stub = next((t["stub"] for t in self.tools if t["function"]["name"] == call["name"]), None)
        if stub is None:
            return {"error": "there is no tool " + call["name"]}
        seed = call["name"] + json.dumps(arguments, separators=(",", ":"), ensure_ascii=False) + "/"
        result = {}
        for member, rule in stub.items():
            h = fnv1a(seed + member)
            if "value" in rule:
                result[member] = rule["value"]
            elif "choice" in rule:
                result[member] = rule["choice"][h % len(rule["choice"])]
            else:
                low, high = rule["range"]
                result[member] = low + h % (high - low + 1)
        return result

    def converse(self, lane, r):
        view, messages = self.lanes[lane], [{"role": "system", "content": self.system}]
        for turn in range(self.args.turns):
            view.update(turn=turn + 1, state="asks")
            messages.append({"role": "user", "content": r.choice(r.choice(self.tools)["examples"])})
            for step in range(2):
                choice = self.args.tool_choice if step == 0 else "auto"
                view.update(state="waits")
                answer = self.ask(messages, choice, lane)
                with self.lock:
                    self.requests += 1
                    self.calls += len(answer.calls)
                    usage = answer.usage or {}
                    self.tokens += usage.get("completion_tokens", 0)
                    self.prompt += usage.get("prompt_tokens", 0)
                    self.cached += (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
                    self.log.append((list(messages), choice, answer.essence(), answer in self.struck, len(messages) == 2))
                message = {"role": "assistant", "content": answer.text or None}
                if answer.finish != "tool_calls":
                    message["content"] = answer.text or "..."
                    messages.append(message)
                    view.update(last=answer.text.replace("\n", " "))
                    break
                calls = [c for _, c in sorted(answer.calls.items())]
                message["tool_calls"] = [{"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}} for c in calls]
                messages.append(message)
                for c in calls:
                    result = json.dumps(self.result_of(c, json.loads(c["arguments"])), separators=(",", ":"))
                    messages.append({"role": "tool", "tool_call_id": c["id"], "content": result})
                    view.update(state="calls", last="%s(%s) -> %s" % (c["name"], c["arguments"], result))
            with self.lock:
                self.turns += 1

    def lane_main(self, lane):
        r = random.Random(self.args.seed * 1009 + lane)
        view = self.lanes[lane]
        try:
            for n in range(self.args.rounds):
                view.update(round=n + 1)
                self.converse(lane, r)
                with self.lock:
                    self.conversations += 1
            view.update(state="done")
        except Exception as e:  # a lane's end is a finding of the demo, not of Python
            with self.lock:
                self.failed += 1
                self.failures.append("conversation %d: %s: %s" % (lane + 1, type(e).__name__, e))
            view.update(state="FAILED")

    # ---- the kill ---------------------------------------------------------------------------------------------------
    def worker_pids(self):
        parents, names = {}, {}
        for entry in os.listdir("/proc"):
            if entry.isdigit():
                try:
                    with open("/proc/%s/stat" % entry) as f:
                        text = f.read()
                except OSError:
                    continue
                parents[int(entry)] = int(text[text.rindex(")") + 2:].split()[1])
                names[int(entry)] = text[text.index("(") + 1:text.rindex(")")]
        found = []
        for pid, name in names.items():
            if name.startswith("holdfast-worker"):
                up = pid
                while up > 1 and up != self.args.serve_pid:
                    up = parents.get(up, 0)
                if up == self.args.serve_pid:
                    found.append(pid)
        return found

    def killer_main(self):
        for n in range(self.args.kills):
            due = (n + 1) * self.args.conversations * self.args.turns * self.args.rounds / (self.args.kills + 1)
            while not self.done.is_set():
                with self.lock:
                    ripe = self.turns >= due and sum(1 for a in self.under_way.values() if a.pieces >= 2) >= 1
                    if ripe:
                        pids = self.worker_pids()
                        for pid in pids:
                            os.kill(pid, signal.SIGKILL)
                        if pids:
                            self.struck |= set(self.under_way.values())
                            self.kills += 1
                            struck = [(a, a.pieces) for a in self.under_way.values()]
                            killed = time.monotonic()
                            break
                time.sleep(0.002)
            else:
                return
            self.say("kill -9 of worker %s with %d streams under way" % (", ".join(map(str, pids)), len(struck)))
            time.sleep(0.1)  # what the dead worker had sent arrives
            struck = [(a, a.pieces) for a, _ in struck if a.finish is None]
            while struck and not any(a.pieces > before or a.finish for a, before in struck) and not self.failed:
                time.sleep(0.005)
            if not struck:  # they had all been sent whole: what counts is when the next one could begin
                self.wait_healthy()
            self.recoveries.append(time.monotonic() - killed)
            self.say("the first of them goes on after %.2f s" % self.recoveries[-1])

    # ---- what a person sees -----------------------------------------------------------------------------------------
    def say(self, text):
        with self.lock:
            self.news.append("%6.1f s  %s" % (time.monotonic() - self.began, text))
        if not sys.stdout.isatty():
            print(self.news[-1], flush=True)

    def pools(self):
        try:
            status, body = self.server.call("GET", "/v1/cache/status")
            return body["pools"] if status == 200 else []
        except (OSError, ValueError):
            return []

    def look_at_engine(self):
        """What it does, and how often it was lost: others may kill it, too."""
        try:
            _, body = self.server.call("GET", "/health")
            self.engine = "generation %s, %s" % (body.get("generation", "?"), body.get("state", "?"))
            return int(body.get("restarts", 0))
        except (OSError, ValueError, AttributeError, http.client.HTTPException):
            self.engine = "does not answer"
            return None

    def screen_main(self):
        drawn, last = 0, (self.began, 0)
        while True:
            ended = self.done.wait(0.5 if sys.stdout.isatty() else 3)
            now = time.monotonic()
            pools = self.pools()
            self.look_at_engine()
            with self.lock:
                lines = ["", "%5.1f s   %d of %d conversations   %d requests   %d calls   %d failed" % (
                    now - self.began, self.conversations, self.args.conversations * self.args.rounds, self.requests, self.calls, self.failed),
                    "          %d tokens, %.0f a second   %d kills   engine: %s" % (
                        self.tokens, (self.tokens - last[1]) / max(0.1, now - last[0]), self.kills, self.engine)]
                last = (now, self.tokens)
                for i, lane in enumerate(self.lanes):
                    streaming = self.under_way.get(i)
                    state = "streams" if streaming and streaming.pieces else lane["state"]
                    lines.append("  %d  conversation %d/%d turn %d/%d  %-8s %s" % (
                        i + 1, lane["round"], self.args.rounds, lane["turn"], self.args.turns, state, lane["last"]))
                for p in pools:
                    wide = [int(40 * p[k] / max(1, p["capacity"]) + (p[k] > 0)) for k in ("held", "evictable", "quarantined")]
                    bar = ("#" * wide[0] + "=" * wide[1] + "!" * wide[2])[:40].ljust(40, ".")
                    lines.append("  %-12s [%s] %d held, %d cached, %d free of %d pages" % (p["name"], bar, p["held"], p["evictable"], p["free"], p["capacity"]))
                news = list(self.news)
            if sys.stdout.isatty():
                lines += ["  pages: # held by what runs, = cached for reuse, ! quarantined, . free"] if pools else []
                lines += ["  " + n for n in news]
                width = os.get_terminal_size().columns - 1
                sys.stdout.write(("\x1b[%dA" % drawn if drawn else "") + "".join("\x1b[2K" + line[:width] + "\n" for line in lines))
                drawn = len(lines)
            else:
                print(lines[1].strip() + "   " + lines[2].strip(), flush=True)
            sys.stdout.flush()
            if ended:
                return

    # ---- the whole --------------------------------------------------------------------------------------------------
    def make_system(self):
        """A prompt of about the wanted length, whatever the vocabulary; no more than half of what a sequence may have."""
        status, body = self.server.call("GET", "/v1/cache/status")
        wanted = self.args.system_tokens
        if status == 200:
            wanted = min(wanted, body["limits"]["max_seq_len"] // 2, body["limits"]["max_request_tokens"] // 2)
        r = random.Random(7)
        sample = " ".join(r.choice(RULES) for _ in range(200))
        words = max(20, int(200 * wanted / max(1, self.server.tokens_of(sample))))
        return "You are a helpful assistant. " + " ".join(r.choice(RULES) for _ in range(words))

    def wait_healthy(self):
        """False when it does not become ready within half a minute, or is not even there for 6 s: `serve` replaces a frontend sooner."""
        now = time.monotonic()
        end, heard = now + 30, now
        while time.monotonic() < min(end, heard + 6):
            try:
                if self.server.call("GET", "/health")[0] == 200:
                    return True
                heard = time.monotonic()
            except (OSError, ValueError, http.client.HTTPException):
                pass
            time.sleep(0.05)
        return False

    def verify(self):
        """The answers that a kill struck, and each conversation's first, once more and alone. How many were asked for, how many differ."""
        chosen = [entry for entry in self.log if entry[3] or entry[4]]
        print("\nasking again, one at a time, for %d of the answers, to compare" % len(chosen), flush=True)
        differ = checked = 0
        for messages, choice, seen, struck, _ in chosen:
            try:
                alone = self.ask(messages, choice).essence()
            except Exception as e:  # a finding of the demo, too
                self.failures.append("asked again, %d of %d: %s: %s" % (checked + 1, len(chosen), type(e).__name__, e))
                return checked, differ, False
            checked += 1
            if alone != seen:
                differ += 1
                self.failures.append("an answer %sis not what it is alone: %r" % ("under way at a kill " if struck else "", seen[0][:80]))
        return checked, differ, True

    def idle_pools(self):
        """The pools once nothing runs: retiring pages are free after the last step."""
        for _ in range(100):
            pools = self.pools()
            if pools and all(p["held"] == 0 and p["retiring"] == 0 for p in pools):
                return pools
            time.sleep(0.1)
        return self.pools()

    def run(self):
        self.system = self.make_system()
        print("system prompt of %d tokens, %d conversations at once, %d one after another, %d turns each, %d tools" % (
            self.server.tokens_of(self.system), self.args.conversations, self.args.rounds, self.args.turns, len(self.tools)), flush=True)
        self.restarts = self.look_at_engine()
        self.began = time.monotonic()
        # Daemons: Ctrl-C does not wait for them.
        screen = threading.Thread(target=self.screen_main, daemon=True)
        killer = threading.Thread(target=self.killer_main, daemon=True)
        lanes = [threading.Thread(target=self.lane_main, args=(i,), daemon=True) for i in range(self.args.conversations)]
        for t in lanes + [screen, killer]:
            t.start()
        for t in lanes:
            t.join()
        wall = time.monotonic() - self.began
        self.done.set()
        killer.join()
        screen.join()
        if self.wait_healthy():
            checked, differ, compared = self.verify()
            pools = self.idle_pools()
        else:
            self.failures.append("the server at %s is not ready; what it did not say is not accounted for" % self.args.base)
            checked, differ, compared, pools = 0, 0, False, []
        now = self.look_at_engine()
        others = max(0, now - self.restarts - self.kills) if now is not None and self.restarts is not None else 0
        unaccounted = sum(abs(p["capacity"] - p["free"] - p["held"] - p["evictable"] - p["retiring"] - p["quarantined"]) for p in pools)
        stuck = sum(p["held"] for p in pools)
        hit_rate = self.cached / max(1, self.prompt)
        audit = {"requests": self.requests, "put_off": self.put_off, "failed": self.failed, "tool_calls": self.calls, "kills": self.kills, "kills_survived": len(self.recoveries) if not self.failed else 0,
                 "other_losses": others,
                 "answers_compared_with_a_run_alone": checked, "answers_that_differ": differ, "pages_unaccounted": unaccounted, "pages_held_when_idle": stuck,
                 "pages_quarantined": sum(p["quarantined"] for p in pools), "prefix_hit_rate": round(hit_rate, 3), "tokens": self.tokens, "seconds": round(wall, 1),
                 "seconds_from_kill_to_next_token": [round(s, 2) for s in self.recoveries]}
        put_off = "; %d times one was put off while there was no worker" % self.put_off if self.put_off else ""
        checks = [("requests without failure", "%d of %d%s" % (self.requests, self.requests + self.failed, put_off), self.failed == 0 and self.requests > 0),
                  ("tool calls, each a valid one", str(self.calls), self.calls > 0),
                  ("kills survived", "%d of %d%s%s" % (len(self.recoveries), self.args.kills, "".join(", %.2f s to the next token" % s for s in self.recoveries),
                                                       "; %d more losses of the engine, not by this demo" % others if others else ""),
                   self.kills == self.args.kills and len(self.recoveries) == self.args.kills and self.failed == 0),
                  ("tokens lost or doubled", "%s (%d answers compared with a run alone)" % ("in %d answers" % differ if differ else "0" if compared else "unknown", checked),
                   compared and differ == 0),
                  ("pages unaccounted for", "%d, held by nobody's request %d, in %d pools" % (unaccounted, stuck, len(pools)) if pools else "unknown",
                   bool(pools) and unaccounted == 0 and stuck == 0),
                  ("prefix hit rate", "%.1f %% of the prompt tokens" % (100 * hit_rate), hit_rate >= 0.5)]
        print("\naudit (%d tokens in %.1f s)" % (self.tokens, wall))
        for what, value, good in checks:
            print("  %-4s %-30s %s" % ("ok" if good else "BAD", what, value))
        for failure in self.failures[:10]:
            print("  " + failure)
        if self.args.json:
            with open(self.args.json, "w", encoding="utf-8") as f:
                json.dump(audit, f)
        return 0 if all(good for _, _, good in checks) else 1


if __name__ == "__main__":
    try:
        sys.exit(Demo(parse_args()).run())
    except (OSError, http.client.HTTPException, RuntimeError) as why:
        sys.exit("demo: %s" % why)
    except KeyboardInterrupt:
        sys.exit(130)
