#include "worker/tp/collective_shm.h"

#include <algorithm>
#include <cstring>

#include "proto/base/check.h"
#include "proto/base/status_wire.h"

namespace holdfast::tp {
namespace {

typedef float Lanes __attribute__((vector_size(16), aligned(4), may_alias));

// x[i] += y[i]. Each element is one addition, so the width of the loop changes nothing.
void AddTo(float* x, const float* y, size_t n) {
  size_t i = 0;
  for (; i + 4 <= n; i += 4) *reinterpret_cast<Lanes*>(x + i) += *reinterpret_cast<const Lanes*>(y + i);
  for (; i < n; ++i) x[i] += y[i];
}

}  // namespace

absl::Status ShmCollective::Exchange() {
  ++exchange_;
  group_->Advance(group_->published(group_->rank()), exchange_);
  for (uint32_t r = 0; r < group_->size(); ++r) {
    if (r == group_->rank()) continue;
    broken_ = group_->Await(group_->published(r), exchange_);
    if (!broken_.ok()) return broken_;
  }
  return absl::OkStatus();
}

absl::Status ShmCollective::AllReduceSum(std::span<float> x) {
  HF_RETURN_IF_ERROR(broken_);
  for (size_t at = 0; at < x.size();) {
    const std::span<std::byte> mine = Mine();
    const size_t n = std::min(x.size() - at, mine.size() / sizeof(float));
    std::memcpy(mine.data(), x.data() + at, n * sizeof(float));
    HF_RETURN_IF_ERROR(Exchange());
    std::memcpy(x.data() + at, Of(0).data(), n * sizeof(float));
    for (uint32_t r = 1; r < size(); ++r) AddTo(x.data() + at, reinterpret_cast<const float*>(Of(r).data()), n);
    at += n;
  }
  return absl::OkStatus();
}

absl::Status ShmCollective::AllGatherColumns(kernels::ConstMat mine, std::span<const int64_t> columns, kernels::Mat all) {
  HF_RETURN_IF_ERROR(broken_);
  HF_CHECK(columns.size() == size() && columns[rank()] == mine.cols);
  const int64_t widest = *std::max_element(columns.begin(), columns.end());
  // A message of a rank is its rows one after another; all ranks take as many exchanges as the widest needs.
  const auto copy = [](int64_t at, int64_t n, int64_t cols, auto&& run) {
    while (n > 0) {
      const int64_t row = at / cols, column = at % cols, here = std::min(n, cols - column);
      run(row, column, here);
      at += here;
      n -= here;
    }
  };
  for (int64_t at = 0; at < mine.rows * widest;) {
    const std::span<std::byte> half = Mine();
    const int64_t most = static_cast<int64_t>(half.size() / sizeof(float));
    auto* to = reinterpret_cast<float*>(half.data());
    const auto share = [&](int64_t cols) { return std::clamp<int64_t>(mine.rows * cols - at, 0, most); };
    if (mine.cols > 0) {
      copy(at, share(mine.cols), mine.cols, [&](int64_t row, int64_t column, int64_t n) {
        std::memcpy(to, mine.row(row) + column, static_cast<size_t>(n) * sizeof(float));
        to += n;
      });
    }
    HF_RETURN_IF_ERROR(Exchange());
    int64_t first = 0;
    for (uint32_t r = 0; all.data != nullptr && r < size(); first += columns[r++]) {
      const auto* from = reinterpret_cast<const float*>(Of(r).data());
      if (columns[r] == 0) continue;
      copy(at, share(columns[r]), columns[r], [&](int64_t row, int64_t column, int64_t n) {
        std::memcpy(all.row(row) + first + column, from, static_cast<size_t>(n) * sizeof(float));
        from += n;
      });
    }
    at += most;
  }
  return absl::OkStatus();
}

absl::Status ShmCollective::Broadcast(uint32_t root, std::vector<std::byte>* message) {
  HF_RETURN_IF_ERROR(broken_);
  uint64_t size = message->size();
  // Each piece begins with the size of the whole.
  for (uint64_t at = 0;;) {
    const std::span<std::byte> mine = Mine();
    const uint64_t most = mine.size() - sizeof(size);
    if (rank() == root) {
      std::memcpy(mine.data(), &size, sizeof(size));
      const uint64_t n = std::min(most, size - at);
      if (n > 0) std::memcpy(mine.data() + sizeof(size), message->data() + at, n);
    }
    HF_RETURN_IF_ERROR(Exchange());
    std::memcpy(&size, Of(root).data(), sizeof(size));
    const uint64_t n = std::min(most, size - at);
    if (rank() != root) {
      message->resize(size);
      if (n > 0) std::memcpy(message->data() + at, Of(root).data() + sizeof(size), n);
    }
    at += n;
    if (at >= size) return absl::OkStatus();
  }
}

absl::Status ShmCollective::AllGather(uint64_t value, std::vector<uint64_t>* out) {
  HF_RETURN_IF_ERROR(broken_);
  std::memcpy(Mine().data(), &value, sizeof(value));
  HF_RETURN_IF_ERROR(Exchange());
  out->resize(size());
  for (uint32_t r = 0; r < size(); ++r) std::memcpy(&(*out)[r], Of(r).data(), sizeof(value));
  return absl::OkStatus();
}

}  // namespace holdfast::tp
