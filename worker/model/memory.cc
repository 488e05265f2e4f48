#include "worker/model/memory.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <cstdio>
#include <fstream>
#include <optional>
#include <sstream>

namespace holdfast::model {
namespace {

std::optional<uint64_t> ReadNumber(const std::string& path) {
  std::ifstream in(path);
  uint64_t v = 0;
  if (!(in >> v)) return std::nullopt;  // also "max"
  return v;
}

// Value in bytes of a "Name:  123 kB" line.
std::optional<uint64_t> ProcField(const char* path, const std::string& name) {
  std::ifstream in(path);
  std::string line;
  while (std::getline(in, line)) {
    if (line.rfind(name + ":", 0) != 0) continue;
    uint64_t kb = 0;
    if (sscanf(line.c_str() + name.size() + 1, "%lu", &kb) == 1) return kb * 1024;
  }
  return std::nullopt;
}

// Page cache of files counts as used in memory.current but can be reclaimed.
uint64_t Reclaimable(const std::string& stat_path, const std::string& key) {
  std::ifstream in(stat_path);
  std::string name;
  uint64_t v = 0;
  while (in >> name >> v) {
    if (name == key) return v;
  }
  return 0;
}

void Limit(MemoryRoom* room, uint64_t bytes, const std::string& by) {
  if (bytes >= room->bytes) return;
  room->bytes = bytes;
  room->limited_by = by;
}

void LimitByCgroups(MemoryRoom* room) {
  std::ifstream in("/proc/self/cgroup");
  std::string line;
  while (std::getline(in, line)) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    std::string path = line.substr(second + 1);
    const bool v2 = controllers.empty();
    if (!v2 && controllers.find("memory") == std::string::npos) continue;
    const std::string root = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    // Every ancestor may hold the limit that bites.
    while (true) {
      const std::string dir = path == "/" ? root : root + path;
      const auto limit = ReadNumber(dir + (v2 ? "/memory.max" : "/memory.limit_in_bytes"));
      const auto used = ReadNumber(dir + (v2 ? "/memory.current" : "/memory.usage_in_bytes"));
      if (limit && used && *limit < (uint64_t{1} << 60)) {
        const uint64_t reclaimable = Reclaimable(dir + "/memory.stat", v2 ? "inactive_file" : "total_inactive_file");
        const uint64_t held = *used > reclaimable ? *used - reclaimable : 0;
        Limit(room, *limit > held ? *limit - held : 0, "the memory limit of cgroup " + dir);
      }
      if (path == "/" || path.empty()) break;
      const size_t slash = path.rfind('/');
      path = slash == 0 || slash == std::string::npos ? "/" : path.substr(0, slash);
    }
  }
}

}  // namespace

std::string BytesText(uint64_t bytes) {
  if (bytes >= uint64_t{1} << 30) return fmt::format("{:.1f} GiB", static_cast<double>(bytes) / (uint64_t{1} << 30));
  if (bytes >= uint64_t{1} << 20) return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (uint64_t{1} << 20));
  return fmt::format("{} bytes", bytes);
}

MemoryRoom AvailableMemory() {
  MemoryRoom room;
  if (const auto available = ProcField("/proc/meminfo", "MemAvailable")) Limit(&room, *available, "MemAvailable");
  LimitByCgroups(&room);
  rlimit limit{};
  if (getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    const uint64_t used = ProcField("/proc/self/status", "VmSize").value_or(0);
    Limit(&room, limit.rlim_cur > used ? limit.rlim_cur - used : 0, "RLIMIT_AS");
  }
  return room;
}

absl::Status RequireMemory(uint64_t bytes, const std::string& what) {
  const MemoryRoom room = AvailableMemory();
  if (bytes <= room.bytes) return absl::OkStatus();
  return absl::ResourceExhaustedError(fmt::format("{} needs {}, but {} leaves {}", what, BytesText(bytes), room.limited_by, BytesText(room.bytes)));
}

}  // namespace holdfast::model
