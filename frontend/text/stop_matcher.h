#pragma once
// Finds stop strings in a stream of text and holds back whatever could still become one. The released text and the place of the match
// depend on the text alone, not on how it was cut into pieces. Knuth-Morris-Pratt for each stop string: time is linear in the text for
// each of them, memory in the stop strings. One generation's; not thread-safe.
#include <absl/status/statusor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace holdfast::text {

class StopMatcher final {
 public:
  // No stop string may be empty or invalid UTF-8 (kInvalidArgument); there may be none at all. How many and how long is the caller's limit.
  static absl::StatusOr<StopMatcher> Create(std::vector<std::string> stops);

  // Takes the next piece (whole characters) and appends to `out` what can no longer be part of a stop string. True when a stop string
  // is complete: the one that ends first, of several the longest; everything before it has then been released, and the rest of the
  // text is ignored.
  bool Push(std::string_view piece, std::string* out);
  // The end of the text: releases what was held back.
  void Finish(std::string* out);

  // Text that is held back: a proper prefix of some stop string.
  std::string_view held() const { return std::string_view(held_).substr(head_); }
  bool stopped() const { return matched_.has_value(); }
  std::optional<size_t> matched() const { return matched_; }  // index into Create's list
  const std::string& stop(size_t index) const { return stops_[index].text; }

 private:
  struct Stop {
    std::string text;
    std::vector<uint32_t> fallback;  // [i]: length of the longest proper prefix of text[0, i) that is its suffix as well; size + 1 entries
    uint32_t length = 0;             // how much of text the stream ends with now
  };

  StopMatcher() = default;

  std::vector<Stop> stops_;
  std::string held_;                 // held back text from head_ on; the front is cut off when it is half of the string
  size_t head_ = 0;
  std::optional<size_t> matched_;
};

}  // namespace holdfast::text
