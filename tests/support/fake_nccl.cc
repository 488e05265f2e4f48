#include "tests/support/fake_nccl.h"

#include <cuda_runtime.h>

#include <atomic>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "proto/base/check.h"

namespace holdfast::test {
namespace {

using namespace kernels::nccl;  // NOLINT

enum class Kind : uint8_t { kPair, kAllGather };

struct Message {
  Kind kind;
  std::vector<std::byte> bytes;
  bool taken = false;
};

// What the communicators of one id share.
struct World {
  int size = 0, came = 0;
  std::map<std::pair<int, int>, std::vector<std::shared_ptr<Message>>> ways;   // [from, to], first sent first
};

struct Fake {
  std::mutex mutex;
  FakeNcclFaults faults;
  uint64_t ids = 0;
  std::map<std::string, std::shared_ptr<World>> worlds;
  int alive = 0, aborts = 0;
};
Fake& TheFake() {
  static Fake* f = new Fake;
  return *f;
}

struct Part {
  bool send;
  Kind kind;
  int peer;
  void* at;             // device memory
  size_t bytes;
};

// A call, or all calls of a group: every part makes way for the others.
struct Exchange {
  std::vector<Part> parts;
  std::vector<std::shared_ptr<Message>> sent;   // [part], null for what is received
  std::vector<bool> done;
};

}  // namespace
}  // namespace holdfast::test

struct holdfast::kernels::nccl::Comm {
  std::shared_ptr<holdfast::test::World> world;
  int rank = 0;
  std::shared_ptr<std::atomic<bool>> aborted = std::make_shared<std::atomic<bool>>(false);
  int busy = 0;                              // answers of "in progress" to give
  std::function<void()> put;                 // what a slow call will have put into the stream then
};

namespace holdfast::test {
namespace {

thread_local int t_depth = 0;
thread_local Comm* t_comm = nullptr;
thread_local void* t_stream = nullptr;
thread_local std::vector<Part> t_parts;

bool Try(World& world, int rank, const std::atomic<bool>& aborted, Exchange& e) {
  if (aborted) return true;
  std::lock_guard lock(TheFake().mutex);
  if (e.sent.empty()) {
    e.sent.resize(e.parts.size());
    e.done.resize(e.parts.size());
    for (size_t i = 0; i < e.parts.size(); ++i) {
      const Part& p = e.parts[i];
      if (!p.send) continue;
      e.sent[i] = std::make_shared<Message>();
      e.sent[i]->kind = p.kind;
      e.sent[i]->bytes.resize(p.bytes);
      simt::GuardedCopy(e.sent[i]->bytes.data(), p.at, p.bytes);
      world.ways[{rank, p.peer}].push_back(e.sent[i]);
    }
  }
  bool all = true;
  for (size_t i = 0; i < e.parts.size(); ++i) {
    const Part& p = e.parts[i];
    if (p.send) {
      e.done[i] = e.sent[i]->taken;
    } else if (!e.done[i]) {
      auto& way = world.ways[{p.peer, rank}];
      if (!way.empty() && way.front()->kind == p.kind && way.front()->bytes.size() == p.bytes) {
        simt::GuardedCopy(p.at, way.front()->bytes.data(), p.bytes);
        way.front()->taken = true;
        way.erase(way.begin());
        e.done[i] = true;
      }
    }
    all = all && e.done[i];
  }
  return all;
}

Result Enqueue(Comm* comm, void* stream, std::vector<Part> parts) {
  Exchange e;
  e.parts = std::move(parts);
  auto put = [stream, attempt = [world = comm->world, rank = comm->rank, aborted = comm->aborted, e = std::move(e)]() mutable {
    return Try(*world, rank, *aborted, e);
  }] { return simt::EnqueueAttempt(static_cast<simt::cudaStream_t>(stream), attempt); };
  {
    std::lock_guard lock(TheFake().mutex);
    if (comm->busy > 0) return kInvalidUsage;  // the call before has not been waited for
    if (TheFake().faults.slow_calls) {
      comm->busy = 3;
      comm->put = put;
      return kInProgress;
    }
  }
  return put() == simt::cudaSuccess ? kSuccess : kUnhandledCudaError;
}

Result Add(Comm* comm, void* stream, const Part& part) {
  if (comm == nullptr || part.at == nullptr || part.peer < 0 || part.peer >= comm->world->size) return kInvalidArgument;
  HF_CHECK(t_depth == 0 || t_comm == nullptr || (t_comm == comm && t_stream == stream));
  if (t_depth == 0) return Enqueue(comm, stream, {part});
  t_comm = comm;
  t_stream = stream;
  t_parts.push_back(part);
  return kSuccess;
}

Result GetVersion(int* version) {
  *version = TheFake().faults.version;
  return kSuccess;
}
Result GetUniqueId(UniqueId* id) {
  std::lock_guard lock(TheFake().mutex);
  *id = {};
  const std::string text = "fake " + std::to_string(++TheFake().ids);
  memcpy(id->bytes, text.data(), text.size());
  return TheFake().faults.id;
}
Result Init(Comm** comm, int ranks, UniqueId id, int rank, Config* config) {
  std::lock_guard lock(TheFake().mutex);
  if (config->magic != 0xcafebeef || config->version < 21400 || config->blocking != 0 || rank < 0 || rank >= ranks) return kInvalidArgument;
  auto& world = TheFake().worlds[id.bytes];
  if (world == nullptr) world = std::make_shared<World>();
  if (world->size != 0 && world->size != ranks) return kInvalidUsage;
  world->size = ranks;
  ++world->came;
  *comm = new Comm;
  (*comm)->world = world;
  (*comm)->rank = rank;
  ++TheFake().alive;
  return kInProgress;
}
Result GetAsyncError(Comm* comm, Result* error) {
  std::lock_guard lock(TheFake().mutex);
  const FakeNcclFaults& f = TheFake().faults;
  *error = comm->world->came < comm->world->size ? kInProgress : kSuccess;
  if (*error == kSuccess && comm->busy > 0) {
    if (--comm->busy == 0) std::exchange(comm->put, nullptr)();
    *error = comm->busy > 0 ? kInProgress : kSuccess;
  }
  if (*error == kSuccess && comm->rank == f.fail_rank) *error = f.async != kSuccess ? f.async : f.init;
  return kSuccess;
}
Result Gone(Comm* comm, bool abort) {
  std::lock_guard lock(TheFake().mutex);
  --TheFake().alive;
  TheFake().aborts += abort;
  *comm->aborted = true;
  delete comm;
  return kSuccess;
}

}  // namespace

const Api& FakeNccl() {
  static const Api api = [] {
    Api a;
    a.GetVersion = GetVersion;
    a.GetUniqueId = GetUniqueId;
    a.CommInitRankConfig = Init;
    a.CommGetAsyncError = GetAsyncError;
    a.CommFinalize = [](Comm*) { return kSuccess; };
    a.CommDestroy = [](Comm* c) { return Gone(c, false); };
    a.CommAbort = [](Comm* c) { return Gone(c, true); };
    a.AllGather = [](const void* from, void* to, size_t count, DataType, Comm* c, void* stream) {
      HF_CHECK(t_depth == 0);
      std::vector<Part> parts;
      for (int r = 0; r < c->world->size; ++r) {
        parts.push_back({true, Kind::kAllGather, r, const_cast<void*>(from), count * 4});
        parts.push_back({false, Kind::kAllGather, r, static_cast<std::byte*>(to) + static_cast<size_t>(r) * count * 4, count * 4});
      }
      return Enqueue(c, stream, std::move(parts));
    };
    a.Send = [](const void* from, size_t count, DataType, int peer, Comm* c, void* stream) {
      return Add(c, stream, {true, Kind::kPair, peer, const_cast<void*>(from), count * 4});
    };
    a.Recv = [](void* to, size_t count, DataType, int peer, Comm* c, void* stream) { return Add(c, stream, {false, Kind::kPair, peer, to, count * 4}); };
    a.GroupStart = [] {
      ++t_depth;
      return kSuccess;
    };
    a.GroupEnd = [] {
      HF_CHECK(t_depth == 1);
      t_depth = 0;
      Comm* comm = std::exchange(t_comm, nullptr);
      if (comm == nullptr) return kSuccess;
      return Enqueue(comm, t_stream, std::exchange(t_parts, {}));
    };
    a.GetErrorString = [](Result r) { return r == kSystemError ? "unhandled system error" : r == kRemoteError ? "remote process exited or there was a network error" : "an error"; };
    a.GetLastError = [](Comm*) { return "said by the fake"; };
    return a;
  }();
  return api;
}

void SetFakeNccl(const FakeNcclFaults& faults) {
  std::lock_guard lock(TheFake().mutex);
  TheFake().faults = faults;
}
int FakeNcclCommunicators() {
  std::lock_guard lock(TheFake().mutex);
  return TheFake().alive;
}
int FakeNcclAborts() {
  std::lock_guard lock(TheFake().mutex);
  return TheFake().aborts;
}

}  // namespace holdfast::test
