#pragma once
// Why a generation of the worker group ended, in the words that metrics, incidents and health use. Plain data.
#include <cstdint>
#include <string>
#include <string_view>

#include "proto/base/ids.h"

namespace holdfast::supervisor {

enum class LossCause : uint8_t {
  kNone = 0,
  kSignal,         // a rank was killed by a signal we did not send
  kIntegrity,      // exit 70 or a structural finding
  kDevice,         // exit 71
  kDeviceBusy,     // exit 72
  kPeerLost,       // exit 74, and no peer is to blame
  kFenced,         // exit 75 of the current generation
  kExit,           // any other exit nobody asked for
  kEnvironment,    // exit 69: memory, descriptors
  kLinkLost,       // the stream closed while the process lives on
  kAttachTimeout,  // spawned, but never said Hello
  kLoadTimeout,    // loading or warming without progress
  kHang,           // a step, or requests without a step, for too long
  kSilent,         // no heartbeat
  kConfig,         // exit 64
  kModel,          // exit 65
  kSpawn,          // the binary cannot be executed
  kOperator,       // asked for; not a fault
};
inline constexpr int kLossCauses = static_cast<int>(LossCause::kOperator) + 1;

std::string_view LossCauseName(LossCause cause);  // lower case with underscores: a metric label

// How a process ended.
struct ExitStatus {
  bool signalled = false;
  int code = 0;  // the exit code, or the signal's number
};
std::string ToText(ExitStatus status);  // "exit 70 (integrity)", "signal 9"

// What an unexpected end means by itself.
LossCause CauseOf(ExitStatus status);

struct Loss {
  LossCause cause = LossCause::kNone;
  Rank rank;             // who is to blame
  Generation generation;
  std::string phase;     // state of the group when it was lost
  std::string detail;
  ExitStatus exit;       // of `rank`, when known
  bool exit_known = false;
  uint64_t last_step = 0;
  bool safe_profile = false;
};

}  // namespace holdfast::supervisor
