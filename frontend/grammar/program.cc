#include "frontend/grammar/program.h"

#include <fmt/format.h>

namespace holdfast::grammar {
namespace {

constexpr std::string_view kMagic = "HFC1";

void Put(uint64_t v, std::string* out) {
  for (; v >= 0x80; v >>= 7) out->push_back(static_cast<char>(v | 0x80));
  out->push_back(static_cast<char>(v));
}

void PutState(const State& state, std::string* out) {
  uint64_t counts[4] = {};
  for (const Transition& t : state.out) ++counts[static_cast<size_t>(t.symbol)];
  const bool others = counts[1] + counts[2] + counts[3] > 0;
  Put(counts[0] << 2 | (others ? 2 : 0) | (state.final ? 1 : 0), out);
  if (others) {
    for (size_t i = 1; i < 4; ++i) Put(counts[i], out);
  }
  for (const Transition& t : state.out) {
    if (t.symbol == Symbol::kBytes) {
      out->push_back(static_cast<char>(t.lo));
      out->push_back(static_cast<char>(t.hi));
    } else {
      Put(t.value, out);
    }
    Put(t.to, out);
  }
}

}  // namespace

absl::StatusOr<std::string> WriteProgram(const PushdownAutomaton& automaton, size_t max_bytes) {
  std::string out(kMagic);
  Put(automaton.rules.size(), &out);
  Put(automaton.loops.size(), &out);
  for (const Loop& l : automaton.loops) {
    Put(l.rule, &out);
    Put(l.min, &out);
    Put(l.max, &out);
  }
  for (const Automaton& rule : automaton.rules) {
    Put(rule.states.size(), &out);
    for (const State& state : rule.states) {
      PutState(state, &out);
      if (out.size() > max_bytes) return absl::InvalidArgumentError(fmt::format("the grammar needs more than {} bytes when compiled", max_bytes));
    }
  }
  return out;
}

}  // namespace holdfast::grammar
