#pragma once
// A Finding is suspect internal state: not an input error (absl::Status) and not the impossible (HF_CHECK), but a ledger that
// disagrees with itself, a stale handle, a digest that differs. It is reported, counted and contained; it never asserts.
#include <cstdint>
#include <string>
#include <string_view>

namespace holdfast {

enum class Severity : uint8_t {
  kSuspect = 0,     // count it, audit more often, go on
  kPage = 1,        // quarantine the page, go on
  kSequence = 2,    // that request is replayed; the others go on
  kStructural = 3,  // exit 70: the group restarts and every stream resumes
};

std::string_view SeverityName(Severity severity);

struct Finding {
  Severity severity{};
  const char* kind = "";      // a fixed, short, lower-case name: it becomes a metric label
  std::string detail;         // numbers for people: page, generation, owner, step
};

// Where pure code reports findings. Owned by the worker's loop thread; implementations must not throw and must not re-enter.
class FindingSink {
 public:
  virtual ~FindingSink() = default;
  virtual void Report(Finding finding) = 0;
};

}  // namespace holdfast
