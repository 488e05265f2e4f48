#pragma once
// Collectives through the shared memory of the group (docs/adr/0020 says why not those of a library).
//
// Every operation is a sequence of exchanges. In exchange n a rank writes its part of the message into half n % 2 of its own area, says so
// (published = n), waits until every rank has, and reads. It may write into the same half again in exchange n + 2: that every rank has
// published n + 1 means that every rank has done reading n.
#include <functional>
#include <memory>

#include "worker/tp/collective.h"
#include "worker/tp/group.h"

namespace holdfast::tp {

class ShmCollective final : public Collective {
 public:
  // `group` outlives this; every rank of it must have joined before the first call.
  explicit ShmCollective(Group* group) : group_(group) {}

  uint32_t rank() const override { return group_->rank(); }
  uint32_t size() const override { return group_->size(); }
  absl::Status AllReduceSum(std::span<float> x) override;
  absl::Status AllGatherColumns(kernels::ConstMat mine, std::span<const int64_t> columns, kernels::Mat all) override;
  absl::Status Broadcast(uint32_t root, std::vector<std::byte>* message) override;
  absl::Status AllGather(uint64_t value, std::vector<uint64_t>* out) override;

 private:
  // The half this rank writes in the exchange that begins.
  std::span<std::byte> Mine() { return group_->half(group_->rank(), (exchange_ + 1) % 2); }
  // What rank r wrote in the exchange that Exchange() ended.
  std::span<const std::byte> Of(uint32_t r) { return group_->half(r, exchange_ % 2); }
  absl::Status Exchange();

  Group* const group_;
  uint32_t exchange_ = 0;
  absl::Status broken_;
};

}  // namespace holdfast::tp
