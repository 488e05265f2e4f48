"""For every fault point and N = 1, 2, ...: fail at the Nth hit, in the first generation or the first life of a process, until a run passes without
hitting it. Whatever N is, the client's text is that of an undisturbed run, or the start is refused with a documented code."""
import os
import re
import tempfile

import pytest

import harness
from faults import Client, healthy, quick_supervisor, story
from harness import Server, model_file, wait_for

TOKENS = 4
LONG = bool(os.environ.get("HOLDFAST_LONG"))
BOUND = 200  # N beyond which a point that is passed all the time is left
# Points in a process that goes on passing them while it lives, however little it does.
ENDLESS = {"worker.loop", "worker.diverge", "supervisor.loop", "frontend.statement"}
POINTS = {
    "worker.start": "abort", "worker.load": "abort", "worker.load.progress": "abort", "model.pack": "abort", "worker.warm": "abort", "worker.loop": "abort",
    "worker.step": "abort", "exec.step": "fail", "exec.sample": "abort", "worker.step.sent": "abort",
    "worker.finding": "fail", "worker.map": "fail", "worker.layer": "abort", "worker.diverge": "fail",
    "supervisor.loop": "abort", "supervisor.spawn": "abort", "supervisor.incident": "abort", "frontend.statement": "abort",
}
# Points that only a group of several ranks passes; rank 1 alone fails there.
OF_TWO_RANKS = {"worker.diverge"}
# Points that are only passed after a loss: this one is caused first.
AFTER_A_LOSS = {"supervisor.incident", "worker.map"}


def steps(point):
    """1, 2, 3, ... in the long form (for points without an end up to 40); growing strides from the fourth on in CI."""
    n = 1
    while n <= (40 if LONG and point in ENDLESS else BOUND):
        yield n
        n += 1 if LONG or n < 4 else n // 2


@pytest.mark.parametrize("point", list(POINTS))
def test_fail_at_the_nth_hit_until_it_is_not_hit(point):
    passed = False
    for n in steps(point):
        with tempfile.TemporaryDirectory() as folder:
            once = os.path.join(folder, "once")  # removed by the process that acts: the next one is spared
            open(once, "w").close()
            rules = f"{point}:{POINTS[point]}:{n}@{once}"
            if point in AFTER_A_LOSS:
                rules += ",worker.step:abort:2@" + os.path.join(folder, "loss")
                open(os.path.join(folder, "loss"), "w").close()
            two = point in OF_TWO_RANKS
            env = {"HOLDFAST_FAULT": rules, **({"HOLDFAST_FAULT_RANK": "1"} if two else {})}
            with Server(model_file("script"), *(["--tp", "2"] if two else []), *quick_supervisor(**{"--restart-delay": 0.02}), env=env) as s:
                def whole():
                    client = Client(s, "<S03>", max_tokens=TOKENS).wait(60)
                    if client.status == 503 or (point.startswith("frontend.") and client.error is not None):
                        return None  # came in the instant before the loss was noticed, or its connection went with the frontend
                    return client
                client = wait_for(whole, 30, "an answer")
                assert client.error is None and client.done and client.text == story(TOKENS), (n, client.error, client.text)
                healthy(s)
                s.idle(20, supervisor_may_end=point.startswith("supervisor."))  # the hit may come as late as this
            if os.path.exists(once):
                passed = True
                break
    assert passed or point in ENDLESS, f"{point} is still hit at {BOUND}"


def test_every_fault_point_of_the_sources_is_in_the_loop():
    found = set()
    for folder in ("worker", "supervisor", "frontend"):
        for path in (harness.SOURCE / folder).rglob("*.cc"):
            found |= set(re.findall(r'FaultPoint\("([a-z.]+)"\)', path.read_text()))
    assert found == set(POINTS), found ^ set(POINTS)
