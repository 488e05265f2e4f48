"""Dialogues as the text that the chat template makes of them, with the model's own part marked."""
import os

TEMPLATE = open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "chat_template.jinja"), encoding="utf-8").read().rstrip("\n")


def _value(v):
    if isinstance(v, str):
        return '<|"|>' + v + '<|"|>'
    if isinstance(v, dict):
        return "{" + ",".join(k + ":" + _value(v[k]) for k in sorted(v)) + "}"
    if isinstance(v, list):
        return "[" + ",".join(map(_value, v)) + "]"
    return str(v)


def _schema(s):
    parts = []
    for k in sorted(s):
        if k == "type":
            parts.append("type:" + _value(s[k].upper()))
        elif k == "properties":
            parts.append("properties:{" + ",".join(n + ":" + _schema(s[k][n]) for n in sorted(s[k])) + "}")
        else:
            parts.append(k + ":" + _value(s[k]))
    return "{" + ",".join(parts) + "}"


def render(dialogue):
    """[(text, is the model's)], what chat_template.jinja writes for the dialogue (without a generation prompt). The shapes that world.py makes only.
    A message that is `given` is history, not the model's to write."""
    messages, out = dialogue["messages"], []
    system = messages[0]["role"] == "system"
    head = "<bos><|turn>system\n" + (messages[0]["content"] if system else "")
    for t in dialogue["tools"]:
        f = t["function"]
        head += "<|tool>declaration:" + f["name"] + "{description:" + _value(f["description"]) + ",parameters:" + _schema(f["parameters"]) + "}<tool|>"
    out.append((head + "<turn|>\n", False))
    opened, name = False, ""
    for m in messages[1 if system else 0:]:
        if m["role"] == "user":
            out.append(("<|turn>user\n" + m["content"] + "<turn|>\n", False))
        elif m["role"] == "tool":
            # The model itself writes the marker that begins a result: there it stops.
            out += [("<|tool_response>", True), ("response:" + name + "{value:" + _value(m["content"]) + "}<tool_response|>", False)]
        else:
            if not opened:
                out.append(("<|turn>model\n", False))
            calls = m.get("tool_calls", [])
            text = ("<|channel>thought\n" + m["reasoning_content"] + "<channel|>" if m.get("reasoning_content") else "") + m["content"]
            for c in calls:
                name = c["function"]["name"]
                text += "<|tool_call>call:" + name + _value(c["function"]["arguments"]) + "<tool_call|>"
            opened = bool(calls)
            out.append((text + ("" if opened else "<turn|>"), not m.get("given")))
            if not opened:
                out.append(("\n", False))
    return out
