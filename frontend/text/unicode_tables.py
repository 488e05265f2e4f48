#!/usr/bin/env python3
"""Writes unicode_tables.inc: the character classes that the tokenizers' split patterns ask for.

Usage: unicode_tables.py > unicode_tables.inc     (the Unicode version is that of Python's unicodedata and is noted in the output)

Two-stage table: kUnicodeBlock[code point >> 7] is the number of a block of 128 classes in kUnicodeClass. Class numbers are those of
CharClass in unicode.h.
"""
import sys
import unicodedata

BLOCK = 128
# The White_Space property (PropList.txt); unicodedata does not have it, and it has been stable since Unicode 6.3.
WHITE_SPACE = {*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000}
LETTERS = {"Lu": 2, "Ll": 3, "Lt": 4, "Lm": 5, "Lo": 6}


def char_class(c):
    if c in WHITE_SPACE:
        return 1
    category = unicodedata.category(chr(c))
    if category in LETTERS:
        return LETTERS[category]
    return {"M": 7, "N": 8}.get(category[0], 0)


def rows(values, width=128):
    line = ""
    for value in values:
        item = f"{value},"
        if len(line) + len(item) > width:
            yield line
            line = ""
        line += item
    yield line


def main():
    blocks, index = {}, []
    for start in range(0, 0x110000, BLOCK):
        block = bytes(char_class(c) for c in range(start, start + BLOCK))
        index.append(blocks.setdefault(block, len(blocks)))
    out = sys.stdout.write
    out(f"// Made by unicode_tables.py from Unicode {unicodedata.unidata_version}. Do not edit.\n")
    out(f"constexpr char kUnicodeVersion[] = \"{unicodedata.unidata_version}\";\n")
    out(f"constexpr uint8_t kUnicodeBlock[{len(index)}] = {{\n" + "\n".join(rows(index)) + "};\n")
    out(f"constexpr uint8_t kUnicodeClass[{len(blocks) * BLOCK}] = {{\n")
    out("\n".join(rows([v for block in blocks for v in block])) + "};\n")
    if len(blocks) > 256:
        sys.exit("too many blocks for one byte")


if __name__ == "__main__":
    main()
