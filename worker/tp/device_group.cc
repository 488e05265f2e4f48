#include "worker/tp/device_group.h"

#include <fmt/format.h>

#include <cstring>
#include <vector>

#include "kernels/device_collective.h"
#include "proto/base/status_wire.h"

namespace holdfast::tp {
namespace {

using kernels::nccl::Result;
using kernels::nccl::UniqueId;
using kernels::nccl::VersionText;

// The ranks' NCCL, 0 where there is none. Empty words: all have the same.
std::string Differ(const std::vector<uint64_t>& versions, uint32_t rank) {
  for (size_t r = 0; r < versions.size(); ++r) {
    if (versions[r] == 0) return fmt::format("rank {} cannot (its log says why)", r);
    if (versions[r] != versions[rank]) {
      return fmt::format("rank {} has NCCL {}, this one {}", r, VersionText(static_cast<int>(versions[r])), VersionText(static_cast<int>(versions[rank])));
    }
  }
  return {};
}

}  // namespace

bool ParseCollectives(std::string_view text, Collectives* to) {
  if (text == "auto") return *to = Collectives::kAuto, true;
  if (text == "nccl") return *to = Collectives::kNccl, true;
  if (text == "host") return *to = Collectives::kHost, true;
  return false;
}

absl::StatusOr<std::string> JoinDevices(kernels::Ops* ops, Collective* ranks, Group* group, const JoinOptions& options) {
  // Every rank takes part in every exchange below, also one that knows already that it cannot.
  std::vector<uint64_t> on_host;
  HF_RETURN_IF_ERROR(ranks->AllGather(ops->HostMemory() ? 1 : 0, &on_host));
  for (size_t r = 0; r < on_host.size(); ++r) {
    if (on_host[r] == on_host[ranks->rank()]) continue;
    const auto where = [](bool host) { return host ? "on the CPU" : "on a device"; };
    return absl::InvalidArgumentError(fmt::format("rank {} computes {}, this one {}: all ranks of a group must compute alike (each rank's log says why it "
                                                  "does); --backend cpu takes the CPU for all",
                                                  r, where(on_host[r] != 0), where(ops->HostMemory())));
  }
  absl::StatusOr<const kernels::nccl::Api*> api = absl::InvalidArgumentError("--collectives host");
  if (options.wanted != Collectives::kHost) {
    api = ops->HostMemory() ? absl::InvalidArgumentError("the backend computes in the host's memory") : options.load();
  }
  const auto through_host = [&](const std::string& why, bool tried) -> absl::StatusOr<std::string> {
    if (options.wanted != Collectives::kNccl) return fmt::format("through the host's memory ({})", why);
    const std::string text = fmt::format("--collectives nccl: {}; --collectives auto goes through the host's memory then", why);
    if (tried) return absl::FailedPreconditionError(text);
    return absl::InvalidArgumentError(text);
  };

  absl::StatusOr<int> version = api.ok() ? kernels::nccl::VersionOf(**api) : api.status();
  std::vector<uint64_t> versions;
  HF_RETURN_IF_ERROR(ranks->AllGather(version.ok() ? static_cast<uint64_t>(*version) : 0, &versions));
  if (!version.ok()) return through_host(std::string(version.status().message()), false);
  if (const std::string why = Differ(versions, ranks->rank()); !why.empty()) return through_host(why, false);

  kernels::JoinSpec spec;
  spec.nccl = *api;
  spec.rank = ranks->rank();
  spec.size = ranks->size();
  spec.at_most = options.at_most;
  spec.look = [group](Instant began) { return group->StillWorthWaiting(began); };
  std::vector<std::byte> message;
  if (ranks->rank() == 0) {
    if ((*api)->GetUniqueId(&spec.id) == Result::kSuccess) {
      message.resize(sizeof(UniqueId));
      std::memcpy(message.data(), &spec.id, sizeof(UniqueId));
    }
  }
  HF_RETURN_IF_ERROR(ranks->Broadcast(0, &message));
  if (message.size() != sizeof(UniqueId)) return through_host("NCCL on rank 0 makes no id", true);
  std::memcpy(&spec.id, message.data(), sizeof(UniqueId));

  const absl::Status joined = ops->JoinRanks(spec);
  if (IsPeerFault(joined) || absl::IsCancelled(joined)) return joined;
  if (!joined.ok() && !ops->Health().ok()) return ops->Health();
  std::vector<uint64_t> all;
  HF_RETURN_IF_ERROR(ranks->AllGather(joined.ok() ? 1 : 0, &all));
  if (!joined.ok()) return through_host(std::string(joined.message()), true);
  for (size_t r = 0; r < all.size(); ++r) {
    if (all[r] != 0) continue;
    ops->LeaveRanks();
    return through_host(fmt::format("rank {} could not join (its log says why)", r), true);
  }
  return ops->ranks()->Describe();
}

}  // namespace holdfast::tp
