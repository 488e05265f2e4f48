// The committed goldens (made by tests/golden/templates/make_cases.py with Python's jinja2), the limits against hostile templates, the
// origin of every byte, and mutated templates.
#include <chrono>
#include <iostream>
#include <map>
#include <random>

#include "tests/unit/text/jinja_golden.h"

namespace holdfast::text::jinja {
namespace {

const std::filesystem::path kGolden = std::filesystem::path(HOLDFAST_SOURCE_DIR) / "tests" / "golden" / "templates";

struct Result {
  bool parsed = false;
  bool rendered = false;
  std::string text;     // the output, or what went wrong
  RenderError error;
  RenderOutput output;
};

Result Run(const std::string& source, const JsonValue& variables = JsonValue(JsonValue::Object()), const Limits& limits = {}) {
  Result r;
  const auto parsed = Template::Parse(source, "t.jinja", limits);
  r.parsed = parsed.ok();
  if (!parsed.ok()) {
    r.text = std::string(parsed.status().message().data(), parsed.status().message().size());
    return r;
  }
  RenderOptions options = OptionsOf(variables);
  options.limits = limits;
  r.rendered = parsed->Render(options, &r.output, &r.error);
  r.text = r.rendered ? r.output.text.str() : r.error.message;
  return r;
}

JsonValue Json(std::string_view text) {
  auto v = ParseJson(text);
  REQUIRE(v.ok());
  return *std::move(v);
}

// "trusted [untrusted] trusted"
std::string Marked(const Text& text) {
  std::string out;
  size_t begin = 0;
  for (const auto& run : text.runs()) {
    const std::string part = text.str().substr(begin, run.end - begin);
    out += run.trusted ? part : "[" + part + "]";
    begin = run.end;
  }
  return out;
}

std::string Origin(const std::string& source, std::string_view variables = R"({"u": "User", "n": 5, "m": [{"role": "user", "k<": "v"}]})") {
  const Result r = Run(source, Json(variables));
  INFO(r.text);
  REQUIRE(r.rendered);
  return Marked(r.output.text);
}

TEST_CASE("committed templates render as Python's jinja2 renders them", "[jinja]") {
  const auto golden = ParseJson(ReadFile(kGolden / "cases.json"));
  REQUIRE(golden.ok());
  const auto& cases = golden->Find("cases")->AsArray();
  CHECK(cases.size() >= 250);
  std::map<std::string, std::string> sources;
  for (const JsonValue& entry : cases) {
    if (const JsonValue* source = entry.Find("source"); source != nullptr) {
      CheckCase(WithInput(entry, *golden->Find("data")), source->AsString());
    } else {
      const std::string& name = entry.Find("template")->AsString();
      if (sources.count(name) == 0) sources[name] = ReadFile(kGolden / name);
      CheckCase(entry, sources[name]);
    }
  }
}

TEST_CASE("B031 a template that cannot be parsed says where and why", "[jinja]") {
  const std::pair<const char*, const char*> cases[] = {
      {"a\n  {% if x %}\nb", "t.jinja:2:3: the template ends before the {% elif %} or {% else %} or {% endif %} of this block"},
      {"{{ x", "t.jinja:1:1: this {{ has no }}"},
      {"ab {% set x = 1", "t.jinja:1:4: this {% has no %}"},
      {"{{ 'abc }}", "t.jinja:1:4: this string has no end"},
      {"{# never", "t.jinja:1:1: this comment has no #}"},
      {"{% raw %} x", "t.jinja:1:1: this raw block has no {% endraw %}"},
      {"x\n{% endif %}", "t.jinja:2:4: 'endif' without the tag it belongs to"},
      {"{% frobnicate %}", "t.jinja:1:4: encountered unknown tag 'frobnicate'"},
      {"{% include 'x' %}", "t.jinja:1:4: 'include' is not supported: a chat template is one file"},
      {"{{ a | nope }}", "t.jinja:1:8: no filter named 'nope'"},
      {"{{ a is nope }}", "t.jinja:1:9: no test named 'nope'"},
      {"{{ (1 }}", "t.jinja:1:7: unexpected '}', expected ')'"},
      {"{{ }}", "t.jinja:1:4: expected an expression, got '}}'"},
      {"{% for x y %}", "t.jinja:1:10: expected 'in', got 'y'"},
      {"{% set true = 1 %}", "t.jinja:1:8: can't assign to 'true'"},
      {"{% break %}", "t.jinja:1:4: 'break' outside of a loop"},
      {"{{ a ? b }}", "t.jinja:1:6: unexpected character '?'"},
      {"{{ f(a=1, 2) }}", "t.jinja:1:11: a positional argument follows keyword arguments"},
  };
  for (const auto& [source, message] : cases) {
    const Result r = Run(source);
    CHECK_FALSE(r.parsed);
    CHECK(r.text == message);
  }
}

TEST_CASE("an unknown filter that is never reached does no harm", "[jinja]") {
  CHECK(Run("{% if false %}{{ 1 | nope }}{% endif %}ok").text == "ok");
  const Result r = Run("\n{% if true %}{{ 1 | nope }}{% endif %}");
  CHECK(r.error.kind == RenderError::Kind::kUnsupported);
  CHECK(r.error.line == 2);
}

TEST_CASE("B030 hostile templates are stopped", "[jinja]") {
  std::string nested;
  for (int i = 0; i < 10'000; ++i) nested += "{% if 1 %}";
  std::string brackets = "{{ " + std::string(10'000, '(') + "1" + std::string(10'000, ')') + " }}";
  std::string dots = "{{ x";
  for (int i = 0; i < 10'000; ++i) dots += ".y";
  std::string nots = "{{ ";
  for (int i = 0; i < 10'000; ++i) nots += "not ";
  const std::pair<std::string, std::string> cases[] = {
      {nested, "levels deep"},
      {brackets, "levels deep"},
      {nots + "1 }}", "levels deep"},
      {"{{ " + std::string(10'000, '-') + "1 }}", "levels deep"},
      {dots + " }}", "levels deep"},
      {"{{ 'a' * 10**9 }}", "more than a template may"},
      {"{{ [0] * 10**9 }}", "more than a template may"},
      {"{% for i in range(10**9) %}{% endfor %}", "Range too big"},
      {"{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}", "steps"},
      {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "maximum recursion depth exceeded"},
      {"{% macro m(x) %}{{ m([x, x]) }}{% endmacro %}{{ m(1) }}", "maximum recursion depth exceeded"},
      {"{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "maximum recursion depth exceeded"},
      {"{% set ns = namespace(s='aaaaaaaaaaaaaaaa') %}{% for i in range(100) %}{% set ns.s = ns.s + ns.s %}{% endfor %}", "bytes"},
      {"{% set ns = namespace(s='x') %}{% for i in range(1000) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}", "nested too deeply"},
      {"{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}", "more than the 67108864"},
      {"{% set ns = namespace(s='x') %}{% for i in range(100) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s | tojson }}", "more than the 67108864"},
      {"{% set l = [] %}{% set x = l.append(l) %}{{ l }}", "nested too deeply"},
      {"{% set ns = namespace() %}{% set ns.me = ns %}{{ ns }}", "nested too deeply"},
      {"{% set ns = namespace(t=(1,)) %}{% for i in range(60) %}{% set ns.t = (ns.t, ns.t) %}{% endfor %}{{ {ns.t: 1} }}", "unhashable"},
      {"{% for x in [1] %}{{ [loop] }}{% endfor %}", "loop object cannot be stored"},
      {"{% set ns = namespace() %}{% for x in [1] %}{% set ns.l = loop.cycle %}{% endfor %}", "loop object cannot be stored"},
      {"{{ '%999999999d' % 1 }}", "width"},
      {"{{ '{:999999999}'.format(1) }}", "Invalid format"},
      {"{{ 'a'.ljust(10**10) }}", "bytes"},
      {"{{ 'aaaa'.replace('', 'b' * 60000000) }}", "longer than"},
      {"{{ 2 ** 100000 }}", "128 bits"},
      {"{{ ('a' * 60000000) | list | length }}", "items"},
      {"{% set ns = namespace(l=[]) %}{% for i in range(64) %}{% set ns.l = ns.l + ['a' * 20000000 ~ i] %}{% endfor %}", "bytes"},
      {"{{ strftime_now('%99999999Y') }}", "widths are not supported"},
      {"{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"},
      {"{{ range.__globals__.x }}", "unsafe"},
      {"{% if ''.__class__ %}x{% endif %}", "unsafe"},
  };
  for (const auto& [source, words] : cases) {
    INFO(source.substr(0, 120));
    const Result r = Run(source);
    CHECK_FALSE(r.rendered);
    INFO(r.text);
    CHECK(r.text.find(words) != std::string::npos);
  }
  Limits limits;
  limits.max_output_bytes = 10;
  CHECK(Run("0123456789", JsonValue(JsonValue::Object()), limits).rendered);
  CHECK(Run("0123456789a", JsonValue(JsonValue::Object()), limits).error.kind == RenderError::Kind::kLimit);
}

TEST_CASE("lists and mappings the template made can be changed in place, request data cannot", "[jinja]") {
  CHECK(Run("{% set l = [1] %}{% set x = l.append(2) %}{% set x = l.extend([3, 4]) %}{% set x = l.insert(0, 0) %}{{ l }}{{ l.pop() }}{{ l.pop(0) }}{{ l }}").text ==
        "[0, 1, 2, 3, 4]40[1, 2, 3]");
  CHECK(Run("{% set d = {'a': 1} %}{% set x = d.update({'b': 2}, c=3) %}{{ d.pop('a') }}{{ d.setdefault('z', 9) }}{{ d }}").text == "19{'b': 2, 'c': 3, 'z': 9}");
  CHECK(Run("{% set x = v.pop() %}", Json(R"({"v": [1]})")).error.kind == RenderError::Kind::kSecurity);
  CHECK(Run("{{ '{\"a\": [1, 2.5]}' | from_json | tojson }}").text == "{\"a\": [1, 2.5]}");
}

TEST_CASE("the output knows which bytes came with the request", "[jinja]") {
  CHECK(Origin("a{{ u }}b{{ 'c' }}{{ n }}") == "a[User]bc5");
  CHECK(Origin("{{ '<' + u + '>' }}{{ '<' ~ u ~ 1 }}") == "<[User]><[User]1");
  CHECK(Origin("{{ u | upper }}{{ ('x' + u) | lower }}{{ u[1:3] }}{{ ('ab' + u)[1:4] }}") == "[USER]x[userse]b[Us]");
  CHECK(Origin("{{ ('  ' + u + '  ') | trim }}{{ (u + '.')|replace('.', '!') }}{{ 'a.b' | replace('.', u) }}") == "[UserUser]!a[User]b");
  CHECK(Origin("{{ ['a', u] | join('-') }}{{ ('x,' ~ u).split(',') | last }}") == "a-[UserUser]");
  CHECK(Origin("{{ [u, 'a'] | tojson }}{{ ['a'] | tojson }}{{ {'k': u} }}") == R"([["User", "a"]]["a"]{'k': ['User']})");
  CHECK(Origin("{{ '%s=%s' % ('k', u) }}{{ '{}:{}'.format(u, 'v') }}") == "k=[UserUser]:v");
  CHECK(Origin("{% for m in m %}<{{ m.role }}>{% for k in m %}{{ k }}{% endfor %}{% endfor %}") == "<[user]>[rolek<]");
  CHECK(Origin("{% macro q(t) %}({{ t }}){% endmacro %}{{ q(u) }}{% set b %}b{{ u }}{% endset %}{{ b }}{% filter upper %}x{{ u }}{% endfilter %}") == "([User])b[User]X[USER]");
  CHECK(Origin("{{ u | default('d') }}{{ z | default('d') }}{{ u if z else 'e' }}{{ u | indent(2, true) }}") == "[User]de  [User]");
  CHECK(Origin("{{ bos_token }}{{ bos_token + u }}", R"({"bos_token": "<s>", "u": "<s>"})") == "<s><s>[<s>]");
}

TEST_CASE("rounds of a loop over the messages leave marks, and the generation prompt its place", "[jinja]") {
  const Result r = Run("S{% for m in messages %}{% if m.role == 'user' %}<{{ m.content }}>{% endif %}{% endfor %}{% if add_generation_prompt %}G{% endif %}",
                       Json(R"({"add_generation_prompt": true, "messages": [{"role": "user", "content": "ab"}, {"role": "x"}, {"role": "user", "content": "c"}]})"));
  REQUIRE(r.rendered);
  CHECK(r.text == "S<ab><c>G");
  REQUIRE(r.output.marks.size() == 2);
  CHECK(r.output.marks[0].index == 0);
  CHECK(r.output.marks[0].begin == 1);
  CHECK(r.output.marks[0].end == 5);
  CHECK(r.output.marks[1].index == 2);
  CHECK(r.output.marks[1].end == 8);
  CHECK(r.output.generation_offset == 8);
}

TEST_CASE("a thousand messages and a long one render without trouble", "[jinja]") {
  const auto parsed = Template::Parse(ReadFile(kGolden / "plain_chat.jinja"), "plain_chat.jinja");
  REQUIRE(parsed.ok());
  JsonValue::Array messages;
  for (int i = 0; i < 1000; ++i) messages.push_back(JsonValue(JsonValue::Object{{"role", JsonValue("user")}, {"content", JsonValue("hello")}}));
  messages.push_back(JsonValue(JsonValue::Object{{"role", JsonValue("user")}, {"content", JsonValue(std::string(10 << 20, 'x'))}}));
  RenderOptions options;
  options.variables.push_back({"messages", JsonValue(std::move(messages)), false, true});
  const auto output = parsed->Render(options);
  REQUIRE(output.ok());
  CHECK(output->marks.size() == 1001);
  CHECK(output->text.size() > (10u << 20));
}

// Templates with characters dropped, doubled, swapped or replaced: any outcome but a crash, an endless run or a broken origin is fine.
TEST_CASE("mutated templates neither crash nor run on", "[jinja]") {
  const unsigned seed = std::random_device()();
  for (const unsigned s : {1u, 2u, seed}) {
    std::cout << "mutation seed " << s << "\n";
    std::mt19937 random(s);
    const auto below = [&random](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random); };
    const std::string pieces[] = {"{%", "%}", "{{", "}}", "|", "(", ")", "[", "]", "'", "-", "loop", " in ", "%", "~", "if ", "\\", "0", "*", ".", "\xC3"};
    Limits limits;
    limits.max_steps = 20'000;
    const auto golden = ParseJson(ReadFile(kGolden / "cases.json"));
    REQUIRE(golden.ok());
    const auto& cases = golden->Find("cases")->AsArray();
    for (int round = 0; round < 400; ++round) {
      const JsonValue& entry = cases[below(cases.size())];
      const JsonValue* snippet = entry.Find("source");
      std::string source = snippet != nullptr ? snippet->AsString() : ReadFile(kGolden / entry.Find("template")->AsString());
      for (size_t edits = 1 + below(4); edits > 0 && !source.empty(); --edits) {
        const size_t at = below(source.size());
        switch (below(3)) {
          case 0:
            source.erase(at, 1 + below(8));
            break;
          case 1:
            source.insert(at, pieces[below(std::size(pieces))]);
            break;
          default:
            source.insert(at, source.substr(below(source.size()), below(20)));
        }
      }
      const Result r = Run(source, snippet != nullptr ? *golden->Find("data") : *entry.Find("input"), limits);
      INFO(source);
      if (r.rendered) {
        CHECK((r.text.empty() || r.output.text.runs().back().end == r.text.size()));
      } else {
        CHECK_FALSE(r.text.empty());
      }
    }
  }
}

}  // namespace
}  // namespace holdfast::text::jinja
