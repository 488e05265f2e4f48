#include "worker/link/lifeline.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "proto/base/exit_code.h"
#include "proto/base/log.h"
#include "proto/base/signals.h"

namespace holdfast::worker {

Lifeline::Lifeline(int lifeline_fd, Inbox* inbox)
    : lifeline_(lifeline_fd), signals_(BlockSignals({SIGTERM, SIGINT})), quit_(::eventfd(0, EFD_CLOEXEC)), inbox_(inbox) {
  if (lifeline_) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // the supervisor spawns from its main thread, so this means the process
  }
  thread_ = std::thread([this] { Watch(); });
}

Lifeline::~Lifeline() {
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = ::write(quit_.get(), &one, sizeof one);
  thread_.join();
}

void Lifeline::Watch() {
  for (;;) {
    pollfd fds[3] = {{lifeline_.get(), POLLIN, 0}, {signals_.get(), POLLIN, 0}, {quit_.get(), POLLIN, 0}};
    if (::poll(fds, 3, -1) < 0) continue;
    if (fds[2].revents != 0) return;
    if (lifeline_ && fds[0].revents != 0) {
      char byte;
      if (::read(lifeline_.get(), &byte, 1) <= 0) {
        LogWarn("the supervisor is gone, leaving");
        ::_exit(static_cast<int>(ExitCode::kSupervisorGone));
      }
    }
    if (fds[1].revents != 0 && ReadSignal(signals_.get()) != 0) {
      if (!serving_.load()) ::_exit(static_cast<int>(ExitCode::kOk));
      inbox_->Post({Inbound::Kind::kTerminate, nullptr});
    }
  }
}

}  // namespace holdfast::worker
