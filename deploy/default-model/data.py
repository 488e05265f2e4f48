"""Writes shards of training dialogues: python data.py OUT_DIR FIRST COUNT. A shard is a function of its number.

Each .npz holds the dialogues' tokens one behind the other (uint16), where each begins, and which tokens the model has to predict (bool).
"""
import os
import random
import sys

import numpy as np

import tokens
import wire
import world

DIALOGUES = 1024


def encode(vocabulary, dialogue):
    ids, mask = [], []
    for text, model in wire.render(dialogue):
        part = vocabulary.encode(text)
        ids += part
        mask += [model] * len(part)
    return ids, mask


def as_sent(rng, dialogue):
    """The dialogue with all thoughts, or, as often, as a client sends it that keeps none: up to one reply, whose thought is the only one."""
    messages = dialogue["messages"]
    if rng.random() < 0.5:
        return dialogue
    last = rng.choice([i for i, m in enumerate(messages) if "reasoning_content" in m])
    out = []
    for i, m in enumerate(messages[:last + 2 if "tool_calls" in messages[last] else last + 1]):
        if i < last and "reasoning_content" in m:
            m = {**m, "reasoning_content": "", "given": True}
        out.append(m)
    return {**dialogue, "messages": out}


def shard(vocabulary, number):
    rng = random.Random(number)
    ids, mask, starts = [], [], [0]
    for _ in range(DIALOGUES):
        what = rng.random()
        # Few tools and nothing else, mostly; then more of both, up to all tools behind a long prompt.
        tools, distract = (((1, 5), 0) if what < 0.80 else ((1, 8), rng.randint(5, 120)) if what < 0.90 else
                           ((4, 10), rng.randint(100, 500)) if what < 0.97 else ((6, 30), rng.randint(300, 900)))
        d = world.dialogue(rng, turns=rng.choice([1, 2, 3, 4, 4]), tools=tools, novelty=0.35, noise=0.4, distract=distract,
                           missing=rng.choice([0.12, 0.45]))
        i, m = encode(vocabulary, as_sent(rng, d))
        ids += i
        mask += m
        starts.append(len(ids))
    return np.array(ids, np.uint16), np.array(mask), np.array(starts, np.int32)


def main():
    out, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    os.makedirs(out, exist_ok=True)
    vocabulary = tokens.build()
    for number in range(first, first + count):
        ids, mask, starts = shard(vocabulary, number)
        path = os.path.join(out, "%05d.npz" % number)
        np.savez(path + ".part.npz", ids=ids, mask=mask, starts=starts)
        os.rename(path + ".part.npz", path)
        print(path, len(ids), "tokens,", int(mask.sum()), "of the model", flush=True)


if __name__ == "__main__":
    main()
