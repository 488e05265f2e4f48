#!/usr/bin/env python3
"""The field report's load, against any OpenAI-compatible server: concurrent multi-turn tool-calling conversations that share a long
system prompt, tool results fed back, answers streamed. Standard library only.

  agent_load.py --base http://127.0.0.1:8080 [--conversations 4] [--turns 4] [--rounds 1] [--system-words 5200] [--max-tokens 160]
                [--tool-choice auto|required|none] [--seconds 0] [--verify-solo] [--health /health] [--json OUT]

Every request is greedy (temperature 0). Checks, each a failure when broken: HTTP 200 and a well-formed stream that ends in a finish_reason and
[DONE]; tool call ids and names once, arguments a JSON object unless cut by length; /health polled every 100 ms never fails; with --verify-solo,
after the load each conversation is replayed alone and every answer must be byte-identical. Prints one summary line of JSON; exit 0 only if nothing failed.
Figures: ttft = request sent to first delta; itl = between later deltas; both in milliseconds."""
import argparse, http.client, json, random, statistics, sys, threading, time, urllib.parse

ap = argparse.ArgumentParser()
ap.add_argument("--base", default="http://127.0.0.1:8080")
ap.add_argument("--model", default="default")
ap.add_argument("--key", default="")
ap.add_argument("--conversations", type=int, default=4)
ap.add_argument("--turns", type=int, default=4)
ap.add_argument("--rounds", type=int, default=1, help="how often each lane starts a fresh conversation")
ap.add_argument("--seconds", type=float, default=0, help="keep starting fresh conversations until this many seconds have passed")
ap.add_argument("--system-words", type=int, default=5200, help="about 7.7k tokens with common English vocabularies")
ap.add_argument("--max-tokens", type=int, default=160)
ap.add_argument("--tool-choice", default="auto")
ap.add_argument("--think-s", type=float, default=0.0, help="pause between turns")
ap.add_argument("--verify-solo", action="store_true")
ap.add_argument("--health", default="/health")
ap.add_argument("--timeout", type=float, default=600)
ap.add_argument("--seed", type=int, default=1)
ap.add_argument("--retries", type=int, default=0, help="how often a request that is refused with 503 and Retry-After is sent again, as SDKs do")
ap.add_argument("--cancel-rate", type=float, default=0.0, help="share of requests that are sent a second time and left in the middle")
ap.add_argument("--json", default="")
A = ap.parse_args()
U = urllib.parse.urlparse(A.base)

WORDS = ("the agent must read every rule before it calls a tool and it must never guess an argument when the user has not given one "
         "report errors in plain words keep answers short cite the order number weather in the city of the request units are metric "
         "ask again if the date is missing do not repeat a call that already succeeded").split()
CITIES = ["Paris", "Oslo", "Lima", "Cairo", "Quito", "Hanoi", "Perth", "Sofia", "Accra", "Delhi", "Tunis", "Minsk"]
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "description": "Current weather of a city.", "parameters": {"type": "object",
     "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}, "required": ["city"]}}},
    {"type": "function", "function": {"name": "find_order", "description": "Looks an order up.", "parameters": {"type": "object",
     "properties": {"order_id": {"type": "string"}}, "required": ["order_id"]}}},
    {"type": "function", "function": {"name": "add", "description": "Adds two numbers.", "parameters": {"type": "object",
     "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]}}},
]

def system_prompt():
    r = random.Random(7)
    return "You are a careful assistant with tools. " + " ".join(r.choice(WORDS) for _ in range(A.system_words))

SYSTEM = system_prompt()
failures, ttfts, itls, walls = [], [], [], []
stats = {"requests": 0, "tool_calls": 0, "prompt_tokens": 0, "cached_tokens": 0, "completion_tokens": 0, "cancels": 0, "retries": 0}
lock = threading.Lock()

def fail(what):
    with lock:
        failures.append(what)
        if len(failures) <= 20: print("FAIL", what, file=sys.stderr)

def connect():
    c = http.client.HTTPSConnection if U.scheme == "https" else http.client.HTTPConnection
    return c(U.hostname, U.port or (443 if U.scheme == "https" else 80), timeout=A.timeout)

def chat(messages, timed=True):
    body = {"model": A.model, "messages": messages, "tools": TOOLS, "tool_choice": A.tool_choice, "max_tokens": A.max_tokens,
            "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    if A.tool_choice == "none": body.pop("tools"); body.pop("tool_choice")
    h = {"Content-Type": "application/json"}
    if A.key: h["Authorization"] = "Bearer " + A.key
    t0 = time.monotonic(); first = last = None
    for left in range(A.retries, -1, -1):
        c = connect()
        c.request("POST", U.path.rstrip("/") + "/v1/chat/completions", json.dumps(body), h)
        r = c.getresponse()
        wait = r.getheader("Retry-After")
        if r.status != 503 or wait is None or left == 0: break
        c.close()
        with lock: stats["retries"] += 1
        time.sleep(min(float(wait), 5))
    if r.status != 200: raise RuntimeError("HTTP %d: %s" % (r.status, r.read(400).decode("utf-8", "replace")))
    text, reasoning, calls, finish, usage, done = [], [], {}, None, None, False
    for raw in r:
        line = raw.rstrip(b"\r\n")
        if not line.startswith(b"data:"): continue
        data = line[5:].strip()
        if data == b"[DONE]": done = True; break
        ev = json.loads(data)
        if ev.get("error"): raise RuntimeError("error in stream: %s" % json.dumps(ev["error"])[:300])
        if ev.get("usage"): usage = ev["usage"]
        for ch in ev["choices"]:
            d = ch.get("delta") or {}
            if d.get("content") or d.get("tool_calls") or d.get("reasoning_content"):
                now = time.monotonic()
                if timed:
                    with lock:
                        if first is None: ttfts.append((now - t0) * 1e3)
                        else: itls.append((now - last) * 1e3)
                first = first or now; last = now
            if d.get("content"): text.append(d["content"])
            if d.get("reasoning_content"): reasoning.append(d["reasoning_content"])
            for tc in d.get("tool_calls") or []:
                slot = calls.setdefault(tc["index"], {"id": None, "name": None, "arguments": ""})
                fn = tc.get("function") or {}
                for key, val in (("id", tc.get("id")), ("name", fn.get("name"))):
                    if val:
                        if slot[key] not in (None, val): raise RuntimeError("%s of call %d changed in the stream" % (key, tc["index"]))
                        slot[key] = val
                slot["arguments"] += fn.get("arguments") or ""
            if ch.get("finish_reason"):
                if finish: raise RuntimeError("finish_reason twice")
                finish = ch["finish_reason"]
    c.close()
    if not done: raise RuntimeError("stream ended without [DONE]")
    if finish is None: raise RuntimeError("no finish_reason")
    for i, k in sorted(calls.items()):
        if not k["id"] or not k["name"]: raise RuntimeError("call %d lacks id or name" % i)
        if finish != "length":
            try: ok = isinstance(json.loads(k["arguments"]), dict)
            except ValueError: ok = False
            if not ok: raise RuntimeError("arguments are no JSON object: %r" % k["arguments"][:200])
    if calls and finish not in ("tool_calls", "length"): raise RuntimeError("finish_reason %s with calls" % finish)
    with lock:
        if timed:
            stats["requests"] += 1; stats["tool_calls"] += len(calls); walls.append(time.monotonic() - t0)
            if usage:
                stats["prompt_tokens"] += usage.get("prompt_tokens", 0); stats["completion_tokens"] += usage.get("completion_tokens", 0)
                stats["cached_tokens"] += (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return "".join(text), "".join(reasoning), [calls[i] for i in sorted(calls)], finish

def leave_early(messages, r):
    """Sends the request and hangs up after a little: what it leaves behind must disturb nobody."""
    body = {"model": A.model, "messages": messages, "max_tokens": A.max_tokens, "temperature": 0, "stream": True}
    c = connect()
    c.request("POST", U.path.rstrip("/") + "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    time.sleep(r.random() * 0.2)
    c.close()
    with lock: stats["cancels"] += 1

def conversation(lane, n, timed=True):
    """One conversation; returns what every request answered, to compare with a solo replay."""
    r = random.Random(A.seed * 1000003 + lane * 1009 + n)
    messages = [{"role": "system", "content": SYSTEM}]
    answers = []
    for turn in range(A.turns):
        city = r.choice(CITIES)
        messages.append({"role": "user", "content": r.choice([
            "What is the weather in %s for %d days?" % (city, r.randint(1, 9)),
            "Where is order %s%04d?" % (r.choice("ABCD"), r.randint(0, 9999)),
            "Add %d and %d." % (r.randint(1, 99), r.randint(1, 99))])})
        for _ in range(2):
            if timed and A.cancel_rate and NUISANCE.random() < A.cancel_rate: leave_early(messages, NUISANCE)
            text, reasoning, calls, finish = chat(messages, timed)
            answers.append([text, reasoning, [[c["name"], c["arguments"]] for c in calls], finish])
            m = {"role": "assistant", "content": text or None}
            if calls and finish == "tool_calls":
                m["tool_calls"] = [{"id": c["id"], "type": "function", "function": {"name": c["name"], "arguments": c["arguments"]}} for c in calls]
            elif not text: m["content"] = "..."
            messages.append(m)
            if "tool_calls" not in m: break
            for c in m["tool_calls"]:
                messages.append({"role": "tool", "tool_call_id": c["id"], "content": json.dumps({"ok": True, "city": city, "value": r.randint(0, 99)})})
        if A.think_s: time.sleep(A.think_s)
    return answers

NUISANCE = random.Random(A.seed + 17)
results, stop = {}, threading.Event()
def lane_main(lane):
    n = 0
    while not stop.is_set() and (n < A.rounds or (A.seconds and time.monotonic() - T0 < A.seconds)):
        try: results[(lane, n)] = conversation(lane, n)
        except Exception as e: fail("lane %d conversation %d: %s: %s" % (lane, n, type(e).__name__, e))
        n += 1
        if len(failures) > 50: stop.set()

def health_main():
    while not stop.is_set():
        try:
            c = http.client.HTTPConnection(U.hostname, U.port or 80, timeout=1); c.request("GET", A.health); s = c.getresponse(); s.read(); c.close()
            if s.status != 200: fail("health %d" % s.status)
        except Exception as e: fail("health: %s" % e)
        time.sleep(0.1)

T0 = time.monotonic()
lanes = [threading.Thread(target=lane_main, args=(i,)) for i in range(A.conversations)]
if A.health: threading.Thread(target=health_main, daemon=True).start()
[t.start() for t in lanes]; [t.join() for t in lanes]
wall = time.monotonic() - T0
stop.set()
differ = 0
if A.verify_solo:
    for (lane, n), seen in sorted(results.items()):
        alone = conversation(lane, n, timed=False)
        if alone != seen:
            differ += 1
            i = next((i for i, (a, b) in enumerate(zip(alone, seen)) if a != b), min(len(alone), len(seen)))
            fail("lane %d conversation %d answer %d differs from a solo run" % (lane, n, i))
def pct(v, p): return round(sorted(v)[min(len(v) - 1, int(len(v) * p))], 2) if v else None
out = dict(stats, wall_s=round(wall, 2), conversations=len(results), failures=len(failures), differ=differ, ttft_ms_p50=pct(ttfts, .5), ttft_ms_p99=pct(ttfts, .99),
           itl_ms_p50=pct(itls, .5), itl_ms_p99=pct(itls, .99), tokens_per_s=round(stats["completion_tokens"] / wall, 2),
           requests_per_s=round(stats["requests"] / wall, 3), request_s_mean=round(statistics.fmean(walls), 3) if walls else None)
print(json.dumps(out))
if A.json: json.dump(out, open(A.json, "w"))
sys.exit(1 if failures or not results else 0)
