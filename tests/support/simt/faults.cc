// Faults of the processor: what a kernel, a copy or a host that is kept out touches where it may not.
#include "tests/support/simt/machine.h"
#include "tests/support/simt/memory.h"

namespace simt {
namespace {

thread_local sigjmp_buf* g_host_escape = nullptr;

void Handler(int number, siginfo_t* info, void* context) {
  bool write = false;
#if defined(__x86_64__)
  write = (static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & 2) != 0;
#else
  static_cast<void>(context);
#endif
  const bool ours = number == SIGSEGV;
  if (ours && Engine::Running() != nullptr) Engine::Running()->OnSignal(info, write);
  if (ours && g_host_escape != nullptr && IsDevice(info->si_addr)) siglongjmp(*g_host_escape, 1);
  signal(number, SIG_DFL);  // and again, without us
}

}  // namespace

Handlers::Handlers() {
  static thread_local std::unique_ptr<std::byte[]> stack(new std::byte[64 << 10]);
  stack_t mine{};
  mine.ss_sp = stack.get();
  mine.ss_size = 64 << 10;
  sigaltstack(&mine, &old_stack_);
  struct sigaction action {};
  action.sa_sigaction = Handler;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
  sigaction(SIGSEGV, &action, &old_);
}
Handlers::~Handlers() {
  sigaction(SIGSEGV, &old_, nullptr);
  sigaltstack(&old_stack_, nullptr);
}

bool HostFaults(const std::function<void()>& f) {
  Handlers handlers;
  sigjmp_buf escape;
  g_host_escape = &escape;
  const bool faulted = sigsetjmp(escape, 0) != 0;
  if (!faulted) f();
  g_host_escape = nullptr;
  return faulted;
}

}  // namespace simt
