"""Executable model of worker/kv/README.md, first part: the pages of one group and the edits that change who owns them."""
import collections

M64 = (1 << 64) - 1
FREE, HELD, RETIRING, QUARANTINED, UNBACKED = "free", "held", "retiring", "quarantined", "unbacked"


class Disagreement(Exception):
    """Something the contract excludes."""


def mix(x):
    x = (x + 0x9E3779B97F4A7C15) & M64
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & M64
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & M64
    return x ^ (x >> 31)


def ceil_div(a, b):
    return -(-a // b)


class Page:
    __slots__ = ("kind", "ref", "indexed", "life")

    def __init__(self, kind):
        self.kind, self.ref, self.indexed, self.life = kind, 0, False, 0


class Arena:
    """The pages of one group. A handle is (page, life); only these edits change who owns a page."""

    def __init__(self, backed, reserved):
        self.pages = [Page(FREE if p < backed else UNBACKED) for p in range(reserved)]
        self.limit = backed
        self.free = collections.deque(range(backed))

    def live(self, handle, kinds=(HELD,)):
        page = self.pages[handle[0]]
        if page.kind not in kinds or page.ref <= 0 or page.life != handle[1]:
            raise Disagreement(f"stale handle {handle}: {page.kind} ref {page.ref} life {page.life}")
        return page

    def take(self):
        if not self.free:
            return None
        p = self.free.popleft()
        page = self.pages[p]
        if page.kind != FREE or page.ref != 0 or page.indexed or p >= self.limit:
            raise Disagreement(f"page {p} on the list is {page.kind}")
        page.kind, page.ref = HELD, 1
        return (p, page.life)

    def share(self, handle):
        self.live(handle).ref += 1
        return handle

    def drop(self, handle):
        page = self.live(handle, (HELD, QUARANTINED))
        if page.ref == 1 and page.indexed:
            raise Disagreement(f"page {handle[0]}: the last reference is the index's")
        page.ref -= 1
        if page.ref > 0:
            return
        page.life += 1
        if page.kind == QUARANTINED:
            return
        if handle[0] >= self.limit:
            page.kind = RETIRING
        else:
            page.kind = FREE
            self.free.append(handle[0])

    def index_add(self, handle):
        page = self.live(handle)
        if page.indexed:
            raise Disagreement(f"page {handle[0]} in two nodes")
        page.ref += 1
        page.indexed = True
        return handle

    def index_del(self, handle):
        page = self.live(handle, (HELD, QUARANTINED))
        if not page.indexed:
            raise Disagreement(f"page {handle[0]} is in no node")
        page.indexed = False
        self.drop(handle)

    def quarantine(self, p):
        page = self.pages[p]
        if page.kind in (FREE, HELD):
            was_free = page.kind == FREE
            page.kind = QUARANTINED
            if was_free:
                self.relist()

    def relist(self):
        self.free = collections.deque(p for p, page in enumerate(self.pages) if page.kind == FREE)

    def set_limit(self, limit):
        self.limit = limit
        for p, page in enumerate(self.pages):
            if p < limit and page.kind in (UNBACKED, RETIRING):
                page.kind = FREE
            elif p >= limit and page.kind == FREE:
                page.kind = RETIRING
        self.relist()

    def unback(self):
        for page in self.pages[self.limit:]:
            if page.kind == RETIRING:
                page.kind = UNBACKED

    def count(self, kind):
        return sum(page.kind == kind for page in self.pages)

    def evictable(self, p):
        page = self.pages[p]
        return page.kind == HELD and page.indexed and page.ref == 1

    def row_held(self):
        return sum(page.kind == HELD and not (page.indexed and page.ref == 1) for page in self.pages)

    def quarantined(self):
        return sum(page.kind == QUARANTINED for page in self.pages[:self.limit])

    def usable(self):
        return self.limit - self.quarantined()

    def held_above(self):
        return sum(page.kind == HELD for page in self.pages[self.limit:])
