// What outlives a worker: the socket between its keeper and the supervisor's end, and refusals of descriptors that are not what they should be.
#include <catch2/catch.hpp>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <iterator>
#include <thread>

#include "proto/base/fd_pass.h"
#include "supervisor/kept.h"
#include "tests/unit/model/files.h"
#include "worker/link/keeper.h"
#include "worker/model/hparams.h"
#include "worker/model/tools/make_model.h"
#include "worker/model/weights.h"

namespace holdfast::worker {
namespace {

using supervisor::Kept;

constexpr int kAllSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL;

UniqueFd Memory(std::string_view content, int seals) {
  UniqueFd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(write(fd.get(), content.data(), content.size()) == static_cast<ssize_t>(content.size()));
  if (seals != 0) REQUIRE(fcntl(fd.get(), F_ADD_SEALS, seals) == 0);
  return fd;
}

std::string Content(int fd) {
  char text[64] = {};
  const ssize_t n = pread(fd, text, sizeof text - 1, 0);
  return n < 0 ? "" : std::string(text, static_cast<size_t>(n));
}

size_t OpenDescriptors() {
  const std::filesystem::directory_iterator begin("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin, {}));
}

TEST_CASE("weights go from generation to generation until they are dropped", "[keeper]") {
  const size_t before = OpenDescriptors();
  {
    Kept kept;
    {
      Keeper first(kept.Open());
      CHECK_FALSE(first.TakeWeights());
      REQUIRE(first.KeepWeights(Memory("one", kAllSeals).get()));
    }
    kept.Drain();  // the worker is gone; what it said is not
    CHECK(kept.has_weights());
    CHECK(kept.poll_fd() == -1);
    for (int i = 0; i < 3; ++i) {
      Keeper next(kept.Open());
      const UniqueFd taken = next.TakeWeights();
      REQUIRE(taken);
      CHECK(Content(taken.get()) == "one");
      CHECK((fcntl(taken.get(), F_GETFD) & FD_CLOEXEC) != 0);
      CHECK_FALSE(next.TakeWeights());
    }
    Keeper last(kept.Open());
    CHECK(last.TakeWeights());
    std::thread loop([&kept] {
      for (int i = 0; i < 200 && kept.has_weights(); ++i) {
        kept.Drain();
        usleep(5000);
      }
    });
    CHECK(last.DropWeights(std::chrono::seconds(5)));
    loop.join();
    CHECK_FALSE(kept.has_weights());
    REQUIRE(last.KeepWeights(Memory("two", kAllSeals).get()));
    kept.Drain();
    Keeper heir(kept.Open());
    CHECK(Content(heir.TakeWeights().get()) == "two");
  }
  CHECK(OpenDescriptors() == before);
}

TEST_CASE("a recording belongs to one generation", "[keeper]") {
  Kept kept;
  Keeper first(kept.Open());
  REQUIRE(first.KeepRecording(Memory("log", F_SEAL_SHRINK | F_SEAL_GROW).get()));
  kept.Drain();
  CHECK(Content(kept.recording()) == "log");
  Keeper second(kept.Open());
  CHECK(kept.recording() == -1);
  CHECK_FALSE(first.KeepRecording(Memory("late", F_SEAL_SHRINK | F_SEAL_GROW).get()));  // its socket is closed
}

TEST_CASE("what is not a sealed memory file is not kept, and odd packets are dropped", "[keeper]") {
  const size_t before = OpenDescriptors();
  {
    Kept kept;
    UniqueFd theirs = kept.Open();
    const int socket = theirs.get();
    int pipes[2];
    REQUIRE(pipe(pipes) == 0);
    const UniqueFd in(pipes[0]), out(pipes[1]);
    CHECK(SendFd(socket, FdTag::kWeights, in.get()));
    CHECK(SendFd(socket, FdTag::kWeights, Memory("x", 0).get()));
    CHECK(SendFd(socket, FdTag::kWeights, Memory("x", F_SEAL_WRITE).get()));
    CHECK(SendFd(socket, FdTag::kWeights));
    CHECK(SendFd(socket, FdTag::kRecording, in.get()));
    CHECK(SendFd(socket, static_cast<FdTag>('?'), in.get()));
    CHECK(write(socket, "Wxyz", 4) == 4);
    kept.Drain();
    CHECK_FALSE(kept.has_weights());
    CHECK(kept.recording() == -1);
    CHECK(SendFd(socket, FdTag::kWeights, Memory("good", kAllSeals).get()));
    kept.Drain();
    CHECK(kept.has_weights());
  }
  CHECK(OpenDescriptors() == before);
}

TEST_CASE("a supervisor that does not answer costs a moment, not the worker", "[keeper]") {
  Kept kept;
  Keeper keeper(kept.Open());
  CHECK_FALSE(keeper.DropWeights(std::chrono::milliseconds(20)));
  kept = Kept();
  CHECK_FALSE(keeper.DropWeights(std::chrono::seconds(5)));
  CHECK_FALSE(keeper.KeepWeights(Memory("x", kAllSeals).get()));
}

TEST_CASE("kept weights that are cut, foreign or damaged are refused with the reason", "[keeper]") {
  test::TempDir dir;
  const std::string path = dir.Write("m.gguf", model::RandomLlama({}).Finish());
  auto file = model::GgufFile::Open(path);
  REQUIRE(file.ok());
  const auto hparams = model::ReadHparams(**file);
  REQUIRE(hparams.ok());
  const auto plan = model::TensorPlan::Make(**file, *hparams);
  REQUIRE(plan.ok());
  const auto ops = kernels::MakeReferenceOps();
  const auto made = model::WeightStore::Create(**file, *plan, *ops, {});
  REQUIRE(made.ok());
  std::string good((*made)->bytes(), 0);
  REQUIRE(pread((*made)->fd(), good.data(), good.size(), 0) == static_cast<ssize_t>(good.size()));
  const auto why = [&](UniqueFd fd) {
    const auto attached = model::WeightStore::Attach(std::move(fd), **file, *plan, *ops);
    return attached.ok() ? std::string("ok") : std::string(attached.status().message());
  };
  CHECK(why(Memory(good, kAllSeals)) == "ok");
  CHECK(why(Memory(good, 0)).find("not sealed") != std::string::npos);
  CHECK(why(Memory(good, F_SEAL_SHRINK | F_SEAL_GROW)).find("not sealed") != std::string::npos);
  CHECK(why(Memory(good.substr(0, good.size() / 2), kAllSeals)).find("bytes") != std::string::npos);
  CHECK(why(Memory(good + "x", kAllSeals)).find("bytes") != std::string::npos);
  CHECK(why(Memory("", kAllSeals)).find("bytes") != std::string::npos);
  CHECK(why(UniqueFd(open(path.c_str(), O_RDONLY | O_CLOEXEC))).find("not sealed") != std::string::npos);
  CHECK(why(UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC))).find("not sealed") != std::string::npos);
  CHECK(why(UniqueFd()).find("no such descriptor") != std::string::npos);
  // Magic, layout, and the file's time and fingerprint: a change of any of them is seen. (Bytes 16 to 23 repeat the size.)
  for (size_t at = 0; at < 64; at += 5) {
    if (at >= 16 && at < 24) continue;
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x40);
    CAPTURE(at);
    CHECK(why(Memory(bad, kAllSeals)).find("kept weights cannot be used") == 0);
  }
}

}  // namespace
}  // namespace holdfast::worker
