#pragma once
// Writing JSON into a string without a tree: a comma where one is due, escaped strings, numbers that round-trip. The caller keeps the
// braces balanced.
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>

#include "proto/base/log.h"

namespace holdfast::api {

class JsonOut final {
 public:
  JsonOut& Begin(char bracket) {  // '{' or '['
    Comma();
    out_.push_back(bracket);
    fresh_ = true;
    return *this;
  }
  JsonOut& End(char bracket) {
    out_.push_back(bracket);
    fresh_ = false;
    return *this;
  }
  JsonOut& Key(std::string_view key) {
    Value(key);
    out_.push_back(':');
    fresh_ = true;
    return *this;
  }
  // Invalid UTF-8 becomes U+FFFD.
  JsonOut& Value(std::string_view text) {
    Comma();
    out_.push_back('"');
    AppendJsonEscaped(text, &out_);
    out_.push_back('"');
    return *this;
  }
  JsonOut& Value(const std::string& text) { return Value(std::string_view(text)); }
  JsonOut& Value(const char* text) { return Value(std::string_view(text)); }
  template <class T>
    requires std::is_arithmetic_v<T>
  JsonOut& Value(T number) {
    Comma();
    if constexpr (std::is_floating_point_v<T>) {
      if (!std::isfinite(number)) {
        out_ += "null";
        return *this;
      }
    }
    fmt::format_to(std::back_inserter(out_), "{}", number);  // bool: true/false
    return *this;
  }
  JsonOut& Null() { return Raw("null"); }
  JsonOut& Raw(std::string_view json) {
    Comma();
    out_ += json;
    return *this;
  }
  template <class T>
  JsonOut& Member(std::string_view key, const T& value) {
    Key(key);
    return Value(value);
  }

  const std::string& text() const { return out_; }
  std::string Take() { return std::move(out_); }

 private:
  void Comma() {
    if (!fresh_) out_.push_back(',');
    fresh_ = false;
  }
  std::string out_;
  bool fresh_ = true;
};

}  // namespace holdfast::api
