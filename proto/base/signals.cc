#include "proto/base/signals.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "proto/base/check.h"

namespace holdfast {

UniqueFd BlockSignals(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int s : signals) sigaddset(&set, s);
  HF_CHECK(pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0);
  ::signal(SIGPIPE, SIG_IGN);
  UniqueFd fd(::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
  HF_CHECK(static_cast<bool>(fd));
  return fd;
}

int ReadSignal(int signal_fd) {
  signalfd_siginfo info{};
  return ::read(signal_fd, &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
}

}  // namespace holdfast
