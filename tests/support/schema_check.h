#pragma once
// A small validator of JSON Schema for tests: what a value is checked with must not be what made it. It knows the keywords that the random
// schemas of the tests use, and says so when it meets another.
#include <string>

#include "frontend/text/json_value.h"

namespace holdfast::test {

// "" when the value is valid, else where it is not.
std::string WhyInvalid(const text::JsonValue& schema, const text::JsonValue& value);

}  // namespace holdfast::test
