"""The console in a real browser: it loads, talks to the server, and its script throws nothing."""
import re
import shutil
import subprocess

import pytest

from harness import Server, model_file

BROWSER = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)


@pytest.mark.skipif(BROWSER is None, reason="no Chromium here (apt-get install chromium)")
def test_the_console_runs_without_a_script_error(tmp_path):
    with Server(model_file("random-gemma4")) as server:
        # --timeout: the page polls for ever, so the browser is told when to look.
        shot = subprocess.run([BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                               f"--user-data-dir={tmp_path}", "--timeout=15000", "--dump-dom", server.url + "/"],
                              capture_output=True, text=True, timeout=240)
        dom = shot.stdout
        assert "Holdfast" in dom, shot.stderr[-2000:]
        root = re.search(r"<html[^>]*>", dom).group(0)
        assert 'data-errors="0"' in root, root
        assert int(re.search(r'data-rounds="(\d+)"', root).group(1)) >= 1, root
        assert re.search(r'id="health-text">serving', dom), re.search(r'id="health".{0,300}', dom, re.S)
        assert dom.count('class="pool"') == len(server.get("/v1/cache/status").json["pools"])
        assert "get_weather" in dom
