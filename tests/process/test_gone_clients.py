"""Clients that go away: their decode stops within 500 ms, their pages come back, nobody else notices."""
import json
import socket
import struct
import time

from harness import wait_for


def open_request(server, stream, content="<S03>", max_tokens=3000, rst=False):
    s = socket.create_connection((server.host, server.port))
    if rst:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    body = json.dumps({"messages": [{"role": "user", "content": content}], "max_tokens": max_tokens, "temperature": 0, "stream": stream}).encode()
    s.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    return s


def running(server):
    h = server.status()["health"]
    return int(h["running"]) + int(h["waiting"])


def test_a_client_that_closes_stops_its_decode(loop_server):
    for stream in (True, False):
        for rst in (True, False):
            s = open_request(loop_server, stream, rst=rst)
            wait_for(lambda: running(loop_server) == 1, 5, "the request runs")
            if stream:
                s.recv(4096)
            s.close()
            begin = time.monotonic()
            wait_for(lambda: running(loop_server) == 0, 5, "the request was cancelled")
            assert time.monotonic() - begin < 0.5 + 0.15, (stream, rst)  # 0.15: one poll of status through a process
    loop_server.idle()


def test_half_close_still_gets_its_answer(loop_server):
    s = open_request(loop_server, False, max_tokens=40)
    s.shutdown(socket.SHUT_WR)
    s.settimeout(30)
    data = b""
    while chunk := s.recv(65536):
        data += chunk
        if b"usage" in data:
            break
    # Interim answers may come first: they ask whether somebody is still there (docs/adr/0004-http-connections.md).
    while data.startswith(b"HTTP/1.1 100 "):
        data = data.partition(b"\r\n\r\n")[2]
    assert b" 200 OK" in data.split(b"\r\n")[0] and b"w039" in data


def test_one_leaving_does_not_disturb_another(loop_server):
    want = "".join("w%03d " % (i % 200) for i in range(300))
    for round_ in range(6):
        others = [open_request(loop_server, True, max_tokens=3000, rst=bool(round_ % 2)) for _ in range(3)]

        def leave(events, left=[0]):
            if len(events) > 20 + 13 * left[0] and left[0] < 3:
                others[left[0]].close()
                left[0] += 1

        s = loop_server.stream_chat("<S03>", max_tokens=300, on_event=leave)
        assert s.text() == want and s.finish() == "length" and s.done
        [o.close() for o in others]
    loop_server.idle()


def test_abort_at_the_moment_of_the_end(loop_server):
    for i in range(60):
        s = open_request(loop_server, bool(i % 2), max_tokens=1 + i % 5, rst=True)
        time.sleep(0.0005 * (i % 20))
        s.close()
    loop_server.idle()
    assert loop_server.chat("<S02>", max_tokens=20).json["choices"][0]["message"]["content"] == "alpha beta gamma delta"
