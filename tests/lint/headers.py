#!/usr/bin/env python3
"""Each header of the project must compile alone. usage: headers.py ROOT BUILD CXX"""
import concurrent.futures
import os
import pathlib
import subprocess
import sys

root, build, cxx = pathlib.Path(sys.argv[1]), sys.argv[2], sys.argv[3]
headers = [h for part in ("proto", "kernels", "worker", "supervisor", "frontend") for h in sorted([*(root / part).rglob("*.h"), *(root / part).rglob("*.cuh")])]
# Headers of one instruction set (included only by translation units compiled with its flags) declare themselves.
headers = [h for h in headers if "lint: needs-isa-flags" not in h.read_text(encoding="utf-8")]


def check(header):
    rel = header.relative_to(root).as_posix()
    # What CUDA declares, tests have, too: no toolkit is needed for this.
    simt = ["-I", str(root / "tests" / "support" / "simt" / "include")] if rel.startswith("kernels/cuda/") else []
    r = subprocess.run([cxx, "-std=c++20", "-fsyntax-only", "-w", "-x", "c++", *simt, "-I", str(root), "-I", os.path.join(build, "gen"), "-I",
                        os.path.join(build, "gen", "proto", "health"), "-"], input=f'#include "{rel}"\n', capture_output=True, text=True)
    return rel, r.returncode, r.stderr.splitlines()[:6]


failed = 0
with concurrent.futures.ThreadPoolExecutor(2) as pool:
    for rel, rc, words in pool.map(check, headers):
        if rc != 0:
            failed += 1
            print(f"{rel} does not compile alone:", *words, sep="\n  ")
print(f"{len(headers)} headers, {failed} failed")
sys.exit(1 if failed or not headers else 0)
