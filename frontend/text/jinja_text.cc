#include "frontend/text/jinja_text.h"

#include <algorithm>

#include "proto/base/check.h"

namespace holdfast::text::jinja {

Text::Text(std::string s, bool trusted) : s_(std::move(s)) {
  if (!s_.empty()) runs_.push_back({s_.size(), trusted});
}

void Text::Append(std::string_view s, bool trusted) {
  if (s.empty()) return;
  s_.append(s);
  if (!runs_.empty() && runs_.back().trusted == trusted) {
    runs_.back().end = s_.size();
  } else {
    runs_.push_back({s_.size(), trusted});
  }
}

void Text::Append(const Text& other) { AppendSlice(other, 0, other.size()); }

void Text::AppendSlice(const Text& other, size_t pos, size_t length) {
  HF_CHECK(this != &other && pos <= other.size() && length <= other.size() - pos);
  if (length == 0) return;
  const size_t end = pos + length;
  auto it = std::upper_bound(other.runs_.begin(), other.runs_.end(), pos, [](size_t p, const Run& r) { return p < r.end; });
  for (size_t begin = pos; begin < end; ++it) {
    const size_t stop = std::min(it->end, end);
    Append(std::string_view(other.s_).substr(begin, stop - begin), it->trusted);
    begin = stop;
  }
}

Text Text::Slice(size_t pos, size_t length) const {
  Text out;
  out.AppendSlice(*this, pos, length);
  return out;
}

void Text::Clear() {
  s_.clear();
  runs_.clear();
}

void Text::Truncate(size_t size) {
  if (size >= s_.size()) return;
  s_.resize(size);
  while (!runs_.empty() && (runs_.size() > 1 ? runs_[runs_.size() - 2].end : 0) >= size) runs_.pop_back();
  if (!runs_.empty()) runs_.back().end = size;
}

}  // namespace holdfast::text::jinja
