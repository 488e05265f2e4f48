#pragma once
// The tools of the demo and what they answer. A "stub" beside a tool's declaration says how each member of the result is made up from the
// arguments: {"argument": NAME} copies one, {"range": [LOW, HIGH]} and {"choice": [...]} draw by a hash of tool, arguments and member,
// {"value": X} is itself. The same call always gets the same result; the page's script does the same with its own hash input.
#include <absl/status/statusor.h>

#include <string>
#include <string_view>

#include "frontend/text/json_value.h"

namespace holdfast::console {

class DemoTools final {
 public:
  // kInvalidArgument when the text is no array of tools with stubs as above.
  static absl::StatusOr<DemoTools> Parse(std::string_view json);

  // The declarations alone, as a request's "tools" takes them.
  const text::JsonValue& declarations() const { return declarations_; }
  // JSON text of the result; an unknown tool or arguments that are no object give {"error": ...}, as a real tool would.
  std::string Answer(std::string_view name, std::string_view arguments) const;

 private:
  text::JsonValue declarations_;
  text::JsonValue stubs_;           // object: name -> stub
};

}  // namespace holdfast::console
