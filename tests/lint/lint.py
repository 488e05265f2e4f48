#!/usr/bin/env python3
"""Lint as a test: include arrows, banned includes in headers, banned names, pure units, paths of machines. One line a finding, exit 1 if any.

usage: lint.py ROOT"""
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(sys.argv[1])

# folder -> what it may include, by prefix (longest matching folder rule wins). Its own folder is always allowed.
ALLOWED = {
    "proto/base": [],
    "kernels": ["proto/base"],
    "kernels/reference": ["proto/base", "kernels"],
    "kernels/cpu": ["proto/base", "kernels"],
    "kernels/cuda": ["proto/base", "kernels"],
    "worker/kv": ["proto/base"],
    "worker/sched": ["proto/base", "worker/kv"],
    "worker/model": ["proto", "kernels", "worker/tp/collective.h"],
    "worker/exec": ["proto", "kernels", "worker/model", "worker/sched/step.h", "worker/kv/units.h", "worker/tp/collective.h"],
    "worker/constrain": ["proto/base"],
    "worker/link": ["proto"],
    "worker/tp": ["proto", "kernels"],
    "worker": ["proto", "kernels", "worker"],
    "supervisor": ["proto"],
    "frontend/text": ["proto"],
    "frontend/grammar": ["proto", "frontend/text"],
    "frontend/tools": ["proto", "frontend/text", "frontend/grammar"],
    "frontend/console": ["proto", "frontend/text"],
    "frontend/http": ["proto"],
    "frontend/api": ["proto", "frontend"],
    "frontend/cli": ["proto", "frontend/text", "frontend/console"],
    "frontend": ["proto", "frontend"],
}
# gRPC, Asio, Beast and RapidJSON stay in .cc files and in headers that only .cc files include.
HEAVY = re.compile(r"#include\s*<(grpcpp/|grpc/|boost/asio|boost/beast|rapidjson/)")
# PURE: no clock, socket, thread, syscall, gRPC or CUDA.
PURE = ["worker/kv/", "worker/sched/", "worker/constrain/"] + [f"supervisor/{n}." for n in ("group_machine", "restart_policy", "liveness", "sequencer", "request_table", "admission")]
IMPURE = re.compile(r"#include\s*<(thread|mutex|condition_variable|future|random|ctime|sys/[a-z_]+\.h|unistd\.h|fcntl\.h|poll\.h|grpcpp/|boost/asio)|"
                    r"\b(steady_clock|system_clock)::now|\bClock::Real\(|\bstd::random_device|\brand\(\)|\btime\(nullptr\)")
BANNED = [
    (re.compile(r"\busing namespace (?!std::(literals|chrono_literals|string_literals|string_view_literals))"), "using namespace"),
    (re.compile(r"\babsl::Mutex\b"), "absl::Mutex (thread sanitizer cannot see it)"),
    (re.compile(r"\bstd::regex\b"), "std::regex (stack overflow on long input)"),
    (re.compile(r"\bsrand\(|\bstd::rand\("), "rand()"),
    (re.compile(r"[^_\w](sprintf|strcpy|strcat|gets|vsprintf)\s*\("), "unbounded C string function"),
    (re.compile(r"\bsystem\s*\(\s*\""), "system()"),
    (re.compile(r"[^_\w:](fork)\s*\(\s*\)"), "fork (posix_spawn is the one way)"),
]
PATHS = re.compile(r"/(?:work|farm|home/\w+)/|/tmp/(?:hf/|bash_jobs|probe)")
# Design notes that are not in this repository: whoever reads a comment must be able to look up what it names.
ELSEWHERE = re.compile(r"\b(KV|API|MODELS|CASES|DESIGN|FREETOKEN|DEPS|PERF)\.md\b")

findings = []
heavy = {}
included_by_header = {}


def tracked():
    out = subprocess.run(["git", "-C", str(ROOT), "ls-files"], capture_output=True, text=True)
    if out.returncode == 0:
        return [ROOT / p for p in out.stdout.splitlines()]
    return [p for p in ROOT.rglob("*") if p.is_file() and "build" not in p.parts and ".git" not in p.parts]


def rule_for(rel):
    best = None
    for folder in ALLOWED:
        if rel.startswith(folder + "/") and (best is None or len(folder) > len(best)):
            best = folder
    return best


def check_source(path, rel, text):
    folder = rule_for(rel)
    tests = rel.startswith("tests/")
    if rel.endswith(".h") and "#pragma once" not in text:
        findings.append(f"{rel}: no #pragma once")
    for number, line in enumerate(text.splitlines(), 1):
        where = f"{rel}:{number}"
        m = re.match(r'\s*#include\s*"([^"]+)"', line)
        if m and folder:
            inc = m.group(1)
            own = inc.startswith(folder + "/")
            ok = own or any(inc == a or inc.startswith(a + "/") for a in ALLOWED[folder])
            # "proto" alone allows the generated messages and proto/base.
            if not ok and not inc.endswith(".inc"):
                findings.append(f"{where}: {folder} must not include {inc}")
        if rel.endswith(".h") and not tests and HEAVY.search(line):
            heavy.setdefault(rel, (where, line.strip()))
        if m and rel.endswith(".h") and not tests:
            included_by_header.setdefault(m.group(1), set()).add(rel)
        if any(rel.startswith(p) for p in PURE) and IMPURE.search(line):
            findings.append(f"{where}: impure in a pure unit: {line.strip()}")
        if tests and re.search(r'TEST_CASE\("[^"]*;', line):
            findings.append(f"{where}: ';' in a test name: ctest cuts it there and runs nothing")
        code = line.split("//")[0]
        for pattern, what in BANNED:
            if pattern.search(code) and not (tests and what == "using namespace"):
                findings.append(f"{where}: {what}")


def check_heavy():
    """A header that sees a heavy library may be included by .cc files, and by headers that see one themselves."""
    for rel, (where, line) in heavy.items():
        for other in sorted(included_by_header.get(rel, ())):
            if other not in heavy:
                findings.append(f"{where}: {line}, and {other} includes this header")


def main():
    for path in tracked():
        rel = path.relative_to(ROOT).as_posix()
        if path.suffix in {".cc", ".h", ".cu", ".cuh", ".proto", ".py", ".sh", ".md", ".txt", ".json", ".cmake"} and path.is_file():
            try:
                text = path.read_text(encoding="utf-8")
            except UnicodeDecodeError:
                if path.suffix in {".cc", ".h", ".py", ".sh", ".md"}:
                    findings.append(f"{rel}: not UTF-8")
                continue
            if path.suffix in {".cc", ".h", ".cu", ".cuh"}:
                check_source(path, rel, text)
            if rel != "tests/lint/lint.py":
                for number, line in enumerate(text.splitlines(), 1):
                    if PATHS.search(line):
                        findings.append(f"{rel}:{number}: a path of one machine: {line.strip()[:100]}")
                    if ELSEWHERE.search(line):
                        findings.append(f"{rel}:{number}: cites a document that is not here: {line.strip()[:100]}")
                    if "../shared" in line and not rel.startswith("tests/"):
                        findings.append(f"{rel}:{number}: names ../shared")
    check_heavy()
    for f in findings:
        print(f)
    print(f"{len(findings)} findings")
    return 1 if findings else 0


sys.exit(main())
