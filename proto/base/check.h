#pragma once
// HF_CHECK: for the impossible. It logs file, line and the message, runs the crash hook once, and aborts (SIGABRT), so that the
// supervisor sees a signal, writes an incident and starts a new generation. Never use it for input, files, peers or exhaustion.
#include <fmt/format.h>

#include <string>

namespace holdfast {

[[noreturn]] void CheckFailed(const char* file, int line, const char* expression, const std::string& message);

// Called once, before aborting, with the whole message (the worker flushes its flight recorder). Must be async-signal tolerant.
void SetCrashHook(void (*hook)(const char* message));

}  // namespace holdfast

#define HF_CHECK(cond)                                                             \
  do {                                                                             \
    if (!(cond)) [[unlikely]] ::holdfast::CheckFailed(__FILE__, __LINE__, #cond, {}); \
  } while (0)

// HF_CHECKF(cond, "page {} of {}", p, n)
#define HF_CHECKF(cond, ...)                                                                               \
  do {                                                                                                     \
    if (!(cond)) [[unlikely]] ::holdfast::CheckFailed(__FILE__, __LINE__, #cond, ::fmt::format(__VA_ARGS__)); \
  } while (0)
