"""The console in a real browser: a chat with tool calls, keys, a lost engine, narrow and wide, light and dark; its script throws nothing."""
import json
import os
import pathlib

import pytest

from chromium import BROWSER, Browser
from harness import SOURCE, Server, demo_tool_result, free_port, model_file, script_model

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium here (apt-get install chromium)")

HERMES = ("--tool-call-parser", "hermes", "--reasoning-parser", "think")
SCRIPTS = [
    # Calls a tool; the prompt then ends with the result's brace, behind which the answer is.
    {"pieces": ["<think>", "Hm, the ", "weather.", "</think>", "I look. ", "<tool_call>", '\n{"name": "get_', 'weather", "arg', 'uments": {"city": "Os', 'lo"}}', "\n</tool_call>"]},
    {"pieces": ["}", " It is ", "as it <b>says", "</b>."]},
    {"pieces": ["w%03d " % i for i in range(200)], "end": "loop"},
]


@pytest.fixture(scope="module")
def console(tmp_path_factory):
    folder = tmp_path_factory.mktemp("console")
    with Server(script_model(folder, SCRIPTS, "--context", 16384), *HERMES) as server, Browser(folder / "profile") as browser:
        yield server, browser


@pytest.fixture
def page(console):
    server, browser = console
    browser.complaints.clear()
    browser.open(server.url + "/")
    browser.wait("document.querySelector('#health-text').textContent.startsWith('serving') && document.querySelectorAll('.pool').length && "
                 "document.querySelector('#model').textContent === 'script-model' && document.querySelectorAll('.example').length")
    return browser


def say(page, text):
    page.run("document.querySelector('#prompt').focus()")
    page.type(text)
    page.press("Enter", number=13, text="\r")


def answered(page, timeout=60):
    page.wait("!document.querySelector('#send').disabled", timeout)
    return page.run("[...document.querySelectorAll('.turn')].map((t) => [t.classList[1], t.innerText])")


def quiet(page):
    assert page.run("document.documentElement.dataset.errors") == "0", page.run("document.documentElement.dataset.lastError")
    assert page.complaints == []


def test_a_call_is_shown_answered_and_goes_on(page):
    page.run("document.querySelector('#use-tools').click()")
    say(page, "What is the weather in Oslo? <S00>")
    turns = answered(page)
    assert [who for who, _ in turns] == ["user", "assistant", "assistant"], turns
    assert "Hm, the weather." in turns[1][1] and "I look." in turns[1][1] and "get_weather" in turns[1][1]
    # Markup that a model writes is text; the result is the one that every part of the demo makes up.
    assert "thinks" in page.run("getComputedStyle(document.querySelector('.thought'), '::before').content")
    assert turns[2][1].strip() == "It is as it <b>says</b>.", turns
    result = page.run("document.querySelector('.result').textContent")
    assert result == "→ " + demo_tool_result("get_weather", {"city": "Oslo"})
    quiet(page)


def test_tools_are_off_for_a_model_that_is_shown_none_and_each_can_be_turned_off(console, page):
    server, _ = console
    assert page.run("document.querySelector('#use-tools').checked") is False and page.run("document.querySelector('#no-tools').hidden") is False
    sent = "(() => { const real = window.fetch; window.sent = []; window.fetch = (u, o) => { if (o && o.body) window.sent.push(JSON.parse(o.body)); return real(u, o); }; })()"
    page.run(sent)
    page.run("document.querySelector('#use-tools').click(); [...document.querySelectorAll('#tool-list input')][1].click()")
    page.run("document.querySelector('.example').click()")
    answered(page)
    names = page.run("window.sent[0].tools.map((t) => t.function.name)")
    every = [t for t in json.load(open(SOURCE / "frontend" / "console" / "demo_tools.json"))]
    assert names == [t["function"]["name"] for t in every if t["offered"]][:1] + [t["function"]["name"] for t in every if t["offered"]][2:]
    assert page.run("window.sent[0].messages[0].content") == every[0]["examples"][0]
    quiet(page)


def test_escape_stops_and_reset_forgets(page):
    page.run("document.querySelector('#max-tokens').value = 16000")
    say(page, "Go on <S02>")
    page.wait("document.querySelector('.turn.assistant') && document.querySelector('.turn.assistant').innerText.includes('w003')")
    page.press("Escape", number=27)
    assert "stopped" in answered(page)[-1][1]
    assert page.run("document.activeElement.id") == "prompt"
    say(page, "Go on <S02>")
    page.wait("document.querySelectorAll('.turn.assistant').length === 2 && [...document.querySelectorAll('.turn')].pop().innerText.includes('w003')")
    page.run("document.querySelector('#reset').click()")
    assert answered(page) == []
    page.run("document.querySelector('#max-tokens').value = 3")
    say(page, "Go on <S02>")
    turns = answered(page)
    assert turns[1][1].replace("assistant", "").split() == ["w000", "w001", "w002", "cut", "off", "at", "max", "tokens"], turns
    quiet(page)


def test_an_answer_outlives_its_engine_and_the_page_says_so(console, page):
    server, _ = console
    before = int(page.run("document.querySelector('#restarts').textContent"))
    page.run("document.querySelector('#max-tokens').value = 9000")
    say(page, "Go on <S02>")
    page.wait("document.querySelector('.turn.assistant') && document.querySelector('.turn.assistant').innerText.includes('w003')")
    os.kill(server.worker(), 9)
    page.wait(f"document.querySelector('#restarts').textContent === '{before + 1}' && document.querySelector('#health-text').textContent.startsWith('serving')")
    text = answered(page, 120)[1][1]
    words = [w for w in text.split() if w[0] == "w" and w[1:].isdigit()]
    assert words == ["w%03d" % (i % 200) for i in range(9000)]
    assert "the engine was lost meanwhile" in text
    page.wait("document.querySelector('#incidents').innerText.includes('signal 9')")
    assert page.run("document.documentElement.dataset.errors") == "0"
    # While it loads /health is 503 on purpose, which the browser itself remarks upon.
    assert all("503" in c and c.endswith("/health") for c in page.complaints), page.complaints


# WCAG's contrast of a text's colour on what is behind it.
CONTRAST = """(() => {
  const rgb = (s) => s.match(/[\\d.]+/g).map(Number);
  const light = (c) => { const [r, g, b] = c.slice(0, 3).map((v) => { v /= 255; return v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; }); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = (n) => { for (; n; n = n.parentElement) { const c = rgb(getComputedStyle(n).backgroundColor); if (c.length < 4 || c[3] > 0) return c; } return [255, 255, 255]; };
  const low = [];
  for (const n of document.querySelectorAll('body *')) {
    if (!n.checkVisibility() || n.disabled || ![...n.childNodes].some((c) => c.nodeType === 3 && c.textContent.trim())) continue;
    const a = light(rgb(getComputedStyle(n).color)), b = light(behind(n)), ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) low.push(n.tagName + '.' + n.className + ' ' + n.textContent.slice(0, 20) + ' ' + ratio.toFixed(2));
  }
  return low;
})()"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width,height", [(1280, 800), (390, 780)], ids=["wide", "narrow"])
def test_it_is_readable_and_fits(page, width, height, dark, tmp_path):
    page.look(width, height, dark)
    page.run("document.querySelector('#use-tools').click(); document.querySelector('#tools-box').open = true")
    say(page, "What is the weather in Oslo? <S00>")
    answered(page)
    # HOLDFAST_SHOTS names a folder for pictures of each.
    if folder := os.environ.get("HOLDFAST_SHOTS"):
        page.shoot(pathlib.Path(folder) / f"console-{width}-{'dark' if dark else 'light'}.png")
    assert page.run(CONTRAST) == []
    assert page.run("document.documentElement.scrollWidth") <= width
    inside = ("(() => [...document.querySelectorAll('#send, #stop, #reset, #prompt, #log, #use-tools, .pool')].map((n) => n.getBoundingClientRect())"
              ".every((r) => r.width > 0 && r.left >= 0 && r.right <= innerWidth))()")
    assert page.run(inside)
    page.run("document.querySelector('#tools-box').open = false")
    # The chat is on the first screen, whatever was said before, and everything can be reached with Tab.
    page.run("window.scrollTo(0, 0)")
    assert page.run("document.querySelector('#send').getBoundingClientRect().bottom") <= height
    reached = set()
    page.run("document.activeElement.blur(); document.querySelector('.skip').focus()")
    for _ in range(16):
        reached.add(page.run("document.activeElement.id || document.activeElement.tagName"))
        page.press("Tab", number=9)
    assert {"log", "prompt", "use-tools", "max-tokens", "temperature", "reset", "send", "SUMMARY"} <= reached, reached
    quiet(page)


def test_numbers_of_a_server_that_is_gone_do_not_look_live(tmp_path):
    with Server(model_file("script")) as server, Browser(tmp_path / "profile") as page:
        page.open(server.url + "/")
        page.wait("document.querySelectorAll('.pool').length")
        page.wait("document.querySelector('#spark-top').textContent === 'no tokens in the last two minutes'")
        assert page.run("[...document.querySelectorAll('#load > div, .legend li')].every((n) => n.title)"), "each number says what it is"
        assert page.run("getComputedStyle(document.querySelector('aside section')).opacity") == "1"
        server.terminate()
        page.wait("document.querySelector('#health-text').textContent === 'the server does not answer'")
        assert page.run("getComputedStyle(document.querySelector('aside section')).opacity") == "0.5"
        assert page.run("document.querySelector('#tps').textContent") == "–"
        assert page.run("document.documentElement.dataset.errors") == "0"


def test_where_the_admin_routes_are_elsewhere_the_page_says_so_and_asks_once(tmp_path):
    with Server(model_file("script"), "--admin-port", free_port()) as server, Browser(tmp_path / "profile") as page:
        page.open(server.url + "/")
        page.wait("!document.querySelector('#admin-note').hidden && Number(document.documentElement.dataset.rounds) >= 4")
        assert page.run("document.querySelector('#running').textContent") == "0"    # of /health, which everyone may ask
        say(page, "<S02>")
        assert "alpha beta gamma delta" in answered(page)[1][1]
        assert page.run("document.documentElement.dataset.errors") == "0"
        assert len(page.complaints) <= 3 and all("404" in c for c in page.complaints), page.complaints


def test_the_page_asks_for_a_key_where_one_is_needed(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("s3cret-key\n")
    with Server(model_file("script"), "--api-key-file", keys) as server, Browser(tmp_path / "profile") as page:
        page.open(server.url + "/")
        page.wait("document.querySelector('#key-dialog').open")
        assert page.run("document.activeElement.id") == "key"
        # A request of before the key is known, and refused only after: no reason to ask again.
        page.run("window.late = (() => { const real = window.fetch; return new Promise((told) => { window.fetch = async (u, o) => { window.fetch = real; "
                 "const r = await real(u, o); while (!state.key) await new Promise((f) => setTimeout(f, 10)); told(r.status); return r; }; }); })(); void 0")
        page.run("refreshHealth = () => {}; quietly(refreshModel); void 0")
        page.type("s3cret-key")
        page.press("Enter", number=13, text="\r")
        assert page.run("window.late") == 401
        page.wait("document.querySelector('#model').textContent === 'script-model'")
        assert page.run("document.querySelector('#key-dialog').open") is False
        say(page, "<S02>")
        assert "alpha beta gamma delta" in answered(page)[1][1]
        assert page.run("document.documentElement.dataset.errors") == "0"
        assert all("401" in c for c in page.complaints), page.complaints
