// The two formats whose arguments stand between tags.
#include "frontend/tools/formats.h"
#include "frontend/tools/tagged_calls.h"

namespace holdfast::tools {

std::unique_ptr<CallSyntax> NewQwen3Coder(Tags* tags) {
  TaggedSyntax s{};
  s.open = tags->Add("<tool_call>");
  s.close = tags->Add("</tool_call>");
  s.function = tags->Add("<function=");
  s.function_close = tags->Add("</function>");
  s.name_end = '>';
  s.key = tags->Add("<parameter=");
  s.key_close = '>';
  s.value = kNoSymbol;
  s.value_close = tags->Add("</parameter>");
  s.framed = true;
  return std::make_unique<TaggedCalls>(tags, s, "qwen3-coder");
}

std::unique_ptr<CallSyntax> NewGlm(Tags* tags) {
  TaggedSyntax s{};
  s.open = tags->Add("<tool_call>");
  s.close = tags->Add("</tool_call>");
  s.function = s.function_close = kNoSymbol;
  s.name_end = '\n';
  s.key = tags->Add("<arg_key>");
  s.key_close = tags->Add("</arg_key>");
  s.value = tags->Add("<arg_value>");
  s.value_close = tags->Add("</arg_value>");
  return std::make_unique<TaggedCalls>(tags, s, "glm");
}

}  // namespace holdfast::tools
