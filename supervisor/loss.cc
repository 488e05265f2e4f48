#include "supervisor/loss.h"

#include <fmt/format.h>

#include "proto/base/exit_code.h"

namespace holdfast::supervisor {

std::string_view LossCauseName(LossCause cause) {
  switch (cause) {
    case LossCause::kNone: return "none";
    case LossCause::kSignal: return "signal";
    case LossCause::kIntegrity: return "integrity";
    case LossCause::kDevice: return "device";
    case LossCause::kDeviceBusy: return "device_busy";
    case LossCause::kPeerLost: return "peer_lost";
    case LossCause::kFenced: return "fenced";
    case LossCause::kExit: return "exit";
    case LossCause::kEnvironment: return "environment";
    case LossCause::kLinkLost: return "link_lost";
    case LossCause::kAttachTimeout: return "attach_timeout";
    case LossCause::kLoadTimeout: return "load_timeout";
    case LossCause::kHang: return "hang";
    case LossCause::kSilent: return "silent";
    case LossCause::kConfig: return "config";
    case LossCause::kModel: return "model";
    case LossCause::kSpawn: return "spawn";
    case LossCause::kOperator: return "operator";
  }
  return "unknown";
}

std::string ToText(ExitStatus status) {
  if (status.signalled) return fmt::format("signal {}", status.code);
  return fmt::format("exit {} ({})", status.code, ExitCodeName(static_cast<ExitCode>(status.code)));
}

LossCause CauseOf(ExitStatus status) {
  if (status.signalled) return LossCause::kSignal;
  switch (static_cast<ExitCode>(status.code)) {
    case ExitCode::kConfig: return LossCause::kConfig;
    case ExitCode::kModel: return LossCause::kModel;
    case ExitCode::kEnvironment: return LossCause::kEnvironment;
    case ExitCode::kIntegrity: return LossCause::kIntegrity;
    case ExitCode::kDevice: return LossCause::kDevice;
    case ExitCode::kDeviceBusy: return LossCause::kDeviceBusy;
    case ExitCode::kPeerLost: return LossCause::kPeerLost;
    case ExitCode::kFenced: return LossCause::kFenced;
    case ExitCode::kOk:
    case ExitCode::kSupervisorGone: break;
  }
  return LossCause::kExit;
}

}  // namespace holdfast::supervisor
