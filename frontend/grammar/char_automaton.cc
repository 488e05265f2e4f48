#include "frontend/grammar/char_automaton.h"

#include <absl/container/flat_hash_map.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "frontend/text/utf8.h"
#include "proto/base/check.h"

namespace holdfast::grammar {
namespace {

constexpr size_t kMaxNfa = 40'000;
constexpr size_t kMaxStates = 40'000;

using Kind = ReNode::Kind;

struct CharNfa {
  struct Edge {
    uint32_t leaf = 0;                 // a class of the regex
    uint32_t to = 0;
  };
  std::vector<std::vector<uint32_t>> silent;
  std::vector<std::vector<Edge>> edges;

  uint32_t New() {
    silent.emplace_back();
    edges.emplace_back();
    return static_cast<uint32_t>(silent.size() - 1);
  }
};

class NfaWriter final {
 public:
  NfaWriter(const Regex& regex, CharNfa* nfa) : regex_(regex), nfa_(nfa) {}
  bool too_large() const { return nfa_->silent.size() > kMaxNfa; }

  void Put(uint32_t node, uint32_t from, uint32_t to) {
    if (too_large()) return;
    const ReNode& n = regex_.nodes()[node];
    switch (n.kind) {
      case Kind::kClass: nfa_->edges[from].push_back({node, to}); break;
      case Kind::kSeq:
        for (size_t i = 0; i < n.parts.size(); ++i) {
          const uint32_t next = i + 1 == n.parts.size() ? to : nfa_->New();
          Put(n.parts[i], from, next);
          from = next;
        }
        break;
      case Kind::kAlt:
        for (const uint32_t part : n.parts) Put(part, from, to);
        break;
      case Kind::kRepeat: {
        for (uint32_t i = 0; i < n.min && !too_large(); ++i) {
          const uint32_t next = nfa_->New();
          Put(n.parts[0], from, next);
          from = next;
        }
        if (n.max == Builder::kNoLimit) {
          const uint32_t turn = nfa_->New();
          nfa_->silent[from].push_back(turn);
          Put(n.parts[0], turn, turn);
          from = turn;
        } else {
          for (uint32_t i = n.min; i < n.max && !too_large(); ++i) {
            nfa_->silent[from].push_back(to);
            const uint32_t next = nfa_->New();
            Put(n.parts[0], from, next);
            from = next;
          }
        }
        nfa_->silent[from].push_back(to);
        break;
      }
      default: nfa_->silent[from].push_back(to); break;
    }
  }

 private:
  const Regex& regex_;
  CharNfa* nfa_;
};

absl::Status TooLarge(std::string_view path) {
  return absl::InvalidArgumentError(fmt::format("{}: the regular expression becomes too large with its bounds; smaller counts help", path));
}

}  // namespace

std::vector<char32_t> CharactersOf(std::span<const std::string> texts) {
  std::vector<char32_t> out;
  for (const std::string& text : texts) {
    for (size_t i = 0; i < text.size();) {
      const text::Utf8Step step = text::DecodeUtf8(text, i);
      out.push_back(step.code_point);
      i += step.length;
    }
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

size_t CharAutomaton::ClassOf(char32_t c) const {
  const auto it = std::upper_bound(intervals_.begin(), intervals_.end(), c, [](char32_t v, const CodePointRange& r) { return v < r.first; });
  HF_CHECK(it != intervals_.begin());
  return interval_class_[static_cast<size_t>(it - intervals_.begin()) - 1];
}

absl::StatusOr<CharAutomaton> CharAutomaton::Create(const Regex& regex, std::span<const char32_t> characters, std::string_view path, WorkBudget& work) {
  CharNfa nfa;
  const uint32_t start = nfa.New(), end = nfa.New();
  NfaWriter writer(regex, &nfa);
  writer.Put(regex.root(), start, end);
  if (writer.too_large()) return TooLarge(path);

  // Characters that no class of the expression tells apart share a class here.
  std::vector<uint32_t> leaves;
  std::vector<uint32_t> cuts{0};
  for (uint32_t i = 0; i < regex.nodes().size(); ++i) {
    if (regex.nodes()[i].kind != Kind::kClass) continue;
    leaves.push_back(i);
    for (const auto& [lo, hi] : regex.nodes()[i].ranges) {
      cuts.push_back(lo);
      cuts.push_back(hi + 1);
    }
  }
  for (const char32_t c : characters) {
    cuts.push_back(c);
    cuts.push_back(c + 1);
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  if (!work.Spend(cuts.size() * leaves.size())) return TooLarge(path);
  CharAutomaton out;
  std::map<std::pair<std::vector<bool>, uint32_t>, uint32_t> ids;
  std::vector<std::vector<bool>> members;
  for (size_t i = 0; i < cuts.size(); ++i) {
    const uint32_t lo = cuts[i], hi = (i + 1 < cuts.size() ? cuts[i + 1] : kMaxCodePoint + 1) - 1;
    if (lo > kMaxCodePoint) break;
    std::vector<bool> in(leaves.size());
    for (size_t l = 0; l < leaves.size(); ++l) in[l] = Contains(regex.nodes()[leaves[l]].ranges, lo);
    const bool own = lo == hi && std::binary_search(characters.begin(), characters.end(), lo);
    const auto [it, fresh] = ids.emplace(std::pair(in, own ? lo + 1 : 0), static_cast<uint32_t>(out.classes_.size()));
    if (fresh) {
      out.classes_.emplace_back();
      members.push_back(in);
    }
    out.classes_[it->second].push_back({lo, hi});
    out.intervals_.push_back({lo, hi});
    out.interval_class_.push_back(it->second);
  }
  for (auto& ranges : out.classes_) ranges = Normalise(ranges);
  std::vector<uint32_t> leaf_place(regex.nodes().size(), 0);
  for (uint32_t l = 0; l < leaves.size(); ++l) leaf_place[leaves[l]] = l;

  absl::flat_hash_map<std::vector<uint32_t>, uint32_t> known;
  std::vector<std::vector<uint32_t>> todo;
  std::vector<bool> seen(nfa.silent.size(), false);
  const auto intern = [&](std::vector<uint32_t> set) {
    for (const uint32_t s : set) seen[s] = true;
    for (size_t i = 0; i < set.size(); ++i) {
      for (const uint32_t to : nfa.silent[set[i]]) {
        if (!seen[to]) {
          seen[to] = true;
          set.push_back(to);
        }
      }
    }
    for (const uint32_t s : set) seen[s] = false;
    work.Spend(set.size());
    std::sort(set.begin(), set.end());
    const auto [it, fresh] = known.emplace(set, static_cast<uint32_t>(todo.size()));
    if (fresh) todo.push_back(std::move(set));
    return it->second;
  };
  intern({start});
  for (size_t at = 0; at < todo.size(); ++at) {
    if (at > kMaxStates || !work.Spend(out.classes_.size())) return TooLarge(path);
    const std::vector<uint32_t> set = todo[at];
    CharState state;
    state.final = std::binary_search(set.begin(), set.end(), end);
    state.next.assign(out.classes_.size(), kDead);
    for (size_t c = 0; c < out.classes_.size(); ++c) {
      std::vector<uint32_t> to;
      for (const uint32_t s : set) {
        for (const CharNfa::Edge& e : nfa.edges[s]) {
          work.Spend(1);
          if (members[c][leaf_place[e.leaf]]) to.push_back(e.to);
        }
      }
      std::sort(to.begin(), to.end());
      to.erase(std::unique(to.begin(), to.end()), to.end());
      if (!to.empty()) state.next[c] = intern(std::move(to));
    }
    out.states_.push_back(std::move(state));
  }
  return out;
}

bool CharAutomaton::Matches(std::string_view text) const {
  uint32_t at = 0;
  for (size_t i = 0; i < text.size();) {
    const text::Utf8Step step = text::DecodeUtf8(text, i);
    i += step.length;
    at = states_[at].next[ClassOf(step.code_point)];
    if (at == kDead) return false;
  }
  return states_[at].final;
}

absl::StatusOr<CharAutomaton> CharAutomaton::WithLength(uint32_t min, uint32_t max, std::string_view path, WorkBudget& work) const {
  CharAutomaton out = *this;
  out.states_.clear();
  const uint32_t most = max == Builder::kNoLimit ? min : max;  // counted no further
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> ids{{{0, 0}, 0}};
  std::vector<std::pair<uint32_t, uint32_t>> todo{{0, 0}};
  for (size_t at = 0; at < todo.size(); ++at) {
    if (at > kMaxStates || !work.Spend(classes_.size())) return TooLarge(path);
    const auto [state, length] = todo[at];
    CharState made;
    made.final = states_[state].final && length >= min;
    made.next.assign(classes_.size(), kDead);
    const bool full = max != Builder::kNoLimit && length == max;
    for (size_t c = 0; c < classes_.size() && !full; ++c) {
      if (states_[state].next[c] == kDead) continue;
      const std::pair<uint32_t, uint32_t> to{states_[state].next[c], std::min(most, length + 1)};
      const auto [it, fresh] = ids.emplace(to, static_cast<uint32_t>(todo.size()));
      if (fresh) todo.push_back(to);
      made.next[c] = it->second;
    }
    out.states_.push_back(std::move(made));
  }
  return out;
}

Node CharAutomaton::ToNode(Builder& builder, const SpellClass& spell) const {
  std::map<std::vector<CodePointRange>, Node> labels;
  std::vector<Builder::Edge> edges;
  std::vector<uint32_t> finals;
  for (uint32_t s = 0; s < states_.size(); ++s) {
    if (states_[s].final) finals.push_back(s);
    std::map<uint32_t, std::vector<CodePointRange>> by_target;
    for (size_t c = 0; c < classes_.size(); ++c) {
      if (states_[s].next[c] == kDead) continue;
      auto& ranges = by_target[states_[s].next[c]];
      ranges.insert(ranges.end(), classes_[c].begin(), classes_[c].end());
    }
    for (auto& [to, ranges] : by_target) {
      const auto [it, fresh] = labels.emplace(Normalise(ranges), Node{});
      if (fresh) it->second = spell(it->first);
      edges.push_back({s, it->second, to});
    }
  }
  return builder.Graph(static_cast<uint32_t>(states_.size()), edges, finals);
}

}  // namespace holdfast::grammar
