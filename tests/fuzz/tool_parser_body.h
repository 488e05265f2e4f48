#pragma once
// Any bytes as the output of a model, read by one of the tool formats. The first byte chooses the format and whether its tags are special
// tokens, the second the policy, the third how the text is cut; the rest is the text, in which tags are spelled out.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "frontend/text/json_value.h"
#include "frontend/text/utf8.h"
#include "frontend/text/vocabulary.h"
#include "frontend/tools/format.h"
#include "proto/base/check.h"
#include "proto/model_card.pb.h"
#include "tests/support/tiny_cards.h"

namespace holdfast::tools::testing {

class ToolParserBody final {
 public:
  ToolParserBody() {
    proto::ModelCard card = holdfast::testing::TinyBpeCard({});
    spelled_ = MakeVocabulary(card);
    for (const char* tag :
         {"<|tool_call>", "<tool_call|>", "<|\"|>", "<|channel>", "<channel|>", "<think>", "</think>", "<arg_key>", "</arg_key>", "<arg_value>",
          "</arg_value>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[THINK]", "[/THINK]", "<|start|>", "<|end|>", "<|message|>",
          "<|channel|>", "<|constrain|>", "<|return|>", "<|call|>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
          "<|tool_call_begin|>", "<|tool_call_end|>", "<|tool_call_argument_begin|>"}) {
      card.mutable_vocabulary()->add_tokens(tag);
      card.mutable_vocabulary()->add_types(3);
    }
    special_ = MakeVocabulary(card);
    const std::pair<const char*, const char*> names[] = {
        {"gemma4", "gemma4"}, {"hermes", "think"}, {"qwen3-coder", "think"}, {"glm", "think"}, {"llama3", "think"}, {"mistral", "mistral"},
        {"deepseek-v3.1", "think"}, {"kimi-k2", ""}, {"harmony", "harmony"}};
    for (const auto& [tool_format, reasoning] : names) {
      for (const text::Vocabulary* v : {special_.get(), spelled_.get()}) formats_.push_back({*CreateFormat(tool_format, reasoning, *v), v});
    }
    Tool f;
    f.name = "f";
    f.parameters = *text::ParseJson(R"({"properties":{"a":{"type":"string"},"b":{"type":["array","null"]},"c":{"type":"integer"}}})");
    Tool g;
    g.name = "g";
    tools_ = {f, g};
  }

  void Run(const uint8_t* data, size_t size) const {
    if (size < 3) return;
    std::string text;
    text::AppendValidUtf8(std::string_view(reinterpret_cast<const char*>(data) + 3, size - 3), &text);
    const Entry& entry = formats_[data[0] % formats_.size()];
    ParserOptions options;
    if ((data[1] & 1) == 0) options.tools = tools_;
    options.policy.parallel = (data[1] & 2) == 0;
    options.separate_reasoning = (data[1] & 4) == 0;
    if (data[1] & 8) options.prompt_tail = "<think>\n<|channel>thought\n[THINK]<|start|>assistant";
    const bool cut = (data[1] & 16) != 0;
    const std::vector<OutputEvent> whole = Parse(entry, options, text, 0, cut), pieces = Parse(entry, options, text, data[2] | 1u, cut);
    HF_CHECK(whole == pieces);
    std::string arguments;
    for (const OutputEvent& e : whole) {
      if (e.kind == OutputEvent::Kind::kCallBegin) {
        HF_CHECK(!options.tools.empty() && (e.text == "f" || e.text == "g"));
        arguments.clear();
      } else if (e.kind == OutputEvent::Kind::kArguments) {
        arguments += e.text;
      } else if (e.kind == OutputEvent::Kind::kCallEnd) {
        const auto parsed = text::ParseJson(arguments);
        HF_CHECK(parsed.ok() && parsed->is_object());
      } else {
        HF_CHECK(text::IsValidUtf8(e.text));
      }
    }
  }

 private:
  struct Entry {
    std::shared_ptr<const Format> format;
    const text::Vocabulary* vocabulary;
  };
  static std::unique_ptr<text::Vocabulary> MakeVocabulary(proto::ModelCard card) {
    card.set_vocab_size(static_cast<uint32_t>(card.vocabulary().tokens_size()));
    return std::make_unique<text::Vocabulary>(*text::Vocabulary::Create(card));
  }

  // seed 0: as few pieces as there can be; else pieces of a length that follows from it.
  std::vector<OutputEvent> Parse(const Entry& entry, const ParserOptions& options, std::string_view text, uint32_t seed, bool cut) const {
    const auto parser = entry.format->NewParser(options);
    std::vector<OutputEvent> out;
    std::string piece;
    const auto flush = [&] {
      if (!piece.empty()) parser->Push({piece, text::kNoToken}, &out);
      piece.clear();
    };
    for (size_t at = 0; at < text.size();) {
      TokenId marker = text::kNoToken;
      for (const TokenId id : entry.format->markers()) {
        if (text.substr(at).starts_with(entry.vocabulary->stored(id))) marker = id;
      }
      if (marker != text::kNoToken) {
        flush();
        parser->Push({entry.vocabulary->stored(marker), marker}, &out);
        at += entry.vocabulary->stored(marker).size();
        continue;
      }
      const size_t n = text::DecodeUtf8(text, at).length;
      piece.append(text.substr(at, n));
      at += n;
      if (seed != 0) {
        seed = seed * 1664525u + 1013904223u;
        if ((seed >> 24) % 3 == 0) flush();
      }
    }
    flush();
    parser->Finish(cut, &out);
    std::vector<OutputEvent> joined;
    for (const OutputEvent& e : out) {
      const bool fragment = e.kind != OutputEvent::Kind::kCallBegin && e.kind != OutputEvent::Kind::kCallEnd;
      if (fragment && !joined.empty() && joined.back().kind == e.kind) {
        joined.back().text += e.text;
      } else {
        joined.push_back(e);
      }
    }
    return joined;
  }

  std::unique_ptr<text::Vocabulary> special_, spelled_;
  std::vector<Entry> formats_;
  std::vector<Tool> tools_;
};

}  // namespace holdfast::tools::testing
