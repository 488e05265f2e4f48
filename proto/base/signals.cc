#include "proto/base/signals.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cstdlib>

#include "proto/base/check.h"

namespace holdfast {

UniqueFd BlockSignals(std::initializer_list<int> signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int s : signals) sigaddset(&set, s);
  HF_CHECK(pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0);
  ::signal(SIGPIPE, SIG_IGN);
  ::signal(SIGXFSZ, SIG_IGN);  // a file over RLIMIT_FSIZE is then EFBIG, an error like a full disk
  UniqueFd fd(::signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
  HF_CHECK(static_cast<bool>(fd));
  return fd;
}

int ReadSignal(int signal_fd) {
  signalfd_siginfo info{};
  return ::read(signal_fd, &info, sizeof info) == sizeof info ? static_cast<int>(info.ssi_signo) : 0;
}

bool DieWithParentIfAsked() {
  const char* parent = std::getenv("HOLDFAST_DIE_WITH_PARENT");
  if (parent == nullptr) return false;
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  // The parent may have died between spawn and prctl.
  if (::getppid() != std::atoi(parent)) ::_exit(0);
  ::unsetenv("HOLDFAST_DIE_WITH_PARENT");  // it is meant for this process, not for its children
  return true;
}

}  // namespace holdfast
