"""Internal services by gRPC: chat.proto on the frontend, engine.proto on the supervisor, health and reflection on both. The client is Python's grpcio
with stubs made from the .proto files, so nothing of our own code is on that side."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import pytest

grpc = pytest.importorskip("grpc", reason="python3-grpcio is not installed")

import harness  # noqa: E402
from harness import model_file  # noqa: E402


@pytest.fixture(scope="module")
def pb():
    out = tempfile.mkdtemp(prefix="holdfast-pb-")
    plugin = "/usr/bin/grpc_python_plugin"
    protos = [str(harness.SOURCE / "proto" / (n + ".proto")) for n in ("engine", "worker", "admin", "chat", "model_card")]
    health = "/usr/share/grpc-proto"
    subprocess.run(["protoc", "-I", str(harness.SOURCE), "-I", health, "--python_out", out, "--grpc_out", out, f"--plugin=protoc-gen-grpc={plugin}",
                    *protos, health + "/grpc/health/v1/health.proto"], check=True)
    # `grpc` the package and `grpc/health` the folder would clash: the health stubs are loaded by path.
    sys.path.insert(0, out)
    import importlib
    import types
    ns = types.SimpleNamespace()
    for name in ("engine", "admin", "chat"):
        setattr(ns, name, importlib.import_module(f"proto.{name}_pb2"))
        setattr(ns, name + "_grpc", importlib.import_module(f"proto.{name}_pb2_grpc"))
    sys.path.insert(0, str(pathlib.Path(out, "grpc", "health", "v1")))
    spec = importlib.util.spec_from_file_location("hf_health_pb2", os.path.join(out, "grpc/health/v1/health_pb2.py"))
    ns.health = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(ns.health)
    return ns


@pytest.fixture(scope="module")
def rig():
    chat_port, engine_port = harness.free_port(), harness.free_port()
    with harness.Server(model_file("random-gemma4"), "--grpc-address", f"127.0.0.1:{chat_port}", "--listen", f"127.0.0.1:{engine_port}") as s:
        s.chat_channel = grpc.insecure_channel(f"127.0.0.1:{chat_port}")
        s.engine_channel = grpc.insecure_channel(f"127.0.0.1:{engine_port}", options=[("grpc.max_receive_message_length", 256 << 20)])
        s.unix_channel = grpc.insecure_channel("unix:" + os.path.join(s.runtime, "run", "supervisor.sock"))
        yield s


def ask(pb, **fields):
    r = pb.chat.ChatRequest(messages=[pb.chat.ChatMessage(role="user", content="Say something about Oslo.")], max_tokens=12, temperature=0)
    for k, v in fields.items():
        setattr(r, k, v)
    return r


def test_chat_unary_equals_http(rig, pb):
    stub = pb.chat_grpc.ChatStub(rig.chat_channel)
    reply = stub.Complete(ask(pb), timeout=60)
    http = rig.chat("Say something about Oslo.", max_tokens=12).json
    assert reply.choices[0].message.content == (http["choices"][0]["message"]["content"] or "")
    assert reply.choices[0].finish_reason == http["choices"][0]["finish_reason"]
    assert reply.usage.completion_tokens == http["usage"]["completion_tokens"]


def test_chat_streaming_equals_unary(rig, pb):
    stub = pb.chat_grpc.ChatStub(rig.chat_channel)
    whole = stub.Complete(ask(pb), timeout=60)
    chunks = list(stub.Stream(ask(pb), timeout=60))
    assert "".join(c.content for c in chunks) == whole.choices[0].message.content
    assert [c.finish_reason for c in chunks if c.finish_reason] == [whole.choices[0].finish_reason]
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens


def test_bad_chat_request_is_invalid_argument(rig, pb):
    stub = pb.chat_grpc.ChatStub(rig.chat_channel)
    with pytest.raises(grpc.RpcError) as e:
        stub.Complete(ask(pb, temperature=9.0), timeout=20)
    assert e.value.code() == grpc.StatusCode.INVALID_ARGUMENT and "temperature" in e.value.details()


def test_cancelled_call_stops_the_engine(rig, pb):
    stub = pb.chat_grpc.ChatStub(rig.chat_channel)
    call = stub.Stream(ask(pb, max_tokens=3000, temperature=1.0, extra_json='{"ignore_eos": true}'), timeout=60)
    next(iter(call))
    call.cancel()
    rig.idle()


@pytest.mark.parametrize("which", ["engine_channel", "unix_channel"])
def test_engine_generates_tokens(rig, pb, which):
    ids = rig.post("/tokenize", {"content": "hello there", "add_special": True}).json["tokens"]
    stub = pb.engine_grpc.EngineStub(getattr(rig, which))
    request = pb.engine.GenerateRequest(tokens=ids, max_tokens=9, sampling=pb.engine.SamplingParams(temperature=0))
    events = list(stub.Generate(request, timeout=60))
    tokens = [t.id for e in events for t in e.tokens]
    assert len(tokens) == 9 and events[-1].finish == pb.engine.FINISH_LENGTH
    # The text level says the same.
    text = rig.post("/v1/completions", {"prompt": ids, "max_tokens": 9, "temperature": 0, "ignore_eos": True}).json["choices"][0]["text"]
    assert rig.post("/detokenize", {"tokens": tokens}).json["content"] == text


def test_engine_refuses_what_cannot_be(rig, pb):
    stub = pb.engine_grpc.EngineStub(rig.engine_channel)
    for request in (pb.engine.GenerateRequest(max_tokens=3), pb.engine.GenerateRequest(tokens=[1 << 30], max_tokens=3),
                    pb.engine.GenerateRequest(tokens=[1] * 100000, max_tokens=3), pb.engine.GenerateRequest(tokens=[1], max_tokens=0)):
        try:
            events = list(stub.Generate(request, timeout=20))
        except grpc.RpcError as e:
            assert e.code() in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.RESOURCE_EXHAUSTED), e
        else:
            assert events[-1].finish == pb.engine.FINISH_ERROR and events[-1].error.message
    assert rig.health() == 200


def test_resumed_request_continues_the_same_tokens(rig, pb):
    ids = rig.post("/tokenize", {"content": "a story", "add_special": True}).json["tokens"]
    stub = pb.engine_grpc.EngineStub(rig.engine_channel)
    sampling = pb.engine.SamplingParams(temperature=1.0, seed=7)

    def run(tokens):
        r = pb.engine.GenerateRequest(tokens=tokens, prompt_tokens=len(ids), max_tokens=24, sampling=sampling)
        return [t.id for e in stub.Generate(r, timeout=60) for t in e.tokens]

    whole = run(ids)
    assert len(whole) == 24
    for cut in (1, 7, 16, 23):
        assert run(ids + whole[:cut]) == whole[cut:], cut


def number(v):
    out = b""
    while v >= 128:
        out, v = out + bytes([v & 127 | 128]), v >> 7
    return out + bytes([v])


def state(edges, final=False):
    """A state of a constraint's program that only knows bytes: (first, last, to) each."""
    return number(len(edges) << 2 | final) + b"".join(bytes([lo, hi]) + number(to) for lo, hi, to in edges)


def program(*states):
    return b"HFC1" + number(1) + number(0) + number(len(states)) + b"".join(states)


def test_constrained_tokens_spell_the_grammar_and_resume(rig, pb):
    """Words of hexadecimal digits in brackets, whatever a random model would rather say: (0f)(a)..."""
    ids = rig.post("/tokenize", {"content": "a story", "add_special": True}).json["tokens"]
    stub = pb.engine_grpc.EngineStub(rig.engine_channel)
    digits = [(ord("0"), ord("9"), 2), (ord("a"), ord("f"), 2)]
    constraint = pb.engine.Constraint(program=program(state([(ord("("), ord("("), 1)], True), state(digits), state([(ord(")"), ord(")"), 0)] + digits)))

    def run(tokens, seed):
        r = pb.engine.GenerateRequest(tokens=tokens, prompt_tokens=len(ids), max_tokens=30, constraint=constraint,
                                      sampling=pb.engine.SamplingParams(temperature=1.0 if seed else 0.0, seed=seed))
        events = list(stub.Generate(r, timeout=60))
        assert events[-1].finish == pb.engine.FINISH_LENGTH, events[-1]
        return [t.id for e in events for t in e.tokens]

    for seed in range(4):
        whole = run(ids, seed)
        text = rig.post("/detokenize", {"tokens": whole}).json["content"]
        assert re.fullmatch(r"(\([0-9a-f]+\))*(\([0-9a-f]*)?", text), text
        for cut in (1, 13, 29):
            assert run(ids + whole[:cut], seed) == whole[cut:], (seed, cut)


def test_bad_constraints_fail_alone(rig, pb):
    ids = rig.post("/tokenize", {"content": "a story", "add_special": True}).json["tokens"]
    stub = pb.engine_grpc.EngineStub(rig.engine_channel)
    itself = b"HFC1" + bytes([2, 0, 1, 3, 0, 1, 0, 1, 0, 1, 2, 0, 1, 0, 1, 0])
    for what, words in ((b"nonsense", "begin"), (program(state([(9, 8, 0)])), "order"), (itself, "itself"), (b"HFC1" + b"\xff" * 50, "large")):
        r = pb.engine.GenerateRequest(tokens=ids, max_tokens=5, constraint=pb.engine.Constraint(program=what))
        try:
            events = list(stub.Generate(r, timeout=20))
        except grpc.RpcError as e:
            assert e.code() == grpc.StatusCode.INVALID_ARGUMENT and words in e.details(), e
        else:
            assert events[-1].finish == pb.engine.FINISH_ERROR and events[-1].error.kind == pb.engine.EngineError.INVALID
            assert words in events[-1].error.message
    # Complete at once, and no stop token to say so with: this request fails, in words, and the next one runs.
    r = pb.engine.GenerateRequest(tokens=ids, max_tokens=5, constraint=pb.engine.Constraint(program=program(state([], True))))
    try:
        assert "no stop token" in list(stub.Generate(r, timeout=20))[-1].error.message
    except grpc.RpcError as e:
        assert "no stop token" in e.details()
    assert rig.chat("Still there?", max_tokens=4).status == 200


def test_admin_status_and_card(rig, pb):
    stub = pb.admin_grpc.AdminStub(rig.engine_channel)
    status = stub.GetStatus(pb.admin.StatusRequest(), timeout=10)
    assert status.health.ready and status.pools
    card = stub.GetModelCard(pb.admin.ModelCardRequest(), timeout=10)
    assert card.card and card.fingerprint == status.health.card_fingerprint
    statements = stub.Watch(pb.admin.WatchRequest(), timeout=5)
    first, second = next(statements), next(statements)
    assert first.ready and second.sequence > first.sequence and second.lease_ms > 0


@pytest.mark.parametrize("which", ["chat_channel", "engine_channel", "unix_channel"])
def test_health_service_and_reflection(rig, pb, which):
    channel = getattr(rig, which)
    check = channel.unary_unary("/grpc.health.v1.Health/Check", request_serializer=pb.health.HealthCheckRequest.SerializeToString,
                                response_deserializer=pb.health.HealthCheckResponse.FromString)
    assert check(pb.health.HealthCheckRequest(), timeout=10).status == pb.health.HealthCheckResponse.SERVING
    with pytest.raises(grpc.RpcError) as e:
        check(pb.health.HealthCheckRequest(service="no.such.Service"), timeout=10)
    assert e.value.code() == grpc.StatusCode.NOT_FOUND
    # A watch tells the status once and then its changes, not every statement of the lease.
    watch = channel.unary_stream("/grpc.health.v1.Health/Watch", request_serializer=pb.health.HealthCheckRequest.SerializeToString,
                                 response_deserializer=pb.health.HealthCheckResponse.FromString)
    told = []
    with pytest.raises(grpc.RpcError):
        for message in watch(pb.health.HealthCheckRequest(), timeout=1.5):
            told.append(message.status)
    assert told == [pb.health.HealthCheckResponse.SERVING]
    # Reflection, asked in its own wire format: field 7 (list_services) of ServerReflectionRequest.
    listing = channel.stream_stream("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", request_serializer=lambda b: b,
                                    response_deserializer=lambda b: b)
    reply = next(listing(iter([b"\x3a\x00"]), timeout=10))
    assert b"holdfast.proto." in reply


def test_worker_link_is_closed_to_the_network(rig):
    attach = rig.engine_channel.stream_stream("/holdfast.proto.WorkerLink/Attach", request_serializer=lambda b: b, response_deserializer=lambda b: b)
    with pytest.raises(grpc.RpcError) as e:
        list(attach(iter([b""]), timeout=10))
    assert e.value.code() in (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNIMPLEMENTED)
    assert rig.health() == 200
