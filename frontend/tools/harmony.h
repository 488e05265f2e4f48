#pragma once
// gpt-oss's harmony: an answer is a row of messages, each with a channel and perhaps a recipient:
//   <|channel|>analysis<|message|>THOUGHT<|end|><|start|>assistant<|channel|>final<|message|>TEXT<|return|>
//   <|channel|>commentary to=functions.NAME <|constrain|>json<|message|>{...}<|call|>
// The recipient may also stand before the channel. Tags of messages are no content; a message to an unknown recipient is.
#include <memory>

#include "frontend/tools/format.h"
#include "frontend/tools/tags.h"

namespace holdfast::tools {

// `separate`: analysis is reasoning; false: the format has no reasoning of its own, thoughts stay content.
std::shared_ptr<const Format> NewHarmony(std::unique_ptr<Tags> tags, bool calls, bool separate);

}  // namespace holdfast::tools
