#pragma once
// The filters that work on sequences (jinja_filters_seq.cc) and what the string filters share with the string methods. Arguments and
// results are those of jinja2's filters of the same name.
#include <string>
#include <string_view>

#include "frontend/text/jinja_runtime.h"

namespace holdfast::text::jinja::filters {

Value Batch(Runtime& rt, const Value& input, const Args& args);
Value DictSort(Runtime& rt, const Value& input, const Args& args);
Value First(Runtime& rt, const Value& input, const Args& args);
Value GroupBy(Runtime& rt, const Value& input, const Args& args);
Value Items(Runtime& rt, const Value& input, const Args& args);
Value Join(Runtime& rt, const Value& input, const Args& args);
Value Last(Runtime& rt, const Value& input, const Args& args);
Value List(Runtime& rt, const Value& input, const Args& args);
Value Map(Runtime& rt, const Value& input, const Args& args);
Value Max(Runtime& rt, const Value& input, const Args& args);
Value Min(Runtime& rt, const Value& input, const Args& args);
Value Reject(Runtime& rt, const Value& input, const Args& args);
Value RejectAttr(Runtime& rt, const Value& input, const Args& args);
Value Reverse(Runtime& rt, const Value& input, const Args& args);
Value Select(Runtime& rt, const Value& input, const Args& args);
Value SelectAttr(Runtime& rt, const Value& input, const Args& args);
Value Slices(Runtime& rt, const Value& input, const Args& args);
Value Sort(Runtime& rt, const Value& input, const Args& args);
Value Sum(Runtime& rt, const Value& input, const Args& args);
Value Unique(Runtime& rt, const Value& input, const Args& args);

Text EscapeText(const Text& text);  // HTML
std::string CapitalizeText(std::string_view s);
Value CenterText(Runtime& rt, const Text& text, int64_t width, std::string_view fill);

}  // namespace holdfast::text::jinja::filters
