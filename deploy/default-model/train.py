"""Trains the default model on the shards that data.py writes.

  python train.py --data DIR --out FILE.pt --minutes 60 [--resume-from FILE.pt|FILE.gguf] [--seed N]

Muon for the blocks' matrices, AdamW for the rest; f32 weights, products in bf16 where the processor has instructions for them. A checkpoint
every few minutes and at the end. The learning rate falls linearly to nothing over --minutes of wall clock (or over --steps), so that a run
may be as long as there is time for.
"""
import argparse
import glob
import os
import time

import numpy as np
import torch
import torch.nn.functional as F

import model


def orthogonalise(g):
    """Newton-Schulz: g [.., m, n] with singular values near 1."""
    wide = g.shape[-2] <= g.shape[-1]
    x = g if wide else g.transpose(-1, -2)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        a = x @ x.transpose(-1, -2)
        x = 3.4445 * x + (-4.7750 * a + 2.0315 * (a @ a)) @ x
    return x if wide else x.transpose(-1, -2)


class Optimizer:
    def __init__(self, w):
        self.w, self.step_count = w, 0
        self.m = {n: torch.zeros_like(p) for n, p in w.items()}
        self.v = {n: torch.zeros_like(p) for n, p in w.items() if not model.is_matrix(n)}

    @torch.no_grad()
    def step(self, matrix_rate, rate):
        self.step_count += 1
        norm = torch.stack([p.grad.norm() for p in self.w.values()]).norm()
        clip = min(1.0, 2.0 / (norm.item() + 1e-6))
        for n, p in self.w.items():
            g = p.grad * clip
            if n in self.v:
                b2 = 0.98
                self.m[n].lerp_(g, 0.1)
                self.v[n].lerp_(g * g, 1 - b2)
                m = self.m[n] / (1 - 0.9 ** self.step_count)
                v = self.v[n] / (1 - b2 ** self.step_count)
                p -= rate * m / (v.sqrt() + 1e-8)
            else:
                self.m[n].lerp_(g, 0.05)
                p -= matrix_rate * max(1.0, p.shape[-2] / p.shape[-1]) ** 0.5 * orthogonalise(g.lerp(self.m[n], 0.95))
            p.grad = None
        return norm.item()


class Data:
    """Batches of about `tokens` tokens, dialogues of like length together; shards that appear later are taken up at the next round."""

    def __init__(self, folder, tokens, seed):
        self.folder, self.tokens, self.rng, self.queue, self.rounds = folder, tokens, np.random.default_rng(seed), [], {}

    def paths(self):
        return sorted(p for p in glob.glob(os.path.join(self.folder, "*.npz")) if not p.endswith(".part.npz"))

    def next(self):
        if not self.queue:
            paths = self.paths()
            while not paths:  # data.py may have been started at the same time
                time.sleep(1)
                paths = self.paths()
            least = min(self.rounds.get(p, 0) for p in paths)
            fresh = [p for p in paths if self.rounds.get(p, 0) == least]
            path = fresh[self.rng.integers(len(fresh))]
            self.rounds[path] = least + 1
            with np.load(path) as file:  # each look into it reads the array anew
                s = {k: file[k] for k in ("ids", "mask", "starts")}
            order = np.argsort(np.diff(s["starts"]) + self.rng.uniform(0, 12, len(s["starts"]) - 1))
            rows, widest = [], 0
            for i in order:
                a, b = s["starts"][i], s["starts"][i + 1]
                widest = max(widest, b - a)
                if rows and widest * (len(rows) + 1) > self.tokens:
                    self.queue.append(rows)
                    rows, widest = [], b - a
                rows.append((s["ids"][a:b], s["mask"][a:b]))
            self.queue.append(rows)
            self.rng.shuffle(self.queue)
        rows = self.queue.pop()
        t = max(len(i) for i, _ in rows)
        ids, mask = np.zeros((len(rows), t), np.int64), np.zeros((len(rows), t), bool)
        for r, (i, m) in enumerate(rows):
            ids[r, :len(i)], mask[r, :len(i)] = i, m
        return torch.from_numpy(ids), torch.from_numpy(mask)


def loss_of(c, w, ids, mask):
    h, balance = model.hidden(c, w, ids[:, :-1])
    wanted = mask[:, 1:]
    out = model.logits(w, h[wanted])
    target = ids[:, 1:][wanted]
    return F.cross_entropy(out, target), balance, (out.argmax(-1) == target).float().mean()


def load(path):
    """(weights by name, config) of a checkpoint or an exported GGUF."""
    if path.endswith(".gguf"):
        import gguf_io
        return gguf_io.read(path)
    saved = torch.load(path, weights_only=True)
    return saved["weights"], saved["config"]


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--data", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--resume-from")
    p.add_argument("--minutes", type=float, default=60)
    p.add_argument("--steps", type=int, default=0)
    p.add_argument("--tokens", type=int, default=4096)
    p.add_argument("--matrix-rate", type=float, default=0.02)
    p.add_argument("--rate", type=float, default=0.003)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--products", choices=["auto", "bf16", "f32"], default="auto", help="precision of products; auto: bf16 where the processor has it")
    p.add_argument("--save-every", type=float, default=4, help="minutes")
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    # A processor without instructions for bf16 emulates them, ten times slower than f32.
    bf16 = {"bf16": True, "f32": False}.get(a.products, torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    torch.manual_seed(a.seed)
    weights, c = load(a.resume_from) if a.resume_from else (model.initial(model.CONFIG, a.seed), model.CONFIG)
    w = {n: t.float().requires_grad_(True) for n, t in weights.items()}
    print("parameters:", sum(t.numel() for t in w.values()), flush=True)
    optimizer, data = Optimizer(w), Data(a.data, a.tokens, a.seed)
    start = saved = told = time.time()
    cpu = time.process_time()
    seen, step, sums = 0, 0, np.zeros(3)

    def save():
        torch.save({"weights": {n: t.detach() for n, t in w.items()}, "config": c}, a.out + ".part")
        os.rename(a.out + ".part", a.out)

    while True:
        done = step / a.steps if a.steps else (time.time() - start) / (a.minutes * 60)
        if done >= 1:
            break
        ids, mask = data.next()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            loss, balance, right = loss_of(c, w, ids, mask)
        (loss + 0.01 * balance).backward()
        fade = min(1.0, (step + 1) / 20) * min(1.0, (1 - done) / 0.7)
        norm = optimizer.step(a.matrix_rate * fade, a.rate * fade)
        step += 1
        seen += ids.numel()
        sums += [loss.item(), right.item(), norm]
        now = time.time()
        if step % 25 == 0 or step == 3:
            n = 25 if step % 25 == 0 else 3
            print("step %d loss %.3f right %.3f norm %.2f balance %.2f tokens %.2fM wall %.0fs cpu %.0fs (%.0f tokens/cpu-s)" % (
                step, sums[0] / n, sums[1] / n, sums[2] / n, float(balance), seen / 1e6, now - start, time.process_time() - cpu,
                seen / (time.process_time() - cpu)), flush=True)
            if step % 25 == 0:
                sums[:] = 0
        if now - saved > a.save_every * 60:
            save()
            saved = now
    save()
    print("end: %d steps, %.2fM tokens, %.0f s of wall clock, %.0f s of CPU" % (step, seen / 1e6, time.time() - start, time.process_time() - cpu))


if __name__ == "__main__":
    main()
