#pragma once
// The version every process reports; CHANGELOG.md says what it holds.
namespace holdfast {
inline constexpr char kVersion[] = "0.1.0";
}
