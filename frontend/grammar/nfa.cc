#include "frontend/grammar/nfa.h"

#include <fmt/format.h>

#include "proto/base/check.h"

namespace holdfast::grammar {
namespace {

// Parts of this size that occur more than once are written once, as a rule.
constexpr uint32_t kSharedSize = 48;

}  // namespace

void Nfa::Finish() {
  silent_at_.assign(states_ + 1, 0);
  edge_at_.assign(states_ + 1, 0);
  for (const auto& [from, to] : silent_) ++silent_at_[from + 1];
  for (const auto& [from, edge] : edges_) ++edge_at_[from + 1];
  for (uint32_t s = 0; s < states_; ++s) {
    silent_at_[s + 1] += silent_at_[s];
    edge_at_[s + 1] += edge_at_[s];
  }
  silent_to_.resize(silent_.size());
  edge_to_.resize(edges_.size());
  std::vector<uint32_t> at(silent_at_.begin(), silent_at_.end());
  for (const auto& [from, to] : silent_) silent_to_[at[from]++] = to;
  at.assign(edge_at_.begin(), edge_at_.end());
  for (const auto& [from, edge] : edges_) edge_to_[at[from]++] = edge;
}

void RulePlan::Children(uint32_t node, std::vector<uint32_t>* out) const {
  const NodeData& data = store_.nodes[node];
  out->clear();
  switch (data.kind) {
    case NodeKind::kSeq:
    case NodeKind::kChoice: *out = data.parts; break;
    case NodeKind::kRepeat: out->push_back(data.value); break;
    case NodeKind::kGraph:
      for (const GraphEdge& e : store_.graphs[data.value].edges) {
        if (e.label != kNoNode) out->push_back(e.label);
      }
      break;
    case NodeKind::kRule: out->push_back(store_.rules[data.value].meaning); break;
    default: break;
  }
}

absl::Status RulePlan::Prepare() {
  uses_.assign(store_.nodes.size(), 0);
  nullable_.assign(store_.nodes.size(), false);
  struct Open {
    uint32_t node;
    std::vector<uint32_t> children;
    size_t next = 0;
  };
  std::vector<Open> path;
  const auto enter = [&](uint32_t node) -> absl::Status {
    if (++uses_[node] > 1) return absl::OkStatus();
    const NodeData& data = store_.nodes[node];
    if (data.kind == NodeKind::kRule && store_.rules[data.value].meaning == kNoNode) {
      return absl::InvalidArgumentError(fmt::format("the grammar uses the rule {}, which is never defined", store_.rules[data.value].name));
    }
    Open open{node, {}, 0};
    Children(node, &open.children);
    path.push_back(std::move(open));
    return absl::OkStatus();
  };
  if (absl::Status s = enter(root_); !s.ok()) return s;
  while (!path.empty()) {
    Open& top = path.back();
    if (top.next == top.children.size()) {
      order_.push_back(top.node);
      path.pop_back();
      continue;
    }
    if (absl::Status s = enter(top.children[top.next++]); !s.ok()) return s;
  }
  // Only declared rules can see a part before it is decided; each round that changes something decides at least one of them.
  for (bool changed = true; changed;) {
    changed = false;
    for (const uint32_t node : order_) {
      if (!nullable_[node] && ComputeNullable(node)) nullable_[node] = changed = true;
    }
  }
  rule_nodes_.push_back(root_);  // not entered in rule_of_node_: should something call the root node, it calls a copy
  return absl::OkStatus();
}

bool RulePlan::ComputeNullable(uint32_t node) const {
  const NodeData& data = store_.nodes[node];
  switch (data.kind) {
    case NodeKind::kEmpty: return true;
    case NodeKind::kNever:
    case NodeKind::kBytes:
    case NodeKind::kUtf8:
    case NodeKind::kSpecial: return false;
    case NodeKind::kSeq:
      for (const uint32_t part : data.parts) {
        if (!nullable_[part]) return false;
      }
      return true;
    case NodeKind::kChoice:
      for (const uint32_t part : data.parts) {
        if (nullable_[part]) return true;
      }
      return false;
    case NodeKind::kRepeat: return data.min == 0 || nullable_[data.value];
    case NodeKind::kRule: return nullable_[store_.rules[data.value].meaning];
    case NodeKind::kGraph: break;
  }
  const GraphData& graph = store_.graphs[data.value];
  std::vector<bool> reached(graph.states, false);
  if (graph.states == 0) return false;
  reached[0] = true;
  for (bool changed = true; changed;) {
    changed = false;
    for (const GraphEdge& e : graph.edges) {
      if (reached[e.from] && !reached[e.to] && e.label != kNoNode && nullable_[e.label]) reached[e.to] = changed = true;
    }
  }
  for (const uint32_t f : graph.finals) {
    if (reached[f]) return true;
  }
  return false;
}

bool RulePlan::IsShared(uint32_t node) const {
  const NodeData& data = store_.nodes[node];
  return uses_[node] > 1 && data.size > kSharedSize && data.kind != NodeKind::kBytes;
}

uint32_t RulePlan::RuleOf(uint32_t node) {
  const auto [it, fresh] = rule_of_node_.emplace(node, rules());
  if (fresh) rule_nodes_.push_back(node);
  return it->second;
}

uint32_t RulePlan::LoopOf(const Loop& loop) {
  std::vector<uint32_t>& same_rule = loops_by_rule_[loop.rule];
  for (const uint32_t l : same_rule) {
    if (loops_[l] == loop) return l;
  }
  loops_.push_back(loop);
  same_rule.push_back(static_cast<uint32_t>(loops_.size() - 1));
  return same_rule.back();
}

std::string RulePlan::RuleName(uint32_t rule) const {
  const uint32_t node = rule_nodes_[rule];
  for (const RuleData& r : store_.rules) {
    if (r.meaning == node) return r.name;
  }
  return rule == 0 ? "the whole" : "a part without a name";
}

// Adds paths from one state to another. No path enters the first or leaves the second, so several parts can share both.
class RulePlan::Writer final {
 public:
  Writer(RulePlan* plan, Nfa* nfa) : plan_(plan), store_(plan->store_), nfa_(nfa), most_(8 * uint64_t{plan->store_.limits.max_states}) {}

  bool too_large() const { return nfa_->transitions() > most_ || nfa_->states() > most_; }

  void Put(uint32_t node, uint32_t from, uint32_t to, bool inside = false) {
    if (too_large()) return;
    const NodeData& data = store_.nodes[node];
    if (!inside && data.kind != NodeKind::kRule && plan_->IsShared(node)) return Call(plan_->RuleOf(node), node, from, to);
    switch (data.kind) {
      case NodeKind::kEmpty: nfa_->AddSilent(from, to); break;
      case NodeKind::kNever: break;
      case NodeKind::kBytes: PutBytes(data.bytes, from, to); break;
      case NodeKind::kUtf8:
        for (const Utf8Sequence& s : data.sequences) PutSequence(s, from, to);
        break;
      case NodeKind::kSpecial: nfa_->Add(from, {Symbol::kSpecial, 0, 0, data.value, to}); break;
      case NodeKind::kSeq: {
        uint32_t at = from;
        for (size_t i = 0; i < data.parts.size(); ++i) {
          const uint32_t next = i + 1 == data.parts.size() ? to : nfa_->NewState();
          Put(data.parts[i], at, next);
          at = next;
        }
        break;
      }
      case NodeKind::kChoice:
        for (const uint32_t part : data.parts) Put(part, from, to);
        break;
      case NodeKind::kRepeat: PutRepeat(data, from, to); break;
      case NodeKind::kGraph: PutGraph(store_.graphs[data.value], from, to); break;
      case NodeKind::kRule: Call(plan_->RuleOf(store_.rules[data.value].meaning), node, from, to); break;
    }
  }

 private:
  void Call(uint32_t rule, uint32_t node, uint32_t from, uint32_t to) {
    nfa_->Add(from, {Symbol::kCall, 0, 0, rule, to});
    if (plan_->nullable_[node]) nfa_->AddSilent(from, to);
  }

  void PutBytes(const std::string& bytes, uint32_t from, uint32_t to) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      const uint32_t next = i + 1 == bytes.size() ? to : nfa_->NewState();
      const auto b = static_cast<uint8_t>(bytes[i]);
      nfa_->Add(from, {Symbol::kBytes, b, b, 0, next});
      from = next;
    }
  }

  void PutSequence(const Utf8Sequence& s, uint32_t from, uint32_t to) {
    for (uint32_t i = 0; i < s.length; ++i) {
      const uint32_t next = i + 1 == s.length ? to : nfa_->NewState();
      nfa_->Add(from, {Symbol::kBytes, s.bytes[i].lo, s.bytes[i].hi, 0, next});
      from = next;
    }
  }

  void PutRepeat(const NodeData& data, uint32_t from, uint32_t to) {
    const bool nullable = plan_->nullable_[data.value];
    if (data.counted) {
      // The loop's rule never passes the empty text, so a part that may be empty need not occur at all.
      const Loop loop{plan_->RuleOf(data.value), nullable ? 0 : data.min, data.max == Builder::kNoLimit ? 0 : data.max};
      nfa_->Add(from, {Symbol::kLoop, 0, 0, plan_->LoopOf(loop), to});
      if (loop.min == 0) nfa_->AddSilent(from, to);
      return;
    }
    uint32_t at = from;
    for (uint32_t i = 0; i < data.min; ++i) {
      const bool last = i + 1 == data.min && data.max == data.min;
      const uint32_t next = last ? to : nfa_->NewState();
      Put(data.value, at, next);
      at = next;
    }
    if (data.max == data.min) return;
    if (data.max == Builder::kNoLimit) {
      const uint32_t turn = nfa_->NewState();
      nfa_->AddSilent(at, turn);
      Put(data.value, turn, turn);
      nfa_->AddSilent(turn, to);
      return;
    }
    nfa_->AddSilent(at, to);
    for (uint32_t i = data.min; i < data.max; ++i) {
      const bool last = i + 1 == data.max;
      const uint32_t next = last ? to : nfa_->NewState();
      Put(data.value, at, next);
      if (!last) nfa_->AddSilent(next, to);
      at = next;
    }
  }

  void PutGraph(const GraphData& graph, uint32_t from, uint32_t to) {
    if (graph.states == 0) return;
    std::vector<uint32_t> state(graph.states);
    for (uint32_t& s : state) s = nfa_->NewState();
    nfa_->AddSilent(from, state[0]);
    for (const uint32_t f : graph.finals) nfa_->AddSilent(state[f], to);
    for (const GraphEdge& e : graph.edges) {
      if (e.label == kNoNode) {
        nfa_->Add(state[e.from], {Symbol::kBytes, e.lo, e.hi, 0, state[e.to]});
      } else {
        Put(e.label, state[e.from], state[e.to]);
      }
    }
  }

  RulePlan* plan_;
  const NodeStore& store_;
  Nfa* nfa_;
  const uint64_t most_;
};

absl::StatusOr<Nfa> RulePlan::Write(uint32_t rule) {
  Nfa nfa;
  Writer writer(this, &nfa);
  writer.Put(rule_nodes_[rule], nfa.start(), nfa.end(), true);
  if (writer.too_large()) {
    return absl::InvalidArgumentError(fmt::format("the grammar needs more than {} states", store_.limits.max_states));
  }
  nfa.Finish();
  return nfa;
}

}  // namespace holdfast::grammar
