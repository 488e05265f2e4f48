// The group's shared memory and the collectives on it: results, their order, and every way in which a peer can fail to come.
#include "worker/tp/group.h"

#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <numeric>

#include "tests/support/ranks.h"
#include "worker/tp/collective_shm.h"
#include "worker/tp/step_channel.h"

extern char** environ;

namespace holdfast::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// A value whose sums depend on the order of addition.
float Value(uint32_t rank, size_t i) {
  const float sizes[] = {1e8f, 1.f, -1e8f, 3e-3f};
  return sizes[(rank + i) % 4] * (1.f + static_cast<float>((i * 2654435761u + rank * 40503u) % 1000) * 1e-3f);
}

float SumInOrder(uint32_t size, size_t i) {
  float sum = Value(0, i);
  for (uint32_t r = 1; r < size; ++r) sum += Value(r, i);
  return sum;
}

tp::GroupOptions Place(uint32_t rank, uint32_t size, Duration timeout = seconds(20)) {
  tp::GroupOptions o;
  o.rank = rank;
  o.size = size;
  o.timeout = timeout;
  return o;
}

}  // namespace

TEST_CASE("A sum over ranks adds in the order of ranks wherever an element lies, in one exchange or in many", "[tp]") {
  for (const uint32_t size : {2u, 3u, 5u}) {
    for (const size_t n : {size_t{1}, size_t{7}, size_t{4096}, size_t{kRankAreaBytes / 2 / 4}, size_t{kRankAreaBytes / 2 / 4 * 2 + 5}}) {
      std::vector<std::vector<float>> got(size);
      RunRanks(size, [&](uint32_t rank, tp::Group&, tp::ShmCollective& c) {
        for (int round = 0; round < 3; ++round) {  // more often than there are halves
          got[rank].resize(n);
          for (size_t i = 0; i < n; ++i) got[rank][i] = Value(rank, i);
          if (!c.AllReduceSum(got[rank]).ok()) got[rank].clear();
        }
      });
      size_t wrong = 0;
      for (uint32_t r = 0; r < size; ++r) {
        REQUIRE(got[r].size() == n);
        for (size_t i = 0; i < n; ++i) wrong += got[r][i] != SumInOrder(size, i);
      }
      CAPTURE(size, n);
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("Columns of unequal width are gathered where they are wanted", "[tp]") {
  // The last shape takes several exchanges: a rank's part is larger than its half.
  struct Shape {
    int64_t rows;
    std::vector<int64_t> columns;
  };
  for (const Shape& shape : {Shape{1, {1, 1}}, Shape{5, {3, 2, 4}}, Shape{3, {0, 7}}, Shape{7, {200001, 99990}}}) {
    const int64_t width = std::accumulate(shape.columns.begin(), shape.columns.end(), int64_t{0});
    std::vector<float> all(static_cast<size_t>(shape.rows * width), -1.f);
    const auto size = static_cast<uint32_t>(shape.columns.size());
    std::vector<int> ok(size, 0);
    RunRanks(size, [&](uint32_t rank, tp::Group&, tp::ShmCollective& c) {
      const int64_t first = std::accumulate(shape.columns.begin(), shape.columns.begin() + rank, int64_t{0});
      std::vector<float> mine;
      for (int64_t row = 0; row < shape.rows; ++row) {
        for (int64_t i = 0; i < shape.columns[rank]; ++i) mine.push_back(static_cast<float>((row * width + first + i) % 1000003));
      }
      const kernels::Mat to = rank == 0 ? kernels::Mat(all.data(), shape.rows, width) : kernels::Mat();
      ok[rank] = c.AllGatherColumns({mine.data(), shape.rows, shape.columns[rank]}, shape.columns, to).ok();
    });
    CHECK(ok == std::vector<int>(size, 1));
    size_t wrong = 0;
    for (size_t i = 0; i < all.size(); ++i) wrong += all[i] != static_cast<float>(i % 1000003);
    CAPTURE(shape.rows, width);
    CHECK(wrong == 0);
  }
}

TEST_CASE("A message reaches every rank whole, whatever its size and whoever sends it", "[tp]") {
  for (const size_t bytes : {size_t{0}, size_t{1}, size_t{kRankAreaBytes / 2 - 8}, size_t{kRankAreaBytes + 11}}) {
    for (const uint32_t root : {0u, 2u}) {
      std::vector<std::vector<std::byte>> got(3);
      std::vector<std::vector<uint64_t>> values(3);
      RunRanks(3, [&](uint32_t rank, tp::Group&, tp::ShmCollective& c) {
        got[rank].assign(rank == root ? bytes : 3, static_cast<std::byte>(rank));
        for (size_t i = 0; rank == root && i < bytes; ++i) got[rank][i] = static_cast<std::byte>(i * 7);
        if (!c.Broadcast(root, &got[rank]).ok() || !c.AllGather(rank * 10, &values[rank]).ok()) got[rank].clear();
      });
      CAPTURE(bytes, root);
      for (uint32_t r = 0; r < 3; ++r) {
        CHECK(got[r] == got[root]);
        CHECK(got[r].size() == bytes);
        CHECK(values[r] == std::vector<uint64_t>{0, 10, 20});
      }
    }
  }
}

TEST_CASE("A peer that leaves ends the wait for it, and what it said before counts", "[tp]") {
  const UniqueFd memory = CreateGroupMemory(2);
  auto zero = JoinAs(memory, Place(0, 2));
  absl::Status second;
  std::thread peer([&] {
    auto one = JoinAs(memory, Place(1, 2));
    tp::ShmCollective c(one.get());
    std::vector<float> x{2.f};
    second = one->Meet().ok() ? c.AllReduceSum(x) : absl::UnknownError("did not meet");
  });
  REQUIRE(zero->Meet().ok());
  tp::ShmCollective c(zero.get());
  std::vector<float> x{1.f};
  REQUIRE(c.AllReduceSum(x).ok());
  peer.join();
  CHECK(second.ok());
  CHECK(x[0] == 3.f);
  const Instant begin = Clock::Real().Now();
  const absl::Status lost = c.AllReduceSum(x);
  CHECK(absl::IsUnavailable(lost));
  CHECK(tp::IsPeerFault(lost));
  CHECK(std::string(lost.message()).find("rank 1 has left") != std::string::npos);
  CHECK(Clock::Real().Now() - begin < seconds(5));
  // Errors stick, and nothing is touched any more.
  CHECK(c.AllReduceSum(x) == lost);
  CHECK(x[0] == 3.f);
}

TEST_CASE("The death of a peer's process ends the wait for it", "[tp]") {
  const UniqueFd memory = CreateGroupMemory(2);
  auto zero = JoinAs(memory, Place(0, 2));
  char name[] = "sleep", time[] = "600";
  char* argv[] = {name, time, nullptr};
  pid_t pid = 0;
  REQUIRE(::posix_spawnp(&pid, name, nullptr, nullptr, argv, environ) == 0);
  tp::GroupOptions other = Place(1, 2);
  other.pid = pid;
  auto one = JoinAs(memory, other);
  tp::ShmCollective c(zero.get());
  std::thread killer([&] {
    std::this_thread::sleep_for(milliseconds(150));
    ::kill(pid, SIGKILL);
  });
  std::vector<float> x{1.f};
  const Instant begin = Clock::Real().Now();
  const absl::Status lost = c.AllReduceSum(x);
  const Duration took = Clock::Real().Now() - begin;
  killer.join();
  ::waitpid(pid, nullptr, 0);
  CHECK(absl::IsUnavailable(lost));
  CHECK(std::string(lost.message()).find("rank 1") != std::string::npos);
  CHECK(took >= milliseconds(100));
  CHECK(took < seconds(10));
}

TEST_CASE("A wait has an end: its time-out, or a word from the owner", "[tp]") {
  const UniqueFd memory = CreateGroupMemory(2);
  auto zero = JoinAs(memory, Place(0, 2, milliseconds(80)));
  auto one = JoinAs(memory, Place(1, 2));  // alive, and silent
  std::vector<float> x{1.f};
  const absl::Status late = tp::ShmCollective(zero.get()).AllReduceSum(x);
  CHECK(absl::IsDeadlineExceeded(late));
  CHECK(tp::IsPeerFault(late));
  int asked = 0;
  one->OnWait([&] { return ++asked >= 3; });
  const auto next = tp::StepChannel(one.get()).Next(seconds(20), nullptr);
  CHECK(absl::IsCancelled(next.status()));
  CHECK(asked == 3);
}

TEST_CASE("A place is taken once, in a memory of the right size", "[tp]") {
  const UniqueFd memory = CreateGroupMemory(2);
  auto zero = JoinAs(memory, Place(0, 2));
  CHECK(std::string(tp::Group::Join(Copy(memory), Place(0, 2)).status().message()).find("been in this group") != std::string::npos);
  zero.reset();
  CHECK(!tp::Group::Join(Copy(memory), Place(0, 2)).ok());  // a generation's rank does not come back
  CHECK(std::string(tp::Group::Join(Copy(memory), Place(0, 3)).status().message()).find("3 ranks need") != std::string::npos);
  CHECK(!tp::Group::Join(UniqueFd(), Place(0, 2)).ok());
}

TEST_CASE("Rounds come in order, rank 0 is never more than a ring ahead, and nothing is a round of its own", "[tp]") {
  constexpr uint64_t kRounds = 1000;
  std::vector<uint64_t> wrong(3, 0);
  RunRanks(3, [&](uint32_t rank, tp::Group& group, tp::ShmCollective&) {
    tp::StepChannel channel(&group);
    for (uint64_t i = 1; i <= kRounds; ++i) {
      const tp::Round round{7, i, 3 * i, i * i, i % 3 == 0};
      if (rank == 0) {
        wrong[rank] += !channel.Publish(round).ok();
        continue;
      }
      tp::Round got;
      const auto next = channel.Next(seconds(20), &got);
      wrong[rank] += !next.ok() || !*next || !(got == round);
    }
    if (rank == 0) return;
    tp::Round got;
    const auto none = channel.Next(milliseconds(1), &got);
    // Rank 0 may have left by now: then there is no round either.
    wrong[rank] += none.ok() && *none;
  });
  CHECK(wrong == std::vector<uint64_t>(3, 0));

  const UniqueFd memory = CreateGroupMemory(2);
  auto zero = JoinAs(memory, Place(0, 2, milliseconds(50)));
  auto one = JoinAs(memory, Place(1, 2));
  tp::StepChannel lead(zero.get()), follow(one.get());
  for (uint64_t i = 1; i <= tp::kRoundRing; ++i) REQUIRE(lead.Publish({1, i, 0, 0}).ok());
  CHECK(absl::IsDeadlineExceeded(lead.Publish({1, 99, 0, 0})));
  tp::Round got;
  REQUIRE(*follow.Next(seconds(1), &got));
  CHECK(got.step == 1);
  CHECK(lead.Publish({1, tp::kRoundRing + 1, 0, 0}).ok());
}

}  // namespace holdfast::test
