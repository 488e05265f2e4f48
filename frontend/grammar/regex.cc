#include "frontend/grammar/regex.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "frontend/text/unicode.h"
#include "frontend/text/utf8.h"
#include "proto/base/status_wire.h"

namespace holdfast::grammar {
namespace {

using Kind = ReNode::Kind;

constexpr size_t kMaxPattern = 16 << 10;
constexpr int kMaxDepth = 100;
constexpr uint32_t kMaxCount = 100'000;
constexpr size_t kMaxNodes = 50'000;

using Ranges = std::vector<CodePointRange>;

const Ranges& Digits() {
  static const Ranges r{{'0', '9'}};
  return r;
}
const Ranges& WordCharacters() {
  static const Ranges r = Normalise(Ranges{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}});
  return r;
}
const Ranges& Blanks() {
  static const Ranges r = Normalise(Ranges{{9, 13}, {' ', ' '}, {0xA0, 0xA0}, {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F},
                                           {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}});
  return r;
}
const Ranges& LineEnds() {
  static const Ranges r{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};
  return r;
}

// The ranges of each class of the tokenizers' table, found once: there are a million characters to ask for.
const std::map<text::CharClass, Ranges>& ClassRanges() {
  static const std::map<text::CharClass, Ranges> all = [] {
    std::map<text::CharClass, Ranges> out;
    for (uint32_t c = 0; c <= kMaxCodePoint; ++c) {
      Ranges& ranges = out[text::ClassOf(c)];
      if (!ranges.empty() && ranges.back().second + 1 == c) {
        ranges.back().second = c;
      } else {
        ranges.push_back({c, c});
      }
    }
    return out;
  }();
  return all;
}

// The general categories that the table tells apart.
std::optional<Ranges> Property(std::string_view name) {
  using text::CharClass;
  std::vector<CharClass> classes;
  if (name == "L" || name == "Letter" || name == "Alphabetic") {
    classes = {CharClass::kUpper, CharClass::kLower, CharClass::kTitle, CharClass::kModifier, CharClass::kOtherLetter};
  } else if (name == "Lu" || name == "Uppercase_Letter") {
    classes = {CharClass::kUpper};
  } else if (name == "Ll" || name == "Lowercase_Letter") {
    classes = {CharClass::kLower};
  } else if (name == "Lt") {
    classes = {CharClass::kTitle};
  } else if (name == "Lm") {
    classes = {CharClass::kModifier};
  } else if (name == "Lo") {
    classes = {CharClass::kOtherLetter};
  } else if (name == "M" || name == "Mark") {
    classes = {CharClass::kMark};
  } else if (name == "N" || name == "Number") {
    classes = {CharClass::kNumber};
  } else if (name == "White_Space") {
    classes = {CharClass::kSpace};
  } else {
    return std::nullopt;
  }
  Ranges out;
  for (const CharClass one : classes) {
    const auto it = ClassRanges().find(one);
    if (it != ClassRanges().end()) out.insert(out.end(), it->second.begin(), it->second.end());
  }
  return Normalise(out);
}

class Parser final {
 public:
  Parser(std::string_view pattern, std::string_view path, std::vector<ReNode>* nodes) : path_(path), pattern_(pattern), nodes_(nodes) {}

  absl::StatusOr<uint32_t> Run() {
    if (pattern_.size() > kMaxPattern) return Bad(fmt::format("has {} bytes; at most {} are accepted", pattern_.size(), kMaxPattern));
    if (!text::IsValidUtf8(pattern_)) return Bad("is not valid UTF-8");
    for (size_t i = 0; i < pattern_.size();) {
      const text::Utf8Step step = text::DecodeUtf8(pattern_, i);
      chars_.push_back(step.code_point);
      i += step.length;
    }
    HF_ASSIGN_OR_RETURN(const uint32_t root, Alternatives(0));
    if (at_ < chars_.size()) return Bad("has a ) without a (");
    return root;
  }

 private:
  absl::Status Bad(std::string_view what) const {
    return absl::InvalidArgumentError(fmt::format("{}: the regular expression {} (at character {})", path_, what, at_));
  }
  bool More() const { return at_ < chars_.size(); }
  char32_t Peek(size_t ahead = 0) const { return at_ + ahead < chars_.size() ? chars_[at_ + ahead] : 0; }
  bool Take(char32_t c) {
    if (!More() || chars_[at_] != c) return false;
    ++at_;
    return true;
  }
  uint32_t Add(ReNode node) {
    nodes_->push_back(std::move(node));
    return static_cast<uint32_t>(nodes_->size() - 1);
  }
  uint32_t AddClass(Ranges ranges) {
    ReNode node;
    node.kind = Kind::kClass;
    node.ranges = std::move(ranges);
    return Add(std::move(node));
  }
  uint32_t AddKind(Kind kind) {
    ReNode node;
    node.kind = kind;
    return Add(std::move(node));
  }

  absl::StatusOr<uint32_t> Alternatives(int depth) {
    if (depth > kMaxDepth) return Bad(fmt::format("nests groups more than {} deep", kMaxDepth));
    ReNode alt;
    alt.kind = Kind::kAlt;
    do {
      HF_ASSIGN_OR_RETURN(const uint32_t branch, Sequence(depth));
      alt.parts.push_back(branch);
    } while (Take('|'));
    return alt.parts.size() == 1 ? alt.parts[0] : Add(std::move(alt));
  }

  absl::StatusOr<uint32_t> Sequence(int depth) {
    ReNode seq;
    seq.kind = Kind::kSeq;
    while (More() && Peek() != '|' && Peek() != ')') {
      if (nodes_->size() > kMaxNodes) return Bad("is too long");
      bool repeatable = true;
      HF_ASSIGN_OR_RETURN(uint32_t atom, Atom(depth, &repeatable));
      HF_ASSIGN_OR_RETURN(atom, Quantified(atom, repeatable));
      seq.parts.push_back(atom);
    }
    if (seq.parts.empty()) return AddKind(Kind::kEmpty);
    return seq.parts.size() == 1 ? seq.parts[0] : Add(std::move(seq));
  }

  bool Count(uint32_t* value) {
    if (Peek() < '0' || Peek() > '9') return false;
    uint64_t v = 0;
    for (; Peek() >= '0' && Peek() <= '9'; ++at_) v = std::min<uint64_t>(v * 10 + (Peek() - '0'), UINT32_MAX);
    *value = static_cast<uint32_t>(v);
    return true;
  }

  // {n}, {n,} or {n,m}. False, and nothing taken: a plain brace.
  bool Braces(uint32_t* min, uint32_t* max) {
    const size_t begin = at_;
    if (Take('{') && Count(min)) {
      *max = *min;
      if (Take(',') && !Count(max)) *max = Builder::kNoLimit;
      if (Take('}')) return true;
    }
    at_ = begin;
    return false;
  }

  absl::StatusOr<uint32_t> Quantified(uint32_t atom, bool repeatable) {
    ReNode repeat;
    repeat.kind = Kind::kRepeat;
    if (Take('*')) {
      repeat.max = Builder::kNoLimit;
    } else if (Take('+')) {
      repeat.min = 1;
      repeat.max = Builder::kNoLimit;
    } else if (Take('?')) {
      repeat.max = 1;
    } else if (Braces(&repeat.min, &repeat.max)) {
      if (repeat.min > repeat.max) return Bad(fmt::format("repeats from {} to {} times", repeat.min, repeat.max));
      if (repeat.min > kMaxCount || (repeat.max != Builder::kNoLimit && repeat.max > kMaxCount)) {
        return Bad(fmt::format("repeats something more than {} times", kMaxCount));
      }
    } else {
      return atom;
    }
    if (!repeatable) return Bad("repeats ^ or $");
    Take('?');  // lazy: the same texts
    uint32_t a = 0, b = 0;
    if (Peek() == '*' || Peek() == '+' || Peek() == '?' || Braces(&a, &b)) return Bad("has a quantifier behind a quantifier");
    repeat.parts.push_back(atom);
    return Add(std::move(repeat));
  }

  absl::StatusOr<uint32_t> Atom(int depth, bool* repeatable) {
    const char32_t c = chars_[at_++];
    switch (c) {
      case '(': return Group(depth);
      case '[': return Class();
      case '.': return AddClass(Complement(LineEnds()));
      case '^': *repeatable = false; return AddKind(Kind::kBegin);
      case '$': *repeatable = false; return AddKind(Kind::kEnd);
      case '*':
      case '+':
      case '?': --at_; return Bad("has a quantifier with nothing before it");
      case '{': {
        --at_;
        uint32_t a = 0, b = 0;
        if (Braces(&a, &b)) return Bad("has a quantifier with nothing before it");
        ++at_;
        break;
      }
      case '\\': {
        HF_ASSIGN_OR_RETURN(Ranges ranges, Escape(false));
        return AddClass(std::move(ranges));
      }
      default: break;
    }
    return AddClass({{c, c}});
  }

  absl::StatusOr<uint32_t> Group(int depth) {
    if (Take('?')) {
      if (Take('<')) {
        if (Peek() == '=' || Peek() == '!') return Bad("looks behind, which is not regular");
        while (More() && Peek() != '>') ++at_;
        if (!Take('>')) return Bad("has a group name without an end");
      } else if (!Take(':')) {
        if (Peek() == '=' || Peek() == '!') return Bad("looks ahead, which is not supported");
        return Bad("has a group of an unknown kind");
      }
    }
    HF_ASSIGN_OR_RETURN(const uint32_t inside, Alternatives(depth + 1));
    if (!Take(')')) return Bad("has a ( without a )");
    return inside;
  }

  std::optional<uint32_t> Hex(int digits) {
    uint32_t value = 0;
    for (int i = 0; i < digits; ++i) {
      const char32_t c = Peek(static_cast<size_t>(i));
      const uint32_t d = c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : 16;
      if (d == 16) return std::nullopt;
      value = value * 16 + d;
    }
    at_ += static_cast<size_t>(digits);
    return value;
  }

  // Behind the backslash.
  absl::StatusOr<Ranges> Escape(bool in_class) {
    if (!More()) return Bad("ends with a backslash");
    const char32_t c = chars_[at_++];
    const auto one = [](uint32_t v) { return Ranges{{v, v}}; };
    switch (c) {
      case 'd': return Digits();
      case 'D': return Complement(Digits());
      case 'w': return WordCharacters();
      case 'W': return Complement(WordCharacters());
      case 's': return Blanks();
      case 'S': return Complement(Blanks());
      case 't': return one('\t');
      case 'n': return one('\n');
      case 'r': return one('\r');
      case 'f': return one('\f');
      case 'v': return one('\v');
      case 'b':
        if (in_class) return one('\b');
        return Bad("has a word boundary, which is not supported");
      case 'B': return Bad("has a word boundary, which is not supported");
      case 'c': {
        const char32_t letter = Peek();
        if ((letter < 'a' || letter > 'z') && (letter < 'A' || letter > 'Z')) return Bad("has \\c without a letter");
        ++at_;
        return one(letter & 31);
      }
      case 'x': {
        const auto v = Hex(2);
        if (!v) return Bad("has \\x without two hexadecimal digits");
        return one(*v);
      }
      case 'u': return Unicode();
      case 'p':
      case 'P': {
        if (!Take('{')) return Bad("has \\p without a name in braces");
        std::string name;
        while (More() && Peek() != '}') text::AppendUtf8(chars_[at_++], &name);
        if (!Take('}')) return Bad("has \\p without an end");
        const auto ranges = Property(name.starts_with("gc=") ? std::string_view(name).substr(3) : std::string_view(name));
        if (!ranges) return Bad(fmt::format("names the property {}, which is not supported (L, Lu, Ll, Lt, Lm, Lo, M and N are)", name));
        return c == 'p' ? *ranges : Complement(*ranges);
      }
      case 'k': return Bad("refers back to a group, which is not regular");
      default: break;
    }
    if (c == '0' && (Peek() < '0' || Peek() > '9')) return one(0);
    if (c >= '0' && c <= '9') return Bad("refers back to a group, which is not regular");
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')) return Bad(fmt::format("has the unknown escape \\{}", static_cast<char>(c)));
    return one(c);
  }

  absl::StatusOr<Ranges> Unicode() {
    std::optional<uint32_t> v;
    if (Take('{')) {
      uint32_t value = 0;
      size_t digits = 0;
      while (More() && Peek() != '}' && digits < 8) {
        const auto d = Hex(1);
        if (!d) return Bad("has \\u{ without hexadecimal digits");
        value = value * 16 + *d;
        ++digits;
      }
      if (!Take('}') || digits == 0) return Bad("has \\u{ without an end");
      v = value;
    } else {
      v = Hex(4);
      // A pair of surrogates is one character.
      if (v && *v >= 0xD800 && *v <= 0xDBFF && Peek() == '\\' && Peek(1) == 'u') {
        const size_t begin = at_;
        at_ += 2;
        const auto low = Hex(4);
        if (low && *low >= 0xDC00 && *low <= 0xDFFF) {
          v = 0x10000 + ((*v - 0xD800) << 10) + (*low - 0xDC00);
        } else {
          at_ = begin;
        }
      }
    }
    if (!v) return Bad("has \\u without four hexadecimal digits");
    if (*v > kMaxCodePoint) return Bad("names a character beyond U+10FFFF");
    return Ranges{{*v, *v}};
  }

  absl::StatusOr<uint32_t> Class() {
    const bool negated = Take('^');
    Ranges all;
    for (;;) {
      if (!More()) return Bad("has a [ without a ]");
      if (Take(']')) break;
      HF_ASSIGN_OR_RETURN(const Ranges low, ClassAtom());
      if (Peek() == '-' && Peek(1) != ']' && at_ + 1 < chars_.size()) {
        const size_t dash = at_++;
        HF_ASSIGN_OR_RETURN(const Ranges high, ClassAtom());
        if (low.size() == 1 && low[0].first == low[0].second && high.size() == 1 && high[0].first == high[0].second) {
          if (low[0].first > high[0].first) {
            at_ = dash;
            return Bad("has a range that ends before it begins");
          }
          all.push_back({low[0].first, high[0].first});
          continue;
        }
        all.push_back({'-', '-'});  // [\w-.]: the dash means itself
        all.insert(all.end(), high.begin(), high.end());
      }
      all.insert(all.end(), low.begin(), low.end());
    }
    all = Normalise(all);
    return AddClass(negated ? Complement(all) : std::move(all));
  }

  absl::StatusOr<Ranges> ClassAtom() {
    if (!More()) return Bad("has a [ without a ]");
    const char32_t c = chars_[at_++];
    if (c == '\\') return Escape(true);
    return Ranges{{c, c}};
  }

  std::string_view path_, pattern_;
  std::vector<ReNode>* nodes_;
  std::vector<char32_t> chars_;
  size_t at_ = 0;
};

// Takes ^ and $ off the ends of alternatives, and puts "anything" where a search has none of them.
class Anchors final {
 public:
  explicit Anchors(std::vector<ReNode>* nodes) : nodes_(nodes) {}

  // `before`, `after`: the node of "anything", or kNone where the text begins or ends here.
  static constexpr uint32_t kNone = UINT32_MAX;

  uint32_t Place(uint32_t node, uint32_t before, uint32_t after) {
    const ReNode copy = (*nodes_)[node];
    if (copy.kind == Kind::kAlt) {
      ReNode alt;
      alt.kind = Kind::kAlt;
      for (const uint32_t part : copy.parts) alt.parts.push_back(Place(part, before, after));
      return Add(std::move(alt));
    }
    std::vector<uint32_t> parts = copy.kind == Kind::kSeq ? copy.parts : std::vector<uint32_t>{node};
    const auto is = [&](uint32_t n, Kind kind) { return (*nodes_)[n].kind == kind; };
    while (!parts.empty() && is(parts.front(), Kind::kBegin)) {
      before = kNone;
      parts.erase(parts.begin());
    }
    while (!parts.empty() && is(parts.back(), Kind::kEnd)) {
      after = kNone;
      parts.pop_back();
    }
    // A group at an end may hold the anchors itself.
    if (!parts.empty() && is(parts.front(), Kind::kAlt) && parts.size() > 1 && Begins(parts.front())) {
      parts.front() = Place(parts.front(), before, kNone);
      before = kNone;
    }
    if (parts.size() > 1 && is(parts.back(), Kind::kAlt) && Ends(parts.back())) {
      parts.back() = Place(parts.back(), kNone, after);
      after = kNone;
    }
    if (parts.size() == 1 && is(parts.front(), Kind::kAlt)) return Place(parts.front(), before, after);
    if (before != kNone) parts.insert(parts.begin(), before);
    if (after != kNone) parts.push_back(after);
    if (parts.empty()) return Add(ReNode{});
    if (parts.size() == 1) return parts[0];
    ReNode seq;
    seq.kind = Kind::kSeq;
    seq.parts = std::move(parts);
    return Add(std::move(seq));
  }

  bool HasAnchor(uint32_t node) const {
    std::vector<uint32_t> todo{node};
    while (!todo.empty()) {
      const ReNode& n = (*nodes_)[todo.back()];
      todo.pop_back();
      if (n.kind == Kind::kBegin || n.kind == Kind::kEnd) return true;
      todo.insert(todo.end(), n.parts.begin(), n.parts.end());
    }
    return false;
  }

 private:
  bool Begins(uint32_t node) const { return HasAnchor(node); }
  bool Ends(uint32_t node) const { return HasAnchor(node); }
  uint32_t Add(ReNode node) {
    nodes_->push_back(std::move(node));
    return static_cast<uint32_t>(nodes_->size() - 1);
  }

  std::vector<ReNode>* nodes_;
};

}  // namespace

absl::StatusOr<Regex> Regex::Parse(std::string_view pattern, Mode mode, std::string_view path) {
  Regex out;
  Parser parser(pattern, path, &out.nodes_);
  HF_ASSIGN_OR_RETURN(out.root_, parser.Run());
  Anchors anchors(&out.nodes_);
  if (mode == Mode::kWhole && !anchors.HasAnchor(out.root_)) return out;
  uint32_t anything = Anchors::kNone;
  if (mode == Mode::kSearch) {
    ReNode any;
    any.kind = Kind::kClass;
    any.ranges = Complement({});
    out.nodes_.push_back(std::move(any));
    ReNode star;
    star.kind = Kind::kRepeat;
    star.max = Builder::kNoLimit;
    star.parts.push_back(static_cast<uint32_t>(out.nodes_.size() - 1));
    out.nodes_.push_back(std::move(star));
    anything = static_cast<uint32_t>(out.nodes_.size() - 1);
  }
  out.root_ = anchors.Place(out.root_, anything, anything);
  if (anchors.HasAnchor(out.root_)) {
    return absl::InvalidArgumentError(fmt::format("{}: the regular expression has ^ or $ inside; they are supported at the ends of alternatives", path));
  }
  return out;
}

Node Regex::ToNode(Builder& builder, const SpellClass& spell) const {
  std::vector<Node> made(nodes_.size());
  std::vector<bool> wanted(nodes_.size(), false);
  wanted[root_] = true;
  for (size_t i = nodes_.size(); i-- > 0;) {
    if (!wanted[i]) continue;
    for (const uint32_t part : nodes_[i].parts) wanted[part] = true;
  }
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (!wanted[i]) continue;
    const ReNode& n = nodes_[i];
    std::vector<Node> parts;
    for (const uint32_t part : n.parts) parts.push_back(made[part]);
    switch (n.kind) {
      case Kind::kClass: made[i] = spell(n.ranges); break;
      case Kind::kSeq: made[i] = builder.Seq(parts); break;
      case Kind::kAlt: made[i] = builder.Choice(parts); break;
      case Kind::kRepeat: made[i] = builder.Repeat(parts[0], n.min, n.max); break;
      default: made[i] = builder.Empty(); break;
    }
  }
  return made[root_];
}

std::pair<uint32_t, uint32_t> Regex::Lengths() const {
  constexpr uint64_t kInf = Builder::kNoLimit;
  std::vector<std::pair<uint64_t, uint64_t>> size(nodes_.size(), {0, 0});
  for (size_t i = 0; i <= root_; ++i) {
    const ReNode& n = nodes_[i];
    auto& [lo, hi] = size[i];
    if (n.kind == Kind::kClass) lo = hi = 1;
    if (n.kind == Kind::kAlt) lo = kInf;
    for (const uint32_t part : n.parts) {
      const auto [a, b] = size[part];
      if (n.kind == Kind::kSeq) {
        lo = std::min(kInf, lo + a);
        hi = b == kInf || hi == kInf ? kInf : std::min(kInf - 1, hi + b);
      } else if (n.kind == Kind::kAlt) {
        lo = std::min(lo, a);
        hi = std::max(hi, b);
      } else {
        lo = std::min(kInf - 1, a * n.min);
        hi = b == 0 || n.max == 0 ? 0 : b == kInf || n.max == Builder::kNoLimit ? kInf : std::min(kInf - 1, b * n.max);
      }
    }
  }
  return {static_cast<uint32_t>(size[root_].first), static_cast<uint32_t>(size[root_].second)};
}

const ReNode* Regex::AsRepeatedClass(uint32_t* min, uint32_t* max) const {
  const ReNode& n = nodes_[root_];
  if (n.kind != Kind::kRepeat || nodes_[n.parts[0]].kind != Kind::kClass) return nullptr;
  *min = n.min;
  *max = n.max;
  return &nodes_[n.parts[0]];
}

absl::StatusOr<Node> Builder::Regex(std::string_view pattern, std::string_view path, char without) {
  HF_ASSIGN_OR_RETURN(const auto regex, grammar::Regex::Parse(pattern, grammar::Regex::Mode::kWhole, path));
  const CodePointRange one[] = {{static_cast<unsigned char>(without), static_cast<unsigned char>(without)}};
  const std::vector<CodePointRange> allowed = Complement(one);
  return regex.ToNode(*this, [&](std::span<const CodePointRange> ranges) { return CodePoints(without == 0 ? ranges : Intersect(ranges, allowed)); });
}

}  // namespace holdfast::grammar
