// Ranks whose devices talk to each other: emulated devices, a thread each, over a fake NCCL. Results and their order, how a group agrees to do
// it or not to, and every way in which a peer can fail to come.
#include "worker/tp/device_group.h"

#include <cuda_runtime.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <numeric>
#include <string>

#include "kernels/device_collective.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/ranks.h"
#include "tests/support/simt/emulated_ops.h"
#include "tests/unit/kernels/rig.h"

namespace holdfast::test {
namespace {

using kernels::nccl::Api;
using std::chrono::milliseconds;
using std::chrono::seconds;

// Devices for all ranks and a faultless library, until the test ends.
struct Machine {
  explicit Machine(uint32_t devices, const FakeNcclFaults& faults = {}) {
    simt::TheFakeDevice().count = static_cast<int>(devices);
    SetFakeNccl(faults);
  }
  ~Machine() {
    simt::TheFakeDevice() = {};
    SetFakeNccl({});
  }
};

std::unique_ptr<kernels::Ops> Device(uint32_t rank) {
  kernels::CudaOptions options;
  options.device = static_cast<int>(rank);
  auto ops = kernels::cuda_emulated::MakeOps(options);
  HF_CHECKF(ops.ok(), "{}", std::string(ops.status().message()));
  return *std::move(ops);
}

tp::JoinOptions Joining(tp::Collectives wanted = tp::Collectives::kAuto) {
  tp::JoinOptions o;
  o.wanted = wanted;
  o.load = [] { return &FakeNccl(); };
  o.at_most = seconds(20);
  return o;
}

tp::GroupOptions Patience(Duration timeout) {
  tp::GroupOptions o;
  o.timeout = timeout;
  return o;
}

// A value whose sums depend on the order of addition.
float Value(uint32_t rank, size_t i) {
  const float sizes[] = {1e8f, 1.f, -1e8f, 3e-3f};
  return sizes[(rank + i) % 4] * (1.f + static_cast<float>((i * 2654435761u + rank * 40503u) % 1000) * 1e-3f);
}

// A vector on the device.
struct Held {
  Held(kernels::Ops& o, const std::vector<float>& v) : ops(&o), n(v.size()), buffer(o.Allocate(static_cast<int64_t>(v.size() * 4))) {
    o.CopyFromHost(buffer.data(), reinterpret_cast<const std::byte*>(v.data()), static_cast<int64_t>(n * 4));
  }
  float* data() const { return buffer.as<float>(); }
  std::vector<float> Get() const {
    std::vector<float> out(n);
    ops->CopyToHost(reinterpret_cast<std::byte*>(out.data()), buffer.data(), static_cast<int64_t>(n * 4));
    ops->Sync();
    return out;
  }
  kernels::Ops* ops;
  size_t n;
  kernels::Buffer buffer;
};

std::vector<float> Values(uint32_t rank, size_t n) {
  std::vector<float> v(n);
  for (size_t i = 0; i < n; ++i) v[i] = Value(rank, i);
  return v;
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) { return a.size() == b.size() && memcmp(a.data(), b.data(), a.size() * 4) == 0; }

// Joins by hand, with pieces of a test's choosing.
absl::Status JoinWith(kernels::Ops& ops, tp::Group& group, tp::Collective& host, int64_t piece) {
  kernels::JoinSpec spec;
  spec.nccl = &FakeNccl();
  spec.rank = group.rank();
  spec.size = group.size();
  spec.piece = piece;
  spec.look = [&group](Instant began) { return group.StillWorthWaiting(began); };
  std::vector<std::byte> id(sizeof(spec.id));
  if (group.rank() == 0) {
    HF_CHECK(FakeNccl().GetUniqueId(&spec.id) == kernels::nccl::kSuccess);
    memcpy(id.data(), &spec.id, sizeof(spec.id));
  }
  HF_CHECK(host.Broadcast(0, &id).ok());
  memcpy(&spec.id, id.data(), sizeof(spec.id));
  return ops.JoinRanks(spec);
}

}  // namespace

TEST_CASE("Sums of devices have the bits of sums through the host, in one message or in many", "[tp]") {
  const bool slow = GENERATE(false, true);
  for (const uint32_t size : {2u, 3u, 5u}) {
    const Machine machine(size, {.slow_calls = slow});
    // Short messages, long ones whose parts are uneven, and ones that are cut into pieces.
    constexpr int64_t kPiece = 400000;
    const size_t lengths[] = {1, 7, 4096, 65536, 65537, 65543, 300001, 400003, 900001};
    std::vector<int> wrong(size);
    std::vector<absl::Status> status(size);
    RunRanks(size, [&](uint32_t rank, tp::Group& group, tp::ShmCollective& host) {
      const auto ops = Device(rank);
      status[rank] = JoinWith(*ops, group, host, kPiece);
      if (!status[rank].ok()) return;
      for (const size_t n : lengths) {
        const Held x(*ops, Values(rank, n));
        std::vector<float> expected = Values(rank, n);
        ops->ranks()->AllReduceSum(x.data(), static_cast<int64_t>(n));
        HF_CHECK(host.AllReduceSum(expected).ok());
        wrong[rank] += !SameBits(x.Get(), expected);
      }
      status[rank] = ops->Health();
      HF_CHECK(group.Meet().ok());  // who leaves is a lost peer for who still waits for a third
    });
    for (uint32_t r = 0; r < size; ++r) {
      CAPTURE(size, slow, r, status[r]);
      CHECK(status[r].ok());
      CHECK(wrong[r] == 0);
    }
  }
  CHECK(FakeNcclCommunicators() == 0);
}

TEST_CASE("Work behind a sum sees the sum, and work before it is in it", "[tp]") {
  const Machine machine(2, {.slow_calls = true});
  std::vector<std::vector<float>> got(2);
  RunRanks(2, [&](uint32_t rank, tp::Group& group, tp::ShmCollective& host) {
    const auto ops = Device(rank);
    HF_CHECK(JoinWith(*ops, group, host, 1 << 20).ok());
    const Held x(*ops, std::vector<float>(100, 1.f)), y(*ops, std::vector<float>(70000, 1.f));
    for (int i = 0; i < 3; ++i) {
      ops->Scale({x.data(), 1, 100}, 3.f);
      ops->ranks()->AllReduceSum(x.data(), 100);
      ops->Add({x.data(), 1, 100}, {x.data(), 1, 100});
      ops->Scale({y.data(), 1, 70000}, static_cast<float>(rank + 1));
      ops->ranks()->AllReduceSum(y.data(), 70000);
    }
    got[rank] = x.Get();
    const std::vector<float> other = y.Get();
    got[rank].insert(got[rank].end(), other.begin(), other.end());
  });
  for (const auto& g : got) {
    REQUIRE(g.size() == 70100);
    for (size_t i = 0; i < g.size(); ++i) {
      if (g[i] != (i < 100 ? 12.f * 12.f * 12.f : 27.f)) FAIL("at " << i << ": " << g[i]);
    }
  }
}

TEST_CASE("Columns are gathered on rank 0, of every width and in pieces", "[tp]") {
  const Machine machine(3);
  const std::vector<int64_t> columns = {5, 0, 90000};
  constexpr int64_t kRows = 5, kWidth = 90005, kStride = kWidth + 3;
  std::vector<float> got;
  std::vector<absl::Status> status(3);
  RunRanks(3, [&](uint32_t rank, tp::Group& group, tp::ShmCollective& host) {
    const auto ops = Device(rank);
    HF_CHECK(JoinWith(*ops, group, host, 200000).ok());  // two rows a piece
    const int64_t own = columns[rank];
    std::vector<float> part(static_cast<size_t>(std::max<int64_t>(kRows * own, 1)));
    for (size_t i = 0; i < part.size(); ++i) part[i] = Value(rank, i);
    const Held mine(*ops, part), all(*ops, std::vector<float>(rank == 0 ? kRows * kStride : 1, -1.f));
    ops->ranks()->GatherColumns({mine.data(), kRows, own}, columns, rank == 0 ? kernels::Mat(all.data(), kRows, kWidth, kStride) : kernels::Mat());
    ops->Sync();
    if (rank == 0) got = all.Get();
    status[rank] = ops->Health();
    HF_CHECK(group.Meet().ok());
  });
  for (const absl::Status& s : status) CHECK(s.ok());
  REQUIRE(got.size() == kRows * kStride);
  int wrong = 0;
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t c = 0; c < kStride; ++c) {
      const float expected = c < 5 ? Value(0, static_cast<size_t>(row * 5 + c)) : c < kWidth ? Value(2, static_cast<size_t>(row * 90000 + c - 5)) : -1.f;
      wrong += got[static_cast<size_t>(row * kStride + c)] != expected;
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("A product of summed rows takes the sum, also where the rows were made for products", "[tp]") {
  const Machine machine(2);
  constexpr int64_t kIn = 256, kOut = 32;
  std::vector<std::vector<float>> got(4);
  RunRanks(2, [&](uint32_t rank, tp::Group& group, tp::ShmCollective& host) {
    const auto ops = Device(rank);
    HF_CHECK(JoinWith(*ops, group, host, 1 << 20).ok());
    kernels::test::Random random(3 + rank);
    const auto file = kernels::test::FileRows(kernels::DType::kQ8_0, kOut, kIn, random);
    const kernels::test::PackedWeight weight(*ops, kernels::DType::kQ8_0, kOut, kIn, file);
    const Held x(*ops, random.Normals(kIn)), h(*ops, std::vector<float>(kIn)), y(*ops, std::vector<float>(kOut));
    const kernels::Mat rows(h.data(), 1, kIn);
    const kernels::Product product{weight.weight, {y.data(), 1, kOut}, {}, false};
    ops->MatMul({x.data(), 1, kIn}, {&product, 1});  // from the first on the backend knows how products take their rows
    ops->NormForProducts({x.data(), 1, kIn}, {}, 1e-6f, rows);
    ops->ranks()->AllReduceSum(h.data(), kIn);
    ops->MatMul(rows, {&product, 1});
    got[rank] = y.Get();
    const Held sum(*ops, h.Get());
    ops->MatMul({sum.data(), 1, kIn}, {&product, 1});
    got[2 + rank] = y.Get();
  });
  for (const size_t rank : {0u, 1u}) {
    CHECK(!got[rank].empty());
    CHECK(SameBits(got[rank], got[2 + rank]));
  }
}

// ---- peers that fail -------------------------------------------------------------------------------------------------------------------

namespace {

// Rank 0 sums the first 1000 floats of x, then does `waiting` with x (2 Mi floats), while `other` is what rank 1 does instead. What rank 0's
// Health() says after its Sync.
absl::Status Abandoned(Duration timeout, const std::function<void(kernels::Ops&, tp::Group&)>& other,
                       const std::function<void(kernels::Ops&, const Held& x)>& waiting = nullptr,
                       const std::function<void(tp::Group&)>& before = nullptr) {
  absl::Status status;
  std::atomic<bool> over{false};
  const UniqueFd memory = CreateGroupMemory(2);
  std::vector<std::thread> threads;
  for (uint32_t rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      tp::GroupOptions o = Patience(timeout);
      o.rank = rank;
      o.size = 2;
      auto group = JoinAs(memory, o);
      HF_CHECK(group->Meet().ok());
      tp::ShmCollective host(group.get());
      const auto ops = Device(rank);
      HF_CHECK(JoinWith(*ops, *group, host, 1 << 20).ok());
      if (rank == 1) {
        other(*ops, *group);
        group.reset();  // leaves: who waits is told
        while (!over) std::this_thread::yield();
        return;
      }
      if (before) before(*group);
      const Held x(*ops, std::vector<float>(2 << 20, 1.f));
      ops->ranks()->AllReduceSum(x.data(), 1000);
      if (waiting) {
        waiting(*ops, x);
        HF_CHECK(!ops->Health().ok());  // it had to wait, and was told
      }
      ops->Sync();
      status = ops->Health();
      // What comes after does nothing, and waits for nobody.
      ops->ranks()->AllReduceSum(x.data(), 1000);
      ops->Sync();
      HF_CHECK(ops->Health() == status);
      over = true;
    });
  }
  for (std::thread& t : threads) t.join();
  return status;
}

}  // namespace

TEST_CASE("A peer that is gone ends the wait for the device", "[tp]") {
  const Machine machine(2);
  const int aborts = FakeNcclAborts();
  const absl::Status gone = Abandoned(seconds(20), [](kernels::Ops&, tp::Group&) {});
  CAPTURE(gone);
  CHECK(absl::IsUnavailable(gone));
  CHECK(std::string(gone.message()).find("rank 1") != std::string::npos);
  CHECK(tp::IsPeerFault(gone));
  CHECK(FakeNcclAborts() > aborts);
  CHECK(FakeNcclCommunicators() == 0);
}

TEST_CASE("A peer that is gone ends waits inside a step, too", "[tp]") {
  const Machine machine(2);
  const auto uploads = [](kernels::Ops& ops, const Held& x) {  // more of them than both halves hold
    const std::vector<int32_t> rows(64, 0);
    for (int i = 0; i < 2000; ++i) ops.GatherRows({x.data(), 1, 10}, rows, {x.data() + 100, 64, 10});
  };
  CHECK(absl::IsUnavailable(Abandoned(seconds(20), [](kernels::Ops&, tp::Group&) {}, uploads)));
  const auto steps = [](kernels::Ops& ops, const Held&) {
    const std::vector<uint32_t> tokens(100, 1);
    kernels::Batch batch;
    batch.tokens = tokens;
    for (int i = 0; i < 3; ++i) ops.BeginStep(batch);
  };
  CHECK(absl::IsUnavailable(Abandoned(seconds(20), [](kernels::Ops&, tp::Group&) {}, steps)));
  std::vector<float> to(2 << 20);   // the first float is delivered by a later wait
  const auto large_download = [&](kernels::Ops& ops, const Held& x) {
    ops.CopyToHost(reinterpret_cast<std::byte*>(to.data()), x.buffer.data(), 4);
    ops.CopyToHost(reinterpret_cast<std::byte*>(to.data() + 1), x.buffer.data() + 4, static_cast<int64_t>(x.n * 4 - 4));  // no pinned room for it
  };
  CHECK(absl::IsUnavailable(Abandoned(seconds(20), [](kernels::Ops&, tp::Group&) {}, large_download)));
}

TEST_CASE("A peer that does not come in time ends the wait", "[tp]") {
  const Machine machine(2);
  const absl::Status late = Abandoned(milliseconds(300), [](kernels::Ops&, tp::Group&) { std::this_thread::sleep_for(seconds(2)); });
  CAPTURE(late);
  CHECK(absl::IsDeadlineExceeded(late));
  CHECK(tp::IsPeerFault(late));
}

TEST_CASE("Ranks that sum different lengths do not wait for ever", "[tp]") {
  const Machine machine(2);
  absl::Status other;
  const absl::Status mine = Abandoned(milliseconds(300), [&](kernels::Ops& ops, tp::Group&) {
    const Held x(ops, std::vector<float>(999, 1.f));
    ops.ranks()->AllReduceSum(x.data(), 999);
    ops.Sync();
    other = ops.Health();
  });
  CAPTURE(mine, other);
  CHECK(tp::IsPeerFault(mine));
  CHECK(tp::IsPeerFault(other));
}

TEST_CASE("A rank that is told to stop leaves in the middle of a wait for the device", "[tp]") {
  const Machine machine(2);
  const absl::Status stopped = Abandoned(seconds(20), [](kernels::Ops&, tp::Group&) { std::this_thread::sleep_for(milliseconds(500)); }, nullptr,
                                         [](tp::Group& group) { group.OnWait([] { return true; }); });
  CAPTURE(stopped);
  CHECK(absl::IsCancelled(stopped));
}

TEST_CASE("What the library finds while the host waits ends the wait", "[tp]") {
  using namespace kernels::nccl;  // NOLINT
  const auto found = [](Result result) {
    const Machine machine(2);
    return Abandoned(seconds(20), [](kernels::Ops&, tp::Group&) { std::this_thread::sleep_for(milliseconds(500)); },
                     [result](kernels::Ops& ops, const Held&) {
                       SetFakeNccl({.async = result});
                       ops.Sync();
                     });
  };
  const absl::Status remote = found(kRemoteError);
  CAPTURE(remote);
  CHECK(absl::IsUnavailable(remote));
  CHECK(std::string(remote.message()).find("remote process exited") != std::string::npos);
  CHECK(std::string(remote.message()).find("said by the fake") != std::string::npos);
  CHECK(absl::IsUnavailable(found(kSystemError)));
  CHECK(absl::IsAborted(found(kUnhandledCudaError)));
  CHECK(absl::IsInternal(found(kInternalError)));
}

// ---- agreeing --------------------------------------------------------------------------------------------------------------------------

namespace {

struct Outcome {
  absl::StatusOr<std::string> said = absl::UnknownError("");
  bool on_device = false;
  bool sums = false;   // 1 + 2, by whatever means
};

std::vector<Outcome> Agree(const std::function<tp::JoinOptions(uint32_t)>& options, bool host_memory = false) {
  std::vector<Outcome> out(2);
  RunRanks(2, [&](uint32_t rank, tp::Group& group, tp::ShmCollective& host) {
    const auto ops = host_memory ? kernels::MakeReferenceOps() : Device(rank);
    out[rank].said = tp::JoinDevices(ops.get(), &host, &group, options(rank));
    out[rank].on_device = ops->ranks() != nullptr;
    std::vector<float> x(1, static_cast<float>(rank + 1));
    if (out[rank].on_device) {
      const Held held(*ops, x);
      ops->ranks()->AllReduceSum(held.data(), 1);
      x = held.Get();
    } else if (!host.AllReduceSum(x).ok()) {
      return;
    }
    out[rank].sums = x[0] == 3.f && ops->Health().ok();
  });
  return out;
}

void CheckHost(const std::vector<Outcome>& ranks, const char* words0, const char* words1) {
  for (uint32_t r = 0; r < 2; ++r) {
    CAPTURE(r, ranks[r].said.status());
    REQUIRE(ranks[r].said.ok());
    CAPTURE(*ranks[r].said);
    CHECK(ranks[r].said->find("through the host's memory") == 0);
    CHECK(ranks[r].said->find(r == 0 ? words0 : words1) != std::string::npos);
    CHECK(!ranks[r].on_device);
    CHECK(ranks[r].sums);
  }
  CHECK(FakeNcclCommunicators() == 0);
}

}  // namespace

TEST_CASE("Devices are joined where all ranks can, and the log says so", "[tp]") {
  const Machine machine(2);
  for (const tp::Collectives wanted : {tp::Collectives::kAuto, tp::Collectives::kNccl}) {
    for (const Outcome& o : Agree([&](uint32_t) { return Joining(wanted); })) {
      REQUIRE(o.said.ok());
      CHECK(*o.said == "NCCL 2.28.9, 2 ranks");
      CHECK(o.on_device);
      CHECK(o.sums);
    }
  }
}

TEST_CASE("What one rank cannot none does, and the sums go through the host", "[tp]") {
  const Machine machine(2);
  CheckHost(Agree([](uint32_t) { return Joining(tp::Collectives::kHost); }), "--collectives host", "--collectives host");
  CheckHost(Agree([](uint32_t) { return Joining(); }, true), "host's memory", "host's memory");
  CheckHost(Agree([](uint32_t rank) {
              tp::JoinOptions o = Joining();
              if (rank == 1) o.load = [] { return absl::NotFoundError("libnccl.so.2: cannot open"); };
              return o;
            }),
            "rank 1 cannot", "cannot open");
  static Api other;
  other = FakeNccl();
  other.GetVersion = [](int* version) {
    *version = 21804;
    return kernels::nccl::kSuccess;
  };
  CheckHost(Agree([](uint32_t rank) {
              tp::JoinOptions o = Joining();
              if (rank == 0) o.load = [] { return &other; };
              return o;
            }),
            "rank 1 has NCCL 2.28.9, this one 2.18.4", "rank 0 has NCCL 2.18.4, this one 2.28.9");
  other.GetVersion = [](int* version) {
    *version = 20800;
    return kernels::nccl::kSuccess;
  };
  CheckHost(Agree([](uint32_t) {
              tp::JoinOptions o = Joining();
              o.load = [] { return &other; };
              return o;
            }),
            "or later is needed", "or later is needed");
}

TEST_CASE("Ranks of which one computes on the CPU are refused, on every rank and in words", "[tp]") {
  const Machine machine(2);
  RunRanks(2, [&](uint32_t rank, tp::Group& group, tp::ShmCollective& host) {
    const auto ops = rank == 1 ? kernels::MakeReferenceOps() : Device(rank);
    const auto said = tp::JoinDevices(ops.get(), &host, &group, Joining());
    HF_CHECKF(absl::IsInvalidArgument(said.status()), "{}", said.status().ToString());
    const std::string words(said.status().message());
    HF_CHECKF(words.find(rank == 0 ? "rank 1 computes on the CPU, this one on a device" : "rank 0 computes on a device, this one on the CPU") == 0, "{}", words);
  });
}

TEST_CASE("A library that fails to join the ranks is done without, or is an error where it was asked for", "[tp]") {
  using namespace kernels::nccl;  // NOLINT
  {
    const Machine machine(2, {.id = kSystemError});
    CheckHost(Agree([](uint32_t) { return Joining(); }), "rank 0 makes no id", "rank 0 makes no id");
  }
  {
    const Machine machine(2, {.init = kInvalidUsage, .fail_rank = 1});
    const auto impatient = [](tp::Collectives wanted) {
      return [wanted](uint32_t) {
        tp::JoinOptions o = Joining(wanted);
        o.at_most = milliseconds(300);
        return o;
      };
    };
    CheckHost(Agree(impatient(tp::Collectives::kAuto)), "did not", "said by the fake");
    for (const Outcome& o : Agree(impatient(tp::Collectives::kNccl))) CHECK(absl::IsFailedPrecondition(o.said.status()));
  }
  const Machine machine(2);
  for (const Outcome& o : Agree([](uint32_t) {
         tp::JoinOptions options = Joining(tp::Collectives::kNccl);
         options.load = [] { return absl::NotFoundError("libnccl.so.2: cannot open"); };
         return options;
       })) {
    CAPTURE(o.said.status());
    CHECK(absl::IsInvalidArgument(o.said.status()));
    CHECK(std::string(o.said.status().message()).find("--collectives nccl: libnccl.so.2: cannot open; --collectives auto") == 0);
  }
}

TEST_CASE("A peer that is lost while devices join is a lost peer", "[tp]") {
  const Machine machine(2);
  absl::Status status;
  RunRanks(2, [&](uint32_t rank, tp::Group& group, tp::ShmCollective& host) {
    const auto ops = Device(rank);
    tp::JoinOptions o = Joining();
    if (rank == 1) {
      // Says that it can, and leaves before it does.
      std::vector<uint64_t> all;
      std::vector<std::byte> id;
      HF_CHECK(host.AllGather(0, &all).ok() && host.AllGather(22809, &all).ok() && host.Broadcast(0, &id).ok());
      return;
    }
    status = tp::JoinDevices(ops.get(), &host, &group, o).status();
  });
  CAPTURE(status);
  CHECK(absl::IsUnavailable(status));
  CHECK(FakeNcclCommunicators() == 0);
}

}  // namespace holdfast::test
