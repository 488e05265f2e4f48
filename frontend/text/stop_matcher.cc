#include "frontend/text/stop_matcher.h"

#include <absl/status/status.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "frontend/text/utf8.h"

namespace holdfast::text {

absl::StatusOr<StopMatcher> StopMatcher::Create(std::vector<std::string> stops) {
  StopMatcher matcher;
  for (size_t n = 0; n < stops.size(); ++n) {
    std::string& text = stops[n];
    if (text.empty()) return absl::InvalidArgumentError(fmt::format("stop string {} is empty; leave it out or give it a character", n));
    if (!IsValidUtf8(text)) return absl::InvalidArgumentError(fmt::format("stop string {} is not valid UTF-8", n));
    if (text.size() >= UINT32_MAX) return absl::InvalidArgumentError(fmt::format("stop string {} is too long", n));
    Stop stop;
    stop.fallback.assign(text.size() + 1, 0);
    uint32_t k = 0;
    for (size_t i = 1; i < text.size(); ++i) {
      while (k > 0 && text[i] != text[k]) k = stop.fallback[k];
      if (text[i] == text[k]) ++k;
      stop.fallback[i + 1] = k;
    }
    stop.text = std::move(text);
    matcher.stops_.push_back(std::move(stop));
  }
  return matcher;
}

bool StopMatcher::Push(std::string_view piece, std::string* out) {
  if (matched_) return true;
  if (stops_.empty()) {
    out->append(piece);
    return false;
  }
  for (size_t at = 0; at < piece.size(); ++at) {
    const char c = piece[at];
    for (size_t n = 0; n < stops_.size(); ++n) {
      Stop& stop = stops_[n];
      while (stop.length > 0 && stop.text[stop.length] != c) stop.length = stop.fallback[stop.length];
      if (stop.text[stop.length] == c) ++stop.length;
      if (stop.length == stop.text.size() && (!matched_ || stops_[*matched_].text.size() < stop.text.size())) matched_ = n;
    }
    if (!matched_) continue;
    held_.append(piece.substr(0, at + 1));
    const std::string_view all = held();
    out->append(all.substr(0, all.size() - stops_[*matched_].text.size()));
    held_.clear();
    head_ = 0;
    return true;
  }
  held_.append(piece);
  size_t keep = 0;
  for (const Stop& stop : stops_) keep = std::max<size_t>(keep, stop.length);
  const std::string_view all = held();
  out->append(all.substr(0, all.size() - keep));
  head_ = held_.size() - keep;
  if (head_ * 2 >= held_.size()) {
    held_.erase(0, head_);
    head_ = 0;
  }
  return false;
}

void StopMatcher::Finish(std::string* out) {
  out->append(held());
  held_.clear();
  head_ = 0;
  for (Stop& stop : stops_) stop.length = 0;
}

}  // namespace holdfast::text
