#!/usr/bin/env python3
"""Prefill and decode of one model here and in a peer (xllamacpp from PyPI, an embedding of llama.cpp), interleaved in one session on the same
file and threads; best of N each, printed as ratios. No judgement: machines are noisy.

usage: peer.py HOLDFAST_BIN MODEL.gguf [THREADS] [ROUNDS]   (needs: pip install xllamacpp; tests/bench/peer.sh does it)"""
import importlib.metadata
import json
import platform
import random
import subprocess
import sys

import xllamacpp

PROMPT, GENERATE = 512, 64
bin_, model = sys.argv[1], sys.argv[2]
threads = int(sys.argv[3]) if len(sys.argv) > 3 else 2
rounds = int(sys.argv[4]) if len(sys.argv) > 4 else 5

p = xllamacpp.CommonParams()
p.model.path = model
p.n_ctx = 2048
p.n_parallel = 1
p.cpuparams.n_threads = threads
p.cpuparams_batch.n_threads = threads
p.warmup = True
peer = xllamacpp.Server(p)
vocab = 30000
ours, theirs, read = {"prefill": [], "decode": []}, {"prefill": [], "decode": []}, []
for r in range(rounds):
    j = json.loads(subprocess.run([bin_ + "/holdfast", "bench", "--model", model, "--prompt", str(PROMPT), "--generate", str(GENERATE), "--requests", "1",
                                   "--repeat", "1", "--threads", str(threads), "--json"], check=True, capture_output=True, text=True).stdout)
    ours["prefill"].append(j["runs"][0]["prefill_tps"])
    ours["decode"].append(j["runs"][0]["decode_tps"])
    read.append(j["read_gbs"])
    rnd = random.Random(r)
    ids = [rnd.randrange(100, vocab) for _ in range(PROMPT)]
    t = peer.handle_completions({"prompt": ids, "n_predict": GENERATE, "temperature": 0, "ignore_eos": True, "cache_prompt": False})
    t = t.get("timings", t)
    theirs["prefill"].append(t["prompt_per_second"])
    theirs["decode"].append(t["predicted_per_second"])
cpu = next((l.split(":")[1].strip() for l in open("/proc/cpuinfo") if l.startswith("model name")), platform.machine())
print(f"{cpu}, {threads} threads, {model.rsplit('/', 1)[-1]}")
print(f"here: {j['backend']}; peer: xllamacpp {importlib.metadata.version('xllamacpp')} ({xllamacpp.get_system_info().strip()})")
print(f"memory read {max(read):.1f} GB/s, weights {j['weight_bytes'] / 1e6:.1f} MB: decode at most {max(read) * 1e9 / j['weight_bytes']:.0f} tok/s")
for what, n in (("prefill", PROMPT), ("decode", GENERATE)):
    a, b = max(ours[what]), max(theirs[what])
    print(f"{what} of {n}: here {a:.1f} tok/s (median {sorted(ours[what])[rounds // 2]:.1f}), peer {b:.1f} (median {sorted(theirs[what])[rounds // 2]:.1f}), ratio {a / b:.2f}")
