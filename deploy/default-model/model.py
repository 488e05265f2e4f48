"""The gemma4 architecture at toy size, in torch: what Holdfast and other GGUF engines compute, differentiable.

Windowed layers rotate their heads; full layers do not (rope_freqs divides every angle by 1e30), so nothing in them depends on how far away a
token is and contexts longer than the training's stay in range.
"""
import math

import torch
import torch.nn.functional as F

CONFIG = dict(dim=128, vocab=2048, heads=4, ff=256, experts=4, used=2, expert_ff=64, window=128, windowed=[True, True, False, True, True, False],
              hd=32, hd_full=64, kv=2, kv_full=2, context=8192)
EPS = 1e-6
ROPE_BASE = 1e4


def shapes(c):
    """{GGUF name: shape as torch has it} of every trained tensor."""
    d, out = c["dim"], {"token_embd.weight": (c["vocab"], c["dim"]), "output_norm.weight": (c["dim"],)}
    for i, windowed in enumerate(c["windowed"]):
        hd, kv = (c["hd"], c["kv"]) if windowed else (c["hd_full"], c["kv_full"])
        layer = {
            "attn_norm.weight": (d,), "attn_q.weight": (c["heads"] * hd, d), "attn_q_norm.weight": (hd,), "attn_k.weight": (kv * hd, d),
            "attn_k_norm.weight": (hd,), "attn_v.weight": (kv * hd, d), "attn_output.weight": (d, c["heads"] * hd),
            "post_attention_norm.weight": (d,), "ffn_norm.weight": (d,), "ffn_gate.weight": (c["ff"], d), "ffn_up.weight": (c["ff"], d),
            "ffn_down.weight": (d, c["ff"]), "post_ffw_norm.weight": (d,), "ffn_gate_inp.weight": (c["experts"], d), "ffn_gate_inp.scale": (d,),
            "pre_ffw_norm_2.weight": (d,), "post_ffw_norm_1.weight": (d,), "post_ffw_norm_2.weight": (d,),
            "ffn_gate_up_exps.weight": (c["experts"], 2 * c["expert_ff"], d), "ffn_down_exps.weight": (c["experts"], d, c["expert_ff"])}
        out.update({"blk.%d.%s" % (i, n): s for n, s in layer.items()})
    return out


def is_matrix(name):
    """Trained with Muon: the matrices inside the blocks, but not the router."""
    return name.startswith("blk.") and name.endswith(".weight") and "norm" not in name and "gate_inp" not in name


def initial(c, seed):
    """Random weights, with three circuits laid out. Copying: layer 0 looks at the token before and the one before that, the first full layer finds the
    place where the present two tokens stood before and copies what followed. And it finds every place where the token before stood. Training
    makes of them what it needs."""
    g = torch.Generator().manual_seed(seed)
    d, w = c["dim"], {}
    for name, shape in shapes(c).items():
        if name == "token_embd.weight":
            w[name] = torch.randn(shape, generator=g) / math.sqrt(d)
        elif len(shape) == 1:
            w[name] = torch.ones(shape)
        elif "gate_inp" in name:
            w[name] = torch.randn(shape, generator=g)
        else:
            w[name] = torch.nn.init.orthogonal_(torch.empty(shape), generator=g) if len(shape) == 2 else torch.stack(
                [torch.nn.init.orthogonal_(torch.empty(shape[1:]), generator=g) for _ in range(shape[0])])
    for i, windowed in enumerate(c["windowed"]):
        p = "blk.%d." % i
        w[p + "attn_q_norm.weight"].fill_(0.4)
        w[p + "post_attention_norm.weight"].fill_(0.5)
        w[p + "post_ffw_norm.weight"].fill_(0.3)
    w["token_embd.weight"][:, 0] = 4 / math.sqrt(d)  # a direction that every token has: what a head needs to look at a position
    hd, p = c["hd"], "blk.0."
    frequency = ROPE_BASE ** (-2 * torch.arange(4) / hd)
    key = torch.zeros(hd)
    key[:4] = 1
    w[p + "attn_k.weight"][:hd] *= 0.05
    w[p + "attn_k.weight"][:hd, 0] = key
    for head in (0, 1):
        at = slice(head * hd, (head + 1) * hd)
        w[p + "attn_q.weight"][at] *= 0.05
        w[p + "attn_q.weight"][at, 0] = 0
        w[p + "attn_q.weight"][head * hd:head * hd + 4, 0] = torch.cos(frequency * (head + 1))
        w[p + "attn_q.weight"][head * hd + hd // 2:head * hd + hd // 2 + 4, 0] = -torch.sin(frequency * (head + 1))
    w[p + "attn_q_norm.weight"].fill_(1.0)
    w[p + "post_attention_norm.weight"].fill_(0.8)
    before, value = w[p + "attn_output.weight"], w[p + "attn_v.weight"][:hd]
    full = c["windowed"].index(False)
    p, hf = "blk.%d." % full, c["hd_full"]
    w[p + "attn_k.weight"][:hf] = torch.cat([before[:, :hd].T, before[:, hd:2 * hd].T])
    w[p + "attn_q.weight"][:hf] = torch.cat([value, before[:, :hd].T])
    w[p + "attn_output.weight"][:, :hf] = w[p + "attn_v.weight"][:hf].T
    w[p + "attn_output.weight"][:, hf:] *= 0.5
    # The other pair of its heads looks for the token before in the whole prompt: was the tool that the thought names declared?
    w[p + "attn_q.weight"][2 * hf:] = 0
    w[p + "attn_k.weight"][hf:2 * hf] = 0
    for head in (2, 3):
        w[p + "attn_q.weight"][head * hf:head * hf + hd] = before[:, :hd].T
    w[p + "attn_k.weight"][hf:hf + hd] = value
    return w


def rms(x, weight=None):
    return F.rms_norm(x, x.shape[-1:], None if weight is None else weight.to(x.dtype), EPS)


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def hidden(c, w, ids):
    """ids [B, T] -> the last norm's output [B, T, D] and the routers' balance loss. w: tensors by GGUF name."""
    n, t = ids.shape
    d, heads = c["dim"], c["heads"]
    x = F.embedding(ids, w["token_embd.weight"]) * math.sqrt(d)
    angle = torch.arange(t).float()[:, None] * ROPE_BASE ** (-2 * torch.arange(c["hd"] // 2).float() / c["hd"])
    cos, sin = angle.cos(), angle.sin()
    ago = torch.arange(t)[:, None] - torch.arange(t)
    mask = None if t <= c["window"] else torch.zeros(t, t).masked_fill((ago < 0) | (ago >= c["window"]), float("-inf"))
    balance = 0.0
    for i, windowed in enumerate(c["windowed"]):
        def at(name):
            return w["blk.%d.%s" % (i, name)]
        hd, kv = (c["hd"], c["kv"]) if windowed else (c["hd_full"], c["kv_full"])
        h = rms(x, at("attn_norm.weight"))
        q = rms(F.linear(h, at("attn_q.weight")).view(n, t, heads, hd).transpose(1, 2), at("attn_q_norm.weight"))
        k = rms(F.linear(h, at("attn_k.weight")).view(n, t, kv, hd).transpose(1, 2), at("attn_k_norm.weight"))
        v = rms(F.linear(h, at("attn_v.weight")).view(n, t, kv, hd).transpose(1, 2))
        if windowed:
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = k.repeat_interleave(heads // kv, 1), v.repeat_interleave(heads // kv, 1)
        dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
        q, k, v = q.to(dtype), k.to(dtype), v.to(dtype)
        if windowed and mask is not None:
            o = F.scaled_dot_product_attention(q, k, v, attn_mask=mask.to(dtype), scale=1.0)
        else:
            o = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)
        o = F.linear(o.transpose(1, 2).reshape(n, t, heads * hd), at("attn_output.weight"))
        x = x + rms(o.to(x.dtype), at("post_attention_norm.weight"))
        m = rms(x, at("ffn_norm.weight"))
        m = F.linear(F.gelu(F.linear(m, at("ffn_gate.weight")), approximate="tanh") * F.linear(m, at("ffn_up.weight")), at("ffn_down.weight"))
        m = rms(m.to(x.dtype), at("post_ffw_norm_1.weight"))
        experts, fe = c["experts"], c["expert_ff"]
        r = rms(x) * (at("ffn_gate_inp.scale") / math.sqrt(d))
        with torch.autocast("cpu", enabled=False):
            scores = F.linear(r, at("ffn_gate_inp.weight"))
            best = scores.topk(c["used"], -1)
            share = torch.zeros_like(scores).scatter(-1, best.indices, best.values.softmax(-1))
            balance = balance + experts * ((share > 0).float().mean((0, 1)) * scores.softmax(-1).mean((0, 1))).sum() / c["used"]
        e = rms(x, at("pre_ffw_norm_2.weight"))
        e = F.linear(e, at("ffn_gate_up_exps.weight").reshape(experts * 2 * fe, d)).view(n, t, experts, 2, fe)
        e = F.gelu(e[..., 0, :], approximate="tanh") * e[..., 1, :] * share[..., None].to(e.dtype)
        e = F.linear(e.reshape(n, t, experts * fe), at("ffn_down_exps.weight").transpose(0, 1).reshape(d, experts * fe))
        x = x + rms(m + rms(e.to(x.dtype), at("post_ffw_norm_2.weight")), at("post_ffw_norm.weight"))
    return rms(x, w["output_norm.weight"]), balance / len(c["windowed"])


def logits(w, h):
    return 30 * torch.tanh(F.linear(h, w["token_embd.weight"]).float() / 30)
