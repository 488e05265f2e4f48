"""The command line: where `holdfast serve` listens, its ready line, addresses that cannot be meant, the status of a chat in a script."""
import http.client
import json
import os
import select
import signal
import socket
import ssl
import subprocess
import urllib.request

import pytest

from harness import BIN, model_file


def serve(*flags):
    return subprocess.Popen([str(BIN / "holdfast"), "serve", "--model", str(model_file("script")), "--port", "0", *map(str, flags)],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end(process):
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
    try:
        return process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise


def ready_line(process, timeout=60):
    readable, _, _ = select.select([process.stdout], [], [], timeout)
    return process.stdout.readline().strip() if readable else ""


def test_with_tls_it_says_ready_too(tmp_path):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(tmp_path / "key.pem"), "-out", str(tmp_path / "cert.pem")],
                   check=True, capture_output=True)
    process = serve(f"--frontend-arg=--tls-certificate={tmp_path / 'cert.pem'}", f"--frontend-arg=--tls-key={tmp_path / 'key.pem'}")
    try:
        line = ready_line(process)
        assert line.startswith("ready https://127.0.0.1:"), (line, process.poll())
        with urllib.request.urlopen(line.split()[1] + "/livez", context=ssl.create_default_context(cafile=tmp_path / "cert.pem"), timeout=30) as r:
            assert r.status == 200
    finally:
        end(process)
    assert process.returncode == 0


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=30)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def test_a_unix_socket_is_announced_and_serves(tmp_path):
    path = str(tmp_path / "http.sock")
    process = serve("--host", "unix:" + path)
    try:
        assert ready_line(process) == "ready unix:" + path
        c = UnixConnection(path)
        c.request("POST", "/v1/chat/completions", json.dumps({"messages": [{"role": "user", "content": "<S03>"}], "max_tokens": 3}),
                  {"Content-Type": "application/json"})
        r = c.getresponse()
        assert r.status == 200 and json.loads(r.read())["choices"][0]["message"]["content"].startswith("w000 ")
        chat = subprocess.run([str(BIN / "holdfast"), "chat", "--server", "unix:" + path, "--max-tokens", "3"], input="<S03>\n", capture_output=True,
                              text=True, timeout=60)
        assert "w000 " in chat.stdout, (chat.returncode, chat.stdout, chat.stderr)
    finally:
        end(process)
    assert process.returncode == 0
    assert not os.path.exists(path)


def test_a_chat_in_a_script_fails_when_its_question_did():
    process = serve()
    try:
        url = ready_line(process).split()[1]
        for flags, status in (["--max-tokens", "2"], 0), (["--max-tokens", "0"], 1):
            r = subprocess.run([str(BIN / "holdfast"), "chat", "--server", url, *flags], input="<S03>\n", capture_output=True, text=True, timeout=60)
            assert r.returncode == status, (r.stdout, r.stderr)
    finally:
        end(process)


@pytest.mark.parametrize("flag", ["--host", "--admin-host"])
def test_an_empty_address_is_not_every_address(flag):
    process = serve(flag, "")
    try:
        assert process.wait(60) == 64
    finally:
        out, err = end(process)
    assert "ready" not in out
    assert flag in err and "0.0.0.0" in err
