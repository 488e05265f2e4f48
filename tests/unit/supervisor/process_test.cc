// The real supervisor binary with the scripted worker: what an operator and a frontend see.
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <thread>

#include "grpc/health/v1/health.grpc.pb.h"
#include "proto/model_card.pb.h"
#include "tests/unit/supervisor/process_harness.h"

namespace holdfast::supervisor::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST_CASE("A worker is spawned, serves a session, and is described") {
  SupervisorRun run("load_ms=100");
  REQUIRE(run.WaitServing(1));

  grpc::ClientContext context;
  const auto session = run.engine().Session(&context);
  for (uint64_t id : {7, 8}) {
    proto::SessionRequest message;
    *message.mutable_generate() = Request(id, {1, 2, static_cast<uint32_t>(id)}, 10);
    REQUIRE(session->Write(message));
  }
  std::map<uint64_t, std::vector<uint32_t>> tokens;
  std::map<uint64_t, proto::FinishReason> finish;
  std::map<uint64_t, bool> admitted;
  proto::SessionEvent event;
  while (finish.size() < 2 && session->Read(&event)) {
    std::map<uint64_t, int> seen;
    for (const auto& e : event.events()) {
      CHECK(++seen[e.request_id()] == 1);  // one event a request and step
      if (e.has_admitted()) admitted[e.request_id()] = true;
      for (const auto& t : e.tokens()) tokens[e.request_id()].push_back(t.id());
      if (e.finish() != proto::FINISH_NONE) finish[e.request_id()] = e.finish();
      CHECK(e.generation() == 1);
    }
  }
  CHECK(tokens[7] == Expected({1, 2, 7}, 10));
  CHECK(tokens[8] == Expected({1, 2, 8}, 10));
  CHECK(finish[7] == proto::FINISH_LENGTH);
  CHECK(admitted.size() == 2);
  session->WritesDone();
  CHECK(session->Finish().ok());

  const proto::StatusReply status = run.Status();
  CHECK(status.health().state() == "serving");
  CHECK(status.health().lease_ms() == 1000);
  CHECK(status.health().card_fingerprint() == "fake-1000");
  CHECK(status.health().limits().max_running() == 4);
  CHECK(status.backend() == "fake");
  CHECK(status.pid() == static_cast<uint32_t>(run.pid()));
  CHECK(status.model_path() == "fake.gguf");
  REQUIRE(status.pools_size() == 1);

  grpc::ClientContext card_context;
  proto::ModelCardReply card;
  REQUIRE(run.admin().GetModelCard(&card_context, {}, &card).ok());
  proto::ModelCard parsed;
  REQUIRE(parsed.ParseFromString(card.card()));
  CHECK(parsed.fingerprint() == card.fingerprint());
  grpc::ClientContext other_context;
  proto::ModelCardRequest other;
  other.set_fingerprint("another");
  CHECK(run.admin().GetModelCard(&other_context, other, &card).error_code() == grpc::StatusCode::NOT_FOUND);

  double pages = 0;
  for (const char* state : {"free", "held", "evictable", "retiring", "quarantined"}) {
    pages += run.Metric("holdfast_pages{pool=\"full\",state=\"" + std::string(state) + "\"}");
  }
  CHECK(pages == run.Metric("holdfast_pool_capacity_pages{pool=\"full\"}"));
  CHECK(run.Metric("holdfast_group_state{state=\"serving\"}") == 1);
  CHECK(run.Metric("holdfast_queue_depth") == 0);
  CHECK(run.Metric("holdfast_engine_generated_tokens_total") == 20);
  CHECK(run.Metric("holdfast_step_seconds_count") > 0);

  struct stat st {};
  REQUIRE(::stat((run.dir() + "/supervisor.sock").c_str(), &st) == 0);
  CHECK((st.st_mode & 0777) == 0600);
  REQUIRE(::stat(run.dir().c_str(), &st) == 0);
  CHECK((st.st_mode & 0777) == 0700);
}

TEST_CASE("kill -9 of the worker: the loss is delivered, health says so at once, the stream resumes exactly") {
  SupervisorRun run("token_ms=10");
  REQUIRE(run.WaitServing(1));
  const int worker = run.WorkerPid();

  grpc::ClientContext watch_context;
  const auto watch = run.admin().Watch(&watch_context, {});
  proto::HealthStatement statement;
  REQUIRE(watch->Read(&statement));
  CHECK(statement.ready());

  std::chrono::steady_clock::time_point killed;
  std::thread killer([&] {
    std::this_thread::sleep_for(milliseconds(150));
    killed = std::chrono::steady_clock::now();
    ::kill(worker, SIGKILL);
  });
  int losses = 0;
  std::thread client([&] {
    const Outcome out = GenerateWithResume(run, Request(1, {5, 6, 7}, 60), &losses);
    CHECK(out.finish == proto::FINISH_LENGTH);
    CHECK(out.tokens == Expected({5, 6, 7}, 60));
  });
  uint64_t last = statement.sequence();
  while (statement.ready() && watch->Read(&statement)) {
    CHECK(statement.sequence() >= last);
    last = statement.sequence();
  }
  killer.join();
  CHECK_FALSE(statement.ready());
  CHECK(std::chrono::steady_clock::now() - killed < seconds(1));
  CHECK_FALSE(statement.reason().empty());
  watch_context.TryCancel();
  client.join();
  CHECK(losses == 1);
  REQUIRE(run.WaitServing(2));
  CHECK(run.Status().health().restarts() == 1);
  CHECK_FALSE(Alive(worker));
  const auto incidents = run.Incidents();
  REQUIRE(incidents.size() == 1);
  CHECK(incidents[0].cause() == "signal");
  CHECK(incidents[0].phase() == "serving");
  CHECK(std::filesystem::exists(incidents[0].path() + "/incident.json"));
  CHECK(std::filesystem::exists(incidents[0].path() + "/log-r0.txt"));
  CHECK(run.Metric("holdfast_restarts_total{cause=\"signal\"}") == 1);
  CHECK(run.Metric("holdfast_engine_generated_tokens_total") == 60);  // rises over the restart
}

TEST_CASE("An unusable model is permanent: said in health with the worker's words, and never tried again") {
  SupervisorRun run("die_at=loading,die=65,message=tensor blk.0 has the wrong shape");
  REQUIRE(run.WaitState("down"));
  const proto::HealthStatement health = run.Status().health();
  CHECK(health.permanent());
  CHECK_FALSE(health.ready());
  CHECK(health.reason().find("tensor blk.0 has the wrong shape") != std::string::npos);
  std::this_thread::sleep_for(milliseconds(300));
  CHECK(run.Status().health().generation() == 1);
  const Outcome out = Generate(run, Request(1, {1}, 1));
  CHECK(out.finish == proto::FINISH_ERROR);
  CHECK(out.error.kind() == proto::EngineError::UNAVAILABLE);
  run.Signal(SIGTERM);
  CHECK(run.Wait(seconds(5)) == 0);
}

TEST_CASE("With --exit-on-permanent the supervisor ends with the worker's code") {
  for (const int code : {64, 65, 69}) {
    SupervisorRun run("die_at=spawn,message=no,die=" + std::to_string(code), {"--exit-on-permanent"});
    CHECK(run.Wait(seconds(10)) == code);
  }
}

TEST_CASE("No memory after the group has served is a loss like others, --exit-on-permanent or not") {
  SupervisorRun run("die_at=step=3,die=69,generations=1", {"--exit-on-permanent"});
  REQUIRE(run.WaitServing(1));
  const Outcome out = GenerateWithResume(run, Request(1, {3}, 20));
  CHECK(out.tokens == Expected({3}, 20));
  CHECK(run.Status().health().generation() == 2);
}

TEST_CASE("A worker binary that is not there is permanent and named") {
  SupervisorRun run("", {"--worker", "/nonexistent/holdfast-worker"}, {}, "", false);
  REQUIRE(run.WaitState("down"));
  CHECK(run.Status().health().permanent());
  CHECK(run.Status().health().reason().find("/nonexistent/holdfast-worker") != std::string::npos);
}

TEST_CASE("kill -9 of the supervisor takes the worker along, and the next one starts at once on the same directory") {
  SupervisorRun run("token_ms=5");
  REQUIRE(run.WaitServing());
  const int worker = run.WorkerPid();
  REQUIRE(Alive(worker));
  run.Signal(SIGKILL);
  CHECK(run.Wait(seconds(2)) == 128 + SIGKILL);
  CHECK(Eventually(seconds(2), [&] { return !Alive(worker); }));
  SupervisorRun next("", {}, {}, run.dir());
  CHECK(next.WaitServing());
}

TEST_CASE("Two supervisors on one directory: the second says whose it is and leaves the first alone") {
  SupervisorRun run("");
  REQUIRE(run.WaitServing());
  SupervisorRun second("", {}, {}, run.dir());
  const std::string pid = std::to_string(run.pid());
  CHECK(second.Wait(seconds(5)) == 69);
  CHECK(second.stderr_text().find("pid " + pid) != std::string::npos);
  CHECK(run.Status().health().ready());
}

TEST_CASE("SIGTERM when idle: everything is gone within its bound and the exit code is 0") {
  SupervisorRun run("");
  REQUIRE(run.WaitServing());
  const int worker = run.WorkerPid();
  run.Signal(SIGTERM);
  CHECK(run.Wait(seconds(5)) == 0);
  CHECK_FALSE(Alive(worker));
  CHECK_FALSE(std::filesystem::exists(run.dir() + "/supervisor.sock"));
}

}  // namespace
}  // namespace holdfast::supervisor::testing
