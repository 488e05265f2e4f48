// NCCL's library where it is installed, and what is said where it is not, is too old or is another.
#include "kernels/nccl.h"

#include <catch2/catch.hpp>

#include <iostream>

#if defined(HOLDFAST_NCCL_HEADER)
#include <nccl.h>
#endif

namespace holdfast::kernels::nccl {
namespace {

bool Says(const absl::Status& s, const char* words) { return std::string(s.message()).find(words) != std::string::npos; }

}  // namespace

TEST_CASE("libnccl is opened, has every function and tells its version, with or without a driver", "[tp]") {
  const auto api = Load();
  if (!api.ok() && absl::IsNotFound(api.status())) {
    std::cout << "SKIP: libnccl.so.2 is not installed\n";
    return;
  }
  INFO(api.status());
  REQUIRE(api.ok());
  const auto version = VersionOf(**api);
  REQUIRE(version.ok());
  CHECK(*version >= kOldestVersion);
#if defined(HOLDFAST_NCCL_HEADER)
  CHECK(*version / 10000 == NCCL_MAJOR);
#endif
  CHECK(std::string((*api)->GetErrorString(kSuccess)) == "no error");
  CHECK(std::string((*api)->GetErrorString(kInProgress)).find("in progress") != std::string::npos);
}

TEST_CASE("a library that is not there, is another or is too old is refused in words", "[tp]") {
  const auto none = Load("libnothing-of-this-name.so.2");
  CHECK(absl::IsNotFound(none.status()));
  CHECK(Says(none.status(), "libnothing-of-this-name.so.2"));
  const auto other = Load("libm.so.6");
  CHECK(absl::IsFailedPrecondition(other.status()));
  CHECK(Says(other.status(), "libm.so.6 has no ncclGetVersion"));
  Api old;
  old.GetVersion = [](int* version) {
    *version = 21304;
    return kSuccess;
  };
  CHECK(absl::IsFailedPrecondition(VersionOf(old).status()));
  CHECK(Says(VersionOf(old).status(), "NCCL is 2.13.4, and 2.14.0 or later is needed"));
  old.GetVersion = [](int*) { return kSystemError; };
  CHECK(absl::IsFailedPrecondition(VersionOf(old).status()));
  CHECK(VersionText(22809) == "2.28.9");
  CHECK(VersionText(2804) == "2.8.4");
}

#if defined(HOLDFAST_NCCL_HEADER)
// What nccl.h says, against what we say: sizes, places and values as the compiler has them.
static_assert(sizeof(UniqueId) == sizeof(ncclUniqueId) && sizeof(UniqueId) == NCCL_UNIQUE_ID_BYTES);
static_assert(offsetof(Config, size) == offsetof(ncclConfig_t, size) && offsetof(Config, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(Config, version) == offsetof(ncclConfig_t, version) && offsetof(Config, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(sizeof(Config) <= sizeof(ncclConfig_t) && offsetof(Config, undefined) == offsetof(ncclConfig_t, cgaClusterSize));
static_assert(kOldestVersion == NCCL_VERSION(2, 14, 0));
static_assert(int{kSuccess} == int{ncclSuccess} && int{kUnhandledCudaError} == int{ncclUnhandledCudaError} && int{kSystemError} == int{ncclSystemError});
static_assert(int{kInternalError} == int{ncclInternalError} && int{kInvalidArgument} == int{ncclInvalidArgument});
static_assert(int{kInvalidUsage} == int{ncclInvalidUsage} && int{kRemoteError} == int{ncclRemoteError} && int{kInProgress} == int{ncclInProgress});
static_assert(int{kFloat32} == int{ncclFloat32});
// The functions, with our types put for NCCL's: the same number and kinds of arguments in the same order.
template <class T>
struct Ours {
  using type = T;
};
template <>
struct Ours<ncclResult_t> {
  using type = Result;
};
template <>
struct Ours<ncclDataType_t> {
  using type = DataType;
};
template <>
struct Ours<ncclComm_t> {
  using type = Comm*;
};
template <>
struct Ours<ncclUniqueId> {
  using type = UniqueId;
};
template <>
struct Ours<cudaStream_t> {
  using type = void*;
};
template <>
struct Ours<ncclConfig_t> {
  using type = Config;
};
template <class T>
  requires(std::is_pointer_v<T> && !std::is_same_v<T, ncclComm_t> && !std::is_same_v<T, cudaStream_t> && !std::is_const_v<std::remove_pointer_t<T>> &&
           !std::is_void_v<std::remove_pointer_t<T>> && !std::is_function_v<std::remove_pointer_t<T>>)
struct Ours<T> {
  using type = typename Ours<std::remove_pointer_t<T>>::type*;
};
template <class R, class... A>
struct Ours<R (*)(A...)> {
  using type = typename Ours<R>::type (*)(typename Ours<A>::type...);
};
#define HF_SAME_FUNCTION(name) static_assert(std::is_same_v<decltype(Api::name), Ours<decltype(&::nccl##name)>::type>)
HF_SAME_FUNCTION(GetVersion);
HF_SAME_FUNCTION(GetUniqueId);
HF_SAME_FUNCTION(CommInitRankConfig);
HF_SAME_FUNCTION(CommGetAsyncError);
HF_SAME_FUNCTION(CommFinalize);
HF_SAME_FUNCTION(CommDestroy);
HF_SAME_FUNCTION(CommAbort);
HF_SAME_FUNCTION(AllGather);
HF_SAME_FUNCTION(Send);
HF_SAME_FUNCTION(Recv);
HF_SAME_FUNCTION(GroupStart);
HF_SAME_FUNCTION(GroupEnd);
HF_SAME_FUNCTION(GetErrorString);
HF_SAME_FUNCTION(GetLastError);
#endif

TEST_CASE("our declarations of NCCL are those of its header", "[tp]") {
#if defined(HOLDFAST_NCCL_HEADER)
  SUCCEED("compared when this file was compiled");
#else
  std::cout << "SKIP: nccl.h is not installed\n";
#endif
}

}  // namespace holdfast::kernels::nccl
