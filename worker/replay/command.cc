// Files and words around Replay.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <fmt/format.h>

#include "proto/base/exit_code.h"
#include "proto/base/version.h"
#include "worker/replay/replay.h"

namespace holdfast::replay {
namespace {

namespace fs = std::filesystem;

constexpr uintmax_t kMaxBytes = uintmax_t{1} << 30;

absl::StatusOr<ReplayReport> ReplayFile(const fs::path& path) {
  std::error_code ec;
  const uintmax_t size = fs::file_size(path, ec);
  if (ec) return absl::NotFoundError(fmt::format("{}: {}", path.string(), ec.message()));
  if (size > kMaxBytes) return absl::InvalidArgumentError(fmt::format("{}: {} bytes are more than any recording has", path.string(), size));
  std::ifstream file(path, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (!file.good() && !file.eof()) return absl::NotFoundError(fmt::format("cannot read {}", path.string()));
  return Replay(std::as_bytes(std::span(bytes)));
}

}  // namespace

absl::StatusOr<std::vector<NamedReport>> ReplayBundle(const std::string& path) {
  std::error_code ec;
  std::vector<fs::path> files;
  if (fs::is_directory(path, ec)) {
    for (const auto& entry : fs::directory_iterator(path, ec)) {
      const std::string name = entry.path().filename().string();
      if (name.rfind("replay-r", 0) == 0 && entry.path().extension() == ".log") files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    if (files.empty()) {
      return absl::NotFoundError(fmt::format("{} holds no replay-r*.log: the worker was lost before it had a scheduler, or this is no incident", path));
    }
  } else if (fs::exists(path, ec)) {
    files.emplace_back(path);
  } else {
    return absl::NotFoundError(fmt::format("{} does not exist; `holdfast ctl incidents` shows where the bundles are", path));
  }
  std::vector<NamedReport> reports;
  for (const fs::path& file : files) reports.push_back({file.string(), ReplayFile(file)});
  return reports;
}

std::string ToText(const NamedReport& named) {
  std::string out = named.path + "\n";
  if (!named.report.ok()) return out + fmt::format("  cannot be replayed: {}\n", std::string(named.report.status().message()));
  const ReplayReport& r = *named.report;
  out += fmt::format("  rank {} of generation {}: {} entries, {} requests\n", r.rank, r.generation, r.entries, r.requests);
  if (r.version != kVersion) {
    out += fmt::format("  recorded by version {}, replayed by {}: a scheduler that was changed in between decides differently\n", r.version, kVersion);
  }
  for (const std::string& finding : r.findings) out += fmt::format("  finding in the replay, {}\n", finding);
  if (r.divergence) {
    out += fmt::format("  the digest differs first at step {} (entry {}), after {} equal steps: {}\n", r.divergence->step, r.divergence->entry, r.steps,
                       r.divergence->what);
    return out;
  }
  if (r.unfinished) out += fmt::format("  step {} was running when the recording ended\n", *r.unfinished);
  if (r.full) out += "  the recording had no more room: what came later cannot be replayed\n";
  return out + fmt::format("  same digest, {} steps ({:016x})\n", r.steps, r.digest);
}

int ReplayCommand(int argc, const char* const* argv) {
  if (argc != 2 || std::strcmp(argv[1], "--help") == 0) {
    std::fputs("usage: holdfast replay BUNDLE\n"
               "  BUNDLE: an incident's folder (`holdfast ctl incidents` lists them) or a replay-r*.log in one\n"
               "  Runs scheduler and page ledger from what the worker recorded, without a model, and compares the digest at every step.\n"
               "  Exit status: 0 same digests, 1 they differ, 2 cannot be replayed\n",
               argc == 2 ? stdout : stderr);
    return argc == 2 ? 0 : static_cast<int>(ExitCode::kConfig);
  }
  const auto reports = ReplayBundle(argv[1]);
  if (!reports.ok()) {
    std::fprintf(stderr, "holdfast replay: %s\n", std::string(reports.status().message()).c_str());
    return 2;
  }
  int status = 0;
  for (const NamedReport& named : *reports) {
    std::fputs(ToText(named).c_str(), stdout);
    status = std::max(status, !named.report.ok() ? 2 : named.report->same() ? 0 : 1);
  }
  return status;
}

}  // namespace holdfast::replay
