#include <absl/container/flat_hash_map.h>

#include <string>
#include <utility>

#include "frontend/grammar/automaton.h"

namespace holdfast::grammar {
namespace {

void Put(uint32_t v, std::string* out) { out->append(reinterpret_cast<const char*>(&v), sizeof v); }

}  // namespace

// Strongly connected components come out of Tarjan's algorithm with all their successors before them, so a state that is on no cycle (or
// only on a loop of its own) can be looked up by what its transitions lead to.
void Reduce(Automaton* automaton, uint64_t* work) {
  std::vector<State>& states = automaton->states;
  const auto n = static_cast<uint32_t>(states.size());
  std::vector<uint32_t> index(n, 0), low(n, 0), same(n, UINT32_MAX);
  std::vector<bool> open(n, false);
  std::vector<uint32_t> component;
  std::vector<std::pair<uint32_t, size_t>> path;
  absl::flat_hash_map<std::string, uint32_t> known;
  uint32_t next = 1;
  std::string key;
  const auto settle = [&](uint32_t s, bool alone) {
    if (!alone) {
      same[s] = s;
      return;
    }
    key.assign(1, states[s].final ? '1' : '0');
    for (const Transition& t : states[s].out) {
      key.push_back(static_cast<char>(t.symbol));
      key.push_back(static_cast<char>(t.lo));
      key.push_back(static_cast<char>(t.hi));
      Put(t.value, &key);
      Put(t.to == s ? UINT32_MAX : same[t.to], &key);
    }
    *work += 1 + states[s].out.size();
    same[s] = known.emplace(key, s).first->second;
  };
  const auto enter = [&](uint32_t s) {
    index[s] = low[s] = next++;
    open[s] = true;
    component.push_back(s);
    path.push_back({s, 0});
  };
  enter(0);
  while (!path.empty()) {
    const uint32_t s = path.back().first;
    if (path.back().second < states[s].out.size()) {
      const uint32_t to = states[s].out[path.back().second++].to;
      if (index[to] == 0) {
        enter(to);
      } else if (open[to]) {
        low[s] = std::min(low[s], index[to]);
      }
      continue;
    }
    path.pop_back();
    if (!path.empty()) low[path.back().first] = std::min(low[path.back().first], low[s]);
    if (low[s] != index[s]) continue;
    const bool alone = component.back() == s;
    for (uint32_t member = UINT32_MAX; member != s;) {
      member = component.back();
      component.pop_back();
      open[member] = false;
      settle(member, alone);
    }
  }
  // The start keeps its place; what it does not reach is gone.
  std::vector<uint32_t> place(n, UINT32_MAX), order;
  const auto keep = [&](uint32_t s) {
    if (place[s] != UINT32_MAX) return;
    place[s] = static_cast<uint32_t>(order.size());
    order.push_back(s);
  };
  keep(same[0]);
  for (size_t i = 0; i < order.size(); ++i) {
    for (const Transition& t : states[order[i]].out) keep(same[t.to]);
  }
  std::vector<State> kept;
  kept.reserve(order.size());
  for (const uint32_t s : order) {
    State state;
    state.final = states[s].final;
    for (Transition t : states[s].out) {
      t.to = place[same[t.to]];
      if (t.symbol == Symbol::kBytes && !state.out.empty() && state.out.back().symbol == Symbol::kBytes && state.out.back().to == t.to &&
          state.out.back().hi + 1 == t.lo) {
        state.out.back().hi = t.hi;
      } else {
        state.out.push_back(t);
      }
    }
    kept.push_back(std::move(state));
  }
  states = std::move(kept);
}

}  // namespace holdfast::grammar
