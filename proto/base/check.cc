#include "proto/base/check.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>

namespace holdfast {
namespace {
std::atomic<void (*)(const char*)> crash_hook{nullptr};
}

void SetCrashHook(void (*hook)(const char*)) { crash_hook.store(hook); }

void CheckFailed(const char* file, int line, const char* expression, const std::string& message) {
  const std::string text = fmt::format("CHECK failed at {}:{}: {}{}{}\n", file, line, expression, message.empty() ? "" : ": ", message);
  std::fputs(text.c_str(), stderr);
  std::fflush(stderr);
  if (auto* hook = crash_hook.exchange(nullptr)) hook(text.c_str());
  std::abort();
}

}  // namespace holdfast
