"""A headless Chromium, steered over its debugging pipe (the DevTools protocol on descriptors 3 and 4): no package beyond the browser itself."""
import base64
import collections
import json
import os
import select
import shutil
import signal
import subprocess
import time

BROWSER = next((p for p in map(shutil.which, ("chromium", "chromium-browser", "google-chrome")) if p), None)


class Browser:
    """One page. Use as a context manager. `complaints` is all that the page threw or wrote to the console as an error or a warning."""

    def __init__(self, profile):
        to_browser, self.out = os.pipe()
        self.back, from_browser = os.pipe()
        # A shell places the two pipes on 3 and 4, away from where Python happened to open them.
        self.process = subprocess.Popen(
            ["bash", "-c", 'exec {r}<&"$0" {w}>&"$1" 3<&$r 4>&$w; shift; exec "$@"', str(to_browser), str(from_browser), BROWSER,
             "--headless", "--remote-debugging-pipe", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars", f"--user-data-dir={profile}", "about:blank"],
            pass_fds=(to_browser, from_browser), start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(to_browser)
        os.close(from_browser)
        self.number, self.pending, self.session = 0, b"", None
        self.events, self.complaints = collections.deque(), []
        pages = [t for t in self.send("Target.getTargets")["targetInfos"] if t["type"] == "page"]
        self.session = self.send("Target.attachToTarget", targetId=pages[0]["targetId"], flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.send(domain + ".enable")

    # ---- the protocol: JSON messages, each ended by a zero byte ---------------------------------------------------------
    def _read(self, timeout):
        end = time.monotonic() + timeout
        while b"\0" not in self.pending:
            if not select.select([self.back], [], [], max(0, end - time.monotonic()))[0]:
                return None
            data = os.read(self.back, 1 << 16)
            if not data:
                raise AssertionError("the browser is gone")
            self.pending += data
        raw, self.pending = self.pending.split(b"\0", 1)
        message = json.loads(raw)
        self._notice(message.get("method"), message.get("params"))
        return message

    def _notice(self, method, params):
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.complaints.append("thrown: " + (details.get("exception") or {}).get("description", details["text"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append("console: " + " ".join(str(a.get("value", a.get("description"))) for a in params["args"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append("log: %s %s" % (params["entry"]["text"], params["entry"].get("url", "")))

    def send(self, method, timeout=60, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.out, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + timeout
        while True:
            reply = self._read(max(0, end - time.monotonic()))
            assert reply is not None, f"no answer to {method} within {timeout} s"
            if reply.get("id") == self.number:
                assert "error" not in reply, (method, reply["error"])
                return reply["result"]

    # ---- the page -------------------------------------------------------------------------------------------------------
    def open(self, url, width=1280, height=860, dark=False):
        self.look(width, height, dark)
        self.send("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def look(self, width, height, dark=False):
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def run(self, script):
        """The value of a JavaScript expression."""
        reply = self.send("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in reply, (script, reply["exceptionDetails"])
        return reply["result"].get("value")

    def wait(self, script, timeout=60):
        end = time.monotonic() + timeout
        while True:
            value = self.run(script)
            if value:
                return value
            assert time.monotonic() < end, f"not within {timeout} s: {script}\n{self.complaints}"
            time.sleep(0.05)

    def type(self, text):
        self.send("Input.insertText", text=text)

    def press(self, key, code=None, number=0, modifiers=0, text=None):
        common = {"key": key, "code": code or key, "windowsVirtualKeyCode": number, "modifiers": modifiers}
        self.send("Input.dispatchKeyEvent", type="keyDown", **common, **({"text": text} if text else {}))
        self.send("Input.dispatchKeyEvent", type="keyUp", **common)

    def shoot(self, path):
        with open(path, "wb") as f:
            f.write(base64.b64decode(self.send("Page.captureScreenshot", format="png")["data"]))

    # ---- the end --------------------------------------------------------------------------------------------------------
    def close(self):
        try:
            self.session = None
            self.send("Browser.close", timeout=10)
            self.process.wait(10)
        except (AssertionError, OSError, subprocess.TimeoutExpired):
            pass
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)
        os.close(self.out)
        os.close(self.back)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        self.close()
