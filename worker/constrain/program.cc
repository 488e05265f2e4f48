#include "worker/constrain/program.h"

#include <fmt/format.h>

#include "proto/base/status_wire.h"

namespace holdfast::constrain {
namespace {

constexpr std::string_view kMagic = "HFC1";

absl::Status Bad(std::string what) { return absl::InvalidArgumentError("the constraint's program " + std::move(what)); }

}  // namespace

class Program::Reader final {
 public:
  Reader(std::string_view bytes, uint32_t vocabulary, const ProgramLimits& limits) : in_(bytes), vocabulary_(vocabulary), limits_(limits) {}

  absl::Status Read(Program* p) {
    if (in_.size() > limits_.max_bytes) return Bad(fmt::format("has {} bytes; at most {} are accepted", in_.size(), limits_.max_bytes));
    if (!in_.starts_with(kMagic)) return Bad("does not begin as one of this version does");
    at_ = kMagic.size();
    uint32_t rules = 0, loops = 0;
    // Each rule and each loop takes a byte or more, so what is left bounds both.
    HF_RETURN_IF_ERROR(Count(&rules, "rules"));
    HF_RETURN_IF_ERROR(Count(&loops, "loops"));
    if (rules == 0) return Bad("has no rules");
    for (uint32_t i = 0; i < loops; ++i) {
      Loop loop;
      HF_RETURN_IF_ERROR(Number(&loop.rule));
      HF_RETURN_IF_ERROR(Number(&loop.min));
      HF_RETURN_IF_ERROR(Number(&loop.max));
      if (loop.rule == 0 || loop.rule >= rules) return Bad(fmt::format("has a loop of rule {} of {}", loop.rule, rules));
      if (loop.max != 0 && loop.max < loop.min) return Bad(fmt::format("has a loop of {} to {} turns", loop.min, loop.max));
      p->loops_.push_back(loop);
    }
    for (uint32_t r = 0; r < rules; ++r) HF_RETURN_IF_ERROR(Rule(r, rules, p));
    if (at_ != in_.size()) return Bad(fmt::format("goes on for {} bytes behind its end", in_.size() - at_));
    CloseSlices(p);
    return p->RefuseLeftRecursion();
  }

 private:
  absl::Status Number(uint32_t* out) {
    uint64_t v = 0;
    for (int shift = 0; shift < 35; shift += 7) {
      if (at_ >= in_.size()) return Bad("ends too early");
      const auto b = static_cast<uint8_t>(in_[at_++]);
      v |= uint64_t{b & 0x7Fu} << shift;
      if ((b & 0x80) != 0) continue;
      if (v > UINT32_MAX) break;
      *out = static_cast<uint32_t>(v);
      return absl::OkStatus();
    }
    return Bad(fmt::format("has a number that is too large at byte {}", at_));
  }

  absl::Status Count(uint32_t* out, std::string_view of) {
    HF_RETURN_IF_ERROR(Number(out));
    if (*out > in_.size() - at_) return Bad(fmt::format("announces {} {}, which it has no room for", *out, of));
    return absl::OkStatus();
  }

  static void CloseSlices(Program* p) {
    p->bytes_at_.push_back(static_cast<uint32_t>(p->byte_edges_.size()));
    p->specials_at_.push_back(static_cast<uint32_t>(p->special_edges_.size()));
    p->calls_at_.push_back(static_cast<uint32_t>(p->call_edges_.size()));
    p->loops_at_.push_back(static_cast<uint32_t>(p->loop_edges_.size()));
  }

  absl::Status Rule(uint32_t rule, uint32_t rules, Program* p) {
    uint32_t states = 0;
    HF_RETURN_IF_ERROR(Count(&states, "states"));
    if (states == 0) return Bad(fmt::format("has no states in rule {}", rule));
    const uint32_t base = p->states();
    if (states > limits_.max_states - base) return Bad(fmt::format("has more than {} states", limits_.max_states));
    p->starts_.push_back(base);
    for (uint32_t s = 0; s < states; ++s) {
      const auto where = [&] { return fmt::format("state {} of rule {}", s, rule); };
      const auto target = [&](uint32_t* to) -> absl::Status {
        HF_RETURN_IF_ERROR(Number(to));
        if (*to >= states) return Bad(fmt::format("leads from {} to state {} of {}", where(), *to, states));
        *to += base;
        return absl::OkStatus();
      };
      CloseSlices(p);
      uint32_t head = 0, counts[4] = {};
      HF_RETURN_IF_ERROR(Number(&head));
      counts[0] = head >> 2;
      if ((head & 2) != 0) {
        for (int i = 1; i < 4; ++i) HF_RETURN_IF_ERROR(Count(&counts[i], "transitions"));
      }
      if (counts[0] > 256) return Bad(fmt::format("has {} byte ranges in {}", counts[0], where()));
      edges_ += uint64_t{counts[0]} + counts[1] + counts[2] + counts[3];
      if (edges_ > limits_.max_edges) return Bad(fmt::format("has more than {} transitions", limits_.max_edges));
      int last = -1;
      for (uint32_t i = 0; i < counts[0]; ++i) {
        if (in_.size() - at_ < 2) return Bad("ends too early");
        ByteEdge e;
        e.lo = static_cast<uint8_t>(in_[at_]);
        e.hi = static_cast<uint8_t>(in_[at_ + 1]);
        at_ += 2;
        if (e.lo <= last || e.hi < e.lo) return Bad(fmt::format("has byte ranges out of order in {}", where()));
        last = e.hi;
        HF_RETURN_IF_ERROR(target(&e.to));
        p->byte_edges_.push_back(e);
      }
      const uint32_t most[4] = {0, vocabulary_, rules, static_cast<uint32_t>(p->loops_.size())};
      const char* const what[4] = {"", "special token", "rule", "loop"};
      std::vector<Edge>* const into[4] = {nullptr, &p->special_edges_, &p->call_edges_, &p->loop_edges_};
      for (int kind = 1; kind < 4; ++kind) {
        for (uint32_t i = 0; i < counts[kind]; ++i) {
          Edge e;
          HF_RETURN_IF_ERROR(Number(&e.value));
          if (e.value >= most[kind]) return Bad(fmt::format("names {} {} of {} in {}", what[kind], e.value, most[kind], where()));
          if (kind == 2 && e.value == 0) return Bad(fmt::format("calls the whole answer from {}", where()));
          HF_RETURN_IF_ERROR(target(&e.to));
          into[kind]->push_back(e);
        }
      }
      const bool final = (head & 1) != 0;
      if (final && s == 0 && rule != 0) return Bad(fmt::format("has the empty text in rule {}", rule));
      p->final_.push_back(!final ? 0 : counts[0] + counts[1] + counts[2] + counts[3] == 0 ? 2 : 1);
    }
    return absl::OkStatus();
  }

  const std::string_view in_;
  const uint32_t vocabulary_;
  const ProgramLimits& limits_;
  size_t at_ = 0;
  uint64_t edges_ = 0;
};

absl::StatusOr<Program> Program::Decode(std::string_view bytes, uint32_t vocabulary, const ProgramLimits& limits) {
  Program p;
  HF_RETURN_IF_ERROR(Reader(bytes, vocabulary, limits).Read(&p));
  return p;
}

// No rule but the first passes the empty text, so a rule begins with another only from its start.
absl::Status Program::RefuseLeftRecursion() const {
  enum : uint8_t { kNew, kOpen, kDone };
  std::vector<uint8_t> seen(rules(), kNew);
  struct Open {
    uint32_t rule;
    uint32_t next;
  };
  std::vector<Open> path;
  for (uint32_t root = 0; root < rules(); ++root) {
    if (seen[root] != kNew) continue;
    seen[root] = kOpen;
    path.push_back({root, 0});
    while (!path.empty()) {
      const uint32_t rule = path.back().rule, next = path.back().next++;
      const auto called = calls(start(rule));
      const auto looped = loops(start(rule));
      if (next == called.size() + looped.size()) {
        seen[rule] = kDone;
        path.pop_back();
        continue;
      }
      const uint32_t to = next < called.size() ? called[next].value : loop(looped[next - called.size()].value).rule;
      if (seen[to] == kOpen) return Bad(fmt::format("has the rule {}, which begins with itself", to));
      if (seen[to] != kNew) continue;
      seen[to] = kOpen;
      path.push_back({to, 0});
    }
  }
  return absl::OkStatus();
}

size_t Program::memory() const {
  return starts_.capacity() * 4 + loops_.capacity() * sizeof(Loop) + final_.capacity() + 4 * bytes_at_.capacity() * 4 +
         byte_edges_.capacity() * sizeof(ByteEdge) + (special_edges_.capacity() + call_edges_.capacity() + loop_edges_.capacity()) * sizeof(Edge);
}

}  // namespace holdfast::constrain
