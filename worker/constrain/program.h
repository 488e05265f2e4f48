#pragma once
// A decoded constraint program: a pushdown automaton over bytes and special tokens (README.md has the format and what it means).
//
// Decode takes bytes from outside the worker: whatever it returns is safe to run. Every index is in range, no rule begins with itself, no
// loop's body is empty, so that the matcher's closures end. Immutable; any thread.
#include <absl/status/statusor.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "proto/base/ids.h"

namespace holdfast::constrain {

struct ProgramLimits {
  size_t max_bytes = size_t{8} << 20;
  uint32_t max_states = 1'000'000;
  uint32_t max_edges = 8'000'000;
};

class Program final {
 public:
  struct ByteEdge {
    uint8_t lo = 0, hi = 0;
    uint32_t to = 0;                   // state
  };
  struct Edge {
    uint32_t value = 0;                // a token, a rule or a loop
    uint32_t to = 0;
  };
  // Runs `rule` once or more: min to max times, max 0 without bound.
  struct Loop {
    uint32_t rule = 0, min = 0, max = 0;
  };

  // kInvalidArgument with what is wrong and where. Special tokens must be below vocabulary.
  static absl::StatusOr<Program> Decode(std::string_view bytes, uint32_t vocabulary, const ProgramLimits& limits = {});

  // States are numbered over all rules.
  uint32_t states() const { return static_cast<uint32_t>(final_.size()); }
  uint32_t rules() const { return static_cast<uint32_t>(starts_.size()); }
  uint32_t start(uint32_t rule) const { return starts_[rule]; }   // rule 0 is the whole answer
  const Loop& loop(uint32_t i) const { return loops_[i]; }
  bool final(uint32_t state) const { return final_[state] != 0; }
  // The end of its rule, and nothing else.
  bool ends(uint32_t state) const { return final_[state] == 2; }
  std::span<const ByteEdge> bytes(uint32_t s) const { return Slice(byte_edges_, bytes_at_, s); }
  std::span<const Edge> specials(uint32_t s) const { return Slice(special_edges_, specials_at_, s); }
  std::span<const Edge> calls(uint32_t s) const { return Slice(call_edges_, calls_at_, s); }
  std::span<const Edge> loops(uint32_t s) const { return Slice(loop_edges_, loops_at_, s); }
  size_t memory() const;

 private:
  class Reader;
  template <class T>
  static std::span<const T> Slice(const std::vector<T>& all, const std::vector<uint32_t>& at, uint32_t s) {
    return std::span(all).subspan(at[s], at[s + 1] - at[s]);
  }
  absl::Status RefuseLeftRecursion() const;

  std::vector<uint32_t> starts_;
  std::vector<Loop> loops_;
  std::vector<uint8_t> final_;         // 0 no, 1 final, 2 final without edges
  std::vector<uint32_t> bytes_at_, specials_at_, calls_at_, loops_at_;   // one more than states
  std::vector<ByteEdge> byte_edges_;
  std::vector<Edge> special_edges_, call_edges_, loop_edges_;
};

}  // namespace holdfast::constrain
