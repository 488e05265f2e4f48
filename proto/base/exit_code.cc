#include "proto/base/exit_code.h"

#include <unistd.h>

#include <cstdio>

namespace holdfast {

std::string_view ExitCodeName(ExitCode code) {
  switch (code) {
    case ExitCode::kOk: return "ok";
    case ExitCode::kConfig: return "bad configuration";
    case ExitCode::kModel: return "unusable model";
    case ExitCode::kEnvironment: return "environment";
    case ExitCode::kIntegrity: return "integrity";
    case ExitCode::kDevice: return "device error";
    case ExitCode::kDeviceBusy: return "device busy";
    case ExitCode::kSupervisorGone: return "supervisor vanished";
    case ExitCode::kPeerLost: return "peer lost";
    case ExitCode::kFenced: return "fenced";
  }
  return "unknown exit code";
}

bool IsPermanent(int exit_status) {
  return exit_status == static_cast<int>(ExitCode::kConfig) || exit_status == static_cast<int>(ExitCode::kModel);
}

void LeaveProcess(int status) {
  std::fflush(nullptr);
  ::_exit(status);
}

}  // namespace holdfast
