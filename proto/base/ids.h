#pragma once
// StrongId: an integer with a kind. Ids of different kinds neither convert nor compare; arithmetic is spelled out.
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace holdfast {

template <class Tag, class Rep>
struct StrongId {
  using rep = Rep;
  Rep v{};

  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep value) : v(value) {}
  constexpr auto operator<=>(const StrongId&) const = default;
  constexpr StrongId Next() const { return StrongId(static_cast<Rep>(v + 1)); }
};

using RequestId = StrongId<struct RequestIdTag, uint64_t>;     // the supervisor's, unique for its life
using Generation = StrongId<struct GenerationTag, uint64_t>;   // one life of the worker group; 0 = none yet
using Rank = StrongId<struct RankTag, uint32_t>;
using CommandSeq = StrongId<struct CommandSeqTag, uint64_t>;   // position in the group's ordered log; first is 1
using StepNo = StrongId<struct StepNoTag, uint64_t>;           // first is 1
using TokenId = uint32_t;                                      // index into the vocabulary

}  // namespace holdfast

template <class Tag, class Rep>
struct std::hash<holdfast::StrongId<Tag, Rep>> {
  std::size_t operator()(const holdfast::StrongId<Tag, Rep>& id) const noexcept { return std::hash<Rep>()(id.v); }
};
