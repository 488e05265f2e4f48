#include "kernels/cuda/collective_nccl.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <thread>
#include <vector>

#include "kernels/cuda/collective.h"
#include "proto/base/check.h"
#include "proto/base/status_wire.h"

namespace holdfast::kernels::HF_CUDA_NAMESPACE {
namespace {

constexpr int64_t kShort = int64_t{64} << 10;     // floats: up to here a message goes to everybody whole
constexpr int64_t kRounding = 512;                // floats that parts are longer than the whole, being rounded up
constexpr Duration kFarewell = std::chrono::milliseconds(500);

}  // namespace

absl::StatusOr<std::unique_ptr<NcclCollective>> NcclCollective::Join(Errors* errors, cudaStream_t stream, const JoinSpec& spec) {
  HF_CHECK(spec.nccl != nullptr && spec.look && spec.rank < spec.size && spec.size * kShort <= spec.piece && spec.size * 8 <= kRounding);
  std::unique_ptr<NcclCollective> c(new NcclCollective(errors, stream, spec));
  HF_RETURN_IF_ERROR(c->Connect());
  HF_RETURN_IF_ERROR(c->TryOut());
  c->joined_ = true;
  return c;
}

absl::Status NcclCollective::Connect() {
  nccl::Config config;
  if (!Settle(spec_.nccl->CommInitRankConfig(&comm_, ranks(), spec_.id, rank(), &config), "joining the ranks")) return status_;
  errors_->Watch(stream_, [this](Instant began) { return GoOn(began); });
  return absl::OkStatus();
}

absl::Status NcclCollective::TryOut() {
  const int64_t lengths[] = {5, kShort + ranks()};   // both ways of adding
  float* x = nullptr;
  const auto bytes = [](int64_t n) { return static_cast<size_t>(n) * sizeof(float); };
  scratch_.Of<float>(spec_.piece + kRounding);
  errors_->Check(cudaMalloc(reinterpret_cast<void**>(&x), bytes(lengths[1])), "allocating memory");
  std::vector<float> host(static_cast<size_t>(lengths[1]));
  bool right = errors_->ok();
  for (const int64_t n : lengths) {
    if (!usable()) break;
    std::fill_n(host.begin(), n, static_cast<float>(rank() + 1));
    errors_->Check(cudaMemcpyAsync(x, host.data(), bytes(n), cudaMemcpyHostToDevice, stream_), "copying to the device");
    AllReduceSum(x, n);
    errors_->Await(stream_, "trying out the collectives");
    if (!usable()) break;
    errors_->Check(cudaMemcpyAsync(host.data(), x, bytes(n), cudaMemcpyDeviceToHost, stream_), "copying from the device");
    errors_->Check(cudaStreamSynchronize(stream_), "trying out the collectives");
    right = right && std::all_of(host.begin(), host.begin() + n, [&](float v) { return v == static_cast<float>(ranks() * (ranks() + 1) / 2); });
  }
  if (usable()) {
    const std::vector<int64_t> columns(static_cast<size_t>(ranks()), 1);
    GatherColumns({x, 1, 1}, columns, {x + 1, 1, ranks()});
    errors_->Await(stream_, "trying out the collectives");
  }
  cudaFree(x);
  if (!status_.ok()) return status_;
  if (!errors_->ok()) return absl::AbortedError(fmt::format("{}: {}", errors_->doing(), cudaGetErrorString(errors_->first())));
  return right ? absl::OkStatus() : absl::FailedPreconditionError("NCCL's first messages arrived changed");
}

NcclCollective::~NcclCollective() {
  errors_->Watch(stream_, nullptr);
  if (comm_ == nullptr) return;
  // In order, peers that still take what we sent are waited for, a while; a communicator that never worked, or on a broken device, is ended.
  nccl::Result r = joined_ && errors_->ok() ? spec_.nccl->CommFinalize(comm_) : nccl::kInternalError;
  const Instant began = Clock::Real().Now();
  while (r == nccl::kInProgress && Clock::Real().Now() - began < kFarewell) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (spec_.nccl->CommGetAsyncError(comm_, &r) != nccl::kSuccess) r = nccl::kInternalError;
  }
  r == nccl::kSuccess ? spec_.nccl->CommDestroy(comm_) : spec_.nccl->CommAbort(comm_);
}

std::string NcclCollective::Describe() const {
  const auto version = nccl::VersionOf(*spec_.nccl);
  return fmt::format("NCCL {}, {} ranks", version.ok() ? nccl::VersionText(*version) : "?", ranks());
}

absl::Status NcclCollective::StatusOf(nccl::Result result, const char* doing) const {
  const char* more = comm_ == nullptr ? nullptr : spec_.nccl->GetLastError(comm_);
  const std::string text = fmt::format("{}: NCCL says: {}{}{}", doing, spec_.nccl->GetErrorString(result), more == nullptr || *more == 0 ? "" : "; ",
                                       more == nullptr ? "" : more);
  if (!joined_) return absl::FailedPreconditionError(text);
  switch (result) {
    case nccl::kRemoteError:
    case nccl::kSystemError: return absl::UnavailableError(text);   // a connection that broke
    case nccl::kUnhandledCudaError: return absl::AbortedError(text);
    default: return absl::InternalError(text);
  }
}

void NcclCollective::Break(absl::Status why) {
  status_ = std::move(why);
  if (comm_ != nullptr) spec_.nccl->CommAbort(comm_);  // also ends what it has on the device
  comm_ = nullptr;
}

bool NcclCollective::GoOn(Instant began) {
  if (!status_.ok()) return false;
  nccl::Result r = nccl::kSuccess;
  const nccl::Result asked = spec_.nccl->CommGetAsyncError(comm_, &r);
  if (asked != nccl::kSuccess) r = asked;
  if (r != nccl::kSuccess && r != nccl::kInProgress) {
    Break(StatusOf(r, "waiting for the device"));
  } else if (const absl::Status peers = spec_.look(began); !peers.ok()) {
    Break(peers);
  } else if (!joined_ && Clock::Real().Now() - began >= spec_.at_most) {
    Break(absl::FailedPreconditionError(fmt::format("the devices of {} ranks did not find each other within {} ms", ranks(), ToMillis(spec_.at_most))));
  }
  return status_.ok();
}

bool NcclCollective::Settle(nccl::Result result, const char* doing) {
  constexpr Duration kBusy = std::chrono::milliseconds(5);
  const Instant began = Clock::Real().Now();
  while (status_.ok() && result == nccl::kInProgress) {
    const nccl::Result asked = spec_.nccl->CommGetAsyncError(comm_, &result);
    if (asked != nccl::kSuccess) result = asked;
    if (result != nccl::kInProgress || !GoOn(began)) break;
    Clock::Real().Now() - began < kBusy ? std::this_thread::yield() : std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (status_.ok() && result != nccl::kSuccess) Break(StatusOf(result, doing));
  return status_.ok();
}

template <class F>
void NcclCollective::Together(const char* doing, F&& f) {
  nccl::Result first = spec_.nccl->GroupStart();
  if (first != nccl::kSuccess) {
    Settle(first, doing);
    return;
  }
  f([&](nccl::Result r) {
    if (r != nccl::kSuccess && r != nccl::kInProgress && first == nccl::kSuccess) first = r;
  });
  const nccl::Result all = spec_.nccl->GroupEnd();
  Settle(first == nccl::kSuccess ? all : first, doing);
}

void NcclCollective::AllReduceSum(float* x, int64_t n) {
  for (int64_t at = 0; at < n && usable(); at += spec_.piece) {
    const int64_t here = std::min(n - at, spec_.piece);
    here <= kShort ? SumShort(x + at, here) : SumLong(x + at, here);
  }
}

void NcclCollective::SumShort(float* x, int64_t n) {
  float* parts = scratch_.Of<float>(spec_.piece + kRounding);
  if (!Settle(spec_.nccl->AllGather(x, parts, static_cast<size_t>(n), nccl::kFloat32, comm_, stream_), "summing over the ranks")) return;
  SumOfRanks(stream_, parts, n, ranks(), -1, x, n);
}

void NcclCollective::SumLong(float* x, int64_t n) {
  float* parts = scratch_.Of<float>(spec_.piece + kRounding);
  const int64_t each = (n + ranks() - 1) / ranks() / 4 * 4 + 4;  // of 16 bytes, so that the parts are as aligned as the whole
  const auto begin = [&](int r) { return std::min(n, r * each); };
  const auto length = [&](int r) { return begin(r + 1) - begin(r); };
  const int64_t own = length(rank());
  HF_CHECK(each * ranks() <= spec_.piece + kRounding);
  // The sums stand where this rank's part stood: the first exchange has sent the other parts only.
  const auto exchange = [&](const char* doing, auto send, auto receive) {
    Together(doing, [&](auto note) {
      for (int p = 0; p < ranks(); ++p) {
        if (p == rank()) continue;
        send(p, note);
        receive(p, note);
      }
    });
  };
  const auto put = [&](const float* from, int64_t count, int p, auto& note) {
    if (count > 0) note(spec_.nccl->Send(from, static_cast<size_t>(count), nccl::kFloat32, p, comm_, stream_));
  };
  const auto take = [&](float* to, int64_t count, int p, auto& note) {
    if (count > 0) note(spec_.nccl->Recv(to, static_cast<size_t>(count), nccl::kFloat32, p, comm_, stream_));
  };
  exchange("summing over the ranks", [&](int p, auto& note) { put(x + begin(p), length(p), p, note); },
           [&](int p, auto& note) { take(parts + p * each, own, p, note); });
  if (!usable()) return;
  SumOfRanks(stream_, parts, each, ranks(), rank(), x + begin(rank()), own);
  exchange("sharing sums with the ranks", [&](int p, auto& note) { put(x + begin(rank()), own, p, note); },
           [&](int p, auto& note) { take(x + begin(p), length(p), p, note); });
}

void NcclCollective::GatherColumns(ConstMat mine, std::span<const int64_t> columns, Mat all) {
  HF_CHECK(columns.size() == spec_.size && mine.cols == columns[spec_.rank] && mine.stride == mine.cols);
  const int64_t width = std::accumulate(columns.begin(), columns.end(), int64_t{0});
  HF_CHECK(width > 0 && width <= spec_.piece);
  if (rank() == 0) HF_CHECK(all.rows == mine.rows && all.cols == width);
  float* parts = scratch_.Of<float>(spec_.piece + kRounding);
  for (int64_t row = 0, rows = 0; row < mine.rows && usable(); row += rows) {
    rows = std::min(mine.rows - row, spec_.piece / width);
    Together("gathering from the ranks", [&](auto note) {
      if (rank() != 0) {
        if (mine.cols > 0) note(spec_.nccl->Send(mine.row(row), static_cast<size_t>(rows * mine.cols), nccl::kFloat32, 0, comm_, stream_));
        return;
      }
      float* to = parts;
      for (int p = 1; p < ranks(); to += rows * columns[static_cast<size_t>(p++)]) {
        const int64_t count = rows * columns[static_cast<size_t>(p)];
        if (count > 0) note(spec_.nccl->Recv(to, static_cast<size_t>(count), nccl::kFloat32, p, comm_, stream_));
      }
    });
    if (rank() != 0 || !usable()) continue;
    const Mat here = all.Rows(row, rows);
    CopyMatrix(stream_, mine.Rows(row, rows), here.Columns(0, columns[0]));
    const float* from = parts;
    int64_t first = columns[0];
    for (size_t p = 1; p < columns.size(); first += columns[p], from += rows * columns[p], ++p) {
      CopyMatrix(stream_, ConstMat(from, rows, columns[p]), here.Columns(first, columns[p]));
    }
  }
}

}  // namespace holdfast::kernels::HF_CUDA_NAMESPACE
