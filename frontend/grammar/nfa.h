#pragma once
// Which parts of a grammar become rules, and each rule written out as a nondeterministic automaton. Internal to frontend/grammar.
#include <absl/container/flat_hash_map.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "frontend/grammar/automaton.h"
#include "frontend/grammar/nodes.h"

namespace holdfast::grammar {

struct NfaEdge {
  Symbol symbol = Symbol::kBytes;
  uint8_t lo = 0, hi = 0;
  uint32_t value = 0;
  uint32_t to = 0;
};

class Nfa final {
 public:
  uint32_t NewState() { return states_++; }
  void AddSilent(uint32_t from, uint32_t to) { silent_.push_back({from, to}); }
  void Add(uint32_t from, NfaEdge edge) { edges_.push_back({from, edge}); }
  // After the last Add, before the first look.
  void Finish();

  uint32_t states() const { return states_; }
  size_t transitions() const { return edges_.size() + silent_.size(); }
  uint32_t start() const { return 0; }
  uint32_t end() const { return 1; }
  std::span<const uint32_t> Silent(uint32_t s) const { return std::span(silent_to_).subspan(silent_at_[s], silent_at_[s + 1] - silent_at_[s]); }
  std::span<const NfaEdge> Edges(uint32_t s) const { return std::span(edge_to_).subspan(edge_at_[s], edge_at_[s + 1] - edge_at_[s]); }

 private:
  uint32_t states_ = 2;
  std::vector<std::pair<uint32_t, uint32_t>> silent_;
  std::vector<std::pair<uint32_t, NfaEdge>> edges_;
  std::vector<uint32_t> silent_at_, silent_to_, edge_at_;
  std::vector<NfaEdge> edge_to_;
};

// Rules are: the root, what was declared, the bodies of counted loops, and large parts that occur more than once.
class RulePlan final {
 public:
  RulePlan(const NodeStore& store, uint32_t root) : store_(store), root_(root) {}

  // kInvalidArgument when a rule that is used was never defined.
  absl::Status Prepare();
  // Rules known so far; Write finds more.
  uint32_t rules() const { return static_cast<uint32_t>(rule_nodes_.size()); }
  absl::StatusOr<Nfa> Write(uint32_t rule);
  const std::vector<Loop>& loops() const { return loops_; }
  std::string RuleName(uint32_t rule) const;

 private:
  class Writer;
  void Children(uint32_t node, std::vector<uint32_t>* out) const;
  bool ComputeNullable(uint32_t node) const;
  uint32_t RuleOf(uint32_t node);
  uint32_t LoopOf(const Loop& loop);
  bool IsShared(uint32_t node) const;

  const NodeStore& store_;
  const uint32_t root_;
  std::vector<uint32_t> order_;                  // nodes in use, parts before wholes (declared rules aside)
  std::vector<uint32_t> uses_;
  std::vector<bool> nullable_;
  std::vector<uint32_t> rule_nodes_;             // what each rule means
  absl::flat_hash_map<uint32_t, uint32_t> rule_of_node_;
  std::vector<Loop> loops_;
  absl::flat_hash_map<uint64_t, std::vector<uint32_t>> loops_by_rule_;
};

}  // namespace holdfast::grammar
