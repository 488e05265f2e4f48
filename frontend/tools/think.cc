#include "frontend/tools/formats.h"

namespace holdfast::tools {

ThoughtSyntax ThinkThoughts(Tags* tags) {
  ThoughtSyntax thoughts;
  thoughts.open = tags->Add("<think>");
  thoughts.close = tags->Add("</think>");
  return thoughts;
}

ThoughtSyntax MistralThoughts(Tags* tags) {
  ThoughtSyntax thoughts;
  thoughts.open = tags->Add("[THINK]");
  thoughts.close = tags->Add("[/THINK]");
  return thoughts;
}

}  // namespace holdfast::tools
