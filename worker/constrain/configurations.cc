#include "worker/constrain/configurations.h"

#include <algorithm>

namespace holdfast::constrain {
namespace {

constexpr size_t kRowBytes = 256 * sizeof(SetId);

// The edge for this byte, or null.
const Program::ByteEdge* Find(std::span<const Program::ByteEdge> edges, uint8_t byte) {
  if (edges.size() <= 4) {
    for (const Program::ByteEdge& e : edges) {
      if (byte >= e.lo && byte <= e.hi) return &e;
    }
    return nullptr;
  }
  const auto it = std::upper_bound(edges.begin(), edges.end(), byte, [](uint8_t b, const Program::ByteEdge& e) { return b < e.lo; });
  if (it == edges.begin()) return nullptr;
  const Program::ByteEdge& e = *std::prev(it);
  return byte <= e.hi ? &e : nullptr;
}

}  // namespace

Configurations::Configurations(const Program& program, const ConfigurationLimits& limits) : program_(program), limits_(limits) { Clear(); }

void Configurations::Clear() {
  frames_.clear();
  frame_ids_.clear();
  set_of_frame_.clear();
  mark_.clear();
  epoch_ = 0;
  sets_.clear();
  stacks_.clear();
  set_ids_.clear();
  row_of_.clear();
  rows_.clear();
  why_ = nullptr;
  frames_.push_back({UINT32_MAX, 0, 0, kBottom});
  set_of_frame_.push_back(kDone);
  mark_.push_back(0);
  std::vector<FrameId> none;
  InternSet(&none, false);
  InternSet(&none, true);
}

FrameId Configurations::Intern(const Frame& frame) {
  const auto [it, fresh] = frame_ids_.try_emplace(frame, static_cast<FrameId>(frames_.size()));
  if (fresh) {
    if (frames_.size() >= limits_.max_frames) {
      frame_ids_.erase(it);
      Fail("it has too many configurations");
      return kBottom;
    }
    frames_.push_back(frame);
    set_of_frame_.push_back(kUnknown);
    mark_.push_back(0);
  }
  return it->second;
}

SetId Configurations::InternSet(std::vector<FrameId>* tops, bool accepting) {
  tops->push_back(accepting ? 1 : 0);
  const auto [it, fresh] = set_ids_.try_emplace(*tops, static_cast<SetId>(sets_.size()));
  tops->pop_back();
  if (!fresh) return it->second;
  if (sets_.size() >= limits_.max_sets) {
    set_ids_.erase(it);
    Fail("it has too many configurations");
    return kDead;
  }
  sets_.push_back({static_cast<uint32_t>(stacks_.size()), static_cast<uint32_t>(tops->size()), accepting});
  stacks_.insert(stacks_.end(), tops->begin(), tops->end());
  row_of_.push_back(kNoRow);
  return it->second;
}

// Follows ends, calls and loops from these frames until every stack waits for something.
SetId Configurations::Close(std::vector<FrameId>* todo) {
  ++epoch_;
  tops_.clear();
  bool accepting = false;
  const auto visit = [&](FrameId f) {
    if (f == kBottom) {
      accepting = true;
    } else if (mark_[f] != epoch_) {
      mark_[f] = epoch_;
      todo->push_back(f);
    }
  };
  std::vector<FrameId> first;
  first.swap(*todo);
  for (const FrameId f : first) visit(f);
  for (size_t i = 0; i < todo->size(); ++i) {
    if (i > limits_.max_closure) {
      Fail("it is too ambiguous");
      return kDead;
    }
    const FrameId id = (*todo)[i];
    const Frame f = frames_[id];
    if ((f.what & kLoop) != 0) {
      const Program::Loop& loop = program_.loop(f.what & ~kLoop);
      if (f.need == 0) visit(f.parent);
      if (f.left > 0) {
        const Frame next{f.what, f.need > 0 ? f.need - 1 : 0, f.left == kNoBound ? kNoBound : f.left - 1, f.parent};
        visit(Intern({program_.start(loop.rule), 0, 0, Intern(next)}));
      }
    } else {
      const uint32_t state = f.what;
      if (!program_.bytes(state).empty() || !program_.specials(state).empty()) tops_.push_back(id);
      if (program_.final(state)) visit(f.parent);
      for (const Program::Edge& e : program_.calls(state)) visit(Intern({program_.start(e.value), 0, 0, Target(e.to, f.parent)}));
      for (const Program::Edge& e : program_.loops(state)) {
        const Program::Loop& loop = program_.loop(e.value);
        const Frame turn{e.value | kLoop, loop.min > 0 ? loop.min - 1 : 0, loop.max == 0 ? kNoBound : loop.max - 1, Target(e.to, f.parent)};
        visit(Intern({program_.start(loop.rule), 0, 0, Intern(turn)}));
      }
    }
    if (failed()) return kDead;
  }
  todo->clear();
  if (tops_.size() > limits_.max_stacks) {
    Fail("it is too ambiguous");
    return kDead;
  }
  std::sort(tops_.begin(), tops_.end());
  return InternSet(&tops_, accepting);
}

SetId Configurations::SetOf(FrameId top) {
  if (set_of_frame_[top] != kUnknown) return set_of_frame_[top];
  todo_.assign(1, top);
  const SetId set = Close(&todo_);
  if (failed()) return kDead;
  set_of_frame_[top] = set;
  return set;
}

SetId Configurations::Start() {
  const FrameId start = Intern({program_.start(0), 0, 0, kBottom});
  return failed() ? kDead : SetOf(start);
}

SetId Configurations::ByteSlow(SetId set, uint8_t byte) {
  if (failed()) return kDead;
  todo_.clear();
  const Set& s = sets_[set];
  for (uint32_t i = 0; i < s.size; ++i) {
    const Frame f = frames_[stacks_[s.begin + i]];
    const Program::ByteEdge* e = Find(program_.bytes(f.what), byte);
    if (e != nullptr) todo_.push_back(Target(e->to, f.parent));
  }
  if (failed()) return kDead;
  SetId to = kDead;
  if (todo_.size() == 1) {
    to = SetOf(todo_[0]);
  } else if (!todo_.empty()) {
    to = Close(&todo_);
  }
  if (failed()) return kDead;
  if (row_of_[set] == kNoRow) {
    row_of_[set] = kPassed;  // a row is for those that are come through again: a long text under a counter passes most sets once
  } else if (row_of_[set] == kPassed) {
    if (rows_.size() * kRowBytes >= limits_.max_row_bytes) return to;  // slower from here on, but right
    row_of_[set] = static_cast<uint32_t>(rows_.size());
    rows_.push_back(std::make_unique<SetId[]>(256));
    std::fill_n(rows_.back().get(), 256, kUnknown);
  }
  if (row_of_[set] < kPassed) rows_[row_of_[set]][byte] = to;
  return to;
}

SetId Configurations::Special(SetId set, TokenId token) {
  if (failed()) return kDead;
  todo_.clear();
  const Set s = sets_[set];
  for (uint32_t i = 0; i < s.size; ++i) {
    const Frame f = frames_[stacks_[s.begin + i]];
    for (const Program::Edge& e : program_.specials(f.what)) {
      if (e.value == token) todo_.push_back(Target(e.to, f.parent));
    }
  }
  if (failed() || todo_.empty()) return kDead;
  return Close(&todo_);
}

size_t Configurations::memory() const {
  return frames_.capacity() * (sizeof(Frame) + 8) + frame_ids_.capacity() * (sizeof(Frame) + 5) + sets_.capacity() * (sizeof(Set) + 4) +
         stacks_.capacity() * 4 + set_ids_.capacity() * 64 + stacks_.size() * 8 + rows_.size() * (kRowBytes + 8);
}

bool Configurations::nearly_full() const {
  return frames_.size() > limits_.max_frames / 2 || sets_.size() > limits_.max_sets / 2 || rows_.size() * kRowBytes >= limits_.max_row_bytes;
}

}  // namespace holdfast::constrain
