#include "frontend/grammar/automaton.h"

#include <absl/container/flat_hash_map.h>
#include <absl/hash/hash.h>
#include <fmt/format.h>

#include <algorithm>
#include <bitset>
#include <string>

#include "frontend/grammar/nfa.h"
#include "proto/base/check.h"
#include "proto/base/status_wire.h"

namespace holdfast::grammar {
namespace {

absl::Status Bad(std::string what) { return absl::InvalidArgumentError("the grammar " + std::move(what)); }

class Determiniser final {
 public:
  Determiniser(const NodeStore& store, uint32_t root) : store_(store), plan_(store, root) {}

  absl::StatusOr<PushdownAutomaton> Run() {
    HF_RETURN_IF_ERROR(plan_.Prepare());
    PushdownAutomaton out;
    for (uint32_t rule = 0; rule < plan_.rules(); ++rule) {  // grows while it runs: writing out a rule finds those it calls
      HF_ASSIGN_OR_RETURN(const Nfa nfa, plan_.Write(rule));
      HF_ASSIGN_OR_RETURN(Automaton made, Subsets(nfa));
      if (rule != 0) DropEmpty(&made);
      out.rules.push_back(std::move(made));
    }
    out.loops = plan_.loops();
    HF_RETURN_IF_ERROR(RefuseLeftRecursion(out));
    HF_RETURN_IF_ERROR(Trim(&out));
    for (Automaton& rule : out.rules) {
      Reduce(&rule, &work_);
      HF_RETURN_IF_ERROR(CheckWork());
    }
    DropUnused(&out);
    return out;
  }

 private:
  absl::Status CheckWork() const {
    if (work_ <= store_.limits.max_work) return absl::OkStatus();
    return Bad(fmt::format("takes more than {} steps to compile; smaller counts and fewer alternatives help", store_.limits.max_work));
  }

  // All states that `set` reaches without a symbol, sorted.
  void Close(const Nfa& nfa, std::vector<uint32_t>* set) {
    if (mark_.size() < nfa.states()) mark_.resize(nfa.states(), 0);
    ++epoch_;
    size_t kept = 0;
    for (const uint32_t s : *set) {
      if (mark_[s] != epoch_) {
        mark_[s] = epoch_;
        (*set)[kept++] = s;
      }
    }
    set->resize(kept);
    for (size_t i = 0; i < set->size(); ++i) {
      for (const uint32_t to : nfa.Silent((*set)[i])) {
        if (mark_[to] == epoch_) continue;
        mark_[to] = epoch_;
        set->push_back(to);
      }
    }
    work_ += set->size();
    std::sort(set->begin(), set->end());
  }

  absl::StatusOr<Automaton> Subsets(const Nfa& nfa) {
    absl::flat_hash_map<std::vector<uint32_t>, uint32_t> ids;
    std::vector<std::vector<uint32_t>> todo;
    Automaton out;
    const auto intern = [&](std::vector<uint32_t> set) {
      Close(nfa, &set);
      const auto [it, fresh] = ids.emplace(set, static_cast<uint32_t>(out.states.size()));
      if (fresh) {
        out.states.emplace_back();
        todo.push_back(std::move(set));
      }
      return it->second;
    };
    intern({nfa.start()});
    for (uint32_t at = 0; at < todo.size(); ++at) {
      if (++states_ > store_.limits.max_states) return Bad(fmt::format("needs more than {} states", store_.limits.max_states));
      HF_RETURN_IF_ERROR(CheckWork());
      const std::vector<uint32_t> set = std::move(todo[at]);
      State state;
      state.final = std::binary_search(set.begin(), set.end(), nfa.end());
      Bytes(nfa, set, intern, &state);
      Others(nfa, set, intern, &state);
      out.states[at] = std::move(state);
    }
    return out;
  }

  // Cuts the ranges that leave `set` at each other's ends; between two cuts, all bytes lead to the same states.
  template <class Intern>
  void Bytes(const Nfa& nfa, const std::vector<uint32_t>& set, const Intern& intern, State* state) {
    std::bitset<257> cut;
    bool any = false;
    for (const uint32_t s : set) {
      for (const NfaEdge& e : nfa.Edges(s)) {
        if (e.symbol != Symbol::kBytes) continue;
        cut[e.lo] = true;
        cut[size_t{e.hi} + 1] = true;
        any = true;
      }
    }
    if (!any) return;
    uint16_t piece_of[257];
    uint16_t first[257];
    uint16_t pieces = 0;
    for (size_t b = 0; b <= 256; ++b) {
      if (b == 0 || cut[b]) first[pieces++] = static_cast<uint16_t>(b);
      piece_of[b] = static_cast<uint16_t>(pieces - 1);
    }
    if (targets_.size() < pieces) targets_.resize(257);
    for (const uint32_t s : set) {
      for (const NfaEdge& e : nfa.Edges(s)) {
        if (e.symbol != Symbol::kBytes) continue;
        for (size_t p = piece_of[e.lo]; p <= piece_of[e.hi]; ++p) {
          targets_[p].push_back(e.to);
          ++work_;
        }
      }
    }
    for (size_t p = 0; p < pieces; ++p) {
      if (targets_[p].empty()) continue;
      const uint32_t to = intern(std::move(targets_[p]));
      targets_[p].clear();
      const auto lo = static_cast<uint8_t>(first[p]);
      const auto hi = static_cast<uint8_t>((p + 1u < pieces ? first[p + 1] : 256) - 1);
      if (!state->out.empty() && state->out.back().to == to && state->out.back().hi + 1 == lo) {
        state->out.back().hi = hi;
      } else {
        state->out.push_back({Symbol::kBytes, lo, hi, 0, to});
      }
    }
  }

  template <class Intern>
  void Others(const Nfa& nfa, const std::vector<uint32_t>& set, const Intern& intern, State* state) {
    std::vector<std::pair<std::pair<Symbol, uint32_t>, uint32_t>> found;
    for (const uint32_t s : set) {
      for (const NfaEdge& e : nfa.Edges(s)) {
        if (e.symbol != Symbol::kBytes) found.push_back({{e.symbol, e.value}, e.to});
      }
    }
    std::sort(found.begin(), found.end());
    work_ += found.size();
    for (size_t i = 0; i < found.size();) {
      const auto key = found[i].first;
      std::vector<uint32_t> to;
      for (; i < found.size() && found[i].first == key; ++i) to.push_back(found[i].second);
      state->out.push_back({key.first, 0, 0, key.second, intern(std::move(to))});
    }
  }

  // The rule without the empty text.
  static void DropEmpty(Automaton* rule) {
    if (!rule->states[0].final) return;
    bool entered = false;
    for (const State& s : rule->states) {
      for (const Transition& t : s.out) entered = entered || t.to == 0;
    }
    if (entered) {
      const State start = rule->states[0];
      rule->states.push_back(start);
      const auto copy = static_cast<uint32_t>(rule->states.size() - 1);
      for (State& s : rule->states) {
        for (Transition& t : s.out) {
          if (t.to == 0) t.to = copy;
        }
      }
    }
    rule->states[0].final = false;
  }

  absl::Status RefuseLeftRecursion(const PushdownAutomaton& all) const {
    enum : uint8_t { kNew, kOpen, kDone };
    std::vector<uint8_t> seen(all.rules.size(), kNew);
    struct Open {
      uint32_t rule;
      size_t next;
    };
    std::vector<Open> path;
    for (uint32_t root = 0; root < all.rules.size(); ++root) {
      if (seen[root] != kNew) continue;
      seen[root] = kOpen;
      path.push_back({root, 0});
      while (!path.empty()) {
        const uint32_t rule = path.back().rule;
        const std::vector<Transition>& out = all.rules[rule].states[0].out;
        if (path.back().next == out.size()) {
          seen[rule] = kDone;
          path.pop_back();
          continue;
        }
        const Transition& t = out[path.back().next++];
        if (t.symbol != Symbol::kCall && t.symbol != Symbol::kLoop) continue;
        const uint32_t to = t.symbol == Symbol::kCall ? t.value : all.loops[t.value].rule;
        if (seen[to] == kOpen) return Bad(fmt::format("has a rule that begins with itself: {}", plan_.RuleName(to)));
        if (seen[to] == kNew) {
          seen[to] = kOpen;
          path.push_back({to, 0});
        }
      }
    }
    return absl::OkStatus();
  }

  // Leaves out every transition behind which the end of the rule cannot be reached.
  absl::Status Trim(PushdownAutomaton* all) {
    const size_t n = all->rules.size();
    std::vector<std::vector<bool>> useful(n);
    for (size_t r = 0; r < n; ++r) useful[r].assign(all->rules[r].states.size(), false);
    // A rule is looked at again when one that it calls turns out to have an end.
    std::vector<std::vector<uint32_t>> callers(n);
    for (uint32_t r = 0; r < n; ++r) {
      for (const State& s : all->rules[r].states) {
        for (const Transition& t : s.out) {
          if (t.symbol == Symbol::kCall) callers[t.value].push_back(r);
          if (t.symbol == Symbol::kLoop) callers[all->loops[t.value].rule].push_back(r);
        }
      }
    }
    std::vector<uint32_t> todo;
    std::vector<bool> queued(n, true);
    for (uint32_t r = 0; r < n; ++r) todo.push_back(static_cast<uint32_t>(n - 1 - r));
    const auto passable = [&](const Transition& t) {
      if (t.symbol == Symbol::kCall) return bool{useful[t.value][0]};
      if (t.symbol == Symbol::kLoop) return bool{useful[all->loops[t.value].rule][0]};
      return true;
    };
    while (!todo.empty()) {
      const uint32_t r = todo.back();
      todo.pop_back();
      queued[r] = false;
      HF_RETURN_IF_ERROR(CheckWork());
      const bool had_end = useful[r][0];
      std::vector<State>& states = all->rules[r].states;
      std::vector<std::vector<uint32_t>> back(states.size());
      std::vector<uint32_t> reach;
      for (uint32_t s = 0; s < states.size(); ++s) {
        if (states[s].final) reach.push_back(s);
        for (const Transition& t : states[s].out) {
          ++work_;
          if (passable(t)) back[t.to].push_back(s);
        }
      }
      std::vector<bool> now(states.size(), false);
      for (const uint32_t s : reach) now[s] = true;
      while (!reach.empty()) {
        const uint32_t s = reach.back();
        reach.pop_back();
        for (const uint32_t from : back[s]) {
          if (!now[from]) {
            now[from] = true;
            reach.push_back(from);
          }
        }
      }
      useful[r] = std::move(now);
      if (had_end || !useful[r][0]) continue;
      for (const uint32_t caller : callers[r]) {
        if (!queued[caller]) {
          queued[caller] = true;
          todo.push_back(caller);
        }
      }
    }
    if (!useful[0][0]) return Bad("allows no answer at all: every alternative contradicts itself");
    for (size_t r = 0; r < n; ++r) {
      for (uint32_t s = 0; s < all->rules[r].states.size(); ++s) {
        auto& out = all->rules[r].states[s].out;
        std::erase_if(out, [&](const Transition& t) { return !useful[r][t.to] || !passable(t); });
      }
    }
    return absl::OkStatus();
  }

  static void DropUnused(PushdownAutomaton* all) {
    constexpr uint32_t kUnused = UINT32_MAX;
    std::vector<uint32_t> rule_id(all->rules.size(), kUnused), loop_id(all->loops.size(), kUnused);
    std::vector<uint32_t> order{0};
    std::vector<Loop> loops;
    rule_id[0] = 0;
    const auto use = [&](uint32_t rule) {
      if (rule_id[rule] != kUnused) return;
      rule_id[rule] = static_cast<uint32_t>(order.size());
      order.push_back(rule);
    };
    for (size_t i = 0; i < order.size(); ++i) {
      for (const State& s : all->rules[order[i]].states) {
        for (const Transition& t : s.out) {
          if (t.symbol == Symbol::kCall) use(t.value);
          if (t.symbol == Symbol::kLoop && loop_id[t.value] == kUnused) {
            loop_id[t.value] = static_cast<uint32_t>(loops.size());
            loops.push_back(all->loops[t.value]);
            use(all->loops[t.value].rule);
          }
        }
      }
    }
    std::vector<Automaton> rules;
    for (const uint32_t r : order) {
      rules.push_back(std::move(all->rules[r]));
      for (State& s : rules.back().states) {
        for (Transition& t : s.out) {
          if (t.symbol == Symbol::kCall) t.value = rule_id[t.value];
          if (t.symbol == Symbol::kLoop) t.value = loop_id[t.value];
        }
      }
    }
    for (Loop& l : loops) l.rule = rule_id[l.rule];
    all->rules = std::move(rules);
    all->loops = std::move(loops);
  }

  const NodeStore& store_;
  RulePlan plan_;
  uint64_t work_ = 0;
  uint64_t states_ = 0;
  std::vector<uint32_t> mark_;
  uint32_t epoch_ = 0;
  std::vector<std::vector<uint32_t>> targets_;
};

}  // namespace

absl::StatusOr<PushdownAutomaton> Determinise(const NodeStore& store, uint32_t root) { return Determiniser(store, root).Run(); }

}  // namespace holdfast::grammar
