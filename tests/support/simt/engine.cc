#include "tests/support/simt/engine.h"

#include <fmt/format.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <utility>

#include "tests/support/simt/machine.h"
#include "tests/support/simt/memory.h"

namespace simt {
namespace {

struct Catcher {
  std::mutex mutex;
  int depth = 0;
  std::vector<std::string> reports;
};
Catcher& TheCatcher() {
  static Catcher* c = new Catcher;
  return *c;
}

Options g_options;
std::atomic<bool> g_faulted{false};

}  // namespace

void Publish(const std::string& text) {
  Catcher& c = TheCatcher();
  std::lock_guard lock(c.mutex);
  g_faulted = true;
  if (c.depth > 0) {
    c.reports.push_back(text);
    return;
  }
  fmt::print(stderr, "simt: {}\n", text);
  fflush(stderr);
  abort();
}

std::string At(const Where& w) {
  std::string_view file = w.file_name();
  if (const size_t cut = file.rfind('/'); cut != file.npos) file.remove_prefix(cut + 1);
  return fmt::format("{}:{}", file, w.line());
}

constinit thread_local Place* g_place = nullptr;

void Configure(const Options& options) {
  g_options = options;
  options.protect ? CloseDevice() : OpenDevice();
}
const Options& Configuration() { return g_options; }

CatchReports::CatchReports() {
  std::lock_guard lock(TheCatcher().mutex);
  ++TheCatcher().depth;
}
CatchReports::~CatchReports() {
  Take();
  std::lock_guard lock(TheCatcher().mutex);
  --TheCatcher().depth;
}
std::vector<std::string> CatchReports::Take() {
  std::lock_guard lock(TheCatcher().mutex);
  g_faulted = false;
  return std::exchange(TheCatcher().reports, {});
}
bool Faulted() { return g_faulted; }
void ClearFault() { g_faulted = false; }

bool GuardedCopy(void* dst, const void* src, size_t bytes) {
  OpenDevice();
  const bool faulted = HostFaults([&] { memmove(dst, src, bytes); });
  if (g_options.protect) CloseDevice();
  if (!faulted) return true;
  const auto say = [&](const void* p) {
    const std::byte* last = static_cast<const std::byte*>(p) + bytes - 1;
    return IsDevice(p) ? fmt::format("device memory: {}, up to {}", DescribeAddress(p), DescribeAddress(last)) : std::string("host memory");
  };
  Publish(fmt::format("a copy of {} bytes from {} to {}", bytes, say(src), say(dst)));
  return false;
}

void CheckMemory(const std::string& when) {
  OpenDevice();
  const std::string bad = CheckCanaries();
  if (g_options.protect) CloseDevice();
  if (!bad.empty()) Publish(fmt::format("{}: {}", when, bad));
}

void RunLaunch(const LaunchSpec& spec) {
  static std::mutex* one = new std::mutex;
  std::lock_guard lock(*one);
  if (Faulted()) return;
  const uint64_t threads = uint64_t{spec.block.x} * spec.block.y * spec.block.z;
  if (threads == 0 || threads > kMostThreads || spec.block.z > 64 || spec.grid.x == 0 || spec.grid.x > INT32_MAX || spec.grid.y == 0 ||
      spec.grid.y > 65535 || spec.grid.z == 0 || spec.grid.z > 65535 || spec.shared_bytes > kMostShared) {
    Publish(fmt::format("{}: no device takes a grid of ({},{},{}) blocks of ({},{},{}) threads with {} bytes of shared memory", NameOfFunction(spec.kernel),
                        spec.grid.x, spec.grid.y, spec.grid.z, spec.block.x, spec.block.y, spec.block.z, spec.shared_bytes));
    return;
  }
  Handlers handlers;
  OpenDevice();
  Engine::OfThisThread().Run(spec);
  if (g_options.protect) CloseDevice();
}

}  // namespace simt
