#include "proto/base/exit_code.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <new>
#include <system_error>

namespace holdfast {
namespace {

const char* process_name = "holdfast";

[[noreturn]] void OnTerminate() {
  const char* what = nullptr;
  try {
    if (const std::exception_ptr current = std::current_exception()) std::rethrow_exception(current);
  } catch (const std::bad_alloc&) {
    what = "no memory";
  } catch (const std::system_error& e) {
    const int code = e.code().value();
    if (code == EAGAIN || code == ENOMEM || code == EMFILE || code == ENFILE) what = "no thread, memory or descriptor to be had";
  } catch (...) {
  }
  if (what == nullptr) std::abort();
  std::fprintf(stderr, "%s: %s: a limit of this process or of the machine is reached\n", process_name, what);
  ::_exit(static_cast<int>(ExitCode::kEnvironment));
}

}  // namespace

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

void ExitWhenExhausted(const char* process) {
  process_name = process;
  std::set_terminate(OnTerminate);
}

void LeaveProcess(int status) {
  std::fflush(nullptr);
  ::_exit(status);
}

}  // namespace holdfast
