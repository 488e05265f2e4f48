#pragma once
// Makes the devices of a group talk to each other: the ranks agree whether all of them can, rank 0's id goes to the others through the
// group's memory, and each joins. What one rank cannot none does, so that all sum by the same means.
//
// Threads: the one that owns the group.
#include <absl/status/statusor.h>

#include <functional>
#include <string>
#include <string_view>

#include "kernels/nccl.h"
#include "kernels/ops.h"
#include "proto/base/clock.h"
#include "worker/tp/collective.h"
#include "worker/tp/group.h"

namespace holdfast::tp {

enum class Collectives : uint8_t { kAuto, kNccl, kHost };
bool ParseCollectives(std::string_view text, Collectives* to);   // auto, nccl, host

struct JoinOptions {
  Collectives wanted = Collectives::kAuto;
  std::function<absl::StatusOr<const kernels::nccl::Api*>()> load = [] { return kernels::nccl::Load(); };
  Duration at_most = std::chrono::seconds(60);    // for all devices to find each other; Group's own time bounds every other wait
};

// Says in words, for the log, by which means the ranks sum from now on, and why. With kNccl what cannot be is an error: kInvalidArgument when
// this machine lacks something (the same next time), also where some ranks compute on a device and some do not; kFailedPrecondition when NCCL tried and failed. Errors of `ranks` when a peer is lost,
// kAborted when the device failed. Every rank calls it.
absl::StatusOr<std::string> JoinDevices(kernels::Ops* ops, Collective* ranks, Group* group, const JoinOptions& options);

}  // namespace holdfast::tp
