#pragma once
// A string that remembers where its parts came from: template text and model-card tokens are trusted, whatever a request brought is not.
// Concatenating and slicing keep the origin of every byte; the tokenizer matches special tokens in trusted parts only.
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace holdfast::text::jinja {

class Text {
 public:
  struct Run {
    size_t end;  // byte offset behind the run; the next run starts here
    bool trusted;
  };

  Text() = default;
  Text(std::string s, bool trusted);
  static Text Trusted(std::string s) { return Text(std::move(s), true); }
  static Text Untrusted(std::string s) { return Text(std::move(s), false); }

  const std::string& str() const { return s_; }
  std::string_view view() const { return s_; }
  size_t size() const { return s_.size(); }
  bool empty() const { return s_.empty(); }
  // Neighbouring runs differ; together they cover the string. Empty for the empty string.
  const std::vector<Run>& runs() const { return runs_; }
  bool all_trusted() const { return runs_.empty() || (runs_.size() == 1 && runs_[0].trusted); }

  void Append(std::string_view s, bool trusted);
  void Append(const Text& other);
  // Bytes [pos, pos + length) of other; the range must lie inside it.
  void AppendSlice(const Text& other, size_t pos, size_t length);
  Text Slice(size_t pos, size_t length) const;
  void Reserve(size_t bytes) { s_.reserve(bytes); }
  void Clear();
  // Cuts the text behind `size` bytes.
  void Truncate(size_t size);

  // Applies convert(string_view) -> string to each run; each result keeps its run's origin.
  template <class F>
  Text MapRuns(F convert) const {
    Text out;
    size_t begin = 0;
    for (const Run& run : runs_) {
      out.Append(convert(std::string_view(s_).substr(begin, run.end - begin)), run.trusted);
      begin = run.end;
    }
    return out;
  }

 private:
  std::string s_;
  std::vector<Run> runs_;
};

}  // namespace holdfast::text::jinja
