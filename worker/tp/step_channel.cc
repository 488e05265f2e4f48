#include "worker/tp/step_channel.h"

#include <fmt/format.h>

#include "proto/base/status_wire.h"

namespace holdfast::tp {

absl::Status StepChannel::Publish(const Round& round) {
  for (uint32_t r = 1; r < group_->size(); ++r) {
    HF_RETURN_IF_ERROR(group_->Await(group_->rounds_taken(r), rounds_ + 1 - kRoundRing));
  }
  group_->round(rounds_) = {rounds_, round.generation, round.step, round.consume_upto, round.digest, round.vote};
  group_->Advance(group_->rounds_published(), ++rounds_);
  return absl::OkStatus();
}

absl::StatusOr<bool> StepChannel::Next(Duration at_most, Round* round) {
  const absl::Status waited = group_->Await(group_->rounds_published(), rounds_ + 1, at_most);
  if (absl::IsDeadlineExceeded(waited)) return false;
  HF_RETURN_IF_ERROR(waited);
  const RoundRecord record = group_->round(rounds_);
  if (record.number != rounds_) return absl::DataLossError(fmt::format("round {} was overwritten by round {}", rounds_, record.number));
  *round = {record.generation, record.step, record.consume_upto, record.digest, record.vote};
  group_->Advance(group_->rounds_taken(group_->rank()), ++rounds_);
  return true;
}

}  // namespace holdfast::tp
