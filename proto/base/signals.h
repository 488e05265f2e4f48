#pragma once
// Signals as data: a loop reads them from a descriptor, no code runs in a handler.
#include <initializer_list>

#include "proto/base/unique_fd.h"

namespace holdfast {

// Blocks the signals in this thread (call in main before other threads start, so all inherit the mask) and returns a signalfd
// that reports them. SIGPIPE is ignored for the process.
UniqueFd BlockSignals(std::initializer_list<int> signals);

// The next pending signal number, or 0.
int ReadSignal(int signal_fd);

// `holdfast serve` sets HOLDFAST_DIE_WITH_PARENT for its children: they ask the kernel for SIGTERM when it dies. Call at the start of
// main, before threads. Without the variable (systemd, tests) nothing happens. Exits at once when the parent is already gone.
// True when it was asked.
bool DieWithParentIfAsked();

}  // namespace holdfast
