#pragma once
// Fault points, compiled into every build and off unless HOLDFAST_FAULT is set:
//   HOLDFAST_FAULT="worker.step:exit=70:3,worker.load:sleep=500:1+"
// point:action:nth - the nth hit (1-based) of the point does the action; "n+" means the nth and every later one. Actions: exit=CODE,
// abort, oom (std::bad_alloc is thrown), sleep=MILLISECONDS, stop (SIGSTOP to itself), hang (for ever), fail (the call returns true and the caller takes its error
// path). "n@FILE" in place of nth: from the nth hit on (no number: from the first) the first one while FILE exists, and acting removes FILE;
// so a test says when, and the next process is spared. With HOLDFAST_FAULT_RANK=r only the worker of that rank is hit; HOLDFAST_FAULT_GENERATION=g only that generation. An
// unused point costs one relaxed load.
#include <atomic>
#include <string>
#include <string_view>
#include <vector>

namespace holdfast {

// Reads the environment once; call from main before threads start. False and a message when the text cannot be parsed.
bool InitFaults(std::string* error, int rank = -1, unsigned long generation = 0);

// Names of all points hit so far, for the Nth-hit loop of the tests.
std::vector<std::string> FaultPointsSeen();

namespace fault_internal {
extern std::atomic<bool> armed;
bool Hit(std::string_view point);
}  // namespace fault_internal

// True when the caller should fail here. Other actions happen inside.
inline bool FaultPoint(std::string_view point) {
  if (!fault_internal::armed.load(std::memory_order_relaxed)) [[likely]] return false;
  return fault_internal::Hit(point);
}

}  // namespace holdfast
