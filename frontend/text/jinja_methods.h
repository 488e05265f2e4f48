#pragma once
// The methods of Python's str (jinja_str_methods.cc).
#include <string>
#include <string_view>

#include "frontend/text/jinja_runtime.h"

namespace holdfast::text::jinja {

bool IsStrMethod(std::string_view name);
Value StrMethod(Runtime& rt, const Value& self, const std::string& name, const Args& args);

}  // namespace holdfast::text::jinja
