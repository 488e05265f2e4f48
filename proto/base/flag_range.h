#pragma once
// A check for flags that are real numbers. CLI::Range compares, so it lets NaN through, and no comparison downstream would stop it either.
#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <cmath>
#include <string>

namespace holdfast {

inline CLI::Validator RealRange(double least, double most) {
  const CLI::Range range(least, most);
  return CLI::Validator(
      [range](std::string& text) {
        double value = 0;
        if (CLI::detail::lexical_cast(text, value) && std::isnan(value)) return "Value " + text + " is not a number";
        return range(text);
      },
      range.get_description());
}

}  // namespace holdfast
