// Recordings: a life replays to the same digest, wherever it ends; what differs or is damaged is said, with the place, and never crashes.
#include <catch2/catch.hpp>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <deque>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "proto/base/random.h"
#include "worker/replay/format.h"
#include "worker/replay/recording.h"
#include "worker/replay/replay.h"

namespace holdfast::replay {
namespace {

sched::SchedulerConfig Small(uint32_t overlap = 0) {
  sched::SchedulerConfig c;
  c.cache.page_size = 4;
  c.cache.groups = {{0, 200, 260}, {8, 100, 140}};
  c.max_running = 4;
  c.prefill_chunk = 32;
  c.max_seq_len = 400;
  c.audit_period = 3;
  c.overlap_depth = overlap;
  return c;
}

struct Ignore final : FindingSink {
  void Report(Finding) override { ++count; }
  int count = 0;
};

// What holders of the descriptor see now.
std::string Copy(int fd) {
  uint64_t used = 0;
  REQUIRE(pread(fd, &used, sizeof used, kUsedOffset) == sizeof used);
  std::string bytes(used, 0);
  REQUIRE(pread(fd, bytes.data(), used, 0) == static_cast<ssize_t>(used));
  return bytes;
}

absl::StatusOr<ReplayReport> ReplayText(const std::string& bytes) { return Replay(std::as_bytes(std::span(bytes))); }

// A scheduler that is recorded, and traffic of a seed: shared prefixes, cancels, resizes, a page under suspicion, tokens out of nothing.
class Life {
 public:
  explicit Life(uint64_t seed, uint64_t capacity = kDefaultCapacity, uint32_t overlap = 0) : seed_(seed), overlap_(overlap) {
    auto recording = Recording::Create(Small(overlap), 7, 1, capacity);
    REQUIRE(recording.ok());
    fd_.Reset(dup((*recording)->fd()));
    auto scheduler = sched::Scheduler::Create(Small(overlap), &findings);
    REQUIRE(scheduler.ok());
    s = RecordScheduler(*std::move(scheduler), *std::move(recording));
  }

  uint64_t Draw(uint64_t below) { return Mix64(seed_ + ++draws_ * 0x9E37) % below; }

  void Submit() {
    sched::SubmitCommand c;
    c.request = RequestId(++next_);
    const uint64_t text = Draw(3), length = 1 + Draw(120);
    for (uint64_t i = 0; i < length; ++i) c.tokens.push_back(static_cast<TokenId>(Mix64(text * 1000 + i) % 300));
    c.prompt_tokens = static_cast<uint32_t>(1 + Draw(length));
    c.max_tokens = static_cast<uint32_t>(length - c.prompt_tokens + 1 + Draw(40));
    if (Draw(2) == 0) c.anchors = {static_cast<uint32_t>(length / 2), static_cast<uint32_t>(length)};
    if (Draw(4) == 0) c.cache_salt = "tenant";
    c.no_cache = Draw(6) == 0;
    c.run_ahead = overlap_ > 0 && Draw(5) > 0;
    s->Submit(std::move(c));
  }

  const sched::StepPlan* Plan() { return s->Plan(); }
  void Apply(const sched::StepPlan& plan) {
    sched::StepResult result;
    result.step = plan.step;
    for (const sched::StepEntry& e : plan.entries) {
      awaited += e.awaits;
      if (e.sample) result.sampled.push_back({e.request, static_cast<TokenId>(Draw(300)), Draw(20) == 0, Draw(40) == 0});
    }
    s->Apply(result);
    ++steps;
  }
  void Round() {
    const uint64_t what = Draw(100);
    if (what < 25) Submit();
    if (what >= 25 && what < 30 && next_ > 0) s->Cancel(RequestId(1 + Draw(next_)));
    if (what == 30) s->Resize({.operation = ++operation_, .full_pages = 150 + static_cast<uint32_t>(Draw(110)), .window_pages = 0, .cancel = Draw(4) == 0});
    if (what == 31 && suspected_++ < 2) s->SuspectPage(static_cast<uint8_t>(Draw(2)), static_cast<uint32_t>(Draw(100)));
    if (what == 32) s->Audit();
    if (const sched::StepPlan* plan = Plan()) launched_.push_back(plan);
    if (s->outstanding_steps() > 0 && (s->outstanding_steps() > overlap_ || Draw(2) == 0)) {
      Apply(*launched_.front());
      launched_.pop_front();
    }
    s->TakePageMoves();
    s->TakeEvents();
  }

  std::string bytes() const { return Copy(fd_.get()); }

  Ignore findings;
  std::unique_ptr<sched::Scheduler> s;
  uint64_t steps = 0, awaited = 0;

 private:
  std::deque<const sched::StepPlan*> launched_;
  uint64_t seed_;
  uint32_t overlap_;
  uint64_t draws_ = 0, next_ = 0, operation_ = 0;
  int suspected_ = 0;
  UniqueFd fd_;
};

std::string Message(const absl::Status& status) { return std::string(status.message()); }

// What the recording so far replays to, which is the same as what it was of.
ReplayReport SameAsLived(const Life& life) {
  const auto report = ReplayText(life.bytes());
  INFO(report.status());
  REQUIRE(report.ok());
  INFO((report->divergence ? report->divergence->what : ""));
  REQUIRE(report->same());
  CHECK(report->digest == life.s->digest());
  CHECK(report->steps == life.steps);
  return *report;
}

TEST_CASE("a life replays to the same digest at every point of it", "[replay]") {
  const uint64_t fresh = EntropySeed();
  std::cout << "replay_test: fresh seed " << fresh << "\n";
  for (const uint64_t seed : {uint64_t{1}, uint64_t{2}, uint64_t{3}, fresh}) {
    CAPTURE(seed);
    Life life(seed);
    for (int i = 0; i < 600; ++i) {
      life.Round();
      if (i % 97 != 0 && i != 599) continue;
      const auto report = SameAsLived(life);
      CHECK(report.generation == 7);
      CHECK(report.rank == 1);
      CHECK_FALSE(report.full);
      CHECK_FALSE(report.unfinished.has_value());
    }
    CHECK(life.steps > 100);
    // What containment reported, the replay finds again.
    CHECK(ReplayText(life.bytes())->findings.size() == static_cast<size_t>(std::min(life.findings.count, 100)));
  }
}

TEST_CASE("a life with steps in flight replays to the same digest at every point of it", "[replay]") {
  const uint64_t fresh = EntropySeed();
  std::cout << "replay_test: fresh seed " << fresh << "\n";
  for (const uint64_t seed : {uint64_t{1}, uint64_t{2}, uint64_t{3}, fresh}) {
    CAPTURE(seed);
    Life life(seed, kDefaultCapacity, 1);
    for (int i = 0; i < 900; ++i) {
      life.Round();
      if (i % 37 != 0 && i != 899) continue;
      const auto report = SameAsLived(life);
      // The oldest in flight is what ran.
      CHECK(report.unfinished == (life.s->outstanding_steps() > 0 ? std::optional(life.steps + 1) : std::nullopt));
    }
    CHECK(life.steps > 100);
    CHECK(life.awaited > 100);
  }
}

TEST_CASE("a life that ends inside a step says which", "[replay]") {
  Life life(5);
  for (int i = 0; i < 40; ++i) life.Round();
  life.Submit();
  const sched::StepPlan* plan = life.Plan();
  REQUIRE(plan != nullptr);
  const auto report = ReplayText(life.bytes());
  REQUIRE(report.ok());
  CHECK(report->same());
  CHECK(report->unfinished == plan->step.v);
  CHECK(report->steps == life.steps);
}

TEST_CASE("the first step that differs is named", "[replay]") {
  auto recording = Recording::Create(Small(), 1, 0);
  REQUIRE(recording.ok());
  Recording& r = **recording;
  Ignore findings;
  auto s = sched::Scheduler::Create(Small(), &findings);
  REQUIRE(s.ok());
  sched::SubmitCommand c;
  c.request = RequestId(1);
  c.tokens = {1, 2, 3};
  c.prompt_tokens = 3;
  c.max_tokens = 8;
  r.Submit(c);
  (*s)->Submit(c);
  for (int i = 1; i <= 5; ++i) {
    const sched::StepPlan* plan = (*s)->Plan();
    REQUIRE(plan != nullptr);
    r.Plan(plan, plan->digest);
    sched::StepResult result{plan->step, {{RequestId(1), 9, false, false}}};
    r.Apply(result);
    // As if the recorded process had decided otherwise in its third step.
    if (i == 3) result.sampled[0].token = 10;
    (*s)->Apply(result);
    r.Digest((*s)->digest());
  }
  const auto report = ReplayText(Copy(r.fd()));
  INFO(report.status());
  REQUIRE(report.ok());
  REQUIRE(report->divergence.has_value());
  CHECK(report->divergence->step == 3);
  CHECK(report->steps == 2);
  const std::string text = ToText({"x", report});
  CHECK(text.find("differs first at step 3") != std::string::npos);
}

TEST_CASE("plans of nothing in a row take the room of one", "[replay]") {
  Life life(6);
  for (int i = 0; i < 30; ++i) life.Round();
  while (const sched::StepPlan* plan = life.Plan()) life.Apply(*plan);
  const size_t size = life.bytes().size();
  for (int i = 0; i < 1000; ++i) CHECK(life.Plan() == nullptr);
  CHECK(life.bytes().size() == size);
  CHECK(ReplayText(life.bytes())->same());
  life.Submit();
  while (const sched::StepPlan* plan = life.Plan()) life.Apply(*plan);
  const auto report = ReplayText(life.bytes());
  REQUIRE(report.ok());
  CHECK(report->same());
  CHECK(report->steps == life.steps);
}

TEST_CASE("a recording without room keeps its beginning and says so", "[replay]") {
  for (const uint64_t capacity : {kHeaderBytes + 5, kHeaderBytes + 100, kHeaderBytes + 2000}) {
    Life life(8, capacity);
    for (int i = 0; i < 300; ++i) life.Round();
    const std::string bytes = life.bytes();
    CHECK(bytes.size() <= capacity);
    const auto report = ReplayText(bytes);
    INFO(report.status());
    REQUIRE(report.ok());
    CHECK(report->full);
    CHECK(report->same());
    CHECK(report->steps < life.steps);
    CHECK(ToText({"x", report}).find("no more room") != std::string::npos);
  }
  CHECK_FALSE(Recording::Create(Small(), 1, 0, kHeaderBytes).ok());
}

TEST_CASE("a tampered recording is reported, whichever byte was changed", "[replay]") {
  Life life(9);
  for (int i = 0; i < 40; ++i) life.Round();
  const std::string good = life.bytes();
  REQUIRE(ReplayText(good)->same());
  for (size_t at = 0; at < good.size(); ++at) {
    if (at > 200 && at < kHeaderBytes - 8 && at % 97 != 0) continue;  // zeros between configuration and check
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ (1 << at % 8));
    const auto report = ReplayText(bad);
    CAPTURE(at);
    CHECK((!report.ok() || !report->same()));
  }
  SECTION("cut or prolonged") {
    for (size_t size = 0; size < good.size(); size += size < kHeaderBytes ? 511 : 7) CHECK_FALSE(ReplayText(good.substr(0, size)).ok());
    CHECK_FALSE(ReplayText(good + "x").ok());
  }
  SECTION("many bytes at once, and a header that agrees with the new length") {
    for (uint64_t round = 0; round < 300; ++round) {
      std::string bad = good.substr(0, kHeaderBytes + Mix64(round) % (good.size() - kHeaderBytes + 1));
      const uint64_t used = bad.size();
      memcpy(bad.data() + kUsedOffset, &used, sizeof used);
      if (bad.size() == kHeaderBytes) continue;
      for (uint64_t i = 0; i < 1 + round % 9; ++i) {
        bad[kHeaderBytes + Mix64(round * 100 + i) % (bad.size() - kHeaderBytes)] ^= static_cast<char>(1 + Mix64(i) % 255);
      }
      const auto report = ReplayText(bad);
      CHECK((!report.ok() || !report->same()));
    }
  }
  SECTION("other files") {
    CHECK(Message(ReplayText("").status()).find("no recording") != std::string::npos);
    CHECK(Message(ReplayText(std::string(10000, 'x')).status()).find("does not begin with") != std::string::npos);
  }
}

TEST_CASE("a bundle's folder is searched for recordings", "[replay]") {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("holdfast-replay-" + std::to_string(getpid()));
  fs::create_directories(folder);
  CHECK(Message(ReplayBundle(folder.string()).status()).find("replay-r*.log") != std::string::npos);
  CHECK(absl::IsNotFound(ReplayBundle((folder / "none").string()).status()));
  Life life(10);
  for (int i = 0; i < 20; ++i) life.Round();
  std::ofstream(folder / "replay-r0.log", std::ios::binary) << life.bytes();
  std::ofstream(folder / "replay-r1.log", std::ios::binary) << "damaged";
  const auto reports = ReplayBundle(folder.string());
  REQUIRE(reports.ok());
  REQUIRE(reports->size() == 2);
  CHECK(ToText((*reports)[0]).find("same digest, " + std::to_string(life.steps) + " steps") != std::string::npos);
  CHECK(ToText((*reports)[1]).find("cannot be replayed") != std::string::npos);
  const std::string path = folder.string(), log = (folder / "replay-r0.log").string();
  const char* bundle[] = {"replay", path.c_str()};
  const char* file[] = {"replay", log.c_str()};
  CHECK(ReplayCommand(2, bundle) == 2);
  CHECK(ReplayCommand(2, file) == 0);
  CHECK(ReplayCommand(1, file) == 64);
  fs::remove_all(folder);
}

}  // namespace
}  // namespace holdfast::replay
