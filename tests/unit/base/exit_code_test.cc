// What an uncaught exception of exhaustion makes of a process: seen from outside, in a child.
#include "proto/base/exit_code.h"

#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <new>
#include <stdexcept>
#include <system_error>
#include <thread>

namespace holdfast {
namespace {

template <typename F>
int StatusOfChild(F f) {
  const pid_t pid = ::fork();
  if (pid == 0) {
    std::signal(SIGABRT, SIG_DFL);  // the test framework has a handler of its own
    ExitWhenExhausted("child");
    std::thread(f).join();
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(pid, &status, 0);
  return status;
}

TEST_CASE("No memory and no threads are exit 69, another exception is an abort") {
  CHECK(WEXITSTATUS(StatusOfChild([] { throw std::bad_alloc(); })) == 69);
  CHECK(WEXITSTATUS(StatusOfChild([] { throw std::system_error(EAGAIN, std::generic_category()); })) == 69);
  for (const int status : {StatusOfChild([] { throw std::system_error(EPERM, std::generic_category()); }),
                           StatusOfChild([] { throw std::runtime_error("x"); })}) {
    CHECK(WIFSIGNALED(status));
    CHECK(WTERMSIG(status) == SIGABRT);
  }
  CHECK(StatusOfChild([] {}) == 0);
}

}  // namespace
}  // namespace holdfast
