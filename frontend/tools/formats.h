#pragma once
// The formats that are known: their call and thought syntaxes. Each adds its tags, which outlive it.
#include <memory>

#include "frontend/tools/answer_parser.h"
#include "frontend/tools/tags.h"

namespace holdfast::tools {

std::unique_ptr<CallSyntax> NewGemma4(Tags* tags);
std::unique_ptr<CallSyntax> NewHermes(Tags* tags);
std::unique_ptr<CallSyntax> NewQwen3Coder(Tags* tags);
std::unique_ptr<CallSyntax> NewGlm(Tags* tags);
std::unique_ptr<CallSyntax> NewLlama3(Tags* tags);
std::unique_ptr<CallSyntax> NewMistral(Tags* tags);     // an array of calls
std::unique_ptr<CallSyntax> NewMistralV11(Tags* tags);  // NAME[ARGS]{...}
std::unique_ptr<CallSyntax> NewDeepSeekV3(Tags* tags);
std::unique_ptr<CallSyntax> NewDeepSeekV31(Tags* tags);
std::unique_ptr<CallSyntax> NewKimiK2(Tags* tags);

ThoughtSyntax Gemma4Thoughts(Tags* tags);
ThoughtSyntax ThinkThoughts(Tags* tags);    // <think>..</think>
ThoughtSyntax MistralThoughts(Tags* tags);  // [THINK]..[/THINK]

}  // namespace holdfast::tools
