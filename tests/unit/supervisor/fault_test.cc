// The fault table of the design, row by row, with the real supervisor and the scripted worker. Bounds are generous waits for a condition,
// never measurements: a slow machine is slow, not wrong.
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <filesystem>
#include <set>
#include <thread>

#include "grpc/health/v1/health.grpc.pb.h"
#include "proto/base/unique_fd.h"
#include "proto/worker.grpc.pb.h"
#include "tests/unit/supervisor/process_harness.h"

namespace holdfast::supervisor::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const std::vector<std::string> kQuick = {"--hang-timeout", "1", "--heartbeat-timeout", "2", "--load-timeout", "2", "--attach-timeout", "3",
                                         "--loss-grace", "0.5", "--stop-grace", "1"};

std::string LastCause(SupervisorRun& run) {
  const auto incidents = run.Incidents();
  return incidents.empty() ? "" : incidents[0].cause();
}

TEST_CASE("Whatever the first generation does, the second serves, and the incident says what it was") {
  struct Row {
    const char* script;
    const char* cause;
    const char* phase;
  };
  const Row row = GENERATE(Row{"die_at=spawn,die=kill", "signal", "spawning"}, Row{"die_at=hello,die=segv", "signal", ""},
                           Row{"die_at=loading,load_ms=60,die=70", "integrity", "loading"}, Row{"die_at=warming,die=71", "device", ""},
                           Row{"die_at=warming,die=72", "device_busy", ""}, Row{"die_at=warming,die=74", "peer_lost", ""},
                           Row{"die_at=ready,die=abort", "signal", ""}, Row{"die_at=loading,die=1", "exit", ""},
                           Row{"die_at=loading,die=69", "environment", ""}, Row{"no_attach=1", "attach_timeout", "spawning"},
                           Row{"load_stall=1", "load_timeout", "loading"}, Row{"lie_generation=1", "fenced", "spawning"},
                           Row{"lie_token=1", "fenced", "spawning"}, Row{"mute=1", "silent", "serving"}, Row{"linger=1,ignore_term=1", "link_lost", "serving"},
                           Row{"die_at=loading,die=stop", "load_timeout", ""}, Row{"flood=20000,die_at=ready,die=70", "integrity", ""});
  CAPTURE(row.script);
  SupervisorRun run(std::string(row.script) + ",generations=1", kQuick);
  REQUIRE(run.WaitServing(2, seconds(30)));
  CHECK(LastCause(run) == row.cause);
  if (*row.phase != 0) CHECK(run.Incidents()[0].phase() == row.phase);
  CHECK(run.Metric("holdfast_restarts_total{cause=\"" + std::string(row.cause) + "\"}") == 1);
  CHECK(Generate(run, Request(1, {3}, 5)).tokens == Expected({3}, 5));
  CHECK(ChildrenOf(run.pid()).size() == 1);
}

TEST_CASE("Under load: each way to fail in the middle of a stream costs a pause and never a token") {
  struct Row {
    const char* script;
    const char* cause;
  };
  const Row row = GENERATE(Row{"die_at=step=5,die=kill", "signal"}, Row{"die_at=step=5,die=70", "integrity"}, Row{"hang_at=5", "hang"},
                           Row{"stall_at=5", "hang"}, Row{"finding=3", "integrity"}, Row{"garbage=1", "integrity"}, Row{"die_at=step=5,die=stop", "hang"},
                           Row{"die_at=submit,die=segv", "signal"}, Row{"hang_at=5,ignore_term=1", "hang"}, Row{"old_steps=1", "hang"});
  CAPTURE(row.script);
  SupervisorRun run(std::string(row.script) + ",generations=1,token_ms=3", kQuick);
  REQUIRE(run.WaitServing(1));
  std::vector<std::thread> clients;
  std::vector<Outcome> outcomes(6);
  for (uint32_t c = 0; c < outcomes.size(); ++c) {
    clients.emplace_back([&, c] { outcomes[c] = GenerateWithResume(run, Request(c, {10, c}, 20 + c)); });
  }
  for (auto& t : clients) t.join();
  for (uint32_t c = 0; c < outcomes.size(); ++c) {
    CHECK(outcomes[c].finish == proto::FINISH_LENGTH);
    CHECK(outcomes[c].tokens == Expected({10, c}, 20 + c));
  }
  CHECK(LastCause(run) == row.cause);
  CHECK(run.Status().health().generation() == 2);
}

TEST_CASE("Findings below structural are counted and nothing else happens") {
  for (int severity = 0; severity < 3; ++severity) {
    SupervisorRun run("finding=" + std::to_string(severity));
    REQUIRE(run.WaitServing());
    CHECK(Generate(run, Request(1, {3}, 20)).finish == proto::FINISH_LENGTH);
    const proto::StatusReply status = run.Status();
    REQUIRE(status.findings_size() == 1);
    CHECK(status.findings(0).kind() == "fake");
    CHECK(status.health().generation() == 1);
  }
}

TEST_CASE("A poison request is failed alone, and refused afterwards, its neighbours finish") {
  SupervisorRun run("poison=666,die=segv,token_ms=3", kQuick);
  REQUIRE(run.WaitServing());
  std::vector<Outcome> neighbours(3);
  std::vector<std::thread> clients;
  for (uint32_t c = 0; c < neighbours.size(); ++c) {
    clients.emplace_back([&, c] { neighbours[c] = GenerateWithResume(run, Request(c, {1, c}, 300)); });
  }
  std::this_thread::sleep_for(milliseconds(50));
  const Outcome poison = GenerateWithResume(run, Request(9, {5, 666}, 10));
  CHECK(poison.finish == proto::FINISH_ERROR);
  CHECK(poison.error.kind() == proto::EngineError::QUARANTINED);
  for (auto& t : clients) t.join();
  for (uint32_t c = 0; c < neighbours.size(); ++c) {
    CHECK(neighbours[c].finish == proto::FINISH_LENGTH);
    CHECK(neighbours[c].tokens == Expected({1, c}, 300));
  }
  const uint64_t generation = run.Status().health().generation();
  CHECK(generation <= 5);
  CHECK(Generate(run, Request(10, {5, 666}, 10)).error.kind() == proto::EngineError::QUARANTINED);
  CHECK(run.Status().health().generation() == generation);
  // An operator sees it, lets it in again, and it is a first offender as before.
  proto::ListQuarantineReply list;
  {
    grpc::ClientContext context;
    REQUIRE(run.admin().ListQuarantine(&context, proto::ListQuarantineRequest(), &list).ok());
  }
  REQUIRE(list.requests_size() == 1);
  CHECK(list.requests(0).losses() >= 2);
  CHECK(list.requests(0).refused() == 1);
  CHECK(list.requests(0).remaining_ms() > 0);
  proto::ClearQuarantineRequest clear;
  proto::ClearQuarantineReply cleared;
  for (const auto& [text, code] : {std::pair{"no such", grpc::StatusCode::INVALID_ARGUMENT}, std::pair{"1f", grpc::StatusCode::NOT_FOUND}}) {
    clear.set_fingerprint(text);
    grpc::ClientContext context;
    CHECK(run.admin().ClearQuarantine(&context, clear, &cleared).error_code() == code);
  }
  clear.set_fingerprint(list.requests(0).fingerprint());
  grpc::ClientContext context;
  REQUIRE(run.admin().ClearQuarantine(&context, clear, &cleared).ok());
  CHECK(cleared.cleared() == 1);
  CHECK(Generate(run, Request(11, {5, 666}, 10)).finish == proto::FINISH_LOST);
}

TEST_CASE("A drain by an operator: running streams finish, over a loss too, nothing new comes in, until it is resumed") {
  SupervisorRun run("token_ms=10,die_at=step=20,die=kill,generations=1", kQuick);
  REQUIRE(run.WaitServing());
  Outcome out;
  std::thread client([&] { out = GenerateWithResume(run, Request(1, {3}, 80)); });
  REQUIRE(Eventually(seconds(5), [&] { return run.Status().health().running() == 1; }));
  proto::DrainReply drained;
  {
    grpc::ClientContext context;
    REQUIRE(run.admin().Drain(&context, proto::DrainRequest(), &drained).ok());
  }
  client.join();
  CHECK(out.finish == proto::FINISH_LENGTH);
  CHECK(out.tokens == Expected({3}, 80));
  const proto::HealthStatement health = run.Status().health();
  CHECK(health.generation() == 2);
  CHECK(health.state() == "draining");
  CHECK(health.ready());
  CHECK_FALSE(health.accepting());
  CHECK(Generate(run, Request(2, {3}, 1)).error.kind() == proto::EngineError::DRAINING);
  {
    grpc::ClientContext context;
    proto::ResumeReply resumed;
    REQUIRE(run.admin().Resume(&context, proto::ResumeRequest(), &resumed).ok());
  }
  CHECK(Generate(run, Request(3, {3}, 5)).tokens == Expected({3}, 5));
  grpc::ClientContext context;
  proto::DrainRequest stop;
  stop.set_stop(true);
  REQUIRE(run.admin().Drain(&context, stop, &drained).ok());
  CHECK(run.Wait(seconds(8)) == 0);
}

TEST_CASE("A crash loop backs off and is quarantined, health says so, and the supervisor stays polite") {
  SupervisorRun run("die_at=hello,die=70", {"--restart-delay", "0.01", "--restart-max-delay", "0.02", "--restart-intensity", "5"});
  REQUIRE(run.WaitState("quarantined", seconds(30)));
  const proto::HealthStatement health = run.Status().health();
  CHECK_FALSE(health.permanent());
  CHECK(health.retry_after_ms() == 30000);
  CHECK(health.generation() == 6);
  CHECK(health.reason().find("too often") != std::string::npos);
  run.Signal(SIGTERM);
  CHECK(run.Wait(seconds(5)) == 0);
}

TEST_CASE("A supervisor that was stopped does not kill its worker on waking") {
  SupervisorRun run("token_ms=10", {"--hang-timeout", "2", "--heartbeat-timeout", "2"});
  REQUIRE(run.WaitServing());
  const int worker = run.WorkerPid();
  Outcome out;
  std::thread client([&] { out = Generate(run, Request(1, {3}, 200)); });
  REQUIRE(Eventually(seconds(20), [&] { return run.Status().health().running() == 1; }));
  run.Signal(SIGSTOP);
  std::this_thread::sleep_for(seconds(5));  // longer than every bound of its liveness
  run.Signal(SIGCONT);
  client.join();
  CHECK(out.finish == proto::FINISH_LENGTH);
  CHECK(out.tokens == Expected({3}, 200));
  CHECK(Alive(worker));
  CHECK(run.Status().health().generation() == 1);
}

TEST_CASE("SIGTERM under load: running streams finish, new requests are told, exit 0") {
  SupervisorRun run("token_ms=10");
  REQUIRE(run.WaitServing());
  Outcome out;
  std::thread client([&] { out = Generate(run, Request(1, {3}, 80)); });
  REQUIRE(Eventually(seconds(5), [&] { return run.Status().health().running() == 1; }));
  run.Signal(SIGTERM);
  REQUIRE(run.WaitState("draining", seconds(5)));
  CHECK_FALSE(run.Status().health().ready());
  CHECK(Generate(run, Request(2, {3}, 1)).error.kind() == proto::EngineError::DRAINING);
  client.join();
  CHECK(out.finish == proto::FINISH_LENGTH);
  CHECK(out.tokens == Expected({3}, 80));
  CHECK(run.Wait(seconds(5)) == 0);
}

TEST_CASE("SIGTERM with streams that outlast the drain time ends them and exits 0, a second SIGTERM does so at once") {
  for (const bool second : {false, true}) {
    SupervisorRun run("token_ms=20", {"--drain-timeout", second ? "60" : "0.5"});
    REQUIRE(run.WaitServing());
    Outcome out;
    std::thread client([&] { out = Generate(run, Request(1, {3}, 4000)); });
    REQUIRE(Eventually(seconds(5), [&] { return run.Status().health().running() == 1; }));
    run.Signal(SIGTERM);
    if (second) {
      REQUIRE(run.WaitState("draining", seconds(5)));
      run.Signal(SIGTERM);
    }
    CHECK(run.Wait(seconds(8)) == 0);
    client.join();
    CHECK(out.finish == proto::FINISH_LOST);
  }
}

TEST_CASE("A worker that ignores TERM, or is stopped, does not keep the supervisor from going") {
  for (const bool stopped : {false, true}) {
    SupervisorRun run(stopped ? "" : "ignore_term=1", {"--stop-grace", "0.5"});
    REQUIRE(run.WaitServing());
    const int worker = run.WorkerPid();
    if (stopped) ::kill(worker, SIGSTOP);
    run.Signal(SIGTERM);
    CHECK(run.Wait(seconds(6)) == 0);
    CHECK_FALSE(Alive(worker));
  }
}

TEST_CASE("SIGTERM while loading and while backing off") {
  {
    SupervisorRun run("load_ms=60000");
    REQUIRE(run.WaitState("loading"));
    CHECK(run.Status().health().reason().find("%") != std::string::npos);
    CHECK(run.Status().health().has_progress());
    run.Signal(SIGTERM);
    CHECK(run.Wait(seconds(6)) == 0);
  }
  {
    SupervisorRun run("die_at=hello", {"--restart-delay", "30"});
    REQUIRE(Eventually(seconds(10), [&] { return run.Status().health().generation() == 2 && run.Status().health().state() == "backoff"; }));
    run.Signal(SIGTERM);
    CHECK(run.Wait(seconds(6)) == 0);
  }
}

TEST_CASE("Cancel in every state, a session that ends takes its requests along, and nobody else's") {
  SupervisorRun run("token_ms=5,max_running=1");
  REQUIRE(run.WaitServing());
  Outcome other;
  std::thread client([&] { other = Generate(run, Request(1, {3}, 100)); });
  REQUIRE(Eventually(seconds(5), [&] { return run.Status().health().running() == 1; }));
  {
    grpc::ClientContext context;
    const auto session = run.engine().Session(&context);
    proto::SessionRequest message;
    *message.mutable_generate() = Request(5, {4}, 50);
    REQUIRE(session->Write(message));  // queued: one runs at a time
    *message.mutable_generate() = Request(6, {4}, 50);
    REQUIRE(session->Write(message));
    *message.mutable_generate() = Request(6, {4}, 50);
    REQUIRE(session->Write(message));  // the id is in use
    message.mutable_cancel()->set_request_id(5);
    REQUIRE(session->Write(message));
    message.mutable_cancel()->set_request_id(5);
    REQUIRE(session->Write(message));  // twice is once
    message.mutable_cancel()->set_request_id(77);
    REQUIRE(session->Write(message));  // never heard of
    std::multiset<std::pair<uint64_t, int>> ends;
    std::set<int> errors;
    proto::SessionEvent event;
    while (ends.size() < 2 && session->Read(&event)) {
      for (const auto& e : event.events()) {
        if (e.finish() != proto::FINISH_NONE) ends.emplace(e.request_id(), e.finish());
        if (e.has_error()) errors.insert(e.error().kind());
      }
    }
    CHECK(ends.count({5, proto::FINISH_CANCELLED}) == 1);
    CHECK(ends.count({6, proto::FINISH_ERROR}) == 1);
    CHECK(errors == std::set<int>{proto::EngineError::INVALID});
    CHECK(run.Status().health().waiting() == 1);
    session->WritesDone();
    CHECK(session->Finish().ok());
  }
  CHECK(Eventually(seconds(5), [&] { return run.Status().health().waiting() == 0; }));
  client.join();
  CHECK(other.tokens == Expected({3}, 100));
  // A Generate whose caller hangs up.
  {
    grpc::ClientContext context;
    const auto stream = run.engine().Generate(&context, Request(1, {8}, 100000 / 50));
    proto::TokenEvent event;
    REQUIRE(stream->Read(&event));
    context.TryCancel();
    stream->Finish();
  }
  CHECK(Eventually(seconds(5), [&] { return run.Status().health().running() == 0; }));
  CHECK(Eventually(seconds(5), [&] { return run.Metric("holdfast_running_requests") == 0; }));
}

TEST_CASE("Overload is an answer with a time, and so is a prompt that can never fit") {
  SupervisorRun run("token_ms=20,max_running=1,max_seq_len=100", {"--max-queue", "2"});
  REQUIRE(run.WaitServing());
  grpc::ClientContext context;
  const auto session = run.engine().Session(&context);
  for (uint64_t id = 1; id <= 5; ++id) {
    proto::SessionRequest message;
    *message.mutable_generate() = Request(id, {4}, 50);
    REQUIRE(session->Write(message));
  }
  int refused = 0;
  proto::SessionEvent event;
  while (refused < 2 && session->Read(&event)) {
    for (const auto& e : event.events()) {
      if (!e.has_error()) continue;
      ++refused;
      CHECK(e.request_id() >= 4);
      CHECK(e.error().kind() == proto::EngineError::OVERLOADED);
      CHECK(e.error().retry_after_ms() >= 1000);
    }
  }
  CHECK(refused == 2);
  CHECK(run.Metric("holdfast_queue_depth") >= 1);
  context.TryCancel();
  REQUIRE(Eventually(seconds(5), [&] { return run.Metric("holdfast_queue_depth") == 0; }));
  const Outcome too_long = Generate(run, Request(1, std::vector<uint32_t>(100, 1), 1));
  CHECK(too_long.error.kind() == proto::EngineError::TOO_LONG);
  CHECK(too_long.error.limit() == 99);
  CHECK(Generate(run, Request(1, {}, 1)).error.kind() == proto::EngineError::INVALID);
}

TEST_CASE("Two ranks: ready together, lost together, restarted together") {
  SupervisorRun run("token_ms=5", {"--tp", "2"});
  REQUIRE(run.WaitServing(1));
  for (uint32_t victim = 0; victim < 2; ++victim) {
    const uint64_t generation = run.Status().health().generation();
    const int pids[] = {run.WorkerPid(0), run.WorkerPid(1)};
    REQUIRE(pids[0] != pids[1]);
    Outcome out;
    std::thread client([&] { out = GenerateWithResume(run, Request(1, {3, victim}, 60)); });
    REQUIRE(Eventually(seconds(5), [&] { return run.Status().health().running() == 1; }));
    ::kill(pids[victim], SIGKILL);
    client.join();
    CHECK(out.tokens == Expected({3, victim}, 60));
    REQUIRE(run.WaitServing(generation + 1));
    CHECK_FALSE(Alive(pids[0]));
    CHECK_FALSE(Alive(pids[1]));
    CHECK(run.Incidents()[0].rank() == victim);
    CHECK(LastCause(run) == "signal");
  }
}

TEST_CASE("Restart cycles leave nothing behind: descriptors, threads, zombies") {
  SupervisorRun run("", {"--restart-delay", "0.005", "--restart-max-delay", "0.005", "--restart-intensity", "10000"});
  REQUIRE(run.WaitServing(1));
  size_t descriptors = 0, threads = 0;
  constexpr uint64_t kCycles = 40;
  for (uint64_t g = 1; g <= kCycles; ++g) {
    const int worker = run.WorkerPid();
    ::kill(worker, SIGKILL);
    REQUIRE(run.WaitServing(g + 1));
    if (g == 10) {
      descriptors = OpenDescriptors(run.pid());
      threads = Threads(run.pid());
    }
  }
  CHECK(Eventually(seconds(5), [&] { return OpenDescriptors(run.pid()) <= descriptors + 2; }));
  CHECK(Eventually(seconds(10), [&] { return Threads(run.pid()) <= threads + 4; }));
  CHECK(ChildrenOf(run.pid()).size() == 1);
  CHECK(run.Incidents().size() <= 20);  // bounded, though there were forty
}

TEST_CASE("Only what was spawned is killed: a sentinel beside the worker survives") {
  const pid_t sentinel = ::fork();
  if (sentinel == 0) {
    ::execl("/bin/sleep", "sleep", "60", nullptr);
    ::_exit(127);
  }
  {
    SupervisorRun run("hang_at=1,ignore_term=1,generations=1", kQuick);
    REQUIRE(run.WaitServing());
    CHECK(GenerateWithResume(run, Request(1, {3}, 3)).finish == proto::FINISH_LENGTH);
    run.Signal(SIGKILL);
    CHECK(run.Wait(seconds(2)) == 128 + SIGKILL);
  }
  CHECK(Alive(sentinel));
  ::kill(sentinel, SIGKILL);
  ::waitpid(sentinel, nullptr, 0);
}

TEST_CASE("grpc.health.v1 and reflection agree with readiness, strangers cannot attach") {
  SupervisorRun run("load_ms=1500", {"--listen", "127.0.0.1:0"});
  const auto health = grpc::health::v1::Health::NewStub(run.channel());
  const auto check = [&](const std::string& service) {
    grpc::ClientContext context;
    grpc::health::v1::HealthCheckRequest request;
    request.set_service(service);
    grpc::health::v1::HealthCheckResponse response;
    const grpc::Status status = health->Check(&context, request, &response);
    return status.ok() ? static_cast<int>(response.status()) : -static_cast<int>(status.error_code());
  };
  CHECK(check("") == grpc::health::v1::HealthCheckResponse::NOT_SERVING);
  REQUIRE(run.WaitServing());
  CHECK(Eventually(seconds(2), [&] { return check("") == grpc::health::v1::HealthCheckResponse::SERVING; }));
  CHECK(check("holdfast.proto.Engine") == grpc::health::v1::HealthCheckResponse::SERVING);
  CHECK(check("nobody") == -static_cast<int>(grpc::StatusCode::NOT_FOUND));

  const std::string log = run.stderr_text();
  const size_t at = log.find("\"tcp_port\":");
  REQUIRE(at != std::string::npos);
  const std::string port = std::to_string(std::atoi(log.c_str() + at + 11));
  const auto tcp = grpc::CreateChannel("127.0.0.1:" + port, grpc::InsecureChannelCredentials());
  {
    grpc::ClientContext context;
    proto::StatusReply reply;
    CHECK(proto::Admin::NewStub(tcp)->GetStatus(&context, {}, &reply).ok());
  }
  {
    grpc::ClientContext context;
    const auto attach = proto::WorkerLink::NewStub(tcp)->Attach(&context);
    proto::SupervisorMessage message;
    CHECK_FALSE(attach->Read(&message));
    CHECK(attach->Finish().error_code() == grpc::StatusCode::PERMISSION_DENIED);
  }
  {  // over the unix socket, but not ours
    grpc::ClientContext context;
    const auto attach = proto::WorkerLink::NewStub(run.channel())->Attach(&context);
    proto::WorkerMessage hello;
    hello.mutable_hello()->set_generation(1);
    hello.mutable_hello()->set_token("guess");
    REQUIRE(attach->Write(hello));
    proto::SupervisorMessage message;
    REQUIRE(attach->Read(&message));
    CHECK(message.has_refused());
    CHECK_FALSE(attach->Read(&message));
    attach->Finish();
  }
  {  // speaks without an introduction
    grpc::ClientContext context;
    const auto attach = proto::WorkerLink::NewStub(run.channel())->Attach(&context);
    proto::WorkerMessage step;
    step.mutable_step()->set_generation(1);
    step.mutable_step()->set_command_seq(99);
    attach->Write(step);
    proto::SupervisorMessage message;
    CHECK_FALSE(attach->Read(&message));
    attach->Finish();
  }
  CHECK(run.Status().health().generation() == 1);
  CHECK(Generate(run, Request(1, {3}, 5)).tokens == Expected({3}, 5));
}

TEST_CASE("systemd hears READY after the first health, time extensions while loading, the watchdog, and STOPPING") {
  char pattern[] = "/tmp/holdfast-notify-XXXXXX";
  REQUIRE(::mkdtemp(pattern) != nullptr);
  const std::string path = std::string(pattern) + "/socket";
  const UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::copy(path.begin(), path.end(), address.sun_path);
  REQUIRE(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  std::string heard;
  const auto listen = [&] {
    char buffer[1024];
    for (ssize_t n; (n = ::recv(fd.get(), buffer, sizeof buffer, MSG_DONTWAIT)) > 0;) heard += std::string(buffer, static_cast<size_t>(n)) + "\n";
  };
  {
    SupervisorRun run("load_ms=600", {}, {"NOTIFY_SOCKET=" + path, "WATCHDOG_USEC=400000"});
    REQUIRE(run.WaitState("loading"));
    REQUIRE(Eventually(seconds(5), [&] {
      listen();
      return heard.find("EXTEND_TIMEOUT_USEC=") != std::string::npos;
    }));
    REQUIRE(Eventually(seconds(15), [&] {
      listen();
      return heard.find("READY=1") != std::string::npos && heard.find("WATCHDOG=1") != std::string::npos;
    }));
    CHECK(heard.find("EXTEND_TIMEOUT_USEC=") < heard.find("READY=1"));
    run.Signal(SIGTERM);
    CHECK(run.Wait(seconds(6)) == 0);
    listen();
    CHECK(heard.find("STOPPING=1") != std::string::npos);
  }
  std::filesystem::remove_all(pattern);
}

TEST_CASE("Resize is an answer of the worker, without a worker it is refused") {
  SupervisorRun run("");
  REQUIRE(run.WaitServing());
  proto::ResizeCacheRequest request;
  request.set_wait_ms(5000);
  proto::ResizeCacheReply reply;
  {
    grpc::ClientContext context;
    CHECK(run.admin().ResizeCache(&context, request, &reply).error_code() == grpc::StatusCode::INVALID_ARGUMENT);
  }
  auto* target = request.add_targets();
  target->set_pool("full");
  target->set_pages(50);
  grpc::ClientContext context;
  REQUIRE(run.admin().ResizeCache(&context, request, &reply).ok());
  CHECK(reply.report().state() == proto::ResizeReport::DONE);
  CHECK(run.Status().last_resize().operation() == 1);
}

TEST_CASE("Bad flags are refused with exit 64 and the reason") {
  struct Row {
    std::vector<std::string> args;
    int code;
    const char* words;
  };
  const Row rows[] = {{{"--tp", "0"}, 64, "--tp"},
                      {{"--no-such-flag", "1"}, 64, "no-such-flag"},
                      {{"--max-queue", "many"}, 64, "--max-queue"},
                      {{"--log-level", "loud"}, 64, "loud"},
                      {{"--hang-timeout", "-1"}, 64, "--hang-timeout"},
                      {{"--listen", "nonsense"}, 64, "host:port"}};
  for (const Row& row : rows) {
    SupervisorRun run("", row.args);
    CAPTURE(row.words);
    CHECK(run.Wait(seconds(10)) == row.code);
    CHECK(run.stderr_text().find(row.words) != std::string::npos);
  }
}

TEST_CASE("An address in use is exit 69") {
  SupervisorRun first("", {"--listen", "127.0.0.1:0"});
  REQUIRE(first.WaitServing());
  const std::string log = first.stderr_text();
  const std::string port = std::to_string(std::atoi(log.c_str() + log.find("\"tcp_port\":") + 11));
  SupervisorRun second("", {"--listen", "127.0.0.1:" + port});
  CHECK(second.Wait(seconds(10)) == 69);
  CHECK(second.stderr_text().find(port) != std::string::npos);
}

}  // namespace
}  // namespace holdfast::supervisor::testing
