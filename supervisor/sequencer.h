#pragma once
// The group's one order of commands: numbers them from 1 in each generation and checks what the ranks say they have consumed. PURE.
#include <cstdint>
#include <vector>

#include "proto/base/ids.h"

namespace holdfast::supervisor {

class Sequencer {
 public:
  // A generation of `ranks` ranks begins: numbering starts again.
  void Reset(uint32_t ranks) {
    last_ = CommandSeq();
    consumed_.assign(ranks, CommandSeq());
  }

  CommandSeq Next() { return last_ = last_.Next(); }
  CommandSeq last() const { return last_; }

  // False when the rank claims a command that was never issued, or takes one back: its log is not ours.
  [[nodiscard]] bool Consumed(Rank rank, CommandSeq seq) {
    if (rank.v >= consumed_.size() || seq > last_ || seq < consumed_[rank.v]) return false;
    consumed_[rank.v] = seq;
    return true;
  }
  CommandSeq consumed(Rank rank) const { return rank.v < consumed_.size() ? consumed_[rank.v] : CommandSeq(); }
  uint64_t Lag(Rank rank) const { return last_.v - consumed_[rank.v].v; }

 private:
  CommandSeq last_;
  std::vector<CommandSeq> consumed_;
};

}  // namespace holdfast::supervisor
