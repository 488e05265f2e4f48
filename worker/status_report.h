#pragma once
// The state of pools and prefix cache in a step report.
#include "proto/worker.pb.h"
#include "worker/runtime.h"

namespace holdfast::worker {

// Adds the pools and the cache's counters as they are now.
void FillStatus(Runtime& runtime, proto::StepReport* report);

}  // namespace holdfast::worker
