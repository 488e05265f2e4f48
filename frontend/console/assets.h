#pragma once
// The files of the console, compiled in: the page needs no installation and no other host. Immutable; any thread.
#include <span>
#include <string_view>

namespace holdfast::console {

struct Asset {
  std::string_view path;            // where the browser asks for it: "/console.js"
  std::string_view content_type;
  std::string_view bytes;
};

// The page itself is the first: path "/".
std::span<const Asset> Assets();

// The tools that the console and `holdfast chat` offer: a JSON array of OpenAI function tools, each with a "stub" besides (demo_tools.h).
std::string_view DemoToolsJson();

}  // namespace holdfast::console
