#pragma once
// A deterministic automaton over characters, for what a regular expression alone cannot say: bounds on the length, names that are taken.
// Internal to frontend/grammar.
#include <absl/status/statusor.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/grammar/regex.h"
#include "frontend/grammar/work.h"

namespace holdfast::grammar {

class CharAutomaton final {
 public:
  // `characters` get classes of their own. kInvalidArgument when it would grow too large.
  static absl::StatusOr<CharAutomaton> Create(const Regex& regex, std::span<const char32_t> characters, std::string_view path, WorkBudget& work);

  bool Matches(std::string_view text) const;
  // Only texts of min to max characters (max Builder::kNoLimit: any number).
  absl::StatusOr<CharAutomaton> WithLength(uint32_t min, uint32_t max, std::string_view path, WorkBudget& work) const;
  Node ToNode(Builder& builder, const SpellClass& spell) const;

 private:
  static constexpr uint32_t kDead = UINT32_MAX;
  struct CharState {
    bool final = false;
    std::vector<uint32_t> next;        // by class
  };
  size_t ClassOf(char32_t c) const;

  std::vector<CodePointRange> intervals_;          // of all characters, ascending
  std::vector<uint32_t> interval_class_;
  std::vector<std::vector<CodePointRange>> classes_;
  std::vector<CharState> states_;                  // the first is the start
};

// The characters of these texts.
std::vector<char32_t> CharactersOf(std::span<const std::string> texts);

}  // namespace holdfast::grammar
