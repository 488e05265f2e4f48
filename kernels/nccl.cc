#include "kernels/nccl.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <memory>

#include "proto/base/status_wire.h"

namespace holdfast::kernels::nccl {

std::string VersionText(int version) {
  const int minor = version / 100 % 100;  // from 2.9 on: major * 10000 + minor * 100 + patch
  return version >= 20900 ? fmt::format("{}.{}.{}", version / 10000, minor, version % 100)
                          : fmt::format("{}.{}.{}", version / 1000, version / 100 % 10, version % 100);
}

absl::StatusOr<int> VersionOf(const Api& api) {
  int version = 0;
  if (const Result r = api.GetVersion(&version); r != kSuccess) return absl::FailedPreconditionError(fmt::format("NCCL does not tell its version (error {})", static_cast<int>(r)));
  if (version < kOldestVersion) {
    return absl::FailedPreconditionError(fmt::format("NCCL is {}, and {} or later is needed", VersionText(version), VersionText(kOldestVersion)));
  }
  return version;
}

absl::StatusOr<const Api*> Load(const std::string& library) {
  void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) return absl::NotFoundError(fmt::format("NCCL cannot be loaded: {}", ::dlerror()));
  auto api = std::make_unique<Api>();
  const char* missing = nullptr;
  const auto find = [&](auto* to, const char* name) {
    void* symbol = ::dlsym(handle, name);
    if (symbol == nullptr && missing == nullptr) missing = name;
    *to = reinterpret_cast<std::remove_pointer_t<decltype(to)>>(symbol);
  };
  find(&api->GetVersion, "ncclGetVersion");
  find(&api->GetUniqueId, "ncclGetUniqueId");
  find(&api->CommInitRankConfig, "ncclCommInitRankConfig");
  find(&api->CommGetAsyncError, "ncclCommGetAsyncError");
  find(&api->CommFinalize, "ncclCommFinalize");
  find(&api->CommDestroy, "ncclCommDestroy");
  find(&api->CommAbort, "ncclCommAbort");
  find(&api->AllGather, "ncclAllGather");
  find(&api->Send, "ncclSend");
  find(&api->Recv, "ncclRecv");
  find(&api->GroupStart, "ncclGroupStart");
  find(&api->GroupEnd, "ncclGroupEnd");
  find(&api->GetErrorString, "ncclGetErrorString");
  find(&api->GetLastError, "ncclGetLastError");
  absl::Status usable;
  if (missing != nullptr) {
    usable = absl::FailedPreconditionError(fmt::format("{} has no {}: NCCL {} or later is needed", library, missing, VersionText(kOldestVersion)));
  } else {
    usable = VersionOf(*api).status();
  }
  if (!usable.ok()) {
    ::dlclose(handle);
    return usable;
  }
  return api.release();  // as long as the process, like the library
}

}  // namespace holdfast::kernels::nccl
