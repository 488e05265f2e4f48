#include "supervisor/incident.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <fstream>

#include <fmt/format.h>
#include <rapidjson/document.h>

#include "proto/base/fault.h"
#include "proto/base/log.h"

namespace holdfast::supervisor {
namespace {

namespace fs = std::filesystem;

std::string Quoted(std::string_view text) {
  std::string out = "\"";
  AppendJsonEscaped(text, &out);
  out.push_back('"');
  return out;
}

std::string List(const std::vector<std::string>& items) {
  std::string out = "[";
  for (size_t i = 0; i < items.size(); ++i) out += (i == 0 ? "" : ", ") + Quoted(items[i]);
  return out + "]";
}

std::string Json(const IncidentInput& in) {
  const Loss& l = in.loss;
  std::string out = "{\n";
  const auto text = [&out](std::string_view key, std::string_view value) { out += fmt::format("  \"{}\": {},\n", key, Quoted(value)); };
  const auto number = [&out](std::string_view key, auto value) { out += fmt::format("  \"{}\": {},\n", key, value); };
  text("cause", LossCauseName(l.cause));
  text("phase", l.phase);
  text("detail", l.detail);
  text("exit", l.exit_known ? ToText(l.exit) : "not known");
  number("generation", l.generation.v);
  number("rank", l.rank.v);
  number("last_step", l.last_step);
  number("unix_ms", in.unix_ms);
  number("safe_profile", l.safe_profile);
  text("worker_message", in.failure_message);
  text("version", in.version);
  out += fmt::format("  \"findings\": {},\n", List(in.findings));
  out += fmt::format("  \"requests_in_flight\": {},\n", List(in.requests));
  out += fmt::format("  \"command_line\": {}\n}}\n", List(in.command_line));
  return out;
}

// The written part of a recording. Its writer may still be running, or have been killed anywhere.
bool CopyRecording(int fd, uint64_t most, const std::string& path) {
  uint64_t used = 0;
  struct stat st{};
  if (::pread(fd, &used, sizeof used, 8) != static_cast<ssize_t>(sizeof used) || ::fstat(fd, &st) != 0) return true;
  if (used == 0 || used > most || used > static_cast<uint64_t>(st.st_size)) return true;
  std::ofstream file(path, std::ios::binary);
  std::vector<char> block(256 << 10);
  for (uint64_t at = 0; at < used;) {
    const ssize_t n = ::pread(fd, block.data(), static_cast<size_t>(std::min<uint64_t>(block.size(), used - at)), static_cast<off_t>(at));
    if (n <= 0) return false;
    if (at == 0 && n >= 16) std::memcpy(block.data() + 8, &used, sizeof used);  // as it was when we looked
    file.write(block.data(), n);
    at += static_cast<uint64_t>(n);
  }
  file.flush();
  return file.good();
}

uint64_t BytesOf(const fs::path& folder) {
  uint64_t total = 0;
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator(folder, ec)) {
    const auto n = entry.file_size(ec);
    if (!ec) total += n;
  }
  return total;
}

std::vector<fs::path> Bundles(const std::string& folder) {
  std::vector<fs::path> out;
  std::error_code ec;
  for (const auto& entry : fs::directory_iterator(folder, ec)) {
    if (entry.is_directory(ec)) out.push_back(entry.path());
  }
  std::sort(out.begin(), out.end());  // the names begin with the time
  return out;
}

// A bundle of an earlier supervisor. Its name is 20261130T001500.123Z-g0003-r0-signal; the file inside knows more.
IncidentSummary FromFolder(const fs::path& folder) {
  IncidentSummary s;
  s.id = folder.filename().string();
  s.path = folder.string();
  unsigned long long generation = 0;
  unsigned rank = 0;
  int rest = 0;
  const size_t g = s.id.find("-g");
  if (g != std::string::npos && std::sscanf(s.id.c_str() + g, "-g%llu-r%u-%n", &generation, &rank, &rest) == 2 && rest > 0) {
    s.generation = generation;
    s.rank = rank;
    s.cause = s.id.substr(g + static_cast<size_t>(rest));
  }
  std::error_code ec;
  constexpr uintmax_t kMost = 4 << 20;
  const auto size = fs::file_size(folder / "incident.json", ec);
  if (ec || size > kMost) return s;
  std::ifstream file(folder / "incident.json", std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  rapidjson::Document json;
  if (json.Parse<rapidjson::kParseIterativeFlag>(text.data(), text.size()).HasParseError() || !json.IsObject()) return s;
  const auto word = [&](const char* key, std::string* out) {
    if (const auto it = json.FindMember(key); it != json.MemberEnd() && it->value.IsString()) *out = it->value.GetString();
  };
  const auto number = [&](const char* key, auto* out) {
    if (const auto it = json.FindMember(key); it != json.MemberEnd() && it->value.IsUint64()) *out = static_cast<std::decay_t<decltype(*out)>>(it->value.GetUint64());
  };
  word("cause", &s.cause);
  word("phase", &s.phase);
  word("detail", &s.detail);
  number("generation", &s.generation);
  number("rank", &s.rank);
  number("unix_ms", &s.unix_ms);
  return s;
}

}  // namespace

absl::StatusOr<IncidentSummary> IncidentStore::Write(const IncidentInput& in) {
  const std::time_t seconds = static_cast<std::time_t>(in.unix_ms / 1000);
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  IncidentSummary summary;
  summary.id = fmt::format("{:04}{:02}{:02}T{:02}{:02}{:02}.{:03}Z-g{:04}-r{}-{}", utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday,
                           utc.tm_hour, utc.tm_min, utc.tm_sec, in.unix_ms % 1000, in.loss.generation.v, in.loss.rank.v,
                           LossCauseName(in.loss.cause));
  summary.path = folder_ + "/" + summary.id;
  summary.unix_ms = in.unix_ms;
  summary.generation = in.loss.generation.v;
  summary.rank = in.loss.rank.v;
  summary.cause = std::string(LossCauseName(in.loss.cause));
  summary.phase = in.loss.phase;
  summary.detail = in.loss.detail;
  // Listed whether or not the disk takes it: S8 survives a full disk as far as it can.
  written_.push_back(summary);
  if (written_.size() > options_.max_bundles) written_.erase(written_.begin());

  std::error_code ec;
  if (FaultPoint("supervisor.incident")) return absl::UnavailableError("fault point supervisor.incident");
  fs::create_directories(summary.path, ec);
  if (ec) return absl::UnavailableError(fmt::format("cannot make {}: {}", summary.path, ec.message()));
  fs::permissions(folder_, fs::perms::owner_all, ec);
  bool ok = true;
  const auto put = [&](const std::string& name, const std::string& content) {
    std::ofstream file(summary.path + "/" + name, std::ios::binary);
    file << content;
    file.flush();
    ok = ok && file.good();
  };
  put("incident.json", Json(in));
  for (size_t r = 0; r < in.log_lines.size(); ++r) {
    std::string content;
    for (const std::string& line : in.log_lines[r]) content += line + "\n";
    put(fmt::format("log-r{}.txt", r), content);
  }
  for (size_t r = 0; r < in.flight_records.size(); ++r) {
    const auto bytes = fs::file_size(in.flight_records[r], ec);
    if (ec || bytes > options_.max_flight_bytes) continue;
    fs::rename(in.flight_records[r], summary.path + fmt::format("/flight-r{}.bin", r), ec);
  }
  for (size_t r = 0; r < in.recordings.size(); ++r) {
    if (in.recordings[r] < 0) continue;
    ok = CopyRecording(in.recordings[r], options_.max_replay_bytes, summary.path + fmt::format("/replay-r{}.log", r)) && ok;
  }
  Trim();
  if (!ok) return absl::UnavailableError(fmt::format("cannot write all of {}: disk full?", summary.path));
  return summary;
}

void IncidentStore::Trim() const {
  std::vector<fs::path> bundles = Bundles(folder_);
  std::vector<uint64_t> bytes;
  uint64_t total = 0;
  for (const fs::path& b : bundles) total += bytes.emplace_back(BytesOf(b));
  for (size_t i = 0; i + 1 < bundles.size(); ++i) {  // the newest stays in any case
    if (bundles.size() - i <= options_.max_bundles && total <= options_.max_total_bytes) break;
    std::error_code ec;
    fs::remove_all(bundles[i], ec);
    total -= bytes[i];
  }
}

std::vector<IncidentSummary> IncidentStore::List(size_t limit) const {
  std::vector<IncidentSummary> out(written_.rbegin(), written_.rend());
  const std::vector<fs::path> bundles = Bundles(folder_);
  for (auto it = bundles.rbegin(); it != bundles.rend(); ++it) {
    const std::string id = it->filename().string();
    if (std::any_of(out.begin(), out.end(), [&](const IncidentSummary& s) { return s.id == id; })) continue;
    if (out.size() >= limit) break;
    out.push_back(FromFolder(*it));
  }
  if (out.size() > limit) out.resize(limit);
  return out;
}

}  // namespace holdfast::supervisor
