#!/usr/bin/env python3
"""Writes split_cases.json: random texts and the pieces that the original split patterns cut them into.

The oracle is the PyPI package `regex`. Only characters whose category is the same there and in Python's unicodedata are drawn, so the
cases do not depend on the Unicode version. Usage: make_split_cases.py > split_cases.json
"""
import json
import random
import unicodedata

import regex

CONTRACTIONS = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def llama_like(word, digits):
    return (CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?" + word + "+|" + digits +
            r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")


def gpt4o_like(suffix, digits):
    head, upper, lower = r"[^\r\n\p{L}\p{N}]?", r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    return (head + upper + "*" + lower + "+" + suffix + "|" + head + upper + "+" + lower + "*" + suffix + "|" + digits +
            r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")


PATTERNS = {
    "gpt-2": GPT2,
    "llama-bpe": llama_like(r"\p{L}", r"\p{N}{1,3}"),
    "qwen2": llama_like(r"\p{L}", r"\p{N}"),
    "gpt-4o": gpt4o_like(CONTRACTIONS + "?", r"\p{N}{1,3}"),
    "tekken": gpt4o_like("", r"\p{N}"),
}
# What takes part in the patterns, several times over, and a few of every kind of letter, mark, number, symbol and blank.
COMMON = list("aabbstdmrevl'''  \n\r\t/AB.,!-01_ ") + ["'re", "'LL", "'s", "  ", "\n\n", " \n", "n't"]
RARE = list("éßŁΩжДǅǈʰˈ々中あ한ªñ٣௧½Ⅷ²①\u0301\u0308\u0903\u20dd\u00a0\u2003\u3000\u0085\u2028\u200b\u200d\ufe0f🦙🚀€←§\x00\x7f�")


def same_everywhere(c):
    return regex.fullmatch(r"\p{gc=" + unicodedata.category(c) + "}", c) is not None


def cut(name, text):
    if name == "smollm":
        return [p for part in regex.findall(r"\p{N}|\P{N}+", text) for p in regex.findall(GPT2, part)]
    return regex.findall(PATTERNS[name], text)


def main():
    rng = random.Random(20240607)
    rare = [c for c in RARE if same_everywhere(c)]
    texts = []
    for _ in range(400):
        pool = COMMON if rng.random() < 0.4 else COMMON + rare
        if rng.random() < 0.2:
            pool = rare
        texts.append("".join(rng.choice(pool) for _ in range(rng.randint(1, 24))))
    names = list(PATTERNS) + ["smollm"]
    for text in texts:
        for name in names:
            assert "".join(cut(name, text)) == text
    cases = [{"text": t, "pieces": {n: [len(p.encode()) for p in cut(n, t)] for n in names}} for t in texts]
    print('{"regex":' + json.dumps(regex.__version__) + ',"cases":[')
    print(",\n".join(json.dumps(c, ensure_ascii=False, separators=(",", ":")) for c in cases))
    print("]}")


if __name__ == "__main__":
    main()
