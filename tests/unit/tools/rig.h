#pragma once
// Runs the parser of a format over a text and gathers what it says. Texts are written with their tags spelled out; where the vocabulary
// has a special token for a tag, the tag reaches the parser as that marker, except behind a backslash-zero ("\0"), which is dropped.
#include <catch2/catch.hpp>

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/text/json_value.h"
#include "frontend/text/utf8.h"
#include "frontend/text/vocabulary.h"
#include "frontend/tools/format.h"
#include "proto/model_card.pb.h"
#include "tests/support/tiny_cards.h"

namespace holdfast::tools::testing {

using Events = std::vector<OutputEvent>;

struct Call {
  std::string name, arguments;
  bool ended = false;
  bool operator==(const Call&) const = default;
};

struct Answer {
  std::string content, reasoning;
  std::vector<Call> calls;
  bool complete = false;
  Events events;                // neighbours of one kind joined
};

struct Unit {
  std::string text;
  TokenId marker = text::kNoToken;
};

// 256 byte tokens and these special tokens, as control tokens or as user-defined ones.
inline text::Vocabulary MakeVocabulary(const std::vector<std::string>& specials, bool control = true) {
  proto::ModelCard card = holdfast::testing::TinyBpeCard({});
  for (const std::string& s : specials) {
    bool there = false;
    for (const std::string& t : card.vocabulary().tokens()) there = there || t == s;
    if (there) continue;
    card.mutable_vocabulary()->add_tokens(s);
    card.mutable_vocabulary()->add_types(control ? 3 : 4);
  }
  card.set_vocab_size(static_cast<uint32_t>(card.vocabulary().tokens_size()));
  auto v = text::Vocabulary::Create(card);
  REQUIRE(v.ok());
  return *std::move(v);
}

inline std::vector<Tool> MakeTools(const std::vector<std::pair<std::string, std::string>>& tools) {
  std::vector<Tool> out;
  for (const auto& [name, schema] : tools) {
    Tool tool;
    tool.name = name;
    if (!schema.empty()) {
      auto parsed = text::ParseJson(schema);
      REQUIRE(parsed.ok());
      tool.parameters = *parsed;
    }
    out.push_back(std::move(tool));
  }
  return out;
}

class Rig {
 public:
  Rig(std::string_view tool_format, std::string_view reasoning_format, const std::vector<std::string>& specials, bool control = true)
      : vocabulary(MakeVocabulary(specials, control)) {
    auto made = CreateFormat(tool_format, reasoning_format, vocabulary);
    REQUIRE(made.ok());
    format = *made;
  }

  // The text as characters and markers.
  std::vector<Unit> Units(std::string_view text) const {
    std::vector<Unit> out;
    for (size_t at = 0; at < text.size();) {
      if (text[at] == '\0') {
        ++at;
      } else {
        bool found = false;
        for (const TokenId id : format->markers()) {
          const std::string_view tag = vocabulary.stored(id);
          if (!text.substr(at).starts_with(tag)) continue;
          out.push_back({std::string(tag), id});
          at += tag.size();
          found = true;
          break;
        }
        if (found) continue;
      }
      if (at >= text.size()) break;
      const size_t n = text::DecodeUtf8(text, at).length;
      out.push_back({std::string(text.substr(at, n)), text::kNoToken});
      at += n;
    }
    return out;
  }

  // Parses units; a piece ends where `ends(i)` is true for its last unit.
  template <typename Ends>
  Answer ParseUnits(const std::vector<Unit>& units, Ends&& ends, bool cut = false) const {
    ParserOptions o;
    o.tools = tools;
    o.policy = policy;
    o.separate_reasoning = separate_reasoning;
    o.prompt_tail = prompt_tail;
    const auto parser = format->NewParser(o);
    Events all;
    std::string text;
    const auto flush = [&] {
      if (!text.empty()) parser->Push({text, text::kNoToken}, &all);
      text.clear();
    };
    for (size_t i = 0; i < units.size(); ++i) {
      if (units[i].marker != text::kNoToken) {
        flush();
        parser->Push({units[i].text, units[i].marker}, &all);
      } else {
        text += units[i].text;
        if (ends(i)) flush();
      }
    }
    flush();
    parser->Finish(cut, &all);
    return Gather(all, parser->complete());
  }

  // In one piece, and in pieces of one character, which must say the same.
  Answer Parse(std::string_view text, bool cut = false) const {
    const std::vector<Unit> units = Units(text);
    const Answer whole = ParseUnits(units, [](size_t) { return false; }, cut);
    const Answer single = ParseUnits(units, [](size_t) { return true; }, cut);
    CHECK(whole.events == single.events);
    return whole;
  }

  static Answer Gather(const Events& events, bool complete) {
    Answer a;
    a.complete = complete;
    for (const OutputEvent& e : events) {
      using Kind = OutputEvent::Kind;
      const bool joins = e.kind == Kind::kContent || e.kind == Kind::kReasoning || e.kind == Kind::kArguments;
      if (joins && !a.events.empty() && a.events.back().kind == e.kind) {
        a.events.back().text += e.text;
      } else {
        a.events.push_back(e);
      }
      switch (e.kind) {
        case Kind::kContent: a.content += e.text; break;
        case Kind::kReasoning: a.reasoning += e.text; break;
        case Kind::kCallBegin: a.calls.push_back({e.text, "", false}); break;
        case Kind::kArguments: a.calls.back().arguments += e.text; break;
        case Kind::kCallEnd: a.calls.back().ended = true; break;
      }
    }
    return a;
  }

  text::Vocabulary vocabulary;
  std::shared_ptr<const Format> format;
  std::vector<Tool> tools;
  CallPolicy policy;
  bool separate_reasoning = true;
  std::string prompt_tail;
};

inline void CheckCall(const Answer& a, size_t i, std::string_view name, std::string_view arguments) {
  REQUIRE(a.calls.size() > i);
  CHECK(a.calls[i].name == name);
  CHECK(a.calls[i].arguments == arguments);
  CHECK(a.calls[i].ended);
}

}  // namespace holdfast::tools::testing
