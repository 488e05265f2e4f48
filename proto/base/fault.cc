#include "proto/base/fault.h"

#include <signal.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <new>
#include <set>
#include <thread>

#include <fmt/format.h>

namespace holdfast {
namespace {

enum class Action { kExit, kAbort, kOom, kSleep, kStop, kHang, kFail };
struct Rule {
  std::string point;
  Action action;
  long argument = 0;
  unsigned long nth = 1;
  bool and_later = false;
  std::string trigger;  // a file; empty: by count
};

std::mutex mutex;
std::vector<Rule> rules;
std::map<std::string, unsigned long, std::less<>> hits;

bool ParseNumber(std::string_view text, long* out) {
  const auto r = std::from_chars(text.data(), text.data() + text.size(), *out);
  return r.ec == std::errc() && r.ptr == text.data() + text.size() && *out >= 0;
}

bool ParseRule(std::string_view text, Rule* rule) {
  const size_t a = text.find(':');
  if (a == std::string_view::npos || a == 0) return false;
  const size_t b = text.find(':', a + 1);
  rule->point = std::string(text.substr(0, a));
  std::string_view action = text.substr(a + 1, b == std::string_view::npos ? std::string_view::npos : b - a - 1);
  std::string_view nth = b == std::string_view::npos ? "1" : text.substr(b + 1);
  std::string_view argument;
  if (const size_t eq = action.find('='); eq != std::string_view::npos) {
    argument = action.substr(eq + 1);
    action = action.substr(0, eq);
  }
  if (action == "exit") rule->action = Action::kExit;
  else if (action == "abort") rule->action = Action::kAbort;
  else if (action == "oom") rule->action = Action::kOom;
  else if (action == "sleep") rule->action = Action::kSleep;
  else if (action == "stop") rule->action = Action::kStop;
  else if (action == "hang") rule->action = Action::kHang;
  else if (action == "fail") rule->action = Action::kFail;
  else return false;
  if ((rule->action == Action::kExit || rule->action == Action::kSleep) && !ParseNumber(argument, &rule->argument)) return false;
  if (const size_t at = nth.find('@'); at != std::string_view::npos) {
    rule->trigger = std::string(nth.substr(at + 1));
    if (rule->trigger.empty()) return false;
    nth = at == 0 ? "1" : nth.substr(0, at);
  }
  if (!nth.empty() && nth.back() == '+') {
    rule->and_later = true;
    nth.remove_suffix(1);
  }
  long n = 0;
  if (!ParseNumber(nth, &n) || n < 1) return false;
  rule->nth = static_cast<unsigned long>(n);
  return true;
}

}  // namespace

namespace fault_internal {

std::atomic<bool> armed{false};

bool Hit(std::string_view point) {
  Rule todo;
  bool found = false;
  {
    std::lock_guard lock(mutex);
    auto it = hits.find(point);
    if (it == hits.end()) it = hits.emplace(std::string(point), 0).first;
    const unsigned long n = ++it->second;
    for (const Rule& rule : rules) {
      if (rule.point != point) continue;
      // Whoever removes the file acts: one process, once.
      const bool due = rule.trigger.empty() ? n == rule.nth || (rule.and_later && n > rule.nth)
                                            : n >= rule.nth && ::unlink(rule.trigger.c_str()) == 0;
      if (due) {
        todo = rule;
        found = true;
        break;
      }
    }
  }
  if (!found) return false;
  switch (todo.action) {
    case Action::kExit: ::_exit(static_cast<int>(todo.argument));
    case Action::kAbort: std::abort();
    case Action::kOom: throw std::bad_alloc();
    case Action::kSleep: std::this_thread::sleep_for(std::chrono::milliseconds(todo.argument)); return false;
    case Action::kStop: ::raise(SIGSTOP); return false;
    case Action::kHang:
      for (;;) std::this_thread::sleep_for(std::chrono::hours(1));
    case Action::kFail: return true;
  }
  return false;
}

}  // namespace fault_internal

bool InitFaults(std::string* error, int rank, unsigned long generation) {
  const char* text = std::getenv("HOLDFAST_FAULT");
  if (text == nullptr || *text == 0) return true;
  const char* only_rank = std::getenv("HOLDFAST_FAULT_RANK");
  if (only_rank != nullptr && *only_rank != 0 && std::atoi(only_rank) != rank) return true;
  const char* only_generation = std::getenv("HOLDFAST_FAULT_GENERATION");
  if (only_generation != nullptr && *only_generation != 0 && std::strtoul(only_generation, nullptr, 10) != generation) return true;
  std::string_view rest = text;
  std::lock_guard lock(mutex);
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string_view one = rest.substr(0, comma);
    Rule rule;
    if (!ParseRule(one, &rule)) {
      if (error) *error = fmt::format("HOLDFAST_FAULT: cannot read {:?}; expected point:action:nth", std::string(one));
      return false;
    }
    rules.push_back(rule);
    rest = comma == std::string_view::npos ? std::string_view{} : rest.substr(comma + 1);
  }
  fault_internal::armed.store(!rules.empty());
  return true;
}

std::vector<std::string> FaultPointsSeen() {
  std::lock_guard lock(mutex);
  std::vector<std::string> out;
  for (const auto& [name, count] : hits) out.push_back(name);
  return out;
}

}  // namespace holdfast
