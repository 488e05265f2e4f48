#pragma once
// Runs one program over one vocabulary: from a history of tokens to the set of tokens that may follow. Shared by all requests that carry the
// same program; what one of them computed the others find.
//
// Masks are kept by configuration. A new one is put together from parts: what a token can do inside the top of a stack depends on nothing
// below it, so it is computed once for each such top, with the places in the token tree where a token leaves it; only behind those places
// the rest of the stack is asked. (A string's inside allows nearly the whole vocabulary, whatever object it is in; only tokens with a
// closing quote differ.) Loops are part of the top. And what no token is long enough to see is not told apart: counts of loops far from
// their ends, and states whose futures differ only beyond the longest token. So a long string has few masks, however many positions.
//
// One thread. Everything is a function of program, vocabulary and history; dropping what is kept changes nothing but the time.
#include <absl/container/flat_hash_map.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <vector>

#include "proto/base/ids.h"
#include "worker/constrain/configurations.h"
#include "worker/constrain/program.h"
#include "worker/constrain/token_trie.h"

namespace holdfast::constrain {

struct EngineLimits {
  ConfigurationLimits configurations;
  size_t max_mask_bytes = size_t{48} << 20;  // kept masks and parts of masks, each
  uint64_t max_steps = 20'000'000;            // bytes tried for one mask
};

// Tokens that may come next. Either a list (ascending, when they are few) or a bit for each token of the vocabulary.
struct Mask {
  std::vector<uint64_t> bits;
  std::vector<TokenId> few;
  bool dense = false;
  bool complete = false;               // the answer may end here
  uint64_t count = 0;                  // tokens allowed
  bool Allows(TokenId id) const;
};

// Where a request stands. Void when its engine has begun anew: then the history is replayed.
struct Position {
  SetId set = Configurations::kDead;
  uint64_t era = 0;                    // 0: not yet begun
  uint64_t tokens = 0;                 // of the history consumed
};

class Engine final {
 public:
  Engine(Program program, std::shared_ptr<const TokenTrie> trie, const EngineLimits& limits = {});

  // Brings `position` to the end of `history` (tokens generated under the constraint, from its beginning). kInvalidArgument names the
  // first token that the grammar does not allow; kResourceExhausted: the grammar is too ambiguous to be run.
  absl::Status Advance(std::span<const TokenId> history, Position* position);
  // For the position that Advance gave. Valid until the next call of anything. kResourceExhausted as above.
  absl::StatusOr<const Mask*> MaskAt(const Position& position);
  bool Complete(const Position& position) const { return configurations_.accepting(position.set); }

  size_t memory() const;
  uint64_t masks_computed() const { return masks_computed_; }
  uint64_t masks_found() const { return masks_found_; }

 private:
  static constexpr FrameId kUnseen = UINT32_MAX;
  // What tokens do inside one top of a stack.
  struct Part {
    std::vector<uint64_t> bits;        // tokens that stay inside; empty: `few` has them
    std::vector<TokenId> few;
    std::vector<uint32_t> exits;       // nodes where the top is complete
    size_t bytes() const { return bits.size() * 8 + few.size() * 4 + exits.size() * 4 + 64; }
  };
  using Key = std::vector<uint64_t>;   // the stacks as Seen gives them, ascending, and whether the answer is complete
  struct Kept {
    Key key;
    Mask mask;
    size_t bytes() const { return mask.bits.size() * 8 + mask.few.size() * 4 + key.size() * 16 + 128; }
  };

  absl::Status Follow(std::span<const TokenId> history, Position* position);
  SetId Token(SetId set, TokenId id);
  // The stack that no token can tell from this one.
  FrameId Seen(FrameId stack);
  // The top of a stack as a stack of its own, and what lies below it.
  FrameId TopOf(FrameId stack, FrameId* below);
  const Part* PartOf(FrameId top);
  template <class Visit>
  void Walk(uint32_t begin, uint32_t end, SetId from, const Visit& visit);
  Mask Compute(const Key& key);
  absl::Status Exhausted() const;
  void StartEra();

  const Program program_;
  const std::shared_ptr<const TokenTrie> trie_;
  const EngineLimits limits_;
  Configurations configurations_;
  const std::vector<uint32_t> alike_;  // by state: the one that stands for it in masks; empty: each for itself
  uint64_t era_ = 1;
  std::vector<SetId> path_;
  uint64_t steps_ = 0;
  absl::flat_hash_map<FrameId, std::unique_ptr<Part>> parts_;
  size_t part_bytes_ = 0;
  std::list<Kept> masks_;              // the most recently used first
  absl::flat_hash_map<Key, std::list<Kept>::iterator> mask_of_;
  std::vector<FrameId> seen_;          // by frame; kUnseen: not yet computed
  size_t mask_bytes_ = 0;
  uint64_t masks_computed_ = 0, masks_found_ = 0, era_began_at_ = 0;
};

}  // namespace holdfast::constrain
