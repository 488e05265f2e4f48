#pragma once
// JSON log lines on stderr, one object a line, written with one write(2) so that lines of several processes do not mix.
//   LogInfo({{"generation", 3}, {"rank", 0}}, "loaded {} tensors in {} ms", n, ms);
// Thread-safe. Fields hold what machines search for (request, generation, rank); the message is for people.
#include <fmt/format.h>

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <variant>

namespace holdfast {

enum class LogLevel : uint8_t { kDebug = 0, kInfo = 1, kWarn = 2, kError = 3, kOff = 4 };

struct LogField {
  std::string_view key;
  std::variant<int64_t, uint64_t, double, bool, std::string> value;

  LogField(std::string_view k, int v) : key(k), value(static_cast<int64_t>(v)) {}
  LogField(std::string_view k, int64_t v) : key(k), value(v) {}
  LogField(std::string_view k, uint32_t v) : key(k), value(static_cast<uint64_t>(v)) {}
  LogField(std::string_view k, uint64_t v) : key(k), value(v) {}
  LogField(std::string_view k, double v) : key(k), value(v) {}
  LogField(std::string_view k, bool v) : key(k), value(v) {}
  LogField(std::string_view k, std::string v) : key(k), value(std::move(v)) {}
  LogField(std::string_view k, std::string_view v) : key(k), value(std::string(v)) {}
  LogField(std::string_view k, const char* v) : key(k), value(std::string(v)) {}
};

bool ParseLogLevel(std::string_view text, LogLevel* level);  // debug|info|warn|error|off
void SetLogLevel(LogLevel level);
LogLevel GetLogLevel();

// Fields added to every line of this process ("process", "rank", "generation"). Call before threads start.
void SetLogContext(std::string process, std::initializer_list<LogField> fields = {});

// Lower level: writes the line whatever the level. `fields` may be empty.
void WriteLog(LogLevel level, std::initializer_list<LogField> fields, std::string_view message);

// Appends s to out as the inside of a JSON string (RFC 8259; invalid UTF-8 bytes become U+FFFD).
void AppendJsonEscaped(std::string_view s, std::string* out);

template <class... Args>
void LogAt(LogLevel level, std::initializer_list<LogField> fields, fmt::format_string<Args...> format, Args&&... args) {
  if (level < GetLogLevel()) return;
  WriteLog(level, fields, fmt::format(format, std::forward<Args>(args)...));
}

#define HF_LOG_LEVEL_(name, level)                                                                               \
  template <class... Args>                                                                                      \
  void name(std::initializer_list<LogField> fields, fmt::format_string<Args...> format, Args&&... args) {       \
    LogAt(level, fields, format, std::forward<Args>(args)...);                                                  \
  }                                                                                                             \
  template <class... Args>                                                                                      \
  void name(fmt::format_string<Args...> format, Args&&... args) {                                               \
    LogAt(level, {}, format, std::forward<Args>(args)...);                                                      \
  }
HF_LOG_LEVEL_(LogDebug, LogLevel::kDebug)
HF_LOG_LEVEL_(LogInfo, LogLevel::kInfo)
HF_LOG_LEVEL_(LogWarn, LogLevel::kWarn)
HF_LOG_LEVEL_(LogError, LogLevel::kError)
#undef HF_LOG_LEVEL_

}  // namespace holdfast
