#pragma once
// The bytes of a pushdown automaton, as worker/constrain/README.md describes them.
#include <absl/status/statusor.h>

#include <string>

#include "frontend/grammar/automaton.h"

namespace holdfast::grammar {

// kInvalidArgument beyond max_bytes.
absl::StatusOr<std::string> WriteProgram(const PushdownAutomaton& automaton, size_t max_bytes);

}  // namespace holdfast::grammar
