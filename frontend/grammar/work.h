#pragma once
// What compiling one grammar may cost before its automaton is built. Internal to frontend/grammar.
#include <cstdint>

namespace holdfast::grammar {

// One thread. Counts elementary steps: a transition looked at, a member of an object copied or compared. Some ten nanoseconds each.
class WorkBudget final {
 public:
  explicit WorkBudget(uint64_t steps) : left_(steps) {}
  // False when the budget is used up, now and from then on.
  bool Spend(uint64_t steps) {
    left_ -= steps < left_ ? steps : left_;
    return left_ > 0;
  }
  bool over() const { return left_ == 0; }

 private:
  uint64_t left_;
};

}  // namespace holdfast::grammar
