#include "tests/support/simt/memory.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>

#include "proto/base/check.h"
#include "tests/support/simt/engine.h"

namespace simt {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kArena = size_t{256} << 30;
constexpr int kFill = 0xff;

size_t AlignUp(size_t v, size_t a) { return (v + a - 1) / a * a; }

struct Block {
  size_t bytes = 0;        // asked for
  size_t mapped = 0;       // from MapBegin on
  std::byte* map = nullptr;
};

struct Device {
  std::mutex mutex;
  std::byte* base = nullptr;
  size_t next = 0;                               // addresses are not used twice
  std::map<uintptr_t, Block> blocks;             // by the pointer handed out
  std::map<uintptr_t, size_t> freed;             // the last ones, for reports
  std::map<uintptr_t, size_t> reservations;
  std::map<uintptr_t, size_t> backed;            // virtual pages, merged per Map call
  size_t used = 0, capacity = size_t{4} << 30;
  bool open = true;

  std::byte* Take(size_t bytes) {
    if (base == nullptr) {
      void* p = mmap(nullptr, kArena, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      HF_CHECKF(p != MAP_FAILED, "no address space for an emulated device");
      base = static_cast<std::byte*>(p);
    }
    HF_CHECKF(next + bytes + kPage <= kArena, "the emulated device ran out of addresses");
    std::byte* p = base + next;
    next += bytes + kPage;
    return p;
  }
  void Back(std::byte* p, size_t bytes) {
    HF_CHECKF(mprotect(p, bytes, PROT_READ | PROT_WRITE) == 0, "no memory for {} bytes of an emulated device", bytes);
    memset(p, kFill, bytes);
    if (!open) mprotect(p, bytes, PROT_NONE);
  }
  void Drop(std::byte* p, size_t bytes) {
    void* again = mmap(p, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    HF_CHECK(again == p);
  }
  void Protect(int flags) {
    for (const auto& [at, b] : blocks) mprotect(b.map, b.mapped, flags);
    for (const auto& [at, n] : backed) mprotect(reinterpret_cast<void*>(at), n, flags);
  }
};

Device& TheDevice() {
  static Device* device = new Device;  // outlives what is destroyed at the end
  return *device;
}

}  // namespace

void* DeviceAllocate(size_t bytes) {
  Device& d = TheDevice();
  std::lock_guard lock(d.mutex);
  const size_t rounded = AlignUp(std::max<size_t>(bytes, 1), 64), mapped = AlignUp(rounded, kPage);
  if (d.used + mapped > d.capacity) return nullptr;
  std::byte* map = d.Take(mapped);
  d.Back(map, mapped);
  std::byte* p = map + mapped - rounded;
  d.blocks[reinterpret_cast<uintptr_t>(p)] = {bytes, mapped, map};
  d.used += mapped;
  return p;
}

bool DeviceFree(void* p) {
  Device& d = TheDevice();
  std::lock_guard lock(d.mutex);
  const auto it = d.blocks.find(reinterpret_cast<uintptr_t>(p));
  if (it == d.blocks.end()) return false;
  d.Drop(it->second.map, it->second.mapped);
  d.used -= it->second.mapped;
  if (d.freed.size() > 256) d.freed.clear();
  d.freed[it->first] = it->second.bytes;
  d.blocks.erase(it);
  return true;
}

bool IsDevice(const void* p) {
  const Device& d = TheDevice();
  const std::byte* at = static_cast<const std::byte*>(p);
  return d.base != nullptr && at >= d.base && at < d.base + kArena;
}

std::string DescribeAddress(const void* p) {
  Device& d = TheDevice();
  const uintptr_t at = reinterpret_cast<uintptr_t>(p);
  if (!IsDevice(p)) return fmt::format("{} is no address of the device", p);
  const auto near = [&](const auto& map, const auto& size, const char* what) -> std::string {
    auto it = map.upper_bound(at);
    if (it != map.begin()) {
      const auto& [begin, b] = *std::prev(it);
      const size_t n = size(b);
      if (at < begin + n) return fmt::format("byte {} of {} of {} bytes", at - begin, what, n);
      if (at - begin < n + (size_t{1} << 20)) return fmt::format("{} bytes beyond the end of {} of {} bytes", at - begin - n, what, n);
    }
    if (it != map.end() && it->first - at < (size_t{1} << 20)) {
      return fmt::format("{} bytes before {} of {} bytes", it->first - at, what, size(it->second));
    }
    return "";
  };
  const auto plain = [](size_t n) { return n; };
  for (const auto& [begin, n] : d.freed) {
    if (at >= begin && at < begin + n) return fmt::format("byte {} of freed memory of {} bytes", at - begin, n);
  }
  std::string text = near(d.blocks, [](const Block& b) { return b.bytes; }, "an allocation");
  if (text.empty() || text.find("beyond") != std::string::npos) {
    const std::string range = near(d.reservations, plain, "a reserved range, where nothing is backed,");
    if (range.starts_with("byte ")) text = range;
  }
  return text.empty() ? fmt::format("{} is of the device, but nothing is near", p) : text;
}

std::string CheckCanaries() {
  Device& d = TheDevice();
  std::lock_guard lock(d.mutex);
  std::string text;
  // Of [from, to): the first that is not as it was filled; mended, so that it is told once.
  const auto damaged = [](unsigned char* from, unsigned char* to) {
    unsigned char* bad = std::find_if(from, to, [](unsigned char c) { return c != kFill; });
    if (bad != to) memset(bad, kFill, static_cast<size_t>(to - bad));
    return bad;
  };
  for (const auto& [at, b] : d.blocks) {
    unsigned char* begin = reinterpret_cast<unsigned char*>(b.map);
    unsigned char* p = reinterpret_cast<unsigned char*>(at);
    unsigned char* end = begin + b.mapped;
    unsigned char* before = std::max(begin, p - 64);
    if (const auto* bad = damaged(p + b.bytes, end); bad != end) {
      text = fmt::format("byte {} beyond the end of an allocation of {} bytes was written", bad - (p + b.bytes), b.bytes);
    }
    if (const auto* bad = damaged(before, p); bad != p) {
      text = fmt::format("{} bytes before the begin of an allocation of {} bytes were written", p - bad, b.bytes);
    }
  }
  return text;
}

void OpenDevice() {
  Device& d = TheDevice();
  std::lock_guard lock(d.mutex);
  if (d.open) return;
  d.open = true;
  d.Protect(PROT_READ | PROT_WRITE);
}

void CloseDevice() {
  Device& d = TheDevice();
  std::lock_guard lock(d.mutex);
  if (!d.open) return;
  d.open = false;
  d.Protect(PROT_NONE);
}

void* VirtualReserve(size_t bytes) {
  Device& d = TheDevice();
  std::lock_guard lock(d.mutex);
  d.next = AlignUp(d.next, kVirtualPage);  // the arena begins at a page, which need not be a multiple of this: offsets are
  std::byte* p = d.Take(bytes);
  d.reservations[reinterpret_cast<uintptr_t>(p)] = bytes;
  return p;
}

bool VirtualRelease(void* p, size_t bytes) {
  Device& d = TheDevice();
  std::lock_guard lock(d.mutex);
  const auto it = d.reservations.find(reinterpret_cast<uintptr_t>(p));
  if (it == d.reservations.end() || it->second != bytes) return false;
  for (const auto& [at, n] : d.backed) {
    if (at >= it->first && at < it->first + bytes) return false;  // unmap first
  }
  d.reservations.erase(it);
  return true;
}

bool VirtualMap(void* p, size_t bytes) {
  Device& d = TheDevice();
  std::lock_guard lock(d.mutex);
  const uintptr_t at = reinterpret_cast<uintptr_t>(p);
  auto it = d.reservations.upper_bound(at);
  if (it == d.reservations.begin()) return false;
  --it;
  if (at + bytes > it->first + it->second || d.used + bytes > d.capacity) return false;
  const auto after = d.backed.lower_bound(at);
  if (after != d.backed.end() && after->first < at + bytes) return false;
  if (after != d.backed.begin() && std::prev(after)->first + std::prev(after)->second > at) return false;
  d.Back(static_cast<std::byte*>(p), bytes);
  d.backed[at] = bytes;
  d.used += bytes;
  return true;
}

bool VirtualUnmap(void* p, size_t bytes) {
  Device& d = TheDevice();
  std::lock_guard lock(d.mutex);
  const auto it = d.backed.find(reinterpret_cast<uintptr_t>(p));
  if (it == d.backed.end() || it->second != bytes) return false;
  d.Drop(static_cast<std::byte*>(p), bytes);
  d.used -= bytes;
  d.backed.erase(it);
  return true;
}

void SetDeviceBytes(size_t bytes) { TheDevice().capacity = bytes; }
size_t DeviceBytes() { return TheDevice().capacity; }
size_t DeviceBytesUsed() { return TheDevice().used; }

}  // namespace simt
