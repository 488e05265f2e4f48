#pragma once
// Regular expressions of ECMA-262 without what is not regular (backreferences, look-around, word boundaries), over code points. Internal to
// frontend/grammar.
#include <absl/status/statusor.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "frontend/grammar/builder.h"
#include "frontend/grammar/utf8_ranges.h"

namespace holdfast::grammar {

struct ReNode {
  enum class Kind : uint8_t { kEmpty, kClass, kSeq, kAlt, kRepeat, kBegin, kEnd };
  Kind kind = Kind::kEmpty;
  uint32_t min = 0, max = 0;           // kRepeat; max Builder::kNoLimit: any number
  std::vector<CodePointRange> ranges;  // kClass, normal; empty: no character
  std::vector<uint32_t> parts;
};

// One way to say how a class of characters is spelled.
using SpellClass = std::function<Node(std::span<const CodePointRange>)>;

class Regex final {
 public:
  // What a text has to do with the pattern: be matched whole, or contain a match (unless ^ and $ say otherwise).
  enum class Mode : uint8_t { kWhole, kSearch };

  // kInvalidArgument with path, position and reason. Afterwards no ^ and no $ is left in it: both are supported at the ends of alternatives.
  static absl::StatusOr<Regex> Parse(std::string_view pattern, Mode mode, std::string_view path);

  Node ToNode(Builder& builder, const SpellClass& spell) const;
  // Fewest and most characters of a match; Builder::kNoLimit: no bound.
  std::pair<uint32_t, uint32_t> Lengths() const;
  // When all of it is one class repeated, that class and the counts.
  const ReNode* AsRepeatedClass(uint32_t* min, uint32_t* max) const;

  const std::vector<ReNode>& nodes() const { return nodes_; }
  uint32_t root() const { return root_; }

 private:
  std::vector<ReNode> nodes_;          // parts before wholes
  uint32_t root_ = 0;
};

}  // namespace holdfast::grammar
