#pragma once
// The configurations of a running program, made as they are met and kept: what Program would be if it were one large deterministic automaton.
//
// A configuration is a set of stacks. A stack's top is a state that waits for a byte or a special token; below it lie the states where calls
// return to, and loops with the turns they have left. Stacks are chains of interned frames, sets are interned, and the set that follows a
// set on a byte is looked up in a row once it was computed. So walking a known text costs one load a byte.
//
// Bounded: past the limits every operation answers kDead and failed() says why; Clear begins anew (then all SetIds are void). One thread.
#include <absl/container/flat_hash_map.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "worker/constrain/program.h"

namespace holdfast::constrain {

using SetId = uint32_t;
using FrameId = uint32_t;

struct ConfigurationLimits {
  uint32_t max_frames = 2'000'000;
  uint32_t max_sets = 1'000'000;
  uint32_t max_stacks = 1024;          // of one set
  uint32_t max_closure = 16'384;       // frames looked at for one set
  size_t max_row_bytes = size_t{64} << 20;
};

class Configurations final {
 public:
  static constexpr SetId kDead = 0;      // no stack: the text is not of the grammar
  static constexpr SetId kDone = 1;      // the grammar is complete and goes no further
  static constexpr FrameId kBottom = 0;
  static constexpr uint32_t kNoBound = UINT32_MAX;

  struct Frame {
    uint32_t what = 0;                   // a state, or a loop with kLoop
    uint32_t need = 0, left = 0;         // loop: turns that must and that may follow; left kNoBound: any number
    FrameId parent = kBottom;
    bool operator==(const Frame&) const = default;
    template <typename H>
    friend H AbslHashValue(H h, const Frame& f) {
      return H::combine(std::move(h), f.what, f.need, f.left, f.parent);
    }
  };
  static constexpr uint32_t kLoop = 0x80000000u;

  // The program must outlive this.
  explicit Configurations(const Program& program, const ConfigurationLimits& limits = {});

  SetId Start();
  // After one more byte.
  SetId Byte(SetId set, uint8_t byte) {
    const uint32_t row = row_of_[set];
    if (row < kPassed) {
      const SetId to = rows_[row][byte];
      if (to != kUnknown) return to;
    }
    return ByteSlow(set, byte);
  }
  SetId Special(SetId set, TokenId token);
  bool accepting(SetId set) const { return sets_[set].accepting; }
  // Tops that wait for something.
  std::span<const FrameId> stacks(SetId set) const {
    return std::span(stacks_).subspan(sets_[set].begin, sets_[set].size);
  }
  const Frame& frame(FrameId id) const { return frames_[id]; }
  FrameId Intern(const Frame& frame);
  // The set of one stack, whatever its top is.
  SetId SetOf(FrameId top);

  bool failed() const { return why_ != nullptr; }
  const char* why() const { return why_; }
  void Clear();
  size_t memory() const;
  // Rows and frames are near their limits: a good moment for Clear.
  bool nearly_full() const;

 private:
  static constexpr uint32_t kNoRow = UINT32_MAX, kPassed = UINT32_MAX - 1;
  static constexpr SetId kUnknown = UINT32_MAX;
  struct Set {
    uint32_t begin = 0, size = 0;
    bool accepting = false;
  };
  using Row = std::unique_ptr<SetId[]>;

  SetId ByteSlow(SetId set, uint8_t byte);
  void Fail(const char* why) { why_ = why_ == nullptr ? why : why_; }
  // Where a state leads to: its own frame, or what lies below when it is an end.
  FrameId Target(uint32_t state, FrameId parent) { return program_.ends(state) ? parent : Intern({state, 0, 0, parent}); }
  SetId Close(std::vector<FrameId>* todo);
  SetId InternSet(std::vector<FrameId>* tops, bool accepting);

  const Program& program_;
  const ConfigurationLimits limits_;
  std::vector<Frame> frames_;
  absl::flat_hash_map<Frame, FrameId> frame_ids_;
  std::vector<SetId> set_of_frame_;
  std::vector<uint32_t> mark_;
  uint32_t epoch_ = 0;
  std::vector<Set> sets_;
  std::vector<FrameId> stacks_;
  absl::flat_hash_map<std::vector<FrameId>, SetId> set_ids_;  // tops, then 0 or 1 for accepting
  std::vector<uint32_t> row_of_;
  std::vector<Row> rows_;
  std::vector<FrameId> todo_, tops_;
  const char* why_ = nullptr;
};

}  // namespace holdfast::constrain
