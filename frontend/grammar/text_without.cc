// Builder::TextWithout: the strings' Aho-Corasick automaton, run beside a checker of UTF-8, without the states that complete a string.
#include <fmt/format.h>

#include <array>
#include <map>

#include "frontend/grammar/builder_impl.h"

namespace holdfast::grammar {
namespace {

// States of the UTF-8 checker: what may come next. kBoundary: a character ended.
enum Utf8State : uint8_t { kBoundary, kOneMore, kTwoMore, kThreeMore, kAfterE0, kAfterEd, kAfterF0, kAfterF4, kUtf8States };
constexpr uint8_t kDead = 0xFF;

uint8_t NextUtf8(uint8_t state, uint8_t b) {
  const auto within = [b](uint8_t lo, uint8_t hi, uint8_t then) { return b >= lo && b <= hi ? then : kDead; };
  switch (state) {
    case kBoundary:
      if (b < 0x80) return kBoundary;
      if (b >= 0xC2 && b <= 0xDF) return kOneMore;
      if (b == 0xE0) return kAfterE0;
      if (b == 0xED) return kAfterEd;
      if (b >= 0xE1 && b <= 0xEF) return kTwoMore;
      if (b == 0xF0) return kAfterF0;
      if (b >= 0xF1 && b <= 0xF3) return kThreeMore;
      return b == 0xF4 ? uint8_t{kAfterF4} : kDead;
    case kOneMore: return within(0x80, 0xBF, kBoundary);
    case kTwoMore: return within(0x80, 0xBF, kOneMore);
    case kThreeMore: return within(0x80, 0xBF, kTwoMore);
    case kAfterE0: return within(0xA0, 0xBF, kOneMore);
    case kAfterEd: return within(0x80, 0x9F, kOneMore);
    case kAfterF0: return within(0x90, 0xBF, kTwoMore);
    default: return within(0x80, 0x8F, kTwoMore);
  }
}

struct AcState {
  std::array<uint32_t, 256> next{};
  bool forbidden = false;
};

std::vector<AcState> AhoCorasick(std::span<const std::string> words) {
  std::vector<AcState> states(1);
  for (const std::string& word : words) {
    uint32_t at = 0;
    for (const char c : word) {
      uint32_t next = states[at].next[static_cast<uint8_t>(c)];
      if (next == 0) {
        next = static_cast<uint32_t>(states.size());
        states[at].next[static_cast<uint8_t>(c)] = next;
        states.emplace_back();
      }
      at = next;
    }
    states[at].forbidden = true;
  }
  // Breadth first: a state's longest proper suffix is shorter, so its row is complete.
  std::vector<uint32_t> fail(states.size(), 0), queue;
  for (const uint32_t to : states[0].next) {
    if (to != 0) queue.push_back(to);
  }
  for (size_t i = 0; i < queue.size(); ++i) {
    const uint32_t at = queue[i];
    states[at].forbidden = states[at].forbidden || states[fail[at]].forbidden;
    for (size_t b = 0; b < 256; ++b) {
      const uint32_t to = states[at].next[b];
      const uint32_t other = states[fail[at]].next[b];
      if (to == 0) {
        states[at].next[b] = other;
      } else {
        fail[to] = other;
        queue.push_back(to);
      }
    }
  }
  return states;
}

}  // namespace

Node Builder::TextWithout(std::span<const std::string> forbidden) {
  uint64_t bytes = 0;
  for (const std::string& word : forbidden) {
    if (word.empty()) return Never();
    bytes += word.size();
  }
  if (bytes * kUtf8States > impl_->store.limits.max_states) {
    impl_->Fail(fmt::format("excludes strings of {} bytes together, which is too much", bytes));
    return Never();
  }
  const std::vector<AcState> words = AhoCorasick(forbidden);
  std::map<std::pair<uint32_t, uint8_t>, uint32_t> ids{{{0, kBoundary}, 0}};
  std::vector<std::pair<uint32_t, uint8_t>> states{{0, kBoundary}};
  GraphData graph;
  for (uint32_t at = 0; at < states.size(); ++at) {
    const auto [word, utf8] = states[at];
    if (utf8 == kBoundary) graph.finals.push_back(at);
    GraphEdge run;
    bool running = false;
    for (uint32_t b = 0; b < 256; ++b) {
      const uint8_t then = NextUtf8(utf8, static_cast<uint8_t>(b));
      const uint32_t next = words[word].next[b];
      if (then == kDead || words[next].forbidden) {
        if (running) graph.edges.push_back(run);
        running = false;
        continue;
      }
      const auto [it, fresh] = ids.emplace(std::pair(next, then), static_cast<uint32_t>(states.size()));
      if (fresh) states.push_back({next, then});
      if (running && run.to == it->second) {
        run.hi = static_cast<uint8_t>(b);
        continue;
      }
      if (running) graph.edges.push_back(run);
      run = {at, it->second, kNoNode, static_cast<uint8_t>(b), static_cast<uint8_t>(b)};
      running = true;
    }
    if (running) graph.edges.push_back(run);
  }
  graph.states = static_cast<uint32_t>(states.size());
  NodeData data;
  data.kind = NodeKind::kGraph;
  data.size = graph.states;
  return impl_->AddGraph(std::move(data), std::move(graph));
}

}  // namespace holdfast::grammar
