#include "proto/base/log.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <ctime>

namespace holdfast {
namespace {

std::atomic<LogLevel> min_level{LogLevel::kInfo};
std::string& ContextText() {  // ready-made JSON members, ",\"process\":\"worker\",..."
  static std::string text;
  return text;
}

// Length of the valid UTF-8 sequence at s[i], or 0.
size_t Utf8Length(std::string_view s, size_t i) {
  const auto byte = [&](size_t k) { return static_cast<unsigned char>(s[k]); };
  const unsigned char c = byte(i);
  const auto cont = [&](size_t k, unsigned char lo = 0x80, unsigned char hi = 0xBF) { return k < s.size() && byte(k) >= lo && byte(k) <= hi; };
  if (c < 0x80) return 1;
  if (c >= 0xC2 && c <= 0xDF) return cont(i + 1) ? 2 : 0;
  if (c == 0xE0) return cont(i + 1, 0xA0) && cont(i + 2) ? 3 : 0;
  if (c == 0xED) return cont(i + 1, 0x80, 0x9F) && cont(i + 2) ? 3 : 0;
  if (c >= 0xE1 && c <= 0xEF) return cont(i + 1) && cont(i + 2) ? 3 : 0;
  if (c == 0xF0) return cont(i + 1, 0x90) && cont(i + 2) && cont(i + 3) ? 4 : 0;
  if (c >= 0xF1 && c <= 0xF3) return cont(i + 1) && cont(i + 2) && cont(i + 3) ? 4 : 0;
  if (c == 0xF4) return cont(i + 1, 0x80, 0x8F) && cont(i + 2) && cont(i + 3) ? 4 : 0;
  return 0;
}

void AppendField(const LogField& field, std::string* out) {
  out->append(",\"");
  AppendJsonEscaped(field.key, out);
  out->append("\":");
  struct Visitor {
    std::string* out;
    void operator()(int64_t v) const { fmt::format_to(std::back_inserter(*out), "{}", v); }
    void operator()(uint64_t v) const { fmt::format_to(std::back_inserter(*out), "{}", v); }
    void operator()(double v) const {
      if (std::isfinite(v)) fmt::format_to(std::back_inserter(*out), "{}", v);
      else out->append("null");
    }
    void operator()(bool v) const { out->append(v ? "true" : "false"); }
    void operator()(const std::string& v) const {
      out->push_back('"');
      AppendJsonEscaped(v, out);
      out->push_back('"');
    }
  };
  std::visit(Visitor{out}, field.value);
}

}  // namespace

void AppendJsonEscaped(std::string_view s, std::string* out) {
  static constexpr char kHex[] = "0123456789abcdef";
  for (size_t i = 0; i < s.size();) {
    const unsigned char c = static_cast<unsigned char>(s[i]);
    if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(static_cast<char>(c));
      ++i;
    } else if (c == '\n') {
      out->append("\\n");
      ++i;
    } else if (c < 0x20 || c == 0x7F) {
      out->append("\\u00");
      out->push_back(kHex[c >> 4]);
      out->push_back(kHex[c & 15]);
      ++i;
    } else if (const size_t n = Utf8Length(s, i)) {
      out->append(s.substr(i, n));
      i += n;
    } else {
      out->append("\xEF\xBF\xBD");
      ++i;
    }
  }
}

bool ParseLogLevel(std::string_view text, LogLevel* level) {
  static constexpr std::string_view kNames[] = {"debug", "info", "warn", "error", "off"};
  for (int i = 0; i < 5; ++i) {
    if (text == kNames[i]) {
      *level = static_cast<LogLevel>(i);
      return true;
    }
  }
  return false;
}

void SetLogLevel(LogLevel level) { min_level.store(level, std::memory_order_relaxed); }
LogLevel GetLogLevel() { return min_level.load(std::memory_order_relaxed); }

void SetLogContext(std::string process, std::initializer_list<LogField> fields) {
  std::string text;
  AppendField(LogField("process", std::move(process)), &text);
  for (const LogField& field : fields) AppendField(field, &text);
  ContextText() = std::move(text);
}

void WriteLog(LogLevel level, std::initializer_list<LogField> fields, std::string_view message) {
  static constexpr const char* kNames[] = {"debug", "info", "warn", "error", "off"};
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  const auto millis = std::chrono::duration_cast<std::chrono::milliseconds>(now.time_since_epoch()).count() % 1000;
  std::tm utc{};
  gmtime_r(&seconds, &utc);
  std::string line = fmt::format("{{\"ts\":\"{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z\",\"level\":\"{}\"", utc.tm_year + 1900,
                                 utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec, millis, kNames[static_cast<int>(level)]);
  line += ContextText();
  for (const LogField& field : fields) AppendField(field, &line);
  line += ",\"msg\":\"";
  AppendJsonEscaped(message, &line);
  line += "\"}\n";
  // A full pipe or a closed stderr must not stop the server: what cannot be written is dropped.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace holdfast
