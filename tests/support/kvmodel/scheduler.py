"""Executable model of worker/sched/README.md on top of ledger.py: the queue, the steps, their outcomes, resizing. Commands in, decisions out."""
import collections

from ledger import Ledger, Row
from pages import M64, Disagreement, ceil_div, mix

WAITING, PREFILL, DECODE, ENDED = "waiting", "prefill", "decode", "ended"
STOP, LENGTH, CANCELLED, FAILED, NEVER_FITS = 1, 2, 3, 4, 5
SCAN, PASSED, MOVES_PER_STEP = 64, 32, 256
ENDLESS = 1 << 62
PREEMPT = 0x707265656D7074  # what the digest calls it
LEAST_SHARE = 4

Config = collections.namedtuple("Config", "page_size running chunk overlap max_seq_len max_waiting reserve_tokens windows pages reserved")
Entry = collections.namedtuple("Entry", "request start tokens sample awaits")


class Sequence:
    def __init__(self, request, order, tokens, prompt, final, anchors, salt, cached, logprobs, ahead, row):
        self.request, self.order, self.tokens, self.prompt, self.final = request, order, tokens, prompt, final
        self.anchors, self.salt, self.cached, self.logprobs, self.row = anchors, salt, cached, logprobs, row
        self.state, self.slot, self.target, self.inflight, self.reserved, self.hit_blocks = WAITING, 0, 0, 0, 0, 0
        self.next_anchor, self.leaving, self.passed, self.epoch = 0, False, 0, 0
        self.writer = None  # (order, slot, tokens): who computes what it would compute
        self.ahead, self.pending, self.sampled_in = ahead, 0, None  # tokens drawn and not told yet; the step that draws the last of them

    def running(self):
        return self.state in (PREFILL, DECODE)


class Scheduler:
    def __init__(self, config):
        self.c, self.ps = config, config.page_size
        self.ledger = Ledger(config.page_size, config.windows, config.pages, [max(a, b) for a, b in zip(config.pages, config.reserved)])
        self.waiting, self.active, self.requests, self.slots = [], [], {}, [None] * config.running
        self.order, self.digest_, self.launched = 1, 0x7363686564, collections.deque()
        self.shrinking, self.targets, self.moves = False, None, []
        self.has_full = config.windows[0] == 0

    def fold(self, value):
        self.digest_ = mix(self.digest_ ^ (value & M64))

    def digest(self):
        return mix(self.digest_ ^ self.ledger.digest)

    def pages(self, tokens):
        return ceil_div(tokens, self.ps)

    # ---- capacity: the formulas of the contract
    def smallest_chunk(self, n):
        return max(n, min(256, self.c.chunk))

    def window_pages(self, window):
        return window - 1 if self.ps == 1 else ceil_div(max(window - 2, 0), self.ps) + 2

    def need(self, window, n, chunk):
        return n * self.window_pages(window) + (self.c.overlap + 1) * max(chunk, n) // self.ps

    def floor(self, window, n):
        small = self.smallest_chunk(n)
        return self.need(window, n, small) if window else n + self.pages(small)

    def limits(self, usable=None):
        """Requests that may run, tokens a step may compute, tokens that may be in flight."""
        usable = usable or [a.usable() for a in self.ledger.arenas]
        n = max((n for n in range(1, self.c.running + 1) if all(u >= self.floor(w, n) for u, w in zip(usable, self.c.windows))), default=0)
        if n == 0:
            return 0, 0, 0
        chunk, flight = max(self.c.chunk, n), ENDLESS
        for u, w in zip(usable, self.c.windows):
            if w == 0:
                continue
            spare = max(0, u - n * self.window_pages(w)) * self.ps
            flight = min(flight, spare + self.ps - 1)
            if self.need(w, n, chunk) > u:
                chunk = max(self.smallest_chunk(n), spare // (self.c.overlap + 1))
        return n, chunk, flight

    def full_usable(self):
        arena = self.ledger.arenas[0]
        usable = arena.usable()
        if self.targets and self.targets[0]["shrink"]:
            usable = min(usable, max(0, self.targets[0]["limit"] - arena.quarantined()))
        return usable

    def promised(self):
        return sum(s.reserved for s in self.active)

    def headroom(self):
        """A - R"""
        if not self.has_full:
            return ENDLESS
        limit = self.ledger.arenas[0].limit
        if self.targets:
            limit = min(limit, self.targets[0]["limit"])
        return self.ledger.available(0, limit) - self.promised()

    def reserve_pages(self, s):
        tokens = s.final
        if self.c.reserve_tokens:
            tokens = min(tokens, len(s.tokens) + self.c.reserve_tokens)
        return self.pages(tokens)

    # ---- commands
    def submit(self, request, tokens, prompt, max_tokens, anchors, salt, no_cache, logprobs, ahead):
        final = min(prompt + max_tokens, self.c.max_seq_len)
        s = Sequence(request, self.order, list(tokens), prompt, final, sorted(anchors + [prompt]), salt, not no_cache, logprobs, ahead, None)
        self.order += 1
        self.fold(request ^ len(tokens) << 40)
        self.requests[request] = s
        if len(tokens) > self.c.max_seq_len or prompt >= self.c.max_seq_len:
            self.end(s, NEVER_FITS)
        elif self.has_full and self.pages(final) > self.full_usable():
            self.end(s, NEVER_FITS)
        elif len(tokens) >= final and len(tokens) > prompt:
            self.end(s, LENGTH)
        elif len(self.waiting) >= self.c.max_waiting:
            self.end(s, FAILED)
        else:
            self.enqueue(s)
            return
        del self.requests[request]

    def end(self, s, reason):
        s.state = ENDED
        self.fold(s.request ^ reason << 60)

    def enqueue(self, s):
        s.state, s.writer = WAITING, None
        self.waiting.append(s)
        self.waiting.sort(key=lambda x: x.order)

    def cancel(self, request):
        s = self.requests.get(request)
        if s is None:
            return
        if s.state == WAITING:
            self.waiting.remove(s)
            self.end(s, CANCELLED)
            del self.requests[request]
        elif s.running():
            self.end(s, CANCELLED)
            if s.inflight == 0:
                self.release(s)
            self.pump()

    def suspect(self, g, page):
        self.ledger.unindex_page(g, page)
        self.ledger.arenas[g].quarantine(page)
        for s in [s for s in self.active if any(h is not None and h[0] == page for h in s.row.pages[g])]:
            self.restart(s)
        self.keep_promises()

    def restart(self, s):
        s.epoch += 1
        s.inflight = s.pending = 0
        self.release(s)

    def keep_promises(self):
        """After pages were lost: what is promised must be there."""
        if not self.has_full or self.ledger.available(0) >= self.promised():
            return
        for s in self.active:
            if not s.running():
                s.reserved = 0
        while self.ledger.available(0) < self.promised():
            alive = [s for s in self.active if s.running()]
            if len(alive) < 2:
                return
            youngest = max(alive, key=lambda s: s.order)
            self.fold(youngest.request ^ PREEMPT)
            self.restart(youngest)

    # ---- a step
    def can_run_ahead(self, s):
        """The step launched last draws its token, which is not its last, and a promise holds its page."""
        return (s.ahead and s.pending > 0 and s.sampled_in is self.launched[-1] and len(s.tokens) + s.pending < s.final and
                (s.reserved > 0 or not self.has_full or self.pages(s.row.launched + 1) <= s.row.blocks()))

    def somebody_waits(self):
        return any(s.state == DECODE and not s.leaving and s.pending > 0 and len(s.tokens) + s.pending < s.final and not self.can_run_ahead(s)
                   for s in self.active)

    def plan(self):
        if len(self.launched) > self.c.overlap or (self.launched and (self.shrinking or self.somebody_waits())):
            return None
        running, chunk, flight = self.limits()
        budget = min(chunk, max(0, flight - sum(n for step in self.launched for _, _, _, n, _ in step)))
        while len(self.active) > running > 0:
            candidates = [s for s in self.active if s.running() and not s.leaving]
            if not candidates:
                break
            youngest = max(candidates, key=lambda s: s.order)
            self.preempt(youngest)
            if youngest.state != WAITING:
                break
        self.secure_overruns()
        entries, step = [], []

        least = max(1, chunk // LEAST_SHARE)

        def launch(s, n, whole=True):
            """Returns the tokens launched: a prefill's chunk stops where it would cost a window that is worth keeping."""
            known, before = len(s.tokens), s.row.blocks()
            got = n if whole else min(n, least)
            self.ledger.extend(s.row, self.pages(s.row.launched + got))
            while got < n:
                got = min(n, s.row.blocks() * self.ps - s.row.launched)
                if got == n or self.ledger.next_block_is_dear():
                    break
                self.ledger.extend(s.row, s.row.blocks() + 1)
            n = got
            if self.has_full:
                s.reserved -= min(s.reserved, s.row.blocks() - before)
            awaits, drawn = s.row.launched >= known, known + s.pending
            sample = s.row.launched + n == drawn and drawn < s.final
            entries.append(Entry(s.request, s.row.launched, n, sample, awaits))
            step.append((s, s.epoch, s.row.launched, n, sample))
            self.fold(s.request << 32 ^ s.row.launched << 12 ^ n ^ awaits << 63)
            if sample:
                s.pending, s.sampled_in = s.pending + 1, step
            s.row.launched += n
            s.inflight += 1
            if s.row.launched == s.target:
                s.state = DECODE
            return n

        for s in self.active:
            if budget > 0 and s.state == DECODE and not s.leaving and (s.row.launched < len(s.tokens) or self.can_run_ahead(s)):
                overrun = s.reserved == 0 and self.pages(s.row.launched + 1) > s.row.blocks()
                if not overrun or self.headroom() > 0:
                    launch(s, 1)
                    budget -= 1
        for s in self.active:
            if budget > 0 and s.state == PREFILL and not s.leaving:
                n = min(budget, s.target - s.row.launched)
                got = launch(s, n, whole=False)
                budget = budget - n if got == n else 0
        if not self.shrinking or self.headroom() > 0:
            self.admit_waiting(running, budget, launch)
        if not entries:
            if not self.launched and (self.active or (self.waiting and not self.shrinking)):
                raise Disagreement("nothing can run and nothing is in flight")
            return None
        self.launched.append(step)
        return entries

    def secure_overruns(self):
        while self.c.reserve_tokens and self.has_full:
            alive = [s for s in self.active if s.running()]
            if any(s.leaving for s in alive):
                return
            overruns = sum(s.state == DECODE and s.reserved == 0 and s.row.launched < len(s.tokens) and
                           self.pages(s.row.launched + 1) > s.row.blocks() for s in alive)
            if overruns == 0 or overruns <= self.headroom() or len(alive) == 1:
                return
            self.preempt(max(alive, key=lambda s: s.order))

    # ---- the queue
    def blocks(self, s, first=0, last=None):
        count = len(s.tokens) // self.ps if last is None else last
        return [tuple(s.tokens[i * self.ps:(i + 1) * self.ps]) for i in range(first, count)]

    def measure(self, s):
        path, walked, loss = [], 0, 0
        if s.cached and not s.logprobs:
            path, walked, loss = self.ledger.lookup(s.salt, self.blocks(s, 0, (len(s.tokens) - 1) // self.ps))
        pages = self.reserve_pages(s) - len(path) if self.has_full else 0
        return path, pages + loss

    def held_back(self, s, hit):
        """Somebody is computing its next block: until what both share is settled."""
        if not s.cached or s.logprobs or hit >= len(s.tokens) // self.ps:
            return False
        mine = self.blocks(s)
        for o in self.active:
            if not o.running() or o.row.node is None or o.salt != s.salt:
                continue
            common = 0
            for a, b in zip(mine, self.blocks(o)):
                if a != b:
                    break
                common += 1
            end = (hit + 1) * self.ps
            if common <= hit or end > o.target or end <= o.row.settled:
                continue
            s.writer = (o.order, o.slot, min(common, o.target // self.ps) * self.ps)
            return True
        return False

    def still_held_back(self, s):
        if s.writer is None:
            return False
        order, slot, tokens = s.writer
        o = self.slots[slot]
        return o is not None and o.order == order and o.running() and o.row.node is not None and o.row.settled < tokens

    def admit_waiting(self, running, budget, launch):
        head, head_demand, scanned = None, 0, 0
        for s in list(self.waiting):
            if budget <= 0 or len(self.active) >= running or scanned >= SCAN:
                return
            scanned += 1
            if head is not None and (head.passed >= PASSED or len(self.active) + 1 >= running):
                return
            if self.still_held_back(s):
                if head is None:
                    head, head_demand = s, self.measure(s)[1]
                continue
            s.writer = None
            path, demand = self.measure(s)
            fits = not self.has_full or demand + head_demand <= self.headroom()
            if fits and not self.held_back(s, len(path)):
                if head is not None:
                    head.passed += 1
                self.waiting.remove(s)
                self.admit(s, path)
                n = min(budget, s.target - s.row.launched)
                got = launch(s, n, whole=False)
                budget = budget - n if got == n else 0
                continue
            if head is None:
                head, head_demand = s, demand
                if not fits:
                    return

    def admit(self, s, path):
        reserve = self.reserve_pages(s) if self.has_full else 0
        s.row = Row(len(self.c.windows))
        if s.cached:
            self.ledger.adopt(s.row, s.salt, path)
        else:
            self.ledger.rows.append(s.row)
        s.hit_blocks = len(path)
        s.slot = self.slots.index(None)
        self.slots[s.slot] = s
        s.reserved = reserve - len(path) if self.has_full else 0
        s.target, s.state = len(s.tokens), PREFILL
        s.next_anchor = sum(a // self.ps <= len(path) for a in s.anchors)
        self.active.append(s)
        self.fold(s.request ^ len(path) * self.ps << 32)

    # ---- outcomes
    def release(self, s):
        if s.inflight:
            raise Disagreement(f"request {s.request} is released with {s.inflight} steps in flight")
        self.ledger.release(s.row)
        self.active.remove(s)
        self.slots[s.slot] = None
        s.reserved, s.leaving = 0, False
        if s.state == ENDED:
            del self.requests[s.request]
        else:
            self.enqueue(s)

    def preempt(self, s):
        if s.leaving:
            return
        self.fold(s.request ^ PREEMPT)
        if s.inflight:
            s.leaving = True
        else:
            self.release(s)

    def apply(self, outcomes):
        """outcomes: (request, token, stop, failed) of every entry that samples, in the order of the plan."""
        outcomes = collections.deque(outcomes)
        for s, epoch, start, n, sample in self.launched[0]:
            sampled = None
            if outcomes and outcomes[0][0] == s.request:
                sampled = outcomes.popleft()
            if s.epoch == epoch:
                s.pending -= sample
                self.settle(s, start, n, sampled)
        if outcomes:
            raise Disagreement(f"outcomes of nobody: {list(outcomes)}")
        self.launched.popleft()
        self.pump()

    def settle(self, s, start, n, sampled):
        s.inflight -= 1
        s.row.settled = start + n
        if sampled is not None and sampled[3]:
            self.ledger.unindex_row(s.row, s.hit_blocks)
            if s.running():
                self.end(s, FAILED)
        else:
            s.next_anchor = self.ledger.commit(s.row, s.tokens, s.anchors, s.next_anchor)
            self.ledger.slide(s.row)
            if s.running() and sampled is not None:
                s.tokens.append(sampled[1])
                self.fold(s.request ^ sampled[1] << 32)
                if sampled[2] or len(s.tokens) >= s.final:
                    self.ledger.mark_end(s.row)
                    self.end(s, STOP if sampled[2] else LENGTH)
            elif s.running() and s.row.settled == len(s.tokens) >= s.final:
                self.ledger.mark_end(s.row)
                self.end(s, LENGTH)
        if s.inflight == 0 and (s.state == ENDED or s.leaving):
            self.release(s)

    # ---- resizing
    def resize(self, operation, full, window, cancel):
        self.fold(operation ^ full << 32 ^ window << 8 ^ int(cancel))
        arenas = self.ledger.arenas
        if cancel:
            if self.shrinking:
                for g, t in enumerate(self.targets):
                    if t["shrink"] and t["set"]:
                        arenas[g].set_limit(t["before"])
                self.targets, self.shrinking = None, False
            return
        if self.shrinking:
            raise Disagreement("two resizes at once")
        targets = []
        for g, w in enumerate(self.c.windows):
            limit = (window if w else full) or arenas[g].limit
            if limit > len(arenas[g].pages):
                return
            targets.append({"limit": limit, "before": arenas[g].limit, "shrink": limit < arenas[g].limit, "set": False})
        usable = [max(0, t["limit"] - a.quarantined()) for t, a in zip(targets, arenas)]
        if self.limits(usable)[0] < self.c.running:
            return
        if self.has_full and any(self.pages(s.final) > usable[0] for s in self.waiting + self.active):
            return
        for t, arena in zip(targets, arenas):
            if t["limit"] > t["before"]:
                arena.set_limit(t["limit"])
                t["set"] = True
        if any(t["shrink"] for t in targets):
            self.targets, self.shrinking = targets, True
            self.pump()

    def pump(self):
        if not self.shrinking or self.launched:
            return
        budget, done, moved = MOVES_PER_STEP if self.active else ENDLESS, True, []
        for g, t in enumerate(self.targets):
            if not t["shrink"]:
                continue
            if not t["set"]:
                if self.c.windows[g] == 0 and self.ledger.available(g, t["limit"]) < self.promised():
                    done = False
                    continue
                self.ledger.arenas[g].set_limit(t["limit"])
                t["set"] = True
            self.ledger.move_down(g, budget, lambda group, a, b: moved.append((group, a, b)))
            done = done and self.ledger.arenas[g].held_above() == 0
        for _, a, b in moved:
            self.fold(a << 32 | b)
        self.moves.extend(moved)
        if done:
            for g, t in enumerate(self.targets):
                if t["shrink"]:
                    self.ledger.arenas[g].unback()
            self.targets, self.shrinking = None, False

    def audit(self):
        self.ledger.audit()
        for g in range(len(self.c.windows)):
            if self.ledger.available(g) < (self.promised() if self.c.windows[g] == 0 else 0):
                raise Disagreement(f"group {g}: more is promised or held than there is")
