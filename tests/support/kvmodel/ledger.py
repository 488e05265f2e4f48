"""Executable model of worker/kv/README.md: rows, the prefix index, the operations. Everything derivable is derived anew by looking at rows
and nodes: no counters, no heap, no fingerprints. Slow on purpose; the C++ is compared with it decision by decision (replay.py)."""
import collections

from pages import FREE, HELD, QUARANTINED, Arena, Disagreement, ceil_div, mix

TAKE, EVICT, DEDUP, HEAL, MOVE = 1, 2, 3, 4, 5  # what the digest calls them


class Node:
    """One block of tokens on one path. kids is in order of arrival; walks go from the newest."""

    def __init__(self, number, parent, block, groups):
        self.number, self.parent, self.block = number, parent, block
        self.depth = 0 if parent is None else parent.depth + 1
        self.kids, self.live = {}, True
        self.page, self.worth, self.stamp, self.kept = [None] * groups, [0] * groups, [0] * groups, False

    def newest_first(self):
        return list(reversed(list(self.kids.values())))

    def path(self):
        n = self
        while n is not None:
            yield n
            n = n.parent


class Row:
    """A request's page tables: [group] list of handles or None."""

    def __init__(self, groups):
        self.pages = [[] for _ in range(groups)]
        self.slid = [0] * groups
        self.node, self.indexed, self.settled, self.launched = None, 0, 0, 0

    def blocks(self):
        return len(self.pages[0])


class Ledger:
    """Joins arenas, rows and the index. windows[g] = 0 is full attention (group 0 or none)."""

    def __init__(self, page_size, windows, backed, reserved):
        self.ps, self.windows = page_size, windows
        self.arenas = [Arena(b, r) for b, r in zip(backed, reserved)]
        self.needed = [0 if w == 0 else ceil_div(w - 1, page_size) for w in windows]
        self.rows, self.roots, self.tick = [], {}, 0
        self.numbers, self.fresh = [], 0  # numbers of removed nodes, last out first in; the next never used
        self.digest = 0x6C6564676572

    def fold(self, what, value):
        self.digest = mix(self.digest ^ (what << 56) ^ value)

    def groups(self):
        return range(len(self.windows))

    # ---- the index
    def new_node(self, parent, block):
        if self.numbers:
            number = self.numbers.pop()
        else:
            number, self.fresh = self.fresh, self.fresh + 1
        node = Node(number, parent, block, len(self.windows))
        if parent is not None:
            parent.kids[block] = node
        return node

    def nodes(self):
        stack = list(self.roots.values())
        while stack:
            n = stack.pop()
            if n.depth > 0:
                yield n
            stack.extend(n.kids.values())

    def remove_if_empty(self, node):
        while node is not None:
            stood_on = any(row.node is node for row in self.rows)
            if node.kids or stood_on or any(page is not None for page in node.page):
                return
            node.live = False
            self.numbers.append(node.number)
            if node.depth == 0:
                del self.roots[node.block]
            else:
                del node.parent.kids[node.block]
            node = node.parent

    def give_up(self, node, g):
        if node.page[g] is not None:
            handle, node.page[g] = node.page[g], None
            self.arenas[g].index_del(handle)

    def victim(self, g):
        best = None
        for n in self.nodes():
            if n.page[g] is None or not self.arenas[g].evictable(n.page[g][0]) or (self.windows[g] == 0 and n.kids):
                continue
            key = (n.worth[g] > 0, n.stamp[g] + n.worth[g], n.number)
            if best is None or key < best[0]:
                best = (key, n)
        return None if best is None else best[1]

    def evict(self, g):
        node = self.victim(g)
        if node is None:
            return False
        self.fold(EVICT, g << 32 | node.number)
        for other in reversed(self.groups()) if self.windows[g] == 0 else [g]:
            self.give_up(node, other)
        self.remove_if_empty(node)
        return True

    def take(self, g):
        arena = self.arenas[g]
        while not arena.free and self.evict(g):
            pass
        handle = arena.take()
        if handle is None:
            raise Disagreement(f"group {g} has no page to take")
        self.fold(TAKE, g << 24 | handle[0])
        return handle

    # ---- the life of a row
    def lookup(self, salt, blocks):
        """Nodes of the longest usable prefix, of all there are, and the full pages among the first that are evictable now."""
        node, path, usable = self.roots.get(salt), [], 0
        for block in blocks:
            node = node.kids.get(block) if node is not None else None
            if node is None:
                break
            path.append(node)
            ok = True
            for g, w in enumerate(self.windows):
                there = [n.page[g] is not None for n in path]
                ok = ok and (all(there) or (w != 0 and (self.needed[g] == 0 or all(there[-self.needed[g]:]))))
            if ok:
                usable = len(path)
        loss = 0
        if self.windows[0] == 0:
            loss = sum(self.arenas[0].pages[n.page[0][0]].ref == 1 for n in path[:usable])
        return path[:usable], len(path), loss

    def adopt(self, row, salt, path):
        self.tick += 1
        self.rows.append(row)
        start = len(path) * self.ps
        for g, w in enumerate(self.windows):
            first = 0 if w == 0 or start < w else (start - w + 1) // self.ps
            for i, node in enumerate(path):
                if i < first:
                    row.pages[g].append(None)
                    continue
                row.pages[g].append(self.arenas[g].share(node.page[g]))
                node.stamp[g] = self.tick
            row.slid[g] = first
        if path:
            row.node = path[-1]
            self.keep_window(row.node)
        else:
            if salt not in self.roots:
                self.roots[salt] = self.new_node(None, salt)
            row.node = self.roots[salt]
        row.indexed, row.settled, row.launched = len(path), start, start

    def extend(self, row, blocks):
        while row.blocks() < blocks:
            for g in self.groups():
                row.pages[g].append(self.take(g))

    def next_block_is_dear(self):
        for g, w in enumerate(self.windows):
            n = self.victim(g) if w != 0 and not self.arenas[g].free else None
            if n is not None and n.worth[g] > 0 and n.stamp[g] + n.worth[g] > self.tick:
                return True
        return False

    def commit(self, row, tokens, anchors, next_anchor):
        """Returns the first anchor that was not reached."""
        if row.node is None:
            return next_anchor
        while (row.indexed + 1) * self.ps <= min(row.settled, len(tokens)):
            self.commit_block(row, tuple(tokens[row.indexed * self.ps:(row.indexed + 1) * self.ps]))
            while next_anchor < len(anchors) and anchors[next_anchor] // self.ps <= row.indexed:
                if anchors[next_anchor] // self.ps == row.indexed:
                    self.keep_window(row.node)
                next_anchor += 1
        return next_anchor

    def commit_block(self, row, block):
        i, parent = row.indexed, row.node
        self.tick += 1
        child = parent.kids.get(block)
        if child is None:
            branch = parent.depth > 0 and len(parent.kids) > 0
            child = self.new_node(parent, block)
            for g in self.groups():
                if row.pages[g][i] is not None:
                    child.page[g] = self.arenas[g].index_add(row.pages[g][i])
            if branch:
                self.keep_window(parent)
        else:
            for g in self.groups():
                own = row.pages[g][i]
                if own is None:
                    continue
                if child.page[g] is None:
                    child.page[g] = self.arenas[g].index_add(own)
                    self.fold(HEAL, g << 24 | own[0])
                elif child.page[g] != own:
                    row.pages[g][i] = self.arenas[g].share(child.page[g])
                    self.fold(DEDUP, g << 24 | child.page[g][0])
                    self.arenas[g].drop(own)
        child.stamp = [self.tick] * len(self.windows)
        row.node, row.indexed = child, i + 1

    def keep_window(self, node):
        """What its pages are worth: the blocks from the nearest kept window before it that is still there, or from the root."""
        if node.depth == 0:
            return
        for g, w in enumerate(self.windows):
            if w == 0:
                continue
            before = next(n for n in node.path() if n is not node and (n.depth == 0 or (n.kept and n.page[g] is not None)))
            for n in list(node.path())[:self.needed[g]]:
                if n.depth > 0:
                    n.worth[g] = max(n.worth[g], node.depth - before.depth)
        node.kept = True

    def mark_end(self, row):
        if row.node is not None:
            self.keep_window(row.node)

    def slide(self, row):
        for g, w in enumerate(self.windows):
            if w == 0 or row.settled < w:
                continue
            low = min((row.settled - w + 1) // self.ps, row.blocks())
            for i in range(row.slid[g], low):
                handle, row.pages[g][i] = row.pages[g][i], None
                if handle is not None:
                    self.arenas[g].drop(handle)
            row.slid[g] = max(low, row.slid[g])

    def leave(self, row):
        node, row.node = row.node, None
        if node is not None:
            row.indexed = 0
            self.remove_if_empty(node)

    def release(self, row):
        for g in self.groups():
            while row.pages[g]:
                handle = row.pages[g].pop()
                if handle is not None:
                    self.arenas[g].drop(handle)
        self.leave(row)
        row.__init__(len(self.windows))
        self.rows.remove(row)

    # ---- un-indexing
    def unindex(self, top):
        for row in self.rows:
            if row.node is not None and top in row.node.path():
                self.leave(row)
        if not top.live:
            return
        order = [top]
        for n in order:
            order.extend(n.newest_first())
        for n in reversed(order):
            for g in reversed(self.groups()):
                self.give_up(n, g)
            if n.live:
                self.remove_if_empty(n)

    def unindex_page(self, g, p):
        for n in list(self.nodes()):
            if n.page[g] is not None and n.page[g][0] == p:
                self.unindex(n)
                return

    def unindex_row(self, row, first):
        if row.node is not None and row.indexed > first:
            self.unindex(next(n for n in row.node.path() if n.depth == first + 1))
        self.leave(row)

    def reset(self):
        for row in self.rows:
            self.leave(row)
        for top in [n for salt in sorted(self.roots) for n in self.roots[salt].newest_first()]:
            self.unindex(top)

    # ---- capacity, resizing
    def available(self, g, limit=None):
        arena = self.arenas[g]
        return (arena.limit if limit is None else limit) - arena.quarantined() - arena.row_held()

    def move_down(self, g, budget, moved):
        """Owned pages at or above the limit go below it; moved(g, from, to) for each."""
        arena = self.arenas[g]
        for p in range(arena.limit, len(arena.pages)):
            if budget == 0 or arena.held_above() == 0:
                return
            while arena.pages[p].kind == HELD and not arena.free and self.evict(g):
                pass
            if arena.pages[p].kind != HELD:
                continue
            fresh = arena.take()
            if fresh is None:
                return
            self.fold(MOVE, p << 24 | fresh[0])
            budget -= 1
            moved(g, p, fresh[0])
            owner = next((n for n in self.nodes() if n.page[g] is not None and n.page[g][0] == p), None)
            for row in self.rows:
                for i, handle in enumerate(row.pages[g]):
                    if handle is not None and handle[0] == p:
                        row.pages[g][i] = arena.share(fresh)
                        arena.drop(handle)
            if owner is not None:
                old, owner.page[g] = owner.page[g], None
                arena.index_add(fresh)
                arena.index_del(old)
                owner.page[g] = fresh
            arena.drop(fresh)

    # ---- everything again from rows and nodes
    def audit(self):
        nodes = list(self.nodes())
        for g, arena in enumerate(self.arenas):
            in_rows = collections.Counter(h for row in self.rows for h in row.pages[g] if h is not None)
            in_nodes = collections.Counter(n.page[g] for n in nodes if n.page[g] is not None)
            if any(v > 1 for v in in_nodes.values()):
                raise Disagreement("a page in two nodes")
            listed = collections.Counter(arena.free)
            for p, page in enumerate(arena.pages):
                handle = (p, page.life)
                named = in_rows.pop(handle, 0) + in_nodes.get(handle, 0)
                if page.ref != named or page.indexed != (handle in in_nodes) or listed[p] != (page.kind == FREE):
                    raise Disagreement(f"group {g} page {p}: {page.kind} ref {page.ref}, named by {named}, listed {listed[p]}")
                if (page.kind == HELD) != (named > 0) and page.kind != QUARANTINED:
                    raise Disagreement(f"group {g} page {p}: {page.kind}, named by {named}")
            if in_rows:
                raise Disagreement(f"group {g}: rows name {list(in_rows)}, which do not live")
