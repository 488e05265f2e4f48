#pragma once
// The tools of the demo and what they answer. A "stub" beside a tool's declaration says how each member of the result is made up:
// {"range": [LOW, HIGH]} and {"choice": [...]} draw by a hash of tool, arguments and member, {"value": X} is itself. So the same call always
// gets the same result, and gets it from the console's script and from deploy/demo.py, too, which read the same file.
#include <absl/status/statusor.h>

#include <string>
#include <string_view>
#include <vector>

#include "frontend/text/json_value.h"

namespace holdfast::console {

struct DemoTool {
  std::string name, description;
  text::JsonValue declaration;      // as a request's "tools" takes it
  bool offered = true;              // without being asked for: no more than five, as in most of the default model's training
  std::vector<std::string> examples;
  text::JsonValue stub;
};

class DemoTools final {
 public:
  // kInvalidArgument when the text is no array of tools with stubs as above.
  static absl::StatusOr<DemoTools> Parse(std::string_view json);

  const std::vector<DemoTool>& tools() const { return tools_; }
  const DemoTool* Find(std::string_view name) const;
  // JSON text of the result; an unknown tool or arguments that are no object give {"error": ...}, as a real tool would.
  std::string Answer(std::string_view name, std::string_view arguments) const;

 private:
  std::vector<DemoTool> tools_;
};

}  // namespace holdfast::console
