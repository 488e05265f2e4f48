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

}  // namespace holdfast
