#pragma once
// From nodes to deterministic automata that call each other. Internal to frontend/grammar.
//
// Each rule becomes one automaton over four kinds of symbols: bytes, special tokens, calls of a rule, and calls of a counted loop. No rule
// but the root accepts the empty text (a call of a rule that could is an alternative to passing it by), none begins with itself, and from
// every state the end of its rule can be reached.
#include <absl/status/statusor.h>

#include <cstdint>
#include <vector>

#include "frontend/grammar/nodes.h"

namespace holdfast::grammar {

enum class Symbol : uint8_t { kBytes, kSpecial, kCall, kLoop };

struct Transition {
  Symbol symbol = Symbol::kBytes;
  uint8_t lo = 0, hi = 0;              // kBytes
  uint32_t value = 0;                  // kSpecial: token; kCall: rule; kLoop: loop
  uint32_t to = 0;                     // state of the same rule
  bool operator==(const Transition&) const = default;
};

struct State {
  bool final = false;
  std::vector<Transition> out;         // by symbol, then lo or value; byte ranges disjoint
};

struct Automaton {
  std::vector<State> states;           // the first is the start
};

// Runs `rule` at least once, min to max times in all. max 0: without bound.
struct Loop {
  uint32_t rule = 0, min = 0, max = 0;
  bool operator==(const Loop&) const = default;
};

struct PushdownAutomaton {
  std::vector<Automaton> rules;        // the first is the root; nothing calls it
  std::vector<Loop> loops;
};

// kInvalidArgument: an undefined or left-recursive rule, a limit, or a grammar that allows nothing.
absl::StatusOr<PushdownAutomaton> Determinise(const NodeStore& store, uint32_t root);

// Merges states with the same future where that is seen in one pass (not around cycles of several states), and leaves out what the start
// does not reach. Steps are added to *work.
void Reduce(Automaton* automaton, uint64_t* work);

}  // namespace holdfast::grammar
