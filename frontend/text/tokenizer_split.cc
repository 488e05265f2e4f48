#include "frontend/text/tokenizer_split.h"

#include <algorithm>

#include "frontend/text/unicode.h"
#include "frontend/text/utf8.h"
#include "proto/base/check.h"

namespace holdfast::text {
namespace {

struct NamedPattern {
  std::string_view pre;
  SplitPattern pattern;
};
constexpr NamedPattern kPatterns[] = {
    {"gpt-2", SplitPattern::kGpt2},       {"default", SplitPattern::kGpt2},     {"smollm", SplitPattern::kSmollm},
    {"starcoder", SplitPattern::kSmollm}, {"refact", SplitPattern::kSmollm},    {"command-r", SplitPattern::kSmollm},
    {"llama-bpe", SplitPattern::kLlamaBpe}, {"llama3", SplitPattern::kLlamaBpe}, {"llama-v3", SplitPattern::kLlamaBpe},
    {"qwen2", SplitPattern::kQwen2},      {"deepseek-r1-qwen", SplitPattern::kQwen2}, {"kormo", SplitPattern::kQwen2},
    {"stablelm2", SplitPattern::kQwen2},  {"hunyuan", SplitPattern::kQwen2},    {"qwen35", SplitPattern::kQwen35},
    {"gpt-4o", SplitPattern::kGpt4o},     {"tekken", SplitPattern::kTekken},
};

// The text as code points, with classes and byte offsets side by side (offset[size] is the text's length).
class Chars final {
 public:
  explicit Chars(std::string_view text) {
    code_.reserve(text.size());
    class_.reserve(text.size());
    offset_.reserve(text.size() + 1);
    for (size_t at = 0; at < text.size();) {
      const Utf8Step step = DecodeUtf8(text, at);
      offset_.push_back(static_cast<uint32_t>(at));
      code_.push_back(step.code_point);
      class_.push_back(step.kind == Utf8Kind::kOk ? ClassOf(step.code_point) : CharClass::kOther);
      at += step.length;
    }
    offset_.push_back(static_cast<uint32_t>(text.size()));
  }
  size_t size() const { return code_.size(); }
  uint32_t offset(size_t i) const { return offset_[i]; }
  char32_t code(size_t i) const { return i < code_.size() ? code_[i] : 0; }
  CharClass cls(size_t i) const { return i < class_.size() ? class_[i] : CharClass::kOther; }

  bool Letter(size_t i) const { return i < size() && IsLetter(class_[i]); }
  bool Mark(size_t i) const { return i < size() && class_[i] == CharClass::kMark; }
  bool Number(size_t i) const { return i < size() && class_[i] == CharClass::kNumber; }
  bool Space(size_t i) const { return i < size() && class_[i] == CharClass::kSpace; }
  bool Newline(size_t i) const { return code(i) == '\n' || code(i) == '\r'; }
  // [^\s L N]
  bool Symbol(size_t i) const { return i < size() && !Letter(i) && !Number(i) && !Space(i); }

 private:
  std::vector<char32_t> code_;
  std::vector<CharClass> class_;
  std::vector<uint32_t> offset_;
};

template <class Predicate>
size_t RunEnd(size_t i, Predicate in_run) {
  while (in_run(i)) ++i;
  return i;
}

// Length in characters of 's 't 're 've 'm 'll 'd at i, or 0.
size_t Contraction(const Chars& c, size_t i, bool any_case) {
  if (c.code(i) != '\'') return 0;
  const auto letter = [&](size_t k) -> char32_t {
    const char32_t x = c.code(k);
    return any_case && x >= 'A' && x <= 'Z' ? x + ('a' - 'A') : x;
  };
  const char32_t a = letter(i + 1), b = letter(i + 2);
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return 3;
  return 0;
}

// \s+(?!\S)|\s+ at a white-space character, in the stretch that ends at `end`: a run gives its last character to the word after it.
size_t SpaceEnd(const Chars& c, size_t i, size_t end) {
  const size_t run = RunEnd(i, [&](size_t k) { return k < end && c.Space(k); });
  return run == end || run - i == 1 ? run : run - 1;
}

// One piece of the GPT-2 pattern from i on, in a stretch that ends at `end`.
size_t Gpt2End(const Chars& c, size_t i, size_t end) {
  const auto run = [&](size_t from, auto in_run) { return RunEnd(from, [&](size_t k) { return k < end && in_run(k); }); };
  if (const size_t n = Contraction(c, i, false); n != 0 && i + n <= end) return i + n;
  const size_t s = c.code(i) == ' ' && i + 1 < end ? i + 1 : i;
  if (c.Letter(s)) return run(s, [&](size_t k) { return c.Letter(k); });
  if (c.Number(s)) return run(s, [&](size_t k) { return c.Number(k); });
  if (c.Symbol(s)) return run(s, [&](size_t k) { return c.Symbol(k); });
  return SpaceEnd(c, i, end);
}

// What the newer patterns share after their words: numbers, symbols with trailing line ends, lines, blanks.
size_t TailEnd(const Chars& c, size_t i, size_t max_digits, bool slash) {
  if (c.Number(i)) {
    size_t n = i;
    while (n - i < max_digits && c.Number(n)) ++n;
    return n;
  }
  const size_t s = c.code(i) == ' ' && c.Symbol(i + 1) ? i + 1 : i;
  if (c.Symbol(s)) {
    const size_t end = RunEnd(s, [&](size_t k) { return c.Symbol(k); });
    return RunEnd(end, [&](size_t k) { return k < c.size() && (c.Newline(k) || (slash && c.code(k) == '/')); });
  }
  size_t after_line = 0;
  const size_t run = RunEnd(i, [&](size_t k) {
    if (!c.Space(k)) return false;
    if (c.Newline(k)) after_line = k + 1;
    return true;
  });
  if (after_line != 0) return after_line;
  return run == c.size() || run - i == 1 ? run : run - 1;
}

size_t LlamaBpeEnd(const Chars& c, size_t i, size_t max_digits, bool marks) {
  if (const size_t n = Contraction(c, i, true)) return i + n;
  const auto word = [&](size_t k) { return c.Letter(k) || (marks && c.Mark(k)); };
  if (word(i)) return RunEnd(i, word);
  if (!c.Newline(i) && !c.Number(i) && word(i + 1)) return RunEnd(i + 1, word);
  return TailEnd(c, i, max_digits, false);
}

bool UpperLike(const Chars& c, size_t i) {  // [Lu Lt Lm Lo M]
  return (c.Letter(i) && c.cls(i) != CharClass::kLower) || c.Mark(i);
}
bool LowerLike(const Chars& c, size_t i) {  // [Ll Lm Lo M]
  return (c.Letter(i) && c.cls(i) != CharClass::kUpper && c.cls(i) != CharClass::kTitle) || c.Mark(i);
}

// [Lu Lt Lm Lo M]*[Ll Lm Lo M]+ from s, as a backtracking matcher finds it; 0 when it does not match. `upper` receives the end of
// the upper-case-like run.
size_t MixedWordEnd(const Chars& c, size_t s, size_t* upper) {
  const size_t e = RunEnd(s, [&](size_t k) { return UpperLike(c, k); });
  *upper = e;
  if (LowerLike(c, e)) return RunEnd(e, [&](size_t k) { return LowerLike(c, k); });
  // The first run gives back characters until one fits both classes; what follows it fits only the first.
  for (size_t k = e; k > s; --k) {
    if (LowerLike(c, k - 1)) return k;
  }
  return 0;
}

// The word alternatives of the gpt-4o pattern at i; 0 when none matches. The optional first character is tried taken, then not, and
// the second alternative (an upper-case run with whatever lower-case follows) only after both.
size_t Gpt4oWordEnd(const Chars& c, size_t i) {
  const bool prefix = !c.Newline(i) && !c.Letter(i) && !c.Number(i);
  size_t upper_after = 0, upper_here = 0;
  if (prefix) {
    if (const size_t end = MixedWordEnd(c, i + 1, &upper_after)) return end;
  }
  if (const size_t end = MixedWordEnd(c, i, &upper_here)) return end;
  // No character of the runs is lower-case-like here, so nothing follows them.
  if (prefix && upper_after > i + 1) return upper_after;
  return upper_here > i ? upper_here : 0;
}

size_t Gpt4oEnd(const Chars& c, size_t i, size_t max_digits, bool contractions) {
  if (const size_t end = Gpt4oWordEnd(c, i)) return end + (contractions ? Contraction(c, end, true) : 0);
  return TailEnd(c, i, max_digits, true);
}

size_t PieceEnd(SplitPattern pattern, const Chars& c, size_t i) {
  constexpr size_t kOne = 1, kThree = 3;
  switch (pattern) {
    case SplitPattern::kLlamaBpe: return LlamaBpeEnd(c, i, kThree, false);
    case SplitPattern::kQwen2: return LlamaBpeEnd(c, i, kOne, false);
    case SplitPattern::kQwen35: return LlamaBpeEnd(c, i, kOne, true);
    case SplitPattern::kGpt4o: return Gpt4oEnd(c, i, kThree, true);
    case SplitPattern::kTekken: return Gpt4oEnd(c, i, kOne, false);
    case SplitPattern::kGpt2:
    case SplitPattern::kSmollm: break;
  }
  return Gpt2End(c, i, c.size());
}

}  // namespace

std::optional<SplitPattern> SplitPatternOf(std::string_view pre) {
  if (pre.empty()) return SplitPattern::kGpt2;
  for (const NamedPattern& p : kPatterns) {
    if (p.pre == pre) return p.pattern;
  }
  return std::nullopt;
}

std::string KnownSplitPatterns() {
  std::string out;
  for (const NamedPattern& p : kPatterns) out.append(out.empty() ? "" : ", ").append(p.pre);
  return out;
}

void SplitText(SplitPattern pattern, std::string_view text, std::vector<uint32_t>* ends) {
  HF_CHECK(text.size() < UINT32_MAX);
  ends->clear();
  const Chars c(text);
  size_t stretch = 0;  // kSmollm: end of the stretch without numbers that i is in
  for (size_t i = 0; i < c.size();) {
    size_t end;
    if (pattern != SplitPattern::kSmollm) {
      end = PieceEnd(pattern, c, i);
    } else if (c.Number(i)) {
      end = i + 1;
    } else {
      if (i >= stretch) stretch = RunEnd(i, [&](size_t k) { return k < c.size() && !c.Number(k); });
      end = Gpt2End(c, i, stretch);
    }
    HF_CHECK(end > i && end <= c.size());
    ends->push_back(c.offset(end));
    i = end;
  }
}

}  // namespace holdfast::text
