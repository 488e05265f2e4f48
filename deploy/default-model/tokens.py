"""The default model's vocabulary: byte-fallback BPE of the kind "gemma4", made from the world's words.

Copying is what a small model finds hard, so a value's tokens are the same wherever it stands: U+2581 (the space) merges only with whole words of
prose, last of all, and never with a value. Digits are single tokens. Frequent structure of declarations and results is one token.
"""
import collections
import random
import re

import wire
import world

SIZE = 2048
SPACE = "\u2581"
CONTROL = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|tool>", "<tool|>"]
USER_DEFINED = ["<|tool_call>", "<tool_call|>", "<|tool_response>", "<tool_response|>", '<|"|>']
SPECIALS = [(t, 3) for t in CONTROL] + [(t, 4) for t in USER_DEFINED] + [("<|think|>", 3), ("<|channel>", 4), ("<channel|>", 4), ("<|turn>", 3),
                                                                         ("<turn|>", 3)]
STRUCTURE = [",parameters:{properties:{", "declaration:", "{description:", ":{type:", "}},required:[", "],type:", "}}", "}}}", "]}", "call:", "response:",
             "{value:", '{"', '":', '":"', '"}', ',"', '","', "},", ":{", ".,", "?\n"]


class Vocabulary:
    def __init__(self):
        self.tokens, self.types, self.merges = [], [], []
        self.ids, self.ranks, self._cache = {}, {}, {}

    def add(self, text, kind):
        if text in self.ids:
            return False
        self.ids[text] = len(self.tokens)
        self.tokens.append(text)
        self.types.append(kind)
        return True

    def merge(self, left, right):
        if (left, right) in self.ranks:
            return
        self.add(left + right, 1)
        self.ranks[(left, right)] = len(self.merges)
        self.merges.append(left + " " + right)
        self._cache.clear()

    @staticmethod
    def from_lists(tokens, types, merges):
        v = Vocabulary()
        for t, k in zip(tokens, types):
            v.add(t, k)
        for m in merges:
            at = m.index(" ", 1)
            v.ranks[(m[:at], m[at + 1:])] = len(v.merges)
            v.merges.append(m)
        return v

    def spell(self, text):
        """Tokens of text without specials, spaces already U+2581: lowest rank first, then leftmost."""
        parts = list(text)
        while len(parts) > 1:
            best, at = None, -1
            for i in range(len(parts) - 1):
                r = self.ranks.get((parts[i], parts[i + 1]))
                if r is not None and (best is None or r < best):
                    best, at = r, i
            if best is None:
                break
            parts[at:at + 2] = [parts[at] + parts[at + 1]]
        return parts

    def whole(self, text):
        """Makes text one token, by merging what it is made of from the left."""
        parts = self.spell(text)
        while len(parts) > 1:
            self.merge(parts[0], parts[1])
            parts = self.spell(text)

    def encode(self, text):
        """Ids of text with specials recognised. A merge's right half never begins with U+2581, so pieces cut there are spelled apart."""
        out = []
        for fragment in _SPECIAL.split(text):
            if not fragment:
                continue
            if fragment in _SPECIAL_SET:
                out.append(self.ids[fragment])
                continue
            for piece in _PIECE.findall(fragment.replace(" ", SPACE)):
                ids = self._cache.get(piece)
                if ids is None:
                    ids = []
                    for t in self.spell(piece):
                        ids += [self.ids[t]] if t in self.ids else [self.ids["<0x%02X>" % b] for b in t.encode()]
                    if len(self._cache) < 200000:
                        self._cache[piece] = ids
                out += ids
        return out

    def text(self, ids):
        out = b""
        for i in ids:
            out += bytes([int(self.tokens[i][3:5], 16)]) if self.types[i] == 6 else self.tokens[i].replace(SPACE, " ").encode()
        return out.decode("utf-8", "replace")


_SPECIAL_SET = {t for t, _ in SPECIALS}
_SPECIAL = re.compile("(" + "|".join(map(re.escape, sorted(_SPECIAL_SET, key=len, reverse=True))) + ")")
_PIECE = re.compile("\n+|" + SPACE + "?[^\n" + SPACE + "]+|" + SPACE)


def build(size=SIZE):
    """The vocabulary, with `size` tokens (a multiple of 32)."""
    v = Vocabulary()
    for t, k in SPECIALS:
        v.add(t, k)
    for b in range(256):
        v.add("<0x%02X>" % b, 6)
    for c in range(0x21, 0x7F):
        v.add(chr(c), 1)
    for c in [SPACE, "\n", "\n\n"] + list("\u00e0\u00e1\u00e4\u00e7\u00e8\u00e9\u00ea\u00eb\u00ed\u00f1\u00f3\u00f6\u00f8\u00fa\u00fc\u00df"):
        v.add(c, 1)
    values = {w for words in world.VALUES.values() for w in words}
    prose, names, counts = collections.Counter(), {t.name for t in world.TOOLS}, collections.Counter()
    rng = random.Random(20)
    for _ in range(1500):
        text = "".join(t for t, _ in wire.render(world.dialogue(rng, novelty=0.0)))
        for w in re.findall("[A-Za-z_]+", _SPECIAL.sub(" ", text)):
            counts[w] += 1
    for w in list(counts):
        if w not in values and w not in names and counts[w] < 8:
            del counts[w]  # a random word
        elif w not in values:
            prose[w] = counts[w]
    types = {w: (list(w), min(c, 400) + 20) for w, c in counts.items()}
    for w in values:
        types.setdefault(w, (list(w), 40))
    for s in world.SYLLABLES:  # so that new words are a few syllables, not many letters
        types.setdefault(s, (list(s), 60))
        types.setdefault(s.capitalize(), (list(s.capitalize()), 40))
    spaced = sorted(w for w in prose if w not in values and "_" not in w)
    room = size - len(v.tokens) - len(spaced) - 3 * len(STRUCTURE)
    while room > 0:
        pairs = collections.Counter()
        for parts, c in types.values():
            for pair in zip(parts, parts[1:]):
                pairs[pair] += c
        if not pairs:
            break
        left, right = min(pairs, key=lambda p: (-pairs[p], p))
        room -= v.add(left + right, 1)
        v.ranks[(left, right)] = len(v.merges)
        v.merges.append(left + " " + right)
        for parts, _ in types.values():
            i = 0
            while i < len(parts) - 1:
                if parts[i] == left and parts[i + 1] == right:
                    parts[i:i + 2] = [left + right]
                i += 1
    for s in sorted(names) + STRUCTURE:
        v.whole(s)
    for w in spaced:
        if len(v.spell(w)) == 1 and len(v.tokens) < size:
            v.merge(SPACE, w)
    while len(v.tokens) < size:
        v.add("<unused%d>" % len(v.tokens), 5)
    assert len(v.tokens) == size, len(v.tokens)
    return v
