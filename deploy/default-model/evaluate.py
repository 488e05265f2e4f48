"""Measures the default model on dialogues that it was never trained on, through HTTP, greedily. Needs Python's standard library only.

  python3 evaluate.py --server http://127.0.0.1:8080 [--dialogues 100] [--way chat|completions] [--novelty 0.0]
                      [--tools 2 5] [--distract 0] [--check] [--show 5]

Every step sees the history as it ought to be; a step is right when what the model writes is byte for byte what was expected, and then it stops. A
conversation is right when all its steps are. With --way chat the tools travel as an OpenAI client sends them; with --way completions the
rendered prompt does, as token ids. --check compares the server's prompts with the training's, token by token, before anything is measured.
"""
import argparse
import collections
import concurrent.futures
import json
import sys
import urllib.error
import urllib.request

import tokens
import wire
import world


def post(server, path, body):
    request = urllib.request.Request(server + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=300) as reply:
            return json.load(reply)
    except urllib.error.HTTPError as e:
        raise SystemExit("%s%s answered %d: %s" % (server, path, e.code, e.read().decode("utf-8", "replace")))


def steps(dialogue):
    """(messages before, the expected assistant message) for every one the model has to write. Clients do not send thoughts back."""
    before = []
    for m in dialogue["messages"]:
        if m["role"] == "assistant":
            yield list(before), m
        before.append({k: v for k, v in m.items() if k != "reasoning_content"})


def prompt_of(dialogue, before):
    """What the template makes of the messages so far, with a generation prompt."""
    text = "".join(t for t, _ in wire.render({"messages": before, "tools": dialogue["tools"]}))
    return text if before[-1]["role"] == "tool" else text + "<|turn>model\n"


def expected_text(message):
    """The message as the model writes it, without the marker that ends it."""
    return "".join(t for t, model in wire.render({"messages": [message], "tools": []}) if model).removesuffix("<turn|>")


def by_completions(server, vocabulary, dialogue, before, want):
    ids = vocabulary.encode(prompt_of(dialogue, before))
    choice = post(server, "/v1/completions", {"prompt": ids, "temperature": 0, "max_tokens": 96})["choices"][0]
    got = choice["text"].removesuffix("<|tool_response>").removesuffix("<turn|>")
    return got == expected_text(want) and choice["finish_reason"] == "stop", got


def by_chat(server, vocabulary, dialogue, before, want):
    choice = post(server, "/v1/chat/completions", {"messages": before, "tools": dialogue["tools"], "temperature": 0, "max_tokens": 96})["choices"][0]
    got = choice["message"]
    calls = []
    for c in got.get("tool_calls") or []:
        try:
            calls.append((c["function"]["name"], json.loads(c["function"]["arguments"])))
        except ValueError:  # cut by max_tokens
            calls.append((c["function"]["name"], None))
    wanted = [(c["function"]["name"], c["function"]["arguments"]) for c in want.get("tool_calls", [])]
    end = "tool_calls" if wanted else "stop"
    return calls == wanted and (got.get("content") or "") == want["content"] and choice["finish_reason"] == end, choice["finish_reason"] + ": " + json.dumps(got)


def check(server, vocabulary, dialogues):
    """Exits when the server makes other tokens of a chat request than the training did."""
    for d in dialogues:
        for before, _ in steps(d):
            ours = vocabulary.encode(prompt_of(d, before))
            theirs = post(server, "/tokenize", {"messages": before, "tools": d["tools"]})["tokens"]
            if ours != theirs:
                raise SystemExit("the server's prompt differs:\n%s\nthe training's:\n%s" % (vocabulary.text(theirs), vocabulary.text(ours)))
            plain = post(server, "/tokenize", {"content": prompt_of(d, before)})["tokens"]
            if ours != plain:
                raise SystemExit("the server's tokenizer differs for: %s" % prompt_of(d, before))


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--server", default="http://127.0.0.1:8080")
    p.add_argument("--dialogues", type=int, default=100)
    p.add_argument("--first", type=int, default=0, help="number of the first dialogue of the test set")
    p.add_argument("--turns", type=int, default=4)
    p.add_argument("--novelty", type=float, default=0.0, help="share of values that are made-up words")
    p.add_argument("--tools", type=int, nargs=2, default=(2, 5), metavar=("LEAST", "MOST"), help="how many tools are offered")
    p.add_argument("--distract", type=int, default=0, help="words in the system prompt that do not matter")
    p.add_argument("--way", choices=["chat", "completions"], default="chat")
    p.add_argument("--concurrency", type=int, default=4)
    p.add_argument("--check", action="store_true")
    p.add_argument("--show", type=int, default=5, help="how many wrong steps to print")
    a = p.parse_args()
    vocabulary = tokens.build()
    dialogues = [world.held_out(i, turns=a.turns, novelty=a.novelty, tools=tuple(a.tools), distract=a.distract) for i in range(a.first, a.first + a.dialogues)]
    if a.check:
        check(a.server, vocabulary, dialogues[:10])
        print("prompts agree", file=sys.stderr)
    way = by_chat if a.way == "chat" else by_completions

    def run(dialogue):
        out = []
        for before, want in steps(dialogue):
            kind = "calls" if "tool_calls" in want else "answers" if before[-1]["role"] == "tool" else \
                "no tool" if want["content"] == world.NO_TOOL else "talk"
            right, got = way(a.server, vocabulary, dialogue, before, want)
            out.append((kind, right, before[-1]["content"], expected_text(want), got))
        return out

    right, total = collections.Counter(), collections.Counter()
    shown = 0
    with concurrent.futures.ThreadPoolExecutor(a.concurrency) as pool:
        for result in pool.map(run, dialogues):
            total["conversations"] += 1
            right["conversations"] += all(r for _, r, *_ in result)
            for kind, ok, asked, want, got in result:
                total[kind] += 1
                right[kind] += ok
                if not ok and shown < a.show:
                    shown += 1
                    print("asked    %r\nexpected %r\ngot      %r" % (asked, want, got), file=sys.stderr)
    print(json.dumps({k: {"right": right[k], "of": total[k], "share": round(right[k] / total[k], 4)} for k in sorted(total)}, indent=1))


if __name__ == "__main__":
    main()
